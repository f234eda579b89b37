import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloaderStatsDisable;
import org.apache.bookkeeper.mledger.offload.OffloaderUtils;
import org.apache.bookkeeper.mledger.offload.Offloaders;
import org.apache.bookkeeper.net.BookieId;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/**
 * Pulsar's own offloader and its reader without a broker: a closed ledger of equal entries that are in memory already.
 *
 * <p>Arguments: OFFLOADERS FOLDER ENTRIES ENTRY_BYTES [key=value ...]: where the offloader's archive is and may be unpacked, a file of
 * entries, how long each is, and Pulsar's settings of an offload. Keys of the store come from the environment. A line on standard
 * output says that it is ready, then every line on standard input is a question that gets one line of JSON; the end of standard input
 * ends it.
 *
 * <ul>
 *   <li>{@code prepare COUNT}: a new ledger of the first entries
 *   <li>{@code offload}: writes it; seconds
 *   <li>{@code read}: opens it and reads all entries, as a broker does that sends them on; seconds, entries, bytes
 *   <li>{@code single ENTRY...}: one entry after the other from an open ledger, compared; milliseconds of each but the first
 * </ul>
 */
public final class OffloaderPeer {
    private static final int READ_ENTRIES = 1000;

    private final LedgerOffloader offloader;
    private final Ledger entries;
    private Ledger ledger;
    private UUID uuid;
    private long ledgers;

    private OffloaderPeer(LedgerOffloader offloader, Ledger entries) {
        this.offloader = offloader;
        this.entries = entries;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Properties properties = new Properties();
        for (int i = 4; i < arguments.length; i++) {
            int sign = arguments[i].indexOf('=');
            properties.setProperty(arguments[i].substring(0, sign), arguments[i].substring(sign + 1));
        }
        OffloadPoliciesImpl policies = OffloadPoliciesImpl.create(properties);
        Path folder = Files.createDirectories(Path.of(arguments[1]));
        OrderedScheduler scheduler = OrderedScheduler.newSchedulerBuilder()
            .numThreads(policies.getManagedLedgerOffloadMaxThreads()).name("offloader").build();
        Offloaders found = OffloaderUtils.searchForOffloaders(arguments[0], folder.toString());
        LedgerOffloader offloader = found.getOffloaderFactory(policies.getManagedLedgerOffloadDriver())
            .create(policies, Map.of(), scheduler, LedgerOffloaderStatsDisable.INSTANCE);
        OffloaderPeer peer = new OffloaderPeer(offloader, Ledger.of(Path.of(arguments[2]), Integer.parseInt(arguments[3])));
        answers.println("{}");
        answers.flush();
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String answer;
            try {
                answer = peer.answer(line.trim().split(" "));
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer = "{\"error\":\"" + failure.toString().replace('"', '\'').replace('\\', '/').replace('\n', ' ') + "\"}";
            }
            answers.println(answer);
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "prepare":
                ledger = entries.first(++ledgers, Integer.parseInt(words[1]));
                uuid = UUID.randomUUID();
                return "{}";
            case "offload":
                long begun = System.nanoTime();
                offloader.offload(ledger, uuid, Map.of("ManagedLedgerName", "public/default/persistent/peers")).get();
                return "{\"seconds\":" + (System.nanoTime() - begun) / 1e9 + "}";
            case "read":
                return read();
            case "single":
                return single(words);
            default:
                throw new IllegalArgumentException("no such question: " + words[0]);
        }
    }

    private ReadHandle open() throws Exception {
        return offloader.readOffloaded(ledger.id, uuid, offloader.getOffloadDriverMetadata()).get();
    }

    private String read() throws Exception {
        long begun = System.nanoTime();
        long count = 0;
        long bytes = 0;
        try (ReadHandle cold = open()) {
            long last = cold.getLastAddConfirmed();
            while (count <= last) {
                try (LedgerEntries some = cold.read(count, Math.min(count + READ_ENTRIES - 1, last))) {
                    for (LedgerEntry entry : some) {
                        count++;
                        bytes += entry.getEntryBuffer().readableBytes();
                    }
                }
            }
        }
        return String.format("{\"seconds\":%s,\"entries\":%d,\"bytes\":%d}", (System.nanoTime() - begun) / 1e9, count, bytes);
    }

    private String single(String[] words) throws Exception {
        StringJoiner found = new StringJoiner(",", "[", "]");
        try (ReadHandle cold = open()) {
            for (int i = 1; i < words.length; i++) {
                long number = Long.parseLong(words[i]);
                long begun = System.nanoTime();
                try (LedgerEntries one = cold.read(number, number)) {
                    ByteBuf entry = one.getEntry(number).getEntryBuffer();
                    double ms = (System.nanoTime() - begun) / 1e6;
                    if (i > 1) {
                        found.add(Double.toString(ms));
                    }
                    if (!entry.equals(ledger.entry(number))) {
                        throw new IllegalStateException("entry " + number + " isn't what was offloaded");
                    }
                }
            }
        }
        return "{\"ms\":" + found + "}";
    }

    /** A closed ledger whose entries lie one behind the other in a mapped file; reading one copies nothing. */
    private static final class Ledger implements ReadHandle {
        private final long id;
        private final MappedByteBuffer bytes;
        private final int entryBytes;
        private final int count;

        private Ledger(long id, MappedByteBuffer bytes, int entryBytes, int count) {
            this.id = id;
            this.bytes = bytes;
            this.entryBytes = entryBytes;
            this.count = count;
        }

        static Ledger of(Path file, int entryBytes) throws Exception {
            try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
                MappedByteBuffer bytes = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
                return new Ledger(0, bytes, entryBytes, (int) (channel.size() / entryBytes));
            }
        }

        Ledger first(long newId, int newCount) {
            return new Ledger(newId, bytes, entryBytes, Math.min(newCount, count));
        }

        ByteBuf entry(long number) {
            return Unpooled.wrappedBuffer(bytes.slice((int) number * entryBytes, entryBytes));
        }

        @Override
        public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
            List<LedgerEntry> found = new ArrayList<>();
            for (long number = first; number <= last; number++) {
                found.add(LedgerEntryImpl.create(id, number, (number + 1) * entryBytes, entry(number)));
            }
            return CompletableFuture.completedFuture(LedgerEntriesImpl.create(found));
        }

        @Override
        public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
            return readAsync(first, last);
        }

        @Override
        public CompletableFuture<Long> readLastAddConfirmedAsync() {
            return CompletableFuture.completedFuture(getLastAddConfirmed());
        }

        @Override
        public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
            return readLastAddConfirmedAsync();
        }

        @Override
        public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(long entry, long timeoutMs, boolean parallel) {
            return CompletableFuture.failedFuture(new UnsupportedOperationException("the ledger is closed"));
        }

        @Override
        public long getLastAddConfirmed() {
            return count - 1L;
        }

        @Override
        public long getLength() {
            return (long) count * entryBytes;
        }

        @Override
        public boolean isClosed() {
            return true;
        }

        @Override
        public long getId() {
            return id;
        }

        @Override
        public LedgerMetadata getLedgerMetadata() {
            return LedgerMetadataBuilder.create().withId(id).withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
                .withDigestType(DigestType.CRC32C).withPassword(new byte[0]).newEnsembleEntry(0, List.of(BookieId.parse("bookie:3181")))
                .withClosedState().withLastEntryId(getLastAddConfirmed()).withLength(getLength()).withCreationTime(1).build();
        }

        @Override
        public CompletableFuture<Void> closeAsync() {
            return CompletableFuture.completedFuture(null);
        }
    }
}
