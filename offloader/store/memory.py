"""``memory://NAME``: objects in this process, shared by every store opened with the same name.

Reference implementation of the verbs. Writes nothing to disk.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from formats.checksum import crc32c
from offloader.errors import InvalidCallError, NotFoundError, PreconditionFailedError
from offloader.runtime.clock import Clock
from offloader.store import checks
from offloader.store.base import (
    Body,
    ByteRange,
    DeleteFailure,
    ListPage,
    ObjectInfo,
    PartInfo,
    PutMode,
    Sink,
    StoreOptions,
    UploadInfo,
)


@dataclass(slots=True)
class _Upload:
    info: UploadInfo
    metadata: Mapping[str, str]
    parts: dict[int, tuple[PartInfo, bytes]] = field(default_factory=dict)


@dataclass(slots=True)
class _Bucket:
    """Objects under one name, and the lock that makes each verb atomic."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    keys: list[str] = field(default_factory=list)
    objects: dict[str, tuple[ObjectInfo, bytes]] = field(default_factory=dict)
    uploads: dict[str, _Upload] = field(default_factory=dict)
    versions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


_buckets: dict[str, _Bucket] = {}
_buckets_lock = threading.Lock()


def open_url(url: str, options: StoreOptions) -> MemoryStore:
    """Open the store at ``memory://NAME/root``; a missing name is created."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise InvalidCallError(f"{url} has no name", hint="use memory://NAME")
    return MemoryStore(parts.netloc, checks.split_root(url, unquote(parts.path)), options.clock)


class MemoryStore(checks.CheckedStore):
    """See ``ObjectStore``. Two stores with the same ``name`` share their objects.

    Args:
        is_shared: if off, the objects are private to this store, even if another store has the same name.
    """

    def __init__(self, name: str, root: str, clock: Clock, *, is_shared: bool = True) -> None:
        super().__init__(f"memory://{name}/{root}".rstrip("/"), root, driver="memory", bucket=name)
        self._clock = clock
        self._bucket = _Bucket()
        if is_shared:
            with _buckets_lock:
                self._bucket = _buckets.setdefault(name, self._bucket)

    def _head(self, key: str) -> ObjectInfo:
        return self._find(key)[0]

    def _get(self, key: str, byte_range: ByteRange | None, into: Sink | None) -> tuple[bytes, ObjectInfo]:  # noqa: ARG002
        info, body = self._find(key)
        return (body if byte_range is None else body[byte_range.start : byte_range.stop]), info

    def _find(self, key: str) -> tuple[ObjectInfo, bytes]:
        with self._bucket.lock:
            found = self._bucket.objects.get(self._root + key)
        if found is None:
            raise NotFoundError(f"{self.url}: no object {key}")
        return self._told(found[0]), found[1]

    def _put(self, key: str, body: Body, mode: PutMode, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        taken = bytes(body)
        with self._bucket.lock:
            there = self._bucket.objects.get(self._root + key)
            if mode.create_only and there is not None:
                raise PreconditionFailedError(f"{self.url}: {key} already exists")
            if mode.etag is not None:
                checks.require_etag(self, key, mode.etag, None if there is None else there[0].etag)
            return self._told(self._write(self._root + key, taken, metadata, crc))

    def _told(self, info: ObjectInfo) -> ObjectInfo:
        """Strip the root from listed keys."""
        return replace(info, key=info.key[len(self._root) :]) if self._root else info

    def _write(self, full_key: str, body: bytes, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        """Write the object with an ETag that is never reused. The caller holds the lock."""
        etag = f'"{next(self._bucket.versions):x}-{crc:08x}"'
        info = ObjectInfo(full_key, len(body), etag, self._clock.now_ms(), dict(metadata), crc)
        if full_key not in self._bucket.objects:
            insort(self._bucket.keys, full_key)
        self._bucket.objects[full_key] = (info, body)
        return info

    def _list(self, prefix: str, after: str, limit: int) -> ListPage:
        full_prefix = self._root + prefix
        with self._bucket.lock:
            keys = self._bucket.keys
            start = max(bisect_left(keys, full_prefix), bisect_right(keys, self._root + after) if after else 0)
            page = itertools.islice(keys, start, start + limit + 1)
            begun = itertools.takewhile(lambda full_key: full_key.startswith(full_prefix), page)
            found = [self._bucket.objects[full_key][0] for full_key in begun]
        root = len(self._root)
        objects = tuple(
            ObjectInfo(info.key[root:], info.size_bytes, info.etag, info.modified_ms) for info in found[:limit]
        )
        return ListPage(objects, objects[-1].key if len(found) > limit else None)

    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        with self._bucket.lock:
            for key in keys:
                self._remove(self._root + key)
        return ()

    def _delete_if_match(self, key: str, etag: str) -> None:
        with self._bucket.lock:
            there = self._bucket.objects.get(self._root + key)
            if there is not None:
                checks.require_etag(self, key, etag, there[0].etag)
            self._remove(self._root + key)

    def _remove(self, full_key: str) -> None:
        """The caller holds the lock."""
        if self._bucket.objects.pop(full_key, None) is not None:
            del self._bucket.keys[bisect_left(self._bucket.keys, full_key)]

    def _begin_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        with self._bucket.lock:
            upload_id = f"upload-{next(self._bucket.versions):x}"
            info = UploadInfo(self._root + key, upload_id, self._clock.now_ms())
            self._bucket.uploads[upload_id] = _Upload(info, metadata)
        return upload_id

    def _upload_part(self, key: str, upload_id: str, number: int, body: Body, crc: int) -> PartInfo:
        taken = bytes(body)
        with self._bucket.lock:
            upload = self._upload(key, upload_id)
            part = PartInfo(number, f'"{next(self._bucket.versions):x}-{crc:08x}"', len(taken), crc)
            upload.parts[number] = (part, taken)
        return part

    def _upload(self, key: str, upload_id: str) -> _Upload:
        """The caller holds the lock."""
        upload = self._bucket.uploads.get(upload_id)
        if upload is None or upload.info.key != self._root + key:
            raise NotFoundError(f"{self.url}: no upload {upload_id} of {key}")
        return upload

    def _complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        with self._bucket.lock:
            with checks.completing():
                upload = self._upload(key, upload_id)
            for part in parts:
                if part.number not in upload.parts or upload.parts[part.number][0] != part:
                    raise InvalidCallError(
                        f"{self.url}: part {part.number} of {key} is missing or differs from the uploaded one"
                    )
            body = b"".join(upload.parts[part.number][1] for part in parts)
            info = self._write(self._root + key, body, upload.metadata, crc32c(body))
            del self._bucket.uploads[upload_id]
        return self._told(info)

    def _abort_upload(self, key: str, upload_id: str) -> None:
        with self._bucket.lock, contextlib.suppress(NotFoundError):
            self._upload(key, upload_id)
            del self._bucket.uploads[upload_id]

    def _list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        with self._bucket.lock:
            infos = [upload.info for upload in self._bucket.uploads.values()]
        found = [info for info in infos if info.key.startswith(self._root + prefix)]
        return [replace(info, key=info.key[len(self._root) :]) for info in found]

    def _list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        with self._bucket.lock:
            parts = self._upload(key, upload_id).parts
            return [parts[number][0] for number in sorted(parts)]
