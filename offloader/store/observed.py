"""A store whose requests are measured: how long, how many, how large, how they failed.

Owns which metric a request goes to. Must never change a call, its answer or its error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from formats.errors import FormatError
from formats.keys import record_number
from formats.stream_names import decode_stream
from offloader.clock import Clock
from offloader.errors import OffloaderError, Overloaded, Throttled
from offloader.limits import Traffic
from offloader.store.around import AroundStore, Request, body_bytes, layer_of
from offloader.store.base import ObjectStore
from offloader.telemetry import NO_TELEMETRY, Recorder

__all__ = ["ObservedStore", "histogram_of", "recorder_of", "stream_of"]

_Answer = TypeVar("_Answer")

_CATALOG = "_catalog/"
_MANIFEST = "/manifest/"
_INDEX = "-index"
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def stream_of(key: str) -> str:
    """The stream whose object or prefix this is; empty where it is none or nobody can tell."""
    encoded = key.removeprefix(_CATALOG).rstrip("/") if key.startswith(_CATALOG) else key.split(_MANIFEST)[0]
    if encoded == key:
        encoded = key.rpartition("/")[0]
    try:
        return decode_stream(encoded) if encoded else ""
    except FormatError:
        return ""


def _kind_of(error: OffloaderError) -> str:
    """``StoreUnavailable`` -> ``store_unavailable``."""
    return _CAPITAL.sub("_", type(error).__name__).lower()


def histogram_of(request: Request) -> str:
    """The histogram of a request; empty: it has none (listings, heads, deletes, whatever else is a manifest's)."""
    if request.key.startswith(_CATALOG):
        return ""
    if request.traffic is Traffic.UPLOAD:
        if _MANIFEST in request.key:
            return "commit_seconds" if record_number(request.key) is not None else ""
        return "index_seconds" if request.key.endswith(_INDEX) else "upload_seconds"
    if request.verb != "get" or _MANIFEST in request.key:
        return ""
    return "index_read_seconds" if request.key.endswith(_INDEX) else "read_seconds"


def recorder_of(store: ObjectStore) -> Recorder:
    """Where measurements of a store that ``open_store`` opened go, and those of whoever works with it."""
    layer = layer_of(store, ObservedStore)
    return NO_TELEMETRY if layer is None else layer.recorder


class ObservedStore(AroundStore):
    """``inner``, measured attempt by attempt.

    Args:
        inner: the store.
        recorder: takes the measurements.
        clock: measures.
    """

    def __init__(self, inner: ObjectStore, recorder: Recorder, clock: Clock) -> None:
        super().__init__(inner)
        self.recorder = recorder
        self._clock = clock

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        stream = stream_of(request.key)
        started_s = self._clock.monotonic_s()
        self._sent(request, stream)
        try:
            answer = call()
        except OffloaderError as error:
            self.recorder.add("request_errors_total", stream=stream, label=_kind_of(error))
            if isinstance(error, Throttled | Overloaded):
                self.recorder.add("throttles_total", stream=stream)
            raise
        histogram = histogram_of(request)
        if histogram:
            self.recorder.observe(histogram, self._clock.monotonic_s() - started_s, stream=stream)
        if request.verb == "get":
            self.recorder.add("downloaded_bytes_total", body_bytes(request, answer), stream=stream)
        if request.verb == "delete" and isinstance(answer, list | tuple):
            self.recorder.add("deleted_objects_total", request.keys - len(answer), stream=stream)
        return answer

    def _sent(self, request: Request, stream: str) -> None:
        self.recorder.add("requests_total", stream=stream, label=request.verb)
        if request.traffic is Traffic.UPLOAD:
            self.recorder.add("uploaded_bytes_total", request.size_bytes, stream=stream)
