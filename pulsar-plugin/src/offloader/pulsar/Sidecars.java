package offloader.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.ConnectException;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLHandshakeException;

/** HTTP: the sidecars' routes with failover between them, and presigned reads of the object store. */
final class Sidecars {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int PROBLEM_MAX = 64 << 10;
    private static final long DEAD_NANOS = TimeUnit.SECONDS.toNanos(20);

    /** Passes over all endpoints, with growing pauses between them. */
    private static final int PASSES_MAX = 3;

    /** Endpoint -> when it is asked again in its turn; for all offloaders of the broker. */
    private static final Map<URI, Long> DEAD = new ConcurrentHashMap<>();

    private static final int TRANSPORTS_MAX = 16;
    private static final Map<List<String>, Transport> TRANSPORTS = new HashMap<>();

    private final Settings settings;
    private final Token token;
    private final Transport transport;

    Sidecars(Settings settings) throws IOException {
        this.settings = settings;
        this.token = new Token(settings.tokenFile());
        this.transport = transport(settings);
    }

    /** Connections to the sidecars and to the object store. */
    private record Transport(HttpClient client, StoreReads store) {}

    /** One for all offloaders with equal settings: each has a thread and connections of its own. */
    private static Transport transport(Settings settings) throws IOException {
        Path file = settings.caFile();
        String changed = file == null || !Files.exists(file) ? "" : Files.getLastModifiedTime(file).toString();
        List<String> key = List.of(String.valueOf(file), changed, settings.connectTimeout().toString());
        synchronized (TRANSPORTS) {
            Transport found = TRANSPORTS.get(key);
            if (found == null) {
                HttpClient.Builder builder = HttpClient.newBuilder()
                        .version(HttpClient.Version.HTTP_1_1)
                        .followRedirects(HttpClient.Redirect.NEVER)
                        .executor(Shared.HTTP_POOL)
                        .connectTimeout(settings.connectTimeout());
                SSLContext context = file == null ? null : Trust.with(file);
                if (context != null) {
                    builder.sslContext(context);
                }
                found = new Transport(builder.build(), new StoreReads(context, settings.connectTimeout()));
                if (TRANSPORTS.size() >= TRANSPORTS_MAX) {
                    TRANSPORTS.clear(); // those in use live on
                }
                TRANSPORTS.put(key, found);
            }
            return found;
        }
    }

    /**
     * A call of a route.
     *
     * @param expected bytes of the answer; a guess
     * @param max bytes that the answer may have
     * @param patience of one attempt
     */
    record Call(String method, String path, String source, byte[] body, int length, int expected, int max,
            Duration patience) {
        static Call of(String method, String path, String source, int max, Duration patience) {
            return new Call(method, path, source, null, 0, 8 << 10, max, patience);
        }
    }

    /** The path of a ledger's routes. */
    static String path(String stream, long ledger) {
        return "/v1/streams/" + encode(stream) + "/ledgers/" + ledger;
    }

    static String encode(String part) {
        return URLEncoder.encode(part, StandardCharsets.UTF_8).replace("+", "%20");
    }

    /** Turns an answer into a value; an answer that isn't one counts as a failure of its endpoint. */
    interface Parser<T> {
        T parse(byte[] answer) throws IOException;
    }

    /** The answer of the first sidecar that gives a good one; fails with a {@link PluginError} of what each said. */
    <T> CompletableFuture<T> call(Call call, Parser<T> parser, long deadlineNanos) {
        return new Attempt<>(call, parser, deadlineNanos).pass(0);
    }

    private final class Attempt<T> {
        private final Call call;
        private final Parser<T> parser;
        private final long deadline;
        private final List<String> said = new ArrayList<>();
        private PluginError telling;

        Attempt(Call call, Parser<T> parser, long deadline) {
            this.call = call;
            this.parser = parser;
            this.deadline = deadline;
        }

        CompletableFuture<T> pass(int number) {
            said.clear();
            return next(inOrder(), 0, number);
        }

        private CompletableFuture<T> next(List<URI> endpoints, int index, int pass) {
            URI endpoint = endpoints.get(index);
            return askOnce(endpoint).handle((answer, thrown) -> {
                if (thrown == null) {
                    DEAD.remove(endpoint);
                    return CompletableFuture.completedFuture(answer);
                }
                PluginError failed = thrown instanceof PluginError known ? known : new PluginError(describe(thrown));
                said.add(endpoint + ": " + failed.getMessage());
                if (failed.status == 0) {
                    DEAD.put(endpoint, System.nanoTime() + DEAD_NANOS);
                }
                if (telling == null || failed.status != 0) {
                    telling = failed;
                }
                boolean hasNext = index + 1 < endpoints.size() && (failed.isRetryable() || failed.status == 404);
                if (hasNext && !isLate()) {
                    return next(endpoints, index + 1, pass);
                }
                long pause = 200L << pass;
                if (failed.isRetryable() && pass + 1 < PASSES_MAX
                        && Futures.remaining(deadline).toMillis() > pause + 100) {
                    return Futures.pause(pause).thenCompose(nothing -> pass(pass + 1));
                }
                return CompletableFuture.<T>failedFuture(
                        new PluginError(String.join("; ", said), telling.status, telling.kind));
            }).thenCompose(result -> result);
        }

        private boolean isLate() {
            return Futures.remaining(deadline).isZero();
        }

        private CompletableFuture<T> askOnce(URI endpoint) {
            return Futures.start(() -> ask(endpoint, false).thenApplyAsync(answer -> {
                try {
                    return parser.parse(answer);
                } catch (IOException wrong) {
                    throw new CompletionException(new PluginError("a wrong answer: " + wrong.getMessage()));
                }
            }, Shared.POOL));
        }

        private CompletableFuture<byte[]> ask(URI endpoint, boolean isSecond) {
            String sent = token.current(isSecond);
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(endpoint + call.path));
            request.method(call.method, call.body == null ? HttpRequest.BodyPublishers.noBody()
                    : HttpRequest.BodyPublishers.ofByteArray(call.body, 0, call.length));
            if (call.body != null) {
                request.header("Content-Type", call.method.equals("PUT") ? "application/octet-stream"
                        : "application/json");
            }
            if (sent != null) {
                request.header("Authorization", "Bearer " + sent);
            }
            if (!call.source.isEmpty()) {
                request.header("Offloader-Source", call.source);
            }
            Duration left = Futures.remaining(deadline);
            Duration limit = left.compareTo(call.patience) < 0 ? left : call.patience;
            return send(request, limit, info -> info.statusCode() / 100 == 2
                    ? new Body(info.statusCode(), call.expected, call.max)
                    : new Body(info.statusCode(), 1 << 10, PROBLEM_MAX)).thenCompose(response -> {
                        int status = response.statusCode();
                        if (status / 100 == 2) {
                            return CompletableFuture.completedFuture(response.body());
                        }
                        if (status == 401 && !isSecond && token.hasChangedFrom(sent)) {
                            return ask(endpoint, true);
                        }
                        return CompletableFuture.failedFuture(problem(status, response.body()));
                    });
        }
    }

    /** Those that are believed alive first, each group as configured; one call tries a dead one now and then. */
    private List<URI> inOrder() {
        List<URI> alive = new ArrayList<>();
        List<URI> dead = new ArrayList<>();
        long now = System.nanoTime();
        for (URI endpoint : settings.endpoints()) {
            Long until = DEAD.get(endpoint);
            boolean isTried = until != null && now - until >= 0 && DEAD.replace(endpoint, until, now + DEAD_NANOS);
            (until == null || isTried ? alive : dead).add(endpoint);
        }
        alive.addAll(dead);
        return alive;
    }

    /** Whether the store of a presigned URL didn't answer a moment ago. */
    static boolean isDead(String url) {
        Long until = DEAD.get(origin(url));
        return until != null && System.nanoTime() - until < 0;
    }

    private static URI origin(String url) {
        try {
            URI parsed = URI.create(url);
            return URI.create(parsed.getScheme() + "://" + parsed.getRawAuthority());
        } catch (IllegalArgumentException malformed) {
            return URI.create("unknown:/");
        }
    }

    /**
     * Bytes {@code start..stop} of an object. No credential is sent and no message has the URL: it is one itself.
     */
    CompletableFuture<byte[]> range(String url, long start, long stop, Duration limit) {
        return transport.store().range(url, start, stop, limit).handle((bytes, thrown) -> {
            PluginError failed = thrown == null || Futures.cause(thrown) instanceof PluginError ? null
                    : new PluginError(describe(thrown));
            if (thrown == null || failed == null && ((PluginError) Futures.cause(thrown)).status != 0) {
                DEAD.remove(origin(url));
            } else {
                DEAD.put(origin(url), System.nanoTime() + DEAD_NANOS);
            }
            return thrown == null ? CompletableFuture.completedFuture(bytes)
                    : CompletableFuture.<byte[]>failedFuture(failed == null ? Futures.cause(thrown) : failed);
        }).thenCompose(result -> result);
    }

    /** The answer, within the limit: the client's own timeout ends with the answer's headers. */
    private CompletableFuture<HttpResponse<byte[]>> send(
            HttpRequest.Builder request, Duration limit, HttpResponse.BodyHandler<byte[]> handler) {
        CompletableFuture<HttpResponse<byte[]>> call;
        try {
            call = transport.client().sendAsync(request.build(), handler);
        } catch (RuntimeException failed) { // its message may quote a header or a URL
            return CompletableFuture.failedFuture(new PluginError("the request can't be sent: "
                    + failed.getClass().getSimpleName()));
        }
        return Futures.within(call, limit,
                () -> new PluginError("no complete answer within " + limit.toMillis() + " ms"), null)
                .handleAsync((response, thrown) -> {
                    if (thrown == null) {
                        return CompletableFuture.completedFuture(response);
                    }
                    Throwable cause = Futures.cause(thrown);
                    return CompletableFuture.<HttpResponse<byte[]>>failedFuture(
                            cause instanceof PluginError ? cause : new PluginError(describe(cause)));
                }, Shared.POOL).thenCompose(result -> result);
    }

    /** A failure in words that hold neither URL nor token. */
    static String describe(Throwable thrown) {
        Throwable cause = Futures.cause(thrown);
        if (cause instanceof PluginError) {
            return cause.getMessage();
        }
        if (cause instanceof HttpConnectTimeoutException) {
            return "no connection in time";
        }
        if (cause instanceof SocketTimeoutException) {
            return "no answer in time";
        }
        if (cause instanceof ConnectException) {
            return "connection refused, or the host is unknown";
        }
        if (cause instanceof SSLHandshakeException && cause.getMessage() != null) {
            return "TLS: " + line(cause.getMessage()) + "; hint: ca_file names further trusted certificates";
        }
        if (cause instanceof SSLException) {
            return "TLS failed";
        }
        if (cause instanceof IOException) {
            return "the connection broke (" + cause.getClass().getSimpleName() + ")";
        }
        return cause.getClass().getSimpleName();
    }

    private static PluginError problem(int status, byte[] body) {
        String kind = "";
        String text = "HTTP " + status;
        String hint = switch (status) {
            case 401, 403 -> "token_file of the plugin needs a token of the role broker";
            case 404, 405 -> "endpoints of the plugin names sidecars, of a version that serves brokers";
            default -> "";
        };
        try {
            JsonNode problem = JSON.readTree(body);
            kind = problem.path("kind").asText("");
            String detail = problem.path("detail").asText("");
            text += (kind.isEmpty() ? "" : " " + line(kind)) + (detail.isEmpty() ? "" : " " + line(detail));
            hint = problem.path("hint").asText("").isEmpty() ? hint : problem.path("hint").asText();
        } catch (IOException | RuntimeException unreadable) {
            text += ", not a problem document";
        }
        return new PluginError(text + (hint.isEmpty() ? "" : "; hint: " + line(hint)), status, kind);
    }

    private static String line(String text) {
        String clean = text.replaceAll("\\p{Cntrl}+", " ");
        return clean.length() > 400 ? clean.substring(0, 400) + " ..." : clean;
    }

    /** A body in memory, up to a limit; more than that breaks the connection. */
    private static final class Body implements HttpResponse.BodySubscriber<byte[]> {
        private final CompletableFuture<byte[]> result = new CompletableFuture<>();
        private final int status;
        private final int max;
        private byte[] bytes;
        private int length;
        private Flow.Subscription subscription;

        Body(int status, int expected, int max) {
            this.status = status;
            this.max = max;
            this.bytes = new byte[Math.min(expected, max)];
        }

        @Override
        public CompletionStage<byte[]> getBody() {
            return result;
        }

        @Override
        public void onSubscribe(Flow.Subscription given) {
            subscription = given;
            given.request(Long.MAX_VALUE);
        }

        @Override
        public void onNext(List<ByteBuffer> buffers) {
            for (ByteBuffer buffer : buffers) {
                int more = buffer.remaining();
                if (more > max - length) {
                    subscription.cancel();
                    result.completeExceptionally(PluginError.tooLarge(status, max));
                    return;
                }
                if (more > bytes.length - length) {
                    bytes = Arrays.copyOf(bytes, (int) Math.min(max, Math.max(length + (long) more, 2L * length)));
                }
                buffer.get(bytes, length, more);
                length += more;
            }
        }

        @Override
        public void onError(Throwable thrown) {
            result.completeExceptionally(thrown);
        }

        @Override
        public void onComplete() {
            result.complete(length == bytes.length ? bytes : Arrays.copyOf(bytes, length));
        }
    }
}
