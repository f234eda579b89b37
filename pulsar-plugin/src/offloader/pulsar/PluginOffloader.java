package offloader.pulsar;

import java.io.IOException;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/**
 * The offloader that the broker calls. It uploads nothing: the sidecar has streamed the ledger already.
 *
 * <p>Every call returns at once; all work is done in the plugin's own threads.
 */
public final class PluginOffloader implements LedgerOffloader {
    static final String DRIVER = "offloader";
    static final String SOURCE_KEY = "offloader.source";
    private static final String STREAM_KEY = "ManagedLedgerName";

    private final OffloadPoliciesImpl policies;
    private final Settings settings;
    private final LedgerOffloaderStats statistics;
    private final Sidecars sidecars;

    PluginOffloader(OffloadPoliciesImpl policies, Settings settings, LedgerOffloaderStats statistics)
            throws IOException {
        this.policies = policies;
        this.settings = settings;
        this.statistics = statistics;
        this.sidecars = new Sidecars(settings);
        Shared.CACHE.setLimit(settings.memory());
    }

    @Override
    public String getOffloadDriverName() {
        return DRIVER;
    }

    /**
     * Recorded by the broker with each ledger: a ledger's number alone doesn't tell which cluster it is of. The bucket is for
     * Pulsar's own offloader, which looks for a ledger in the one that its record names.
     */
    @Override
    public Map<String, String> getOffloadDriverMetadata() {
        Map<String, String> found = new TreeMap<>(settings.export());
        if (!settings.source().isEmpty()) {
            found.put(SOURCE_KEY, settings.source());
        }
        return found;
    }

    @Override
    public CompletableFuture<Void> offload(ReadHandle ledger, UUID uuid, Map<String, String> metadata) {
        String stream = metadata.get(STREAM_KEY);
        Statistics topic = Statistics.of(statistics, stream);
        return finish(Futures.start(() -> {
            checkStream(stream);
            return new OffloadAttempt(ledger, uuid, stream, sidecars, settings, topic).run();
        }), thrown -> {
            Shared.COUNTERS.add(thrown == null ? Counters.Name.Offloads : Counters.Name.OffloadFailures, 1);
            if (thrown != null) {
                topic.offloadError();
                Shared.LOG.warn("Offload of ledger {} of {} failed, attempt {}: {}", ledger.getId(), stream, uuid,
                        Sidecars.describe(thrown));
            }
        }, stream, ledger.getId(), "offload");
    }

    @Override
    public CompletableFuture<ReadHandle> readOffloaded(long ledger, UUID uuid, Map<String, String> metadata) {
        String stream = metadata.get(STREAM_KEY);
        return Futures.start(() -> {
            checkStream(stream);
            CompletableFuture<ReadHandle> result = new CompletableFuture<>();
            ColdLedger.open(ledger, stream, source(metadata), uuid, sidecars, settings, Statistics.of(statistics, stream))
                    .whenComplete((handle, thrown) -> {
                        if (thrown == null) {
                            result.complete(handle);
                        } else {
                            result.completeExceptionally(ColdLedger.failure(thrown, "open", stream, ledger));
                        }
                    });
            return result;
        });
    }

    /** Tells the sidecar that an attempt's record goes. All attempts share one copy, so this deletes nothing. */
    @Override
    public CompletableFuture<Void> deleteOffloaded(long ledger, UUID uuid, Map<String, String> metadata) {
        String stream = metadata.get(STREAM_KEY);
        Statistics topic = Statistics.of(statistics, stream);
        return finish(Futures.start(() -> {
            checkStream(stream);
            Sidecars.Call call = Sidecars.Call.of("DELETE", Sidecars.path(stream, ledger) + "?uuid=" + uuid,
                    source(metadata), 64 << 10, settings.requestTimeout());
            long deadline = System.nanoTime() + settings.requestTimeout().toNanos() * 2;
            return sidecars.call(call, answer -> (Void) null, deadline).exceptionallyCompose(thrown -> {
                boolean isGone = Futures.cause(thrown) instanceof PluginError failed
                        && (failed.status == 404 || failed.status == 410);
                return isGone ? CompletableFuture.completedFuture(null) : CompletableFuture.failedFuture(thrown);
            });
        }), thrown -> {
            Shared.COUNTERS.add(Counters.Name.DeleteHints, thrown == null ? 1 : 0);
            topic.deleted(thrown == null);
        }, stream, ledger, "delete");
    }

    private static CompletableFuture<Void> finish(CompletableFuture<Void> work,
            java.util.function.Consumer<Throwable> record, String stream, long ledger, String what) {
        CompletableFuture<Void> result = new CompletableFuture<>();
        work.whenComplete((nothing, thrown) -> {
            record.accept(thrown);
            if (thrown == null) {
                result.complete(null);
                return;
            }
            Throwable cause = Futures.cause(thrown);
            PluginError known = cause instanceof PluginError error ? error : new PluginError("");
            result.completeExceptionally(new PluginError("ledger " + ledger + " of " + stream + ", " + what + ": "
                    + Sidecars.describe(cause), known.status, known.kind));
        });
        return result;
    }

    /** The source that was recorded with the ledger, or this broker's. */
    private String source(Map<String, String> metadata) {
        return metadata.getOrDefault(SOURCE_KEY, settings.source());
    }

    private static void checkStream(String stream) {
        if (stream == null || stream.isEmpty()) {
            throw new IllegalArgumentException("the broker didn't name the managed ledger");
        }
    }

    @Override
    public OffloadPoliciesImpl getOffloadPolicies() {
        return policies;
    }

    /** Ends nothing: topics go on with the handles of an offloader whose namespace's policy has changed. */
    @Override
    public void close() {
        Shared.LOG.info("An offloader of {} was closed by the broker", settings.from());
    }
}
