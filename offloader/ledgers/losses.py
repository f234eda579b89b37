"""What a ledger database lost of what it acknowledged, as the file beside it says, and going on without it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from formats.entries import Position
from offloader.errors import SourceMismatch
from offloader.ledgers.acked import AckedEnd
from offloader.ledgers.base import LostRange
from offloader.ledgers.queries import newest_given_out, raise_used

__all__ = ["accept_lost", "find_lost", "refused"]


def find_lost(
    connection: sqlite3.Connection, stream: str, stream_id: int | None, acked: Iterable[AckedEnd], source_id: bytes
) -> LostRange | None:
    """What was acknowledged of a stream and isn't in the database.

    Args:
        stream_id: ``None``: the database doesn't know the stream.
        acked: what the file beside the database says of it, read before the transaction began.
        source_id: the database's.
    """
    reached = None if stream_id is None else newest_given_out(connection, stream_id)
    for each in acked:
        if each.end.ledger_id < 0:
            continue
        if each.source_id.bytes != source_id:
            return LostRange(
                stream=stream, first=Position(0, 0), last=each.end, source_id=each.source_id, is_other=True
            )
        if reached is None or reached < each.end:
            first = Position(0, 0) if reached is None else Position(reached.ledger_id, reached.entry_id + 1)
            return LostRange(stream=stream, first=first, last=each.end, source_id=each.source_id)
    return None


def refused(path: str, lost: LostRange) -> SourceMismatch:
    """Why nothing is appended to a stream that lost entries."""
    hint = (
        f"restore {path} with its -wal file from where they are whole; or go on without these entries: "
        f"offloader accept-loss {lost.stream}"
    )
    if lost.is_other:
        return SourceMismatch(
            f"stream {lost.stream!r}: database {lost.source_id} acknowledged entries up to {lost.last}, says "
            f"{path}.acked, and ledger database {path} is another one",
            hint=hint,
        )
    return SourceMismatch(
        f"stream {lost.stream!r}: entries up to {lost.last} were acknowledged, says {path}.acked, and ledger database "
        f"{path} has none from {lost.first} on",
        hint=hint,
    )


def accept_lost(connection: sqlite3.Connection, stream_id: int, lost: LostRange, now_ms: int) -> None:
    """Records that entries are gone for good, inside the caller's transaction: their positions stay used.

    The last ledger lists them as lost. Ledgers between it and the first lost entry are unknown and stay so.
    """
    raise_used(connection, lost.last.ledger_id)
    if lost.is_other:
        return
    ledger_id, entries = lost.last.ledger_id, lost.last.entry_id + 1
    connection.execute(
        "UPDATE ledgers SET closed_ms = ? WHERE stream_id = ? AND closed_ms IS NULL", (now_ms, stream_id)
    )
    connection.execute(
        "INSERT OR IGNORE INTO ledgers (ledger_id, stream_id, created_ms, closed_ms) VALUES (?, ?, ?, ?)",
        (ledger_id, stream_id, now_ms, now_ms),
    )
    connection.execute(
        "UPDATE ledgers SET lost_entries = lost_entries + ?1 - entries, entries = ?1 "
        "WHERE ledger_id = ?2 AND stream_id = ?3",
        (entries, ledger_id, stream_id),
    )
