import java.nio.ByteBuffer;
import java.time.OffsetDateTime;
import java.util.Base64;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.types.Types;

/** Prints the rows of a table, and the summaries of its snapshots, as Iceberg's own Java library reads them. */
public final class ReadTable {
    private ReadTable() {}

    /** Arguments: the URL of the SQL catalogue, its name, the warehouse, namespace, table, and a snapshot's id or nothing. */
    public static void main(String[] given) throws Exception {
        try (JdbcCatalog catalog = new JdbcCatalog()) {
            catalog.setConf(new Configuration());
            catalog.initialize(given[1], Map.of("uri", given[0], "warehouse", given[2]));
            Table table = catalog.loadTable(TableIdentifier.of(given[3], given[4]));
            for (Snapshot each : table.snapshots()) {
                System.out.println("snapshot\t" + each.snapshotId() + "\t" + each.operation() + "\t" + text(each.summary()));
            }
            IcebergGenerics.ScanBuilder scan = IcebergGenerics.read(table);
            if (given.length > 5) {
                scan = scan.useSnapshot(Long.parseLong(given[5]));
            }
            StringBuilder line = new StringBuilder();
            try (CloseableIterable<Record> rows = scan.build()) {
                for (Record row : rows) {
                    line.setLength(0);
                    System.out.println(line.append("row\t").append(text(row)));
                }
            }
        }
    }

    /** A value as JSON; bytes in base64, times as milliseconds since 1970. */
    private static String text(Object value) {
        if (value instanceof Record record) {
            StringBuilder found = new StringBuilder("{");
            for (Types.NestedField field : record.struct().fields()) {
                found.append(found.length() > 1 ? "," : "").append(quoted(field.name())).append(':');
                found.append(text(record.getField(field.name())));
            }
            return found.append('}').toString();
        }
        if (value instanceof Map<?, ?> map) {
            StringBuilder found = new StringBuilder("{");
            map.forEach((name, each) -> found.append(found.length() > 1 ? "," : "").append(quoted(name.toString()))
                .append(':').append(text(each)));
            return found.append('}').toString();
        }
        if (value instanceof Iterable<?> list) {
            StringBuilder found = new StringBuilder("[");
            list.forEach(each -> found.append(found.length() > 1 ? "," : "").append(text(each)));
            return found.append(']').toString();
        }
        if (value instanceof ByteBuffer bytes) {
            byte[] copied = new byte[bytes.remaining()];
            bytes.duplicate().get(copied);
            return quoted(Base64.getEncoder().encodeToString(copied));
        }
        if (value instanceof OffsetDateTime time) {
            return Long.toString(time.toInstant().toEpochMilli());
        }
        return value == null || value instanceof Number || value instanceof Boolean
            ? String.valueOf(value)
            : quoted(value.toString());
    }

    private static String quoted(String text) {
        StringBuilder found = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\' || each < ' ' || each > '~') {
                found.append(String.format("\\u%04x", (int) each));
            } else {
                found.append(each);
            }
        }
        return found.append('"').toString();
    }
}
