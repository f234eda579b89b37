package offloader.pulsar;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloaderFactory;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/** What the broker loads: makes an offloader for its default, and for each namespace with a policy of its own. */
public final class PluginFactory implements LedgerOffloaderFactory<PluginOffloader> {
    @Override
    public boolean isDriverSupported(String driver) {
        return PluginOffloader.DRIVER.equalsIgnoreCase(driver);
    }

    @Override
    public PluginOffloader create(OffloadPoliciesImpl policies, Map<String, String> metadata, OrderedScheduler scheduler)
            throws IOException {
        return create(policies, metadata, scheduler, null);
    }

    @Override
    public PluginOffloader create(OffloadPoliciesImpl policies, Map<String, String> metadata, OrderedScheduler scheduler,
            LedgerOffloaderStats statistics) throws IOException {
        String folder = policies.getOffloadersDirectory();
        Settings settings = Settings.load(Path.of(folder == null || folder.isEmpty() ? "./offloaders" : folder),
                fromBroker(policies));
        PluginOffloader made = new PluginOffloader(policies, settings, statistics);
        Shared.LOG.info("Offloader plugin: endpoints {}, memory {} bytes, settings of {}", settings.endpoints(),
                settings.memory(), settings.from());
        return made;
    }

    private static Map<String, String> fromBroker(OffloadPoliciesImpl policies) {
        Map<String, String> found = new TreeMap<>();
        String endpoint = policies.getManagedLedgerOffloadServiceEndpoint();
        if (endpoint != null && !endpoint.isBlank()) {
            found.put("endpoints", endpoint);
        }
        Map<String, String> extra = policies.getManagedLedgerExtraConfigurations();
        if (extra != null) {
            extra.forEach((name, value) -> found.put(Settings.keyOf(name), value));
        }
        return found;
    }
}
