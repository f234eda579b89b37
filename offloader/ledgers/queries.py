"""What the embedded ledgers ask of their database.

Owns the statements that find ledgers and stored chunks, and the database's highest ledger id.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.chunks import Chunk

__all__ = [
    "READ_CHUNKS_MAX",
    "SELECT_LEDGER",
    "StreamRow",
    "chunks_from",
    "find_ledger",
    "find_readable",
    "ledger_info",
    "newest_given_out",
    "newest_used",
    "raise_used",
    "source_id_of",
    "stream_row",
    "within",
]

#: Rows that one read takes in at most, so that entries without bytes don't make it endless.
READ_CHUNKS_MAX = 262_144
#: Of one stream, to be ordered or narrowed down.
_LEDGER = "ledger_id, closed_ms IS NOT NULL, entries, size_bytes, created_ms, closed_ms, lost_entries"
SELECT_LEDGER = f"SELECT {_LEDGER} FROM ledgers WHERE stream_id = ?"  # noqa: S608 - constants
# an open ledger is the newest one, so that an append needn't look at the others, nor ask twice
_STREAM_ROW = (
    f"SELECT streams.owner, ids_next, ids_end, {_LEDGER} FROM streams LEFT JOIN ledgers "  # noqa: S608 - constants
    "ON ledger_id = (SELECT max(ledger_id) FROM ledgers WHERE stream_id = ?1) WHERE streams.stream_id = ?1"
)
# the casts make sure of the types: SQLite would hand out whatever damage put into a column
_SELECT_CHUNK = (
    "SELECT ledger_id, first_entry_id, CAST(entries AS INTEGER), CAST(first_time_ms AS INTEGER), "
    "CAST(crc AS INTEGER), CAST(lengths AS BLOB), CAST(times AS BLOB), CAST(payload AS BLOB) "
    "FROM chunks WHERE ledger_id = ?"
)
_INT64_MAX = 2**63 - 1


def find_readable(connection: sqlite3.Connection, stream_id: int, start: Position) -> Position | None:
    """The first entry at or after ``start``."""
    ledger_id, entry_id = (max(min(number, _INT64_MAX), 0) for number in start)
    row = connection.execute(
        "SELECT ledger_id FROM ledgers WHERE stream_id = ?1 AND ledger_id >= ?2 "
        "AND entries - lost_entries > CASE ledger_id WHEN ?3 THEN ?4 ELSE 0 END ORDER BY ledger_id LIMIT 1",
        (stream_id, ledger_id, ledger_id, entry_id if start.ledger_id == ledger_id else 0),
    ).fetchone()
    if row is None:
        return None
    return Position(row[0], entry_id if row[0] == start.ledger_id else 0)


def within(batch: EntryBatch, first_entry_id: int, max_bytes: int) -> EntryBatch:
    """From ``first_entry_id`` on: one entry, and what else fits into ``max_bytes``."""
    offsets = batch.offsets
    start = first_entry_id - batch.first.entry_id
    stop = int(np.searchsorted(offsets, int(offsets[start]) + max_bytes, side="right")) - 1
    return batch.slice(start, max(stop, start + 1))


def chunks_from(connection: sqlite3.Connection, ledger_id: int, entry_id: int, max_bytes: int) -> list[Chunk]:
    """The chunk that holds ``entry_id`` and those after it, until they hold ``max_bytes`` from there on."""
    row = connection.execute(
        "SELECT max(first_entry_id) FROM chunks WHERE ledger_id = ? AND first_entry_id <= ?", (ledger_id, entry_id)
    ).fetchone()
    chunks: list[Chunk] = []
    total_bytes = 0
    for values in connection.execute(
        f"{_SELECT_CHUNK} AND first_entry_id >= ? ORDER BY first_entry_id LIMIT ?",
        (ledger_id, row[0] or 0, READ_CHUNKS_MAX),
    ):
        chunk = Chunk(*values)
        chunks.append(chunk)
        total_bytes += len(chunk.payload)
        # the first chunk may hold bytes before entry_id, so it doesn't count in full
        if len(chunks) > 1 and total_bytes - len(chunks[0].payload) >= max_bytes:
            break
    return chunks


class StreamRow(NamedTuple):
    """What an append has to know of its stream.

    Attributes:
        owner: the number of the handle that may change it.
        ids_next, ids_end: granted ledger ids that no ledger has taken yet; ``ids_end`` is ``None`` when the database
            picks the ids.
        open_ledger: the ledger that is appended to, if any.
    """

    owner: int
    ids_next: int
    ids_end: int | None
    open_ledger: LedgerInfo | None

    @property
    def may_begin(self) -> bool:
        """Whether there is an id for a new ledger."""
        return self.ids_end is None or self.ids_next < self.ids_end

    def with_ids(self, ids_next: int, ids_end: int | None) -> StreamRow:
        return self._replace(ids_next=ids_next, ids_end=ids_end)


def stream_row(connection: sqlite3.Connection, stream_id: int) -> StreamRow | None:
    """``None``: no such stream."""
    row = connection.execute(_STREAM_ROW, (stream_id,)).fetchone()
    if row is None:
        return None
    newest = None if row[3] is None else ledger_info(row[3:])
    return StreamRow(row[0], row[1], row[2], None if newest is None or newest.closed else newest)


def newest_given_out(connection: sqlite3.Connection, stream_id: int) -> Position | None:
    """The newest position that was ever appended to a stream; deleted ledgers count."""
    found = connection.execute(
        "SELECT reached_ledger_id, reached_entry_id FROM streams WHERE stream_id = ?1 UNION ALL "
        "SELECT max(ledger_id), entries - 1 FROM ledgers WHERE stream_id = ?1 AND entries > 0",
        (stream_id,),
    ).fetchall()
    return max((Position(*row) for row in found if row[0] is not None and row[0] >= 0), default=None)


def source_id_of(connection: sqlite3.Connection) -> bytes:
    """The database's uuid."""
    return bytes(connection.execute("SELECT source_id FROM identity").fetchone()[0])


def newest_used(connection: sqlite3.Connection) -> int:
    """The highest ledger id that the database has used for any stream, or granted; 0: none."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'ledgers'").fetchone()
    return 0 if row is None else int(row[0])


def raise_used(connection: sqlite3.Connection, ledger_id: int) -> None:
    """Every ledger id that the database picks later is above ``ledger_id``."""
    connection.execute(
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'ledgers', 0 "
        "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'ledgers')"
    )
    connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'ledgers'", (ledger_id,))


def find_ledger(connection: sqlite3.Connection, stream_id: int, ledger_id: int) -> LedgerInfo | None:
    row = connection.execute(f"{SELECT_LEDGER} AND ledger_id = ?", (stream_id, ledger_id)).fetchone()
    return None if row is None else ledger_info(row)


def ledger_info(row: tuple[Any, ...]) -> LedgerInfo:
    ledger_id, closed, entries, size_bytes, created_ms, closed_ms, lost = row
    return LedgerInfo(
        ledger_id=ledger_id,
        closed=bool(closed),
        entries=entries,
        size_bytes=size_bytes,
        created_ms=created_ms,
        closed_ms=closed_ms,
        lost=((entries - lost, entries - 1),) if lost else (),
    )
