"""Base of store wrappers, which passes every request through one method, and the read-only store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeVar

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

__all__ = ["ReadOnlyStore", "ReadableStore", "Request", "StoreWrapper", "body_bytes", "layer_of"]

_Answer = TypeVar("_Answer")
_Layer = TypeVar("_Layer")


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a verb.

    Attributes:
        verb: its name.
        traffic: kind of request.
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

    def head(self, key: str) -> ObjectInfo:
        return self.around(Request("head", Traffic.READ, key), lambda: self.inner.head(key))

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Sink | None = None
    ) -> tuple[bytes, ObjectInfo]:
        size_bytes = 0 if byte_range is None else byte_range.length
        request = Request("get", Traffic.READ, key, size_bytes, into=into)
        return self.around(request, lambda: self.inner.get(key, byte_range, into=into))

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

        return self.around(Request("put", Traffic.UPLOAD, key, len(body)), call)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        def call() -> ListPage:
            return self.inner.list(prefix, after=after, limit=limit)

        return self.around(Request("list", Traffic.READ, prefix), call)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        if not keys:
            return self.inner.delete(keys)
        return self.around(Request("delete", Traffic.DELETE, keys[0], keys=len(keys)), lambda: self.inner.delete(keys))

    def delete_if_match(self, key: str, etag: str) -> None:
        self.around(Request("delete_if_match", Traffic.DELETE, key), lambda: self.inner.delete_if_match(key, etag))

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        def call() -> str:
            return self.inner.begin_upload(key, metadata=metadata)

        return self.around(Request("begin_upload", Traffic.UPLOAD, key), call)

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        def call() -> PartInfo:
            return self.inner.upload_part(key, upload_id, number, body, crc32c=crc32c)

        return self.around(Request("upload_part", Traffic.UPLOAD, key, len(body)), call)

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        def call() -> ObjectInfo:
            return self.inner.complete_upload(key, upload_id, parts)

        return self.around(Request("complete_upload", Traffic.UPLOAD, key), call)

    def abort_upload(self, key: str, upload_id: str) -> None:
        self.around(Request("abort_upload", Traffic.DELETE, key), lambda: self.inner.abort_upload(key, upload_id))

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        return self.around(Request("list_uploads", Traffic.READ, prefix), lambda: self.inner.list_uploads(prefix))

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        return self.around(Request("list_parts", Traffic.READ, key), lambda: self.inner.list_parts(key, upload_id))

    def close(self) -> None:
        self.inner.close()


class ReadableStore(Protocol):
    """The verbs of ``ObjectStore`` that change nothing."""

    @property
    def url(self) -> str: ...

    @property
    def driver_metadata(self) -> Mapping[str, str]: ...

    def head(self, key: str) -> ObjectInfo: ...

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Sink | None = None
    ) -> tuple[bytes, ObjectInfo]: ...

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage: ...

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]: ...

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]: ...

    def close(self) -> None: ...


class ReadOnlyStore:
    """``inner`` without its writing verbs. ``reason`` and ``hint`` explain that in the error."""

    def __init__(self, inner: ReadableStore, reason: str = "it was opened for reading", hint: str = "") -> None:
        self.inner = inner
        self._reason = reason
        self._hint = hint

    def __repr__(self) -> str:
        return f"ReadOnlyStore({self.inner!r})"

    def _refuse(self, verb: str, what: str) -> NoReturn:
        raise Unsupported(f"{self.url}: {verb} {what} refused: {self._reason}", hint=self._hint)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        return self.inner.driver_metadata

    def head(self, key: str) -> ObjectInfo:
        return self.inner.head(key)

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Sink | None = None
    ) -> tuple[bytes, ObjectInfo]:
        return self.inner.get(key, byte_range, into=into)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        return self.inner.list(prefix, after=after, limit=limit)

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        return self.inner.list_uploads(prefix)

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        return self.inner.list_parts(key, upload_id)

    def put(
        self,
        key: str,
        body: Body,  # noqa: ARG002
        *,
        mode: PutMode = OVERWRITE,  # noqa: ARG002
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002
        crc32c: int | None = None,  # noqa: ARG002
    ) -> ObjectInfo:
        self._refuse("put of", key)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        self._refuse("delete of", f"{len(keys)} keys")

    def delete_if_match(self, key: str, etag: str) -> None:  # noqa: ARG002
        self._refuse("delete of", key)

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:  # noqa: ARG002
        self._refuse("upload of", key)

    def upload_part(
        self,
        key: str,
        upload_id: str,  # noqa: ARG002
        number: int,
        body: Body,  # noqa: ARG002
        *,
        crc32c: int | None = None,  # noqa: ARG002
    ) -> PartInfo:
        self._refuse(f"part {number} of", key)

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:  # noqa: ARG002
        self._refuse("completion of", key)

    def abort_upload(self, key: str, upload_id: str) -> None:  # noqa: ARG002
        self._refuse("abort of an upload of", key)

    def close(self) -> None:
        self.inner.close()
