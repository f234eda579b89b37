"""Wrappers around a store: read-only, attempts, retries. Each passes every request through one method.

``open_store`` puts ``AttemptStore`` *under* ``RetryingStore``, so that each attempt is rate-limited and counted.
One call of a verb is one request there, even where an implementation sends several (a delete of more than a thousand
keys, the ``head`` after a lost completion).
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from formats.errors import FormatError
from formats.keys import CATALOG_PREFIX, decode_stream, record_number
from offloader.errors import (
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    OverloadedError,
    PreconditionFailedError,
    StoreUnavailableError,
    ThrottledError,
    UnsupportedError,
)
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import Duration, LimitSettings, StoreSettings
from offloader.store.base import (
    OVERWRITE,
    PROBE_PREFIX,
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
from offloader.store.bucket_rules import Bucket
from offloader.store.checks import require_etag
from offloader.store.rate_limit import Limiter, LimitStatus, Traffic, throttled_s
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

_Answer = TypeVar("_Answer")
_Layer = TypeVar("_Layer")


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a verb.

    Attributes:
        key: the object's key, or a prefix; the first key of a delete.
        size_bytes: size of the body, or of the requested range; 0 if unknown.
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
    """Length of a get's body, returned or written into a sink; 0 for other verbs."""
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


def bucket_of(store: ObjectStore) -> Bucket | None:
    """The bucket of ``store``, without retries and limits; ``None`` if its configuration can't be read."""
    return layer_of(store, Bucket)  # type: ignore[type-abstract]  # a protocol that can be asked for


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
        request = Request("get", Traffic.READ, key, 0 if byte_range is None else byte_range.length, into=into)
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
    """``inner`` without its writing verbs. ``reason`` and ``hint`` are part of the error."""

    def __init__(self, inner: ObjectStore, reason: str = "it was opened for reading", hint: str = "") -> None:
        super().__init__(inner)
        self._reason, self._hint = reason, hint

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        if request.traffic is Traffic.READ:
            return call()
        what = f"{request.keys} keys" if request.verb == "delete" else request.key
        action = "deletion" if request.traffic is Traffic.DELETE else "write"
        raise UnsupportedError(f"{self.url}: {action} of {what} refused: {self._reason}", hint=self._hint)


_MANIFEST = "/manifest/"
_INDEX = "-index"
#: For names of errors: ``StoreUnavailableError`` is counted as ``store_unavailable``.
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class VerbCount:
    """Request counts of one verb. ``errors`` is the number of ``requests`` that raised, ``bytes_sent`` the size of all
    attempts' bodies, ``bytes_received`` the size of the ``get`` responses' bodies."""

    requests: int = 0
    errors: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request sent ``seconds`` ago, without a response yet."""

    verb: str
    key: str
    seconds: float


class AttemptStore(StoreWrapper):
    """Limits, counts and measures each request of ``inner``. Measured times exclude the wait for the limits.

    Sent bytes count against the limits immediately. Received bytes count as requested until the response corrects them.

    Args:
        limiter: shared by all stores under one rate limit.
        single_writer: the operator guarantees that no other process writes. If the store refuses a condition, a request
            before the write checks it.

    Attributes:
        keeps_conditions: whether a probe found that the store honours conditional writes. Later probes are then short.
        looks_first: whether a probe found the opposite and a single writer is guaranteed. A request before each
            conditional write then checks the condition, except for probes, which test the store itself.
    """

    def __init__(
        self,
        inner: ObjectStore,
        limiter: Limiter,
        *,
        recorder: Recorder = NO_TELEMETRY,
        clock: Clock | None = None,
        single_writer: bool = False,
    ) -> None:
        super().__init__(inner)
        self.limiter = limiter
        self.recorder = recorder
        self.keeps_conditions = False
        self.looks_first = False
        self._single_writer = single_writer
        self._clock = clock or SystemClock()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._counts: dict[str, VerbCount] = {}
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Request, float]] = {}

    def requests(self) -> Mapping[str, VerbCount]:
        """Counts by verb, as a snapshot, without open requests."""
        with self._lock:
            return dict(self._counts)

    def open_requests(self) -> Sequence[OpenRequest]:
        """Requests without a response, the oldest first."""
        with self._lock:
            # Insertion order is the order of sending.
            found = list(self._open.values())
        now_s = self._clock.monotonic_s()
        return [OpenRequest(request.verb, request.key, now_s - sent_s) for request, sent_s in found]

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        put = partial(super().put, key, body, metadata=metadata, crc32c=crc32c)
        if mode == OVERWRITE or key.startswith(PROBE_PREFIX):
            return put(mode=mode)
        if not self.looks_first:
            try:
                return put(mode=mode)
            except UnsupportedError:
                if not self._single_writer:
                    raise
        self._check_condition(key, mode)
        return put()

    def _check_condition(self, key: str, mode: PutMode) -> None:
        found: str | None = None
        with contextlib.suppress(NotFoundError):
            found = self.head(key).etag
        if mode.create_only and found is not None:
            raise PreconditionFailedError(f"{self.url}: {key} exists")
        if mode.etag is not None:
            require_etag(self, key, mode.etag, found)

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        before_s = throttled_s()
        try:
            what = f"{request.verb} {request.key} in {self.url}"
            turn = self.limiter.acquire(request.traffic, request.size_bytes, self._closing, what=what)
        finally:
            if throttled_s() > before_s:
                self.recorder.add("throttled_seconds_total", throttled_s() - before_s)
        stream = "" if self.recorder is NO_TELEMETRY else stream_of(request.key)
        self.recorder.add("requests_total", stream=stream, label=request.verb)
        if request.traffic is Traffic.UPLOAD:
            self.recorder.add("uploaded_bytes_total", request.size_bytes, stream=stream)
        with self._lock:
            number, started_s = next(self._numbers), self._clock.monotonic_s()
            self._open[number] = request, started_s
        errors = 1
        received = 0
        try:
            answer = call()
            received = body_bytes(request, answer)
            errors = 0
        except OffloaderError as error:
            self.recorder.add("request_errors_total", stream=stream, label=_CAPITAL.sub("_", error.label).lower())
            if isinstance(error, ThrottledError | OverloadedError):
                self.recorder.add("throttles_total", stream=stream)
                self.limiter.slow_down(turn)
            if request.verb == "get" and isinstance(error, NotFoundError | ThrottledError):
                self.limiter.settle(turn, 0)  # other errors may follow a part of the body
            raise
        finally:
            sent = request.size_bytes if request.traffic is Traffic.UPLOAD else 0
            with self._lock:
                del self._open[number]
                old = self._counts.get(request.verb, VerbCount())
                self._counts[request.verb] = VerbCount(
                    old.requests + 1, old.errors + errors, old.bytes_sent + sent, old.bytes_received + received
                )
        if request.verb == "get":
            self.limiter.settle(turn, received)
        if self.recorder is not NO_TELEMETRY:
            self._record(request, stream, self._clock.monotonic_s() - started_s, received, answer)
        return answer

    def _record(self, request: Request, stream: str, taken_s: float, received: int, answer: object) -> None:
        histogram = histogram_of(request)
        if histogram:
            self.recorder.observe(histogram, taken_s, stream=stream)
        if request.verb == "get":
            self.recorder.add("downloaded_bytes_total", received, stream=stream)
        if request.verb == "delete" and isinstance(answer, list | tuple):
            self.recorder.add("deleted_objects_total", request.keys - len(answer), stream=stream)

    def close(self) -> None:
        self._closing.set()
        self.limiter.wake()
        super().close()


def requests_of(store: ObjectStore) -> Mapping[str, VerbCount]:
    """Requests by verb of a store that ``open_store`` opened; empty for other stores."""
    layer = layer_of(store, AttemptStore)
    return {} if layer is None else layer.requests()


def open_requests_of(store: ObjectStore) -> Sequence[OpenRequest]:
    """Requests of such a store without a response, the oldest first."""
    layer = layer_of(store, AttemptStore)
    return [] if layer is None else layer.open_requests()


def recorder_of(store: ObjectStore) -> Recorder:
    """The recorder for measurements of such a store and of its callers."""
    layer = layer_of(store, AttemptStore)
    return NO_TELEMETRY if layer is None else layer.recorder


def limits_of(store: ObjectStore) -> LimitStatus | None:
    """Current state of the store's rate limits; ``None`` for a store without limits."""
    layer = layer_of(store, AttemptStore)
    return None if layer is None else layer.limiter.status()


def require_limits(store: ObjectStore, limits: LimitSettings) -> None:
    """Raise ``InvalidCallError`` if the store was opened with other limits, so that ``limits`` would have no effect."""
    layer = layer_of(store, AttemptStore)
    if limits != LimitSettings() and (layer is None or layer.limiter.settings != limits):
        raise InvalidCallError(
            f"the settings `limits` have no effect on {store.url}: the store was opened with other limits",
            hint="open it with open_store(..., limits=settings.limits)",
        )


def stream_of(key: str) -> str:
    """The stream that owns the object or prefix; empty if there is none or it is unknown."""
    encoded = (
        key.removeprefix(CATALOG_PREFIX).rstrip("/") if key.startswith(CATALOG_PREFIX) else key.split(_MANIFEST)[0]
    )
    if encoded == key:
        encoded = key.rpartition("/")[0]
    with contextlib.suppress(FormatError):
        return decode_stream(encoded) if encoded else ""
    return ""


def histogram_of(request: Request) -> str:
    """The histogram of a request; empty for listings, heads, deletes and manifest requests."""
    if request.key.startswith(CATALOG_PREFIX):
        return ""
    if request.traffic is Traffic.UPLOAD:
        if _MANIFEST in request.key:
            return "commit_seconds" if record_number(request.key) is not None else ""
        return "index_seconds" if request.key.endswith(_INDEX) else "upload_seconds"
    if request.verb != "get" or _MANIFEST in request.key:
        return ""
    return "index_read_seconds" if request.key.endswith(_INDEX) else "read_seconds"


#: The store changed nothing: every verb may be repeated.
_UNCHANGED = (StoreUnavailableError,)
#: A repeat is harmless even if the first attempt took effect.
_HARMLESS = (StoreUnavailableError, OutcomeUnknownError)


#: For a store that serves an interactive caller.
_IMPATIENT_RETRIES_MAX = 1
_IMPATIENT_TOTAL_S_MAX = 2.0


class _SomeLeft(StoreUnavailableError):
    """A delete succeeded in part, and some of the remaining keys may be retried."""


def retry_delay_s(settings: StoreSettings, attempt: int, fraction: float) -> float:
    """Delay before attempt ``attempt`` + 1 (``attempt`` from 1) with full jitter: ``fraction`` (0..1, drawn by the
    caller) of a ceiling that doubles from ``retry_delay_first`` to ``retry_delay_max``. Jitter spreads the retries
    of clients whose requests failed at the same time."""
    return min(settings.retry_delay_max, settings.retry_delay_first * 2.0 ** min(attempt - 1, 60)) * fraction


class RetryingStore(StoreWrapper):
    """Retries calls on ``inner``, up to ``1 + retries_max`` attempts within ``retry_total``.

    Idempotent reads and writes are repeated. If a conditional put is refused after an earlier attempt of the same call
    had an unknown outcome, the object is read back: equal bytes prove that the earlier attempt succeeded. A completion
    of unknown outcome is repeated only while the upload exists. Don't stack this layer on another retrying layer.
    """

    def __init__(
        self,
        inner: ObjectStore,
        settings: StoreSettings,
        clock: Clock,
        randomness: random.Random | None = None,
        recorder: Recorder = NO_TELEMETRY,
    ) -> None:
        super().__init__(inner)
        self.settings, self.clock = settings, clock
        self._random = randomness or random.Random()  # noqa: S311 - jitter, not a secret
        self.recorder = recorder
        self._closing = threading.Event()

    def _repeat(self, call: Callable[[], _Answer], kinds: tuple[type[OffloaderError], ...]) -> _Answer:
        started_s = self._spent_s()
        attempt = 1
        while True:
            try:
                return call()
            except kinds as error:
                if not self._wait_for_next(attempt, started_s):
                    error.add_note(f"gave up after attempt {attempt}")
                    raise
            attempt += 1
            self.recorder.add("retries_total")

    def _wait_for_next(self, attempt: int, started_s: float) -> bool:
        """Wait before the next attempt. False if the budget is spent or the store is closing."""
        if attempt > self.settings.retries_max:
            return False
        delay_s = retry_delay_s(self.settings, attempt, self._random.random())
        if self._spent_s() - started_s + delay_s > self.settings.retry_total:
            return False
        return not self.clock.wait(self._closing, delay_s)

    def _spent_s(self) -> float:
        """Elapsed time. Excludes rate-limit waits, which don't count against the retry budget."""
        return self.clock.monotonic_s() - throttled_s()

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:  # noqa: ARG002 - all are alike
        """Make the call and repeat it on failure: safe for the verbs that aren't overridden below. A lost response to
        ``begin_upload`` leaves an upload without parts, which the reconciler finds."""
        return self._repeat(call, _HARMLESS)

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        unknown: OutcomeUnknownError | None = None

        def attempt() -> ObjectInfo:
            nonlocal unknown
            try:
                return self.inner.put(key, body, mode=mode, metadata=metadata, crc32c=crc32c)
            except OutcomeUnknownError as error:
                unknown = error
                raise
            except PreconditionFailedError as refused:
                if unknown is None:
                    raise
                return self._own_earlier_put(key, body, mode, refused, unknown)
            except OffloaderError as error:
                # This attempt changed nothing, but an earlier one may have: raise the earlier attempt's error.
                if unknown is None:
                    raise
                raise unknown from error

        return self._repeat(attempt, _HARMLESS)

    def _own_earlier_put(
        self, key: str, body: Body, mode: PutMode, refused: PreconditionFailedError, unknown: OutcomeUnknownError
    ) -> ObjectInfo:
        """Whether an earlier attempt wrote the object. Equal bytes prove it. Other bytes after a create are another
        writer's. Other bytes after a put with an ETag prove nothing: another writer may have replaced ours since."""
        try:
            there, info = self.inner.get(key)
        except NotFoundError as gone:
            raise OutcomeUnknownError(
                unknown.message, hint=f"{key} existed at the last put, and was missing afterwards"
            ) from gone
        except StoreUnavailableError as error:
            raise unknown from error
        if there == body:
            return info
        if mode.create_only:
            raise refused
        raise unknown from refused

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """Retry keys that failed for a transient reason. Returns the remaining failures."""
        left = keys
        lasting: list[DeleteFailure] = []
        passing: list[DeleteFailure] = []

        def attempt() -> None:
            nonlocal left
            # After an unknown outcome all keys are retried: a missing key counts as removed.
            failures = self.inner.delete(left)
            lasting.extend(failure for failure in failures if not failure.retryable)
            passing[:] = [failure for failure in failures if failure.retryable]
            left = [failure.key for failure in passing]
            if left:
                raise _SomeLeft(f"{self.url}: delete of {len(left)} keys failed")

        with contextlib.suppress(_SomeLeft):
            self._repeat(attempt, _HARMLESS)
        return [*lasting, *passing]

    def delete_if_match(self, key: str, etag: str) -> None:
        """A single attempt: a repeat could delete another writer's object."""
        self.inner.delete_if_match(key, etag)

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        unknown: OutcomeUnknownError | None = None

        def attempt() -> ObjectInfo:
            nonlocal unknown
            try:
                return self.inner.complete_upload(key, upload_id, parts)
            except OutcomeUnknownError as error:
                unknown = error
                self._check_upload_is_there(key, upload_id, unknown)
                raise StoreUnavailableError(unknown.message, hint=unknown.hint) from unknown
            except StoreUnavailableError:
                raise
            except OffloaderError as error:
                # An earlier attempt may have consumed the parts: raise the earlier attempt's error.
                if unknown is None:
                    raise
                raise unknown from error

        try:
            return self._repeat(attempt, _UNCHANGED)
        except StoreUnavailableError as error:
            if unknown is None:
                raise
            raise unknown from error

    def _check_upload_is_there(self, key: str, upload_id: str, unknown: OutcomeUnknownError) -> None:
        """Return if the upload is open, else raise ``unknown``. Only an open upload is retried; the completion that was
        sent may still take effect."""
        try:
            self.inner.list_parts(key, upload_id)
        except OffloaderError as error:
            raise unknown from error

    def close(self) -> None:
        self._closing.set()
        super().close()


def require_store_settings(store: ObjectStore, settings: StoreSettings) -> None:
    """Refuse settings that have no effect, because the store was opened with others.

    Doesn't compare ``single_writer``, which the writers check.

    Raises:
        InvalidCallError: ``settings`` aren't the defaults, and the store was opened with others.
    """
    wanted = replace(settings, single_writer=False)
    layer = layer_of(store, RetryingStore)
    if wanted != StoreSettings() and (layer is None or replace(layer.settings, single_writer=False) != wanted):
        raise InvalidCallError(
            f"the settings `store` have no effect on {store.url}: the store was opened with other settings",
            hint="open it with open_store(..., settings=settings.store)",
        )


def with_short_retries(store: ObjectStore) -> ObjectStore:
    """The same store with at most one retry, for callers that poll. It shares the limits, counts and connections of
    ``store``, which the caller must close.

    Returns a store unchanged if ``open_store`` didn't open it for writing.
    """
    if not isinstance(store, RetryingStore):
        return store
    settings = replace(
        store.settings,
        retries_max=min(store.settings.retries_max, _IMPATIENT_RETRIES_MAX),
        retry_total=Duration(min(store.settings.retry_total, _IMPATIENT_TOTAL_S_MAX)),
    )
    return RetryingStore(store.inner, settings, store.clock, recorder=store.recorder)
