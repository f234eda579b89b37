"""``file:///directory``: one file per object, durable and atomic."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from offloader.errors import (
    AccessDenied,
    BucketMissing,
    Corrupt,
    InvalidCall,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from offloader.runtime.clock import Clock
from offloader.runtime.system import make_directories, sync_directory
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
from offloader.store.local_files import (
    HIDDEN,
    Temporaries,
    Version,
    VersionedFiles,
    locked,
    names_in,
    translated,
)


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
            # Everything below sorts before ``after``, unless ``after`` itself is below.
            if wanted and (key > after or after.startswith(key)):
                yield from _walk(directory, key, prefix, after)
        elif key.startswith(prefix) and key > after and _is_text(name):
            with contextlib.suppress(FileNotFoundError):
                yield key, Version.of(entry.stat())


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8; other tools may have put files here whose names can't be keys."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


_UPLOAD_ID = re.compile(r"[0-9a-f]{32}\Z")
_PART = re.compile(r"(\d{5})-([0-9a-f]+)-([0-9a-f]{8})-([0-9a-f]{16})\.part\Z")


class LocalUploads:
    """Uploads below ``directory``, prepared among ``temporaries``."""

    def __init__(self, directory: Path, temporaries: Temporaries) -> None:
        self._directory = directory
        self._temporaries = temporaries

    def begin(self, key: str, upload_id: str, metadata: Mapping[str, str]) -> None:
        """Create the upload's directory with its description by one rename."""
        make_directories(self._directory)
        with self._temporaries.new(is_directory=True) as (making, _):
            with (making / "upload.json").open("wb") as file:
                file.write(json.dumps({"key": key, "metadata": dict(metadata)}).encode())
                file.flush()
                os.fsync(file.fileno())
            sync_directory(making)
            making.rename(self._directory / upload_id)
        sync_directory(self._directory)

    def metadata_of(self, key: str, upload_id: str) -> Mapping[str, str]:
        """The upload's user metadata; ``NotFound`` if it was completed, aborted or never begun."""
        kept = self._description(upload_id)
        if kept is None or kept[0] != key:
            raise NotFound(f"{self._directory}: no upload {upload_id} of {key}")
        return kept[1]

    def _description(self, upload_id: str) -> tuple[str, dict[str, str]] | None:
        if not _UPLOAD_ID.match(upload_id):
            return None
        try:
            kept = json.loads((self._directory / upload_id / "upload.json").read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as cause:
            raise self._damaged(upload_id) from cause
        if not isinstance(kept, dict) or not isinstance(kept.get("metadata"), dict) or "key" not in kept:
            raise self._damaged(upload_id)
        return str(kept["key"]), dict(kept["metadata"])

    def _damaged(self, upload_id: str) -> Corrupt:
        return Corrupt(
            f"{self._directory / upload_id}: no description of an upload", hint="look who changed it, and remove it"
        )

    def keep_part(self, key: str, upload_id: str, number: int, temporary: Path, crc: int) -> PartInfo:
        """Move the complete, synced ``temporary`` in as part ``number``, replacing an earlier one."""
        part = PartInfo(number, f'"{secrets.token_hex(8)}"', temporary.stat().st_size, crc)
        path = self._part_path(upload_id, part)
        try:
            temporary.rename(path)
        except FileNotFoundError:
            raise NotFound(f"{self._directory}: no upload {upload_id} of {key}") from None
        for name in names_in(path.parent):
            if name.startswith(f"{number:05d}-") and name != path.name:
                path.with_name(name).unlink(missing_ok=True)
        sync_directory(path.parent)
        return part

    def parts(self, upload_id: str) -> list[PartInfo]:
        """Existing parts by number."""
        matches = filter(None, map(_PART.match, names_in(self._directory / upload_id)))
        return [PartInfo(int(m[1]), f'"{m[4]}"', int(m[2], 16), int(m[3], 16)) for m in matches]

    def check_parts(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> list[Path]:
        """Files of ``parts``; ``InvalidCall`` when one differs from the uploaded part."""
        there = set(self.parts(upload_id))
        changed = next((part.number for part in parts if part not in there), None)
        if changed is not None:
            raise InvalidCall(f"{self._directory}: part {changed} of {key} isn't what was uploaded")
        return [self._part_path(upload_id, part) for part in parts]

    def _part_path(self, upload_id: str, part: PartInfo) -> Path:
        token = part.etag.strip('"')
        name = f"{part.number:05d}-{part.size_bytes:x}-{part.crc32c:08x}-{token}.part"
        return self._directory / upload_id / name

    def drop(self, upload_id: str) -> None:
        """Remove the upload: its description first, so that it ends in one step."""
        directory = self._directory / upload_id
        (directory / "upload.json").unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)

    def all(self) -> list[UploadInfo]:
        """Every unfinished upload."""
        try:
            names = [name for name in names_in(self._directory) if _UPLOAD_ID.match(name)]
        except FileNotFoundError:
            return []
        return [
            UploadInfo(kept[0], name, (self._directory / name / "upload.json").stat().st_mtime_ns // 1_000_000)
            for name in names
            if (kept := self._description(name)) is not None
        ]


#: Longest name of one level of a key, in UTF-8 bytes: file systems allow 255, the version in a sidecar takes up to 40.
LEVEL_BYTES_MAX = 200
#: Attempts to read an object under constant replacement.
REPLACEMENTS_MAX = 100


def open_url(url: str, options: StoreOptions) -> LocalStore:
    """Open the store in the directory of ``url``; a missing one is created if ``options`` allow it."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise InvalidCall(f"{url} names no directory", hint="give an absolute path: file:///directory (three slashes)")
    directory = Path(unquote(parts.path))
    if (options.read_only or not options.create) and not directory.is_dir():
        raise BucketMissing(f"{url}: no such directory", hint="check the path, or write something there first")
    if not options.read_only:
        with translated(url, "opening"):
            make_directories(directory)
        if not os.access(directory, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise AccessDenied(f"{url}: the directory can't be written", hint="check its owner and permissions")
    store = LocalStore(directory, options.settings, options.clock)
    if not options.read_only:
        store.sweep(options.clock.now_ms())
    return store


class LocalStore(checks.CheckedStore):
    """See ``ObjectStore``. Several processes on one machine may share a directory."""

    def __init__(self, directory: Path, settings: StoreSettings, clock: Clock) -> None:
        super().__init__(f"file://{quote(str(directory))}", "", driver="file", bucket=str(directory))
        self._directory = directory
        self._temporaries = Temporaries(directory / HIDDEN / "tmp")
        self._files = VersionedFiles(directory, self._temporaries)
        self._uploads = LocalUploads(directory / HIDDEN / "uploads", self._temporaries)
        self._locked = functools.partial(locked, directory / HIDDEN / "lock", settings.read_timeout_s, clock)

    def _check_key(self, key: str) -> None:
        super()._check_key(key)
        levels = key.split("/")
        if levels[0] == HIDDEN:
            raise InvalidCall(f"key {key!r} can't be used: {HIDDEN} is where this store keeps its own files")
        if any(len(level.encode()) > LEVEL_BYTES_MAX for level in levels):
            raise InvalidCall(f"key {key!r} can't be used: a level is longer than {LEVEL_BYTES_MAX} bytes")

    def _head(self, key: str) -> ObjectInfo:
        with translated(self.url, f"head of {key}"):
            return self._described(key, lambda: (b"", self._files.version(key)))[1]

    def _get(self, key: str, byte_range: ByteRange | None, into: Sink | None) -> tuple[bytes, ObjectInfo]:
        with translated(self.url, f"get of {key}"):
            return self._described(key, lambda: self._files.read(key, byte_range, into))

    def _described(self, key: str, look: Callable[[], tuple[bytes, Version | None]]) -> tuple[bytes, ObjectInfo]:
        """What ``look`` finds, with the metadata of the same version: retries when it was replaced meanwhile."""
        for _ in range(REPLACEMENTS_MAX):
            body, version = look()
            if version is None:
                raise NotFound(f"{self.url}: no object {key}")
            if not version.is_confirmed:
                self._files.confirm(key)
            kept = self._files.sidecar(key, version)
            if kept is None and self._files.version(key) == version:
                kept = self._files.sidecar_of_copy(key, version)
            if kept is not None:
                info = ObjectInfo(key, version.size_bytes, version.etag, version.modified_ms, *kept)
                return body, info
        raise StoreUnavailable(f"{self.url}: {key} was replaced {REPLACEMENTS_MAX} times while it was read")

    def sweep(self, now_ms: int) -> None:
        """Remove files of killed processes in the hidden folder; failures are left for later."""
        with contextlib.suppress(OSError):
            self._temporaries.sweep(now_ms)

    def _put(self, key: str, body: Body, mode: PutMode, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        with translated(self.url, f"put of {key}"):
            if mode.create_only:
                self._refuse_existing(key)
            self._check_etag(key, mode)
            with self._files.temporary(body) as temporary:
                return self._publish(key, temporary, metadata, crc, mode)

    def _version(self, key: str) -> Version | None:
        """The object's version, its name durable."""
        there = self._files.version(key)
        if there is not None and not there.is_confirmed:
            self._files.confirm(key)
        return there

    def _refuse_existing(self, key: str) -> None:
        if self._version(key) is not None:
            raise PreconditionFailed(f"{self.url}: {key} exists already")

    def _publish(self, key: str, temporary: Path, metadata: Mapping[str, str], crc: int, mode: PutMode) -> ObjectInfo:
        """Make the complete, synced file ``temporary`` the object ``key``."""
        if mode.create_only:
            created = self._files.create(key, temporary, metadata, crc)
            if created is None:
                self._refuse_existing(key)
                raise StoreUnavailable(f"{self.url}: {key} was there and then gone", hint="try again")
            version = created
        else:
            with self._locked():
                self._check_etag(key, mode)
                version = self._files.replace(key, temporary, metadata, crc)
        return ObjectInfo(key, version.size_bytes, version.etag, version.modified_ms, dict(metadata), crc)

    def _check_etag(self, key: str, mode: PutMode) -> None:
        if mode.etag is None:
            return
        there = self._version(key)
        if there is None or there.etag != mode.etag:
            found = "isn't there" if there is None else f"has ETag {there.etag}"
            raise PreconditionFailed(f"{self.url}: {key} {found}, expected {mode.etag}")

    def _list(self, prefix: str, after: str, limit: int) -> ListPage:
        with translated(self.url, f"list of {prefix!r}"):
            if not self._directory.is_dir():
                raise BucketMissing(f"{self.url}: no such directory", hint="it was there when the store was opened")
            found = list_files(self._directory, prefix, after, limit + 1)
            # One key represents all keys of its directory.
            new = {key.rpartition("/")[0]: key for key, version in found[:limit] if not version.is_confirmed}
            for key in new.values():
                self._files.confirm(key)
        objects = tuple(
            ObjectInfo(key, version.size_bytes, version.etag, version.modified_ms) for key, version in found[:limit]
        )
        return ListPage(objects, objects[-1].key if len(found) > limit else None)

    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        failures = []
        with translated(self.url, "delete"), self._locked():
            for key in keys:
                try:
                    with translated(self.url, f"delete of {key}"):
                        self._files.remove(key)
                except OffloaderError as error:
                    failures.append(DeleteFailure(key, str(error), error.retryable))
        return failures

    def _delete_if_match(self, key: str, etag: str) -> None:
        with translated(self.url, f"delete of {key}"), self._locked():
            if self._files.version(key) is not None:
                self._check_etag(key, IfMatch(etag))
                self._files.remove(key)

    def _begin_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        upload_id = secrets.token_hex(16)
        with translated(self.url, f"upload of {key}"):
            self._uploads.begin(key, upload_id, metadata)
        return upload_id

    def _upload_part(self, key: str, upload_id: str, number: int, body: Body, crc: int) -> PartInfo:
        with translated(self.url, f"part {number} of {key}"):
            self._uploads.metadata_of(key, upload_id)
            with self._files.temporary(body) as temporary:
                return self._uploads.keep_part(key, upload_id, number, temporary, crc)

    def _complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        with translated(self.url, f"completion of {key}"):
            try:
                metadata = self._uploads.metadata_of(key, upload_id)
                paths = self._uploads.check_parts(key, upload_id, parts)
            except NotFound as gone:
                raise OutcomeUnknown(gone.message, hint="look with head: it may have been completed before") from gone
            with self._files.joined(key, list(zip(paths, parts, strict=True))) as (temporary, crc):
                info = self._publish(key, temporary, metadata, crc, OVERWRITE)
            with contextlib.suppress(OSError):  # the object exists; the remains can be listed and aborted
                self._uploads.drop(upload_id)
        return info

    def _abort_upload(self, key: str, upload_id: str) -> None:
        with translated(self.url, f"abort of an upload of {key}"), contextlib.suppress(NotFound):
            self._uploads.metadata_of(key, upload_id)
            self._uploads.drop(upload_id)

    def _list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        with translated(self.url, f"list of uploads {prefix!r}"):
            return [info for info in self._uploads.all() if info.key.startswith(prefix)]

    def _list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        with translated(self.url, f"list of parts of {key}"):
            self._uploads.metadata_of(key, upload_id)
            return self._uploads.parts(upload_id)
