"""Counting what is asked of a store: requests, failures and bytes by verb.

Owns the counters. Must never change a call, its answer or its error.

``open_store`` puts this *under* the retrying layer, so each attempt counts. One call of a verb is one request here,
also where an implementation sends several (a delete of more than a thousand keys, the look after a lost completion).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from offloader.errors import OffloaderError
from offloader.store.base import (
    OVERWRITE,
    Body,
    ByteRange,
    DeleteFailure,
    ListPage,
    ObjectInfo,
    ObjectStore,
    PartInfo,
    PutMode,
    UploadInfo,
)

__all__ = ["MeteredStore", "VerbCount", "requests_of"]

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class VerbCount:
    """What one verb was asked: ``errors`` of the ``requests`` raised; ``bytes_sent`` counts bodies of all attempts,
    ``bytes_received`` what ``get`` answered."""

    requests: int = 0
    errors: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


def requests_of(store: ObjectStore) -> Mapping[str, VerbCount]:
    """Requests by verb of a store that ``open_store`` opened; empty for one that doesn't count."""
    layer: object = store
    while layer is not None:
        if isinstance(layer, MeteredStore):
            return layer.requests()
        layer = getattr(layer, "inner", None)
    return {}


class MeteredStore:
    """``inner``, counted."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._counts: dict[str, VerbCount] = {}

    def __repr__(self) -> str:
        return f"MeteredStore({self.inner!r})"

    def requests(self) -> Mapping[str, VerbCount]:
        """The counts so far, by verb; a value that later calls don't change."""
        with self._lock:
            return dict(self._counts)

    def _count(self, verb: str, call: Callable[[], _Answer], *, bytes_sent: int = 0) -> _Answer:
        try:
            answer = call()
        except OffloaderError:
            self._add(verb, errors=1, bytes_sent=bytes_sent)
            raise
        received = len(answer[0]) if verb == "get" and isinstance(answer, tuple) else 0
        self._add(verb, bytes_sent=bytes_sent, bytes_received=received)
        return answer

    def _add(self, verb: str, *, errors: int = 0, bytes_sent: int = 0, bytes_received: int = 0) -> None:
        with self._lock:
            old = self._counts.get(verb, VerbCount())
            self._counts[verb] = VerbCount(
                old.requests + 1,
                old.errors + errors,
                old.bytes_sent + bytes_sent,
                old.bytes_received + bytes_received,
            )

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        return self.inner.driver_metadata

    def head(self, key: str) -> ObjectInfo:
        return self._count("head", lambda: self.inner.head(key))

    def get(self, key: str, byte_range: ByteRange | None = None) -> tuple[bytes, ObjectInfo]:
        return self._count("get", lambda: self.inner.get(key, byte_range))

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        def call() -> ObjectInfo:
            return self.inner.put(key, body, mode=mode, metadata=metadata, crc32c=crc32c)

        return self._count("put", call, bytes_sent=len(body))

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        return self._count("list", lambda: self.inner.list(prefix, after=after, limit=limit))

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return self._count("delete", lambda: self.inner.delete(keys))

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        return self._count("begin_upload", lambda: self.inner.begin_upload(key, metadata=metadata))

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        def call() -> PartInfo:
            return self.inner.upload_part(key, upload_id, number, body, crc32c=crc32c)

        return self._count("upload_part", call, bytes_sent=len(body))

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        return self._count("complete_upload", lambda: self.inner.complete_upload(key, upload_id, parts))

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._count("abort_upload", lambda: self.inner.abort_upload(key, upload_id))

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        return self._count("list_uploads", lambda: self.inner.list_uploads(prefix))

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        return self._count("list_parts", lambda: self.inner.list_parts(key, upload_id))

    def close(self) -> None:
        self.inner.close()
