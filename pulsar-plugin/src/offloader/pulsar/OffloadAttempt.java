package offloader.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;

/**
 * One attempt to offload a ledger: waits until the sidecar has committed it, and sends what readers don't get.
 *
 * <p>Success means that the broker may delete its copy, so the sidecar's counts must equal the broker's.
 */
final class OffloadAttempt {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int WAIT_SECONDS = 20;
    private static final int ANSWER_MAX = 1 << 20;
    private static final int SENT_MAX = 8 << 20;
    private static final int READ_AT_ONCE = 16;
    private static final int PAUSE_MAX_MS = 10_000;

    private final ReadHandle ledger;
    private final UUID uuid;
    private final String stream;
    private final Sidecars sidecars;
    private final Settings settings;
    private final Statistics statistics;
    private final long deadline;
    private final String path;
    private int failures;
    private String last = "the sidecar hasn't committed it";
    private List<Range> missing = List.of();

    private record Range(long first, long last) {}

    private record Answer(boolean isCommitted, List<Range> missing) {}

    OffloadAttempt(ReadHandle ledger, UUID uuid, String stream, Sidecars sidecars, Settings settings,
            Statistics statistics) {
        this.ledger = ledger;
        this.uuid = uuid;
        this.stream = stream;
        this.sidecars = sidecars;
        this.settings = settings;
        this.statistics = statistics;
        this.deadline = System.nanoTime() + settings.offloadTimeout().toNanos();
        this.path = Sidecars.path(stream, ledger.getId());
    }

    CompletableFuture<Void> run() {
        if (!ledger.isClosed() || ledger.getLastAddConfirmed() < 0) {
            return CompletableFuture.failedFuture(new PluginError("it is open or empty: only closed ledgers are offloaded"));
        }
        return poll();
    }

    private CompletableFuture<Void> poll() {
        if (Futures.remaining(deadline).isZero()) {
            return CompletableFuture.failedFuture(new PluginError("not within offload_timeout, "
                    + settings.offloadTimeout().toSeconds() + " s: " + last));
        }
        return Shared.OFFLOADS.enter(deadline, this::ask)
                .handle((answer, thrown) -> thrown == null ? go(answer) : again(Futures.cause(thrown)))
                .thenCompose(result -> result);
    }

    private CompletableFuture<Answer> ask() {
        long left = Math.max(1, Futures.remaining(deadline).toSeconds());
        long wait = Math.min(left, Shared.OFFLOADS.queued() > 0 ? 2 : WAIT_SECONDS);
        ObjectNode body = JSON.createObjectNode().put("uuid", uuid.toString()).put("last", ledger.getLastAddConfirmed())
                .put("length", ledger.getLength()).put("entries", ledger.getLastAddConfirmed() + 1);
        long created = ledger.getLedgerMetadata() == null ? 0 : ledger.getLedgerMetadata().getCtime();
        body.put("created_ms", created > 0 ? created : null).put("wait_seconds", wait);
        byte[] bytes;
        try {
            bytes = JSON.writeValueAsBytes(body);
        } catch (IOException impossible) {
            return CompletableFuture.failedFuture(impossible);
        }
        Duration patience = settings.requestTimeout().plusSeconds(wait);
        Sidecars.Call call = new Sidecars.Call("POST", path + "/offload", settings.source(), bytes, bytes.length,
                8 << 10, ANSWER_MAX, patience);
        return sidecars.call(call, this::parse, Math.min(deadline, System.nanoTime() + patience.toNanos() * 2));
    }

    private Answer parse(byte[] bytes) throws IOException {
        JsonNode root = JSON.readTree(bytes);
        if (root == null || !root.path("committed").isBoolean() || !root.path("missing").isArray()) {
            throw new IOException("no 'committed' and 'missing'");
        }
        List<Range> ranges = new ArrayList<>();
        long next = 0;
        for (JsonNode each : root.path("missing")) {
            Range range = new Range(each.path(0).asLong(-1), each.path(1).asLong(-1));
            if (range.first < next || range.last < range.first || range.last > ledger.getLastAddConfirmed()) {
                throw new IOException("the missing entries " + range.first + " to " + range.last + " make no sense");
            }
            ranges.add(range);
            next = range.last + 1;
        }
        return new Answer(root.path("committed").booleanValue(), ranges);
    }

    private CompletableFuture<Void> go(Answer answer) {
        failures = 0;
        if (answer.isCommitted) {
            return check();
        }
        if (answer.missing.isEmpty()) {
            last = "the sidecar hasn't committed it";
            return Futures.pause(500).thenCompose(nothing -> poll());
        }
        boolean isStuck = answer.missing.equals(missing);
        missing = answer.missing;
        last = "the sidecar lacks entries " + missing.get(0).first + " to " + missing.get(0).last;
        return Futures.pause(isStuck ? 2_000 : 1)
                .thenCompose(nothing -> Shared.SENDERS.enter(deadline, () -> new Sender(answer.missing).step()))
                .handle((done, thrown) -> thrown == null ? poll() : again(Futures.cause(thrown)))
                .thenCompose(result -> result);
    }

    private CompletableFuture<Void> again(Throwable thrown) {
        boolean isFinal = thrown instanceof PluginError failed && !failed.isRetryable();
        if (isFinal) {
            return CompletableFuture.failedFuture(thrown);
        }
        if (!Futures.remaining(deadline).isZero()) { // else it only tells that the time is up
            last = Sidecars.describe(thrown);
        }
        if (failures++ == 0) {
            Shared.LOG.warn("Offload of ledger {} of {} waits: {}", ledger.getId(), stream, last);
        }
        long pause = Math.min(PAUSE_MAX_MS, 500L << Math.min(failures, 6));
        long left = Futures.remaining(deadline).toMillis();
        return Futures.pause(Math.max(1, Math.min(pause, left))).thenCompose(nothing -> poll());
    }

    /** Compares once more, with what readers will be given. */
    private CompletableFuture<Void> check() {
        return ColdLedger.plan(sidecars, settings, stream, ledger.getId(), uuid, settings.source())
                .handle((plan, thrown) -> {
                    if (thrown != null) {
                        return again(Futures.cause(thrown));
                    }
                    if (plan.last() == ledger.getLastAddConfirmed() && plan.length() == ledger.getLength()) {
                        return CompletableFuture.<Void>completedFuture(null);
                    }
                    return CompletableFuture.<Void>failedFuture(new PluginError("the sidecar has " + plan.entries()
                            + " entries of " + plan.length() + " bytes, the broker " + (ledger.getLastAddConfirmed() + 1)
                            + " of " + ledger.getLength() + "; the broker keeps its copy", 409, "source_mismatch"));
                }).thenCompose(result -> result);
    }

    /** Reads the missing entries from the broker's copy and sends them, in requests of a bounded size. */
    private final class Sender {
        private final List<Range> ranges;
        private int index;
        private long next;
        private long first = -1;
        private long final_ = -1;
        private long count;
        private Chunk.Writer frames = new Chunk.Writer();

        Sender(List<Range> ranges) {
            this.ranges = ranges;
            this.next = ranges.get(0).first;
        }

        CompletableFuture<Void> step() {
            if (index == ranges.size()) {
                return frames.length() == 0 ? CompletableFuture.completedFuture(null) : send();
            }
            if (Futures.remaining(deadline).isZero()) {
                return CompletableFuture.failedFuture(new PluginError("not all missing entries were sent in time"));
            }
            long until = Math.min(ranges.get(index).last, next + READ_AT_ONCE - 1);
            return Futures.within(ledger.readAsync(next, until), settings.requestTimeout(),
                    () -> new PluginError("BookKeeper gave no entries in time"), LedgerEntries::close)
                    .thenComposeAsync(entries -> {
                        try (entries) {
                            boolean isFull = take(entries, until);
                            return isFull ? send().thenCompose(nothing -> step()) : step();
                        } catch (IOException wrong) {
                            return CompletableFuture.failedFuture(wrong);
                        }
                    }, Shared.POOL);
        }

        /** Takes entries up to a request's size; true: it is full. */
        private boolean take(LedgerEntries entries, long until) throws IOException {
            for (LedgerEntry entry : entries) {
                if (entry.getEntryId() != next) {
                    throw new PluginError("BookKeeper gave entry " + entry.getEntryId() + " for entry " + next);
                }
                ByteBuf payload = entry.getEntryBuffer();
                int length = payload.readableBytes();
                if (frames.length() > 0 && frames.length() + length + 2 * Chunk.FRAME_HEADER > SENT_MAX) {
                    return true;
                }
                int at = frames.frame(next, length);
                payload.getBytes(payload.readerIndex(), frames.data(), at, length);
                first = first < 0 ? next : first;
                final_ = next++;
                count++;
            }
            if (next != until + 1) {
                throw new PluginError("BookKeeper gave no entry " + next);
            }
            if (next > ranges.get(index).last && ++index < ranges.size()) {
                next = ranges.get(index).first;
            }
            return false;
        }

        private CompletableFuture<Void> send() {
            frames.end();
            long sent = count;
            int bytes = frames.length();
            Sidecars.Call call = new Sidecars.Call("PUT", path + "/missing?first=" + first + "&last=" + final_,
                    settings.source(), frames.data(), bytes, 8 << 10, ANSWER_MAX, settings.requestTimeout());
            return sidecars.call(call, answer -> JSON.readTree(answer), Math.min(deadline,
                    System.nanoTime() + settings.requestTimeout().toNanos() * 2)).thenAccept(answer -> {
                        Shared.COUNTERS.add(Counters.Name.MissingEntries, sent);
                        statistics.sent(bytes);
                        frames = new Chunk.Writer();
                        first = -1;
                        count = 0;
                    });
        }
    }
}
