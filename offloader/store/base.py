"""The object store seam: eight verbs, their values, and ``open_store``.

Owns what the rest of the package may ask of a store. Must never name an SDK: implementations are
loaded by scheme when a store is opened. Everything else about objects is a function over this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "CREATE",
    "OVERWRITE",
    "ByteRange",
    "DeleteFailure",
    "IfMatch",
    "ListPage",
    "ObjectInfo",
    "ObjectStore",
    "PartInfo",
    "PutMode",
    "UploadInfo",
]

#: Bytes that a store accepts as a body. ``bytearray`` and ``memoryview`` are never changed by the store,
#: and the caller must not change them until the call returns.
Body = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start`` (included) to ``stop`` (excluded) of an object."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class PutMode:
    """How a put treats what is there already: see ``CREATE``, ``OVERWRITE`` and ``IfMatch``."""

    create_only: bool = False
    etag: str | None = None


#: Create or fail with ``PreconditionFailed``: atomic, or the store refuses to be opened for writing.
CREATE = PutMode(create_only=True)
#: Replace whatever is there.
OVERWRITE = PutMode()


def IfMatch(etag: str) -> PutMode:  # noqa: N802 - reads like the header it becomes
    """Replace only the version with this ETag, else ``PreconditionFailed``."""
    return PutMode(etag=etag)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows about one object.

    ``metadata`` (user metadata, lower-case keys) and ``crc32c`` are filled by ``head`` and ``get``
    where the store keeps them, and empty / ``None`` in listings.
    """

    key: str
    size_bytes: int
    etag: str
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class ListPage:
    """Some objects of a listing. ``next_after`` goes into the next call; ``None`` = that was all."""

    objects: tuple[ObjectInfo, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class DeleteFailure:
    """One key that a delete didn't remove, and why."""

    key: str
    reason: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class PartInfo:
    """An uploaded part: number from 1, what the store answered for it, what we sent."""

    number: int
    etag: str
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class UploadInfo:
    """An unfinished multipart upload."""

    key: str
    upload_id: str
    started_ms: int


class ObjectStore(Protocol):
    """Eight verbs. Keys are relative to the store's root and never begin with ``/``.

    Every call has a deadline of its own and raises only ``offloader.errors``: ``NotFound`` (object or bucket),
    ``AccessDenied``, ``PreconditionFailed``, ``Throttled`` and ``StoreUnavailable`` (nothing was changed, retry),
    ``OutcomeUnknown`` (a write that may have happened), ``Unsupported``.
    All methods are thread-safe.
    """

    @property
    def url(self) -> str:
        """Where this is, without secrets, e.g. ``s3://bucket/root``."""
        ...

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        """``managedLedgerOffloadDriver``, ``bucket``, ``region``, ``serviceEndpoint``: recorded with each segment."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """The object's size, ETag, metadata."""
        ...

    def get(self, key: str, byte_range: ByteRange | None = None) -> tuple[bytes, ObjectInfo]:
        """Whole object, or exactly ``byte_range`` (a range that goes past the end is cut; one that starts past it gives
        no bytes). ``ObjectInfo.size_bytes`` is the size of the whole object."""
        ...

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        """Writes a whole object. ``crc32c``: the caller's own checksum, sent along; computed when absent."""
        ...

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        """Objects whose key begins with ``prefix`` and, where the store orders keys, comes after ``after``."""
        ...

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """Removes keys; a key that isn't there counts as removed. Answers what was *not* removed."""
        ...

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        """Starts a multipart upload; answers its id."""
        ...

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        """Sends part ``number`` (from 1)."""
        ...

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Makes the object of ``parts``, in order. ``OutcomeUnknown`` when the answer was lost or the upload is gone:
        look with ``head``."""
        ...

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Drops an upload and its parts; one that isn't there counts as dropped."""
        ...

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        """Unfinished uploads of keys that begin with ``prefix``. Some servers (MinIO) only find the exact key."""
        ...

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """Parts that an unfinished upload already has (``crc32c`` = -1 where the store doesn't tell)."""
        ...

    def close(self) -> None:
        """Gives connections back. Closing twice is fine."""
        ...
