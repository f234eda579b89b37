"""Actors over one store whose every request waits for its turn.

It doesn't let two requests run at once, nor wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from offloader.errors import OffloaderError, OutcomeUnknownError
from offloader.store.base import ObjectStore
from offloader.store.wrappers import Request, StoreWrapper

__all__ = ["Fate", "Schedule"]

_Answer = TypeVar("_Answer")
#: A turn that takes longer is a deadlock of the test.
TURN_S_MAX = 30.0


class Fate(Enum):
    """What becomes of a request."""

    #: Done and answered.
    DONE = "done"
    #: Done; nobody hears of it.
    REPLY_LOST = "done, reply lost"
    #: Under way; nobody hears of it. ``Schedule.land`` lets it arrive.
    IN_FLIGHT = "in flight, reply lost"
    #: The process dies before it is sent.
    CRASH = "crash"


class _Crash(BaseException):
    """Ends an actor, past every handler of errors."""


class _Actor:
    """A thread that stands before its next request, runs, or is over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.changed = threading.Condition()
        self.pending: tuple[str, str] | None = None
        self.fate: Fate | None = None
        self.is_over = False
        self.result: Any = None
        self.error: BaseException | None = None


class _GatedStore(StoreWrapper):
    """The store as one actor sees it."""

    def __init__(self, inner: ObjectStore, actor: _Actor, in_flight: list[Callable[[], object]]) -> None:
        super().__init__(inner)
        self._actor = actor
        self._in_flight = in_flight

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        actor, verb, key = self._actor, request.verb, request.key
        with actor.changed:
            actor.pending = (verb, key)
            actor.changed.notify_all()
            if not actor.changed.wait_for(lambda: actor.fate is not None, TURN_S_MAX):
                raise _Crash  # the test is over, or stuck elsewhere
            fate, actor.fate, actor.pending = actor.fate, None, None
        if fate is Fate.CRASH:
            raise _Crash
        if fate is Fate.IN_FLIGHT:
            self._in_flight.append(call)
            raise OutcomeUnknownError(f"{verb} of {key} is in flight")
        answer = call()
        if fate is Fate.REPLY_LOST:
            raise OutcomeUnknownError(f"the reply to {verb} of {key} is lost")
        return answer


class Schedule:
    """Runs actors one request at a time, in the order in which ``step`` is called.

    Args:
        store: what all of them share.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._actors: dict[str, _Actor] = {}
        self._in_flight: list[Callable[[], object]] = []

    def start(self, name: str, run: Callable[[ObjectStore], object]) -> None:
        """Starts ``run`` with a store of its own; it comes as far as its first request."""
        actor = self._actors[name] = _Actor(name)
        store = _GatedStore(self._store, actor, self._in_flight)

        def body() -> None:
            try:
                actor.result = run(store)
            except BaseException as error:
                actor.error = error
            with actor.changed:
                actor.is_over = True
                actor.changed.notify_all()

        threading.Thread(target=body, name=f"actor {name}", daemon=True).start()
        self._stands(actor)

    def pending(self, name: str) -> tuple[str, str] | None:
        """Verb and key of the actor's next request; ``None``: it is over."""
        actor = self._actors[name]
        return None if actor.is_over else actor.pending

    def step(self, name: str, fate: Fate = Fate.DONE) -> tuple[str, str]:
        """Lets an actor's next request happen; verb and key of it."""
        actor = self._actors[name]
        self._stands(actor)
        assert actor.pending is not None, f"{name} is over: {actor.error or actor.result!r}"
        request = actor.pending
        with actor.changed:
            actor.fate = fate
            actor.changed.notify_all()
        self._stands(actor, taken=request)
        return request

    def until(self, name: str, verb: str, key_part: str = "") -> None:
        """Steps until the actor stands before a request of that verb whose key contains ``key_part``."""
        while True:
            pending = self.pending(name)
            assert pending is not None, f"{name} is over before its {verb} of {key_part}"
            if pending[0] == verb and key_part in pending[1]:
                return
            self.step(name)

    def finish(self, name: str) -> Any:
        """Lets an actor run to its end; what it returned, or raises what it raised."""
        while self.pending(name) is not None:
            self.step(name)
        actor = self._actors[name]
        if actor.error is not None and not isinstance(actor.error, _Crash):
            raise actor.error
        return actor.result

    def land(self) -> None:
        """The oldest request in flight arrives; nobody hears what the store says to it."""
        call = self._in_flight.pop(0)
        try:
            call()
        except OffloaderError:
            return

    def _stands(self, actor: _Actor, taken: tuple[str, str] | None = None) -> None:
        """Waits until an actor stands before a request again, or is over."""
        with actor.changed:
            arrived = actor.changed.wait_for(
                lambda: actor.is_over or (actor.pending is not None and actor.fate is None), TURN_S_MAX
            )
        assert arrived, f"{actor.name} doesn't come to its next request after {taken}"
