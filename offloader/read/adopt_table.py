"""All attempts that a listing gave, in little memory, until it is known whose they are.

Owns their packed form. Must never choose between them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from formats.entries import TIME_UNKNOWN_MS, Position
from formats.segment import Layout, LedgerSpan, SegmentSummary
from offloader.manifest.salvage import FoundSegment
from offloader.read.adopt_objects import Attempt

__all__ = ["AttemptTable", "Owner"]

#: A V1 attempt of Pulsar's: uuid; ledger, lengths of data and index, entries, payload bytes, blocks, time; checksums of
#: data and index; whether it is closed. With Python's own 33 bytes 130 MB for a million.
_ROW = struct.Struct("<16s7qII?")


class Owner(NamedTuple):
    """What an attempt's metadata says of its origin; either may be empty."""

    managed_ledger: str
    cluster: str


class AttemptTable:
    """Attempts by owner."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[Owner, list[bytes | Attempt]] = {}

    def add(self, attempt: Attempt) -> None:
        owner = Owner(attempt.managed_ledger, attempt.cluster)
        packed = _packed(attempt)
        plain = packed is not None and _attempt(packed, owner) == attempt
        self._rows.setdefault(owner, []).append(packed if packed is not None and plain else attempt)
        self.count += 1

    def owners(self) -> list[Owner]:
        """Who has attempts."""
        return list(self._rows)

    def of(self, owner: Owner) -> Iterator[Attempt]:
        """The attempts of one."""
        for row in self._rows.get(owner, ()):
            yield _attempt(row, owner) if isinstance(row, bytes) else row


def _packed(attempt: Attempt) -> bytes | None:
    """The row of an attempt, ``None`` when it has more to say."""
    segment, summary = attempt.segment, attempt.segment.summary
    if segment.ledger_id is None or summary.layout is not Layout.V1:
        return None
    return _ROW.pack(
        segment.uuid.bytes,
        segment.ledger_id,
        summary.data_bytes,
        summary.index_bytes,
        summary.entries,
        summary.payload_bytes,
        summary.blocks,
        attempt.modified_ms,
        summary.data_crc32c,
        summary.index_crc32c,
        attempt.closed,
    )


def _attempt(row: bytes, owner: Owner) -> Attempt:
    uuid, ledger_id, data, index, entries, payload, blocks, modified_ms, data_crc, index_crc, closed = _ROW.unpack(row)
    last = entries - 1
    return Attempt(
        segment=FoundSegment(
            uuid=UUID(bytes=uuid),
            ledger_id=ledger_id,
            epoch=0,
            owned=False,
            closed_bytes={},
            summary=SegmentSummary(
                layout=Layout.V1,
                begin=Position(ledger_id, 0),
                end=Position(ledger_id, last),
                data_bytes=data,
                index_bytes=index,
                data_crc32c=data_crc,
                index_crc32c=index_crc,
                entries=entries,
                payload_bytes=payload,
                publish_time_min_ms=TIME_UNKNOWN_MS,
                publish_time_max_ms=TIME_UNKNOWN_MS,
                blocks=blocks,
                compressed=False,
                ledgers=(LedgerSpan(ledger_id, 0, last, entries, payload),),
            ),
        ),
        managed_ledger=owner.managed_ledger,
        cluster=owner.cluster,
        closed=closed,
        modified_ms=modified_ms,
    )
