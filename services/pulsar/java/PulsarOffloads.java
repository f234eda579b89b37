import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloader.OffloadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloader.OffloadHandle.OfferEntryResult;
import org.apache.bookkeeper.mledger.LedgerOffloaderFactory;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.impl.EntryImpl;
import org.apache.bookkeeper.mledger.offload.OffloaderUtils;
import org.apache.bookkeeper.mledger.offload.Offloaders;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedLedgerInfo.LedgerInfo;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.OffloadContext;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.OffloadSegment;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/**
 * Pulsar's offloader for S3 without a broker: it reads segments and writes them.
 *
 * <p>Arguments: FOLDER OFFLOADERS [key=value ...]. One line of JSON on standard output says that it is ready; every line on standard input is a
 * question that gets one line of JSON. The end of standard input ends it. Logs go to standard error.
 *
 * <ul>
 *   <li>{@code read LEDGER UUID[,UUID...] FIRST-LAST...}: the entries that the reader of V2 segments returns for each range, in its order
 *   <li>{@code placed LEDGER UUID[,UUID...] FIRST-LAST...}: the same, but the reader's streams are put at the ledger's first block before
 *   <li>{@code segment UUID FILE [FOLDER]}: a V2 segment of the entries in a file (ledger, entry, length, bytes; big-endian), by streaming offload;
 *       with a folder into memory instead of the object store, and from there as files: both objects, and their user metadata as properties
 * </ul>
 */
public final class PulsarOffloads {
    private static final long TIMEOUT_S = 50;

    private final LedgerOffloaderFactory<?> factory;
    private final OffloadPoliciesImpl policies;
    private final OrderedScheduler scheduler = OrderedScheduler.newSchedulerBuilder().numThreads(2).name("offloads").build();
    private final LedgerOffloader reader;

    private PulsarOffloads(LedgerOffloaderFactory<?> factory, OffloadPoliciesImpl policies) throws Exception {
        this.factory = factory;
        this.policies = policies;
        this.reader = offloader(false);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Path nar = Files.createDirectories(Path.of(arguments[0]).toAbsolutePath().resolve("nar"));
        Properties properties = new Properties();
        for (int i = 2; i < arguments.length; i++) {
            int sign = arguments[i].indexOf('=');
            properties.setProperty(arguments[i].substring(0, sign), arguments[i].substring(sign + 1));
        }
        try {
            Offloaders offloaders = OffloaderUtils.searchForOffloaders(arguments[1], nar.toString());
            OffloadPoliciesImpl policies = OffloadPoliciesImpl.create(properties);
            LedgerOffloaderFactory<?> factory = offloaders.getOffloaderFactory(policies.getManagedLedgerOffloadDriver());
            // the in-memory store is looked up among what this thread's class loader offers
            Thread.currentThread().setContextClassLoader(factory.getClass().getClassLoader());
            PulsarOffloads offloads = new PulsarOffloads(factory, policies);
            say(answers, "{}");
            offloads.answerAll(answers);
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1); // threads that were started already would go on
        }
        Runtime.getRuntime().halt(0);
    }

    /** One of these streams one segment only. */
    private LedgerOffloader offloader(boolean inMemory) throws Exception {
        Properties given = policies.toProperties();
        if (inMemory) {
            given.setProperty("managedLedgerOffloadDriver", "transient");
        }
        return factory.create(OffloadPoliciesImpl.create(given), Map.of(), scheduler);
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
            case "read":
            case "placed":
                return read(Long.parseLong(words[1]), words[2].split(","), words);
            case "segment":
                return segment(UUID.fromString(words[1]), Path.of(words[2]), words.length > 3 ? Path.of(words[3]) : null);
            default:
                throw new IllegalArgumentException("no such question: " + words[0]);
        }
    }

    private String read(long ledgerId, String[] uuids, String[] words) throws Exception {
        OffloadContext.Builder context = OffloadContext.newBuilder();
        for (String uuid : uuids) {
            UUID each = UUID.fromString(uuid);
            context.addOffloadSegment(OffloadSegment.newBuilder().setComplete(true).setAssignedTimestamp(0)
                .setUidMsb(each.getMostSignificantBits()).setUidLsb(each.getLeastSignificantBits()));
        }
        StringJoiner ranges = new StringJoiner(",", "[", "]");
        Map<String, String> where = reader.getOffloadDriverMetadata();
        try (ReadHandle ledger = reader.readOffloaded(ledgerId, context.build(), where).get(TIMEOUT_S, TimeUnit.SECONDS)) {
            if (words[0].equals("placed")) {
                place(ledger);
            }
            for (int i = 3; i < words.length; i++) {
                String[] range = words[i].split("-");
                try (LedgerEntries entries =
                        ledger.readAsync(Long.parseLong(range[0]), Long.parseLong(range[1])).get(TIMEOUT_S, TimeUnit.SECONDS)) {
                    ranges.add(listed(entries));
                }
            }
            return String.format("{\"last\":%d,\"length\":%d,\"closed\":%b,\"ranges\":%s}",
                ledger.getLastAddConfirmed(), ledger.getLength(), ledger.isClosed(), ranges);
        }
    }

    /** A fresh reader takes the first block's header for an entry with number 128: here it begins where entries do. */
    private static void place(ReadHandle ledger) throws Exception {
        List<?> indices = (List<?>) field(ledger, "indices");
        List<?> streams = (List<?>) field(ledger, "inputStreams");
        for (int i = 0; i < indices.size(); i++) {
            long first = (Long) call(indices.get(i), "getStartEntryId", ledger.getId());
            Object block = call(indices.get(i), "getIndexEntryForEntry", ledger.getId(), first);
            call(streams.get(i), "seek", call(block, "getDataOffset"));
        }
    }

    private static Object field(Object of, String name) throws Exception {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(of);
    }

    private static Object call(Object on, String name, Object... arguments) throws Exception {
        Class<?>[] kinds = new Class<?>[arguments.length];
        for (int i = 0; i < kinds.length; i++) {
            kinds[i] = arguments[i] instanceof Long ? long.class : arguments[i].getClass();
        }
        Method method = on.getClass().getMethod(name, kinds);
        method.setAccessible(true);
        return method.invoke(on, arguments);
    }

    private static String listed(LedgerEntries entries) {
        StringJoiner found = new StringJoiner(",", "[", "]");
        for (Iterator<LedgerEntry> each = entries.iterator(); each.hasNext();) {
            LedgerEntry entry = each.next();
            found.add("[" + entry.getEntryId() + ",\"" + Base64.getEncoder().encodeToString(entry.getEntryBytes()) + "\"]");
        }
        return found.toString();
    }

    private String segment(UUID uuid, Path file, Path folder) throws Exception {
        LedgerOffloader offloader = offloader(folder != null);
        OffloadHandle segment = null;
        try (DataInputStream entries = new DataInputStream(Files.newInputStream(file))) {
            for (EntryImpl entry = next(entries); entry != null; entry = next(entries)) {
                if (segment == null) {
                    segment = offloader.streamingOffload(openLedgers(), uuid, entry.getLedgerId(), entry.getEntryId(),
                        offloader.getOffloadDriverMetadata()).get(TIMEOUT_S, TimeUnit.SECONDS);
                }
                OfferEntryResult result = segment.offerEntry(entry);
                entry.release();
                if (result != OfferEntryResult.SUCCESS) {
                    throw new IllegalStateException("offering an entry: " + result);
                }
            }
            segment.close();
            LedgerOffloader.OffloadResult done = segment.getOffloadResultAsync().get(TIMEOUT_S, TimeUnit.SECONDS);
            if (folder != null) {
                save(field(offloader, "blobStore"), uuid.toString(), folder);
                save(field(offloader, "blobStore"), uuid + "-index", folder);
            }
            return String.format("[[%d,%d],[%d,%d]]", done.beginLedger, done.beginEntry, done.endLedger, done.endEntry);
        } finally {
            offloader.close();
        }
    }

    private void save(Object blobs, String key, Path folder) throws Exception {
        Object blob = call(blobs, "getBlob", policies.getManagedLedgerOffloadBucket(), key);
        try (InputStream body = (InputStream) call(call(blob, "getPayload"), "openStream")) {
            Files.copy(body, folder.resolve(key));
        }
        Properties metadata = new Properties();
        metadata.putAll((Map<?, ?>) call(call(blob, "getMetadata"), "getUserMetadata"));
        try (OutputStream out = Files.newOutputStream(folder.resolve(key + ".properties"))) {
            metadata.store(out, null);
        }
    }

    private static EntryImpl next(DataInputStream from) throws Exception {
        long ledgerId;
        try {
            ledgerId = from.readLong();
        } catch (EOFException end) {
            return null;
        }
        long entryId = from.readLong();
        byte[] payload = new byte[from.readInt()];
        from.readFully(payload);
        return EntryImpl.create(ledgerId, entryId, payload);
    }

    /** What a streaming offload asks a topic: its name, and what is known of a ledger, which is open here. */
    private static ManagedLedger openLedgers() {
        return (ManagedLedger) Proxy.newProxyInstance(
            PulsarOffloads.class.getClassLoader(), new Class<?>[] {ManagedLedger.class}, (proxy, method, arguments) -> {
                switch (method.getName()) {
                    case "getName":
                        return "public/default/persistent/streamed";
                    case "getLedgerInfo":
                        return CompletableFuture.completedFuture(
                            LedgerInfo.newBuilder().setLedgerId((Long) arguments[0]).build());
                    default:
                        throw new UnsupportedOperationException(method.getName());
                }
            });
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ").replace("\t", " ") + '"';
    }

    private static void say(PrintStream answers, String line) {
        answers.println(line);
        answers.flush();
    }
}
