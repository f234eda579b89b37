"""Durable local ledgers in one SQLite database: the embedded hot tier."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from uuid import UUID

from formats.entries import EntryBatch, Position
from formats.keys import levels_above
from offloader.errors import InvalidCallError, NotFoundError, SourceMismatchError, StoreUnavailableError
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener, LostRange, Subscription, newest_listed
from offloader.ledgers.sqlite.chunks import ENTRY_BYTES_MAX
from offloader.ledgers.sqlite.database import (
    BUSY_TIMEOUT_S,
    AckedEnd,
    AckedFile,
    AckedSlot,
    Database,
    check_entries,
    check_links,
    database_path,
)
from offloader.ledgers.sqlite.stream import (
    LEDGER_ID_MAX,
    NOTE_BYTES_MAX,
    EmbeddedStream,
    newest_given_out,
    raise_used,
    source_id_of,
    stream_row,
)
from offloader.ledgers.tail_buffer import Listeners
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import LedgerSettings
from offloader.stream_names import name_clash, require_stream_name

__all__ = ["ENTRY_BYTES_MAX", "NOTE_BYTES_MAX", "EmbeddedLedgers", "EmbeddedStream", "FollowedStream"]

_log = logging.getLogger(__name__)
#: Payload bytes of one delivered batch.
BATCH_BYTES = 4 * 1024 * 1024
#: Payload bytes of one poll: a stream that is far behind must not delay the others.
LOOK_BYTES_MAX = 64 * 1024 * 1024


def find_lost(
    connection: sqlite3.Connection, stream: str, stream_id: int | None, acked: Iterable[AckedEnd], source_id: bytes
) -> LostRange | None:
    """Acknowledged entries of a stream that the database lacks.

    Args:
        stream_id: ``None``: the database doesn't know the stream.
        acked: the stream's slots in the file beside the database, read before the transaction began.
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
        first = Position(0, 0) if reached is None else reached.next()
        if first <= each.end:
            return LostRange(stream=stream, first=first, last=each.end, source_id=each.source_id)
    return None


def lost_with_database(path: str, streams: Iterable[str]) -> list[LostRange]:
    """Entries of streams that a database acknowledged whose file is missing, by the file of acknowledged ends beside
    it.

    Raises:
        StoreUnavailableError: that file can't be read.
    """
    acked = AckedFile(f"{path}.acked")
    try:
        acked.load()
        slots = [(stream, acked.of_stream(stream)) for stream in streams]
    except OSError as error:
        raise StoreUnavailableError(f"{acked.path} can't be read: {error.strerror}") from error
    finally:
        acked.close()
    return [
        LostRange(stream=stream, first=Position(0, 0), last=each.end, source_id=each.source_id)
        for stream, found in slots
        for each in found[:1]
        if each.end.ledger_id >= 0
    ]


def refused(path: str, lost: LostRange) -> SourceMismatchError:
    """The error for appending to a stream that lost entries."""
    by, but = "", f"has none from {lost.first} on"
    if lost.is_other:
        by, but = f" by database {lost.source_id}", "is a different database"
    return SourceMismatchError(
        f"stream {lost.stream!r}: entries up to {lost.last} were acknowledged{by} according to {path}.acked, "
        f"but ledger database {path} {but}",
        hint=f"restore {path} with its -wal file from a complete copy; or continue without these entries: "
        f"offloader stream accept-loss {lost.stream}",
    )


def require_whole(
    path: str, losses: Iterable[LostRange], stream: str, committed: Position | None, last: Position | None = None
) -> None:
    """Requires that a database has every acknowledged entry of a stream that isn't committed.

    Args:
        losses: of the database.
        committed: the stream's committed end.
        last: the newest entry to check; ``None``: check all.

    Raises:
        SourceMismatchError: entries are missing.
    """
    for lost in losses:
        if lost.stream == stream and lost.is_after(committed) and (last is None or lost.first <= last):
            raise refused(path, lost)


def accept_lost(connection: sqlite3.Connection, stream_id: int, lost: LostRange, now_ms: int) -> None:
    """Records entries as lost permanently, inside the caller's transaction: their positions remain used.

    The last ledger lists them as lost. Ledgers between it and the first lost entry remain unknown.
    """
    ledger_id, entries = lost.last.ledger_id, lost.last.entry_id + 1
    raise_used(connection, ledger_id)
    if lost.is_other:
        return
    _close_open(connection, stream_id, now_ms)
    connection.execute(
        "INSERT OR IGNORE INTO ledgers (ledger_id, stream_id, created_ms, closed_ms) VALUES (?, ?, ?, ?)",
        (ledger_id, stream_id, now_ms, now_ms),
    )
    connection.execute(
        "UPDATE ledgers SET lost_entries = lost_entries + ?1 - entries, entries = ?1 "
        "WHERE ledger_id = ?2 AND stream_id = ?3",
        (entries, ledger_id, stream_id),
    )


def _close_open(connection: sqlite3.Connection, stream_id: int, now_ms: int) -> None:
    connection.execute(
        "UPDATE ledgers SET closed_ms = ? WHERE stream_id = ? AND closed_ms IS NULL", (now_ms, stream_id)
    )


def _stream_id(connection: sqlite3.Connection, stream: str) -> int | None:
    row = connection.execute("SELECT stream_id FROM streams WHERE stream = ?", (stream,)).fetchone()
    return None if row is None else int(row[0])


def _next_owner(connection: sqlite3.Connection, stream: str) -> tuple[int, int]:
    """Makes the stream if it is missing, and replaces its owner; returns its number and the new owner's."""
    connection.execute("INSERT OR IGNORE INTO streams (stream, owner) VALUES (?, 0)", (stream,))
    connection.execute("UPDATE streams SET owner = owner + 1 WHERE stream = ?", (stream,))
    stream_id, owner = connection.execute("SELECT stream_id, owner FROM streams WHERE stream = ?", (stream,)).fetchone()
    return stream_id, owner


class EmbeddedLedgers:
    """Many streams' ledgers in one database; any number of threads and processes.

    Args:
        url_or_path: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://:memory:`` or a path.
        settings: when ledgers roll over.
        create, busy_timeout_s, entropy: as of ``Database``.

    Raises:
        as ``Database``; ``CorruptError``: ledgers, streams and entries don't match.
    """

    def __init__(
        self,
        url_or_path: str,
        *,
        settings: LedgerSettings | None = None,
        clock: Clock | None = None,
        create: bool = True,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._settings, self._clock = settings or LedgerSettings(), clock or SystemClock()
        path = database_path(url_or_path)
        self._database = Database(
            path, clock=self._clock, create=create, busy_timeout_s=busy_timeout_s, entropy=entropy
        )
        # An in-memory database ends with its process: there is nothing to compare later.
        self._acked = None if path == ":memory:" else AckedFile(f"{path}.acked")
        try:
            with self._database.reading() as connection:
                check_links(connection, self.path)
            for lost in self.losses():
                _log.warning(
                    "%s", refused(self.path, lost), extra={"event": "acknowledged_lost", "stream": lost.stream}
                )
        except BaseException:
            self.close()
            raise

    @property
    def settings(self) -> LedgerSettings:
        """When its ledgers roll over."""
        return self._settings

    @property
    def path(self) -> str:
        """The database's file, or ``:memory:``."""
        return self._database.path

    def open_stream(self, stream: str, *, held: bool = False, above: int = 0) -> EmbeddedStream:
        """Opens the stream for appends; creates it if it is missing.

        One transaction takes the next owner number, closes the open ledger (an empty one is removed) and opens a new
        one. This fences the previous owner.

        Args:
            held: open no ledger and accept no append before ``grant_ledgers``.
            above: new ledgers of the database get ids above this one.

        Raises:
            InvalidCallError: not a stream name, a new one that begins with the levels of another, or the other way
                round; no ledger id can be above ``above``.
            SourceMismatchError: the database lacks acknowledged entries; ``accept_loss`` continues without them.
            CorruptError: a ledger of the stream differs from the written data.
        """
        _require_name(stream)
        if not 0 <= above < LEDGER_ID_MAX:
            raise InvalidCallError(f"stream {stream!r}: no ledger has an id above {above}")
        now_ms = self._clock.now_ms()
        with contextlib.ExitStack() as undo:
            with self._database.writing() as connection:
                _require_own_level(connection, stream)
                stream_id, owner = _next_owner(connection, stream)
                connection.execute(
                    "UPDATE streams SET ids_next = 0, ids_end = ? WHERE stream_id = ?", (0 if held else None, stream_id)
                )
                check_entries(connection, self.path, stream_id)
                acked = self._acked_slot(connection, stream, stream_id, owner)
                if acked is not None:
                    undo.callback(acked.take_back)
                connection.execute(
                    "DELETE FROM ledgers WHERE stream_id = ? AND closed_ms IS NULL AND entries = 0", (stream_id,)
                )
                _close_open(connection, stream_id, now_ms)
                raise_used(connection, above)
                if not held:
                    connection.execute("INSERT INTO ledgers (stream_id, created_ms) VALUES (?, ?)", (stream_id, now_ms))
            undo.pop_all()
        return EmbeddedStream(self._database, self._settings, self._clock, stream, stream_id, owner, acked=acked)

    def losses(self, others: Iterable[str] = ()) -> list[LostRange]:
        """Acknowledged entries that the database lacks; the affected streams are read-only.

        Args:
            others: further streams, which the database may have forgotten.
        """
        if self._acked is None:
            return []
        streams = {*self.streams(), *others}  # first: after ``close`` it raises, and the file would be opened again
        with self._database.translated("reading its acknowledged ends"):
            self._acked.load()
        acked = {stream: self._acked.of_stream(stream) for stream in streams}
        with self._database.reading() as connection:
            source_id = source_id_of(connection)
            known = dict(connection.execute("SELECT stream, stream_id FROM streams"))
            found = [find_lost(connection, name, known.get(name), acked[name], source_id) for name in sorted(acked)]
        return [lost for lost in found if lost is not None]

    def require_name(self, stream: str) -> None:
        """Refuses a name that no stream of this database can have, before anything is created for it.

        Raises:
            InvalidCallError: as ``open_stream``.
        """
        _require_name(stream)
        with self._database.reading() as connection:
            _require_own_level(connection, stream)

    def accept_loss(self, stream: str, *, dry_run: bool = False) -> list[LostRange]:
        """Accepts the loss of acknowledged entries, so that the stream can be opened again.

        Their positions remain used. The ledger of the last one lists them as lost (``LedgerInfo.lost``).

        Returns:
            The lost entries; empty, and nothing is changed, when the database has everything that was acknowledged.
        """
        _require_name(stream)
        if self._acked is None:
            return []
        with self._database.writing() as connection:
            self._acked.load()
            source_id, acked = source_id_of(connection), self._acked.of_stream(stream)
            lost = find_lost(connection, stream, _stream_id(connection, stream), acked, source_id)
            if lost is None or dry_run:
                return [] if lost is None else [lost]
            stream_id, owner = _next_owner(connection, stream)
            accept_lost(connection, stream_id, lost, self._clock.now_ms())
            reached = newest_given_out(connection, stream_id)
        # After the database: a crash before this makes the operator repeat the call.
        with self._database.writing() as connection:
            row = stream_row(connection, stream_id)
            if row is not None and row.owner == owner:  # else a writer that came meanwhile has acknowledged more
                self._acked.replace(stream, UUID(bytes=source_id), reached, owner)
        _log.warning(
            "stream %s: accepted that entries from %s up to %s are lost", stream, lost.first, lost.last,
            extra={"event": "loss_accepted", "stream": stream},
        )  # fmt: skip
        return [lost]

    def _acked_slot(self, connection: sqlite3.Connection, stream: str, stream_id: int, owner: int) -> AckedSlot | None:
        """The slot for a new owner's acknowledged end; new ledgers get ids above all recorded ones.

        Raises:
            SourceMismatchError: the database lacks acknowledged entries.
        """
        if self._acked is None:
            return None
        source_id = source_id_of(connection)
        if not self._acked.load():
            if connection.execute("SELECT has_acked_file FROM identity").fetchone()[0]:
                _log.warning(
                    "%s is missing: it can't show whether ledger database %s has everything that it acknowledged",
                    self._acked.path, self.path, extra={"event": "acked_file_gone"},
                )  # fmt: skip
            self._acked.make()
            connection.execute("UPDATE identity SET has_acked_file = 1")
        lost = find_lost(connection, stream, stream_id, self._acked.of_stream(stream), source_id)
        if lost is not None:
            raise refused(self.path, lost)
        raise_used(connection, self._acked.newest_ledger)
        return self._acked.replace(stream, UUID(bytes=source_id), newest_given_out(connection, stream_id), owner)

    def source_of(self, stream: str, *, may_delete: bool = False) -> EmbeddedStream | None:
        """As ``view_stream``; ``None``: the database doesn't have the stream."""
        with suppress(NotFoundError):
            return self.view_stream(stream, may_delete=may_delete)
        return None

    def view_stream(self, stream: str, *, may_delete: bool = False) -> EmbeddedStream:
        """Opens the stream read-only, without taking ownership.

        Args:
            may_delete: allow deleting closed ledgers and recording starts.

        Raises:
            NotFoundError: no such stream.
            CorruptError: a ledger of the stream differs from the written data.
        """
        with self._database.reading() as connection:
            if (stream_id := _stream_id(connection, stream)) is not None:
                check_entries(connection, self.path, stream_id)
        if stream_id is None:
            known = self.streams()
            some = f"{', '.join(known[:5])}{' ...' if len(known) > 5 else ''}"
            raise NotFoundError(
                f"stream {stream!r} isn't in ledger database {self.path}", hint=f"it has {some or 'no streams'}"
            )
        return EmbeddedStream(
            self._database, self._settings, self._clock, stream, stream_id, None, may_delete=may_delete
        )

    def streams(self) -> list[str]:
        """Names of all streams, ascending."""
        with self._database.reading() as connection:
            return [row[0] for row in connection.execute("SELECT stream FROM streams ORDER BY stream")]

    def version(self) -> int:
        """A number that changes whenever any process or connection has changed the database."""
        return self._database.version()

    def close(self) -> None:
        """Closes the database; open ledgers remain open until their stream is opened again."""
        self._database.close()
        if self._acked is not None:
            self._acked.close()


def _require_name(stream: str) -> None:
    require_stream_name(stream)
    if not stream.isprintable():
        raise InvalidCallError(
            f"{stream!r} is not a stream name: it has unprintable characters",
            hint="for example public/default/persistent/orders",
        )


def _require_own_level(connection: sqlite3.Connection, stream: str) -> None:
    """Requires that a new stream's name can coexist with the others in a store."""
    if _stream_id(connection, stream) is not None:
        return
    above = [name for name in levels_above(stream) if _stream_id(connection, name) is not None]
    # "0" comes after "/".
    below = "SELECT stream FROM streams WHERE stream > ?1 || '/' AND stream < ?1 || '0' LIMIT 1"
    if clashing := [*above, *(row[0] for row in connection.execute(below, (stream,)))]:
        raise name_clash(stream, clashing[0])


class FollowedStream:
    """A ``LedgerSource`` over a view; ``look`` polls for appends and calls the listeners. Thread-safe.

    Args:
        view: opened with ``may_delete``, so that hot copies can be released and starts recorded.
    """

    def __init__(self, view: EmbeddedStream) -> None:
        self.inner = view
        self._listeners = Listeners(view.stream)
        # Held during a poll, so that deliveries are in order.
        self._looking = threading.Lock()
        self._told: Position | None = None
        #: The end of ledgers up to this one was delivered.
        self._ended = -1
        self._is_heard = False

    def ledgers(self) -> list[LedgerInfo]:
        return self.inner.ledgers()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        return self.inner.read(start, max_bytes)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        with self._looking:
            if not self._is_heard:
                # The listener learns of earlier entries from ``ledgers``.
                self._is_heard = True
                infos = self.inner.ledgers()
                self._told = newest_listed(infos)
                self._ended = max((info.ledger_id for info in infos if info.closed), default=-1)
            return self._listeners.add(listener, closed)

    def release(self, position: Position) -> None:
        """Does nothing: a view can't write this, and only the appending process would read it."""

    def delete(self, ledger_id: int) -> None:
        self.inner.delete(ledger_id)

    def look(self) -> bool:
        """Delivers the entries appended since the last poll; returns whether more are left.

        Raises: as ``EmbeddedStream.read``.
        """
        with self._looking:
            if not self._is_heard:
                return False
            if not self._listeners.want_entries:
                self._told = self.inner.last_position() or self._told
            left_bytes = LOOK_BYTES_MAX
            while left_bytes > 0:
                start = Position(0, 0) if self._told is None else self._told.next()
                if (batch := self.inner.read(start, BATCH_BYTES)) is None:
                    self._tell_ends(None)
                    return False
                if self._told is None or batch.ledger_id != self._told.ledger_id:
                    self._tell_ends(batch.ledger_id)
                self._listeners.tell(batch)
                self._told = batch.last
                left_bytes -= max(batch.payload_bytes, 1)
            return True

    def _tell_ends(self, before: int | None) -> None:
        """Delivers the ends of fully delivered ledgers: those before ``before``, or all."""
        for info in self.inner.ledgers():
            if info.ledger_id <= self._ended or not info.closed or (before is not None and info.ledger_id >= before):
                continue
            told = self._told is not None and Position(info.ledger_id, info.last_entry_id) <= self._told
            if not told and info.entries:
                return  # appended to and closed since: its entries come first
            self._ended = info.ledger_id
            self._listeners.tell_closed(info)


def has_stream(ledgers: str | EmbeddedLedgers, stream: str) -> bool:
    """Whether a database, open or by its URL, exists and has the stream; creates nothing."""
    if isinstance(ledgers, EmbeddedLedgers):
        return stream in ledgers.streams()
    with suppress(NotFoundError), contextlib.closing(EmbeddedLedgers(ledgers, create=False)) as database:
        return stream in database.streams()
    return False
