"""Writing to fsspec's memory file system, under one lock of this process.

Owns what that file system doesn't keep: ETags, user metadata, checksums, uploads. Must never be used for a file system
that another process can reach, where one process's lock proves nothing.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from offloader.clock import SystemClock
from offloader.errors import InvalidCall, NotFound, OutcomeUnknown, PreconditionFailed, Unsupported
from offloader.store import checks
from offloader.store.base import OVERWRITE, Body, DeleteFailure, IfMatch, ObjectInfo, PartInfo, PutMode, UploadInfo

__all__ = ["RemoteMemoryWrites"]


@dataclass(slots=True)
class _Upload:
    info: UploadInfo
    metadata: Mapping[str, str]
    parts: dict[int, tuple[PartInfo, bytes]] = field(default_factory=dict)


# fsspec's memory is one for the whole process, and so is what is known about its files, by path.
_lock = threading.RLock()
_versions = itertools.count(1)
_described: dict[str, ObjectInfo] = {}
_uploads: dict[str, _Upload] = {}


class RemoteMemoryWrites:
    """The writing verbs, and the description of what was written, for a store over that file system."""

    _url: str
    _files: Any
    _root: str

    def _info(self, key: str, found: Mapping[str, Any]) -> ObjectInfo:
        """What was kept when the file was written; for files that other code wrote, what the file system says."""
        info: ObjectInfo = super()._info(key, found)  # type: ignore[misc]
        with _lock:
            kept = _described.get(self._root + key)
        if kept is None or (kept.modified_ms, kept.size_bytes) != (info.modified_ms, info.size_bytes):
            return info
        return kept

    def _there(self, key: str) -> ObjectInfo | None:
        try:
            return self._info(key, self._files.info(self._root + key))
        except (FileNotFoundError, NotFound):
            return None

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        taken = bytes(body)
        _, kept, crc = checks.check_put(key, taken, mode, metadata, crc32c)
        with _lock:
            there = self._there(key)
            if mode.create_only and there is not None:
                raise PreconditionFailed(f"{self._url}: {key} exists already")
            if mode.etag is not None and (there is None or there.etag != mode.etag):
                found = "isn't there" if there is None else f"has ETag {there.etag}"
                raise PreconditionFailed(f"{self._url}: {key} {found}, expected {mode.etag}")
            return self._write(key, taken, kept, crc)

    def _write(self, key: str, body: bytes, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        path = self._root + key
        try:
            self._files.pipe_file(path, body)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise Unsupported(
                f"{self._url}: put of {key} failed: an object is where a directory should be, or the other way round",
                hint="here a key can't continue another one",
            ) from error
        modified_ms = int(self._files.info(path)["created"].timestamp() * 1000)
        info = ObjectInfo(key, len(body), f'"{next(_versions):x}-{crc:08x}"', modified_ms, dict(metadata), crc)
        _described[path] = info
        return info

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        checked = checks.check_keys(keys)
        with _lock:
            for key in checked:
                _described.pop(self._root + key, None)
                if self._there(key) is not None:
                    self._files.rm_file(self._root + key)
        return ()

    def delete_if_match(self, key: str, etag: str) -> None:
        checks.check_key(key)
        checks.check_mode(IfMatch(etag))
        with _lock:
            there = self._there(key)
            if there is not None and there.etag != etag:
                raise PreconditionFailed(f"{self._url}: {key} has ETag {there.etag}, expected {etag}")
            self.delete([key])

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        checks.check_key(key)
        kept = checks.check_metadata(metadata)
        with _lock:
            upload_id = f"upload-{next(_versions):x}"
            _uploads[upload_id] = _Upload(UploadInfo(self._root + key, upload_id, SystemClock().now_ms()), kept)
        return upload_id

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        checks.check_key(key)
        checks.check_part_number(number)
        taken = bytes(body)
        crc = checks.body_crc32c(key, taken, crc32c)
        with _lock:
            part = PartInfo(number, f'"{next(_versions):x}-{crc:08x}"', len(taken), crc)
            self._upload(key, upload_id).parts[number] = (part, taken)
        return part

    def _upload(self, key: str, upload_id: str) -> _Upload:
        upload = _uploads.get(upload_id)
        if upload is None or upload.info.key != self._root + key:
            raise NotFound(f"{self._url}: no upload {upload_id} of {key}")
        return upload

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        checks.check_key(key)
        checks.check_parts(key, parts)
        with _lock:
            try:
                upload = self._upload(key, upload_id)
            except NotFound as gone:
                raise OutcomeUnknown(gone.message, hint="look with head: it may have been completed before") from gone
            if any(upload.parts.get(part.number, (None,))[0] != part for part in parts):
                raise InvalidCall(f"{self._url}: the parts of {key} aren't what was uploaded")
            body = b"".join(upload.parts[part.number][1] for part in parts)
            info = self._write(key, body, upload.metadata, checks.body_crc32c(key, body, None))
            del _uploads[upload_id]
        return info

    def abort_upload(self, key: str, upload_id: str) -> None:
        checks.check_key(key)
        with _lock:
            if upload_id in _uploads and _uploads[upload_id].info.key == self._root + key:
                del _uploads[upload_id]

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        checks.check_list(prefix, 1)
        with _lock:
            infos = [upload.info for upload in _uploads.values()]
        found = [info for info in infos if info.key.startswith(self._root + prefix)]
        return [replace(info, key=info.key[len(self._root) :]) for info in found]

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        checks.check_key(key)
        with _lock:
            parts = self._upload(key, upload_id).parts
            return [parts[number][0] for number in sorted(parts)]
