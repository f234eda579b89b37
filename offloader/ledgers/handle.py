"""A handle on one stream of an embedded ledger database: ownership, identity, and the ids of new ledgers."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

from formats.entries import Position
from offloader.clock import Clock
from offloader.errors import Fenced, InvalidCall, StoreUnavailable, Unsupported
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.database import Database
from offloader.ledgers.listening import Listeners
from offloader.ledgers.queries import StreamRow, newest_given_out, newest_used, raise_used, source_id_of, stream_row

__all__ = ["LEDGER_ID_MAX", "STARTS_KEPT", "StreamHandle"]

#: Newest starts whose tokens a stream keeps, beside the one that was asked for: a crash loop between a start and its
#: record in the manifest must not push out the token that the manifest has, nor fill the disk.
STARTS_KEPT = 10_000
#: SQLite's largest row id.
LEDGER_ID_MAX = 2**63 - 1


class StreamHandle:
    """Who a handle is towards its database, and everything that the stream's identity consists of.

    Implements ``IdentifiedSource``. Nothing of the stream's state is kept in memory but the token that
    ``has_start`` found, so that an error leaves nothing to repair.
    """

    def __init__(
        self, database: Database, clock: Clock, stream: str, stream_id: int, owner: int | None, *, may_delete: bool
    ) -> None:
        self._may_delete = may_delete
        self._database = database
        self._clock = clock
        self._stream = stream
        self._stream_id = stream_id
        self._owner = owner
        self._append_lock = threading.Lock()
        self._listeners = Listeners(stream)
        self._start_found: str | None = None

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._stream

    @property
    def owner(self) -> int | None:
        """The owner number this was opened under, ``None`` for a view."""
        return self._owner

    # -- identity

    def source_id(self) -> UUID:
        """The database's own uuid, made with it."""
        with self._database.reading() as connection:
            return UUID(bytes=source_id_of(connection))

    def has_start(self, token: str) -> bool:
        """Whether ``record_start`` recorded this token in this database for this stream; if so, it stays."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT 1 FROM starts WHERE stream_id = ? AND token = ?", (self._stream_id, token)
            ).fetchone()
        if found is not None:
            self._start_found = token
        return found is not None

    def record_start(self, token: str) -> None:
        """Records the token of a start, durably; keeps the newest ``STARTS_KEPT`` and what ``has_start`` found."""
        with self._changing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO starts (stream_id, token) VALUES (?, ?)", (self._stream_id, token)
            )
            connection.execute(
                "DELETE FROM starts WHERE stream_id = ?1 AND token IS NOT ?2 AND start_id <= "
                "(SELECT start_id FROM starts WHERE stream_id = ?1 ORDER BY start_id DESC LIMIT 1 OFFSET ?3)",
                (self._stream_id, self._start_found, STARTS_KEPT),
            )

    def reached(self) -> Position | None:
        """The newest position that was ever appended to this stream here; deleted ledgers count."""
        with self._database.reading() as connection:
            return newest_given_out(connection, self._stream_id)

    def note_manifest(self, incarnation: UUID, record_id: int) -> None:
        """Records how much of the manifest the stream's writer has seen; the newest word counts."""
        with self._changing() as connection:
            connection.execute(
                "UPDATE streams SET manifest_incarnation = ?, manifest_record_id = ? WHERE stream_id = ?",
                (incarnation.bytes, record_id, self._stream_id),
            )

    def noted_manifest(self) -> tuple[UUID, int] | None:
        """What ``note_manifest`` recorded last, ``None`` before that."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT manifest_incarnation, manifest_record_id FROM streams WHERE stream_id = ?", (self._stream_id,)
            ).fetchone()
        return None if row is None or row[0] is None else (UUID(bytes=row[0]), row[1])

    # -- ids of new ledgers

    def next_ledger(self) -> int:
        """The lowest ledger id that this database has neither used nor granted to any stream."""
        with self._database.reading() as connection:
            return newest_used(connection) + 1

    def grant_ledgers(self, first: int, end: int) -> None:
        """New ledgers of this handle take ids from ``first`` up to before ``end`` only, without those used already.

        The first grant closes the open ledger and begins one in the range. A later range that begins where the current
        one ends extends it, any other one replaces what is left of it; the open ledger stays.

        Raises:
            InvalidCall: an empty range, or ids that no ledger can have.
            StoreUnavailable: every id of the range is used or granted already; ``next_ledger`` says from where on.
            Fenced: the stream was opened by somebody else since.
        """
        if not 0 < first < end <= LEDGER_ID_MAX:
            raise InvalidCall(
                f"stream {self._stream!r}: ledger ids from {first} up to before {end} can't be granted",
                hint=f"give a range between 1 and {LEDGER_ID_MAX}",
            )
        with self._append_lock:
            closed = None
            with self._owning() as (connection, row):
                used = newest_used(connection)
                extends = row.ids_end == first == used + 1
                begin = row.ids_next if extends else max(first, used + 1)
                if begin >= end:
                    raise StoreUnavailable(
                        f"stream {self._stream!r}: ledger database {self._database.path} has used or granted all ids "
                        f"up to {used} already, so that none from {first} up to before {end} is left",
                        hint=f"reserve a range from {used + 1} on",
                    )
                raise_used(connection, end - 1)
                connection.execute(
                    "UPDATE streams SET ids_next = ?, ids_end = ? WHERE stream_id = ?", (begin, end, self._stream_id)
                )
                if row.ids_end is None or row.ids_end == 0:
                    closed = self._end_ledger(connection, row.open_ledger)
                    self._begin_ledger(connection, row.with_ids(begin, end), self._clock.now_ms())
            if closed is not None:
                self._listeners.tell_closed(closed)

    def ledgers_left(self) -> int | None:
        """Granted ids that no ledger has taken yet; ``None``: the ids of this handle aren't granted."""
        with self._database.reading() as connection:
            row = stream_row(connection, self._stream_id)
        return None if row is None or row.ids_end is None else max(0, row.ids_end - row.ids_next)

    def seed_ledgers(self, above: int) -> None:
        """Every new ledger of the database gets an id above ``above``; an open one of this stream that hasn't is
        closed."""
        if not 0 <= above < LEDGER_ID_MAX:
            raise InvalidCall(f"stream {self._stream!r}: no ledger has an id above {above}")
        with self._append_lock:
            closed = None
            with self._changing() as connection:
                raise_used(connection, above)
                row = stream_row(connection, self._stream_id)
                if row is not None and row.open_ledger is not None and row.open_ledger.ledger_id <= above:
                    closed = self._end_ledger(connection, row.open_ledger)
            if closed is not None:
                self._listeners.tell_closed(closed)

    def _begin_ledger(
        self, connection: sqlite3.Connection, row: StreamRow, now_ms: int
    ) -> tuple[LedgerInfo, StreamRow]:
        """A new open ledger, and the stream's row with the ids that are left after it."""
        if row.ids_end is None:
            ledger_id = connection.execute(
                "INSERT INTO ledgers (stream_id, created_ms) VALUES (?, ?)", (self._stream_id, now_ms)
            ).lastrowid
        elif not row.may_begin:
            raise StoreUnavailable(
                f"stream {self._stream!r}: no ledger id is granted, so that there is no ledger to append to",
                hint="ids are granted when the manifest has recorded them: try again when the object store answers",
            )
        else:
            ledger_id = row.ids_next
            connection.execute(
                "INSERT INTO ledgers (ledger_id, stream_id, created_ms) VALUES (?, ?, ?)",
                (ledger_id, self._stream_id, now_ms),
            )
            row = row.with_ids(ledger_id + 1, row.ids_end)
            connection.execute("UPDATE streams SET ids_next = ? WHERE stream_id = ?", (row.ids_next, self._stream_id))
        info = LedgerInfo(ledger_id=ledger_id or 0, closed=False, entries=0, size_bytes=0, created_ms=now_ms)
        return info, row

    def _end_ledger(self, connection: sqlite3.Connection, ledger: LedgerInfo | None) -> LedgerInfo | None:
        """Closes an open ledger, removes it if it is empty; what was closed."""
        if ledger is None:
            return None
        if ledger.entries == 0:
            connection.execute("DELETE FROM ledgers WHERE ledger_id = ?", (ledger.ledger_id,))
            return None
        now_ms = self._clock.now_ms()
        connection.execute("UPDATE ledgers SET closed_ms = ? WHERE ledger_id = ?", (now_ms, ledger.ledger_id))
        return replace(ledger, closed=True, closed_ms=now_ms)

    # -- inside a transaction

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that a view may make too, if it was opened for deleting."""
        if self._may_delete:
            with self._database.writing() as connection:
                yield connection
            return
        with self._owning() as (connection, _):
            yield connection

    @contextlib.contextmanager
    def _owning(self) -> Iterator[tuple[sqlite3.Connection, StreamRow]]:
        """A transaction of the stream's owner, and the stream's row; the check is part of it, so that nobody can get in
        between."""
        if self._owner is None:
            raise Unsupported(
                f"stream {self._stream!r} is open for reading only", hint="open it with open_stream to change it"
            )
        with self._database.writing() as connection:
            row = stream_row(connection, self._stream_id)
            if row is None or row.owner != self._owner:
                newer = "nobody" if row is None else f"owner {row.owner}"
                raise Fenced(
                    f"stream {self._stream!r} in {self._database.path}: owner {self._owner} was replaced by {newer}",
                    hint="another process opened the stream: stop writing here",
                )
            yield connection, row
