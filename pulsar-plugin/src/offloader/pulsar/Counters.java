package offloader.pulsar;

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;
import javax.management.Attribute;
import javax.management.AttributeList;
import javax.management.AttributeNotFoundException;
import javax.management.DynamicMBean;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanInfo;
import javax.management.MBeanServer;
import javax.management.ObjectName;

/** What the plugin has done since the broker's start, as the MBean {@code offloader:type=Plugin} and a log line. */
final class Counters implements DynamicMBean {
    /** Names of the attributes. */
    enum Name {
        PresignedRequests, PresignedBytes, PresignedFailures, CorruptBlocks,
        EntriesRequests, EntriesBytes, EntriesFailures,
        CacheHits, CacheMisses, CacheBytes,
        Reads, ReadEntries, ReadBytes, ReadFailures,
        Plans, Offloads, OffloadFailures, MissingEntries, DeleteHints
    }

    private final Map<Name, LongAdder> values = new EnumMap<>(Name.class);
    private Map<Name, Long> logged = Map.of();

    Counters() {
        for (Name name : Name.values()) {
            values.put(name, new LongAdder());
        }
    }

    void add(Name name, long amount) {
        values.get(name).add(amount);
    }

    long get(Name name) {
        return values.get(name).sum();
    }

    /** Logs the totals when something was read or offloaded since the last line. */
    synchronized void logChanges() {
        Map<Name, Long> now = new EnumMap<>(Name.class);
        values.forEach((name, value) -> now.put(name, value.sum()));
        Map<Name, Long> moved = new EnumMap<>(now);
        moved.remove(Name.CacheBytes); // eviction alone is nothing to report
        if (!moved.equals(logged) && moved.values().stream().anyMatch(value -> value != 0)) {
            Shared.LOG.info("plugin.totals {}", now.entrySet().stream().filter(each -> each.getValue() != 0)
                    .map(each -> each.getKey() + "=" + each.getValue()).collect(Collectors.joining(" ")));
        }
        logged = moved;
    }

    /** Registers the MBean; a second copy of this class in one broker gets a name of its own. */
    void register() {
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        String name = "offloader:type=Plugin";
        try {
            try {
                server.registerMBean(this, new ObjectName(name));
            } catch (InstanceAlreadyExistsException another) {
                String own = name + ",instance=" + Integer.toHexString(System.identityHashCode(this));
                server.registerMBean(this, new ObjectName(own));
            }
        } catch (JMException failed) {
            Shared.LOG.warn("The counters of the offloader plugin aren't in JMX: {}", failed.toString());
        }
    }

    @Override
    public Object getAttribute(String attribute) throws AttributeNotFoundException {
        try {
            return get(Name.valueOf(attribute));
        } catch (IllegalArgumentException unknown) {
            throw new AttributeNotFoundException(attribute);
        }
    }

    @Override
    public AttributeList getAttributes(String[] attributes) {
        AttributeList found = new AttributeList();
        for (String attribute : attributes) {
            try {
                found.add(new Attribute(attribute, getAttribute(attribute)));
            } catch (AttributeNotFoundException unknown) {
                continue; // JMX wants those that exist
            }
        }
        return found;
    }

    @Override
    public void setAttribute(Attribute attribute) throws AttributeNotFoundException {
        throw new AttributeNotFoundException(attribute.getName() + " can't be set");
    }

    @Override
    public AttributeList setAttributes(AttributeList attributes) {
        return new AttributeList();
    }

    @Override
    public Object invoke(String action, Object[] parameters, String[] signature) {
        throw new UnsupportedOperationException(action);
    }

    @Override
    public MBeanInfo getMBeanInfo() {
        MBeanAttributeInfo[] attributes = Arrays.stream(Name.values())
                .map(name -> new MBeanAttributeInfo(name.name(), "long", name.name(), true, false, false))
                .toArray(MBeanAttributeInfo[]::new);
        return new MBeanInfo(getClass().getName(), "Totals of the offloader plugin", attributes, null, null, null);
    }
}
