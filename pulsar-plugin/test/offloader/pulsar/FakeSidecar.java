package offloader.pulsar;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Function;
import java.util.stream.Collectors;

/**
 * A sidecar and an object store in one server, for one ledger: the agreed routes, and presigned URLs below /store.
 *
 * <p>{@code fault} sees each request first and returns the answer for it, or null.
 */
final class FakeSidecar implements AutoCloseable {
    static final String STREAM = "public/default/persistent/orders%2Fa b";
    static final long LEDGER = 7;
    static final String SIGNATURE = "sig=SECRET-SIGNATURE";
    private static final int PIECE = 16 << 10;

    record Request(String method, String path, String query, String range, String authorization, String source,
            byte[] body) {
        boolean isStore() {
            return path.startsWith("/store/");
        }

        String parameter(String name) {
            return Arrays.stream((query == null ? "" : query).split("&")).filter(each -> each.startsWith(name + "="))
                    .map(each -> each.substring(name.length() + 1)).findFirst().orElse(null);
        }
    }

    /** @param length that the answer's head promises; -1: what there is */
    record Answer(int status, byte[] body, int length) {
        static Answer of(int status, String body) {
            return new Answer(status, body.getBytes(StandardCharsets.UTF_8), -1);
        }

        static Answer problem(int status, String kind, String detail) {
            return of(status, "{\"kind\": \"" + kind + "\", \"detail\": \"" + detail + "\", \"hint\": \"try that\"}");
        }
    }

    final List<Request> requests = new CopyOnWriteArrayList<>();
    final List<byte[]> entries = new ArrayList<>();
    final Map<Long, byte[]> sent = new TreeMap<>();
    /** Of the clients of requests to the store: one for each connection. */
    final Set<Integer> storePorts = ConcurrentHashMap.newKeySet();
    final byte[] object;
    volatile Function<Request, Answer> fault = request -> null;
    volatile String token;
    volatile boolean hasUrls = true;
    volatile boolean hasCrc = true;
    /** Whether the plan tells the first entry of each block; older sidecars didn't. */
    volatile boolean hasFirsts = true;
    /** The stream's next ledger; -1: the plan doesn't tell. */
    volatile long next = -1;
    volatile long expiresMs;
    volatile int pollsUntilCommitted;
    volatile List<long[]> missing = List.of();

    private final HttpServer server;
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final int perBlock;
    private final int perChunk;
    private final List<int[]> blocks = new ArrayList<>();

    FakeSidecar(int count, int perBlock, int perChunk) throws IOException {
        this(LEDGER, count, perBlock, perChunk);
    }

    FakeSidecar(long ledger, int count, int perBlock, int perChunk) throws IOException {
        this.perBlock = perBlock;
        this.perChunk = perChunk;
        Random random = new Random(count);
        for (int entry = 0; entry < count; entry++) {
            byte[] payload = new byte[random.nextInt(2_000)];
            random.nextBytes(payload);
            entries.add(payload);
        }
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (int first = 0; first < count; first += perBlock) {
            byte[] block = block(ledger, first, entries.subList(first, Math.min(count, first + perBlock)));
            blocks.add(new int[] {all.size(), all.size() + block.length});
            all.write(block);
        }
        object = all.toByteArray();
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", this::answer);
        server.setExecutor(threads);
        server.start();
    }

    /** A V2 block with its padding. */
    static byte[] block(long ledger, long first, List<byte[]> payloads) throws IOException {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(body);
        long entry = first;
        for (byte[] payload : payloads) {
            out.writeInt(payload.length);
            out.writeLong(entry++);
            out.write(payload);
        }
        for (int i = 0; i < 5; i++) {
            out.writeInt(0xFEDCDEAD);
        }
        ByteArrayOutputStream block = new ByteArrayOutputStream();
        DataOutputStream head = new DataOutputStream(block);
        head.writeInt(0x26A66D32);
        head.writeLong(128);
        head.writeLong(128 + body.size());
        head.writeLong(first);
        head.writeLong(ledger);
        head.write(new byte[92]);
        head.write(body.toByteArray());
        return block.toByteArray();
    }

    byte[] frames(long first, long last) {
        Chunk.Writer writer = new Chunk.Writer();
        for (long entry = first; entry <= last; entry++) {
            byte[] payload = entries.get((int) entry);
            int at = writer.frame(entry, payload.length);
            System.arraycopy(payload, 0, writer.data(), at, payload.length);
        }
        writer.end();
        return Arrays.copyOf(writer.data(), writer.length());
    }

    String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    long count(String word) {
        return requests.stream().filter(each -> (each.method() + " " + each.path()).contains(word)).count();
    }

    long length() {
        return entries.stream().mapToLong(each -> each.length).sum();
    }

    String plan() {
        List<String> chunks = new ArrayList<>();
        for (int first = 0; first < entries.size(); first += perChunk) {
            int last = Math.min(entries.size(), first + perChunk) - 1;
            List<int[]> parts = blocks.subList(first / perBlock, last / perBlock + 1);
            long bytes = entries.subList(first, last + 1).stream().mapToLong(each -> each.length).sum();
            String place = "\"object\": -1, \"start\": 0, \"stop\": 0, \"blocks\": []";
            if (hasUrls) {
                place = "\"object\": 0, \"start\": " + parts.get(0)[0] + ", \"stop\": " + parts.get(parts.size() - 1)[1]
                        + ", \"blocks\": [" + parts.stream().map(each -> "[" + each[0] + "," + each[1] + ","
                                + (hasCrc ? Chunk.crc(object, each[0], each[1]) : "null")
                                + (hasFirsts ? "," + perBlock * blocks.indexOf(each) : "") + "]")
                                .collect(Collectors.joining(",")) + "]";
            }
            chunks.add("{\"first\": " + first + ", \"last\": " + last + ", \"bytes\": " + bytes + ", " + place + "}");
        }
        return "{\"last\": " + (entries.size() - 1) + ", \"length\": " + length() + ", \"entries\": " + entries.size()
                + (next < 0 ? "" : ", \"next\": " + next) + ", \"expires_ms\": " + (expiresMs == 0 ? "null" : expiresMs) + ", \"objects\": ["
                + (hasUrls ? "\"" + url() + "/store/one?" + SIGNATURE + "\"" : "") + "], \"chunks\": ["
                + String.join(",", chunks) + "]}";
    }

    private void answer(HttpExchange exchange) throws IOException {
        try (exchange) {
            Request request = new Request(exchange.getRequestMethod(), exchange.getRequestURI().getRawPath(),
                    exchange.getRequestURI().getRawQuery(), exchange.getRequestHeaders().getFirst("Range"),
                    exchange.getRequestHeaders().getFirst("Authorization"),
                    exchange.getRequestHeaders().getFirst("Offloader-Source"), exchange.getRequestBody().readAllBytes());
            requests.add(request);
            if (request.isStore()) {
                storePorts.add(exchange.getRemoteAddress().getPort());
            }
            Answer answer = fault.apply(request);
            answer = answer != null ? answer : request.isStore() ? range(request) : route(request);
            int length = answer.length >= 0 ? answer.length : answer.body.length;
            exchange.sendResponseHeaders(answer.status, length == 0 ? -1 : length);
            // In pieces: the server keeps a buffer of the longest one for each connection.
            for (int at = 0; at < answer.body.length; at += PIECE) {
                exchange.getResponseBody().write(answer.body, at, Math.min(PIECE, answer.body.length - at));
            }
        }
    }

    private Answer range(Request request) {
        String[] bounds = request.range.substring("bytes=".length()).split("-");
        byte[] part = Arrays.copyOfRange(object, Integer.parseInt(bounds[0]), Integer.parseInt(bounds[1]) + 1);
        return new Answer(206, part, -1);
    }

    private Answer route(Request request) {
        if (token != null && !("Bearer " + token).equals(request.authorization)) {
            return Answer.problem(401, "denied", "no valid token");
        }
        String base = "/v1/streams/public%2Fdefault%2Fpersistent%2Forders%252Fa%20b/ledgers/" + LEDGER;
        if (!request.path.startsWith(base)) {
            return Answer.problem(404, "not_found", "there is no such ledger");
        }
        return switch (request.method + request.path.substring(base.length())) {
            case "GET" -> Answer.of(200, plan());
            case "GET/entries" -> new Answer(200, frames(Long.parseLong(request.parameter("from")),
                    Long.parseLong(request.parameter("to"))), -1);
            case "DELETE" -> Answer.of(202, "{}");
            case "POST/offload" -> offload();
            case "PUT/missing" -> missing(request);
            default -> Answer.problem(404, "not_found", "there is no such route");
        };
    }

    private synchronized Answer offload() {
        if (!missing.isEmpty()) {
            return Answer.of(200, "{\"committed\": false, \"missing\": [" + missing.stream()
                    .map(each -> "[" + each[0] + "," + each[1] + "]").collect(Collectors.joining(",")) + "]}");
        }
        return Answer.of(200, "{\"committed\": " + (pollsUntilCommitted-- <= 0) + ", \"missing\": []}");
    }

    private synchronized Answer missing(Request request) {
        byte[] body = request.body;
        int at = 0;
        while ((int) Chunk.INT.get(body, at) != -1) {
            int length = (int) Chunk.INT.get(body, at);
            sent.put((Long) (long) Chunk.LONG.get(body, at + 4), Arrays.copyOfRange(body, at + 12, at + 12 + length));
            at += 12 + length;
        }
        Checks.equal((long) Chunk.LONG.get(body, at + 4), Chunk.crc(body, 0, at));
        Checks.equal(at + 12, body.length);
        List<long[]> left = new ArrayList<>();
        for (long[] range : missing) {
            for (long entry = range[0]; entry <= range[1]; entry++) {
                if (!sent.containsKey(entry)) {
                    left.add(new long[] {entry, entry});
                }
            }
        }
        missing = left;
        return Answer.of(200, "{\"stored\": " + sent.size() + "}");
    }

    @Override
    public void close() {
        server.stop(0);
        threads.shutdownNow();
    }
}
