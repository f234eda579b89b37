package offloader.pulsar;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Deadlines, pauses and limits for work that blocks no thread. */
final class Futures {
    private Futures() {}

    /** The failure itself: the broker doesn't retry what is wrapped in a {@code CompletionException}. */
    static Throwable cause(Throwable thrown) {
        Throwable found = thrown;
        while ((found instanceof CompletionException || found instanceof ExecutionException)
                && found.getCause() != null) {
            found = found.getCause();
        }
        return found;
    }

    /** Runs {@code work} in the plugin's own threads; whatever goes wrong fails the future, unwrapped. */
    static <T> CompletableFuture<T> start(Supplier<CompletableFuture<T>> work) {
        CompletableFuture<T> result = new CompletableFuture<>();
        try {
            Shared.POOL.execute(() -> {
                try {
                    pass(work.get(), result);
                } catch (Throwable thrown) {
                    result.completeExceptionally(cause(thrown));
                }
            });
        } catch (RejectedExecutionException full) {
            // Not on this thread: what it frees is given to the next task, which would be refused here, too, and so on.
            Shared.TIMER.execute(() -> result.completeExceptionally(new PluginError("the plugin has more than "
                    + Shared.QUEUE_MAX + " tasks waiting; the broker retries")));
        }
        return result;
    }

    /** Completes {@code to} as {@code from} completes, with the unwrapped failure. */
    static <T> void pass(CompletableFuture<T> from, CompletableFuture<T> to) {
        from.whenComplete((value, thrown) -> {
            if (thrown == null) {
                to.complete(value);
            } else {
                to.completeExceptionally(cause(thrown));
            }
        });
    }

    /**
     * The result of {@code call}, or a failure after {@code limit}.
     *
     * @param late takes a value that arrives after the limit; null: the call is cancelled then
     */
    static <T> CompletableFuture<T> within(
            CompletableFuture<T> call, Duration limit, Supplier<Throwable> timeout, Consumer<T> late) {
        CompletableFuture<T> result = new CompletableFuture<>();
        ScheduledFuture<?> timer = Shared.TIMER.schedule(() -> {
            if (result.completeExceptionally(timeout.get()) && late == null) {
                call.cancel(true);
            }
        }, Math.max(1, limit.toMillis()), TimeUnit.MILLISECONDS);
        call.whenComplete((value, thrown) -> {
            timer.cancel(false);
            if (thrown != null) {
                result.completeExceptionally(cause(thrown));
            } else if (!result.complete(value) && late != null) {
                late.accept(value);
            }
        });
        return result;
    }

    /** Completes after {@code millis}, in the plugin's own threads. */
    static CompletableFuture<Void> pause(long millis) {
        CompletableFuture<Void> result = new CompletableFuture<>();
        Shared.TIMER.schedule(() -> result.complete(null), millis, TimeUnit.MILLISECONDS);
        return result.thenApplyAsync(nothing -> null, Shared.POOL);
    }

    static Duration remaining(long deadlineNanos) {
        return Duration.ofNanos(Math.max(0, deadlineNanos - System.nanoTime()));
    }

    /** At most so many at once; the others wait in order, each until its deadline. */
    static final class Gate {
        private final ArrayDeque<CompletableFuture<Void>> waiting = new ArrayDeque<>();
        private int free;

        Gate(int places) {
            free = places;
        }

        /** Runs {@code work} once there is a place, which is freed when the work completes. */
        <T> CompletableFuture<T> enter(long deadlineNanos, Supplier<CompletableFuture<T>> work) {
            CompletableFuture<Void> turn = new CompletableFuture<>();
            synchronized (this) {
                if (free > 0) {
                    free--;
                    turn.complete(null);
                } else {
                    waiting.add(turn);
                }
            }
            if (!turn.isDone()) {
                ScheduledFuture<?> timer = Shared.TIMER.schedule(() -> turn.completeExceptionally(new PluginError(
                        "no turn before the deadline: too many offloads at once")),
                        Math.max(1, remaining(deadlineNanos).toMillis()), TimeUnit.MILLISECONDS);
                turn.whenComplete((nothing, late) -> timer.cancel(false));
            }
            return turn.thenCompose(nothing -> start(work).whenComplete((value, thrown) -> leave()));
        }

        private void leave() {
            CompletableFuture<Void> next;
            do {
                synchronized (this) {
                    next = waiting.poll();
                    if (next == null) {
                        free++;
                    }
                }
            } while (next != null && !next.complete(null)); // one whose deadline passed takes no place
        }

        synchronized int queued() {
            return waiting.size();
        }
    }
}
