"""A ledger's entries out of the cold tier, to be written to it once more, and a digest of what was read.

Owns that reading. Must never answer an entry from anywhere else than the pinned view.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from formats.metadata.messages import PulsarLedger
from formats.segment import Layout
from offloader.errors import Corrupt
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.cold import objects_of
from offloader.read.fetch import Fetcher
from offloader.read.reader import Reader
from offloader.write.segment.by_ledger import READ_BYTES

__all__ = ["ColdLedger", "EntryDigest", "holds", "ledger_info"]


class EntryDigest:
    """Of entries, however they are cut into batches: ids, lengths, publish times and payloads."""

    def __init__(self) -> None:
        self._columns = [blake2b() for _ in range(3)]
        self._payloads = blake2b()

    def add(self, batch: EntryBatch) -> None:
        columns = (batch.entry_ids, batch.lengths, batch.publish_times_ms)
        for digest, column in zip(self._columns, columns, strict=True):
            digest.update(np.ascontiguousarray(column, dtype="<i8").data)
        offsets = batch.offsets
        self._payloads.update(batch.data[int(offsets[0]) : int(offsets[-1])])

    def value(self) -> bytes:
        return b"".join(each.digest() for each in (*self._columns, self._payloads))


class ColdLedger:
    """Entries of one ledger as readers see them (``by_ledger.LedgerHandle``), read once, from ``begin`` to ``end``.

    Attributes:
        info: the ledger.
        digest: of what was read so far.
    """

    def __init__(self, reader: Reader, begin: Position, end: Position, info: LedgerInfo) -> None:
        self.info = info
        self.digest = EntryDigest()
        self._batches = reader.scan(begin, end, READ_BYTES)

    def read(self, first_entry_id: int, max_bytes: int) -> EntryBatch | None:  # noqa: ARG002 - the scan's own size
        batch = next(self._batches, None)
        if batch is not None:
            assert batch.first.entry_id >= first_entry_id, "a scan goes forward"
            self.digest.add(batch)
        return batch


def holds(segment: SegmentRecord, ledger_id: int) -> bool:
    """Whether an offloaded segment has entries of a ledger."""
    return segment.summary is not None and any(span.ledger_id == ledger_id for span in segment.summary.ledgers)


def ledger_info(fetcher: Fetcher, state: ManifestState, segment: SegmentRecord, ledger_id: int) -> LedgerInfo:
    """What the manifest, and the index of the last segment that holds a ledger, say of it.

    Raises:
        Corrupt, ObjectMissing, ObjectChanged: the index is damaged.
    """
    objects = objects_of(state.stream, segment, fetcher.store, fetcher.settings.relocate)
    segment_map = fetcher.index(objects)
    known = PulsarLedger(ledger_id=ledger_id)
    if segment_map.layout is Layout.V2:
        [metadata] = [each.metadata for each in segment_map.ledgers if each.ledger_id == ledger_id]
        try:
            known = PulsarLedger.decode(metadata, object_name=objects.index_key)
        except FormatError as error:
            raise Corrupt(f"{objects.index_key}: {error}") from error
    last = state.closed_ledgers.get(ledger_id)
    return LedgerInfo(
        ledger_id=ledger_id,
        closed=last is not None,
        entries=0 if last is None else last + 1,
        size_bytes=known.size_bytes or 0,
        created_ms=0,
        closed_ms=known.closed_ms,
    )
