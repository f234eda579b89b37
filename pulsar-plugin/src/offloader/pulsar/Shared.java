package offloader.pulsar;

import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What all offloaders of a broker share: threads, the cache, the counters.
 *
 * <p>The broker makes an offloader for its default and one for each namespace with a policy, and closes one while
 * topics still use it. So nothing here is ever closed; all threads are daemons.
 */
final class Shared {
    static final Logger LOG = LoggerFactory.getLogger("offloader.pulsar");

    /** Tasks that wait for a thread; one more fails, which the broker retries. */
    static final int QUEUE_MAX = 50_000;

    static final int THREADS = Math.max(4, Math.min(16, 2 * Runtime.getRuntime().availableProcessors()));
    static final ThreadPoolExecutor POOL = pool("offloader-plugin", THREADS, QUEUE_MAX);

    /** For the HTTP client's own tasks: never refused, since it can't bear that. */
    static final ThreadPoolExecutor HTTP_POOL = pool("offloader-http", THREADS, Integer.MAX_VALUE);

    /** Reads of the object store under way at once: each has a thread. */
    static final int STORE_THREADS = 32;

    static final ThreadPoolExecutor STORE_POOL = pool("offloader-store", STORE_THREADS, QUEUE_MAX);

    static final ScheduledThreadPoolExecutor TIMER = timer();
    static final Counters COUNTERS = new Counters();
    /** A chunk that nobody has read for so long gives its memory back to the broker. */
    private static final long IDLE_NANOS = TimeUnit.SECONDS.toNanos(60);

    static final Plans PLANS = new Plans();
    static final ChunkCache CACHE = new ChunkCache(64 << 20, COUNTERS);

    /** Offloads that wait at a sidecar at once. */
    static final Futures.Gate OFFLOADS = new Futures.Gate(32);

    /** Offloads that hold entries in memory to send them, at most two requests' worth each. */
    static final Futures.Gate SENDERS = new Futures.Gate(4);

    static {
        COUNTERS.register();
        TIMER.scheduleAtFixedRate(COUNTERS::logChanges, 60, 60, TimeUnit.SECONDS);
        TIMER.scheduleAtFixedRate(() -> CACHE.dropIdle(System.nanoTime() - IDLE_NANOS), 10, 10, TimeUnit.SECONDS);
    }

    private Shared() {}

    private static ThreadPoolExecutor pool(String name, int threads, int queue) {
        ThreadPoolExecutor made = new ThreadPoolExecutor(
                threads, threads, 30, TimeUnit.SECONDS, new LinkedBlockingQueue<>(queue), named(name));
        made.allowCoreThreadTimeOut(true);
        return made;
    }

    private static ScheduledThreadPoolExecutor timer() {
        ScheduledThreadPoolExecutor made = new ScheduledThreadPoolExecutor(1, named("offloader-timer"));
        made.setRemoveOnCancelPolicy(true);
        return made;
    }

    private static ThreadFactory named(String name) {
        AtomicInteger number = new AtomicInteger();
        return task -> {
            Thread made = new Thread(task, name + "-" + number.incrementAndGet());
            made.setDaemon(true);
            return made;
        };
    }
}
