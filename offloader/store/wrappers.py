"""Base of store wrappers, which passes every request through one method, and the read-only store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from offloader.errors import Unsupported
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
    Sink,
    UploadInfo,
)
from offloader.store.rate_limit import Traffic

_Answer = TypeVar("_Answer")
_Layer = TypeVar("_Layer")


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a verb.

    Attributes:
        key: of the object, or a prefix; of a delete the first key.
        size_bytes: of the body, or of the range that is read; 0 if unknown.
        keys: number of keys of a delete, else 1.
        into: receives a get's body instead of the return value.
    """

    verb: str
    traffic: Traffic
    key: str
    size_bytes: int = 0
    keys: int = 1
    into: Sink | None = None


def body_bytes(request: Request, answer: object) -> int:
    """Length of a get's body, wherever it was written; 0 for other verbs."""
    if request.verb != "get" or not isinstance(answer, tuple):
        return 0
    return len(answer[0]) + (0 if request.into is None else request.into.received_bytes)


def layer_of(store: ObjectStore, kind: type[_Layer]) -> _Layer | None:
    """The outermost layer of that kind around ``store``'s implementation, or ``None``."""
    layer: object = store
    while layer is not None:
        if isinstance(layer, kind):
            return layer
        layer = getattr(layer, "inner", None)
    return None


class StoreWrapper:
    """Passes each call to ``inner`` through ``around``."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        """Make the call."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        return self.inner.driver_metadata

    def _of(self, key: str) -> ObjectStore:  # noqa: ARG002 - one store has them all
        """The store that has ``key``, or the keys with that prefix."""
        return self.inner

    def head(self, key: str) -> ObjectInfo:
        return self.around(Request("head", Traffic.READ, key), lambda: self._of(key).head(key))

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Sink | None = None
    ) -> tuple[bytes, ObjectInfo]:
        size_bytes = 0 if byte_range is None else byte_range.length
        request = Request("get", Traffic.READ, key, size_bytes, into=into)
        return self.around(request, lambda: self._of(key).get(key, byte_range, into=into))

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        return self.around(
            Request("put", Traffic.UPLOAD, key, len(body)),
            lambda: self._of(key).put(key, body, mode=mode, metadata=metadata, crc32c=crc32c),
        )

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        return self.around(
            Request("list", Traffic.READ, prefix), lambda: self._of(prefix).list(prefix, after=after, limit=limit)
        )

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        if not keys:
            return ()
        return self.around(Request("delete", Traffic.DELETE, keys[0], keys=len(keys)), lambda: self.inner.delete(keys))

    def delete_if_match(self, key: str, etag: str) -> None:
        self.around(Request("delete_if_match", Traffic.DELETE, key), lambda: self._of(key).delete_if_match(key, etag))

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        return self.around(
            Request("begin_upload", Traffic.UPLOAD, key), lambda: self._of(key).begin_upload(key, metadata=metadata)
        )

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        return self.around(
            Request("upload_part", Traffic.UPLOAD, key, len(body)),
            lambda: self._of(key).upload_part(key, upload_id, number, body, crc32c=crc32c),
        )

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        return self.around(
            Request("complete_upload", Traffic.UPLOAD, key),
            lambda: self._of(key).complete_upload(key, upload_id, parts),
        )

    def abort_upload(self, key: str, upload_id: str) -> None:
        self.around(Request("abort_upload", Traffic.DELETE, key), lambda: self._of(key).abort_upload(key, upload_id))

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        return self.around(Request("list_uploads", Traffic.READ, prefix), lambda: self._of(prefix).list_uploads(prefix))

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        return self.around(Request("list_parts", Traffic.READ, key), lambda: self._of(key).list_parts(key, upload_id))

    def signed_url(self, key: str, expires_s: float) -> str | None:
        return self._of(key).signed_url(key, expires_s)  # not a request

    def close(self) -> None:
        self.inner.close()


class ReadOnlyStore(StoreWrapper):
    """``inner`` without its writing verbs. ``reason`` and ``hint`` explain that in the error."""

    def __init__(self, inner: ObjectStore, reason: str = "it was opened for reading", hint: str = "") -> None:
        super().__init__(inner)
        self._reason, self._hint = reason, hint

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        if request.traffic is Traffic.READ:
            return call()
        what = f"{request.keys} keys" if request.verb == "delete" else request.key
        action = "deletion" if request.traffic is Traffic.DELETE else "write"
        raise Unsupported(f"{self.url}: {action} of {what} refused: {self._reason}", hint=self._hint)
