package offloader.pulsar;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** Runs each method of a class whose name begins with "test"; the process fails when one of them does. */
final class Checks {
    static final long PATIENCE_S = 60;

    private Checks() {}

    public static void main(String[] names) throws Exception {
        int failed = 0;
        for (String name : names) {
            Method[] tests = Arrays.stream(Class.forName("offloader.pulsar." + name).getDeclaredMethods())
                    .filter(method -> method.getName().startsWith("test"))
                    .sorted(Comparator.comparing(Method::getName)).toArray(Method[]::new);
            if (tests.length == 0) {
                throw new AssertionError(name + " has no tests");
            }
            for (Method test : tests) {
                try {
                    test.setAccessible(true);
                    test.invoke(null);
                    System.out.println("ok " + name + "." + test.getName());
                } catch (InvocationTargetException thrown) {
                    failed++;
                    System.out.println("FAILED " + name + "." + test.getName());
                    thrown.getCause().printStackTrace(System.out);
                }
            }
        }
        System.exit(failed == 0 ? 0 : 1); // servers of the JDK leave threads behind
    }

    static void check(boolean isTrue, Object message) {
        if (!isTrue) {
            throw new AssertionError(message);
        }
    }

    static void equal(Object found, Object expected) {
        check(Objects.deepEquals(found, expected), "found " + found + ", expected " + expected);
    }

    /** The failure of {@code call}, whose text has all of {@code parts}. */
    static Throwable fails(Callable<?> call, String... parts) {
        Object value;
        try {
            value = call.call();
        } catch (Throwable thrown) {
            for (String part : parts) {
                check(String.valueOf(thrown.getMessage()).contains(part), "no '" + part + "' in: " + thrown);
            }
            return thrown;
        }
        throw new AssertionError("no failure but " + value);
    }

    /** The value, or the failure exactly as the broker gets it. */
    static <T> T get(CompletableFuture<T> future) throws Exception {
        try {
            return future.get(PATIENCE_S, TimeUnit.SECONDS);
        } catch (ExecutionException failed) {
            throw failed.getCause() instanceof Exception exception ? exception : failed;
        }
    }

    static void eventually(BooleanSupplier isSo) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!isSo.getAsBoolean()) {
            check(System.nanoTime() < deadline, "not within the time limit");
            Thread.sleep(5);
        }
    }

    /** Collects what is logged, of all levels. */
    static final class Log extends Handler implements AutoCloseable {
        final List<String> lines = new ArrayList<>();
        private final Logger logger = Logger.getLogger("");

        Log() {
            for (Handler other : logger.getHandlers()) {
                logger.removeHandler(other);
            }
            setLevel(java.util.logging.Level.ALL);
            logger.setLevel(java.util.logging.Level.ALL);
            logger.addHandler(this);
        }

        @Override
        public synchronized void publish(LogRecord record) {
            if (record.getLoggerName() != null && record.getLoggerName().startsWith("offloader")) {
                lines.add(record.getMessage() + (record.getThrown() == null ? "" : " " + record.getThrown()));
            }
        }

        synchronized String text() {
            return String.join("\n", lines);
        }

        @Override
        public void flush() {}

        @Override
        public void close() {
            logger.removeHandler(this);
        }
    }
}
