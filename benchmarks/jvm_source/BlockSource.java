package offloader.trial;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.zip.CRC32C;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A trial: Spark reads uncompressed blocks in the JVM. What to read was planned in Python and lies in a file.
 *
 * <p>Each line of that file is a partition: {@code stream}, then three fields for each run of whole blocks, separated by
 * tabs: the place of the data object (a path, or a signed URL), offset and length in bytes.
 */
public final class BlockSource implements TableProvider {
    private static final StructType SCHEMA = StructType.fromDDL("stream STRING NOT NULL, ledger_id BIGINT NOT NULL,"
            + " entry_id BIGINT NOT NULL, publish_time TIMESTAMP, payload BINARY NOT NULL");
    private static final int HEADER_BYTES = 128;
    private static final int ENTRY_HEADER_BYTES = 12;
    private static final int MARKER_BYTES = 4;
    private static final int TABLE_HEADER_BYTES = 16;
    private static final int FETCH_BYTES = 4 << 20;
    private static final Duration TIMEOUT = Duration.ofSeconds(60);

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return SCHEMA;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new BlockTable(properties.get("plan"));
    }

    private record BlockTable(String plan) implements Table, SupportsRead {
        @Override
        public String name() {
            return "blocks";
        }

        @Override
        @SuppressWarnings("deprecation")
        public StructType schema() {
            return SCHEMA;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Planned(plan);
        }
    }

    /** The scan: which columns are wanted, and the partitions of the plan. */
    private static final class Planned implements ScanBuilder, SupportsPushDownRequiredColumns, Scan, Batch {
        private final String plan;
        private StructType wanted = SCHEMA;

        Planned(String plan) {
            this.plan = plan;
        }

        @Override
        public void pruneColumns(StructType required) {
            wanted = required;
        }

        @Override
        public Scan build() {
            return this;
        }

        @Override
        public StructType readSchema() {
            return wanted;
        }

        @Override
        public Batch toBatch() {
            return this;
        }

        @Override
        public InputPartition[] planInputPartitions() {
            try {
                return Files.readAllLines(Path.of(plan)).stream().map(Part::of).toArray(InputPartition[]::new);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new Factory(wanted);
        }
    }

    private record Run(String place, long offset, long length) implements Serializable {
    }

    private record Part(String stream, List<Run> runs) implements InputPartition {
        static Part of(String line) {
            String[] fields = line.split("\t");
            List<Run> runs = new ArrayList<>();
            for (int at = 1; at < fields.length; at += 3) {
                runs.add(new Run(fields[at], Long.parseLong(fields[at + 1]), Long.parseLong(fields[at + 2])));
            }
            return new Part(fields[0], runs);
        }
    }

    private record Factory(StructType wanted) implements PartitionReaderFactory {
        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            throw new UnsupportedOperationException("batches only");
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            return new Reader((Part) partition, wanted);
        }
    }

    /** Gives a batch for each block; the next bytes are on their way meanwhile. */
    private static final class Reader implements PartitionReader<ColumnarBatch> {
        private static final HttpClient HTTP = HttpClient.newBuilder().connectTimeout(TIMEOUT).build();

        private final Block block;
        private final ColumnVector[] columns;
        private final List<Run> chunks = new ArrayList<>();
        private int next;
        private CompletableFuture<byte[]> coming;
        private byte[] held = new byte[0];
        private int at;
        private ColumnarBatch batch;

        Reader(Part part, StructType wanted) {
            block = new Block(UTF8String.fromString(part.stream()));
            columns = new ColumnVector[wanted.length()];
            for (int number = 0; number < columns.length; number++) {
                columns[number] = new Column(block, wanted.apply(number));
            }
            for (Run run : part.runs()) {
                for (long from = 0; from < run.length(); from += FETCH_BYTES) {
                    long length = Math.min(FETCH_BYTES, run.length() - from);
                    chunks.add(new Run(run.place(), run.offset() + from, length));
                }
            }
            ask();
        }

        private void ask() {
            coming = next < chunks.size() ? fetched(chunks.get(next++)) : null;
        }

        private static CompletableFuture<byte[]> fetched(Run run) {
            if (!run.place().startsWith("http")) {
                return CompletableFuture.completedFuture(readFile(run));
            }
            HttpRequest request = HttpRequest.newBuilder(URI.create(run.place())).timeout(TIMEOUT)
                    .header("Range", "bytes=" + run.offset() + "-" + (run.offset() + run.length() - 1)).build();
            return HTTP.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()).thenApply(answer -> {
                if (answer.statusCode() != 206) {
                    throw new IllegalStateException("the store answered " + answer.statusCode());
                }
                return answer.body();
            });
        }

        private static byte[] readFile(Run run) {
            try (FileChannel file = FileChannel.open(Path.of(run.place()), StandardOpenOption.READ)) {
                ByteBuffer room = ByteBuffer.allocate((int) run.length());
                while (room.hasRemaining()) {
                    if (file.read(room, run.offset() + room.position()) < 0) {
                        throw new IllegalStateException(run.place() + " is too short");
                    }
                }
                return room.array();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        /** Makes {@code count} bytes from {@code at} on available; false at the end of the partition. */
        private boolean hold(int count) {
            while (held.length - at < count) {
                if (coming == null) {
                    return false;
                }
                byte[] more = coming.join();
                ask();
                byte[] joined = new byte[held.length - at + more.length];
                System.arraycopy(held, at, joined, 0, held.length - at);
                System.arraycopy(more, 0, joined, held.length - at, more.length);
                held = joined;
                at = 0;
            }
            return true;
        }

        @Override
        public boolean next() {
            if (!hold(HEADER_BYTES)) {
                return false;
            }
            int length = (int) ByteBuffer.wrap(held).getLong(at + 12);
            if (!hold(length)) {
                throw new IllegalStateException("the last block isn't whole");
            }
            block.decode(held, at);
            at += length;
            batch = new ColumnarBatch(columns, block.entries);
            return true;
        }

        @Override
        public ColumnarBatch get() {
            return batch;
        }

        @Override
        public void close() {
        }
    }

    /** A decoded block: positions of the payloads in its bytes. */
    private static final class Block {
        final UTF8String stream;
        byte[] data;
        int entries;
        long ledger;
        long first;
        int[] begins = new int[0];
        long[] timesUs = new long[0];

        Block(UTF8String stream) {
            this.stream = stream;
        }

        void decode(byte[] bytes, int at) {
            ByteBuffer view = ByteBuffer.wrap(bytes);
            check(bytes, at, 124, view.getInt(at + 124), "header");
            if (view.getInt(at + 36) != 0x4f46464c || bytes[at + 41] != 0) {
                throw new IllegalStateException("a block that this trial doesn't read");
            }
            data = bytes;
            first = view.getLong(at + 20);
            ledger = view.getLong(at + 28);
            entries = view.getInt(at + 44);
            int payload = view.getInt(at + 56);
            check(bytes, at + HEADER_BYTES, payload, view.getInt(at + 64), "payload");
            int table = at + HEADER_BYTES + payload + MARKER_BYTES;
            check(bytes, table, view.getInt(at + 68), view.getInt(at + 72), "entry table");
            if (begins.length <= entries) {
                begins = new int[entries + 1];
                timesUs = new long[entries];
            }
            int lengthBytes = bytes[table];
            int timeBytes = bytes[table + 1];
            int least = view.getInt(table + 4);
            long earliest = view.getLong(table + 8);
            int lengths = table + TABLE_HEADER_BYTES;
            int times = lengths + entries * lengthBytes;
            int place = at + HEADER_BYTES + ENTRY_HEADER_BYTES;
            for (int number = 0; number < entries; number++) {
                begins[number] = place;
                place += least + (int) unsigned(view, lengths + number * lengthBytes, lengthBytes) + ENTRY_HEADER_BYTES;
                timesUs[number] = 1000 * (earliest + unsigned(view, times + number * timeBytes, timeBytes));
            }
            begins[entries] = place;
        }

        private static long unsigned(ByteBuffer view, int at, int bytes) {
            return switch (bytes) {
                case 0 -> 0;
                case 1 -> view.get(at) & 0xff;
                case 2 -> view.getShort(at) & 0xffff;
                case 4 -> view.getInt(at) & 0xffffffffL;
                default -> view.getLong(at);
            };
        }

        private static void check(byte[] bytes, int at, int length, int expected, String what) {
            CRC32C crc = new CRC32C();
            crc.update(bytes, at, length);
            if ((int) crc.getValue() != expected) {
                throw new IllegalStateException("the checksum of a block's " + what + " is wrong");
            }
        }
    }

    /** One column of the block that was decoded last. */
    private static final class Column extends ColumnVector {
        private final Block block;
        private final String name;

        Column(Block block, StructField field) {
            super(field.dataType());
            this.block = block;
            this.name = field.name();
        }

        @Override
        public long getLong(int row) {
            return switch (name) {
                case "ledger_id" -> block.ledger;
                case "entry_id" -> block.first + row;
                default -> block.timesUs[row];
            };
        }

        @Override
        public byte[] getBinary(int row) {
            int length = block.begins[row + 1] - block.begins[row] - ENTRY_HEADER_BYTES;
            byte[] found = new byte[length];
            System.arraycopy(block.data, block.begins[row], found, 0, length);
            return found;
        }

        @Override
        public UTF8String getUTF8String(int row) {
            return block.stream;
        }

        @Override
        public boolean hasNull() {
            return name.equals("publish_time");
        }

        @Override
        public int numNulls() {
            return 0;
        }

        @Override
        public boolean isNullAt(int row) {
            return hasNull() && block.timesUs[row] == -1000;
        }

        @Override
        public void close() {
        }

        @Override
        public boolean getBoolean(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public byte getByte(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public short getShort(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public int getInt(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public float getFloat(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public double getDouble(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ColumnarArray getArray(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ColumnarMap getMap(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Decimal getDecimal(int row, int precision, int scale) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ColumnVector getChild(int number) {
            throw new UnsupportedOperationException();
        }
    }
}
