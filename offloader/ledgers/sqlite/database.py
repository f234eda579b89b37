"""SQLite database of embedded ledgers: connections, transactions, tables; the file of acknowledged ends beside it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import queue
import shutil
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from formats.checksum import crc32c
from formats.entries import Position
from offloader.errors import (
    AccessDeniedError,
    ClosedError,
    CorruptError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.runtime.clock import Clock
from offloader.runtime.system import make_directories, sync_name

#: Application id ("offl"), which distinguishes the file from other programs' databases.
_APPLICATION_ID = 0x6F66666C
_SCHEMA_VERSION = 4
_VERSION_1 = (
    """CREATE TABLE streams (
        stream_id INTEGER PRIMARY KEY, stream TEXT NOT NULL UNIQUE, owner INTEGER NOT NULL,
        released_ledger_id INTEGER NOT NULL DEFAULT -1, released_entry_id INTEGER NOT NULL DEFAULT -1)""",
    """CREATE TABLE ledgers (
        ledger_id INTEGER PRIMARY KEY AUTOINCREMENT, stream_id INTEGER NOT NULL, entries INTEGER NOT NULL DEFAULT 0,
        size_bytes INTEGER NOT NULL DEFAULT 0, created_ms INTEGER NOT NULL, closed_ms INTEGER)""",
    "CREATE INDEX ledgers_of_stream ON ledgers (stream_id, ledger_id)",
    # payload is last: SQLite reads a row's columns from the front and skips overflow pages it doesn't need
    """CREATE TABLE chunks (
        ledger_id INTEGER NOT NULL, first_entry_id INTEGER NOT NULL, entries INTEGER NOT NULL,
        first_time_ms INTEGER NOT NULL, crc INTEGER NOT NULL, lengths BLOB, times BLOB, payload BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX chunks_in_order ON chunks (ledger_id, first_entry_id)",
    """CREATE TABLE notes (
        stream_id INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (stream_id, key))""",
)
#: Version 2 adds the database's identity, starts, the newest positions, and the streams of ledgers. Chunks keep their
#: table: a foreign key would require rewriting all of them.
_VERSION_2 = (
    # has_acked_file: the file of acknowledged ends existed, so that its absence is detected.
    "CREATE TABLE identity (source_id BLOB NOT NULL, has_acked_file INTEGER NOT NULL DEFAULT 0)",
    # ledgers_held: kept by triggers, to detect a ledger whose stream_id was changed.
    "ALTER TABLE streams ADD COLUMN ledgers_held INTEGER NOT NULL DEFAULT 0",
    # The newest position in deleted ledgers.
    "ALTER TABLE streams ADD COLUMN reached_ledger_id INTEGER NOT NULL DEFAULT -1",
    "ALTER TABLE streams ADD COLUMN reached_entry_id INTEGER NOT NULL DEFAULT -1",
    # Ledger ids granted to the owner and not used yet, ids_next up to before ids_end; NULL: any above all others.
    "ALTER TABLE streams ADD COLUMN ids_next INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE streams ADD COLUMN ids_end INTEGER",
    "ALTER TABLE streams ADD COLUMN manifest_incarnation BLOB",
    "ALTER TABLE streams ADD COLUMN manifest_record_id INTEGER",
    # lost_entries: the last ones of entries, acknowledged, missing, and accepted as lost.
    """CREATE TABLE linked_ledgers (
        ledger_id INTEGER PRIMARY KEY AUTOINCREMENT, stream_id INTEGER NOT NULL REFERENCES streams,
        entries INTEGER NOT NULL DEFAULT 0, size_bytes INTEGER NOT NULL DEFAULT 0, created_ms INTEGER NOT NULL,
        closed_ms INTEGER, lost_entries INTEGER NOT NULL DEFAULT 0)""",
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'linked_ledgers', seq FROM sqlite_sequence WHERE name = 'ledgers'",
    """INSERT INTO linked_ledgers (ledger_id, stream_id, entries, size_bytes, created_ms, closed_ms)
        SELECT ledger_id, stream_id, entries, size_bytes, created_ms, closed_ms FROM ledgers""",
    "DROP TABLE ledgers",
    "ALTER TABLE linked_ledgers RENAME TO ledgers",
    "CREATE INDEX ledgers_of_stream ON ledgers (stream_id, ledger_id)",
    """CREATE TABLE starts (
        start_id INTEGER PRIMARY KEY AUTOINCREMENT, stream_id INTEGER NOT NULL REFERENCES streams,
        token TEXT NOT NULL, UNIQUE (stream_id, token))""",
    "UPDATE streams SET ledgers_held = (SELECT count(*) FROM ledgers WHERE ledgers.stream_id = streams.stream_id)",
    """CREATE TRIGGER ledger_made AFTER INSERT ON ledgers BEGIN
        UPDATE streams SET ledgers_held = ledgers_held + 1 WHERE stream_id = NEW.stream_id; END""",
    """CREATE TRIGGER ledger_gone AFTER DELETE ON ledgers BEGIN
        UPDATE streams SET ledgers_held = ledgers_held - 1 WHERE stream_id = OLD.stream_id;
        UPDATE streams SET reached_ledger_id = OLD.ledger_id, reached_entry_id = OLD.entries - 1
            WHERE stream_id = OLD.stream_id AND OLD.entries > 0 AND reached_ledger_id < OLD.ledger_id; END""",
)
#: Version 3 keeps every manifest that a stream was committed to, the newest last, not only that one.
_VERSION_3 = (
    """CREATE TABLE manifests (
        note_id INTEGER PRIMARY KEY AUTOINCREMENT, stream_id INTEGER NOT NULL REFERENCES streams,
        incarnation BLOB NOT NULL, record_id INTEGER NOT NULL, UNIQUE (stream_id, incarnation))""",
    """INSERT INTO manifests (stream_id, incarnation, record_id)
        SELECT stream_id, manifest_incarnation, manifest_record_id FROM streams
        WHERE manifest_incarnation IS NOT NULL""",
    "ALTER TABLE streams DROP COLUMN manifest_incarnation",
    "ALTER TABLE streams DROP COLUMN manifest_record_id",
)
#: Version 4 keeps the identity of the store that a stream was committed to.
_VERSION_4 = ("ALTER TABLE streams ADD COLUMN store_id BLOB",)
_ORPHANED_LEDGER = (
    "SELECT ledger_id, stream_id FROM ledgers WHERE stream_id NOT IN (SELECT stream_id FROM streams) LIMIT 1"
)
_LEDGERS_HELD = (
    "SELECT stream, found, ledgers_held FROM (SELECT stream, ledgers_held, (SELECT count(*) FROM ledgers "
    "WHERE ledgers.stream_id = streams.stream_id) AS found FROM streams) WHERE found != ledgers_held LIMIT 1"
)
# Skips from one ledger to the next in the index, however many chunks each has.
_ORPHANED_CHUNK = (
    "WITH RECURSIVE stored (ledger_id) AS (SELECT min(ledger_id) FROM chunks UNION ALL "
    "SELECT (SELECT min(ledger_id) FROM chunks WHERE ledger_id > stored.ledger_id) FROM stored "
    "WHERE stored.ledger_id IS NOT NULL) SELECT ledger_id FROM stored WHERE ledger_id IS NOT NULL "
    "AND ledger_id NOT IN (SELECT ledger_id FROM ledgers) LIMIT 1"
)
_ENTRIES_STORED = (
    "SELECT ledger_id, listed, stored FROM (SELECT ledger_id, entries - lost_entries AS listed, "
    "coalesce((SELECT first_entry_id + chunks.entries FROM chunks WHERE chunks.ledger_id = ledgers.ledger_id "
    "ORDER BY first_entry_id DESC LIMIT 1), 0) AS stored FROM ledgers WHERE stream_id = ?) "
    "WHERE listed != stored LIMIT 1"
)
_RESTORE = "restore the database from a copy, or begin a new one and read the entries in the object store"


def check_identity(connection: sqlite3.Connection, path: str) -> int:
    """The schema's version, 0 for an empty file.

    ``InvalidCallError``: another program's database; ``UnsupportedError``: written by a newer release.
    """
    version = _number(connection, "PRAGMA user_version")
    is_new = not _number(connection, "SELECT count(*) FROM sqlite_master")
    if not is_new and _number(connection, "PRAGMA application_id") != _APPLICATION_ID:
        raise InvalidCallError(f"{path} is another program's SQLite database", hint="use a separate file")
    if version > _SCHEMA_VERSION:
        raise UnsupportedError(
            f"ledger database {path} has schema version {version}, this release knows {_SCHEMA_VERSION}",
            hint="use the release that wrote it, or a newer one",
        )
    return version


def prepare_schema(connection: sqlite3.Connection, path: str, entropy: Callable[[int], bytes]) -> bool:
    """Creates or migrates the tables inside the caller's write transaction; returns whether anything changed.

    Raises: as ``check_identity`` and ``check_links``.
    """
    if (version := check_identity(connection, path)) == 0:
        for statement in (*_VERSION_1, f"PRAGMA application_id = {_APPLICATION_ID}"):
            connection.execute(statement)
    if version < 2:
        check_links(connection, path)
        for statement in _VERSION_2:
            connection.execute(statement)
        connection.execute("INSERT INTO identity (source_id) VALUES (?)", (UUID(bytes=entropy(16), version=4).bytes,))
    for statement in (*(_VERSION_3 if version < 3 else ()), *(_VERSION_4 if version < 4 else ())):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    return version < _SCHEMA_VERSION


def check_links(connection: sqlite3.Connection, path: str) -> None:
    """Raises ``CorruptError`` for ledgers without a stream, ledgers that a stream misses, and entries without a
    ledger."""
    held = (_LEDGERS_HELD, "stream {} has {} ledgers of {}: one of its ledgers belongs to another stream")
    checks = [
        (_ORPHANED_LEDGER, "ledger {} belongs to stream number {}, which doesn't exist"),
        *([held] if _number(connection, "PRAGMA user_version") >= 2 else []),
        (_ORPHANED_CHUNK, "there are entries of ledger {}, which doesn't exist"),
    ]
    _check(connection, path, checks)


def check_entries(connection: sqlite3.Connection, path: str, stream_id: int) -> None:
    """Raises ``CorruptError`` for a ledger of a stream whose number of entries differs from the stored entries."""
    _check(connection, path, [(_ENTRIES_STORED, "ledger {} has {} entries, but {} are stored")], stream_id)


def _check(connection: sqlite3.Connection, path: str, checks: Sequence[tuple[str, str]], *values: int) -> None:
    for query, what in checks:
        if (found := connection.execute(query, values).fetchone()) is not None:
            raise CorruptError(f"ledger database {path} is damaged: {what.format(*found)}", hint=_RESTORE)


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


#: How long a call waits for another writing process before it fails.
BUSY_TIMEOUT_S = 20.0
#: Concurrent reads; further ones wait.
READERS_MAX = 4
#: Page size of a new database: payloads are large, so large pages are faster.
PAGE_BYTES = 16 * 1024
#: Page cache of one connection.
CACHE_BYTES = 8 * 1024 * 1024
#: Pages in the write-ahead log after which it is checkpointed into the database (64 MiB).
_WAL_PAGES = 4096
#: Size to which a larger write-ahead log file is truncated.
_WAL_FILE_BYTES = 64 * 1024 * 1024
#: Disk space kept free beside the write-ahead log's checkpoint, for deletions: deleting writes too.
RESERVE_BYTES = 4 * 1024 * 1024
#: Of each connection.
_PRAGMAS = {
    "page_size": PAGE_BYTES,
    "synchronous": "FULL",
    "foreign_keys": "ON",
    "secure_delete": "OFF",
    "cache_size": -CACHE_BYTES // 1024,
    "wal_autocheckpoint": _WAL_PAGES,
    "journal_size_limit": _WAL_FILE_BYTES,
}
_FREE = "free some space and try again"


def database_path(url_or_path: str) -> str:
    """Parses ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or a path into a path; ``:memory:`` isn't changed.

    ``InvalidCallError``: another scheme, a host, or empty.
    """
    hint = "write sqlite:///relative.db, sqlite:////absolute.db, sqlite://:memory: or a path"
    path = url_or_path
    if "://" in url_or_path:
        scheme, _, rest = url_or_path.partition("://")
        if scheme != "sqlite" or not (rest.startswith("/") or rest == ":memory:"):
            raise InvalidCallError(f"ledgers {url_or_path!r}: not the URL of an embedded ledger database", hint=hint)
        path = rest.removeprefix("/")
    if not path or "\0" in path:
        raise InvalidCallError(f"ledgers {url_or_path!r}: no file is given", hint=hint)
    return path


class Database:
    """One SQLite file (WAL, every commit synced): one writing connection, a bounded pool of reading ones.

    Args:
        clock: for waiting while another process creates the same file.
        create: create a missing file and directory.
        busy_timeout_s: how long a call waits for another writing process.
        entropy: randomness of a new database's identity, for tests.

    Raises:
        NotFoundError: no such file and ``create`` is false.
        AccessDeniedError: it can't be opened or created.
        CorruptError: not a database.
        InvalidCallError: the database of another program.
        UnsupportedError: written by a newer release.
        StoreUnavailableError: locked for longer than ``busy_timeout_s``, or the disk is full.
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Clock,
        create: bool = True,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.path, self._clock, self._busy_timeout_s, self._entropy = path, clock, busy_timeout_s, entropy
        # Used at each append, so the paths are built once.
        self._folder, self._log = str(Path(path).absolute().parent), Path(f"{path}-wal")
        self._write_lock = threading.Lock()
        self._closed = False
        self._readers: queue.LifoQueue[sqlite3.Connection | None] = queue.LifoQueue(READERS_MAX)
        self._in_memory = path == ":memory:"
        #: Reads and writes nothing, so that every change it sees is another connection's.
        self._watcher: sqlite3.Connection | None = None
        with self.translated("opening it"):
            if not self._in_memory:
                self._prepare_file(create)
            self._writer = self._connect()
            try:
                self._prepare_schema()
            except BaseException:
                self._writer.close()
                raise
        for _ in range(READERS_MAX):
            self._readers.put(None)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One durable transaction, or none when it raises. ``OutcomeUnknownError``: the disk failed during the
        commit."""
        with self._write_lock:
            self._check_open()
            connection = self._writer
            try:
                with self.translated("writing"):
                    connection.execute("BEGIN IMMEDIATE")
                    yield connection
                self._commit(connection)
            except BaseException:
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise

    def require_room(self, connection: sqlite3.Connection, size_bytes: int) -> None:
        """Raises ``StoreUnavailableError`` for an insert that would leave no space for deletions.

        On a full disk SQLite can't delete: a deletion is first written to the log, and the log's checkpoint may grow
        the file. ``connection`` is the inserting transaction's.
        """
        if self._in_memory:
            return
        log_bytes = self._log.stat().st_size if self._log.exists() else 0
        free = shutil.disk_usage(self._folder).free
        if free >= 2 * size_bytes + log_bytes + RESERVE_BYTES:  # more than needed
            return
        pages, unused = (_number(connection, f"PRAGMA {each}_count") for each in ("page", "freelist"))
        # Space that the file needs for the log's content beyond its free pages, and the log's growth.
        fold = max(pages * PAGE_BYTES - Path(self.path).stat().st_size, 0)
        wanted = fold + max(size_bytes - unused * PAGE_BYTES, 0) + size_bytes + RESERVE_BYTES
        if free < wanted:
            raise StoreUnavailableError(
                f"ledger database {self.path}: the disk is nearly full: {free:,} bytes are free, and "
                f"{wanted:,} are needed so that old entries can still be deleted; nothing was written",
                hint=_FREE,
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A consistent view of everything committed, for any number of statements."""
        if self._in_memory:
            # an in-memory database exists in its one connection only
            with self._write_lock, self.translated("reading"):
                self._check_open()
                yield self._writer
            return
        connection = self._readers.get()
        try:
            self._check_open()
            with self.translated("reading"):
                connection = connection or self._connect()
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        finally:
            self._readers.put(connection)

    def version(self) -> int:
        """A number that changes whenever any process or connection has changed the database."""
        with self._write_lock, self.translated("looking"):
            self._check_open()
            if self._in_memory:
                return int(self._writer.total_changes)
            self._watcher = self._watcher or self._connect()
            return _number(self._watcher, "PRAGMA data_version")

    def close(self) -> None:
        """Closes all connections after running reads have ended. Idempotent."""
        with self._write_lock:
            if self._closed:
                return
            self._closed = True
            readers = [self._readers.get() for _ in range(READERS_MAX)]
            for _ in readers:
                self._readers.put(None)
            for connection in (*readers, self._writer, self._watcher):
                if connection is not None:
                    connection.close()

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Translates SQLite's and the file system's errors to this project's."""
        try:
            yield
        except OffloaderError:
            raise
        except sqlite3.Error as error:
            raise _translate(error, self.path, doing) from error
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreUnavailableError(
                    f"{self.path}: the disk is full; nothing was written", hint=_FREE
                ) from error
            raise AccessDeniedError(
                f"ledger database {self.path}: {doing} failed: {error.strerror or error}",
                hint="use a file in a directory you may write to",
            ) from error

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"ledger database {self.path} is closed", hint="open it again")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            for name, value in _PRAGMAS.items():
                connection.execute(f"PRAGMA {name} = {value}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare_file(self, create: bool) -> None:
        path = Path(self.path)
        is_there = path.exists()
        if not is_there and not create:
            raise NotFoundError(f"ledger database {path} doesn't exist", hint="check the path; appending creates it")
        if not is_there:
            make_directories(path.absolute().parent)
            path.touch()
        # The directory entry must survive a power cut too, also if the process that created it hasn't synced yet.
        with contextlib.suppress(*([PermissionError] if is_there else [])):
            sync_name(path)

    def _prepare_schema(self) -> None:
        connection = self._writer
        check_identity(connection, self.path)
        if not self._in_memory:
            self._switch_to_wal(connection)
        # On an error the caller closes the connection, which rolls back.
        connection.execute("BEGIN IMMEDIATE")
        is_changed = prepare_schema(connection, self.path, self._entropy)
        connection.execute("COMMIT")
        if is_changed and not self._in_memory:
            # Moves the identity out of the log, which damage may truncate.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        # SQLite doesn't wait for this lock, so two concurrent first openers would collide
        deadline_s = self._clock.monotonic_s() + self._busy_timeout_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or self._clock.monotonic_s() > deadline_s:
                    raise
            self._clock.wait(threading.Event(), 0.02)

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
                raise OutcomeUnknownError(
                    f"ledger database {self.path}: the disk failed during a commit ({error})",
                    hint="check the disk, open the stream again and check its last position",
                ) from error
            raise _translate(error, self.path, "committing") from error


_ErrorText = tuple[type[OffloaderError], str, str]
_DISK_FULL: _ErrorText = (
    StoreUnavailableError,
    "{where}: {doing} failed: the disk is full; nothing was written",
    _FREE,
)
_LOCKED: _ErrorText = (
    StoreUnavailableError,
    "{where}: {doing} failed: another process holds the lock",
    "wait for that process or end it",
)
_DENIED: _ErrorText = (
    AccessDeniedError,
    "{where}: {doing} failed: {error}",
    "use a file in a directory you may write to",
)
#: SQLite's error code, with or without its extension -> the error here, its text and hint.
_ERRORS: dict[int, _ErrorText] = {
    sqlite3.SQLITE_FULL: _DISK_FULL,
    # Each process needs 32 KiB beside the file; SQLite has no separate error code for a disk without that space.
    sqlite3.SQLITE_IOERR_SHMSIZE: _DISK_FULL,
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_NOTADB: (CorruptError, "{path} is not a ledger database", "use another file, or remove this one"),
    sqlite3.SQLITE_CORRUPT: (
        CorruptError,
        "{where} is damaged: {error}",
        "restore it, or read the entries in the object store",
    ),
    sqlite3.SQLITE_CANTOPEN: _DENIED,
    sqlite3.SQLITE_READONLY: _DENIED,
    sqlite3.SQLITE_PERM: _DENIED,
    sqlite3.SQLITE_AUTH: _DENIED,
    sqlite3.SQLITE_TOOBIG: (LimitReachedError, "{where}: an entry is larger than SQLite's limit: {error}", ""),
    sqlite3.SQLITE_IOERR: (
        StoreUnavailableError,
        "{where}: {doing} failed: the disk failed ({name})",
        "check the system's log and the disk, and try again",
    ),
}
_OTHER: _ErrorText = (OffloaderError, "{where}: {doing} failed: {error}", "this is a bug, please report it")


def _translate(error: sqlite3.Error, path: str, doing: str) -> OffloaderError:
    code = getattr(error, "sqlite_errorcode", 0)
    kind, text, hint = _ERRORS.get(code) or _ERRORS.get(code & 0xFF, _OTHER)
    name = getattr(error, "sqlite_errorname", "SQLITE_IOERR")
    return kind(text.format(where=f"ledger database {path}", path=path, doing=doing, error=error, name=name), hint=hint)


_log = logging.getLogger(__name__)

#: Format magic in the first bytes of each slot.
_MAGIC = b"OAK1"
#: magic, digest of the stream's name, the database's uuid, owner (bytes in the order of the number), ledger, entry.
_FIELDS = struct.Struct(">4s16s16sQqq")
_OWNER = slice(36, 44)
_CRC = struct.Struct(">I")
SLOT_BYTES = _FIELDS.size + _CRC.size


class AckedEnd(NamedTuple):
    """The content of one slot.

    Attributes:
        digest: of the stream's name.
        source_id: the database that acknowledged.
        end: the newest acknowledged position; -1:-1 before the first append.
        owner: the handle that wrote it.
    """

    digest: bytes
    source_id: UUID
    end: Position
    owner: int

    def encode(self) -> bytes:
        """The slot's bytes."""
        fields = _FIELDS.pack(_MAGIC, self.digest, self.source_id.bytes, self.owner, *self.end)
        return fields + _CRC.pack(crc32c(fields))


def decode_slot(data: bytes) -> AckedEnd | None:
    """Decodes a slot; ``None`` if it isn't whole."""
    is_one = len(data) == SLOT_BYTES and data.startswith(_MAGIC)
    if not is_one or _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(data[: _FIELDS.size]):
        return None
    _, digest, source_id, owner, ledger_id, entry_id = _FIELDS.unpack_from(data)
    return AckedEnd(digest, UUID(bytes=source_id), Position(ledger_id, entry_id), owner)


class AckedFile:
    """The acknowledged end of each stream, in a file beside the ledger database: an array of 64-byte slots.

    SQLite's write-ahead log ends at the first damaged frame, so a database alone can't detect that it lost acknowledged
    entries. This file is written after each commit, in place and without its own fsync: it survives a killed process,
    and after a power cut it can only be too low. Each slot has the database's uuid, so that a recreated or moved
    database isn't mistaken for the one that acknowledged. Slots are created inside a write transaction, one at a time.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        #: Held while the file is written or closed: the system reuses the descriptor of a closed file. And while slots
        #: are added: threads of ``losses`` and ``open_stream`` share them.
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._slots: dict[bytes, list[int]] = {}
        self._known_bytes = 0
        #: The highest ledger id of any slot.
        self.newest_ledger = 0

    def load(self) -> bool:
        """Reads the slots added since the last call; returns whether the file exists. ``OSError``: it can't be read."""
        with self._lock:
            if self._fd is None:
                try:
                    self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
                except FileNotFoundError:
                    return False
                except PermissionError:  # enough for readers; an owner fails when it writes
                    self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            size = os.fstat(self._fd).st_size
            data = os.pread(self._fd, max(0, size - self._known_bytes), self._known_bytes)
            for at in range(0, len(data) + 1 - SLOT_BYTES, SLOT_BYTES):
                found = decode_slot(data[at : at + SLOT_BYTES])
                start, self._known_bytes = self._known_bytes, self._known_bytes + SLOT_BYTES
                if found is None:
                    _log.warning("%s: the slot at byte %d is damaged and isn't used", self.path, start)
                    continue
                self._slots.setdefault(found.digest, []).append(start)
                self.newest_ledger = max(self.newest_ledger, found.end.ledger_id)
            return True

    def of_stream(self, stream: str) -> list[AckedEnd]:
        """The current slots of a stream; more than one only after a race of two processes or a damaged slot."""
        digest = digest_of(stream)
        if self._fd is None:
            return []
        found = [decode_slot(os.pread(self._fd, SLOT_BYTES, start)) for start in self._slots.get(digest, ())]
        return [each for each in found if each is not None and each.digest == digest]

    def make(self) -> None:
        """Creates the file durably, so that its later absence is a loss."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.fsync(self._fd)
        sync_name(Path(self.path).absolute())

    def replace(self, stream: str, source_id: UUID, end: Position | None, owner: int) -> AckedSlot:
        """Writes the value to all slots of a stream, or to a new one; returns the owner's slot."""
        assert self._fd is not None, "made or loaded before"
        acked = AckedEnd(digest_of(stream), source_id, end or Position(-1, -1), owner)
        with self._lock:
            known = self._slots.get(acked.digest)
            starts = known or [self._known_bytes]
            before = os.pread(self._fd, SLOT_BYTES, starts[0])
            for start in starts:
                os.pwrite(self._fd, acked.encode(), start)
            if not known:  # not before it is written: else another process may take this place
                self._slots[acked.digest] = starts
                self._known_bytes += SLOT_BYTES
        return AckedSlot(self, starts[0], acked, before)

    def write_slot(self, start: int, slot: bytes) -> None:
        """Writes one slot unless a newer owner has it or the file is closed. ``OSError``: it can't be written."""
        with self._lock:
            if self._fd is not None and os.pread(self._fd, SLOT_BYTES, start)[_OWNER] <= slot[_OWNER]:
                os.pwrite(self._fd, slot, start)

    def put_back(self, start: int, slot: bytes, before: bytes) -> None:
        """Restores the content ``before`` if the slot still holds ``slot`` and the file is open. ``OSError``: it
        can't."""
        with self._lock:
            if self._fd is not None and os.pread(self._fd, SLOT_BYTES, start) == slot:
                os.pwrite(self._fd, before, start)

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


class AckedSlot:
    """The slot to which one owner's handle writes the acknowledged end. Calls are sequential."""

    def __init__(self, file: AckedFile, start: int, acked: AckedEnd, before: bytes = b"") -> None:
        self._file, self._start, self._acked, self._before = file, start, acked, before
        self._is_failing = False

    def take_back(self) -> None:
        """Restores the slot's content: the owner's transaction failed, and the previous owner continues writing."""
        if decode_slot(self._before) is not None:
            with contextlib.suppress(OSError):
                self._file.put_back(self._start, self._acked.encode(), self._before)

    def write(self, end: Position) -> None:
        """Records that everything up to ``end`` is acknowledged. Logs a failure: the entries are durable without."""
        try:
            self._file.write_slot(self._start, self._acked._replace(end=end).encode())
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                _log.warning("%s: acknowledged ends can't be noted: %s", self._file.path, error)
            self._is_failing = True


def digest_of(stream: str) -> bytes:
    """16-byte digest of a stream's name."""
    return hashlib.sha256(stream.encode()).digest()[:16]
