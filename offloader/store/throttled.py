"""A store whose requests wait their turn, and which slows the process down when the server asks for it.

Owns what of a request counts against which limit. Must never decide whose turn it is (``offloader.turns``) nor send a
request twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from offloader.errors import InvalidCall, Overloaded, Throttled
from offloader.limits import Limiter, LimitStatus, Priority, turn_waited_s, working_at
from offloader.settings import LimitSettings
from offloader.store.around import AroundStore, Request, body_bytes, layer_of
from offloader.store.base import ObjectStore
from offloader.telemetry import NO_TELEMETRY, Recorder

__all__ = ["PrioritizedStore", "ThrottledStore", "limits_of", "require_limits"]

_Answer = TypeVar("_Answer")


class ThrottledStore(AroundStore):
    """``inner``, one turn for each attempt: this goes *under* the retrying layer.

    Bytes are counted as they are sent; those of an answer as they were asked for, and corrected when it is there.

    Args:
        inner: the store.
        limiter: shared by all stores that shall be slow together.
        recorder: is told of waits.
    """

    def __init__(self, inner: ObjectStore, limiter: Limiter, recorder: Recorder = NO_TELEMETRY) -> None:
        super().__init__(inner)
        self.limiter = limiter
        self._recorder = recorder
        self._closing = threading.Event()

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        what = f"{request.verb} {request.key} in {self.url}"
        before_s = turn_waited_s()
        try:
            turn = self.limiter.take_turn(request.traffic, request.size_bytes, self._closing, what=what)
        finally:
            if turn_waited_s() > before_s:
                self._recorder.add("turns_waited_seconds_total", turn_waited_s() - before_s)
        try:
            answer = call()
        except (Throttled, Overloaded):
            self.limiter.slow_down(turn)
            raise
        if request.verb == "get":
            self.limiter.settle(turn, body_bytes(request, answer))
        return answer

    def close(self) -> None:
        self._closing.set()
        self.limiter.wake()
        super().close()


class PrioritizedStore(AroundStore):
    """``inner``, asked at one priority, whatever is asked: a backfill's uploads wait for live ones."""

    def __init__(self, inner: ObjectStore, priority: Priority) -> None:
        super().__init__(inner)
        self._priority = priority

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:  # noqa: ARG002
        with working_at(self._priority):
            return call()


def limits_of(store: ObjectStore) -> LimitStatus | None:
    """What the limits of a store that ``open_store`` opened do at the moment; ``None`` for one without."""
    limiter = _limiter_of(store)
    return None if limiter is None else limiter.status()


def require_limits(store: ObjectStore, limits: LimitSettings) -> None:
    """Refuses settings that the store doesn't obey: a limit without effect is worse than none.

    Raises:
        InvalidCall: ``limits`` aren't the defaults, and the store was opened with others.
    """
    limiter = _limiter_of(store)
    if limits != LimitSettings() and (limiter is None or limiter.settings != limits):
        raise InvalidCall(
            f"the settings limits have no effect on {store.url}: it was opened with others",
            hint="open it with open_store(..., limits=settings.limits)",
        )


def _limiter_of(store: ObjectStore) -> Limiter | None:
    layer = layer_of(store, ThrottledStore)
    return None if layer is None else layer.limiter
