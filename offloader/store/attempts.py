"""Rate limits, counts and measurements around each request attempt.

``open_store`` puts this wrapper *under* the retrying one, so each attempt waits for the rate limits and counts. One
call of a verb is one request here, even where an implementation sends several (a delete of more than a thousand keys,
the ``head`` after a lost completion).
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from formats.errors import FormatError
from formats.keys import decode_stream, record_number
from offloader.errors import InvalidCall, OffloaderError, Overloaded, Throttled
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import LimitSettings
from offloader.store.base import ObjectStore
from offloader.store.rate_limit import Limiter, LimitStatus, Traffic, throttled_s
from offloader.store.wrappers import Request, StoreWrapper, body_bytes, layer_of
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

_Answer = TypeVar("_Answer")

_CATALOG = "_catalog/"
_MANIFEST = "/manifest/"
_INDEX = "-index"
#: For names of errors: ``StoreUnavailable`` is counted as ``store_unavailable``.
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class VerbCount:
    """Request counts of one verb. ``errors`` of the ``requests`` raised. ``bytes_sent`` counts bodies of all attempts,
    ``bytes_received`` those of ``get`` responses."""

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
    """Limits, counts and measures each request of ``inner``. The wait for the limits isn't measured.

    Bytes sent count against the limits at once; bytes received count as requested and are corrected by the response.

    Args:
        limiter: shared by all stores that share one rate limit.

    Attributes:
        keeps_conditions: whether a probe found that the store honours conditional writes. Later probes are short then.
    """

    def __init__(
        self, inner: ObjectStore, limiter: Limiter, *, recorder: Recorder = NO_TELEMETRY, clock: Clock | None = None
    ) -> None:
        super().__init__(inner)
        self.limiter = limiter
        self.recorder = recorder
        self.keeps_conditions = False
        self._clock = clock or SystemClock()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._counts: dict[str, VerbCount] = {}
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Request, float]] = {}

    def requests(self) -> Mapping[str, VerbCount]:
        """Counts so far by verb, as a snapshot. Open requests aren't counted."""
        with self._lock:
            return dict(self._counts)

    def open_requests(self) -> Sequence[OpenRequest]:
        """Requests without a response, the oldest first."""
        with self._lock:
            # Dictionaries keep insertion order, which is the order of sending.
            found = list(self._open.values())
        now_s = self._clock.monotonic_s()
        return [OpenRequest(request.verb, request.key, now_s - sent_s) for request, sent_s in found]

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
            self.recorder.add(
                "request_errors_total", stream=stream, label=_CAPITAL.sub("_", type(error).__name__).lower()
            )
            if isinstance(error, Throttled | Overloaded):
                self.recorder.add("throttles_total", stream=stream)
                self.limiter.slow_down(turn)
            raise
        finally:
            self._end(number, request, errors, received)
        if request.verb == "get":
            self.limiter.settle(turn, received)
        if self.recorder is not NO_TELEMETRY:
            self._record(request, stream, self._clock.monotonic_s() - started_s, received, answer)
        return answer

    def _end(self, number: int, request: Request, errors: int, received: int) -> None:
        sent = request.size_bytes if request.traffic is Traffic.UPLOAD else 0
        with self._lock:
            del self._open[number]
            old = self._counts.get(request.verb, VerbCount())
            self._counts[request.verb] = VerbCount(
                old.requests + 1, old.errors + errors, old.bytes_sent + sent, old.bytes_received + received
            )

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
    """Requests by verb of a store that ``open_store`` opened; empty for one that doesn't count."""
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
    """Current state of the store's rate limits, ``None`` for a store without."""
    layer = layer_of(store, AttemptStore)
    return None if layer is None else layer.limiter.status()


def require_limits(store: ObjectStore, limits: LimitSettings) -> None:
    """Refuse limits that the store, opened with others, wouldn't obey."""
    layer = layer_of(store, AttemptStore)
    if limits != LimitSettings() and (layer is None or layer.limiter.settings != limits):
        raise InvalidCall(
            f"the settings limits have no effect on {store.url}: it was opened with others",
            hint="open it with open_store(..., limits=settings.limits)",
        )


def stream_of(key: str) -> str:
    """The stream that owns the object or prefix; empty if none or unknown."""
    encoded = key.removeprefix(_CATALOG).rstrip("/") if key.startswith(_CATALOG) else key.split(_MANIFEST)[0]
    if encoded == key:
        encoded = key.rpartition("/")[0]
    try:
        return decode_stream(encoded) if encoded else ""
    except FormatError:
        return ""


def histogram_of(request: Request) -> str:
    """The histogram of a request; empty for listings, heads, deletes and manifest requests."""
    if request.key.startswith(_CATALOG):
        return ""
    if request.traffic is Traffic.UPLOAD:
        if _MANIFEST in request.key:
            return "commit_seconds" if record_number(request.key) is not None else ""
        return "index_seconds" if request.key.endswith(_INDEX) else "upload_seconds"
    if request.verb != "get" or _MANIFEST in request.key:
        return ""
    return "index_read_seconds" if request.key.endswith(_INDEX) else "read_seconds"
