"""What the embedded ledgers ask of their database.

Owns the statements that find ledgers and stored chunks. Must never change a row.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.chunks import Chunk

__all__ = [
    "READ_CHUNKS_MAX",
    "SELECT_LEDGER",
    "chunks_from",
    "find_ledger",
    "find_readable",
    "ledger_info",
    "owner_and_newest",
    "within",
]

#: Rows that one read takes in at most, so that entries without bytes don't make it endless.
READ_CHUNKS_MAX = 262_144
#: Of one stream, to be ordered or narrowed down.
_LEDGER = "ledger_id, closed_ms IS NOT NULL, entries, size_bytes, created_ms, closed_ms"
SELECT_LEDGER = f"SELECT {_LEDGER} FROM ledgers WHERE stream_id = ?"  # noqa: S608 - constants
# an open ledger is the newest one, so that an append needn't look at the others, nor ask twice
_OWNER_AND_NEWEST = (
    f"SELECT streams.owner, {_LEDGER} FROM streams LEFT JOIN ledgers "  # noqa: S608 - constants
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
        "AND entries > CASE ledger_id WHEN ?3 THEN ?4 ELSE 0 END ORDER BY ledger_id LIMIT 1",
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


def owner_and_newest(connection: sqlite3.Connection, stream_id: int) -> tuple[int | None, LedgerInfo | None]:
    """The stream's owner number (``None``: no such stream) and its newest ledger."""
    row = connection.execute(_OWNER_AND_NEWEST, (stream_id,)).fetchone()
    if row is None:
        return None, None
    return row[0], None if row[1] is None else ledger_info(row[1:])


def find_ledger(connection: sqlite3.Connection, stream_id: int, ledger_id: int) -> LedgerInfo | None:
    row = connection.execute(f"{SELECT_LEDGER} AND ledger_id = ?", (stream_id, ledger_id)).fetchone()
    return None if row is None else ledger_info(row)


def ledger_info(row: tuple[Any, ...]) -> LedgerInfo:
    ledger_id, closed, entries, size_bytes, created_ms, closed_ms = row
    return LedgerInfo(
        ledger_id=ledger_id,
        closed=bool(closed),
        entries=entries,
        size_bytes=size_bytes,
        created_ms=created_ms,
        closed_ms=closed_ms,
    )
