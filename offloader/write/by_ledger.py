"""One closed ledger as one object pair in the V1 layout (PIP-17).

Owns reading a ledger from its first to its last entry and proving that all of it went up. Must never report success
for an object that holds anything else than exactly the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from formats.compression import Codec
from formats.entries import EntryBatch, Position
from formats.segment import Layout, LedgerFacts, SegmentBuilder, SegmentSummary
from offloader.errors import Corrupt, InvalidCall
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.settings import OffloadSettings
from offloader.write.assignment import part_bytes_for
from offloader.write.upload import SegmentUpload

__all__ = ["LedgerHandle", "SourceLedger", "offload_ledger"]

#: Payload bytes of one read from the hot tier.
READ_BYTES = 4 * 1024 * 1024


class LedgerHandle(Protocol):
    """A ledger of the hot tier, opened for reading."""

    @property
    def info(self) -> LedgerInfo:
        """What the source knows of it."""
        ...

    def read(self, first_entry_id: int, max_bytes: int) -> EntryBatch | None:
        """Entries from ``first_entry_id`` on, at least one, about ``max_bytes`` of payload; ``None`` at the end."""
        ...


@dataclass(frozen=True, slots=True)
class SourceLedger:
    """A ledger of a ``LedgerSource``."""

    source: LedgerSource
    info: LedgerInfo

    def read(self, first_entry_id: int, max_bytes: int) -> EntryBatch | None:
        batch = self.source.read(Position(self.info.ledger_id, first_entry_id), max_bytes)
        return batch if batch is not None and batch.ledger_id == self.info.ledger_id else None


def offload_ledger(ledger: LedgerHandle, upload: SegmentUpload, settings: OffloadSettings) -> SegmentSummary:
    """Reads the whole ledger and uploads it; both objects are in the store and proven when this returns.

    The ledger's recorded size isn't trusted (Pulsar has closed ledgers with a recorded length of 0): entries are
    counted.

    Raises:
        InvalidCall: the ledger is open or empty.
        Corrupt: the source gave fewer, more or other entries than the ledger has; nothing is left in the store but what
            an aborted upload leaves.
    """
    info = ledger.info
    if not info.closed or info.entries == 0:
        state = "open" if not info.closed else "empty"
        raise InvalidCall(f"ledger {info.ledger_id} is {state} and can't be offloaded", hint="close it first")
    builder = SegmentBuilder(
        layout=Layout.V1,
        block_bytes=settings.block_bytes,
        part_bytes=part_bytes_for(settings),
        codec=Codec[settings.codec.upper()],
    )
    multipart = False
    try:
        expected = 0
        while expected < info.entries:
            batch = ledger.read(expected, READ_BYTES)
            if batch is None or batch.first.entry_id != expected or len(batch) > info.entries - expected:
                found = "nothing" if batch is None else f"{batch.first}..{batch.last}"
                raise Corrupt(
                    f"ledger {info.ledger_id} has {info.entries} entries, but at {expected} the source gives {found}"
                )
            for part in builder.append(batch):
                multipart = True
                upload.send_part(part)
            expected += len(batch)
        facts = LedgerFacts(
            ledger_id=info.ledger_id,
            closed=True,
            size_bytes=info.size_bytes,
            closed_ms=info.closed_ms or 0,
            created_ms=info.created_ms,
        )
        finished = builder.finish({info.ledger_id: facts})
        for part in finished.parts:
            if multipart or len(finished.parts) > 1:
                multipart = True
                upload.send_part(part)
            else:
                upload.send_whole(part)
        _require_whole(info, finished.summary)
        if multipart:
            upload.complete()
        upload.prove(finished.summary.data_bytes)
        upload.send_index(finished.index)
    except BaseException:
        upload.abort()
        raise
    return finished.summary


def _require_whole(info: LedgerInfo, summary: SegmentSummary) -> None:
    begin, end = Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)
    if (summary.begin, summary.end, summary.entries) != (begin, end, info.entries):
        raise Corrupt(
            f"ledger {info.ledger_id}: {summary.begin}..{summary.end} ({summary.entries} entries) went up, "
            f"it holds {begin}..{end} ({info.entries})"
        )
