package offloader.pulsar;

import static offloader.pulsar.Checks.check;
import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.fails;
import static offloader.pulsar.Checks.get;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** The memory of all topics together. */
final class CacheTest {
    private static ChunkCache.Key key(long first) {
        return new ChunkCache.Key("", "s", 1, first, first);
    }

    /** A chunk whose cost is 1,000. */
    private static Chunk chunk(long first) {
        Chunk.Writer writer = new Chunk.Writer();
        writer.frame(first, 1_000 - 28);
        writer.end();
        try {
            return Chunk.ofFrames(first, first, java.util.Arrays.copyOf(writer.data(), writer.length()));
        } catch (IOException impossible) {
            throw new AssertionError(impossible);
        }
    }

    static void testConcurrentReadersShareOneLoad() throws Exception {
        ChunkCache cache = new ChunkCache(10_000, new Counters());
        AtomicInteger loads = new AtomicInteger();
        CompletableFuture<Chunk> loaded = new CompletableFuture<>();
        List<CompletableFuture<Chunk>> readers = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            readers.add(cache.get(key(1), 1_000, () -> {
                loads.incrementAndGet();
                return loaded;
            }));
        }
        loaded.complete(chunk(1));
        for (CompletableFuture<Chunk> reader : readers) {
            check(get(reader) == get(readers.get(0)), "another chunk");
        }
        equal(loads.get(), 1);
    }

    static void testLeastRecentlyUsedIsEvicted() throws Exception {
        ChunkCache cache = new ChunkCache(3_000, new Counters());
        for (long first : new long[] {1, 2, 3, 1, 4}) {
            get(cache.get(key(first), 1_000, () -> CompletableFuture.completedFuture(chunk(first))));
        }
        equal(List.of(cache.has(key(1)), cache.has(key(2)), cache.has(key(3)), cache.has(key(4))),
                List.of(true, false, true, true));
        equal(cache.used(), 3_000L);
    }

    static void testWhatNobodyReadsIsGivenBack() throws Exception {
        ChunkCache cache = new ChunkCache(4_000, new Counters());
        for (long first : new long[] {1, 2, 4}) {
            get(cache.get(key(first), 1_000, () -> CompletableFuture.completedFuture(chunk(first))));
        }
        cache.readAhead(key(3), 1_000, CompletableFuture::new); // under way
        long then = System.nanoTime();
        get(cache.get(key(1), 1_000, () -> CompletableFuture.failedFuture(new IOException("loaded again"))));
        check(cache.readAhead(key(4), 1_000, CompletableFuture::new), "a slow reader's");
        cache.dropIdle(then);
        equal(List.of(cache.has(key(1)), cache.has(key(2)), cache.has(key(3)), cache.has(key(4))),
                List.of(true, false, true, true));
        equal(cache.used(), 3_000L);
    }

    static void testLoadWithoutRoomWaitsForOthers() throws Exception {
        ChunkCache cache = new ChunkCache(2_000, new Counters());
        CompletableFuture<Chunk> one = new CompletableFuture<>();
        CompletableFuture<Chunk> two = new CompletableFuture<>();
        AtomicInteger begun = new AtomicInteger();
        cache.get(key(1), 1_000, () -> one);
        cache.get(key(2), 1_000, () -> two);
        CompletableFuture<Chunk> third = cache.get(key(3), 1_000, () -> {
            begun.incrementAndGet();
            return CompletableFuture.completedFuture(chunk(3));
        });
        check(!cache.readAhead(key(4), 1_000, () -> two), "there was room");
        equal(begun.get(), 0);
        two.completeExceptionally(new IOException("broken"));
        equal(get(third).first, 3L);
        equal(cache.used(), 2_000L);
        one.complete(chunk(1));
    }

    static void testFailedLoadIsForgotten() throws Exception {
        ChunkCache cache = new ChunkCache(2_000, new Counters());
        fails(() -> get(cache.get(key(1), 1_000, () -> CompletableFuture.failedFuture(new IOException("broken")))),
                "broken");
        equal(cache.used(), 0L);
        equal(get(cache.get(key(1), 1_000, () -> CompletableFuture.completedFuture(chunk(1)))).first, 1L);
    }

    static void testReadAheadTakesAtMostHalfAndEvictsNothingUnread() {
        ChunkCache cache = new ChunkCache(4_000, new Counters());
        for (long first = 1; first <= 2; first++) {
            long own = first;
            check(cache.readAhead(key(first), 1_000, () -> CompletableFuture.completedFuture(chunk(own))), "no room");
        }
        check(!cache.readAhead(key(3), 1_000, () -> CompletableFuture.completedFuture(chunk(3))), "more than half");
        check(cache.has(key(1)), "evicted unread");
    }

    static void testBoundHoldsForManyReaders() throws Exception {
        Counters counters = new Counters();
        ChunkCache cache = new ChunkCache(8_000, counters);
        AtomicLong loading = new AtomicLong();
        AtomicLong most = new AtomicLong();
        Random random = new Random(3);
        List<CompletableFuture<Chunk>> reads = new ArrayList<>();
        for (int i = 0; i < 3_000; i++) {
            long first = random.nextInt(200);
            boolean fails = random.nextInt(10) == 0;
            reads.add(cache.get(key(first), 1_000, () -> {
                most.accumulateAndGet(loading.addAndGet(1_000), Math::max);
                return Futures.pause(1).thenApply(nothing -> {
                    loading.addAndGet(-1_000);
                    if (fails) {
                        throw new IllegalStateException("broken");
                    }
                    return chunk(first);
                });
            }));
            check(cache.used() <= 8_000, cache.used());
        }
        for (CompletableFuture<Chunk> read : reads) {
            read.handle((chunk, thrown) -> null).get(Checks.PATIENCE_S, java.util.concurrent.TimeUnit.SECONDS);
        }
        check(most.get() <= 8_000, most);
        check(cache.used() <= 8_000, cache.used());
        equal(counters.get(Counters.Name.CacheBytes), cache.used());
    }

    static void testRefusedLoadsGiveTheirMemoryBack() throws Exception {
        ChunkCache cache = new ChunkCache(1_000, new Counters());
        CompletableFuture<Chunk> loaded = new CompletableFuture<>();
        List<CompletableFuture<Chunk>> readers = new ArrayList<>();
        readers.add(cache.get(key(0), 1_000, () -> loaded));
        Checks.eventually(() -> Shared.POOL.getQueue().isEmpty() && Shared.POOL.getActiveCount() == 0);
        for (int first = 1; first < 10_000; first++) {
            readers.add(cache.get(key(first), 1_000, () -> new CompletableFuture<>()));
        }
        try (FuturesTest.FullPool full = new FuturesTest.FullPool()) {
            loaded.completeExceptionally(new PluginError("broken"));
            for (CompletableFuture<Chunk> reader : readers) {
                fails(() -> reader.get(5, java.util.concurrent.TimeUnit.SECONDS), "PluginError");
            }
        }
        equal(cache.used(), 0L);
    }
}
