"""The object store seam: eight verbs, their values, and ``open_store``.

Owns what the rest of the package may ask of a store. Must never name an SDK: implementations are
loaded by scheme when a store is opened. Everything else about objects is a function over this.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Protocol, cast

from formats.buffers import Pieces
from offloader.clock import Clock, SystemClock
from offloader.errors import InvalidCall, Unsupported, install_hint
from offloader.limits import Limiter
from offloader.settings import LimitSettings, StoreSettings
from offloader.store.receiver import Receiver
from offloader.store.urls import require_place_only, without_secrets
from offloader.telemetry import NO_TELEMETRY, Recorder

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
    "StoreOptions",
    "UploadInfo",
    "module_of",
    "open_store",
]

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
        self, key: str, byte_range: ByteRange | None = None, *, into: Receiver | None = None
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


_MODULES = {
    "abfs": "offloader.store.azure",
    "abfss": "offloader.store.azure",
    "az": "offloader.store.azure",
    "catalogue": "offloader.store.catalogued",
    "memory": "offloader.store.memory",
    "file": "offloader.store.local",
    "gcs": "offloader.store.gcs",
    "gs": "offloader.store.gcs",
    "s3": "offloader.store.s3",
}
_OTHER_MODULE = "offloader.store.remote"
#: Schemes whose packages come with an extra of this one.
_EXTRAS = {"abfs": "azure", "abfss": "azure", "az": "azure", "gcs": "gcs", "gs": "gcs"}


def open_store(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    session_token: str | None = None,
    settings: StoreSettings | None = None,
    clock: Clock | None = None,
    read_only: bool = False,
    create: bool = True,
    limits: Limiter | LimitSettings | None = None,
    recorder: Recorder = NO_TELEMETRY,
) -> ObjectStore:
    """Opens the object store at ``url``; calls on it wait their turn, are measured, and retried (``layers``).

    Every *attempt* is counted, not only the call that was made of it: see ``offloader.store.metered.requests_of``.

    Args:
        url: ``s3://bucket/root``, ``gs://bucket/root``, ``az://container/root``, ``file:///directory``,
            ``memory://name``, ``catalogue:///directory`` (objects of somebody else, see
            ``offloader.store.catalogued``), or any URL that fsspec knows (for reading).
        endpoint_url: the S3 server when it isn't AWS; default: the environment (``AWS_ENDPOINT_URL``).
        region: default: the environment's, else ``us-east-1``.
        access_key, secret_key, session_token: default: the SDK's own chain (environment, profile, web identity, role).
        settings: deadlines, retries, connections.
        clock: default: the machine's.
        read_only: writing verbs raise ``Unsupported``; nothing is created, not even a local directory.
        create: make the local directory where there is none, unless ``read_only``; buckets are never made.
        limits: of bandwidth and request rate; default: none but what the server asks for. A ``Limiter`` is shared by
            all stores that are given it.
        recorder: where measurements of requests go, for example ``offloader.telemetry.Metrics``.

    Raises:
        InvalidCall: no URL, or one of an unknown scheme, or one that carries credentials or says more than a place;
            settings of S3 for another store.
        BucketMissing: opened for reading, or not to be created, and the local directory isn't there.
        AccessDenied: the local directory can't be made or written.
        Unsupported: a package that the scheme needs isn't installed.
    """
    module = module_of(url)
    if settings is not None and not read_only:
        _require_meant_for(url, settings)
    clock = clock or SystemClock()
    options = StoreOptions(
        endpoint_url=endpoint_url or None,
        region=region or None,
        access_key=access_key or None,
        secret_key=secret_key or None,
        session_token=session_token or None,
        settings=settings or StoreSettings(),
        clock=clock,
        read_only=read_only,
        create=create,
        limiter=Limiter(limits, clock) if isinstance(limits, LimitSettings) else limits,
        recorder=recorder,
    )
    opened = cast(Callable[[str, StoreOptions], ObjectStore], module.open_url)(url, options)
    layers = importlib.import_module("offloader.store.layers")
    return cast(ObjectStore, layers.layered(opened, options))


def _require_meant_for(url: str, settings: StoreSettings) -> None:
    """Other stores' buckets have defaults of their own: a setting that did nothing would only look as if."""
    plain = StoreSettings()
    for name in () if url.startswith("s3://") else ("storage_class", "encryption", "kms_key"):
        if getattr(settings, name) != getattr(plain, name):
            raise InvalidCall(
                f"store.{name} is for s3:// only, not for {url}", hint="leave it out, and set it on the bucket itself"
            )


def module_of(url: str) -> ModuleType:
    """The module whose ``open_url(url, options)`` opens ``url``, without the layers that ``open_store`` adds.

    Raises:
        InvalidCall: no URL, or one of an unknown scheme, or one that carries credentials or says more than a place.
        Unsupported: a package that the scheme needs isn't installed.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise InvalidCall(
            f"{without_secrets(url)!r} is not a store's URL",
            hint="give s3://bucket/root, file:///directory or memory://name",
        )
    if scheme in _MODULES:
        require_place_only(url)
    try:
        return importlib.import_module(_MODULES.get(scheme, _OTHER_MODULE))
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        if extra is None:
            raise
        raise Unsupported(
            f"stores at {scheme}:// need packages that aren't installed: {error}", hint=install_hint(extra)
        ) from error
