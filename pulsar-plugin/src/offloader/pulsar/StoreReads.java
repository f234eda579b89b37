package offloader.pulsar;

import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URISyntaxException;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.RejectedExecutionException;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;

/**
 * Ranged reads of the object store by presigned URLs.
 *
 * <p>Each is done by one thread that reads from the socket into the array: that takes less than half of the processor
 * time of the JDK's asynchronous client, which hands the bytes on in pieces of 16 KiB. Connections are kept and used again.
 */
final class StoreReads {
    /** Bytes of an error's answer that are read, so that its connection can be used again. */
    private static final int PROBLEM_MAX = 64 << 10;

    private final SSLSocketFactory tls;
    private final int connectMs;

    /** @param context of TLS; null: the JDK's */
    StoreReads(SSLContext context, Duration connectTimeout) {
        tls = context == null ? null : context.getSocketFactory();
        connectMs = (int) connectTimeout.toMillis();
    }

    /**
     * Bytes {@code start..stop} of an object.
     *
     * <p>Fails with a {@link PluginError} that has the status of an answer, or with the connection's own failure. After
     * the limit nobody waits any more; the thread ends its read within another limit.
     */
    CompletableFuture<byte[]> range(String url, long start, long stop, Duration limit) {
        long deadline = System.nanoTime() + limit.toNanos();
        CompletableFuture<byte[]> read = new CompletableFuture<>();
        try {
            Shared.STORE_POOL.execute(() -> {
                try {
                    if (!read.isDone()) { // nobody waits for one that had no turn in time
                        read.complete(bytes(url, start, Math.toIntExact(stop - start), deadline));
                    }
                } catch (Throwable thrown) {
                    read.completeExceptionally(thrown);
                }
            });
        } catch (RejectedExecutionException full) {
            read.completeExceptionally(new PluginError("more than " + Shared.QUEUE_MAX + " reads of the store wait"));
        }
        return Futures.within(read, limit,
                () -> new PluginError("no complete answer within " + limit.toMillis() + " ms"), null);
    }

    private byte[] bytes(String url, long start, int length, long deadline) throws IOException {
        HttpURLConnection connection = connection(url);
        connection.setInstanceFollowRedirects(false);
        connection.setConnectTimeout(connectMs);
        connection.setReadTimeout(leftMs(deadline));
        connection.setRequestProperty("Range", "bytes=" + start + "-" + (start + length - 1));
        boolean isWhole = false;
        try {
            int status = connection.getResponseCode();
            if (status / 100 != 2) {
                InputStream problem = connection.getErrorStream(); // null: a redirection has none that can be read
                drain(problem, deadline);
                isWhole = problem != null;
                throw new PluginError("the object store answered HTTP " + status, Math.max(0, status), "");
            }
            long promised = connection.getContentLengthLong();
            if (promised >= 0 && promised != length) {
                throw wrong(promised, length);
            }
            byte[] bytes = new byte[length];
            InputStream body = connection.getInputStream();
            int found = read(body, bytes, deadline);
            if (found < length || body.read() >= 0) {
                throw wrong(found < length ? found : length + 1L, length);
            }
            isWhole = true;
            return bytes;
        } finally {
            if (!isWhole) {
                connection.disconnect(); // what is left of the answer is never read
            }
        }
    }

    private HttpURLConnection connection(String url) throws IOException {
        try {
            if (new URI(url).toURL().openConnection() instanceof HttpURLConnection made) {
                if (tls != null && made instanceof HttpsURLConnection secure) {
                    secure.setSSLSocketFactory(tls);
                }
                return made;
            }
        } catch (URISyntaxException | IllegalArgumentException | IOException malformed) { // its message has the URL
            throw new PluginError("the plan has a URL that isn't one");
        }
        throw new PluginError("the plan has a URL that isn't one of HTTP");
    }

    /** How many bytes there were. Each wait of the socket has its limit; this one is for an answer in small pieces. */
    private static int read(InputStream body, byte[] into, long deadline) throws IOException {
        int found = 0;
        while (found < into.length) {
            int more = body.read(into, found, into.length - found);
            if (more < 0) {
                break;
            }
            found += more;
            leftMs(deadline);
        }
        return found;
    }

    private static void drain(InputStream problem, long deadline) throws IOException {
        if (problem != null) {
            try (problem) {
                read(problem, new byte[PROBLEM_MAX], deadline);
            }
        }
    }

    private static PluginError wrong(long found, int length) {
        return new PluginError("the object store sent " + found + " bytes of " + length);
    }

    private static int leftMs(long deadline) throws PluginError {
        long left = Futures.remaining(deadline).toMillis();
        if (left == 0) {
            throw new PluginError("no complete answer in time");
        }
        return (int) Math.min(left, Integer.MAX_VALUE);
    }
}
