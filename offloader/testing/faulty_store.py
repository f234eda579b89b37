"""A store that fails where it is told to.

Owns faults as data: which verb, which call of it, before or after the effect, as which error. Must never fail at
random.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from offloader.errors import OffloaderError, StoreUnavailable
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

__all__ = ["Fault", "FaultyStore"]

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure.

    Attributes:
        call: which call fails, from 1, counted among the calls that ``verb`` and ``key_part`` match.
        verb: name of the verb; ``*`` for any.
        key_part: only calls whose key (or prefix, or first key) contains this text.
        after: whether the call takes effect before it fails: the lost answer.
        error: what is raised: an ``offloader.errors`` class.
        calls: how many calls fail in a row, beginning with ``call``.
    """

    call: int
    verb: str = "*"
    key_part: str = ""
    after: bool = False
    error: type[OffloaderError] = StoreUnavailable
    calls: int = 1

    def matches(self, verb: str, key: str) -> bool:
        return self.verb in ("*", verb) and self.key_part in key


class FaultyStore:
    """``inner``, failing as ``faults`` say. ``calls`` lists verb and key of every call, in order."""

    def __init__(self, inner: ObjectStore, faults: Iterable[Fault] = ()) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._faults = list(faults)
        self._seen = [0] * len(self._faults)
        self._calls: list[tuple[str, str]] = []

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r})"

    @property
    def calls(self) -> Sequence[tuple[str, str]]:
        with self._lock:
            return list(self._calls)

    def set_faults(self, faults: Iterable[Fault]) -> None:
        """Replaces the faults; counting begins anew."""
        with self._lock:
            self._faults = list(faults)
            self._seen = [0] * len(self._faults)

    def _run(self, verb: str, key: str, call: Callable[[], _Answer]) -> _Answer:
        fault = self._next(verb, key)
        if fault is not None and not fault.after:
            raise fault.error(f"fault before {verb} of {key}")
        answer = call()
        if fault is not None:
            raise fault.error(f"fault after {verb} of {key}")
        return answer

    def _next(self, verb: str, key: str) -> Fault | None:
        """Counts the call; the first fault that is due."""
        due = None
        with self._lock:
            self._calls.append((verb, key))
            for number, fault in enumerate(self._faults):
                if fault.matches(verb, key):
                    self._seen[number] += 1
                    if due is None and fault.call <= self._seen[number] < fault.call + fault.calls:
                        due = fault
        return due

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        return self.inner.driver_metadata

    def head(self, key: str) -> ObjectInfo:
        return self._run("head", key, lambda: self.inner.head(key))

    def get(self, key: str, byte_range: ByteRange | None = None) -> tuple[bytes, ObjectInfo]:
        return self._run("get", key, lambda: self.inner.get(key, byte_range))

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

        return self._run("put", key, call)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        return self._run("list", prefix, lambda: self.inner.list(prefix, after=after, limit=limit))

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return self._run("delete", keys[0] if keys else "", lambda: self.inner.delete(keys))

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        return self._run("begin_upload", key, lambda: self.inner.begin_upload(key, metadata=metadata))

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        def call() -> PartInfo:
            return self.inner.upload_part(key, upload_id, number, body, crc32c=crc32c)

        return self._run("upload_part", key, call)

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        return self._run("complete_upload", key, lambda: self.inner.complete_upload(key, upload_id, parts))

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._run("abort_upload", key, lambda: self.inner.abort_upload(key, upload_id))

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        return self._run("list_uploads", prefix, lambda: self.inner.list_uploads(prefix))

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        return self._run("list_parts", key, lambda: self.inner.list_parts(key, upload_id))

    def close(self) -> None:
        self.inner.close()
