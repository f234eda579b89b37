"""A store that is only read: every writing verb is refused before anything is sent.

Owns the refusal. Must never let a write through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol

from offloader.errors import Unsupported
from offloader.store.base import (
    OVERWRITE,
    Body,
    ByteRange,
    DeleteFailure,
    ListPage,
    ObjectInfo,
    PartInfo,
    PutMode,
    UploadInfo,
)
from offloader.store.receiver import Receiver

__all__ = ["ReadOnlyStore", "ReadableStore"]


class ReadableStore(Protocol):
    """The verbs of ``ObjectStore`` that change nothing."""

    @property
    def url(self) -> str: ...

    @property
    def driver_metadata(self) -> Mapping[str, str]: ...

    def head(self, key: str) -> ObjectInfo: ...

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Receiver | None = None
    ) -> tuple[bytes, ObjectInfo]: ...

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage: ...

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]: ...

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]: ...

    def close(self) -> None: ...


class ReadOnlyStore:
    """``inner`` without its writing verbs. ``reason`` and ``hint`` say why in the error."""

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
        self, key: str, byte_range: ByteRange | None = None, *, into: Receiver | None = None
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
