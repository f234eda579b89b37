package offloader.pulsar;

import static offloader.pulsar.Checks.check;
import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.fails;
import static offloader.pulsar.Checks.get;
import static offloader.pulsar.Fixture.offloader;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import org.apache.bookkeeper.client.api.ReadHandle;

/** An offload uploads nothing, waits for the commit, and sends exactly what the sidecar lacks. */
final class OffloadTest {
    private static Void offload(PluginOffloader offloader, ReadHandle ledger) throws Exception {
        return get(offloader.offload(ledger, Fixture.UUID_, Fixture.metadata()));
    }

    static void testWaitsUntilTheSidecarHasCommitted() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.pollsUntilCommitted = 2;
            ReadHandle ledger = new Fixture.Bookie(sidecar.entries, -1);
            offload(offloader("endpoints", sidecar.url(), "source", "east"), ledger);
            equal(sidecar.count("POST "), 3L);
            equal(sidecar.count("PUT "), 0L);
            JsonNode body = new ObjectMapper().readTree(sidecar.requests.get(0).body());
            equal(body.path("uuid").asText(), Fixture.UUID_.toString());
            equal(body.path("last").asLong(), 99L);
            equal(body.path("entries").asLong(), 100L);
            equal(body.path("length").asLong(), sidecar.length());
            check(body.path("created_ms").isNull(), body);
            check(body.path("wait_seconds").asDouble() <= 25, body);
            equal(sidecar.requests.get(0).source(), "east");
        }
    }

    static void testSendsExactlyTheMissingEntries() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(300, 10, 50)) {
            sidecar.missing = List.of(new long[] {0, 0}, new long[] {7, 60}, new long[] {299, 299});
            offload(offloader("endpoints", sidecar.url()), new Fixture.Bookie(sidecar.entries, -1));
            equal(sidecar.sent.size(), 56);
            sidecar.sent.forEach((entry, payload) -> equal(payload, sidecar.entries.get(entry.intValue())));
            equal(sidecar.count("PUT "), 1L);
            equal(sidecar.requests.get(1).query(), "first=0&last=299");
        }
    }

    static void testRequestsHoldAtMostEightMiB() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(40, 10, 50)) {
            for (int entry = 10; entry < 30; entry++) {
                sidecar.entries.set(entry, new byte[1_000_000]);
            }
            sidecar.entries.set(31, new byte[9_000_000]); // larger than a request: alone in one
            sidecar.missing = List.of(new long[] {1, 39});
            offload(offloader("endpoints", sidecar.url()), new Fixture.Bookie(sidecar.entries, -1));
            equal(sidecar.sent.size(), 39);
            List<Integer> sizes = new ArrayList<>();
            sidecar.requests.stream().filter(each -> each.method().equals("PUT")).forEach(each -> {
                boolean isAlone = each.parameter("first").equals(each.parameter("last"));
                check(isAlone || each.body().length <= 8 << 20, each.body().length);
                sizes.add(each.body().length);
            });
            check(sizes.size() >= 4 && sizes.size() <= 6, sizes);
        }
    }

    static void testOtherCountsAreRefused() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50); Checks.Log log = new Checks.Log()) {
            List<byte[]> other = new ArrayList<>(sidecar.entries);
            other.set(5, new byte[5_000]);
            fails(() -> offload(offloader("endpoints", sidecar.url()), new Fixture.Bookie(other, -1)),
                    "the sidecar has 100 entries of " + sidecar.length() + " bytes", "the broker keeps its copy");
            sidecar.fault = request -> FakeSidecar.Answer.problem(409, "source_mismatch", "other bytes");
            Throwable failed = fails(() -> offload(offloader("endpoints", sidecar.url()),
                    new Fixture.Bookie(sidecar.entries, -1)), "HTTP 409 source_mismatch other bytes; hint: try that");
            check(failed instanceof java.io.IOException, failed);
            check(log.text().contains("Offload of ledger 7"), log.text());
        }
    }

    static void testFinalAnswersFailAtOnce() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            for (int status : new int[] {401, 403, 404, 409, 410}) {
                sidecar.requests.clear();
                sidecar.fault = request -> FakeSidecar.Answer.problem(status, "kind", "detail");
                fails(() -> offload(offloader("endpoints", sidecar.url()), new Fixture.Bookie(sidecar.entries, -1)),
                        "HTTP " + status);
                equal(sidecar.requests.size(), 1);
            }
        }
    }

    static void testGoesOnWhenTheSidecarComesBack() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            int[] failures = {0};
            sidecar.fault = request -> failures[0]++ < 5 ? FakeSidecar.Answer.problem(421, "not_owner", "b owns it") : null;
            offload(offloader("endpoints", sidecar.url()), new Fixture.Bookie(sidecar.entries, -1));
        }
    }

    static void testEndsWithinItsTimeLimit() throws Exception {
        CountDownLatch never = new CountDownLatch(1);
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            PluginOffloader offloader = offloader("endpoints", sidecar.url(), "offload_timeout", "1s", "request_timeout",
                    "500ms");
            sidecar.pollsUntilCommitted = 1_000;
            fails(() -> offload(offloader, new Fixture.Bookie(sidecar.entries, -1)),
                    "not within offload_timeout, 1 s: the sidecar hasn't committed it");
            sidecar.fault = request -> {
                try {
                    never.await();
                } catch (InterruptedException closing) {
                    Thread.currentThread().interrupt();
                }
                return null;
            };
            List<CompletableFuture<Void>> many = new ArrayList<>();
            for (int i = 0; i < 100; i++) { // more than may ask at once
                many.add(offloader.offload(new Fixture.Bookie(sidecar.entries, -1), Fixture.UUID_, Fixture.metadata()));
            }
            for (CompletableFuture<Void> each : many) {
                fails(() -> get(each), "offload");
            }
            sidecar.fault = request -> null;
            sidecar.pollsUntilCommitted = 0;
            offload(offloader, new Fixture.Bookie(sidecar.entries, -1)); // no place was lost
        } finally {
            never.countDown();
        }
    }

    static void testFailingBookieFailsTheAttempt() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            sidecar.missing = List.of(new long[] {3, 9});
            fails(() -> offload(offloader("endpoints", sidecar.url(), "offload_timeout", "1s"),
                    new Fixture.Bookie(sidecar.entries, 5)), "offload_timeout");
            check(sidecar.sent.isEmpty(), sidecar.sent.keySet());
        }
    }

    static void testWrongAnswerIsNoCommit() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(100, 10, 50)) {
            for (String wrong : List.of("{}", "true", "{\"committed\": \"yes\", \"missing\": []}",
                    "{\"committed\": false, \"missing\": [[5, 100]]}", "{\"committed\": false, \"missing\": [[5, 4]]}")) {
                sidecar.fault = request -> FakeSidecar.Answer.of(200, wrong);
                fails(() -> offload(offloader("endpoints", sidecar.url(), "offload_timeout", "3s"),
                        new Fixture.Bookie(sidecar.entries, -1)), "a wrong answer");
            }
        }
    }
}
