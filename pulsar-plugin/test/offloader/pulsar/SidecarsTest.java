package offloader.pulsar;

import static offloader.pulsar.Checks.check;
import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.fails;
import static offloader.pulsar.Checks.get;
import static offloader.pulsar.Fixture.checkRead;
import static offloader.pulsar.Fixture.offloader;
import static offloader.pulsar.Fixture.open;

import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.Base64;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import org.apache.bookkeeper.client.api.ReadHandle;

/** Endpoints, tokens, certificates, the hint of a delete. */
final class SidecarsTest {
    private static String refused() throws Exception {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return "http://127.0.0.1:" + socket.getLocalPort();
        }
    }

    static void testDeadEndpointIsPassedOver() throws Exception {
        try (FakeSidecar first = new FakeSidecar(50, 10, 50); FakeSidecar second = new FakeSidecar(50, 10, 50)) {
            String endpoints = refused() + "," + first.url() + "," + second.url();
            checkRead(open(offloader("endpoints", endpoints)), first, 0, 49);
            equal(second.requests.size(), 0);
            first.fault = request -> FakeSidecar.Answer.of(503, "");
            checkRead(open(offloader("endpoints", endpoints)), first, 0, 49);
            first.fault = request -> request.isStore() ? null : FakeSidecar.Answer.of(200, "garbage");
            checkRead(open(offloader("endpoints", endpoints)), first, 0, 49);
            int asked = first.requests.size();
            checkRead(open(offloader("endpoints", endpoints)), first, 0, 49); // remembered as dead
            equal(first.requests.size(), asked);
        }
    }

    static void testEveryEndpointIsNamedWhenAllFail() throws Exception {
        String dead = refused();
        try (FakeSidecar sidecar = new FakeSidecar(50, 10, 50)) {
            sidecar.fault = request -> FakeSidecar.Answer.problem(503, "busy", "too many");
            fails(() -> open(offloader("endpoints", dead + "," + sidecar.url(), "request_timeout", "1s")),
                    dead + ": connection refused", sidecar.url() + ": HTTP 503 busy too many; hint: try that");
        }
    }

    static void testWrongEndpointIsNamed() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(50, 10, 50)) {
            for (String answer : new String[] {"{\"kind\": \"not_found\", \"detail\": \"Not Found\"}", "<html>no</html>"}) {
                sidecar.fault = request -> FakeSidecar.Answer.of(404, answer);
                fails(() -> open(offloader("endpoints", sidecar.url())), "HTTP 404",
                        "hint: endpoints of the plugin names sidecars, of a version that serves brokers");
            }
            sidecar.fault = request -> FakeSidecar.Answer.of(200, "<html>a web page</html>");
            fails(() -> open(offloader("endpoints", sidecar.url(), "request_timeout", "3s")),
                    "a wrong answer: the plan isn't JSON");
        }
    }

    /** An attempt whose plan isn't kept. */
    private static ReadHandle another(PluginOffloader offloader) throws Exception {
        return get(offloader.readOffloaded(FakeSidecar.LEDGER, java.util.UUID.randomUUID(), Fixture.metadata()));
    }

    static void testChangedTokenIsReadAgain() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(50, 10, 50); Checks.Log log = new Checks.Log()) {
            Path file = Files.writeString(Files.createTempFile("token", ""), "SECRET-one\n");
            sidecar.token = "SECRET-one";
            PluginOffloader offloader = offloader("endpoints", sidecar.url(), "token_file", file);
            another(offloader);
            sidecar.token = "SECRET-another";
            fails(() -> another(offloader), "HTTP 401 denied");
            Files.writeString(file, "SECRET-another\n");
            another(offloader);
            Files.writeString(file, "SECRET with \u00e9 and spaces\n");
            sidecar.token = "SECRET-3";
            Throwable failed = fails(() -> another(offloader), "HTTP 401");
            check(log.text().contains("token file"), log.text());
            check(!(failed + log.text()).contains("SECRET"), failed + log.text());
        }
    }

    static void testMissingTokenIsNamed() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(50, 10, 50); Checks.Log log = new Checks.Log()) {
            sidecar.token = "word";
            fails(() -> open(offloader("endpoints", sidecar.url(), "token_file", "/no/such/file")), "HTTP 401");
            check(log.text().contains("/no/such/file of the offloader plugin can't be used: NoSuchFileException"), log.text());
        }
    }

    static void testSourceOfTheLedgerIsSent() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(50, 10, 50)) {
            PluginOffloader offloader = offloader("endpoints", sidecar.url(), "source", "west");
            open(offloader);
            equal(sidecar.requests.get(0).source(), "west");
            get(offloader.readOffloaded(FakeSidecar.LEDGER, Fixture.UUID_, java.util.Map.of(
                    "ManagedLedgerName", FakeSidecar.STREAM, "offloader.source", "east")));
            equal(sidecar.requests.get(1).source(), "east");
        }
    }

    static void testDeleteIsAHint() throws Exception {
        try (FakeSidecar sidecar = new FakeSidecar(50, 10, 50)) {
            PluginOffloader offloader = offloader("endpoints", sidecar.url(), "request_timeout", "1s");
            for (int status : new int[] {202, 404, 410}) {
                sidecar.fault = request -> FakeSidecar.Answer.problem(status, "kind", "detail");
                get(offloader.deleteOffloaded(FakeSidecar.LEDGER, Fixture.UUID_, Fixture.metadata()));
            }
            equal(sidecar.requests.get(0).method() + sidecar.requests.get(0).query(), "DELETEuuid=" + Fixture.UUID_);
            sidecar.fault = request -> FakeSidecar.Answer.problem(503, "busy", "detail");
            fails(() -> get(offloader.deleteOffloaded(FakeSidecar.LEDGER, Fixture.UUID_, Fixture.metadata())),
                    "ledger 7 of " + FakeSidecar.STREAM + ", delete: ", "HTTP 503");
        }
    }

    static void testUnnamedManagedLedgerIsAnError() throws Exception {
        PluginOffloader offloader = offloader("endpoints", "http://127.0.0.1:1");
        fails(() -> get(offloader.readOffloaded(1, Fixture.UUID_, java.util.Map.of())), "didn't name the managed ledger");
    }

    static void testTlsTrustsTheFileAndNamesAnExpiredCertificate() throws Exception {
        Path good = Files.createTempDirectory("tls").resolve("keys.p12");
        keys(good, "ca", "-dname", "CN=authority", "-ext", "bc=ca:true");
        keys(good, "k", "-dname", "CN=localhost", "-signer", "ca");
        Path expired = Files.copy(good, good.resolveSibling("expired.p12"));
        equal(keytool(expired, "-delete", "-alias", "k"), 0);
        keys(expired, "k", "-dname", "CN=localhost", "-signer", "ca", "-startdate", "-10d", "-validity", "3");
        try (FakeSidecar sidecar = new FakeSidecar(50, 10, 50)) {
            HttpsServer server = tls(good, sidecar);
            HttpsServer old = tls(expired, sidecar);
            try {
                String url = "https://localhost:" + server.getAddress().getPort();
                fails(() -> open(offloader("endpoints", url, "request_timeout", "2s")), "TLS: ", "hint: ca_file");
                ReadHandle handle = open(offloader("endpoints", url, "ca_file", pem(good)));
                equal(handle.getLastAddConfirmed(), 49L);
                checkRead(handle, sidecar, 0, 9); // the object store by its URL, too
                equal(sidecar.requests.size(), 0);
                fails(() -> open(offloader("endpoints", "https://localhost:" + old.getAddress().getPort(), "ca_file",
                        pem(expired), "request_timeout", "2s")), "TLS: ", "validity check failed");
                fails(() -> offloader("endpoints", url, "ca_file", "/no/such/file"), "ca_file /no/such/file can't be used");
            } finally {
                server.stop(0);
                old.stop(0);
            }
        }
    }

    private static void keys(Path file, String alias, String... options) throws Exception {
        var all = new java.util.ArrayList<>(java.util.List.of("-genkeypair", "-alias", alias, "-keyalg", "EC", "-ext",
                "san=dns:localhost"));
        all.addAll(java.util.List.of(options));
        equal(keytool(file, all.toArray(String[]::new)), 0);
    }

    private static int keytool(Path file, String... options) throws Exception {
        var command = new java.util.ArrayList<>(java.util.List.of(System.getProperty("java.home") + "/bin/keytool"));
        command.addAll(java.util.List.of(options));
        command.addAll(java.util.List.of("-keystore", file.toString(), "-storepass", "password", "-storetype", "PKCS12"));
        return new ProcessBuilder(command).redirectErrorStream(true).start().waitFor();
    }

    private static KeyStore store(Path file) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(file)) {
            store.load(in, "password".toCharArray());
        }
        return store;
    }

    private static Path pem(Path file) throws Exception {
        String text = Base64.getMimeEncoder().encodeToString(store(file).getCertificate("ca").getEncoded());
        return Files.writeString(file.resolveSibling("ca.pem"),
                "-----BEGIN CERTIFICATE-----\n" + text + "\n-----END CERTIFICATE-----\n");
    }

    private static HttpsServer tls(Path file, FakeSidecar sidecar) throws Exception {
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        KeyStore store = store(file);
        store.deleteEntry("ca");
        keys.init(store, "password".toCharArray());
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), null, null);
        HttpsServer server = HttpsServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setHttpsConfigurator(new HttpsConfigurator(context));
        server.createContext("/", exchange -> {
            try (exchange) {
                String url = "https://localhost:" + exchange.getLocalAddress().getPort();
                byte[] answer = sidecar.plan().replace(sidecar.url(), url).getBytes();
                String range = exchange.getRequestHeaders().getFirst("Range");
                if (range != null) {
                    String[] ends = range.substring("bytes=".length()).split("-");
                    answer = java.util.Arrays.copyOfRange(
                            sidecar.object, Integer.parseInt(ends[0]), Integer.parseInt(ends[1]) + 1);
                }
                exchange.sendResponseHeaders(range == null ? 200 : 206, answer.length);
                exchange.getResponseBody().write(answer);
            }
        });
        server.start();
        return server;
    }
}
