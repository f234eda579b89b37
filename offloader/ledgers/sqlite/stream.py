"""One stream of an embedded ledger database: its handle, appends and reads."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from offloader.errors import (
    CorruptError,
    FencedError,
    InvalidCallError,
    LimitReachedError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener
from offloader.ledgers.sqlite.chunks import (
    Chunk,
    cut_chunks,
    encode_chunk,
    given_entries,
    is_full,
    join_chunks,
    must_roll,
    room,
)
from offloader.ledgers.sqlite.database import AckedSlot, Database
from offloader.ledgers.tail_buffer import Listeners, ListenerSubscription, part_to_read
from offloader.runtime.clock import Clock
from offloader.settings import LedgerSettings

#: Rows that one read scans at most, which bounds reads of empty entries.
READ_CHUNKS_MAX = 262_144
#: Selects a stream's ledgers; callers add order and conditions.
_LEDGER = "ledger_id, closed_ms IS NOT NULL, entries, size_bytes, created_ms, closed_ms, lost_entries"
SELECT_LEDGER = f"SELECT {_LEDGER} FROM ledgers WHERE stream_id = ?"  # noqa: S608 - constants
# an open ledger is the newest one, so an append needs one query and no other ledgers
_STREAM_ROW = (
    f"SELECT streams.owner, ids_next, ids_end, {_LEDGER} FROM streams LEFT JOIN ledgers "  # noqa: S608 - constants
    "ON ledger_id = (SELECT max(ledger_id) FROM ledgers WHERE stream_id = ?1) WHERE streams.stream_id = ?1"
)
# the casts fix the types: SQLite would return whatever damage put into a column
_SELECT_CHUNK = (
    "SELECT ledger_id, first_entry_id, CAST(entries AS INTEGER), CAST(first_time_ms AS INTEGER), "
    "CAST(crc AS INTEGER), CAST(lengths AS BLOB), CAST(times AS BLOB), CAST(payload AS BLOB) "
    "FROM chunks WHERE ledger_id = ?"
)
#: SQLite's largest row id.
LEDGER_ID_MAX = 2**63 - 1
#: Tokens of starts kept per stream, beside the one that ``has_start`` found: a crash loop between a start and its
#: record in the manifest must neither evict the manifest's token nor fill the disk.
STARTS_KEPT = 10_000
#: Largest note.
NOTE_BYTES_MAX = 1024 * 1024


def find_readable(connection: sqlite3.Connection, stream_id: int, start: Position) -> Position | None:
    """The first entry at or after ``start``."""
    if start.ledger_id > LEDGER_ID_MAX:
        return None
    # SQLite would take NumPy's integers, which callers have from columns, for byte strings above all numbers.
    ledger_id, entry_id = (max(min(int(number), LEDGER_ID_MAX), 0) for number in start)
    row = connection.execute(
        "SELECT ledger_id FROM ledgers WHERE stream_id = ?1 AND ledger_id >= ?2 "
        "AND entries - lost_entries > CASE ledger_id WHEN ?2 THEN ?3 ELSE 0 END ORDER BY ledger_id LIMIT 1",
        (stream_id, ledger_id, entry_id if start.ledger_id == ledger_id else 0),
    ).fetchone()
    return None if row is None else Position(row[0], entry_id if row[0] == start.ledger_id else 0)


def chunks_from(connection: sqlite3.Connection, ledger_id: int, entry_id: int, max_bytes: int) -> list[Chunk]:
    """The chunk that holds ``entry_id`` and those after it, until they hold ``max_bytes`` from there on."""
    row = connection.execute(
        "SELECT max(first_entry_id) FROM chunks WHERE ledger_id = ? AND first_entry_id <= ?", (ledger_id, entry_id)
    ).fetchone()
    chunks: list[Chunk] = []
    total_bytes = 0
    found = connection.execute(
        f"{_SELECT_CHUNK} AND first_entry_id >= ? ORDER BY first_entry_id LIMIT ?",
        (ledger_id, row[0] or 0, READ_CHUNKS_MAX),
    )
    for chunk in map(Chunk._make, found):
        chunks.append(chunk)
        total_bytes += len(chunk.payload)
        # a first chunk that begins before entry_id holds bytes that don't count; how many isn't known yet
        uncounted = 0 if chunks[0].first_entry_id == entry_id else len(chunks[0].payload)
        if total_bytes - uncounted >= max_bytes:
            break
    return chunks


class StreamRow(NamedTuple):
    """The stream's row, as an append needs it.

    Attributes:
        owner: the number of the handle that may change it.
        ids_next, ids_end: granted ledger ids that no ledger has taken yet; ``ids_end`` is ``None`` when the database
            picks the ids.
        open_ledger: the ledger that takes appends, if any.
    """

    owner: int
    ids_next: int
    ids_end: int | None
    open_ledger: LedgerInfo | None

    @property
    def may_begin(self) -> bool:
        """Whether an id is left for a new ledger."""
        return self.ids_end is None or self.ids_next < self.ids_end


def stream_row(connection: sqlite3.Connection, stream_id: int) -> StreamRow | None:
    """Reads the stream's row; ``None`` if there is no such stream."""
    if (row := connection.execute(_STREAM_ROW, (stream_id,)).fetchone()) is None:
        return None
    owner, ids_next, ids_end, ledger_id, is_closed, *_ = row
    return StreamRow(owner, ids_next, ids_end, None if ledger_id is None or is_closed else ledger_info(row[3:]))


def newest_given_out(connection: sqlite3.Connection, stream_id: int) -> Position | None:
    """The newest position ever appended to a stream; deleted ledgers count."""
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
    """Makes the database pick only ledger ids above ``ledger_id``."""
    connection.execute(
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'ledgers', 0 "
        "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'ledgers')"
    )
    connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'ledgers'", (ledger_id,))


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
        is_loss_accepted=bool(lost),
    )


class EmbeddedStream:
    """One stream of an embedded database: a ``LedgerSource`` that takes appends, and an ``IdentifiedSource``.

    Made by ``EmbeddedLedgers``. Ledger ids ascend over the whole database and are never reused; entries are numbered
    0.. in each ledger. All methods are thread-safe. Keeps no stream state in memory except the token that ``has_start``
    found, so an error leaves nothing to repair.
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
        self._database, self._settings, self._clock = database, settings, clock
        self._stream, self._stream_id, self._owner = stream, stream_id, owner
        self._may_delete, self._acked = may_delete, acked
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

    def noted_remedy(self) -> str:
        """As ``NotingSource``."""
        return f"`offloader stream set-source {self._stream}`, or new_source=True"

    def source_id(self) -> UUID:
        """The database's uuid, created with it."""
        with self._database.reading() as connection:
            return UUID(bytes=source_id_of(connection))

    def has_start(self, token: str) -> bool:
        """Whether ``record_start`` recorded this token in this database for this stream; if so, it is kept."""
        if is_found := self._row("SELECT 1 FROM starts WHERE stream_id = ? AND token = ?", token) is not None:
            self._start_found = token
        return is_found

    def record_start(self, token: str) -> None:
        """Records the token of a start durably; keeps the newest ``STARTS_KEPT`` and ``has_start``'s."""
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
        """The newest position ever appended to this stream here; deleted ledgers count."""
        with self._database.reading() as connection:
            return newest_given_out(connection, self._stream_id)

    def note_manifest(self, incarnation: UUID, record_id: int) -> None:
        """Records how much of the stream's manifest its writer has seen; the incarnation becomes the newest one."""
        with self._changing() as connection:
            known = connection.execute(
                "SELECT incarnation FROM manifests WHERE stream_id = ? ORDER BY note_id DESC LIMIT 1",
                (self._stream_id,),
            ).fetchone()
            if known is not None and known[0] == incarnation.bytes:
                connection.execute(
                    "UPDATE manifests SET record_id = ? WHERE stream_id = ? AND incarnation = ?",
                    (record_id, self._stream_id, incarnation.bytes),
                )
            else:
                connection.execute(
                    "INSERT OR REPLACE INTO manifests (stream_id, incarnation, record_id) VALUES (?, ?, ?)",
                    (self._stream_id, incarnation.bytes, record_id),
                )

    def noted_manifests(self) -> list[tuple[UUID, int]]:
        """The newest record noted for each incarnation, the newest incarnation last."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT incarnation, record_id FROM manifests WHERE stream_id = ? ORDER BY note_id", (self._stream_id,)
            ).fetchall()
        return [(UUID(bytes=incarnation), record_id) for incarnation, record_id in rows]

    def note_store(self, store_id: UUID) -> None:
        """Records the identity of the store that the stream is committed to."""
        with self._changing() as connection:
            connection.execute("UPDATE streams SET store_id = ? WHERE stream_id = ?", (store_id.bytes, self._stream_id))

    def noted_store(self) -> UUID | None:
        """The noted identity."""
        row = self._row("SELECT store_id FROM streams WHERE stream_id = ?")
        return None if row is None or row[0] is None else UUID(bytes=row[0])

    def next_ledger(self) -> int:
        """The lowest ledger id that this database has neither used nor granted to any stream."""
        with self._database.reading() as connection:
            return newest_used(connection) + 1

    def grant_ledgers(self, first: int, end: int) -> None:
        """As ``IdentifiedSource.grant_ledgers``, with its errors.

        Raises:
            FencedError: another owner opened the stream since.
        """
        if not 0 < first < end <= LEDGER_ID_MAX:
            raise InvalidCallError(
                f"stream {self._stream!r}: ledger ids from {first} up to before {end} can't be granted",
                hint=f"use a range between 1 and {LEDGER_ID_MAX}",
            )
        with self._append_lock:
            closed: list[LedgerInfo] = []
            with self._owning() as (connection, row):
                used = newest_used(connection)
                extends = row.ids_end == first == used + 1
                begin = row.ids_next if extends else max(first, used + 1)
                if begin >= end:
                    raise StoreUnavailableError(
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
                    self._begin_ledger(connection, row._replace(ids_next=begin, ids_end=end), self._clock.now_ms())
            self._listeners.tell_all([], closed)

    def ledgers_left(self) -> int | None:
        """Granted ids that no ledger has taken yet; ``None`` if the ids of this handle aren't granted."""
        with self._database.reading() as connection:
            row = stream_row(connection, self._stream_id)
        return None if row is None or row.ids_end is None else max(0, row.ids_end - row.ids_next)

    def seed_ledgers(self, above: int) -> None:
        """Gives new ledgers of the database ids above ``above``; closes this stream's open one if it isn't."""
        if not 0 <= above < LEDGER_ID_MAX:
            raise InvalidCallError(f"stream {self._stream!r}: no ledger has an id above {above}")
        with self._append_lock:
            closed: list[LedgerInfo] = []
            with self._changing() as connection:
                raise_used(connection, above)
                row = stream_row(connection, self._stream_id)
                if row is not None and row.open_ledger is not None and row.open_ledger.ledger_id <= above:
                    closed = self._end_ledger(connection, row.open_ledger)
            self._listeners.tell_all([], closed)

    def _begin_ledger(
        self, connection: sqlite3.Connection, row: StreamRow, now_ms: int
    ) -> tuple[LedgerInfo, StreamRow]:
        """Opens a ledger; returns it and the stream's row with the remaining ids."""
        if not row.may_begin:
            raise StoreUnavailableError(
                f"stream {self._stream!r}: no ledger id is granted, so that there is no ledger to append to",
                hint="ids are granted when the manifest has recorded them: try again when the object store answers",
            )
        # without a granted id the database picks one
        ledger_id = connection.execute(
            "INSERT INTO ledgers (ledger_id, stream_id, created_ms) VALUES (?, ?, ?)",
            (None if row.ids_end is None else row.ids_next, self._stream_id, now_ms),
        ).lastrowid
        if row.ids_end is not None:
            row = row._replace(ids_next=row.ids_next + 1)
            connection.execute("UPDATE streams SET ids_next = ? WHERE stream_id = ?", (row.ids_next, self._stream_id))
        info = LedgerInfo(ledger_id=ledger_id or 0, closed=False, entries=0, size_bytes=0, created_ms=now_ms)
        return info, row

    def _end_ledger(self, connection: sqlite3.Connection, ledger: LedgerInfo | None) -> list[LedgerInfo]:
        """Closes an open ledger, or removes it if it is empty; returns the closed ledger, if any."""
        if ledger is not None and ledger.entries:
            return [_close(connection, ledger, self._clock.now_ms())]
        if ledger is not None:
            connection.execute("DELETE FROM ledgers WHERE ledger_id = ?", (ledger.ledger_id,))
        return []

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that a view opened for deleting may run too."""
        if self._may_delete:
            with self._database.writing() as connection:
                yield connection
            return
        with self._owning() as (connection, _):
            yield connection

    @contextlib.contextmanager
    def _owning(self) -> Iterator[tuple[sqlite3.Connection, StreamRow]]:
        """A transaction of the stream's owner, and the stream's row; ownership is checked within it."""
        if self._owner is None:
            raise UnsupportedError(
                f"stream {self._stream!r} is open for reading only", hint="open it with open_stream to change it"
            )
        with self._database.writing() as connection:
            row = stream_row(connection, self._stream_id)
            if row is None or row.owner != self._owner:
                newer = "no owner" if row is None else f"owner {row.owner}"
                raise FencedError(
                    f"stream {self._stream!r} in {self._database.path}: owner {self._owner} was replaced by {newer}",
                    hint="another process opened the stream: stop writing here",
                )
            yield connection, row

    def append(
        self,
        payloads: pa.Array | Sequence[bytes],
        publish_times_ms: Sequence[int] | NDArray[np.int64] | int | None = None,
        *,
        notes: Mapping[str, bytes] | None = None,
    ) -> list[EntryBatch]:
        """Appends entries: all of them, durably, in one transaction, or none.

        Args:
            payloads: n byte strings, or an Arrow array of them, without nulls.
            publish_times_ms: n times in ms since 1970 UTC, or one for all; ``None``: now.
            notes: notes to set in the same transaction.

        Returns:
            The written batches in order, one for each ledger (none for no payloads), in immutable memory. Listeners
                were called with the same batches before this returns.

        Raises:
            FencedError: another owner opened the stream since.
            InvalidCallError: not byte strings, or another number of times; ``LimitReachedError``: too large.
            StoreUnavailableError: disk nearly full, or locked; nothing was written.
            OutcomeUnknownError: the disk failed during the commit.
        """
        given = given_entries(
            payloads,
            self._clock.now_ms() if publish_times_ms is None else publish_times_ms,
            where=f"append to stream {self._stream!r}",
        )
        self._check_notes(notes or {})
        with self._append_lock:
            with self._owning() as (connection, row):
                if len(given):
                    self._database.require_room(connection, given.payload_bytes)
                batches, closed = self._write(connection, row, given) if len(given) else ([], [])
                if notes:
                    connection.executemany(
                        "INSERT INTO notes (stream_id, key, value) VALUES (?, ?, ?) "
                        "ON CONFLICT (stream_id, key) DO UPDATE SET value = excluded.value",
                        [(self._stream_id, key, bytes(value)) for key, value in notes.items()],
                    )
            if batches and self._acked is not None:
                self._acked.write(batches[-1].last)
            self._listeners.tell_all(batches, closed)
        return batches

    def close_ledger(self) -> LedgerInfo | None:
        """Closes the open ledger, so that the next append opens another.

        Returns:
            The closed ledger, ``None`` when there was nothing to close (no entries since the last one).

        Raises:
            StoreUnavailableError: no id is granted for the next ledger; this one remains open.
        """
        with self._append_lock:
            with self._owning() as (connection, row):
                if row.open_ledger is None or row.open_ledger.entries == 0:
                    return None
                if not row.may_begin:
                    raise StoreUnavailableError(
                        f"stream {self._stream!r}: ledger {row.open_ledger.ledger_id} remains open: no id is "
                        "granted for the next one",
                        hint="try again when the object store answers",
                    )
                closed = _close(connection, row.open_ledger, self._clock.now_ms())
            self._listeners.tell_closed(closed)
        return closed

    def delete(self, ledger_id: int) -> None:
        """Removes a closed ledger and its entries; a missing ledger counts as removed.

        A view opened for deleting can do this: closed ledgers take no entries, so no owner is disturbed.

        Raises:
            InvalidCallError: the ledger is still open.
        """
        with self._changing() as connection:
            row = connection.execute(f"{SELECT_LEDGER} AND ledger_id = ?", (self._stream_id, ledger_id)).fetchone()
            if row is None:
                return
            if not ledger_info(row).closed:
                raise InvalidCallError(
                    f"stream {self._stream!r} ledger {ledger_id} is open and can't be deleted",
                    hint="close it first (close_ledger)",
                )
            connection.execute("DELETE FROM chunks WHERE ledger_id = ?", (ledger_id,))
            connection.execute("DELETE FROM ledgers WHERE ledger_id = ?", (ledger_id,))

    def release(self, position: Position) -> None:
        """Records that everything up to ``position`` is committed in the cold tier; never moves back."""
        with self._owning() as (connection, _):
            connection.execute(
                "UPDATE streams SET released_ledger_id = ?1, released_entry_id = ?2 WHERE stream_id = ?3 "
                "AND (released_ledger_id, released_entry_id) < (?1, ?2)",
                (position.ledger_id, position.entry_id, self._stream_id),
            )

    def put_note(self, key: str, value: bytes) -> None:
        """Sets a small durable value of the stream, replacing the earlier one."""
        self.append([], notes={key: value})

    def ledgers(self) -> list[LedgerInfo]:
        """All ledgers that still exist, ascending, empty ones included."""
        with self._database.reading() as connection:
            return list(map(ledger_info, connection.execute(f"{SELECT_LEDGER} ORDER BY ledger_id", (self._stream_id,))))

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """As ``LedgerSource.read``.

        Raises:
            CorruptError: stored entries are damaged; names the database, ledger and chunk.
        """
        with self._database.reading() as connection:
            if (found := find_readable(connection, self._stream_id, start)) is None:
                return None
            chunks = chunks_from(connection, found.ledger_id, found.entry_id, max_bytes)
        try:
            batch = join_chunks(chunks, found, object_name=self._database.path)
        except FormatError as error:
            raise CorruptError(
                f"stream {self._stream!r}: {error}",
                hint="restore the database, or read the entries in the object store",
            ) from error
        return part_to_read(batch, found, max_bytes)

    def first_position(self) -> Position | None:
        """The first existing entry, ``None`` if there is none."""
        return self._edge("min", "0")

    def last_position(self) -> Position | None:
        """The last existing entry, ``None`` if there is none."""
        return self._edge("max", "entries - lost_entries - 1")

    def released_position(self) -> Position | None:
        """The newest released position; ``None`` before the first release."""
        row = self._row("SELECT released_ledger_id, released_entry_id FROM streams WHERE stream_id = ?")
        return None if row is None or row[0] < 0 else Position(*row)

    def get_note(self, key: str) -> bytes | None:
        """A note's value, ``None`` when it was never set."""
        row = self._row("SELECT value FROM notes WHERE stream_id = ? AND key = ?", key)
        return None if row is None else bytes(row[0])

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> ListenerSubscription:
        """Calls ``listener`` for each batch appended through this handle after this returns, in order.

        Calls ``closed`` for each ledger that an append fills or closes, before the next one's first batch. Both run in
        the appending thread, after the batch is durable and outside the transaction. Exceptions are logged and change
        nothing.

        Raises:
            UnsupportedError: this is a view, which can't observe other processes' appends.
        """
        if self._owner is None:
            raise UnsupportedError(
                f"stream {self._stream!r} is open for reading only, so it isn't told of appends",
                hint="subscribe to the handle of open_stream, or poll last_position",
            )
        return self._listeners.add(listener, closed)

    def _write(
        self, connection: sqlite3.Connection, row: StreamRow, given: EntryBatch
    ) -> tuple[list[EntryBatch], list[LedgerInfo]]:
        now_ms = self._clock.now_ms()
        written: list[EntryBatch] = []
        closed: list[LedgerInfo] = []
        ledger, done = row.open_ledger, 0
        while done < len(given):
            # Without an id for the next ledger the open one remains open beyond its limits.
            if ledger is not None and row.may_begin and must_roll(ledger, now_ms, self._settings):
                closed.append(_close(connection, ledger, now_ms))
                ledger = None
            if ledger is None:
                ledger, row = self._begin_ledger(connection, row, now_ms)
            rest = given.slice(done, len(given))
            if row.may_begin:
                rest = rest.slice(0, room(ledger, rest, self._settings))
            ids = np.arange(ledger.entries, ledger.entries + len(rest), dtype=np.int64)
            part = EntryBatch(ledger.ledger_id, ids, rest.payloads, rest.publish_times_ms)
            connection.executemany(
                "INSERT INTO chunks (ledger_id, first_entry_id, entries, first_time_ms, crc, lengths, times, payload) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (encode_chunk(piece) for piece in cut_chunks(part)),
            )
            entries, size_bytes = ledger.entries + len(part), ledger.size_bytes + part.payload_bytes
            connection.execute(
                "UPDATE ledgers SET entries = ?, size_bytes = ? WHERE ledger_id = ?",
                (entries, size_bytes, ledger.ledger_id),
            )
            ledger = replace(ledger, entries=entries, size_bytes=size_bytes)
            if row.may_begin and is_full(ledger, self._settings):
                closed.append(_close(connection, ledger, now_ms))
                ledger = None
            written.append(part)
            done += len(part)
        return written, closed

    def _edge(self, end: str, entry_id: str) -> Position | None:
        query = f"SELECT {end}(ledger_id), {entry_id} FROM ledgers WHERE stream_id = ? AND entries > lost_entries"  # noqa: S608 - constants
        row = self._row(query)
        return None if row is None or row[0] is None else Position(*row)

    def _row(self, query: str, *values: str) -> tuple[Any, ...] | None:
        """The first row of a query about this stream, whose id is the first value."""
        with self._database.reading() as connection:
            row: tuple[Any, ...] | None = connection.execute(query, (self._stream_id, *values)).fetchone()
        return row

    def _check_notes(self, notes: Mapping[str, bytes]) -> None:
        for key, value in notes.items():
            if not isinstance(key, str) or not isinstance(value, (bytes, bytearray, memoryview)):
                raise InvalidCallError(f"stream {self._stream!r}: note {key!r} must be a string naming bytes")
            try:
                key.encode()
            except UnicodeEncodeError as error:
                raise InvalidCallError(
                    f"stream {self._stream!r}: note {key!r} isn't text that UTF-8 can hold"
                ) from error
            if len(value) > NOTE_BYTES_MAX:
                raise LimitReachedError(
                    f"stream {self._stream!r}: note {key!r} has {len(value)} bytes, the limit is {NOTE_BYTES_MAX}"
                )


def _close(connection: sqlite3.Connection, ledger: LedgerInfo, now_ms: int) -> LedgerInfo:
    connection.execute("UPDATE ledgers SET closed_ms = ? WHERE ledger_id = ?", (now_ms, ledger.ledger_id))
    return replace(ledger, closed=True, closed_ms=now_ms)
