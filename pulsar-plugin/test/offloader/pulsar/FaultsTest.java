package offloader.pulsar;

import static offloader.pulsar.Checks.check;
import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.eventually;
import static offloader.pulsar.Checks.fails;
import static offloader.pulsar.Checks.get;
import static offloader.pulsar.Fixture.checkRead;
import static offloader.pulsar.Fixture.offloader;
import static offloader.pulsar.Fixture.open;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.OffloadedLedgerHandle;

/** Attempts that overlap, answers that come late, URLs that expire, sidecars of another version. */
final class FaultsTest {
    private static final UUID OLD = new UUID(7, 7);

    private static CompletableFuture<Void> begin(PluginOffloader offloader, FakeSidecar sidecar, UUID uuid) {
        return offloader.offload(new Fixture.Bookie(sidecar.entries, -1), uuid, Fixture.metadata());
    }

    private static long plans(FakeSidecar sidecar) {
        return sidecar.requests.stream().filter(each -> each.method().equals("GET") && each.path().endsWith("/ledgers/7"))
                .count();
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException closing) {
            Thread.currentThread().interrupt();
        }
    }

    static void testOverlappingAttemptsShareWhatIsSent() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.missing = List.of(new long[] {0, 4}, new long[] {99, 99});
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            List<CompletableFuture<Void>> attempts = List.of(begin(offloader, sidecar, OLD),
                    begin(offloader, sidecar, Fixture.UUID_), begin(offloader, sidecar, Fixture.UUID_));
            for (CompletableFuture<Void> attempt : attempts) {
                get(attempt);
            }
            equal(sidecar.sent.keySet(), Set.of(0L, 1L, 2L, 3L, 4L, 99L));
            sidecar.sent.forEach((entry, payload) -> equal(payload, sidecar.entries.get(entry.intValue())));
            Set<String> uuids = sidecar.requests.stream().filter(each -> each.method().equals("POST")).map(each -> {
                try {
                    return new ObjectMapper().readTree(each.body()).path("uuid").asText();
                } catch (IOException malformed) {
                    throw new AssertionError(malformed);
                }
            }).collect(Collectors.toSet());
            equal(uuids, Set.of(OLD.toString(), Fixture.UUID_.toString()));
        }
    }

    /** As the broker does it when it tries again: the attempt that failed is deleted, then the next one begins. */
    static void testDeleteOfAnOldAttemptHarmsNeitherTheNextNorItsReaders() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            get(offloader.deleteOffloaded(FakeSidecar.LEDGER, OLD, Fixture.metadata()));
            get(begin(offloader, sidecar, Fixture.UUID_));
            ReadHandle handle = open(offloader);
            checkRead(handle, sidecar, 0, 9);
            get(offloader.deleteOffloaded(FakeSidecar.LEDGER, OLD, Fixture.metadata()));
            checkRead(handle, sidecar, 10, 99);
            checkRead(open(offloader), sidecar, 0, 99);
            List<String> deleted = sidecar.requests.stream().filter(each -> each.method().equals("DELETE"))
                    .map(FakeSidecar.Request::query).toList();
            equal(deleted, List.of("uuid=" + OLD, "uuid=" + OLD));
        }
    }

    static void testWholeLedgerThatReadersAreNotGivenIsSent() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.hasUrls = false;
            sidecar.missing = List.of(new long[] {0, 99});
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            get(begin(offloader, sidecar, Fixture.UUID_));
            equal(sidecar.sent.size(), 100);
            checkRead(open(offloader), sidecar, 0, 99);
        }
    }

    static void testLateChunkIsNotMixedWithWhatCameInTime() throws Exception {
        CountDownLatch later = new CountDownLatch(1);
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            ReadHandle handle = open(offloader("endpoints", sidecar.url(), "request_timeout", "500ms", "read_ahead", "0"));
            AtomicInteger answered = new AtomicInteger();
            sidecar.fault = request -> {
                if (request.isStore()) {
                    await(later);
                    answered.incrementAndGet();
                }
                return null;
            };
            checkRead(handle, sidecar, 0, 49); // the store is silent: through the sidecar
            equal(sidecar.count("/entries"), 5L); // one for each block
            long used = Shared.CACHE.used();
            later.countDown();
            eventually(() -> answered.get() >= 1);
            checkRead(handle, sidecar, 0, 49);
            equal(Shared.CACHE.used(), used);
            equal(((OffloadedLedgerHandle) handle).getPendingRead(), 0);
        } finally {
            later.countDown();
        }
    }

    static void testLateCommitDoesNotUndoAFailedAttempt() throws Exception {
        CountDownLatch later = new CountDownLatch(1);
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            PluginOffloader offloader = offloader("endpoints", sidecar.url(), "offload_timeout", "1s");
            AtomicInteger answered = new AtomicInteger();
            sidecar.fault = request -> {
                await(later);
                answered.incrementAndGet();
                return null;
            };
            CompletableFuture<Void> attempt = begin(offloader, sidecar, OLD);
            fails(() -> get(attempt), "ledger 7 of " + FakeSidecar.STREAM + ", offload: ");
            later.countDown();
            eventually(() -> answered.get() >= 1);
            check(attempt.isCompletedExceptionally(), attempt);
            get(begin(offloader, sidecar, Fixture.UUID_));
        } finally {
            later.countDown();
        }
    }

    /** Each plan has a URL of its own, and the store takes only that of the newest one. */
    static void testExpiredUrlsAreRenewedAndNothingIsSkipped() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(200, 10, 10); Checks.Log log = new Checks.Log()) {
            AtomicInteger newest = new AtomicInteger();
            AtomicInteger taken = new AtomicInteger();
            sidecar.fault = request -> {
                if (request.isStore()) {
                    boolean isValid = request.path().equals("/store/" + newest.get());
                    taken.addAndGet(isValid ? 1 : 0);
                    return isValid ? null : FakeSidecar.Answer.of(403, "<Code>AccessDenied</Code>");
                }
                return request.path().endsWith("/ledgers/7") ? FakeSidecar.Answer.of(200,
                        sidecar.plan().replace("/store/one", "/store/" + newest.incrementAndGet())) : null;
            };
            PluginOffloader offloader = offloader("endpoints", sidecar.url(), "read_ahead", "0");
            ReadHandle handle = open(offloader);
            checkRead(handle, sidecar, 0, 99);
            equal(taken.get(), 10);
            newest.incrementAndGet(); // expired
            checkRead(handle, sidecar, 100, 109);
            equal(sidecar.count("/entries"), 1L);
            eventually(() -> { // a new plan is asked for, every five seconds at most, and the store is read again
                try {
                    checkRead(open(offloader), sidecar, 0, 199);
                    checkRead(handle, sidecar, 110, 199);
                } catch (Exception failed) {
                    throw new AssertionError(failed);
                }
                return taken.get() > 10;
            });
            check(!log.text().contains("SECRET"), log.text());
        }
    }

    /** 404 may be a process that doesn't know the ledger yet: only 410 lets a broker skip it. */
    static void testUnknownLedgerIsNeverTakenForADeletedOne() throws Exception {
        try (FakeSidecar one = new FakeSidecar(100, 10, 50); FakeSidecar two = new FakeSidecar(100, 10, 50)) {
            String both = one.url() + "," + two.url();
            one.fault = request -> FakeSidecar.Answer.problem(404, "not_found", "nothing of it");
            checkRead(open(offloader("endpoints", both)), two, 0, 99);
            two.fault = one.fault;
            Throwable unknown = fails(() -> open(offloader("endpoints", both)), one.url(), two.url(), "404 not_found");
            check(unknown instanceof IOException && !(unknown instanceof BKException), unknown.getClass());
            two.fault = request -> FakeSidecar.Answer.problem(410, "trimmed", "retention");
            Throwable gone = fails(() -> open(offloader("endpoints", both)));
            check(gone instanceof BKException.BKNoSuchLedgerExistsException, gone);
            // A 410 that no sidecar wrote, but a proxy in front of it, says nothing about the ledger.
            two.fault = request -> FakeSidecar.Answer.of(410, "<html>gone</html>");
            Throwable other = fails(() -> open(offloader("endpoints", two.url())), "410");
            check(other instanceof IOException && !(other instanceof BKException), other.getClass());
        }
    }

    static void testOlderSidecarIsNamedByEveryCall() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50); Checks.Log log = new Checks.Log()) {
            String hint = "of a version that serves brokers";
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            for (int status : new int[] {404, 405}) {
                sidecar.fault = request -> FakeSidecar.Answer.of(status, "{\"detail\": \"Not Found\"}");
                fails(() -> get(begin(offloader, sidecar, OLD)), "offload: ", sidecar.url(), hint);
                fails(() -> open(offloader), "open: ", sidecar.url(), hint);
            }
            check(log.text().contains(hint), log.text());
            // One that gives a plan without what is compared isn't believed.
            sidecar.fault = request -> FakeSidecar.Answer.of(200, sidecar.plan().replaceAll("\"entries\": \\d+, ", ""));
            fails(() -> open(offloader("endpoints", sidecar.url(), "request_timeout", "1s")), "lacks the number 'entries'");
        }
    }

    static void testAnotherClustersLedgerIsNamedAndKeepsItsCopy() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.fault = request -> FakeSidecar.Answer.problem(409, "source_mismatch", "opened at 5 ms, not at 6 ms");
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            for (CompletableFuture<?> call : List.of(begin(offloader, sidecar, OLD),
                    offloader.readOffloaded(FakeSidecar.LEDGER, OLD, Fixture.metadata()))) {
                Throwable failed = fails(() -> get(call), "409 source_mismatch opened at 5 ms, not at 6 ms");
                check(failed instanceof IOException, failed.getClass());
            }
        }
    }

    /** Whatever the broker waits for completes in the plugin's threads, and no call waits in the broker's. */
    static void testBrokersThreadsNeverWait() throws Exception {
        CountDownLatch held = new CountDownLatch(1);
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            PluginOffloader offloader = offloader("endpoints", sidecar.url());
            ReadHandle handle = open(offloader);
            sidecar.fault = request -> {
                await(held);
                return null;
            };
            long began = System.nanoTime();
            Map<String, CompletableFuture<?>> calls = Map.of(
                    "offload", begin(offloader, sidecar, OLD),
                    "open", offloader.readOffloaded(FakeSidecar.LEDGER, OLD, Fixture.metadata()),
                    "delete", offloader.deleteOffloaded(FakeSidecar.LEDGER, OLD, Fixture.metadata()),
                    "read", handle.readAsync(0, 99), "one", handle.readAsync(77, 77));
            check(System.nanoTime() - began < 1e9, "a call took " + (System.nanoTime() - began) / 1_000_000 + " ms");
            Map<String, CompletableFuture<String>> threads = calls.entrySet().stream().collect(Collectors.toMap(
                    Map.Entry::getKey, each -> each.getValue().thenApply(value -> Thread.currentThread().getName())));
            held.countDown();
            for (Map.Entry<String, CompletableFuture<String>> each : threads.entrySet()) {
                String thread = get(each.getValue());
                check(thread.startsWith("offloader-"), each.getKey() + " completed in " + thread);
            }
            for (String read : List.of("read", "one")) {
                ((LedgerEntries) get(calls.get(read))).close();
            }
        } finally {
            held.countDown();
        }
    }
}
