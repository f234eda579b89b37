package offloader.pulsar;

import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.eventually;
import static offloader.pulsar.Checks.fails;
import static offloader.pulsar.Checks.get;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;

/** Places of a gate come back, whatever becomes of those who wait for one. */
final class FuturesTest {
    private static final long LONG_NANOS = Duration.ofSeconds(5).toNanos();

    /** Threads and queue of the plugin, full until it is closed. */
    static final class FullPool implements AutoCloseable {
        private final CountDownLatch open = new CountDownLatch(1);

        FullPool() {
            while (Shared.POOL.getQueue().remainingCapacity() > 0) {
                Shared.POOL.execute(() -> {
                    try {
                        open.await();
                    } catch (InterruptedException closing) {
                        Thread.currentThread().interrupt();
                    }
                });
            }
        }

        @Override
        public void close() throws InterruptedException {
            open.countDown();
            eventually(() -> Shared.POOL.getQueue().isEmpty());
        }
    }

    private static String done(Futures.Gate gate) throws Exception {
        return get(gate.enter(System.nanoTime() + LONG_NANOS, () -> CompletableFuture.completedFuture("done")));
    }

    static void testRefusedWorkGivesItsPlaceBack() throws Exception {
        Futures.Gate gate = new Futures.Gate(1);
        try (FullPool full = new FullPool()) {
            fails(() -> done(gate));
        }
        equal(done(gate), "done");
    }

    /** As when a sidecar is silent until thousands of offloads have waited too long. */
    static void testManyWhoseTimeIsUpTakeNoPlace() throws Exception {
        Futures.Gate gate = new Futures.Gate(1);
        CompletableFuture<Void> first = new CompletableFuture<>();
        CompletableFuture<Void> busy = gate.enter(System.nanoTime() + LONG_NANOS, () -> first);
        List<CompletableFuture<Void>> late = new ArrayList<>();
        for (int i = 0; i < 50_000; i++) {
            late.add(gate.enter(System.nanoTime(), () -> CompletableFuture.completedFuture(null)));
        }
        for (CompletableFuture<Void> each : late) {
            fails(() -> get(each), "no turn before the deadline");
        }
        first.complete(null);
        get(busy);
        equal(done(gate), "done");
    }
}
