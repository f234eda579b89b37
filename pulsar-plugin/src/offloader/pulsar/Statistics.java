package offloader.pulsar;

import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.pulsar.common.naming.TopicName;

/** The broker's own metrics of offloading, for one topic; without them nothing is recorded. */
record Statistics(LedgerOffloaderStats broker, String topic) {
    static Statistics of(LedgerOffloaderStats broker, String stream) {
        try {
            return new Statistics(broker, broker == null ? "" : TopicName.fromPersistenceNamingEncoding(stream));
        } catch (RuntimeException notATopic) {
            return new Statistics(null, "");
        }
    }

    void indexLatency(long nanos) {
        if (broker != null) {
            broker.recordReadOffloadIndexLatency(topic, nanos, TimeUnit.NANOSECONDS);
        }
    }

    void dataLatency(long nanos) {
        if (broker != null) {
            broker.recordReadOffloadDataLatency(topic, nanos, TimeUnit.NANOSECONDS);
        }
    }

    void readBytes(long bytes) {
        if (broker != null) {
            broker.recordReadOffloadBytes(topic, bytes);
        }
    }

    void readError() {
        if (broker != null) {
            broker.recordReadOffloadError(topic);
        }
    }

    void sent(long bytes) {
        if (broker != null) {
            broker.recordOffloadBytes(topic, bytes);
        }
    }

    void offloadError() {
        if (broker != null) {
            broker.recordOffloadError(topic);
        }
    }

    void deleted(boolean isDone) {
        if (broker != null) {
            broker.recordDeleteOffloadOps(topic, isDone);
        }
    }
}
