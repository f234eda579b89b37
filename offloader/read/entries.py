"""What a read answers: entries of any ledgers, in columns.

Owns the answer's shape. Must never fetch or copy payloads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from formats.entries import Entry, EntryBatch, Position

__all__ = ["Entries"]


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries in the stream's order. An ``EntryBatch`` has one ledger, a range may have several: so this holds batches.

    Attributes:
        batches: none of them empty, ascending.
    """

    batches: tuple[EntryBatch, ...]

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def __iter__(self) -> Iterator[Entry]:
        """The entries one by one (a convenience; hot paths use the batches)."""
        for batch in self.batches:
            yield from batch.entries()

    @property
    def first(self) -> Position | None:
        """Position of the first entry; ``None`` when there is none."""
        return self.batches[0].first if self.batches else None

    @property
    def last(self) -> Position | None:
        """Position of the last entry; ``None`` when there is none."""
        return self.batches[-1].last if self.batches else None

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of all entries together."""
        return sum(batch.payload_bytes for batch in self.batches)

    def to_arrow(self) -> pa.Table:
        """Columns ledger_id, entry_id, publish_time (ms, UTC, null = unknown), payload; payloads aren't copied."""
        empty = EntryBatch.build(0, 0, [])
        parts = [batch.to_arrow() for batch in self.batches] or [empty.to_arrow()]
        return pa.Table.from_batches(parts)
