"""Protocol of an object store: eight verbs and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import SplitResult, urlsplit, urlunsplit

from formats.entries import Pieces
from offloader.errors import (
    AccessDeniedError,
    InvalidCallError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import StoreSettings
from offloader.store.rate_limit import Limiter
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder


def without_secrets(url: str) -> str:
    """A URL for display: without user, password, query and fragment."""
    plain = url.partition("?")[0].partition("#")[0]
    try:
        parts = urlsplit(plain)
    except ValueError:  # not a URL, so the position of a password is unknown
        return plain.rpartition("@")[2]
    shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
    return (shown if parts.netloc else shown.rpartition("@")[2]).rstrip("/")


def require_place_only(url: str) -> None:
    """Refuse a URL of a built-in scheme that contains more than a location.

    Raises:
        InvalidCallError: the URL contains more, or can't be parsed. The message never repeats the URL, which may
            contain secrets.
    """
    scheme = url.partition("://")[0]
    try:
        parts: SplitResult = urlsplit(url)
    except ValueError as error:
        raise InvalidCallError(
            f"the {scheme} URL can't be parsed: {error}", hint=f"use {scheme}://NAME/root"
        ) from error
    if "@" in parts.netloc:
        raise InvalidCallError(
            f"the {scheme} URL contains credentials",
            hint="remove them from the URL: use the environment, a profile, or access_key and secret_key",
        )
    if "?" in url or "#" in url:
        raise InvalidCallError(
            f"the URL of {without_secrets(url)} contains a query or a fragment (? or #), which isn't supported",
            hint="remove it and use settings instead; in a name, write %3F for ? and %23 for #",
        )


class Sink(Protocol):
    """Receives a body, instead of a return value: see ``ObjectStore.get``. One call at a time uses a sink.

    Received bytes may become invalid: the connection may break, or the object may be replaced. A sink processes them
    only after the call has returned. It must not raise: the store would report the error as a failed request.
    """

    @property
    def received_bytes(self) -> int:
        """Body bytes received since ``begin``."""

    def begin(self) -> None:
        """Start a body at the first requested byte; earlier bytes are discarded."""

    def room(self) -> memoryview:
        """Buffer for the next bytes: not empty, and reserved for the store until ``came``."""

    def came(self, count: int) -> None:
        """Take the first ``count`` bytes of ``room``, at least one; the store no longer uses that memory."""


#: Bytes that a store accepts as a body, contiguous or in several pieces. The store never changes a ``bytearray`` or
#: ``memoryview``. The caller must not change them before the call returns.
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
    """How a put treats an existing object: see ``CREATE``, ``OVERWRITE`` and ``IfMatch``."""

    create_only: bool = False
    etag: str | None = None


#: Create or fail with ``PreconditionFailedError``. Atomic; a store that can't guarantee this can't be opened for
#: writing.
CREATE = PutMode(create_only=True)
#: Replace any existing object.
OVERWRITE = PutMode()


def IfMatch(etag: str) -> PutMode:  # noqa: N802 - reads like the header it becomes
    """Replace only the version with this ETag, else ``PreconditionFailedError``."""
    return PutMode(etag=etag)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A store's description of one object.

    ``metadata`` (user metadata, lower-case keys) and ``crc32c`` are filled by ``head`` and ``get`` where the store
    keeps them, and empty / ``None`` in listings.
    """

    key: str
    size_bytes: int
    etag: str
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing. ``next_after`` continues it in the next call; ``None`` ends it."""

    objects: tuple[ObjectInfo, ...]
    next_after: str | None


#: Hint of an error where a store denies a deletion.
MAY_NOT_DELETE = "grant these credentials the delete permission (s3:DeleteObject on S3), or use other credentials"


@dataclass(frozen=True, slots=True)
class DeleteFailure:
    """One key that a delete didn't remove, and why. ``is_denied``: the permission to delete it is missing."""

    key: str
    reason: str
    retryable: bool
    is_denied: bool = False

    @classmethod
    def of(cls, key: str, error: OffloaderError) -> DeleteFailure:
        """The failure of a key whose delete raised ``error``."""
        retryable = isinstance(error, StoreUnavailableError | OutcomeUnknownError)
        return cls(key, str(error), retryable, isinstance(error, AccessDeniedError))


def delete_in_turns(
    keys: Sequence[str], at_once_max: int, delete: Callable[[Sequence[str]], Sequence[DeleteFailure]]
) -> list[DeleteFailure]:
    """Remove any number of keys, in requests of at most ``at_once_max`` keys.

    An error of the first request is raised. An error of a later one is reported as a failure of each remaining key,
    because some keys have been removed already.
    """
    failures: list[DeleteFailure] = []
    for start in range(0, len(keys), at_once_max):
        try:
            failures += delete(keys[start : start + at_once_max])
        except OffloaderError as error:
            if start == 0:
                raise
            return [*failures, *(DeleteFailure.of(key, error) for key in keys[start:])]
    return failures


@dataclass(frozen=True, slots=True)
class PartInfo:
    """An uploaded part: number from 1, the store's ETag, the length and checksum sent."""

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
    """The verbs of an object store. Keys are relative to the store's root and never begin with ``/``.

    Every call has its own deadline and raises only ``offloader.errors``: ``NotFoundError`` (object or upload),
    ``BucketMissingError``, ``AccessDeniedError``, ``PreconditionFailedError``, ``ThrottledError`` and
    ``StoreUnavailableError`` (nothing was changed, retry), ``OutcomeUnknownError`` (a write that may have happened),
    ``UnsupportedError``. All methods are thread-safe.
    """

    @property
    def url(self) -> str:
        """Location without secrets, e.g. ``s3://bucket/root``."""

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        """``managedLedgerOffloadDriver``, ``bucket``, ``region``, ``serviceEndpoint``: recorded with each segment."""

    def head(self, key: str) -> ObjectInfo:
        """The object's size, ETag, metadata."""

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Sink | None = None
    ) -> tuple[bytes, ObjectInfo]:
        """Read the whole object, or exactly ``byte_range`` (truncated at the object's end; empty if it starts past it).
        ``ObjectInfo.size_bytes`` is the size of the whole object.

        ``into``: receives the body of a range as it arrives; the call then returns no body. Where the store can't
        stream, or the object ends before the range does, ``into`` receives nothing and the call returns the body.
        """

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        """Write a whole object. ``crc32c``: the caller's checksum, which is sent with the body; computed if absent."""

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        """Objects whose key begins with ``prefix`` and, where the store orders keys, comes after ``after``."""

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """Remove keys; a missing key counts as removed. Returns the keys that were *not* removed."""

    def delete_if_match(self, key: str, etag: str) -> None:
        """Remove an object if it still has this ETag; a missing object counts as removed.

        A single request, which no layer repeats. ``PreconditionFailedError`` means that another version exists; after
        any other error the outcome is unknown. Some servers (MinIO) ignore the condition and remove any version.
        Callers must therefore prevent other writers from replacing the object while the request runs.
        """

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        """Start a multipart upload and return its id."""

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        """Send part ``number`` (from 1)."""

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Complete an upload of ``parts``, in order, and return the object's description. ``OutcomeUnknownError`` when
        the response was lost or the upload is missing: check with ``head``."""

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort an upload and remove its parts; a missing upload counts as aborted."""

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        """Unfinished uploads of keys that begin with ``prefix``. Some servers (MinIO) only match the exact key."""

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """Parts of an unfinished upload (``crc32c`` = -1 where the store doesn't report it)."""

    def signed_url(self, key: str, expires_s: float) -> str | None:
        """A URL that reads the object, whole or in ranges, by plain HTTP GET without credentials. Sends no request.

        The URL grants access to the object: it is a secret that must not appear in logs, errors or ``repr``. It expires
        with the credentials that signed it, if they expire first. ``None``: the store has no signed URLs, or no
        credentials that can sign without a request.
        """

    def close(self) -> None:
        """Release connections. Idempotent."""


@runtime_checkable
class Adjustable(Protocol):
    """A store whose requests depend on settings that some servers lack. The probe tests them on a scratch key."""

    def checksum_taken(self, key: str) -> str:
        """The first other value of ``store.checksum`` with which the server accepts a put; empty: none."""

    @property
    def asks_encryption(self) -> bool:
        """Whether each new object is created with ``store.encryption``."""

    def encryption_problem(self, key: str) -> str:
        """The difference between the object's encryption and the settings; empty: none."""


#: Prefix of the scratch keys of probes, below the store's root. No stream name begins with it.
PROBE_PREFIX = "_probe/"
#: Drivers of stores in this process or on this machine.
_LOCAL_DRIVERS = frozenset({"file", "memory"})


def put_if(store: ObjectStore, key: str, body: bytes, mode: PutMode) -> bool:
    """Write an object; False if the condition in ``mode`` doesn't hold."""
    with suppress(PreconditionFailedError):
        store.put(key, body, mode=mode)
        return True
    return False


def require_open_store(store: object) -> None:
    """Raise ``InvalidCallError`` for a URL or a path that was passed instead of an open store."""
    if isinstance(store, str | Path):
        url = without_secrets(str(store))
        raise InvalidCallError(
            f"store is {url!r}, not an open store", hint=f"open it with offloader.open_store({url!r})"
        )


def is_local(store: ObjectStore) -> bool:
    """Whether the store is in this process or on this machine's disk.

    A request to such a store takes no longer than the start of a thread, and there is only one server.
    """
    return store.driver_metadata["managedLedgerOffloadDriver"] in _LOCAL_DRIVERS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options with which a scheme's module opens a store; see ``open_store``. ``repr`` omits secrets.

    Attributes:
        limiter: the rate limits; ``None``: a private limiter without limits until the store throttles.
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
