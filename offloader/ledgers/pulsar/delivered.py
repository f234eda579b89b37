"""What a broker delivered as columnar batches, cut where ids jump; pure.

Owns that step. Must never put two entries into one batch between which something may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from formats.entries import EntryBatch
from offloader.ledgers.pulsar.consumer import Delivery

__all__ = ["batches_of"]

#: Payload bytes at which a batch ends: what a listener refuses is refused by the batch.
BATCH_BYTES = 1024 * 1024
#: Entries of one batch, so that many small ones stay bounded too.
BATCH_ENTRIES_MAX = 8192


def batches_of(deliveries: Sequence[Delivery]) -> Iterator[EntryBatch]:
    """Consecutive entries of one ledger each, in order.

    Args:
        deliveries: ascending.
    """
    start, size_bytes, count = 0, 0, len(deliveries)
    for index in range(count):
        (ledger_id, entry_id), entry, _, _ = deliveries[index]
        size_bytes += len(entry)
        following = deliveries[index + 1].position if index + 1 < count else None
        if (
            following != (ledger_id, entry_id + 1)
            or size_bytes >= BATCH_BYTES
            or index + 1 - start >= BATCH_ENTRIES_MAX
        ):
            run = deliveries[start : index + 1]
            yield EntryBatch.build(
                ledger_id,
                run[0].position.entry_id,
                [each.entry for each in run],
                [each.publish_time_ms for each in run],
            )
            start, size_bytes = index + 1, 0
