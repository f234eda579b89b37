package offloader.pulsar;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/**
 * The chunks in memory, for all topics of the broker, least recently used first out.
 *
 * <p>A chunk counts from before its load begins. A load that finds no room waits until others are done; a read-ahead
 * that finds none doesn't happen.
 */
final class ChunkCache {
    private static final int WAITING_MAX = 10_000;

    record Key(String source, String stream, long ledger, long first, long last) {}

    private final LinkedHashMap<Object, Slot> slots = new LinkedHashMap<>(16, 0.75f, true);
    private final ArrayDeque<Slot> waiting = new ArrayDeque<>();
    private final Counters counters;
    private long limit;
    private long used;
    private long unread;

    ChunkCache(long limit, Counters counters) {
        this.limit = limit;
        this.counters = counters;
    }

    private static final class Slot {
        final Object key;
        final CompletableFuture<Chunk> chunk = new CompletableFuture<>();
        final Supplier<CompletableFuture<Chunk>> load;
        long cost;
        boolean isLoaded;
        boolean isUnread;
        long usedNanos = System.nanoTime();

        Slot(Object key, long cost, boolean isUnread, Supplier<CompletableFuture<Chunk>> load) {
            this.key = key;
            this.cost = cost;
            this.isUnread = isUnread;
            this.load = load;
        }
    }

    synchronized void setLimit(long bytes) {
        limit = bytes;
    }

    synchronized long used() {
        return used;
    }

    synchronized boolean has(Key key) {
        return slots.containsKey(key);
    }

    /** The chunk, loaded once for all that ask for it at the same time. */
    CompletableFuture<Chunk> get(Key key, long cost, Supplier<CompletableFuture<Chunk>> load) {
        Slot slot;
        synchronized (this) {
            slot = slots.get(key);
            if (slot != null) {
                counters.add(Counters.Name.CacheHits, 1);
                markRead(slot);
                return slot.chunk;
            }
            counters.add(Counters.Name.CacheMisses, 1);
            slot = new Slot(key, cost, false, load);
            slots.put(key, slot);
            if (!admitOrQueue(slot)) {
                return slot.chunk;
            }
        }
        begin(slot);
        return slot.chunk;
    }

    /** Loads the chunk if there is room for it beside what others still read; false: there is none. */
    boolean readAhead(Key key, long cost, Supplier<CompletableFuture<Chunk>> load) {
        Slot slot;
        synchronized (this) {
            slot = slots.get(key);
            if (slot != null) {
                slot.usedNanos = System.nanoTime(); // a slow reader still wants it
                return true;
            }
            if (!waiting.isEmpty() || unread + cost > limit / 2 || !makeRoom(cost, false)) {
                return false;
            }
            slot = new Slot(key, cost, true, load);
            slots.put(key, slot);
            take(slot);
        }
        begin(slot);
        return true;
    }

    /** Gives back what nobody has asked for since then. */
    synchronized void dropIdle(long sinceNanos) {
        slots.values().removeIf(slot -> {
            boolean isIdle = slot.isLoaded && slot.usedNanos - sinceNanos < 0;
            if (isIdle) {
                giveBack(slot);
            }
            return isIdle;
        });
    }

    /** A load whose result isn't kept: it counts while it is under way. */
    CompletableFuture<Chunk> once(long cost, Supplier<CompletableFuture<Chunk>> load) {
        Slot slot = new Slot(null, cost, false, load);
        synchronized (this) {
            if (!admitOrQueue(slot)) {
                return slot.chunk;
            }
        }
        begin(slot);
        return slot.chunk;
    }

    private boolean admitOrQueue(Slot slot) {
        if (waiting.isEmpty() && makeRoom(slot.cost, true)) {
            take(slot);
            return true;
        }
        if (waiting.size() >= WAITING_MAX) {
            forget(slot);
            slot.chunk.completeExceptionally(new PluginError("more than " + WAITING_MAX + " reads wait for memory;"
                    + " hint: raise 'memory' of the offloader plugin"));
        } else {
            waiting.add(slot);
        }
        return false;
    }

    private void take(Slot slot) {
        used += slot.cost;
        unread += slot.isUnread ? slot.cost : 0;
        counters.add(Counters.Name.CacheBytes, slot.cost);
    }

    private void giveBack(Slot slot) {
        used -= slot.cost;
        unread -= slot.isUnread ? slot.cost : 0;
        counters.add(Counters.Name.CacheBytes, -slot.cost);
    }

    private void markRead(Slot slot) {
        slot.usedNanos = System.nanoTime();
        if (slot.isUnread) {
            slot.isUnread = false;
            unread -= slot.cost;
        }
    }

    private void forget(Slot slot) {
        if (slot.key != null) {
            slots.remove(slot.key, slot);
        }
    }

    private boolean makeRoom(long cost, boolean alsoUnread) {
        Iterator<Map.Entry<Object, Slot>> eldest = slots.entrySet().iterator();
        while (used + cost > limit && used > 0 && eldest.hasNext()) {
            Slot slot = eldest.next().getValue();
            if (slot.isLoaded && (alsoUnread || !slot.isUnread)) {
                eldest.remove();
                giveBack(slot);
            }
        }
        return used + cost <= limit || used == 0;
    }

    private void begin(Slot slot) {
        Futures.start(slot.load).whenComplete((chunk, thrown) -> finish(slot, chunk, thrown));
    }

    private void finish(Slot slot, Chunk chunk, Throwable thrown) {
        List<Slot> next = new ArrayList<>();
        synchronized (this) {
            giveBack(slot);
            if (thrown == null && slot.key != null) {
                slot.cost = chunk.cost();
                slot.isLoaded = true;
                take(slot);
            } else {
                forget(slot);
            }
            while (!waiting.isEmpty() && makeRoom(waiting.peek().cost, true)) {
                Slot admitted = waiting.poll();
                take(admitted);
                next.add(admitted);
            }
        }
        if (thrown == null) {
            slot.chunk.complete(chunk);
        } else {
            slot.chunk.completeExceptionally(Futures.cause(thrown));
        }
        next.forEach(this::begin);
    }
}
