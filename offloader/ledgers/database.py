"""The SQLite database under the embedded ledgers: connections, transactions, error table.

Owns how the file is opened, locked and made durable, and the translation of SQLite's errors. Must
never know what an entry or a rollover is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from offloader.clock import Clock
from offloader.errors import (
    AccessDenied,
    Closed,
    Corrupt,
    InvalidCall,
    LimitReached,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    StoreUnavailable,
)
from offloader.ledgers.schema import check_identity, prepare_schema

__all__ = [
    "BUSY_TIMEOUT_S",
    "CACHE_BYTES",
    "PAGE_BYTES",
    "READERS_MAX",
    "RESERVE_BYTES",
    "Database",
    "database_path",
    "free_bytes",
]

#: How long a call waits for another process that writes, before it fails.
BUSY_TIMEOUT_S = 20.0
#: Reads that run at once; more wait for their turn.
READERS_MAX = 4
#: Page size of a new database: payloads are large, so large pages save time.
PAGE_BYTES = 16 * 1024
#: Page cache of one connection.
CACHE_BYTES = 8 * 1024 * 1024
#: Pages in the write-ahead log after which it is folded into the database (64 MiB).
_WAL_PAGES = 4096
#: What the write-ahead log file is cut back to once it was larger.
_WAL_FILE_BYTES = 64 * 1024 * 1024
#: What stays free on the disk beside the write-ahead log's fold, for what makes room again: deleting writes too.
RESERVE_BYTES = 4 * 1024 * 1024
_COUNTS = ("page", "freelist")
_FREE = "free some space and try again"


def free_bytes(folder: str) -> int:
    """What this process may still write on the disk of ``folder``."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def database_path(url_or_path: str) -> str:
    """``sqlite:///relative.db``, ``sqlite:////absolute.db`` or a path -> a path; ``:memory:`` stays.

    Raises:
        InvalidCall: another scheme, a host, or nothing.
    """
    hint = "write sqlite:///relative.db, sqlite:////absolute.db, sqlite://:memory: or a path"
    path = url_or_path
    if "://" in url_or_path:
        scheme, _, rest = url_or_path.partition("://")
        if scheme != "sqlite" or not (rest.startswith("/") or rest == ":memory:"):
            raise InvalidCall(f"ledgers {url_or_path!r}: not the URL of an embedded ledger database", hint=hint)
        path = rest.removeprefix("/")
    if not path or "\0" in path:
        raise InvalidCall(f"ledgers {url_or_path!r}: no file is named", hint=hint)
    return path


class Database:
    """One SQLite file (WAL, every commit synced): one writing connection, a bounded pool of reading ones.

    Args:
        path: the file, or ``:memory:``.
        clock: for waiting while another process creates the same file.
        create: make the file and its directory when they aren't there.
        busy_timeout_s: how long a call waits for another process that writes.
        free: what may still be written to a folder, for tests.
        entropy: randomness of a new database's identity, for tests.

    Raises:
        NotFound: no such file and ``create`` is false.
        AccessDenied: it can't be opened or created.
        Corrupt: not a database.
        InvalidCall: the database of another program.
        Unsupported: written by a newer release.
        StoreUnavailable: locked for longer than ``busy_timeout_s``, or the disk is full.
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Clock,
        create: bool = True,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        free: Callable[[str], int] = free_bytes,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.path = path
        self._entropy = entropy
        self._free = free
        # Asked for at each append, so paths are made once.
        self._folder, self._log = str(Path(path).absolute().parent), Path(f"{path}-wal")
        self._clock = clock
        self._busy_timeout_s = busy_timeout_s
        self._write_lock = threading.Lock()
        self._closed = False
        self._readers: queue.LifoQueue[sqlite3.Connection | None] = queue.LifoQueue(READERS_MAX)
        self._in_memory = path == ":memory:"
        #: Reads and writes nothing, so that a change by any other connection is one by another.
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
        """One durable transaction: all of the block's changes, or none when it raises.

        Raises:
            OutcomeUnknown: the disk failed during the commit; look at the data before going on.
        """
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
        """Refuses what can be added only so that no room can be made afterwards. On a disk that is full to its last
        byte SQLite can't delete: what is deleted is written to the log first, and the log is folded into a file that
        grows.

        Args:
            connection: of the transaction that adds: nobody else adds meanwhile.
            size_bytes: of what is added.

        Raises:
            StoreUnavailable: the disk would be too full; nothing was written.
        """
        if self._in_memory:
            return
        try:
            log_bytes = self._log.stat().st_size
        except FileNotFoundError:
            log_bytes = 0
        free = self._free(self._folder)
        if free >= 2 * size_bytes + log_bytes + RESERVE_BYTES:  # more than it takes
            return
        pages, unused = (int(connection.execute(f"PRAGMA {each}_count").fetchone()[0]) for each in _COUNTS)
        # What the file lacks for what is in the log, what doesn't fit where something was deleted, the log's growth.
        fold = max(pages * PAGE_BYTES - Path(self.path).stat().st_size, 0)
        wanted = fold + max(size_bytes - unused * PAGE_BYTES, 0) + size_bytes + RESERVE_BYTES
        if free < wanted:
            raise StoreUnavailable(
                f"ledger database {self.path}: the disk is nearly full: {free:,} bytes are free, and "
                f"{wanted:,} must be so that old entries can still be deleted; nothing was written",
                hint=_FREE,
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A consistent view of everything committed; any number of statements."""
        if self._in_memory:
            # a memory database lives in its one connection
            with self._write_lock, self.translated("reading"):
                self._check_open()
                yield self._writer
            return
        connection = self._readers.get()
        try:
            self._check_open()
            with self.translated("reading"):
                if connection is None:
                    connection = self._connect()
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        finally:
            self._readers.put(connection)

    def version(self) -> int:
        """A number that is another one as soon as anybody, in this process or another, has changed the database."""
        with self._write_lock, self.translated("looking"):
            self._check_open()
            if self._in_memory:
                return int(self._writer.total_changes)
            if self._watcher is None:
                self._watcher = self._connect()
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Gives all connections back; closing twice is fine. Reads that are running end first."""
        with self._write_lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(READERS_MAX):
                connection = self._readers.get()
                if connection is not None:
                    connection.close()
            for _ in range(READERS_MAX):
                self._readers.put(None)
            self._writer.close()
            if self._watcher is not None:
                self._watcher.close()

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """SQLite's and the file system's errors become ours: the one table."""
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(error, self.path, doing) from error
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreUnavailable(f"{self.path}: the disk is full; nothing was written", hint=_FREE) from error
            raise AccessDenied(
                f"ledger database {self.path}: {doing} failed: {error.strerror or error}",
                hint="name a file in a directory you may write to",
            ) from error

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"ledger database {self.path} is closed", hint="open it again")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = OFF")
            connection.execute(f"PRAGMA cache_size = {-CACHE_BYTES // 1024}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_FILE_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare_file(self, create: bool) -> None:
        path = Path(self.path)
        if path.exists():
            return
        if not create:
            raise NotFound(f"ledger database {path} doesn't exist", hint="check the path; appending creates it")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        # the file's name must survive a power cut as well as its content
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _prepare_schema(self) -> None:
        connection = self._writer
        check_identity(connection, self.path)
        if not self._in_memory:
            self._switch_to_wal(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            is_changed = prepare_schema(connection, self.path, self._entropy)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if is_changed and not self._in_memory:
            # Out of the log, which may be cut by damage: which database this is must outlast that.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        # SQLite doesn't wait for a lock here as it does elsewhere, so two first openers would collide
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
                raise OutcomeUnknown(
                    f"ledger database {self.path}: the disk failed during a commit ({error})",
                    hint="check the disk, open the stream again and look at its last position",
                ) from error
            raise _translate(error, self.path, "committing") from error


def _translate(error: sqlite3.Error, path: str, doing: str) -> OffloaderError:
    where = f"ledger database {path}"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    match code:
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(f"{where}: the disk is full; nothing was written", hint=_FREE)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(
                f"{where}: {doing} failed: another process holds the lock",
                hint="wait for that process or end it",
            )
        case sqlite3.SQLITE_NOTADB:
            return Corrupt(f"{path} is not a ledger database", hint="name another file, or remove this one")
        case sqlite3.SQLITE_CORRUPT:
            return Corrupt(f"{where} is damaged: {error}", hint="restore it, or read what the object store has")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return AccessDenied(f"{where}: {doing} failed: {error}", hint="name a file in a directory you may write to")
        case sqlite3.SQLITE_TOOBIG:
            return LimitReached(f"{where}: an entry is larger than SQLite takes: {error}")
        case sqlite3.SQLITE_IOERR if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
            # Beside the file each process needs 32 KiB; SQLite has no word of its own for a disk without them.
            return StoreUnavailable(f"{where}: {doing} failed: the disk is full; nothing was written", hint=_FREE)
        case sqlite3.SQLITE_IOERR:
            name = getattr(error, "sqlite_errorname", "SQLITE_IOERR")
            return StoreUnavailable(
                f"{where}: {doing} failed: the disk didn't do what it was asked for ({name})",
                hint="look into the system's log, check the disk, and try again",
            )
    return OffloaderError(f"{where}: {doing} failed: {error}", hint="this is a bug, please report it")
