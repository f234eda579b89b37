package offloader.pulsar;

import java.io.IOException;
import java.io.Reader;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The settings of the plugin.
 *
 * @param endpoints sidecars and read servers, in the order in which they are asked
 * @param tokenFile holds the bearer token; null: none is sent
 * @param caFile certificates that are trusted beside the JDK's own; null: only these
 * @param memory of the cache that all topics of the broker share, in bytes, loads under way included
 * @param readAhead chunks that are loaded before a sequential reader asks for them
 * @param source this cluster's identity, as the sidecar has it; empty: not compared
 * @param export where {@code offloader export v1} writes, in the names in which Pulsar's own offloader records it;
 *     empty: no bucket is recorded with a ledger
 * @param from where the settings were found, for messages
 */
record Settings(
        List<URI> endpoints,
        Path tokenFile,
        Path caFile,
        Duration connectTimeout,
        Duration requestTimeout,
        Duration offloadTimeout,
        long memory,
        int readAhead,
        String source,
        Map<String, String> export,
        String from) {
    static final String FILE_PROPERTY = "offloader.plugin.config";
    static final String FILE_VARIABLE = "OFFLOADER_PLUGIN_CONFIG";
    static final String FILE_NAME = "offloader-pulsar-plugin.properties";
    static final List<String> KEYS = List.of("endpoints", "token_file", "ca_file", "connect_timeout",
            "request_timeout", "offload_timeout", "memory", "read_ahead", "source", "export_bucket",
            "export_region", "export_endpoint");

    private static final Map<String, Long> DURATIONS =
            Map.of("ms", 1L, "s", 1_000L, "m", 60_000L, "h", 3_600_000L, "d", 86_400_000L);
    private static final Map<String, Long> SIZES =
            Map.of("B", 1L, "KiB", 1L << 10, "MiB", 1L << 20, "GiB", 1L << 30, "TiB", 1L << 40);
    private static final Pattern AMOUNT = Pattern.compile("([0-9]{1,12})(?:\\.([0-9]{1,3}))?([a-zA-Z]{1,3})");
    private static final long MEMORY_MIN = 8L << 20;

    /**
     * The settings out of the file, completed by those of the broker's configuration.
     *
     * @param folder of the NAR, where a file is looked for that nothing else names; null: unknown
     * @param broker from the broker's configuration: without what the file wins over
     */
    static Settings load(Path folder, Map<String, String> broker) throws IOException {
        Map<String, String> values = new TreeMap<>(broker);
        Path file = file(folder);
        String from = "the broker's configuration";
        if (file != null) {
            Properties read = new Properties();
            try (Reader reader = Files.newBufferedReader(file)) {
                read.load(reader);
            } catch (IOException | IllegalArgumentException failed) {
                throw new PluginError("can't read the settings file " + file + ": " + failed.getClass().getSimpleName()
                        + "; hint: -D" + FILE_PROPERTY + " or " + FILE_VARIABLE + " names it");
            }
            read.stringPropertyNames().forEach(key -> values.put(key, read.getProperty(key)));
            from = file.toString();
        }
        return parse(values, from);
    }

    private static Path file(Path folder) {
        String named = System.getProperty(FILE_PROPERTY, System.getenv(FILE_VARIABLE));
        if (named != null && !named.isBlank()) {
            return Path.of(named.strip());
        }
        Path beside = folder == null ? null : folder.resolve(FILE_NAME);
        return beside != null && Files.exists(beside) ? beside : null;
    }

    static Settings parse(Map<String, String> values, String from) throws PluginError {
        for (String key : values.keySet()) {
            if (!KEYS.contains(key)) {
                throw new PluginError(from + ": unknown setting '" + key + "'; known: " + String.join(", ", KEYS));
            }
        }
        Reading read = new Reading(values, from);
        return new Settings(
                read.endpoints(),
                read.path("token_file"),
                read.path("ca_file"),
                Duration.ofMillis(read.amount("connect_timeout", "3s", DURATIONS, 1, 600_000)),
                Duration.ofMillis(read.amount("request_timeout", "15s", DURATIONS, 100, 3_600_000)),
                Duration.ofMillis(read.amount("offload_timeout", "5m", DURATIONS, 1_000, 86_400_000)),
                read.amount("memory", defaultMemory(), SIZES, MEMORY_MIN, Long.MAX_VALUE / 4),
                read.number("read_ahead", 4, 64),
                read.text("source"),
                read.export(),
                from);
    }

    /** An eighth of the broker's heap, between 32 and 256 MiB. */
    private static String defaultMemory() {
        long eighth = Runtime.getRuntime().maxMemory() / 8;
        return Math.max(32L << 20, Math.min(256L << 20, eighth)) + "B";
    }

    /** {@code TokenFile} and {@code token_file} are one setting: the broker's own keys are written without "_". */
    static String keyOf(String name) {
        return name.replaceAll("(?<=[a-z0-9])(?=[A-Z])", "_").toLowerCase(Locale.ROOT);
    }

    private record Reading(Map<String, String> values, String from) {
        String text(String key) {
            String value = values.get(key);
            return value == null ? "" : value.strip();
        }

        /** All of them, also the empty ones, as Pulsar's own offloader does; none without a bucket. */
        Map<String, String> export() throws PluginError {
            String bucket = text("export_bucket");
            for (String key : List.of("export_region", "export_endpoint")) {
                if (bucket.isEmpty() && !text(key).isEmpty()) {
                    throw wrong(key, "it needs export_bucket too");
                }
            }
            return bucket.isEmpty() ? Map.of()
                    : Map.of("bucket", bucket, "region", text("export_region"), "serviceEndpoint", text("export_endpoint"));
        }

        Path path(String key) {
            return text(key).isEmpty() ? null : Path.of(text(key));
        }

        PluginError wrong(String key, String why) {
            return new PluginError(from + ": " + key + ": " + why);
        }

        List<URI> endpoints() throws PluginError {
            List<URI> found = new ArrayList<>();
            for (String each : text("endpoints").split(",")) {
                if (!each.isBlank()) {
                    found.add(endpoint(each.strip().replaceAll("/+$", "")));
                }
            }
            if (found.isEmpty()) {
                throw wrong("endpoints", "none; hint: set it to the URL of a sidecar, such as http://host:8080, or"
                        + " managedLedgerOffloadServiceEndpoint in the broker's configuration");
            }
            return List.copyOf(found);
        }

        private URI endpoint(String text) throws PluginError {
            URI found;
            try {
                found = URI.create(text);
            } catch (IllegalArgumentException malformed) {
                throw wrong("endpoints", "not a URL; hint: http://host:8080"); // without the text: it could hold a password
            }
            boolean isHttp = "http".equals(found.getScheme()) || "https".equals(found.getScheme());
            if (!isHttp || found.getHost() == null || found.getRawUserInfo() != null || found.getRawQuery() != null) {
                throw wrong("endpoints", "a URL needs http or https and a host, and neither user nor query");
            }
            return found;
        }

        long amount(String key, String standard, Map<String, Long> units, long min, long max) throws PluginError {
            String text = text(key).isEmpty() ? standard : text(key);
            Matcher found = AMOUNT.matcher(text);
            Long unit = found.matches() ? units.get(found.group(3)) : null;
            if (unit == null) {
                boolean isDuration = units == DURATIONS;
                throw wrong(key, "'" + text + "' is not " + (isDuration
                        ? "a duration like \"30s\" (ms, s, m, h, d)" : "a size like \"256MiB\" (B, KiB, MiB, GiB, TiB)"));
            }
            double value = Double.parseDouble(found.group(1) + "." + (found.group(2) == null ? "0" : found.group(2)));
            double amount = value * unit;
            if (amount < min || amount > max) {
                throw wrong(key, "'" + text + "' is out of range");
            }
            return (long) amount;
        }

        int number(String key, int standard, int max) throws PluginError {
            String text = text(key);
            if (text.isEmpty()) {
                return standard;
            }
            if (!text.matches("[0-9]{1,6}") || Integer.parseInt(text) > max) {
                throw wrong(key, "'" + text + "' is not a number between 0 and " + max);
            }
            return Integer.parseInt(text);
        }
    }
}
