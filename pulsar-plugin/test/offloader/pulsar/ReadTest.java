package offloader.pulsar;

import static offloader.pulsar.Checks.check;
import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.eventually;
import static offloader.pulsar.Checks.fails;
import static offloader.pulsar.Checks.get;
import static offloader.pulsar.Fixture.checkRead;
import static offloader.pulsar.Fixture.offloader;
import static offloader.pulsar.Fixture.open;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.OffloadedLedgerHandle;

/** Reading a ledger of the cold tier. */
final class ReadTest {
    static void testEveryEntryIsReadOnceByUrl() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(1_000, 10, 50)) {
            sidecar.token = "word";
            var token = java.nio.file.Files.writeString(java.nio.file.Files.createTempFile("token", ""), "word\n");
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "token_file", token));
            equal(handle.getLastAddConfirmed(), 999L);
            equal(handle.getLength(), sidecar.length());
            equal(handle.getId(), FakeSidecar.LEDGER);
            check(handle.isClosed() && handle.getLedgerMetadata().isClosed(), "open");
            equal(handle.getLedgerMetadata().getLastEntryId(), 999L);
            for (int first = 0; first < 1_000; first += 30) {
                checkRead(handle, sidecar, first, Math.min(999, first + 29));
            }
            equal(sidecar.count("GET /store/"), 20L);
            equal(sidecar.count("/entries"), 0L);
            for (FakeSidecar.Request request : sidecar.requests) {
                equal(request.authorization(), request.isStore() ? null : "Bearer word");
            }
            check(handle instanceof OffloadedLedgerHandle same && same.getPendingRead() == 0
                    && same.lastAccessTimestamp() > 0, "not as the broker wants it");
        }
    }

    static void testEntriesWithoutUrlComeThroughTheSidecar() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(200, 10, 50)) {
            sidecar.hasUrls = false;
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            checkRead(handle, sidecar, 0, 199);
            equal(sidecar.count("/entries"), 4L);
        }
    }

    static void testOneEntryOutOfOrderFetchesOnlyIt() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(200, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            checkRead(handle, sidecar, 77, 77);
            equal(sidecar.count("GET /store/"), 0L);
            equal(sidecar.requests.get(1).query(), "from=77&to=77&uuid=" + Fixture.UUID_);
            checkRead(handle, sidecar, 52, 52); // a search comes closer: now the chunk is worth it
            checkRead(handle, sidecar, 60, 60);
            equal(sidecar.count("GET /store/"), 1L);
            equal(sidecar.count("/entries"), 1L);
        }
    }

    static void testOneEntryIsReadByUrlWhileTheSidecarIsDown() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(200, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "request_timeout", "1s"));
            sidecar.fault = request -> request.isStore() ? null : FakeSidecar.Answer.of(500, "");
            checkRead(handle, sidecar, 77, 77);
        }
    }

    static void testReadAheadLoadsTheNextChunks() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(1_000, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "read_ahead", "3"));
            checkRead(handle, sidecar, 0, 9);
            eventually(() -> sidecar.count("GET /store/") == 4);
            checkRead(handle, sidecar, 10, 19);
            equal(sidecar.count("GET /store/"), 4L);
        }
    }

    static void testReadersOfOneChunkShareItsLoad() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(50, 10, 50)) {
            CountDownLatch open = new CountDownLatch(1);
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            ReadHandle one = open(offloader);
            ReadHandle two = open(offloader);
            sidecar.fault = request -> {
                await(open);
                return null;
            };
            List<CompletableFuture<LedgerEntries>> reads = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                reads.add((i % 2 == 0 ? one : two).readAsync(0, 49));
            }
            open.countDown();
            for (CompletableFuture<LedgerEntries> read : reads) {
                get(read).close();
            }
            equal(sidecar.count("GET /store/"), 1L);
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException closing) {
            Thread.currentThread().interrupt();
        }
    }

    static void testCorruptBlockIsReadThroughTheSidecar() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50); Checks.Log log = new Checks.Log()) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            long corrupt = Shared.COUNTERS.get(Counters.Name.CorruptBlocks);
            sidecar.object[500] ^= 1;
            checkRead(handle, sidecar, 0, 99);
            equal(Shared.COUNTERS.get(Counters.Name.CorruptBlocks), corrupt + 1);
            equal(sidecar.count("/entries"), 1L);
            check(!log.text().contains("SECRET"), log.text());
        }
    }

    /** Whatever the store says or doesn't, entries are right; once the sidecar is wrong too the read fails. */
    static void testWrongAnswersOfTheStore() throws Exception {
        List<FakeSidecar.Answer> answers = List.of(
                FakeSidecar.Answer.of(403, "<Error>expired</Error>"),
                FakeSidecar.Answer.of(404, ""),
                FakeSidecar.Answer.of(500, "broken"),
                FakeSidecar.Answer.of(301, ""),
                FakeSidecar.Answer.of(200, "short"),
                new FakeSidecar.Answer(206, new byte[100], 50_000),
                new FakeSidecar.Answer(206, new byte[100_000], -1),
                new FakeSidecar.Answer(200, new byte[10_000_000], -1));
        for (FakeSidecar.Answer answer : answers) {
            try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50); Checks.Log log = new Checks.Log()) {
                ReadHandle handle = open(offloader("endpoints", sidecar.url(), "request_timeout", "1s"));
                sidecar.fault = request -> request.isStore() ? answer : null;
                checkRead(handle, sidecar, 0, 99);
                sidecar.fault = request -> request.isStore() ? answer : FakeSidecar.Answer.of(503, "");
                ReadHandle second = new Object() {
                    ReadHandle open() throws Exception {
                        sidecar.fault = request -> null;
                        ReadHandle opened = Fixture.open(offloader("endpoints", sidecar.url(), "request_timeout", "1s"));
                        sidecar.fault = request -> request.isStore() ? answer : FakeSidecar.Answer.of(503, "");
                        return opened;
                    }
                }.open();
                Throwable failed = fails(() -> get(second.readAsync(0, 99)), "ledger 7 of " + FakeSidecar.STREAM,
                        "entries 0 to 99", "HTTP 503");
                check(failed instanceof java.io.IOException, failed.getClass());
                check(!(failed + log.text()).contains("SECRET"), failed + log.text());
            }
        }
    }

    static void testRefusedUrlsMakeANewPlan() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(400, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "read_ahead", "0"));
            sidecar.fault = request -> request.isStore() ? FakeSidecar.Answer.of(403, "") : null;
            checkRead(handle, sidecar, 0, 49);
            sidecar.fault = request -> null;
            long[] read = {50};
            eventually(() -> { // a plan is asked for every five seconds at most
                try {
                    checkRead(handle, sidecar, read[0] % 400, read[0] % 400 + 9);
                    read[0] += 10;
                } catch (Exception failed) {
                    throw new AssertionError(failed);
                }
                return sidecar.requests.stream().filter(each -> each.path().endsWith("/ledgers/7")).count() == 2;
            });
        }
    }

    static void testPlanIsLoadedAgainBeforeItsUrlsExpire() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.expiresMs = System.currentTimeMillis() - 1_000;
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            sidecar.expiresMs = System.currentTimeMillis() + 3_600_000;
            eventually(() -> {
                try {
                    checkRead(handle, sidecar, 0, 9);
                } catch (Exception failed) {
                    throw new AssertionError(failed);
                }
                return sidecar.requests.stream().filter(each -> each.path().endsWith("/ledgers/7")).count() == 2;
            });
        }
    }

    static void testReadsDoNotWaitForAPlanWhileUrlsStillWork() throws Exception {
        CountDownLatch never = new CountDownLatch(1);
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.expiresMs = System.currentTimeMillis() + 40_000; // renewed ten seconds before
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "read_ahead", "0"));
            sidecar.fault = request -> {
                if (!request.isStore()) {
                    await(never);
                }
                return null;
            };
            var renew = ColdLedger.class.getDeclaredField("renewMs");
            renew.setAccessible(true);
            renew.set(handle, 0L);
            var loaded = ColdLedger.class.getDeclaredField("loadedNanos");
            loaded.setAccessible(true);
            loaded.set(handle, System.nanoTime() - 6_000_000_000L);
            long began = System.nanoTime();
            checkRead(handle, sidecar, 0, 49);
            checkRead(handle, sidecar, 50, 99);
            check(System.nanoTime() - began < 4e9, "waited for the sidecar");
            eventually(() -> sidecar.requests.stream().filter(each -> each.path().endsWith("/ledgers/7")).count() == 2);
        } finally {
            never.countDown();
        }
    }

    static void testTrimmedWhileItIsOpenIsNoSuchLedger() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.hasUrls = false;
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            sidecar.fault = request -> FakeSidecar.Answer.problem(410, "trimmed", "retention");
            Throwable[] failed = {null};
            eventually(() -> {
                failed[0] = fails(() -> get(handle.readAsync(0, 9)));
                return failed[0] instanceof BKException.BKNoSuchLedgerExistsException;
            });
        }
    }

    static void testOnlyTrimmedLedgerIsNoSuchLedger() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            PluginOffloader offloader = offloader("endpoints", sidecar.url(), "request_timeout", "3s");
            sidecar.fault = request -> FakeSidecar.Answer.problem(410, "trimmed", "retention");
            Throwable trimmed = fails(() -> open(offloader));
            check(trimmed instanceof BKException.BKNoSuchLedgerExistsException, trimmed);
            for (int status : new int[] {400, 401, 403, 404, 409, 410, 421, 429, 500, 503}) {
                sidecar.fault = request -> FakeSidecar.Answer.problem(status, "some_kind", "some detail");
                Throwable failed = fails(() -> open(offloader), "HTTP " + status + " some_kind some detail; hint: try that",
                        "ledger 7 of " + FakeSidecar.STREAM);
                check(failed instanceof java.io.IOException && !(failed instanceof BKException), failed.getClass());
            }
        }
    }

    static void testTruncatedEntriesAreAnErrorAndNotALostLedger() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.hasUrls = false;
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            sidecar.fault = request -> request.path().endsWith("/entries") && request.parameter("from").equals("0")
                    ? FakeSidecar.Answer.problem(410, "trimmed", "entries before 50 were truncated") : null;
            Throwable failed = fails(() -> get(handle.readAsync(0, 9)), "410 trimmed entries before 50");
            check(failed instanceof java.io.IOException, failed.getClass());
            checkRead(handle, sidecar, 50, 99);
        }
    }

    static void testHugeChunkIsReadInPieces() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 100)) {
            sidecar.hasUrls = false;
            sidecar.fault = request -> request.path().endsWith("/ledgers/7") ? FakeSidecar.Answer.of(200,
                    sidecar.plan().replaceAll("\"bytes\": \\d+", "\"bytes\": 3000000000")) : null;
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            checkRead(handle, sidecar, 20, 29);
            checkRead(handle, sidecar, 30, 39);
            equal(sidecar.requests.get(1).query(), "from=20&to=29&uuid=" + Fixture.UUID_);
        }
    }

    static void testReadsThatLeaveEntriesOutAreSequential() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(1_000, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "read_ahead", "2"));
            checkRead(handle, sidecar, 500, 509);
            equal(sidecar.count("GET /store/"), 1L);
            checkRead(handle, sidecar, 515, 520);
            eventually(() -> sidecar.count("GET /store/") == 3);
        }
    }

    static void testHalfAndWrongAnswersOfTheSidecarAreErrors() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.hasUrls = false;
            byte[] good = sidecar.frames(0, 49);
            for (byte[] wrong : List.of(Arrays.copyOf(good, good.length - 12), Arrays.copyOf(good, 700), new byte[0],
                    sidecar.frames(0, 48), "<html>".getBytes())) {
                ReadHandle handle = open(offloader("endpoints", sidecar.url(), "request_timeout", "3s"));
                sidecar.fault = request -> request.path().endsWith("/entries") ? new FakeSidecar.Answer(200, wrong, -1) : null;
                fails(() -> get(handle.readAsync(0, 49)), "a wrong answer", "entries 0 to 49");
                sidecar.fault = request -> null;
                checkRead(handle, sidecar, 0, 49); // the broker's retry
            }
        }
    }

    static void testReadsBeyondTheLedgerAreRefused() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            for (long[] range : new long[][] {{-1, 3}, {5, 4}, {0, 100}}) {
                Throwable failed = fails(() -> get(handle.readAsync(range[0], range[1])));
                check(failed instanceof BKException.BKIncorrectParameterException, failed);
            }
        }
    }

    static void testSilentSidecarFailsReadsInTime() throws Exception {
        CountDownLatch never = new CountDownLatch(1);
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "request_timeout", "300ms"));
            sidecar.fault = request -> {
                await(never);
                return null;
            };
            long began = System.nanoTime();
            fails(() -> get(handle.readAsync(0, 9)), "no complete answer within 300 ms");
            fails(() -> get(handle.readAsync(77, 77)), "ledger 7");
            check(System.nanoTime() - began < 10e9, "late");
        } finally {
            never.countDown();
        }
    }

    static void testReadsGoOnAfterTheOffloaderIsClosed() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            ReadHandle handle = open(offloader);
            offloader.close();
            checkRead(handle, sidecar, 0, 99);
            get(handle.closeAsync());
        }
    }

    static void testCountersTellTheWays() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            var server = java.lang.management.ManagementFactory.getPlatformMBeanServer();
            var name = new javax.management.ObjectName("offloader:type=Plugin");
            long before = (long) server.getAttribute(name, "PresignedBytes");
            checkRead(handle, sidecar, 0, 99);
            equal((long) server.getAttribute(name, "PresignedBytes") - before, (long) sidecar.object.length);
        }
    }
}
