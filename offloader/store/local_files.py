"""Files of the local store: written whole, synced, then linked or renamed into place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from formats.checksum import crc32c
from formats.entries import views_of
from offloader.errors import (
    AccessDenied,
    Corrupt,
    InvalidCall,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    StoreUnavailable,
    Unsupported,
)
from offloader.runtime.clock import Clock
from offloader.runtime.system import RACES_MAX, make_directories, sync_directory, sync_name
from offloader.store.base import Body, ByteRange, PartInfo, Sink

_LOCK_POLL_S = 0.002

_ERRNO_KINDS: Mapping[int, tuple[type[OffloaderError], str]] = {
    errno.EACCES: (AccessDenied, "check the owner and permissions of the directory"),
    errno.EPERM: (AccessDenied, "check the owner and permissions; the file system must allow hard links"),
    errno.EROFS: (AccessDenied, "the file system is mounted read-only"),
    errno.ENOSPC: (StoreUnavailable, "free some space"),
    errno.EDQUOT: (StoreUnavailable, "the quota is used up"),
    errno.ENOENT: (NotFound, "the directory was removed"),
    errno.ENOTDIR: (Unsupported, "a key can't continue the name of an object here: files aren't directories"),
    errno.EISDIR: (Unsupported, "a key can't be the beginning of another one here: files aren't directories"),
    errno.EEXIST: (Unsupported, "a file is where a directory should be, or the other way round"),
    errno.ENAMETOOLONG: (InvalidCall, "shorten the key or the directory's path"),
    errno.EMLINK: (Unsupported, "the file system allows no further link"),
    errno.ENOTSUP: (Unsupported, "the file system has no hard links; use another one"),
    errno.ELOOP: (InvalidCall, "a symbolic link points to itself"),
}


@contextlib.contextmanager
def translated(url: str, what: str) -> Iterator[None]:
    """Translate an ``OSError`` of this store into ``offloader.errors``."""
    try:
        yield
    except OSError as error:
        kind, hint = _ERRNO_KINDS.get(error.errno or 0, (StoreUnavailable, "see the system's log"))
        raise kind(f"{url}: {what} failed: {error.strerror or error}", hint=hint) from error


@contextlib.contextmanager
def locked(path: Path, timeout_s: float, clock: Clock) -> Iterator[None]:
    """Lock the file ``path``, which excludes threads of this process and other processes; waits at most
    ``timeout_s``."""
    if not path.parent.is_dir():
        make_directories(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    never, deadline_s = threading.Event(), clock.monotonic_s() + timeout_s
    try:
        while not _could_lock(descriptor):
            if clock.monotonic_s() >= deadline_s:
                raise StoreUnavailable(f"{path} is held by another process for {timeout_s} s", hint="try again")
            clock.wait(never, _LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _could_lock(descriptor: int) -> bool:
    """Lock the open file, unless another one holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def names_in(directory: Path) -> list[str]:
    """File names in ``directory``, sorted."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def remove_empty(directory: Path, top: Path) -> None:
    """Remove ``directory`` and its empty parents below ``top``."""
    while directory != top:
        try:
            directory.rmdir()
        except OSError:
            return  # not empty, or missing
        directory = directory.parent


def write_all(descriptor: int, body: Body) -> None:
    """Write all of ``body``, in as many calls as needed."""
    for rest in views_of(body):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


#: Age at which an unlocked file is removed.
LEFT_AGE_MS = 3_600_000


class Temporaries:
    """The hidden folder ``directory``. Neither it nor its content has to survive a power cut."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def new(self, *, is_directory: bool = False) -> Iterator[tuple[Path, int]]:
        """Create a locked file or directory and return it with its descriptor. The context removes it unless it was
        moved away."""
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
                if os.fstat(descriptor).st_nlink:  # else a sweep with a fast clock removed it before the lock
                    yield path, descriptor
                    return
            except OutcomeUnknown:
                is_kept = True  # the second link of an object whose name may not be durable
                raise
            finally:
                if not is_kept:
                    _remove(path, is_directory=is_directory)
                os.close(descriptor)
        raise StoreUnavailable(f"{self._directory}: each new file was removed at once", hint="check the clocks")

    def sweep(self, now_ms: int) -> None:
        """Remove old, unlocked files of killed processes."""
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
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000 <= now_ms - LEFT_AGE_MS
    except FileNotFoundError:
        return False


def _is_unlocked(path: Path) -> bool:
    try:
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
        descriptor = os.open(path, (os.O_RDONLY if is_directory else os.O_WRONLY) | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _could_lock(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _remove(path: Path, *, is_directory: bool) -> None:
    if is_directory:
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


#: First level that no object uses: the store's own files.
HIDDEN = ".offloader"
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one file. ``is_confirmed``: its name is durable; until then the writer keeps a second link."""

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
        """The object's version, ``None`` when there is none (a directory counts as none)."""
        try:
            status = (self._directory / key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Version.of(status) if stat.S_ISREG(status.st_mode) else None

    def read(self, key: str, byte_range: ByteRange | None, into: Sink | None = None) -> tuple[bytes, Version | None]:
        """Bytes and version from one open file: a concurrent replacement can't mix two versions. ``None``: as above."""
        try:
            descriptor = os.open(self._directory / key, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return b"", None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)  # a directory: a prefix of other keys, not an object
            return b"", None
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            start, stop = (0, status.st_size) if byte_range is None else (byte_range.start, byte_range.stop)
            length = max(0, min(stop, status.st_size) - start)
            file.seek(min(start, status.st_size))
            if into is not None:
                into.begin()
                if byte_range is not None and length == byte_range.length:
                    _receive(file, length, into)
                    return b"", Version.of(status)
            pieces = []
            while length and (piece := file.read(length)):
                pieces.append(piece)
                length -= len(piece)
            return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), Version.of(status)

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
                    raise InvalidCall(
                        f"part {part.number} of {key} has CRC-32C {found:#010x}, expected {part.crc32c:#010x}",
                        hint="the part was damaged on the disk; upload it again",
                    )
            os.fsync(descriptor)
            yield path, total

    def confirm(self, key: str) -> None:
        """Make the name of an object durable that another process hasn't confirmed yet."""
        target = self._directory / key
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            sync_name(target)
            with contextlib.suppress(PermissionError):  # above the root: not ours
                sync_name(target.parent)

    def _published(self, key: str, version: Version) -> Version:
        """Confirm an object just moved into place."""
        try:
            self.confirm(key)
        except OSError as error:
            raise OutcomeUnknown(
                f"{self._directory / key} was written, then its directory couldn't be synced: {error.strerror}",
                hint="check the disk, and look before repeating it",
            ) from error
        return version

    def create(self, key: str, temporary: Path, metadata: Mapping[str, str], crc: int) -> Version | None:
        """Link ``temporary`` as ``key``; ``None`` when the key is taken. The link is the commit point."""
        version, sidecar = self._describe(key, temporary, metadata, crc)
        target = self._directory / key
        try:
            for _ in range(RACES_MAX):
                if not target.parent.is_dir():
                    make_directories(target.parent)
                try:
                    os.link(temporary, target)
                except FileNotFoundError:
                    continue  # an emptied directory was removed between the two lines
                except FileExistsError:
                    if target.is_dir():
                        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
                    sidecar.unlink(missing_ok=True)
                    return None
                break
            else:
                raise StoreUnavailable(f"{key}: its directory was removed {RACES_MAX} times", hint="try again")
        except BaseException:
            sidecar.unlink(missing_ok=True)
            raise
        return self._published(key, version)

    def replace(self, key: str, temporary: Path, metadata: Mapping[str, str], crc: int) -> Version:
        """Rename ``temporary`` to ``key``, replacing any object. The caller holds the lock."""
        old = self.version(key)
        version, sidecar = self._describe(key, temporary, metadata, crc)
        target = self._directory / key
        staged = _second_link(temporary)
        try:
            for attempt in range(RACES_MAX):
                if not target.parent.is_dir():
                    make_directories(target.parent)
                try:
                    staged.replace(target)
                    break
                except FileNotFoundError:
                    if attempt == RACES_MAX - 1 or not staged.exists():
                        raise
        except BaseException:
            sidecar.unlink(missing_ok=True)
            staged.unlink(missing_ok=True)
            raise
        self._published(key, version)
        if old is not None:
            self._sidecar_path(key, old).unlink(missing_ok=True)
        return version

    def remove(self, key: str) -> None:
        """Remove the object, its sidecar, then the directories this emptied. The caller holds the lock."""
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
        """Sidecar for a tree copied without its times: the key's only sidecar, if its size agrees. ``None`` for files
        of other tools."""
        path = self._sidecar_path(key, version)
        pattern = f"{path.name.rsplit('.', 3)[0]}."
        ending = f".{version.size_bytes:x}.json"
        try:
            names = [name for name in names_in(path.parent) if name.startswith(pattern) and name.endswith(ending)]
        except (FileNotFoundError, NotADirectoryError):
            return {}, None
        names = [name for name in names if len(name) == len(path.name)]
        kept = _described_by(path.parent / names[0]) if len(names) == 1 else None
        return kept or ({}, None)

    def _sidecar_path(self, key: str, version: Version) -> Path:
        return self._meta / f"{key}.{version.mtime_ns:016x}.{version.size_bytes:x}.json"

    def _describe(self, key: str, temporary: Path, metadata: Mapping[str, str], crc: int) -> tuple[Version, Path]:
        """Give ``temporary`` a version unique to the key and write its sidecar.

        The file system sets the milliseconds; the rest is random. Exclusive creation of the sidecar settles a collision
        of two writers.
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
        raise StoreUnavailable(f"{key}: no unused version in {RACES_MAX} draws", hint="try again")


def _second_link(temporary: Path) -> Path:
    """Link the file under another name, which can be moved while the first one stays. Without hard links it is the same
    name, and readers can't tell whether the move is confirmed."""
    staged = temporary.with_name(f"{temporary.name}-staged")
    try:
        os.link(temporary, staged)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        return temporary
    return staged


def _receive(file: io.FileIO, length: int, into: Sink) -> None:
    """Read ``length`` bytes of a file; fewer where another program truncated it."""
    while length:
        room = into.room()[:length]
        count = file.readinto(room)
        if not count:
            return
        into.came(count)
        length -= count


def _unsealed(metadata: Mapping[str, str], crc: int) -> bytes:
    return json.dumps({"crc32c": crc, "metadata": dict(metadata)}, separators=(",", ":")).encode()


def _sidecar_of(metadata: Mapping[str, str], crc: int) -> bytes:
    """Content of a sidecar, ending with its own CRC-32C."""
    body = _unsealed(metadata, crc)
    return body[:-1] + b',"seal":%d}' % crc32c(body)


def _described_by(path: Path) -> tuple[Mapping[str, str], int | None] | None:
    try:
        data = path.read_bytes()
        kept = json.loads(data)
        metadata, crc = dict(kept["metadata"]), int(kept["crc32c"])
        # Earlier releases wrote no checksum. Without one, accept only the exact bytes that this store writes.
        if data not in (_sidecar_of(metadata, crc), _unsealed(metadata, crc)):
            raise ValueError("its seal doesn't fit")
        return metadata, crc
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(
            f"{path}: {error}", hint="the sidecar is damaged or was changed by hand: restore or remove it"
        ) from error
