package offloader.pulsar;

import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.fails;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/** Where settings come from, and what is wrong with them. */
final class SettingsTest {
    private static Settings parse(String... pairs) throws IOException {
        Map<String, String> values = new java.util.TreeMap<>(Map.of("endpoints", "http://a:1"));
        for (int i = 0; i < pairs.length; i += 2) {
            values.put(pairs[i], pairs[i + 1]);
        }
        return Settings.parse(values, "here");
    }

    static void testAmountsHaveUnits() throws IOException {
        Settings settings = parse("endpoints", " http://a:1/ , https://b/x/", "request_timeout", "1.5s", "memory",
                "256MiB", "offload_timeout", "2m", "read_ahead", "0");
        equal(settings.endpoints().toString(), "[http://a:1, https://b/x]");
        equal(settings.requestTimeout(), Duration.ofMillis(1_500));
        equal(settings.memory(), 256L << 20);
        equal(settings.offloadTimeout(), Duration.ofMinutes(2));
        equal(settings.readAhead(), 0);
        equal(parse().readAhead(), 4);
    }

    static void testWrongSettingsAreNamed() {
        fails(() -> parse("endpoint", "x"), "here: unknown setting 'endpoint'; known: endpoints, token_file");
        fails(() -> parse("memory", "256"), "here: memory: '256' is not a size like \"256MiB\"");
        fails(() -> parse("memory", "1KiB"), "out of range");
        fails(() -> parse("request_timeout", "10"), "'10' is not a duration like \"30s\"");
        fails(() -> parse("request_timeout", "10MiB"), "is not a duration");
        fails(() -> parse("read_ahead", "many"), "'many' is not a number");
        fails(() -> parse("endpoints", " "), "endpoints: none; hint");
        fails(() -> parse("export_region", "eu-1"), "here: export_region: it needs export_bucket too");
        fails(() -> parse("endpoints", "ftp://a"), "needs http or https");
        Throwable failed = fails(() -> parse("endpoints", "http://me:SECRET@a"), "endpoints");
        Checks.check(!failed.getMessage().contains("SECRET"), failed);
    }

    static void testFileWinsOverTheBrokersConfiguration() throws IOException {
        Path folder = Files.createTempDirectory("settings");
        equal(Settings.load(folder, Map.of("endpoints", "http://broker:1")).endpoints().toString(), "[http://broker:1]");
        Path file = folder.resolve(Settings.FILE_NAME);
        Files.writeString(file, "# a comment\nendpoints = http://file:1\nsource=east\n");
        Settings settings = Settings.load(folder, Map.of("endpoints", "http://broker:1", "read_ahead", "2"));
        equal(settings.endpoints().toString(), "[http://file:1]");
        equal(settings.source(), "east");
        equal(settings.readAhead(), 2);
        equal(settings.from(), file.toString());
        Path named = Files.writeString(folder.resolve("other.properties"), "endpoints=http://named:1\n");
        System.setProperty(Settings.FILE_PROPERTY, named.toString());
        try {
            equal(Settings.load(folder, Map.of()).endpoints().toString(), "[http://named:1]");
            System.setProperty(Settings.FILE_PROPERTY, folder.resolve("none").toString());
            fails(() -> Settings.load(folder, Map.of()), "can't read the settings file", "none", "hint");
        } finally {
            System.clearProperty(Settings.FILE_PROPERTY);
        }
    }

    static void testFactoryTakesTheBrokersKeys() throws IOException {
        PluginFactory factory = new PluginFactory();
        equal(factory.isDriverSupported("offloader"), true);
        equal(factory.isDriverSupported("aws-s3"), false);
        java.util.Properties broker = new java.util.Properties();
        broker.setProperty("managedLedgerOffloadDriver", "offloader");
        broker.setProperty("offloadersDirectory", Files.createTempDirectory("nars").toString());
        broker.setProperty("managedLedgerOffloadServiceEndpoint", "http://sidecar:8080");
        broker.setProperty("managedLedgerOffloadExtraConfigSource", "east");
        broker.setProperty("managedLedgerOffloadExtraConfigread_ahead", "1");
        OffloadPoliciesImpl policies = OffloadPoliciesImpl.create(broker);
        PluginOffloader made = factory.create(policies, Map.of(), null);
        equal(made.getOffloadDriverName(), "offloader");
        equal(made.getOffloadDriverMetadata(), Map.of("offloader.source", "east"));
        equal(made.getOffloadPolicies(), policies);
        broker.setProperty("managedLedgerOffloadExtraConfigExportBucket", "cold");
        broker.setProperty("managedLedgerOffloadExtraConfigExportRegion", "eu-1");
        equal(factory.create(OffloadPoliciesImpl.create(broker), Map.of(), null).getOffloadDriverMetadata(),
                Map.of("offloader.source", "east", "bucket", "cold", "region", "eu-1", "serviceEndpoint", ""));
        broker.setProperty("managedLedgerOffloadExtraConfigEndpint", "x");
        fails(() -> factory.create(OffloadPoliciesImpl.create(broker), Map.of(), null), "unknown setting 'endpint'");
    }
}
