"""Unfinished multipart uploads of the local store: one hidden directory each.

Owns ``.offloader/uploads/<id>/``: ``upload.json`` (key, metadata) and one file per part, whose name tells number, size
and checksum. Must never touch an object.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from offloader.directories import make_directories, sync_directory
from offloader.errors import Corrupt, InvalidCall, NotFound
from offloader.store.base import PartInfo, UploadInfo
from offloader.store.local_disk import names_in
from offloader.store.local_temporaries import Temporaries

__all__ = ["LocalUploads"]

_UPLOAD_ID = re.compile(r"[0-9a-f]{32}\Z")
_PART = re.compile(r"(\d{5})-([0-9a-f]+)-([0-9a-f]{8})-([0-9a-f]{16})\.part\Z")


class LocalUploads:
    """Uploads below ``directory``, described among ``temporaries`` first."""

    def __init__(self, directory: Path, temporaries: Temporaries) -> None:
        self._directory = directory
        self._temporaries = temporaries

    def begin(self, key: str, upload_id: str, metadata: Mapping[str, str]) -> None:
        """The directory appears with its description in it, by a rename."""
        make_directories(self._directory)
        with self._temporaries.new_directory() as making:
            with (making / "upload.json").open("wb") as file:
                file.write(json.dumps({"key": key, "metadata": dict(metadata)}).encode())
                file.flush()
                os.fsync(file.fileno())
            sync_directory(making)
            making.rename(self._directory / upload_id)
        sync_directory(self._directory)

    def is_there(self, key: str, upload_id: str) -> bool:
        """Whether the upload is unfinished and of this key."""
        kept = self._description(upload_id)
        return kept is not None and kept[0] == key

    def metadata_of(self, key: str, upload_id: str) -> Mapping[str, str]:
        """The upload's user metadata; ``NotFound`` when it was completed, aborted or never begun."""
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
        """Moves the complete, synced ``temporary`` in as part ``number``; an earlier one of that number goes."""
        size_bytes = temporary.stat().st_size
        token = secrets.token_hex(8)
        directory = self._directory / upload_id
        path = directory / f"{number:05d}-{size_bytes:x}-{crc:08x}-{token}.part"
        try:
            temporary.rename(path)
        except FileNotFoundError:
            raise NotFound(f"{self._directory}: no upload {upload_id} of {key}") from None
        for name in names_in(directory):
            if name.startswith(f"{number:05d}-") and name != path.name:
                (directory / name).unlink(missing_ok=True)
        sync_directory(directory)
        return PartInfo(number, f'"{token}"', size_bytes, crc)

    def parts(self, upload_id: str) -> list[PartInfo]:
        """The parts that are there, by number."""
        found = []
        for name in names_in(self._directory / upload_id):
            if match := _PART.match(name):
                number, size, crc, token = match.groups()
                found.append(PartInfo(int(number), f'"{token}"', int(size, 16), int(crc, 16)))
        return found

    def check_parts(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> list[Path]:
        """The files of ``parts``; ``InvalidCall`` when one isn't what was uploaded."""
        there = {part.number: part for part in self.parts(upload_id)}
        paths = []
        for part in parts:
            if there.get(part.number) != part:
                raise InvalidCall(f"{self._directory}: part {part.number} of {key} isn't what was uploaded")
            token = part.etag.strip('"')
            name = f"{part.number:05d}-{part.size_bytes:x}-{part.crc32c:08x}-{token}.part"
            paths.append(self._directory / upload_id / name)
        return paths

    def drop(self, upload_id: str) -> None:
        """Forgets the upload: its description first, so that it is gone in one step."""
        directory = self._directory / upload_id
        (directory / "upload.json").unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)

    def all(self) -> list[UploadInfo]:
        """Every unfinished upload."""
        try:
            names = [name for name in names_in(self._directory) if _UPLOAD_ID.match(name)]
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            kept = self._description(name)
            if kept is not None:
                started_ms = (self._directory / name / "upload.json").stat().st_mtime_ns // 1_000_000
                found.append(UploadInfo(kept[0], name, started_ms))
        return found
