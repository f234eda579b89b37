"""Protocol of an object store: eight verbs and their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import SplitResult, urlsplit, urlunsplit

from formats.entries import Pieces
from offloader.errors import InvalidCall
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import StoreSettings
from offloader.store.rate_limit import Limiter
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

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
    "Sink",
    "StoreOptions",
    "UploadInfo",
    "require_place_only",
    "without_secrets",
]


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without user, password, query and fragment."""
    plain = url.partition("?")[0].partition("#")[0]
    try:
        parts = urlsplit(plain)
    except ValueError:  # no URL; where a password would stand in it nobody knows
        return plain.rpartition("@")[2]
    shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
    return (shown if parts.netloc else shown.rpartition("@")[2]).rstrip("/")


def require_place_only(url: str) -> None:
    """Of the schemes of our own: a URL says where a store is and nothing else.

    Raises:
        InvalidCall: it says more, or is no URL; what it says isn't repeated.
    """
    scheme = url.partition("://")[0]
    try:
        parts: SplitResult = urlsplit(url)
    except ValueError as error:
        raise InvalidCall(f"the {scheme} URL can't be read: {error}", hint=f"give {scheme}://NAME/root") from error
    if "@" in parts.netloc:
        raise InvalidCall(
            f"the {scheme} URL carries credentials",
            hint="leave them out of the URL: use the environment, a profile, or access_key and secret_key",
        )
    if "?" in url or "#" in url:
        raise InvalidCall(
            f"{without_secrets(url)} is followed by a ? or # and more, which means nothing here",
            hint="leave it out (settings have options of their own); in a name write %3F for ? and %23 for #",
        )


class Sink(Protocol):
    """Takes a body instead of an answer that holds all of it: see ``ObjectStore.get``. Used by one call at a time.

    What came may turn out to be nothing: the connection may break for good, the object may be another one. So whoever
    receives decides nothing before the call has returned; and it never raises, as the store takes an error for its own.
    """

    @property
    def received_bytes(self) -> int:
        """How much of the body came since ``begin``."""
        ...

    def begin(self) -> None:
        """A body begins, at the first byte that was asked for; whatever came before is forgotten."""
        ...

    def room(self) -> memoryview:
        """Where the next bytes go: not empty, and nobody else's until ``came``."""
        ...

    def came(self, count: int) -> None:
        """``count`` bytes stand at the beginning of ``room`` now, at least one; that memory isn't the store's any
        more."""
        ...


#: Bytes that a store accepts as a body, in one place or in several. ``bytearray`` and ``memoryview`` are never changed
#: by the store, and the caller must not change them until the call returns.
Body = bytes | bytearray | memoryview | Pieces


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

    Every call has a deadline of its own and raises only ``offloader.errors``: ``NotFound`` (object or upload),
    ``BucketMissing``, ``AccessDenied``, ``PreconditionFailed``, ``Throttled`` and ``StoreUnavailable`` (nothing was
    changed, retry), ``OutcomeUnknown`` (a write that may have happened), ``Unsupported``.
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

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Sink | None = None
    ) -> tuple[bytes, ObjectInfo]:
        """Whole object, or exactly ``byte_range`` (a range that goes past the end is cut; one that starts past it gives
        no bytes). ``ObjectInfo.size_bytes`` is the size of the whole object.

        ``into``: takes the body of a range while it comes; the call then answers none. A store that has no such way, or
        no such answer (the object ends before the range does), leaves ``into`` with nothing and answers the body."""
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

    def delete_if_match(self, key: str, etag: str) -> None:
        """Removes an object if it still has this ETag; one that isn't there counts as removed. One request, which no
        layer repeats: ``PreconditionFailed`` (another version is there), or any other error: nobody knows.

        Some servers (MinIO) don't know the condition and remove what is there: who calls keeps others from replacing it
        for longer than a request takes."""
        ...

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        """Starts a multipart upload; answers its id."""
        ...

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        """Sends part ``number`` (from 1)."""
        ...

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Makes the object of ``parts``, in order, and answers it as the store shows it then. ``OutcomeUnknown`` when
        the answer was lost or the upload is gone: look with ``head``."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What a scheme's module gets to open a store with. Keys are never part of its ``repr``.

    Attributes:
        endpoint_url: the server, where it isn't the provider's own (MinIO, versitygw, ...).
        region: the bucket's region, ``None`` = from the environment.
        access_key, secret_key, session_token: given credentials; ``None`` = the provider's own chain, refreshing.
        settings: deadlines, retries, connections.
        clock: wall clock and waits.
        read_only: whether writing verbs are refused.
        create: whether a local directory is made where there is none.
        limiter: whose turn it is; ``None``: one of its own, that limits nothing until the store asks to slow down.
        recorder: takes measurements of requests.
    """

    endpoint_url: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    settings: StoreSettings = field(default_factory=StoreSettings)
    clock: Clock = field(default_factory=SystemClock)
    read_only: bool = False
    create: bool = True
    limiter: Limiter | None = None
    recorder: Recorder = NO_TELEMETRY
