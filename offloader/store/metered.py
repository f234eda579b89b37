"""What is asked of a store: requests, failures and bytes by verb, and which requests have no answer yet.

Owns the counters and the list of open requests. Must never change a call, its answer or its error.

``open_store`` puts this *under* the retrying layer, so each attempt counts. One call of a verb is one request here,
also where an implementation sends several (a delete of more than a thousand keys, the look after a lost completion).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from offloader.clock import Clock, SystemClock
from offloader.limits import Traffic
from offloader.store.around import AroundStore, Request, body_bytes, layer_of
from offloader.store.base import ObjectStore

__all__ = ["MeteredStore", "OpenRequest", "VerbCount", "open_requests_of", "requests_of"]

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class VerbCount:
    """What one verb was asked: ``errors`` of the ``requests`` raised; ``bytes_sent`` counts bodies of all attempts,
    ``bytes_received`` what ``get`` answered."""

    requests: int = 0
    errors: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that was sent ``seconds`` ago and has no answer."""

    verb: str
    key: str
    seconds: float


def requests_of(store: ObjectStore) -> Mapping[str, VerbCount]:
    """Requests by verb of a store that ``open_store`` opened; empty for one that doesn't count."""
    layer = layer_of(store, MeteredStore)
    return {} if layer is None else layer.requests()


def open_requests_of(store: ObjectStore) -> Sequence[OpenRequest]:
    """Requests of such a store that have no answer yet, the oldest first."""
    layer = layer_of(store, MeteredStore)
    return [] if layer is None else layer.open_requests()


class MeteredStore(AroundStore):
    """``inner``, counted.

    Args:
        inner: the store.
        clock: measures how long a request has been open.
    """

    def __init__(self, inner: ObjectStore, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._counts: dict[str, VerbCount] = {}
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Request, float]] = {}

    def requests(self) -> Mapping[str, VerbCount]:
        """The counts so far, by verb; a value that later calls don't change. Open requests aren't counted yet."""
        with self._lock:
            return dict(self._counts)

    def open_requests(self) -> Sequence[OpenRequest]:
        """Requests without an answer, the oldest first."""
        with self._lock:
            # In the order in which they were sent, as dictionaries are.
            found = list(self._open.values())
        now_s = self._clock.monotonic_s()
        return [OpenRequest(request.verb, request.key, now_s - sent_s) for request, sent_s in found]

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        with self._lock:
            number = next(self._numbers)
            self._open[number] = request, self._clock.monotonic_s()
        errors = received = 0
        try:
            answer = call()
            received = body_bytes(request, answer)
            return answer
        except BaseException:
            errors = 1
            raise
        finally:
            sent = request.size_bytes if request.traffic is Traffic.UPLOAD else 0
            with self._lock:
                del self._open[number]
                old = self._counts.get(request.verb, VerbCount())
                self._counts[request.verb] = VerbCount(
                    old.requests + 1, old.errors + errors, old.bytes_sent + sent, old.bytes_received + received
                )
