package offloader.pulsar;

import static offloader.pulsar.Checks.check;
import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.fails;
import static offloader.pulsar.Checks.get;
import static offloader.pulsar.Fixture.checkRead;
import static offloader.pulsar.Fixture.offloader;
import static offloader.pulsar.Fixture.open;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;

/** Two hundred topics at once. */
final class ManyTopicsTest {
    private static final int TOPICS = 200;

    /** Accepts connections and never answers. */
    private static final class Silent implements AutoCloseable {
        final Queue<Socket> accepted = new ConcurrentLinkedQueue<>();
        private final ServerSocket server = new ServerSocket(0, 1_000, InetAddress.getLoopbackAddress());

        Silent() throws IOException {
            Thread thread = new Thread(() -> {
                while (true) {
                    try {
                        accepted.add(server.accept());
                    } catch (IOException closed) {
                        return;
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        String url() {
            return "http://127.0.0.1:" + server.getLocalPort();
        }

        @Override
        public void close() throws IOException {
            server.close();
            for (Socket each : accepted) {
                each.close();
            }
        }
    }

    static void testSilentSidecarHoldsUpNeitherCallersNorOtherTopics() throws Exception {
        try (Silent silent = new Silent(); FakeSidecar sidecar = new FakeSidecar(200, 10, 50)) {
            PluginOffloader stuck = offloader("endpoints", silent.url(), "request_timeout", "12s", "offload_timeout", "12s");
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            List<CompletableFuture<?>> calls = new ArrayList<>();
            for (int topic = 0; topic < TOPICS; topic++) {
                calls.add(stuck.readOffloaded(FakeSidecar.LEDGER, Fixture.UUID_, Fixture.metadata()));
                calls.add(stuck.offload(new Fixture.Bookie(sidecar.entries, -1), Fixture.UUID_, Fixture.metadata()));
                calls.add(stuck.deleteOffloaded(FakeSidecar.LEDGER, Fixture.UUID_, Fixture.metadata()));
            }
            // A caller that waited would do so until its own call ended.
            Checks.eventually(() -> silent.accepted.size() >= TOPICS);
            check(calls.stream().noneMatch(CompletableFuture::isDone), "some ended already");
            // While all of these wait, another sidecar's topics are served, by as many threads as ever.
            checkRead(handle, sidecar, 0, 199);
            checkRead(open(offloader("endpoints", sidecar.url())), sidecar, 0, 199);
            long threads = Thread.getAllStackTraces().keySet().stream().filter(each ->
                    each.getName().startsWith("offloader-")).count();
            check(threads <= 2 * Shared.THREADS + Shared.STORE_THREADS + 1, threads + " threads");
            check(calls.stream().noneMatch(CompletableFuture::isDone), "they ended before the others were served");
            for (CompletableFuture<?> each : calls) {
                Throwable failed = fails(() -> get(each), "ledger 7 of " + FakeSidecar.STREAM);
                check(failed instanceof IOException, failed.getClass());
            }
        }
    }

    static void testHeapIsBoundedWhileAllAreRead() throws Exception {
        long before = used();
        long memory = 16L << 20;
        try (FakeSidecar sidecar = new FakeSidecar(800, 10, 200)) {
            List<ReadHandle> handles = new ArrayList<>();
            for (int topic = 0; topic < TOPICS; topic++) { // each with chunks of its own: 160 MB together
                handles.add(open(offloader("endpoints", sidecar.url(), "memory", "16MiB", "request_timeout", "60s")));
            }
            for (int first = 0; first < 800; first += 200) {
                long from = first;
                List<CompletableFuture<LedgerEntries>> reads = handles.stream()
                        .map(handle -> handle.readAsync(from, from + 199)).toList();
                for (CompletableFuture<LedgerEntries> read : reads) {
                    long next = from;
                    try (LedgerEntries entries = get(read)) {
                        for (var entry : entries) {
                            equal(entry.getEntryBytes(), sidecar.entries.get((int) next++));
                        }
                    }
                    equal(next, from + 200);
                    check(Shared.CACHE.used() <= memory, Shared.CACHE.used());
                }
                // Beside the chunks: buffers of 200 connections, on both ends of each in this process.
                long more = used() - before;
                check(more <= memory + (48L << 20), "200 topics take " + (more >> 20) + " MiB of heap");
            }
        }
    }

    private static long used() {
        System.gc();
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }
}
