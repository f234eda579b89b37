package org.apache.bookkeeper.mledger;

/**
 * The interface of the same name in Pulsar 3.1 and newer, for Pulsar 3.0, which lacks it.
 *
 * <p>The broker's class loader comes first, so a broker that has its own interface never loads this one.
 */
public interface OffloadedLedgerHandle {
    /** Milliseconds since 1970 of the last read, by which the broker evicts idle handles; -1 keeps them. */
    default long lastAccessTimestamp() {
        return -1;
    }

    /** Reads under way: the broker keeps the handle while there are any. */
    default int getPendingRead() {
        return 0;
    }
}
