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
            equal(sidecar.count("GET /store/"), 24L); // the first chunk by its blocks
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

    static void testOneEntryOutOfOrderFetchesItsBlockOnly() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(200, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            checkRead(handle, sidecar, 77, 77);
            checkRead(handle, sidecar, 70, 70); // a search comes closer
            checkRead(handle, sidecar, 79, 79);
            equal(sidecar.requests.size(), 2); // the plan and the block
            equal(ranges(sidecar), 1);
            checkRead(handle, sidecar, 69, 69);
            equal(ranges(sidecar), 2);
            equal(sidecar.requests.size(), 3);
        }
    }

    /** The last ledger of a topic, whose last entry the broker reads each time it loads the topic, is often one block. */
    static void testOneEntryOfALedgerOfOneBlockIsReadByUrl() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(8, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            checkRead(handle, sidecar, 7, 7);
            checkRead(handle, sidecar, 0, 7);
            equal(sidecar.count("GET /store/"), 1L);
            equal(sidecar.requests.size(), 2); // the plan and the block
        }
    }

    /** How many different ranges of one block were asked for; fails if one is longer. */
    private static int ranges(FakeSidecar sidecar) {
        List<String> found = sidecar.requests.stream().filter(FakeSidecar.Request::isStore)
                .map(FakeSidecar.Request::range).distinct().toList();
        for (String range : found) {
            String[] ends = range.substring("bytes=".length()).split("-");
            check(Integer.parseInt(ends[1]) - Integer.parseInt(ends[0]) < 10 * 2_012 + 150, range);
        }
        return found.size();
    }

    static void testOneEntryIsAskedForWhereThePlanDoesNotTellItsBlock() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(200, 10, 50)) {
            sidecar.hasFirsts = false;
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

    /** What a search by time does: the blocks that it touches, each once, and nothing else. */
    static void testSearchLoadsEachBlockOnce() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(1_000, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            java.util.Set<Integer> blocks = new java.util.TreeSet<>();
            int low = 0;
            int high = 999;
            while (low < high) {
                int middle = (low + high) / 2;
                blocks.add(middle / 10);
                checkRead(handle, sidecar, middle, middle);
                if (middle < 637) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            checkRead(handle, sidecar, low, low);
            equal(sidecar.requests.size(), 1 + blocks.size());
        }
    }

    static void testThirdSingleEntryInARowIsSequential() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(1_000, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "read_ahead", "2"));
            for (int entry : new int[] {501, 502}) {
                checkRead(handle, sidecar, entry, entry);
            }
            equal(sidecar.count("GET /store/"), 1L);
            checkRead(handle, sidecar, 503, 503);
            eventually(() -> sidecar.count("GET /store/") == 5 + 2); // the chunk's other blocks, and two chunks
        }
    }

    static void testTopicThatIsLoadedAgainNeedsNoPlan() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(200, 10, 50)) {
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            checkRead(open(offloader), sidecar, 77, 77);
            checkRead(open(offloader), sidecar, 70, 79);
            equal(sidecar.requests.size(), 2);
            get(offloader.readOffloaded(FakeSidecar.LEDGER, new java.util.UUID(3, 4), Fixture.metadata()));
            equal(sidecar.requests.size(), 3); // the objects may be those of one attempt
        }
    }

    /** A reader that comes to the end of a ledger finds the plan and the first chunks of the next one. */
    static void testNextLedgerIsOpenBeforeItIsAskedFor() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50); FakeSidecar two = new FakeSidecar(8, 200, 10, 50)) {
            sidecar.next = 8;
            sidecar.fault = request -> request.path().endsWith("/ledgers/8") ? FakeSidecar.Answer.of(200, two.plan())
                    : null;
            PluginOffloader offloader = offloader("endpoints", sidecar.url(), "read_ahead", "3");
            checkRead(open(offloader), sidecar, 0, 9);
            eventually(() -> two.count("GET /store/") == 2); // three chunks ahead, one of them of the first ledger
            long plans = sidecar.count("/ledgers/");
            ReadHandle next = get(offloader.readOffloaded(8, Fixture.UUID_, Fixture.metadata()));
            try (LedgerEntries entries = get(next.readAsync(0, 99))) {
                equal(entries.getEntry(99).getEntryBytes(), two.entries.get(99));
            }
            equal(sidecar.count("/ledgers/"), plans);
            eventually(() -> two.count("GET /store/") == 4);
        }
    }

    /** A search by time opens ledgers, of which the reader then reads the first one to its end. */
    static void testPlanOfALedgerThatTheBrokerOpenedServesReadingAhead() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50); FakeSidecar two = new FakeSidecar(8, 200, 10, 50)) {
            sidecar.next = 8;
            sidecar.fault = request -> request.path().endsWith("/ledgers/8") ? FakeSidecar.Answer.of(200, two.plan())
                    : null;
            PluginOffloader offloader = offloader("endpoints", sidecar.url(), "read_ahead", "3");
            get(offloader.readOffloaded(8, Fixture.UUID_, Fixture.metadata()));
            checkRead(open(offloader), sidecar, 0, 9);
            eventually(() -> two.count("GET /store/") == 2); // the next ledger's chunks are read ahead
            equal(sidecar.count("/ledgers/"), 2L); // one plan of each
        }
    }

    /** Objects that another offloader wrote are those of one attempt. */
    static void testNextLedgerOfAnotherAttemptIsAskedFor() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(50, 10, 50); FakeSidecar two = new FakeSidecar(8, 50, 10, 50)) {
            sidecar.next = 8;
            sidecar.fault = request -> request.path().endsWith("/ledgers/8") ? FakeSidecar.Answer.of(200,
                    two.plan().replace("{\"last\"", "{\"uuid\": \"" + new java.util.UUID(3, 4) + "\", \"last\"")) : null;
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            checkRead(open(offloader), sidecar, 0, 9);
            eventually(() -> two.count("GET /store/") == 1);
            equal(sidecar.count("/ledgers/8"), 1L);
            get(offloader.readOffloaded(8, new java.util.UUID(3, 4), Fixture.metadata()));
            equal(sidecar.count("/ledgers/8"), 1L);
            get(offloader.readOffloaded(8, Fixture.UUID_, Fixture.metadata()));
            equal(sidecar.count("/ledgers/8"), 2L);
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
            eventually(() -> sidecar.count("GET /store/") == 5 + 3);
            checkRead(handle, sidecar, 10, 19);
            equal(sidecar.count("GET /store/"), 8L);
        }
    }

    static void testConnectionsToTheStoreAreUsedAgain() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(1_000, 10, 10)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "read_ahead", "0"));
            for (int first = 0; first < 1_000; first += 10) {
                if (first == 500) { // an error's answer is read to its end, too
                    sidecar.fault = request -> request.isStore() ? FakeSidecar.Answer.of(404, "gone") : null;
                }
                checkRead(handle, sidecar, first, first + 9);
                sidecar.fault = request -> null;
            }
            equal(sidecar.count("GET /store/"), 100L);
            check(sidecar.storePorts.size() <= 5, sidecar.storePorts + " connections");
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
            equal(sidecar.count("GET /store/"), 5L); // one for each block
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
                ReadHandle handle = open(offloader("endpoints", sidecar.url(), "request_timeout", "3s"));
                sidecar.fault = request -> request.isStore() ? answer : null;
                checkRead(handle, sidecar, 0, 99);
                sidecar.fault = request -> request.isStore() ? answer : FakeSidecar.Answer.of(503, "");
                ReadHandle second = new Object() {
                    ReadHandle open() throws Exception {
                        sidecar.fault = request -> null;
                        ReadHandle opened = Fixture.open(offloader("endpoints", sidecar.url(), "request_timeout", "3s"));
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
            eventually(() -> sidecar.count("GET /store/") == 1 + 4 + 2); // blocks up to the chunk's end, two chunks
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
            fails(() -> get(handle.readAsync(0, 9)), "no complete answer within ");
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

    /** Indexes of other writers don't tell how large entries are, so the plan's sizes may be much too small. */
    static void testChunkThatIsLargerThanThePlanSaysIsRead() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.hasUrls = false;
            String plan = sidecar.plan();
            for (int entry = 20; entry < 45; entry++) {
                sidecar.entries.set(entry, new byte[1 << 20]);
            }
            sidecar.fault = request -> request.path().endsWith("/ledgers/7") ? FakeSidecar.Answer.of(200, plan) : null;
            ReadHandle handle = open(offloader("endpoints", sidecar.url()));
            checkRead(handle, sidecar, 0, 9);
            checkRead(handle, sidecar, 10, 99);
            checkRead(handle, sidecar, 30, 30);
            for (String chunk : List.of("from=0&to=49&", "from=50&to=99&")) { // neither again and again
                equal(sidecar.requests.stream().map(each -> String.valueOf(each.query()))
                        .filter(each -> each.contains(chunk)).count(), 1L);
            }
        }
    }

    static void testConnectionOfARedirectionIsClosed() throws Exception {
        byte[] redirection = ("HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 5\r\n\r\n"
                + "moved").getBytes(java.nio.charset.StandardCharsets.US_ASCII);
        var loopback = java.net.InetAddress.getLoopbackAddress();
        try (java.net.ServerSocket server = new java.net.ServerSocket(0, 1, loopback)) {
            StoreReads reads = new StoreReads(null, java.time.Duration.ofSeconds(3));
            CompletableFuture<byte[]> read = reads.range("http://127.0.0.1:" + server.getLocalPort() + "/one", 0, 9,
                    java.time.Duration.ofSeconds(5));
            try (java.net.Socket accepted = server.accept()) {
                accepted.setSoTimeout(5_000);
                var request = new java.io.BufferedReader(new java.io.InputStreamReader(accepted.getInputStream()));
                while (!request.readLine().isEmpty()) {
                    continue;
                }
                accepted.getOutputStream().write(redirection);
                fails(() -> get(read), "HTTP 307");
                equal(request.read(), -1);
            }
        }
    }
}
