"""One stream of an embedded ledger database.

Owns appending, reading and deleting its ledgers. Must never know of segments or of the object store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from offloader.clock import Clock
from offloader.errors import Corrupt, InvalidCall, LimitReached, StoreUnavailable, Unsupported
from offloader.ledgers.acked import AckedSlot
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener
from offloader.ledgers.chunks import cut_chunks, encode_chunk, join_chunks
from offloader.ledgers.database import Database
from offloader.ledgers.given import ENTRY_BYTES_MAX, given_batch
from offloader.ledgers.handle import StreamHandle
from offloader.ledgers.listening import ListenerSubscription
from offloader.ledgers.queries import (
    SELECT_LEDGER,
    StreamRow,
    chunks_from,
    find_ledger,
    find_readable,
    ledger_info,
    within,
)
from offloader.ledgers.rollover import is_full, must_roll, room
from offloader.settings import LedgerSettings

__all__ = ["ENTRY_BYTES_MAX", "NOTE_BYTES_MAX", "EmbeddedStream"]

#: Largest note.
NOTE_BYTES_MAX = 1024 * 1024


class EmbeddedStream(StreamHandle):
    """One stream of an embedded database: a ``LedgerSource`` that can be appended to.

    Made by ``EmbeddedLedgers``. Ledger ids ascend over the whole database and are never used twice; a stream's
    entries are numbered 0.. in each ledger. All methods are thread-safe. Nothing of the stream's state is kept in
    memory, so that an error leaves nothing to repair.
    """

    def __init__(
        self,
        database: Database,
        settings: LedgerSettings,
        clock: Clock,
        stream: str,
        stream_id: int,
        owner: int | None,
        *,
        may_delete: bool = False,
        acked: AckedSlot | None = None,
    ) -> None:
        super().__init__(database, clock, stream, stream_id, owner, may_delete=may_delete)
        self._settings = settings
        self._acked = acked

    # -- writing

    def append(
        self,
        payloads: pa.Array | Sequence[bytes],
        publish_times_ms: Sequence[int] | NDArray[np.int64] | int | None = None,
        *,
        notes: Mapping[str, bytes] | None = None,
    ) -> list[EntryBatch]:
        """Adds entries at the end: all of them, durably, in one transaction, or none.

        Args:
            payloads: n byte strings, or an Arrow array of them, without nulls.
            publish_times_ms: n times in ms since 1970 UTC, or one for all; ``None``: now.
            notes: notes to be set in the same transaction.

        Returns:
            What was written where, in order, one batch for each ledger it went to (none for no payloads).
            Listeners were called with the same batches before this returns. Nobody else has their memory.

        Raises:
            Fenced: the stream was opened by somebody else since.
            InvalidCall: not byte strings, or another number of times; ``LimitReached``: too large.
            StoreUnavailable: disk nearly full, or locked; nothing was written.
            OutcomeUnknown: the disk failed during the commit.
        """
        times = self._clock.now_ms() if publish_times_ms is None else publish_times_ms
        given = given_batch(payloads, times, where=f"append to stream {self._stream!r}")
        self._check_notes(notes or {})
        with self._append_lock:
            with self._owning() as (connection, row):
                if len(given):
                    self._database.require_room(connection, given.payload_bytes)
                batches, closed = self._write(connection, row, given) if len(given) else ([], [])
                if notes:
                    self._write_notes(connection, notes)
            if batches and self._acked is not None:
                self._acked.write(batches[-1].last)
            self._listeners.tell_all(batches, closed)
        return batches

    def close_ledger(self) -> LedgerInfo | None:
        """Closes the open ledger, so that the next append opens another.

        Returns:
            The ledger that was closed, ``None`` when there was nothing to close (no entries since the last one).

        Raises:
            StoreUnavailable: no id is granted for the next ledger; this one stays open.
        """
        with self._append_lock:
            with self._owning() as (connection, row):
                if row.open_ledger is None or row.open_ledger.entries == 0:
                    return None
                if not row.may_begin:
                    raise StoreUnavailable(
                        f"stream {self._stream!r}: ledger {row.open_ledger.ledger_id} stays open: no id is granted for "
                        "the next one",
                        hint="try again when the object store answers",
                    )
                closed = self._end_ledger(connection, row.open_ledger)
            if closed is not None:
                self._listeners.tell_closed(closed)
        return closed

    def delete(self, ledger_id: int) -> None:
        """Removes a closed ledger and its entries; one that isn't there counts as removed.

        A view may do that if it was opened for it: nobody adds to a closed ledger, so that no owner is disturbed.

        Raises:
            InvalidCall: the ledger is still open.
        """
        with self._changing() as connection:
            ledger = find_ledger(connection, self._stream_id, ledger_id)
            if ledger is None:
                return
            if not ledger.closed:
                raise InvalidCall(
                    f"stream {self._stream!r} ledger {ledger_id} is open and can't be deleted",
                    hint="close it first (close_ledger)",
                )
            connection.execute("DELETE FROM chunks WHERE ledger_id = ?", (ledger_id,))
            connection.execute("DELETE FROM ledgers WHERE ledger_id = ?", (ledger_id,))

    def release(self, position: Position) -> None:
        """Records that everything up to ``position`` is committed in the cold tier; never goes back."""
        with self._owning() as (connection, _):
            connection.execute(
                "UPDATE streams SET released_ledger_id = ?1, released_entry_id = ?2 WHERE stream_id = ?3 "
                "AND (released_ledger_id, released_entry_id) < (?1, ?2)",
                (position.ledger_id, position.entry_id, self._stream_id),
            )

    def put_note(self, key: str, value: bytes) -> None:
        """Sets a small durable fact of the stream, replacing what it was."""
        self._check_notes({key: value})
        with self._owning() as (connection, _):
            self._write_notes(connection, {key: value})

    # -- reading

    def ledgers(self) -> list[LedgerInfo]:
        """All ledgers that still exist, ascending, empty ones included."""
        with self._database.reading() as connection:
            rows = connection.execute(f"{SELECT_LEDGER} ORDER BY ledger_id", (self._stream_id,))
            return [ledger_info(row) for row in rows]

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """Entries of one ledger, from the first one at or after ``start`` on.

        At least one entry (even above ``max_bytes``), then as many as fit into ``max_bytes`` of payload.
        ``None``: nothing at or after ``start`` now.

        Raises:
            Corrupt: stored entries are damaged; names the database, ledger and chunk.
        """
        with self._database.reading() as connection:
            found = find_readable(connection, self._stream_id, start)
            if found is None:
                return None
            chunks = chunks_from(connection, found.ledger_id, found.entry_id, max_bytes)
        try:
            batch = join_chunks(chunks, found, object_name=self._database.path)
        except FormatError as error:
            raise Corrupt(
                f"stream {self._stream!r}: {error}", hint="restore the database, or read what the object store has"
            ) from error
        return within(batch, found.entry_id, max_bytes)

    def first_position(self) -> Position | None:
        """The first entry that exists, ``None`` when there is none."""
        return self._edge("min", "0")

    def last_position(self) -> Position | None:
        """The last entry that exists, ``None`` when there is none."""
        return self._edge("max", "entries - lost_entries - 1")

    def released_position(self) -> Position | None:
        """What ``release`` recorded last, ``None`` before that."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT released_ledger_id, released_entry_id FROM streams WHERE stream_id = ?", (self._stream_id,)
            ).fetchone()
        return None if row is None or row[0] < 0 else Position(*row)

    def get_note(self, key: str) -> bytes | None:
        """A note's value, ``None`` when it was never set."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT value FROM notes WHERE stream_id = ? AND key = ?", (self._stream_id, key)
            ).fetchone()
        return None if row is None else bytes(row[0])

    # -- following

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> ListenerSubscription:
        """Calls ``listener`` for each batch appended through this handle after this returns, in order, and ``closed``
        for each ledger that an append fills or closes, before the next one's first batch.

        The listener runs in the appending thread, after the batch is durable and outside the transaction. What it
        raises is logged and changes nothing: the entries are durable already.

        Raises:
            Unsupported: this is a view: other processes' appends can't be heard.
        """
        if self._owner is None:
            raise Unsupported(
                f"stream {self._stream!r} is open for reading only, where appends aren't heard of",
                hint="subscribe to the handle of open_stream, or poll last_position",
            )
        return self._listeners.add(listener, closed)

    # -- inside a transaction

    def _write(
        self, connection: sqlite3.Connection, row: StreamRow, given: EntryBatch
    ) -> tuple[list[EntryBatch], list[LedgerInfo]]:
        """Puts entries into the open ledger and, as it fills up, the next ones; what was written, what was closed."""
        now_ms = self._clock.now_ms()
        written: list[EntryBatch] = []
        closed: list[LedgerInfo] = []
        ledger, done = row.open_ledger, 0
        while done < len(given):
            # Without an id for the next ledger the open one takes what there is.
            if ledger is not None and row.may_begin and must_roll(ledger, now_ms, self._settings):
                connection.execute("UPDATE ledgers SET closed_ms = ? WHERE ledger_id = ?", (now_ms, ledger.ledger_id))
                closed.append(replace(ledger, closed=True, closed_ms=now_ms))
                ledger = None
            if ledger is None:
                ledger, row = self._begin_ledger(connection, row, now_ms)
            rest = given.slice(done, len(given))
            fitting = room(ledger, rest, self._settings) if row.may_begin else len(rest)
            part = _numbered(rest.slice(0, fitting), ledger.ledger_id, ledger.entries)
            ledger = self._write_part(connection, ledger, part, now_ms, may_close=row.may_begin)
            if ledger.closed:
                closed.append(ledger)
            ledger = None if ledger.closed else ledger
            written.append(part)
            done += len(part)
        return written, closed

    def _write_part(
        self, connection: sqlite3.Connection, ledger: LedgerInfo, part: EntryBatch, now_ms: int, *, may_close: bool
    ) -> LedgerInfo:
        """Stores entries of one ledger; the ledger as it is then, closed when that filled it and it may close."""
        connection.executemany(
            "INSERT INTO chunks (ledger_id, first_entry_id, entries, first_time_ms, crc, lengths, times, payload) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (encode_chunk(piece) for piece in cut_chunks(part)),
        )
        grown = LedgerInfo(
            ledger_id=ledger.ledger_id,
            closed=False,
            entries=ledger.entries + len(part),
            size_bytes=ledger.size_bytes + part.payload_bytes,
            created_ms=ledger.created_ms,
        )
        full = may_close and is_full(grown, self._settings)
        connection.execute(
            "UPDATE ledgers SET entries = ?, size_bytes = ?, closed_ms = ? WHERE ledger_id = ?",
            (grown.entries, grown.size_bytes, now_ms if full else None, grown.ledger_id),
        )
        return replace(grown, closed=True, closed_ms=now_ms) if full else grown

    def _write_notes(self, connection: sqlite3.Connection, notes: Mapping[str, bytes]) -> None:
        connection.executemany(
            "INSERT INTO notes (stream_id, key, value) VALUES (?, ?, ?) "
            "ON CONFLICT (stream_id, key) DO UPDATE SET value = excluded.value",
            [(self._stream_id, key, bytes(value)) for key, value in notes.items()],
        )

    # -- checks and queries

    def _edge(self, end: str, entry_id: str) -> Position | None:
        with self._database.reading() as connection:
            row = connection.execute(
                f"SELECT {end}(ledger_id), {entry_id} FROM ledgers WHERE stream_id = ? AND entries > lost_entries",  # noqa: S608 - constants
                (self._stream_id,),
            ).fetchone()
        return None if row[0] is None else Position(*row)

    def _check_notes(self, notes: Mapping[str, bytes]) -> None:
        for key, value in notes.items():
            if not isinstance(key, str) or not isinstance(value, (bytes, bytearray, memoryview)):
                raise InvalidCall(f"stream {self._stream!r}: note {key!r} must be a string naming bytes")
            if len(value) > NOTE_BYTES_MAX:
                raise LimitReached(
                    f"stream {self._stream!r}: note {key!r} has {len(value)} bytes, the limit is {NOTE_BYTES_MAX}"
                )


def _numbered(batch: EntryBatch, ledger_id: int, first_entry_id: int) -> EntryBatch:
    ids = np.arange(first_entry_id, first_entry_id + len(batch), dtype=np.int64)
    return EntryBatch(ledger_id, ids, batch.payloads, batch.publish_times_ms)
