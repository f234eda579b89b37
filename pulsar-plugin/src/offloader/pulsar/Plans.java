package offloader.pulsar;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * The plans of ledgers that were opened a moment ago or will be soon, for all topics of the broker.
 *
 * <p>A topic that is loaded again, and a cursor that comes to the next ledger, then open a ledger without a request.
 */
final class Plans {
    /** A plan that is older isn't used to open a ledger; a handle keeps its own. */
    static final long AGE_NANOS = TimeUnit.SECONDS.toNanos(30);

    /** Blocks of all plans that are kept, which take about 60 bytes each; a plan under way counts as one. */
    static final int BLOCKS_MAX = 200_000;

    record Key(String source, String stream, long ledger) {}

    private static final class Kept {
        final UUID uuid;
        final long atNanos;
        final CompletableFuture<Plan> plan = new CompletableFuture<>();
        int blocks = 1;

        Kept(UUID uuid, long atNanos) {
            this.uuid = uuid;
            this.atNanos = atNanos;
        }

        /** What was found; null: nothing yet. */
        Plan found() {
            return plan.isDone() && !plan.isCompletedExceptionally() ? plan.join() : null;
        }

        /**
         * Whether it serves an attempt: objects of another offloader are those of one attempt only. Reading ahead names
         * none, so any plan that is there serves it.
         */
        boolean isFor(UUID other) {
            Plan shared = uuid == null || other == null ? found() : null;
            return Objects.equals(uuid, other) || shared != null
                    && (other == null || shared.uuid() == null || shared.uuid().equals(other));
        }

        /** Whether its URLs end within the time for which it may be kept. */
        boolean expires() {
            Plan known = found();
            return known != null && known.expiresMs() != 0
                    && System.currentTimeMillis() + TimeUnit.NANOSECONDS.toMillis(AGE_NANOS) >= known.expiresMs();
        }
    }

    private final LinkedHashMap<Key, Kept> kept = new LinkedHashMap<>(16, 0.75f, true);
    private long blocks;

    /**
     * The plan that is kept or under way, else the one of {@code load}.
     *
     * @param uuid of the attempt whose objects are meant; null: of any attempt, where all share them
     */
    CompletableFuture<Plan> get(Key key, UUID uuid, Supplier<CompletableFuture<Plan>> load) {
        Kept made;
        synchronized (this) {
            Kept found = kept.get(key);
            if (found != null && System.nanoTime() - found.atNanos < AGE_NANOS && found.isFor(uuid) && !found.expires()) {
                return found.plan;
            }
            made = new Kept(uuid, System.nanoTime());
            forget(key);
            kept.put(key, made);
            blocks += made.blocks;
        }
        Futures.start(load).whenComplete((plan, thrown) -> done(key, made, plan, thrown));
        return made.plan;
    }

    /** Of a plan whose URLs were refused. */
    synchronized void forget(Key key) {
        Kept found = kept.remove(key);
        blocks -= found == null ? 0 : found.blocks;
    }

    synchronized long blocks() {
        return blocks;
    }

    private void done(Key key, Kept made, Plan plan, Throwable thrown) {
        synchronized (this) {
            if (kept.get(key) == made) {
                if (thrown != null) {
                    forget(key);
                } else {
                    int more = plan.parts().stream().mapToInt(part -> 1 + part.blocks().size()).sum();
                    made.blocks += more;
                    blocks += more;
                    makeRoom();
                }
            }
        }
        if (thrown == null) {
            made.plan.complete(plan);
        } else {
            made.plan.completeExceptionally(Futures.cause(thrown));
        }
    }

    private void makeRoom() {
        Iterator<Map.Entry<Key, Kept>> eldest = kept.entrySet().iterator();
        while (blocks > BLOCKS_MAX && eldest.hasNext()) {
            blocks -= eldest.next().getValue().blocks;
            eldest.remove();
        }
    }
}
