package offloader.pulsar;

import io.netty.buffer.ByteBuf;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Supplier;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.mledger.OffloadedLedgerHandle;
import org.apache.bookkeeper.net.BookieId;
import org.apache.pulsar.common.allocator.PulsarByteBufAllocator;

/**
 * A ledger of the cold tier, as the broker reads it.
 *
 * <p>A read gives all of its entries or fails. It takes chunks out of the shared cache, which are loaded through
 * presigned URLs, or through a sidecar where there is none or it fails.
 */
final class ColdLedger implements ReadHandle, OffloadedLedgerHandle {
    private static final int CURSORS_MAX = 16;
    private static final int SKIPPED_MAX = 500;

    /** A chunk of more bytes isn't kept: the sidecar gives the entries that were asked for. */
    private static final long KEPT_MAX = 64 << 20;

    /** An answer with entries may have at least so many bytes; more of them are asked for in pieces. */
    private static final int ROOM_MIN = 16 << 20;
    private static final int PLAN_BYTES_MAX = 64 << 20;
    private static final long RELOAD_NANOS = TimeUnit.SECONDS.toNanos(5);
    private static final AtomicLong WARNED = new AtomicLong(System.nanoTime() - TimeUnit.MINUTES.toNanos(1));

    private final long ledger;
    private final String stream;
    private final String source;
    private final UUID uuid;
    private final Sidecars sidecars;
    private final Settings settings;
    private final Statistics statistics;
    private final AtomicInteger pending = new AtomicInteger();
    private final ArrayDeque<End> ends = new ArrayDeque<>();
    private final BitSet touched = new BitSet();
    /** First entries of chunks of the sidecar that were much larger than the plan said. */
    private final Set<Long> large = ConcurrentHashMap.newKeySet();
    private volatile long accessedMs = System.currentTimeMillis();
    private volatile Plan plan;
    private volatile boolean isStale;
    private long loadedNanos;
    private long renewMs;
    private CompletableFuture<Plan> reloading;
    private CompletableFuture<ColdLedger> following;

    /** Where a read ended, and how many reads before it went on where one ended. */
    private record End(long next, int run) {}

    private ColdLedger(long ledger, String stream, String source, UUID uuid, Sidecars sidecars, Settings settings,
            Statistics statistics) {
        this.ledger = ledger;
        this.stream = stream;
        this.source = source;
        this.uuid = uuid;
        this.sidecars = sidecars;
        this.settings = settings;
        this.statistics = statistics;
    }

    /** A handle once its plan is there, since the broker asks it for the last entry at once. */
    static CompletableFuture<ReadHandle> open(long ledger, String stream, String source, UUID uuid, Sidecars sidecars,
            Settings settings, Statistics statistics) {
        ColdLedger made = new ColdLedger(ledger, stream, source, uuid, sidecars, settings, statistics);
        return made.opened().thenApply(handle -> handle);
    }

    /** Itself once its plan is there: one that was asked for a moment ago, too. */
    private CompletableFuture<ColdLedger> opened() {
        return Shared.PLANS.get(planKey(), uuid, this::loadPlan).thenApply(found -> {
            take(found);
            return this;
        });
    }

    private Plans.Key planKey() {
        return new Plans.Key(source, stream, ledger);
    }

    /** The plan of a ledger, from a sidecar; {@code uuid} is null for one whose attempt isn't known. */
    static CompletableFuture<Plan> plan(Sidecars sidecars, Settings settings, String stream, long ledger, UUID uuid,
            String source) {
        Shared.COUNTERS.add(Counters.Name.Plans, 1);
        String path = Sidecars.path(stream, ledger) + (uuid == null ? "" : "?uuid=" + uuid);
        Sidecars.Call call = Sidecars.Call.of("GET", path, source, PLAN_BYTES_MAX, settings.requestTimeout());
        return sidecars.call(call, Plan::parse, deadline(settings, 2));
    }

    private CompletableFuture<Plan> loadPlan() {
        long began = System.nanoTime();
        return plan(sidecars, settings, stream, ledger, uuid, source).whenComplete((found, thrown) ->
                statistics.indexLatency(System.nanoTime() - began));
    }

    private synchronized void take(Plan found) {
        plan = found;
        isStale = false;
        synchronized (touched) {
            touched.clear();
        }
        loadedNanos = System.nanoTime();
        long now = System.currentTimeMillis();
        renewMs = found.expiresMs() == 0 ? Long.MAX_VALUE
                : found.expiresMs() - Math.min(30_000, Math.max(0, found.expiresMs() - now) / 4);
    }

    /** The plan: a new one once a URL was refused or has expired; while they expire soon, one is loaded beside reads. */
    private CompletableFuture<Plan> freshPlan() {
        CompletableFuture<Plan> shared;
        boolean isUseless;
        boolean isBegun = false;
        synchronized (this) {
            long now = System.currentTimeMillis();
            isUseless = isStale || plan.expiresMs() != 0 && now >= plan.expiresMs();
            boolean isDue = (isUseless || now >= renewMs) && System.nanoTime() - loadedNanos >= RELOAD_NANOS;
            if (reloading == null && isDue) {
                reloading = new CompletableFuture<>();
                isBegun = true;
            }
            shared = reloading;
        }
        if (isBegun) {
            loadPlan().whenComplete((found, thrown) -> reloaded(shared, found, thrown));
        }
        return shared != null && isUseless ? shared : CompletableFuture.completedFuture(plan);
    }

    private void reloaded(CompletableFuture<Plan> shared, Plan found, Throwable thrown) {
        boolean isSame = thrown == null && found.isSame(plan);
        if (isSame) {
            take(found);
        }
        synchronized (this) {
            reloading = null;
            loadedNanos = System.nanoTime();
        }
        if (thrown == null && !isSame) {
            shared.completeExceptionally(new PluginError("the sidecar has another ledger by now: " + found + ", it was "
                    + plan));
        } else if (thrown != null && Futures.cause(thrown) instanceof PluginError failed && failed.isTrimmed()) {
            shared.completeExceptionally(failed);
        } else {
            shared.complete(plan); // what isn't readable by its URLs is read through the sidecar
        }
    }

    @Override
    public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
        accessedMs = System.currentTimeMillis();
        if (first < 0 || first > last || last > plan.last()) {
            return CompletableFuture.failedFuture(new BKException.BKIncorrectParameterException());
        }
        pending.incrementAndGet();
        long began = System.nanoTime();
        boolean isSequential = follows(first, last);
        CompletableFuture<LedgerEntries> read = Futures.start(() -> freshPlan().thenCompose(now ->
                first == last && !isSequential ? one(now, first) : several(now, first, last, isSequential)));
        CompletableFuture<LedgerEntries> result = new CompletableFuture<>();
        Duration limit = settings.requestTimeout().multipliedBy(4);
        Futures.within(read, limit, () -> new PluginError("not read within " + limit.toSeconds() + " s"),
                LedgerEntries::close).whenComplete((entries, thrown) -> {
                    pending.decrementAndGet();
                    accessedMs = System.currentTimeMillis();
                    Shared.COUNTERS.add(Counters.Name.Reads, 1);
                    if (thrown == null) {
                        statistics.dataLatency(System.nanoTime() - began);
                        if (!result.complete(entries)) {
                            entries.close();
                        }
                    } else {
                        Shared.COUNTERS.add(Counters.Name.ReadFailures, 1);
                        statistics.readError();
                        result.completeExceptionally(failure(thrown, "entries " + first + " to " + last,
                                stream, ledger));
                    }
                });
        return result;
    }

    /** What the broker is told: only a ledger that was deleted on purpose may be skipped by it. */
    static Throwable failure(Throwable thrown, String what, String stream, long ledger) {
        Throwable cause = Futures.cause(thrown);
        if (cause instanceof PluginError failed && failed.isTrimmed()) {
            Shared.LOG.warn("Ledger {} of {} was deleted from the cold tier on purpose: {}", ledger, stream,
                    failed.getMessage());
            return new BKException.BKNoSuchLedgerExistsException();
        }
        String why = cause instanceof PluginError ? cause.getMessage() : Sidecars.describe(cause);
        PluginError known = cause instanceof PluginError error ? error : new PluginError(why);
        return new PluginError("ledger " + ledger + " of " + stream + ", " + what + ": " + why, known.status, known.kind);
    }

    /**
     * Whether a read goes on where one ended, of any of the cursors that share this handle. A read of several entries
     * may leave some out: those that the broker's own cache has. Single entries count from the third in a row on: a
     * search by time comes to two neighbours, too.
     */
    private boolean follows(long first, long last) {
        long skipped = last > first ? SKIPPED_MAX : 0;
        synchronized (ends) {
            int run = first == 0 && last > 0 ? 1 : 0;
            for (Iterator<End> each = ends.iterator(); each.hasNext();) {
                End end = each.next();
                if (first >= end.next && first - end.next <= skipped) {
                    each.remove();
                    run = Math.max(run, end.run + 1);
                }
            }
            ends.addLast(new End(last + 1, run));
            if (ends.size() > CURSORS_MAX) {
                ends.removeFirst();
            }
            return run >= (last > first ? 1 : 2);
        }
    }

    private CompletableFuture<LedgerEntries> several(Plan now, long first, long last, boolean isSequential) {
        long next = fetch(now, first, last);
        if (isSequential && next > last) {
            readAhead(now, next, now.find(last));
        }
        List<LedgerEntry> entries = new ArrayList<>((int) Math.min(1_000, last - first + 1));
        return given(collect(now, first, last, entries), entries);
    }

    /** Begins all loads of a read at once; the entry after them. */
    private long fetch(Plan now, long first, long last) {
        long next = first;
        while (next <= last) {
            Plan.Part unit = unit(now, now.parts().get(now.find(next)), next);
            if (!isKept(unit)) {
                break;
            }
            chunk(now, unit);
            next = unit.last() + 1;
        }
        return next;
    }

    /**
     * Loads what a reader wants soon: from {@code next} on the rest of its chunk block by block, so that it never waits
     * for more than one; then whole chunks, at the end of the ledger those of the next one.
     */
    private void readAhead(Plan now, long next, int index) {
        Plan.Part part = now.parts().get(index);
        long at = next;
        while (at <= part.last()) {
            Plan.Part unit = unit(now, part, at);
            if (!ahead(now, unit)) {
                return;
            }
            at = unit.last() + 1;
        }
        int to = index + settings.readAhead();
        int beyond = to - now.parts().size();
        if (aheadFrom(now, index + 1, to) && beyond >= 0) {
            following(now).thenAccept(ledger -> ledger.aheadFrom(ledger.plan, 0, beyond));
        }
    }

    /** Loads chunks before they are asked for; false: there is no room for all of them. */
    private boolean aheadFrom(Plan now, int from, int to) {
        for (int index = from; index <= Math.min(to, now.parts().size() - 1); index++) {
            Plan.Part part = now.parts().get(index);
            if (!ahead(now, part)) {
                return false;
            }
        }
        return true;
    }

    /** The ledger that comes after this one; never complete where none does or it can't be had. */
    private synchronized CompletableFuture<ColdLedger> following(Plan now) {
        if (following == null) {
            following = now.next() < 0 ? new CompletableFuture<>()
                    : new ColdLedger(now.next(), stream, source, null, sidecars, settings, statistics).opened();
        }
        return following;
    }

    /** The entries once all are there; none of their buffers outlives a failure. */
    private static CompletableFuture<LedgerEntries> given(CompletableFuture<Void> collected, List<LedgerEntry> entries) {
        return collected.handle((done, thrown) -> {
            if (thrown != null) {
                entries.forEach(LedgerEntry::close);
                throw new CompletionException(Futures.cause(thrown));
            }
            return LedgerEntriesImpl.create(entries);
        });
    }

    private CompletableFuture<Void> collect(Plan now, long first, long last, List<LedgerEntry> into) {
        Plan.Part part = unit(now, now.parts().get(now.find(first)), first);
        long asked = Math.min(last, part.last());
        CompletableFuture<Chunk> found = part.object() < 0 && !isKept(part) ? some(first, asked)
                : chunk(now, part).exceptionallyCompose(thrown -> isTooLarge(thrown) ? some(first, asked)
                        : CompletableFuture.failedFuture(thrown));
        return found.thenComposeAsync(chunk -> {
            long until = Math.min(last, chunk.last());
            copy(chunk, first, until, into);
            return until == last ? CompletableFuture.<Void>completedFuture(null) : collect(now, until + 1, last, into);
        }, Shared.POOL);
    }

    /** Entries from {@code first} on, without their chunk: up to {@code last}, or fewer where these are too large. */
    private CompletableFuture<Chunk> some(long first, long last) {
        int room = first == last ? (int) KEPT_MAX : ROOM_MIN;
        return Shared.CACHE.once(room, () -> entries(first, last, 64 << 10, room, deadline(settings, 2)))
                .exceptionallyCompose(thrown -> first < last && isTooLarge(thrown) ? some(first, (first + last) / 2)
                        : CompletableFuture.failedFuture(thrown));
    }

    private static boolean isTooLarge(Throwable thrown) {
        return Futures.cause(thrown) instanceof PluginError failed && failed.isTooLarge();
    }

    private boolean isKept(Plan.Part part) {
        return part.cost() <= KEPT_MAX && !large.contains(part.first());
    }

    /** Copies into the broker's buffers: its cache would keep whole chunks alive by the slices of them. */
    private void copy(Chunk chunk, long first, long last, List<LedgerEntry> into) {
        long bytes = 0;
        for (long entry = first; entry <= last; entry++) {
            int length = chunk.length(entry);
            ByteBuf buffer = PulsarByteBufAllocator.DEFAULT.buffer(length, length);
            into.add(LedgerEntryImpl.create(ledger, entry, length, buffer));
            buffer.writeBytes(chunk.data, chunk.start(entry), length);
            bytes += length;
        }
        Shared.COUNTERS.add(Counters.Name.ReadEntries, last - first + 1);
        Shared.COUNTERS.add(Counters.Name.ReadBytes, bytes);
        statistics.readBytes(bytes);
    }

    /** One entry out of order: only it is fetched, unless its chunk is here or was asked for before. */
    private CompletableFuture<LedgerEntries> one(Plan now, long entry) {
        int index = now.find(entry);
        Plan.Part part = now.parts().get(index);
        boolean isBlock = part.object() >= 0 && part.blocks().size() == 1;
        if (isBlock || unit(now, part, entry) != part) { // its block takes one request, and is worth keeping
            return several(now, entry, entry, false);
        }
        boolean isAgain;
        synchronized (touched) {
            isAgain = touched.get(index);
            touched.set(index);
        }
        if (isAgain || part.entries() == 1 || Shared.CACHE.has(key(part))) {
            return several(now, entry, entry, false);
        }
        long likely = Math.min(part.cost(), Math.max(64 << 10, 4 * part.bytes() / part.entries()));
        return Shared.CACHE.once(likely, () -> entries(entry, entry, 16 << 10, (int) likely + 64, deadline(settings, 1)))
                .handle((chunk, thrown) -> {
                    if (thrown != null) { // a large entry, or no sidecar: the chunk has it too
                        return several(now, entry, entry, false);
                    }
                    List<LedgerEntry> entries = new ArrayList<>(1);
                    return given(CompletableFuture.completedFuture(chunk).thenAccept(
                            found -> copy(found, entry, entry, entries)), entries);
                }).thenCompose(result -> result);
    }

    private ChunkCache.Key key(Plan.Part part) {
        return new ChunkCache.Key(source, stream, ledger, part.first(), part.last());
    }

    /** What is fetched for an entry: its block, unless its whole chunk is here or on its way, or the sidecar has to give it. */
    private Plan.Part unit(Plan now, Plan.Part part, long entry) {
        boolean isWhole = part.object() < 0 || Shared.CACHE.has(key(part))
                || Sidecars.isDead(now.objects().get(part.object()));
        return isWhole ? part : part.block(entry);
    }

    private boolean ahead(Plan now, Plan.Part part) {
        return isKept(part) && Shared.CACHE.readAhead(key(part), part.cost(), () -> load(now, part));
    }

    private CompletableFuture<Chunk> chunk(Plan now, Plan.Part part) {
        return Shared.CACHE.get(key(part), part.cost(), () -> load(now, part));
    }

    /** A chunk by its URL and, when that fails, through a sidecar; the other way round while the store is dead. */
    private CompletableFuture<Chunk> load(Plan now, Plan.Part part) {
        long deadline = deadline(settings, 2);
        int room = (int) Math.max(ROOM_MIN, 2 * part.cost()); // its bytes may be an estimate
        Supplier<CompletableFuture<Chunk>> bySidecar = () ->
                entries(part.first(), part.last(), (int) (part.bytes() + 12L * part.entries() + 12), room, deadline);
        if (part.object() < 0) {
            return bySidecar.get().whenComplete((chunk, thrown) -> {
                if (thrown != null && isTooLarge(thrown)) {
                    large.add(part.first());
                }
            });
        }
        Supplier<CompletableFuture<Chunk>> byUrl = () -> direct(now, part, deadline);
        boolean isDead = Sidecars.isDead(now.objects().get(part.object()));
        return isDead ? either(bySidecar, byUrl) : either(byUrl, bySidecar);
    }

    private static CompletableFuture<Chunk> either(
            Supplier<CompletableFuture<Chunk>> way, Supplier<CompletableFuture<Chunk>> other) {
        return way.get().handle((chunk, thrown) -> thrown == null ? CompletableFuture.completedFuture(chunk)
                : other.get().handle((second, failed) -> {
                    if (failed != null) {
                        PluginError last = Futures.cause(failed) instanceof PluginError known ? known
                                : new PluginError(Sidecars.describe(failed));
                        throw new CompletionException(new PluginError(
                                Sidecars.describe(thrown) + "; then: " + last.getMessage(), 0, ""));
                    }
                    return second;
                })).thenCompose(result -> result);
    }

    private CompletableFuture<Chunk> direct(Plan now, Plan.Part part, long deadline) {
        Shared.COUNTERS.add(Counters.Name.PresignedRequests, 1);
        Duration left = Futures.remaining(deadline);
        Duration limit = left.compareTo(settings.requestTimeout()) < 0 ? left : settings.requestTimeout();
        return sidecars.range(now.objects().get(part.object()), part.start(), part.stop(), limit)
                .thenApplyAsync(data -> {
                    Shared.COUNTERS.add(Counters.Name.PresignedBytes, data.length);
                    try {
                        return Chunk.ofBlocks(part, ledger, data);
                    } catch (IOException damaged) {
                        Shared.COUNTERS.add(Counters.Name.CorruptBlocks, 1);
                        throw new CompletionException(new PluginError(damaged.getMessage()));
                    }
                }, Shared.POOL).whenComplete((chunk, thrown) -> {
                    if (thrown == null) {
                        return;
                    }
                    Shared.COUNTERS.add(Counters.Name.PresignedFailures, 1);
                    if (Futures.cause(thrown) instanceof PluginError failed && failed.status / 100 == 4) {
                        isStale = true;
                        Shared.PLANS.forget(planKey());
                    }
                    warn(part, thrown);
                });
    }

    private void warn(Plan.Part part, Throwable thrown) {
        long last = WARNED.get();
        if (System.nanoTime() - last >= TimeUnit.MINUTES.toNanos(1) && WARNED.compareAndSet(last, System.nanoTime())) {
            Shared.LOG.warn("Ledger {} of {}: entries {} to {} can't be read from the object store, but through the "
                    + "sidecar: {} (logged once a minute)", ledger, stream, part.first(), part.last(),
                    Sidecars.describe(thrown));
        }
    }

    private CompletableFuture<Chunk> entries(long first, long last, int expected, int max, long deadline) {
        Shared.COUNTERS.add(Counters.Name.EntriesRequests, 1);
        String path = Sidecars.path(stream, ledger) + "/entries?from=" + first + "&to=" + last
                + (uuid == null ? "" : "&uuid=" + uuid);
        Sidecars.Call call = new Sidecars.Call("GET", path, source, null, 0, expected, max, settings.requestTimeout());
        return sidecars.call(call, answer -> {
            Shared.COUNTERS.add(Counters.Name.EntriesBytes, answer.length);
            return Chunk.ofFrames(first, last, answer);
        }, deadline).handle((chunk, thrown) -> {
            if (thrown == null) {
                return chunk;
            }
            Shared.COUNTERS.add(Counters.Name.EntriesFailures, 1);
            if (Futures.cause(thrown) instanceof PluginError failed && failed.status == 410) {
                isStale = true; // the next plan tells whether the whole ledger was deleted, or only these entries
                throw new CompletionException(new PluginError(failed.getMessage()));
            }
            throw new CompletionException(Futures.cause(thrown));
        });
    }

    private static long deadline(Settings settings, int times) {
        return System.nanoTime() + settings.requestTimeout().multipliedBy(times).toNanos();
    }

    @Override
    public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
        return readAsync(first, last);
    }

    @Override
    public CompletableFuture<Long> readLastAddConfirmedAsync() {
        return CompletableFuture.completedFuture(plan.last());
    }

    @Override
    public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
        return CompletableFuture.completedFuture(plan.last());
    }

    @Override
    public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(
            long entry, long timeoutMs, boolean parallel) {
        return CompletableFuture.failedFuture(new UnsupportedOperationException("the ledger is closed"));
    }

    @Override
    public long getLastAddConfirmed() {
        return plan.last();
    }

    @Override
    public long getLength() {
        return plan.length();
    }

    @Override
    public boolean isClosed() {
        return true;
    }

    @Override
    public long getId() {
        return ledger;
    }

    @Override
    public LedgerMetadata getLedgerMetadata() {
        return metadata(ledger, plan.last(), plan.length());
    }

    /** Of a closed ledger that no bookie needs to have. */
    static LedgerMetadata metadata(long ledger, long last, long length) {
        return LedgerMetadataBuilder.create().withId(ledger).withEnsembleSize(1).withWriteQuorumSize(1)
                .withAckQuorumSize(1).withDigestType(DigestType.CRC32C).withPassword(new byte[0])
                .newEnsembleEntry(0, List.of(BookieId.parse("cold-tier"))).withClosedState().withLastEntryId(last)
                .withLength(length).build();
    }

    /** Nothing is held open: reads that are under way finish. */
    @Override
    public CompletableFuture<Void> closeAsync() {
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public long lastAccessTimestamp() {
        return accessedMs;
    }

    @Override
    public int getPendingRead() {
        return pending.get();
    }
}
