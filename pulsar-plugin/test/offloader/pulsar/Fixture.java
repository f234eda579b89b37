package offloader.pulsar;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/** What several tests need: an offloader of a fake sidecar, and the broker's copy of a ledger. */
final class Fixture {
    static final UUID UUID_ = new UUID(1, 2);
    private static final AtomicInteger NUMBER = new AtomicInteger();

    private Fixture() {}

    static PluginOffloader offloader(Object... pairs) throws IOException {
        Map<String, String> values = new TreeMap<>(Map.of("request_timeout", "5s", "memory", "64MiB"));
        values.put("source", "test-" + NUMBER.incrementAndGet()); // a cache of its own
        for (int i = 0; i < pairs.length; i += 2) {
            values.put((String) pairs[i], String.valueOf(pairs[i + 1]));
        }
        return new PluginOffloader(new OffloadPoliciesImpl(), Settings.parse(values, "the test"), null);
    }

    static Map<String, String> metadata() {
        return Map.of("ManagedLedgerName", FakeSidecar.STREAM);
    }

    static ReadHandle open(PluginOffloader offloader) throws Exception {
        return Checks.get(offloader.readOffloaded(FakeSidecar.LEDGER, UUID_, metadata()));
    }

    static void checkRead(ReadHandle handle, FakeSidecar sidecar, long first, long last) throws Exception {
        try (LedgerEntries entries = Checks.get(handle.readAsync(first, last))) {
            long next = first;
            for (LedgerEntry entry : entries) {
                Checks.equal(entry.getEntryId(), next);
                Checks.equal(entry.getLedgerId(), FakeSidecar.LEDGER);
                Checks.equal(entry.getEntryBuffer().refCnt(), 1);
                Checks.equal(entry.getEntryBytes(), sidecar.entries.get((int) next++));
            }
            Checks.equal(next, last + 1);
        }
    }

    /** A closed ledger of BookKeeper; {@code gap} is an entry that it doesn't give. */
    record Bookie(List<byte[]> entries, long gap) implements ReadHandle {
        @Override
        public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
            List<LedgerEntry> found = new ArrayList<>();
            for (long entry = first; entry <= last; entry++) {
                if (entry == gap) {
                    return CompletableFuture.failedFuture(new BKException.BKReadException());
                }
                byte[] bytes = entries.get((int) entry);
                found.add(LedgerEntryImpl.create(FakeSidecar.LEDGER, entry, bytes.length,
                        io.netty.buffer.Unpooled.wrappedBuffer(Arrays.copyOf(bytes, bytes.length))));
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
        public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(long a, long b, boolean c) {
            return CompletableFuture.failedFuture(new UnsupportedOperationException());
        }

        @Override
        public long getLastAddConfirmed() {
            return entries.size() - 1;
        }

        @Override
        public long getLength() {
            return entries.stream().mapToLong(each -> each.length).sum();
        }

        @Override
        public boolean isClosed() {
            return true;
        }

        @Override
        public long getId() {
            return FakeSidecar.LEDGER;
        }

        @Override
        public LedgerMetadata getLedgerMetadata() {
            return ColdLedger.metadata(FakeSidecar.LEDGER, getLastAddConfirmed(), getLength());
        }

        @Override
        public CompletableFuture<Void> closeAsync() {
            return CompletableFuture.completedFuture(null);
        }
    }
}
