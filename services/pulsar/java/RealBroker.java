import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Iterator;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.UUID;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.pulsar.PulsarStandalone;
import org.apache.pulsar.PulsarStandaloneStarter;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.common.configuration.PulsarConfigurationLoader;

/**
 * A Pulsar broker with a bookie of its own, and questions about the bytes in them.
 *
 * <p>Arguments: FOLDER CONFIGURATION [key=value ...]; with {@code joins=URL} it is a further broker of the cluster whose metadata
 * are there, without a bookie. Such a cluster's first broker has PULSAR_STANDALONE_USE_ZOOKEEPER=1 in its environment. One line of JSON on standard output says when and where it is ready; every line on
 * standard input is a question that gets one line of JSON. The end of standard input ends it. Logs go to standard error.
 *
 * <ul>
 *   <li>{@code ledger L}: last entry, length and whether it is closed, from the bookie
 *   <li>{@code hot L FIRST LAST}: the entries as the bookie has them
 *   <li>{@code forget L}: the bookie deletes the ledger, and the broker isn't told
 *   <li>{@code transaction TOPIC COUNT END}: so many messages in one transaction, which ends by {@code commit}, {@code abort} or, for
 *       the length of the broker's life, not at all ({@code leave})
 *   <li>{@code drain TOPIC COUNT START SECONDS}: what a reader receives, see {@link RealClient#drain}
 *   <li>{@code staggered TOPIC COUNT READERS SECONDS}: what so many readers receive together, see {@link RealClient#staggered}
 *   <li>{@code beans PATTERN}: attributes of this process's management beans
 *   <li>{@code heap}: bytes that are alive in the heap, after a collection
 *   <li>{@code cold L UUID FIRST LAST}: the entries as the broker's offloader reads them out of the object store
 *   <li>{@code record NAME}: the bytes that the metadata store has of a managed ledger, TENANT/NAMESPACE/persistent/TOPIC
 *   <li>{@code index BASE64 ENTRY...}: an index object as the offloader's own classes parse it, and the block of each entry
 * </ul>
 */
public final class RealBroker {
    private final PulsarService service;
    private final RealClient client;

    private RealBroker(PulsarService service) {
        this.service = service;
        this.client = new RealClient(service.getBrokerServiceUrl());
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Path folder = Path.of(arguments[0]).toAbsolutePath();
        Files.createDirectories(folder.resolve("nar"));
        Path configuration = configuration(folder, arguments);
        String joins = joins(configuration);
        if (!joins.isEmpty()) {
            PulsarService service = joined(configuration, joins);
            answer(service, answers);
            service.close();
            Runtime.getRuntime().halt(0);
        }
        PulsarStandaloneStarter starter = new PulsarStandaloneStarter(new String[] {
            "--config", configuration.toString(),
            "--no-functions-worker", "--no-stream-storage",
            "--metadata-dir", folder.resolve("metadata").toString(),
            "--bookkeeper-dir", folder.resolve("bookie").toString(),
        });
        starter.setZkPort(Integer.parseInt(port()));
        starter.setZkDir(folder.resolve("zookeeper").toString());
        if (bookiePort() != null) {
            bookiePort().invoke(starter, Integer.parseInt(port()));
        }
        try {
            starter.start();
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1); // threads that were started already would go on
        }
        Field field = PulsarStandalone.class.getDeclaredField("broker");
        field.setAccessible(true);
        PulsarService service = (PulsarService) field.get(starter);
        if (System.getenv("PULSAR_STANDALONE_USE_ZOOKEEPER") != null) {
            // A standalone broker is the only one of its cluster: it has clients reach every loopback address through itself.
            service.getConfiguration().setRunningStandalone(false);
        }
        answer(service, answers);
        starter.close();
        Runtime.getRuntime().halt(0);
    }

    /** Sets the bookie's port; null since Pulsar 5, whose bookie finds a free one and has an id that doesn't depend on it. */
    private static Method bookiePort() {
        try {
            return PulsarStandalone.class.getMethod("setBkPort", int.class);
        } catch (NoSuchMethodException missing) {
            return null;
        }
    }

    /** Says where the broker is, and answers until there are no more questions. */
    private static void answer(PulsarService service, PrintStream answers) throws Exception {
        say(answers, String.format("{\"service_url\":%s,\"admin_url\":%s,\"metadata_url\":%s}",
            quoted(service.getBrokerServiceUrl()), quoted(service.getWebServiceAddress()),
            quoted(String.valueOf(service.getConfiguration().getMetadataStoreUrl()))));
        new RealBroker(service).answerAll(answers);
    }

    /** Where the metadata of a cluster are that has a broker already; empty: this one is the first. */
    private static String joins(Path configuration) throws Exception {
        Properties properties = new Properties();
        try (InputStream given = Files.newInputStream(configuration)) {
            properties.load(given);
        }
        return properties.getProperty("joins", "");
    }

    /** A further broker of a cluster, whose bookie and metadata are in the first one's process. */
    private static PulsarService joined(Path configuration, String metadata) throws Exception {
        ServiceConfiguration settings = PulsarConfigurationLoader.create(configuration.toString(), ServiceConfiguration.class);
        settings.setMetadataStoreUrl(metadata);
        settings.setConfigurationMetadataStoreUrl(metadata);
        PulsarService service = new PulsarService(settings);
        try {
            service.start();
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        return service;
    }

    /** The one file that configures broker and bookie: what is given, and free ports. */
    private static Path configuration(Path folder, String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (InputStream given = Files.newInputStream(Path.of(arguments[1]))) {
            properties.load(given);
        }
        properties.setProperty("brokerServicePort", port());
        properties.setProperty("webServicePort", port());
        properties.setProperty("narExtractionDirectory", folder.resolve("nar").toString());
        for (int i = 2; i < arguments.length; i++) {
            int sign = arguments[i].indexOf('=');
            properties.setProperty(arguments[i].substring(0, sign), arguments[i].substring(sign + 1));
        }
        Path written = folder.resolve("broker.conf");
        try (OutputStream out = Files.newOutputStream(written)) {
            properties.store(out, null);
        }
        return written;
    }

    private static String port() throws Exception {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return Integer.toString(socket.getLocalPort());
        }
    }

    private void answerAll(PrintStream answers) throws Exception {
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            try {
                say(answers, answer(line.trim().split(" ")));
            } catch (Throwable failure) {
                Throwable cause = failure.getCause() == null ? failure : failure.getCause();
                say(answers, "{\"error\":" + quoted(cause.toString()) + "}");
            }
        }
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "ledger":
                try (LedgerHandle ledger = hot(Long.parseLong(words[1]))) {
                    return String.format("{\"last\":%d,\"length\":%d,\"closed\":%b}",
                        ledger.getLastAddConfirmed(), ledger.getLength(), ledger.isClosed());
                }
            case "hot":
                try (LedgerHandle ledger = hot(Long.parseLong(words[1]))) {
                    return entries(ledger, Long.parseLong(words[2]), Long.parseLong(words[3]));
                }
            case "forget":
                service.getBookKeeperClient().deleteLedger(Long.parseLong(words[1]));
                return "true";
            case "transaction":
                client.transaction(words[1], Integer.parseInt(words[2]), words[3]);
                return "true";
            case "drain":
                return client.drain(words[1], Integer.parseInt(words[2]), words[3], Integer.parseInt(words[4]));
            case "staggered":
                return client.staggered(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), Integer.parseInt(words[4]));
            case "beans":
                return beans(words[1]);
            case "heap":
                System.gc();
                return Long.toString(ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed());
            case "cold":
                LedgerOffloader offloader = offloader();
                try (ReadHandle ledger = offloader.readOffloaded(
                        Long.parseLong(words[1]), UUID.fromString(words[2]), offloader.getOffloadDriverMetadata()).get()) {
                    return entries(ledger, Long.parseLong(words[3]), Long.parseLong(words[4]));
                }
            case "record":
                return quoted(Base64.getEncoder().encodeToString(
                    service.getLocalMetadataStore().get("/managed-ledgers/" + words[1]).get().orElseThrow().getValue()));
            case "index":
                return index(Base64.getDecoder().decode(words[1]), words);
            default:
                throw new IllegalArgumentException("no such question: " + words[0]);
        }
    }

    /** Opened without recovery: asking never closes a ledger that is being written. */
    private LedgerHandle hot(long ledgerId) throws Exception {
        return service.getBookKeeperClient().openLedgerNoRecovery(ledgerId, BookKeeper.DigestType.CRC32C, new byte[0]);
    }

    private static String beans(String pattern) throws Exception {
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        StringJoiner beans = new StringJoiner(",", "{", "}");
        for (ObjectName name : server.queryNames(new ObjectName(pattern), null)) {
            StringJoiner attributes = new StringJoiner(",", "{", "}");
            for (MBeanAttributeInfo attribute : server.getMBeanInfo(name).getAttributes()) {
                Object value = server.getAttribute(name, attribute.getName());
                if (value instanceof Number || value instanceof String) {
                    String shown = value instanceof Number ? value.toString() : quoted((String) value);
                    attributes.add(quoted(attribute.getName()) + ":" + shown);
                }
            }
            beans.add(quoted(name.toString()) + ":" + attributes);
        }
        return beans.toString();
    }

    private LedgerOffloader offloader() {
        return service.getDefaultOffloader();
    }

    private static String entries(ReadHandle ledger, long first, long last) throws Exception {
        StringJoiner found = new StringJoiner(",", "[", "]");
        try (LedgerEntries entries = ledger.read(first, last)) {
            for (Iterator<LedgerEntry> each = entries.iterator(); each.hasNext();) {
                found.add('"' + Base64.getEncoder().encodeToString(each.next().getEntryBytes()) + '"');
            }
        }
        return found.toString();
    }

    /** The offloader's classes live in a class loader of its own. */
    private String index(byte[] bytes, String[] words) throws Exception {
        ClassLoader loader = offloader().getClass().getClassLoader();
        Class<?> builders = loader.loadClass("org.apache.bookkeeper.mledger.offload.jcloud.OffloadIndexBlockBuilder");
        Object index = builders.getMethod("fromStream", InputStream.class)
            .invoke(builders.getMethod("create").invoke(null), new ByteArrayInputStream(bytes));
        StringJoiner blocks = new StringJoiner(",", "[", "]");
        for (int i = 2; i < words.length; i++) {
            Object entry = call(index, "getIndexEntryForEntry", long.class, Long.parseLong(words[i]));
            blocks.add("[" + call(entry, "getEntryId") + "," + call(entry, "getPartId") + "," + call(entry, "getOffset") + "]");
        }
        LedgerMetadata ledger = (LedgerMetadata) call(index, "getLedgerMetadata");
        return String.format(
            "{\"data_bytes\":%s,\"header_bytes\":%s,\"count\":%s,\"last\":%d,\"length\":%d,\"closed\":%b,\"blocks\":%s}",
            call(index, "getDataObjectLength"), call(index, "getDataBlockHeaderLength"), call(index, "getEntryCount"),
            ledger.getLastEntryId(), ledger.getLength(), ledger.isClosed(), blocks);
    }

    private static Object call(Object on, String name) throws Exception {
        Method method = on.getClass().getMethod(name);
        method.setAccessible(true);
        return method.invoke(on);
    }

    private static Object call(Object on, String name, Class<?> kind, Object argument) throws Exception {
        Method method = on.getClass().getMethod(name, kind);
        method.setAccessible(true);
        return method.invoke(on, argument);
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ").replace("\t", " ") + '"';
    }

    private static void say(PrintStream answers, String line) {
        answers.println(line);
        answers.flush();
    }
}
