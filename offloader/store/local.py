"""``file:///directory``: one file per object, durable and atomic: written whole, then linked or renamed into place.

Each operation checks before and after that the directory is still the opened one, by device and inode. An unmounted
file system leaves an empty directory, like a store without streams. A change in between has an unknown outcome.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import io
import json
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from formats.checksum import crc32c
from formats.entries import views_of
from offloader.errors import (
    AccessDeniedError,
    BucketMissingError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.runtime.clock import Clock
from offloader.runtime.system import (
    RACES_MAX,
    directory_identity,
    is_plain_file,
    make_directories,
    open_plain_file,
    sync_directory,
    sync_name,
)
from offloader.settings import StoreSettings
from offloader.store import checks
from offloader.store.base import (
    OVERWRITE,
    Body,
    ByteRange,
    DeleteFailure,
    IfMatch,
    ListPage,
    ObjectInfo,
    PartInfo,
    PutMode,
    Sink,
    StoreOptions,
    UploadInfo,
)

_LOCK_POLL_S = 0.002

_ERRNO_KINDS: Mapping[int, tuple[type[OffloaderError], str]] = {
    errno.EACCES: (AccessDeniedError, "check the owner and permissions of the directory"),
    errno.EPERM: (AccessDeniedError, "check the owner and permissions; the file system must support hard links"),
    errno.EROFS: (AccessDeniedError, "the file system is mounted read-only"),
    errno.ENOSPC: (StoreUnavailableError, "free space on the file system"),
    errno.EDQUOT: (StoreUnavailableError, "the disk quota is exceeded: free space or raise the quota"),
    errno.ENOENT: (NotFoundError, "the directory was removed"),
    errno.ENOTDIR: (UnsupportedError, "a file:// store can't store an object below the key of another object"),
    errno.EISDIR: (UnsupportedError, "a file:// store can't store an object whose key is a folder of other objects"),
    errno.EEXIST: (UnsupportedError, "a file exists in place of a directory, or a directory in place of a file"),
    errno.ENAMETOOLONG: (InvalidCallError, "shorten the key or the directory's path"),
    errno.EMLINK: (UnsupportedError, "the file has the maximum number of hard links"),
    errno.ENOTSUP: (UnsupportedError, "use a file system with hard links: this one has none"),
    errno.ELOOP: (InvalidCallError, "a symbolic link points to itself"),
}


@contextlib.contextmanager
def translated(url: str, what: str) -> Iterator[None]:
    """Translate an ``OSError`` of this store into ``offloader.errors``."""
    try:
        yield
    except OSError as error:
        kind, hint = _ERRNO_KINDS.get(error.errno or 0, (StoreUnavailableError, "check the system's log"))
        raise kind(f"{url}: {what} failed: {error.strerror or error}", hint=hint) from error


@contextlib.contextmanager
def locked(path: Path, timeout_s: float, clock: Clock) -> Iterator[None]:
    """Lock the file ``path`` against other threads and processes; waits at most ``timeout_s``."""
    if not path.parent.is_dir():
        make_directories(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    never, deadline_s = threading.Event(), clock.monotonic_s() + timeout_s
    try:
        while not _could_lock(descriptor):
            if clock.monotonic_s() >= deadline_s:
                raise StoreUnavailableError(f"{path}: another process held the lock {timeout_s} s", hint="try again")
            clock.wait(never, _LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _could_lock(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def names_in(directory: Path) -> list[str]:
    """File names in ``directory``, sorted."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def remove_empty(directory: Path, top: Path) -> None:
    """Remove ``directory`` and its empty parents below ``top``."""
    with contextlib.suppress(OSError):  # not empty, or missing
        while directory != top:
            directory.rmdir()
            directory = directory.parent


def write_all(descriptor: int, body: Body) -> None:
    """Write all of ``body``, in as many calls as needed."""
    for rest in views_of(body):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


#: Age at which a sweep removes an unlocked file.
LEFT_AGE_MS = 3_600_000


class Temporaries:
    """The hidden folder ``directory``. Neither the folder nor its content needs to survive a power failure."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def new(self, *, is_directory: bool = False) -> Iterator[tuple[Path, int]]:
        """Create a locked file or directory and return it with its descriptor. The context removes it unless the caller
        has moved it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for _ in range(RACES_MAX):
            path = self._directory / secrets.token_hex(16)
            if is_directory:
                path.mkdir()
            flags = os.O_RDONLY | os.O_DIRECTORY if is_directory else os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
            is_kept = False
            try:
                with contextlib.suppress(OSError):  # file systems without locks are never swept
                    _could_lock(descriptor)
                if os.fstat(descriptor).st_nlink:  # 0: a sweep with a fast clock removed it before the lock
                    yield path, descriptor
                    return
            except OutcomeUnknownError:
                is_kept = True  # the second link of an object whose name may not be durable
                raise
            finally:
                if not is_kept:
                    _remove(path, is_directory=is_directory)
                os.close(descriptor)
        raise StoreUnavailableError(f"{self._directory}: another process removed new files", hint="check the clocks")

    def sweep(self, now_ms: int) -> None:
        """Remove old, unlocked files of terminated processes."""
        if not self._directory.is_dir():
            return
        with os.scandir(self._directory) as entries:
            left = [Path(entry.path) for entry in entries if _is_old(entry, now_ms)]
        unlocked = [path for path in left if _is_unlocked(path)]
        if any(path.is_file() and path.stat().st_nlink > 1 for path in unlocked):
            # A second link marks an object whose name may not be durable: make it durable.
            os.sync()
        for path in unlocked:
            _remove(path, is_directory=path.is_dir())


def _is_old(entry: os.DirEntry[str], now_ms: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000 <= now_ms - LEFT_AGE_MS
    return False


def _is_unlocked(path: Path) -> bool:
    with contextlib.suppress(OSError):
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK: don't wait for the reader of a FIFO
        descriptor = os.open(path, flags | (os.O_RDONLY if is_directory else os.O_WRONLY))
        try:
            return _could_lock(descriptor)
        finally:
            os.close(descriptor)
    return False


def _remove(path: Path, *, is_directory: bool) -> None:
    if is_directory:
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


#: Name of the folder of the store's internal files. No key begins with this level.
HIDDEN = ".offloader"
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one file. ``is_confirmed``: its name is durable. Until then, the writer keeps a second link."""

    mtime_ns: int
    size_bytes: int
    is_confirmed: bool = field(default=True, compare=False)

    @classmethod
    def of(cls, status: os.stat_result) -> Version:
        return cls(status.st_mtime_ns, status.st_size, status.st_nlink == 1)

    @property
    def etag(self) -> str:
        return f'"{self.mtime_ns:x}-{self.size_bytes:x}"'

    @property
    def modified_ms(self) -> int:
        return self.mtime_ns // 1_000_000


class VersionedFiles:
    """Objects as files below ``directory``, and their sidecars."""

    def __init__(self, directory: Path, temporaries: Temporaries) -> None:
        self._directory = directory
        self._meta = directory / HIDDEN / "meta"
        self._temporaries = temporaries

    def version(self, key: str) -> Version | None:
        """The object's version; ``None`` if there is no object (a directory is none)."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = (self._directory / key).stat()
            return Version.of(status) if is_plain_file(self._directory / key, status.st_mode) else None
        return None

    def read(self, key: str, byte_range: ByteRange | None, into: Sink | None = None) -> tuple[bytes, Version | None]:
        """Bytes and version from one open file, never of two versions. ``None``: no object."""
        descriptor = open_plain_file(self._directory / key)
        if descriptor is None:  # also a directory: a prefix of other keys, not an object
            return b"", None
        status = os.fstat(descriptor)
        with os.fdopen(descriptor, "rb") as file:
            start, stop = (0, status.st_size) if byte_range is None else (byte_range.start, byte_range.stop)
            length = max(0, min(stop, status.st_size) - start)
            file.seek(min(start, status.st_size))
            if into is not None:
                into.begin()
                if byte_range is not None and length == byte_range.length:
                    _receive(file, length, into)
                    return b"", Version.of(status)
            return file.read(length), Version.of(status)

    @contextlib.contextmanager
    def temporary(self, body: Body) -> Iterator[Path]:
        """Write ``body`` to a durable new file, which the context removes."""
        with self._temporaries.new() as (path, descriptor):
            write_all(descriptor, body)
            os.fsync(descriptor)
            yield path

    @contextlib.contextmanager
    def joined(self, key: str, parts: Sequence[tuple[Path, PartInfo]]) -> Iterator[tuple[Path, int]]:
        """Join ``parts`` in order into a new file, with its CRC-32C; verifies each part's own checksum."""
        total = 0
        with self._temporaries.new() as (path, descriptor):
            for part_path, part in parts:
                found = 0
                with part_path.open("rb", buffering=0) as source:
                    while piece := source.read(_COPY_BYTES):
                        found, total = crc32c(piece, found), crc32c(piece, total)
                        write_all(descriptor, piece)
                if found != part.crc32c:
                    raise InvalidCallError(
                        f"part {part.number} of {key} has CRC-32C {found:#010x}, expected {part.crc32c:#010x}",
                        hint="upload the part again: it was damaged on the disk",
                    )
            os.fsync(descriptor)
            yield path, total

    def confirm(self, key: str) -> None:
        """Make an object's name durable, if another process has created the object but not confirmed it yet."""
        target = self._directory / key
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            sync_name(target)
            with contextlib.suppress(PermissionError):  # above the root: owned by others
                sync_name(target.parent)

    def _publish(self, key: str) -> None:
        """Confirm an object just moved into place."""
        try:
            self.confirm(key)
        except OSError as error:
            raise OutcomeUnknownError(
                f"{self._directory / key} was written, but syncing its directory failed: {error.strerror}",
                hint="check the disk, and check the object before repeating the request",
            ) from error

    def _move(self, key: str, move: Callable[[], object]) -> None:
        """Move a file to the object's path. Retries if another process empties and removes the directory meanwhile."""
        parent = (self._directory / key).parent
        for _ in range(RACES_MAX):
            if not parent.is_dir():
                make_directories(parent)
            with contextlib.suppress(FileNotFoundError):
                move()
                return
        raise StoreUnavailableError(f"write of {key}: its directory was removed {RACES_MAX} times", hint="try again")

    def create(self, key: str, temporary: Path, metadata: Mapping[str, str], crc: int) -> Version | None:
        """Link ``temporary`` as ``key``; ``None`` if the object exists. The link is the commit point."""
        version, sidecar = self._describe(key, temporary, metadata, crc)
        target = self._directory / key
        try:
            self._move(key, functools.partial(os.link, temporary, target))
        except FileExistsError:
            sidecar.unlink(missing_ok=True)
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
            return None
        except BaseException:
            sidecar.unlink(missing_ok=True)
            raise
        self._publish(key)
        return version

    def replace(self, key: str, temporary: Path, metadata: Mapping[str, str], crc: int) -> Version:
        """Rename ``temporary`` to ``key``, replacing any object. The caller holds the lock."""
        old = self.version(key)
        version, sidecar = self._describe(key, temporary, metadata, crc)
        staged = _second_link(temporary)
        try:
            self._move(key, functools.partial(staged.replace, self._directory / key))
        except BaseException:
            sidecar.unlink(missing_ok=True)
            staged.unlink(missing_ok=True)
            raise
        self._publish(key)
        if old is not None:
            self._sidecar_path(key, old).unlink(missing_ok=True)
        return version

    def remove(self, key: str) -> None:
        """Remove the object, its sidecar, then the directories that are now empty. The caller holds the lock."""
        target = self._directory / key
        version = self.version(key)
        if version is None:
            return
        target.unlink(missing_ok=True)
        sync_directory(target.parent)
        sidecar = self._sidecar_path(key, version)
        sidecar.unlink(missing_ok=True)
        remove_empty(target.parent, self._directory)
        remove_empty(sidecar.parent, self._meta)

    def sidecar(self, key: str, version: Version) -> tuple[Mapping[str, str], int | None] | None:
        """Metadata and CRC-32C of this version; ``None`` without a sidecar."""
        return _described_by(self._sidecar_path(key, version))

    def sidecar_of_copy(self, key: str, version: Version) -> tuple[Mapping[str, str], int | None]:
        """Sidecar for a tree that was copied without its times: the key's only sidecar, if its size matches. ``None``
        for files of other tools."""
        path = self._sidecar_path(key, version)
        begin, end = f"{path.name.rsplit('.', 3)[0]}.", f".{version.size_bytes:x}.json"
        try:
            names = [each for each in names_in(path.parent) if each.startswith(begin) and each.endswith(end)]
        except (FileNotFoundError, NotADirectoryError):
            return {}, None
        names = [name for name in names if len(name) == len(path.name)]
        kept = _described_by(path.parent / names[0]) if len(names) == 1 else None
        return kept or ({}, None)

    def _sidecar_path(self, key: str, version: Version) -> Path:
        return self._meta / f"{key}.{version.mtime_ns:016x}.{version.size_bytes:x}.json"

    def _describe(self, key: str, temporary: Path, metadata: Mapping[str, str], crc: int) -> tuple[Version, Path]:
        """Give ``temporary`` a version that is unique for the key, and write its sidecar.

        The file system sets the milliseconds; the rest is random. If two writers draw the same version, the exclusive
        creation of the sidecar fails for one of them.
        """
        content = _sidecar_of(metadata, crc)
        status = temporary.stat()
        base_ns = status.st_mtime_ns // 1_000_000 * 1_000_000
        for _ in range(RACES_MAX):
            os.utime(temporary, ns=(status.st_atime_ns, base_ns + secrets.randbelow(1_000_000)))
            version = Version.of(temporary.stat())
            path = self._sidecar_path(key, version)
            if not path.parent.is_dir():
                make_directories(path.parent)
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except (FileExistsError, FileNotFoundError):
                continue
            try:
                write_all(descriptor, content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_directory(path.parent)
            make_directories(path.parent)
            return version, path
        raise StoreUnavailableError(f"write of {key} failed: {RACES_MAX} random versions are in use", hint="try again")


def _second_link(temporary: Path) -> Path:
    """Link the file under a second name, which can be moved while the first one remains. Without hard links, return the
    first name; readers then can't tell whether the move is confirmed."""
    staged = temporary.with_name(f"{temporary.name}-staged")
    try:
        os.link(temporary, staged)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        return temporary
    return staged


def _receive(file: io.BufferedReader, length: int, into: Sink) -> None:
    """Read ``length`` bytes of a file, or fewer if another program truncates it."""
    while length:
        count = file.readinto(into.room()[:length])
        if not count:
            return
        into.came(count)
        length -= count


def _sidecar_of(metadata: Mapping[str, str], crc: int) -> bytes:
    """Content of a sidecar, ending with its own CRC-32C."""
    body = json.dumps({"crc32c": crc, "metadata": dict(metadata)}, separators=(",", ":")).encode()
    return body[:-1] + b',"seal":%d}' % crc32c(body)


def _described_by(path: Path) -> tuple[Mapping[str, str], int | None] | None:
    descriptor = open_plain_file(path)
    if descriptor is None:
        return None
    try:
        with os.fdopen(descriptor, "rb") as file:
            data = file.read()
        kept = json.loads(data)
        metadata, crc = dict(kept["metadata"]), int(kept["crc32c"])
        if data != _sidecar_of(metadata, crc):
            raise ValueError("its checksum doesn't match")
        return metadata, crc
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            f"invalid sidecar {path}: {error}", hint="restore or remove it: it was damaged or changed by hand"
        ) from error


def list_files(directory: Path, prefix: str, after: str, limit: int) -> list[tuple[str, Version]]:
    """Up to ``limit`` keys below ``directory`` that begin with ``prefix`` and come after ``after``, in order."""
    above = prefix.rpartition("/")[0]
    if above.split("/")[0] == HIDDEN:
        return []
    return list(islice(_walk(directory, f"{above}/" if above else "", prefix, after), limit))


def _walk(directory: Path, level: str, prefix: str, after: str) -> Iterator[tuple[str, Version]]:
    try:
        with os.scandir(directory / level) as entries:
            named = [entry for entry in entries if entry.name != HIDDEN or level]
            found = sorted((f"{entry.name}/" if entry.is_dir() else entry.name, entry) for entry in named)
    except (FileNotFoundError, NotADirectoryError):
        return  # removed since its parent was listed, or never existed
    for name, entry in found:
        key = level + name
        if name.endswith("/"):
            wanted = key.startswith(prefix) or prefix.startswith(key)
            # All keys of the directory sort before ``after``, unless ``after`` is in the directory.
            if wanted and (key > after or after.startswith(key)):
                yield from _walk(directory, key, prefix, after)
        elif key.startswith(prefix) and key > after and _is_text(name):
            with contextlib.suppress(FileNotFoundError):
                yield key, Version.of(entry.stat())


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8. Files of other tools may have names that can't be keys."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


_UPLOAD_ID = re.compile(r"[0-9a-f]{32}\Z")
_PART = re.compile(r"(\d{5})-([0-9a-f]+)-([0-9a-f]{8})-([0-9a-f]{16})\.part\Z")


#: Longest name of one level of a key, in UTF-8 bytes. File systems allow 255; a sidecar's version uses up to 40.
LEVEL_BYTES_MAX = 200
#: Attempts to read an object under constant replacement.
REPLACEMENTS_MAX = 100


def open_url(url: str, options: StoreOptions) -> LocalStore:
    """Open the store in the directory of ``url``; a missing one is created if ``options`` allow it."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise InvalidCallError(f"{url} has no absolute path", hint="use three slashes: file:///directory")
    directory = Path(unquote(parts.path))
    if (options.read_only or not options.create) and not directory.is_dir():
        raise BucketMissingError(f"{url}: no such directory", hint="check the path, or write to create the store")
    store = LocalStore(directory, options.settings, options.clock)
    if not options.read_only:
        with translated(url, "opening"):
            make_directories(directory)
        if not os.access(directory, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise AccessDeniedError(f"{url}: the directory isn't writable", hint="check its owner and permissions")
        store.sweep(options.clock.now_ms())
    return store


class LocalStore(checks.CheckedStore):
    """See ``ObjectStore``. Several processes on one machine may share a directory.

    Raises:
        StoreUnavailableError: from each method: the directory isn't the one that was opened. It may come back.
    """

    def __init__(self, directory: Path, settings: StoreSettings, clock: Clock) -> None:
        super().__init__(f"file://{quote(str(directory))}", "", driver="file", bucket=str(directory))
        self._directory = directory
        self._opened = directory_identity(directory)
        self._temporaries = Temporaries(directory / HIDDEN / "tmp")
        self._files = VersionedFiles(directory, self._temporaries)
        self._uploads = directory / HIDDEN / "uploads"
        self._locked = functools.partial(locked, directory / HIDDEN / "lock", settings.read_timeout, clock)

    def _checked_key(self, key: str) -> str:
        levels = super()._checked_key(key).split("/")
        if levels[0] == HIDDEN:
            raise InvalidCallError(f"invalid key {key!r}: {HIDDEN} is reserved for this store's internal files")
        if any(len(level.encode()) > LEVEL_BYTES_MAX for level in levels):
            raise InvalidCallError(f"invalid key {key!r}: a level is longer than {LEVEL_BYTES_MAX} bytes")
        return key

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Translate the errors of an operation that changes nothing, and check the directory."""
        with translated(self.url, what):
            self._require_same_directory()
            try:
                yield
            except (NotFoundError, OSError):
                self._require_same_directory()
                raise
            self._require_same_directory()

    @contextlib.contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """Translate the errors of an operation that changes something, and check the directory before and after."""
        with translated(self.url, what):
            self._require_same_directory()
            try:
                yield
            finally:
                try:
                    self._require_same_directory()
                except StoreUnavailableError as error:
                    raise OutcomeUnknownError(f"{what}: {error.message}", hint=error.hint) from error

    def _require_same_directory(self) -> None:
        found = directory_identity(self._directory)
        if self._opened is None:
            self._opened = found
        elif found != self._opened:
            raise StoreUnavailableError(
                f"{self.url} isn't the directory that was opened{': it is unreachable' if found is None else ''}",
                hint="mount its file system again; to use another directory, restart the process",
            )

    def _head(self, key: str) -> ObjectInfo:
        with self._reading(f"head of {key}"):
            return self._described(key, lambda: (b"", self._files.version(key)))[1]

    def _get(self, key: str, byte_range: ByteRange | None, into: Sink | None) -> tuple[bytes, ObjectInfo]:
        with self._reading(f"get of {key}"):
            return self._described(key, lambda: self._files.read(key, byte_range, into))

    def _described(self, key: str, look: Callable[[], tuple[bytes, Version | None]]) -> tuple[bytes, ObjectInfo]:
        """The result of ``look``, with the metadata of the same version. Retries if the object was replaced."""
        for _ in range(REPLACEMENTS_MAX):
            body, version = look()
            if version is None:
                raise NotFoundError(f"{self.url}: no object {key}")
            if not version.is_confirmed:
                self._files.confirm(key)
            kept = self._files.sidecar(key, version)
            if kept is None and self._files.version(key) == version:
                kept = self._files.sidecar_of_copy(key, version)
            if kept is not None:
                return body, ObjectInfo(key, version.size_bytes, version.etag, version.modified_ms, *kept)
        raise StoreUnavailableError(f"{self.url}: {key} was replaced {REPLACEMENTS_MAX} times during a read")

    def sweep(self, now_ms: int) -> None:
        """Remove files of terminated processes from the hidden folder. A later sweep retries failed removals."""
        with contextlib.suppress(OSError):
            self._temporaries.sweep(now_ms)

    def _put(self, key: str, body: Body, mode: PutMode, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        with self._changing(f"put of {key}"):
            if mode.create_only:
                self._refuse_existing(key)
            self._check_etag(key, mode)
            with self._files.temporary(body) as temporary:
                return self._publish(key, temporary, metadata, crc, mode)

    def _version(self, key: str) -> Version | None:
        """The object's version, after its name has been made durable."""
        there = self._files.version(key)
        if there is not None and not there.is_confirmed:
            self._files.confirm(key)
        return there

    def _refuse_existing(self, key: str) -> None:
        if self._version(key) is not None:
            raise PreconditionFailedError(f"{self.url}: {key} already exists")

    def _publish(self, key: str, temporary: Path, metadata: Mapping[str, str], crc: int, mode: PutMode) -> ObjectInfo:
        if mode.create_only:
            version = self._files.create(key, temporary, metadata, crc)
            if version is None:
                self._refuse_existing(key)
                raise StoreUnavailableError(f"{self.url}: {key} was deleted during the put", hint="try again")
        else:
            with self._locked():
                self._check_etag(key, mode)
                version = self._files.replace(key, temporary, metadata, crc)
        return ObjectInfo(key, version.size_bytes, version.etag, version.modified_ms, dict(metadata), crc)

    def _check_etag(self, key: str, mode: PutMode) -> None:
        if mode.etag is None:
            return
        there = self._version(key)
        checks.require_etag(self, key, mode.etag, None if there is None else there.etag)

    def _list(self, prefix: str, after: str, limit: int) -> ListPage:
        with self._reading(f"list of {prefix!r}"):
            if not self._directory.is_dir():
                raise BucketMissingError(
                    f"{self.url}: no such directory", hint="the directory was removed after the store was opened"
                )
            found = list_files(self._directory, prefix, after, limit + 1)
            # Confirming one key makes the names of all keys of its directory durable.
            new = {key.rpartition("/")[0]: key for key, version in found[:limit] if not version.is_confirmed}
            for key in new.values():
                self._files.confirm(key)
        objects = tuple(
            ObjectInfo(key, version.size_bytes, version.etag, version.modified_ms) for key, version in found[:limit]
        )
        return ListPage(objects, objects[-1].key if len(found) > limit else None)

    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        failures = []
        with self._changing("delete"), self._locked():
            for key in keys:
                try:
                    with translated(self.url, f"delete of {key}"):
                        self._files.remove(key)
                except OffloaderError as error:
                    failures.append(DeleteFailure.of(key, error))
        return failures

    def _delete_if_match(self, key: str, etag: str) -> None:
        with self._changing(f"delete of {key}"), self._locked():
            if self._files.version(key) is not None:
                self._check_etag(key, IfMatch(etag))
                self._files.remove(key)

    def _begin_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        """Create the upload's directory, with its description, by one rename."""
        upload_id = secrets.token_hex(16)
        with self._changing(f"upload of {key}"):
            make_directories(self._uploads)
            with self._temporaries.new(is_directory=True) as (making, _):
                with (making / "upload.json").open("wb") as file:
                    file.write(json.dumps({"key": key, "metadata": dict(metadata)}).encode())
                    file.flush()
                    os.fsync(file.fileno())
                sync_directory(making)
                making.rename(self._uploads / upload_id)
            sync_directory(self._uploads)
        return upload_id

    def _upload_metadata(self, key: str, upload_id: str) -> Mapping[str, str]:
        """The upload's user metadata; ``NotFoundError`` if the upload was completed or aborted, or never begun."""
        kept = self._upload_description(upload_id)
        if kept is None or kept[0] != key:
            raise NotFoundError(f"{self._uploads}: no upload {upload_id} of {key}")
        return kept[1]

    def _upload_description(self, upload_id: str) -> tuple[str, dict[str, str]] | None:
        if not _UPLOAD_ID.match(upload_id):
            return None
        try:
            kept = json.loads((self._uploads / upload_id / "upload.json").read_bytes())
            return str(kept["key"]), {**kept["metadata"]}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as cause:
            raise CorruptError(
                f"{self._uploads / upload_id}: invalid description of an upload", hint="remove the changed directory"
            ) from cause

    def _upload_part(self, key: str, upload_id: str, number: int, body: Body, crc: int) -> PartInfo:
        """Rename a complete, synced file to the part's path, replacing an earlier part of this number."""
        with self._changing(f"part {number} of {key}"):
            self._upload_metadata(key, upload_id)
            with self._files.temporary(body) as temporary:
                part = PartInfo(number, f'"{secrets.token_hex(8)}"', temporary.stat().st_size, crc)
                path = self._part_path(upload_id, part)
                try:
                    temporary.rename(path)
                except FileNotFoundError:
                    raise NotFoundError(f"{self._uploads}: no upload {upload_id} of {key}") from None
                for name in names_in(path.parent):
                    if name.startswith(f"{number:05d}-") and name != path.name:
                        path.with_name(name).unlink(missing_ok=True)
                sync_directory(path.parent)
                return part

    def _parts(self, upload_id: str) -> list[PartInfo]:
        matches = filter(None, map(_PART.match, names_in(self._uploads / upload_id)))
        return [PartInfo(int(m[1]), f'"{m[4]}"', int(m[2], 16), int(m[3], 16)) for m in matches]

    def _part_path(self, upload_id: str, part: PartInfo) -> Path:
        token = part.etag.strip('"')
        return self._uploads / upload_id / f"{part.number:05d}-{part.size_bytes:x}-{part.crc32c:08x}-{token}.part"

    def _complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        with self._changing(f"completion of {key}"):
            with checks.completing():
                metadata = self._upload_metadata(key, upload_id)
            there = set(self._parts(upload_id))
            changed = next((part.number for part in parts if part not in there), None)
            if changed is not None:
                raise InvalidCallError(f"{self._uploads}: part {changed} of {key} differs from the uploaded one")
            files = [(self._part_path(upload_id, part), part) for part in parts]
            with self._files.joined(key, files) as (temporary, crc):
                info = self._publish(key, temporary, metadata, crc, OVERWRITE)
            with contextlib.suppress(OSError):  # the object exists; the rest of the upload can be listed and aborted
                self._drop_upload(upload_id)
        return info

    def _drop_upload(self, upload_id: str) -> None:
        """Remove the upload: its description first, which ends the upload in one step."""
        directory = self._uploads / upload_id
        (directory / "upload.json").unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)

    def _abort_upload(self, key: str, upload_id: str) -> None:
        with self._changing(f"abort of an upload of {key}"), contextlib.suppress(NotFoundError):
            self._upload_metadata(key, upload_id)
            self._drop_upload(upload_id)

    def _list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        with self._reading(f"list of uploads {prefix!r}"):
            try:
                names = [name for name in names_in(self._uploads) if _UPLOAD_ID.match(name)]
            except FileNotFoundError:
                return []
            found = []
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # completed or aborted meanwhile
                    begun = (self._uploads / name / "upload.json").stat()
                    if (kept := self._upload_description(name)) is not None and kept[0].startswith(prefix):
                        found.append(UploadInfo(kept[0], name, begun.st_mtime_ns // 1_000_000))
            return found

    def _list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        with self._reading(f"list of parts of {key}"):
            self._upload_metadata(key, upload_id)
            return self._parts(upload_id)
