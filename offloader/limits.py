"""Waiting for a turn: bandwidth, request rate and priorities of a process, for its threads.

Owns the lock and the waiting around ``offloader.turns``. Must never send a request, nor let a wait be without an end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from offloader.clock import Clock
from offloader.errors import StoreUnavailable, Throttled
from offloader.settings import LimitSettings
from offloader.turns import RATES, Priority, Traffic, Turn, Turns

__all__ = ["LimitStatus", "Limiter", "Priority", "Traffic", "current_priority", "turn_waited_s", "working_at"]

_priority: ContextVar[Priority | None] = ContextVar("offloader_priority", default=None)
_waited = threading.local()


@contextmanager
def working_at(priority: Priority) -> Iterator[None]:
    """Requests of this thread inside the ``with`` have this priority, whatever they do."""
    token = _priority.set(priority)
    try:
        yield
    finally:
        _priority.reset(token)


def current_priority(traffic: Traffic) -> Priority:
    """What ``working_at`` said, else: uploads are live, reads are reads, deletes are deletion."""
    given = _priority.get()
    if given is not None:
        return given
    return {Traffic.UPLOAD: Priority.LIVE, Traffic.READ: Priority.READ, Traffic.DELETE: Priority.DELETION}[traffic]


def turn_waited_s() -> float:
    """How long this thread waited for turns so far. Budgets of retries leave it out: it isn't the store's fault."""
    return float(getattr(_waited, "seconds", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """What the limits do at the moment.

    Attributes:
        limits: name -> value of the limits that are set.
        waiting: priority's name in lower case -> requests that wait.
        pace_requests_per_s: rate while slowed down, ``None``: free.
        slowdowns: times the pace was lowered.
        waited_s: seconds that requests waited, all together.
    """

    limits: Mapping[str, float]
    waiting: Mapping[str, int]
    pace_requests_per_s: float | None
    slowdowns: int
    waited_s: float


class Limiter:
    """``Turns`` for threads: one for all stores of a process that shall be slow together.

    Args:
        settings: rates and bounds of waiting.
        clock: measures and waits.
    """

    def __init__(self, settings: LimitSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._turns = Turns(settings)
        self._waited_s = 0.0

    def take_turn(self, traffic: Traffic, size_bytes: int, closing: threading.Event, *, what: str) -> Turn:
        """Waits until a request may be sent.

        Args:
            traffic: what it does.
            size_bytes: what it is expected to move; ``settle`` corrects it.
            closing: set when the store is being closed.
            what: names the request in an error.

        Raises:
            Throttled: it waited ``turn_wait_s_max``, or ``turns_waiting_max`` others wait; nothing was sent.
            StoreUnavailable: the store was closed meanwhile; nothing was sent.
        """
        started_s = self._clock.monotonic_s()
        with self._lock:
            if len(self._turns.waiting) >= self.settings.turns_waiting_max:
                raise Throttled(
                    f"{what}: {len(self._turns.waiting)} requests wait for their turn already",
                    hint="raise limits.turns_waiting_max, or the limit that they wait for",
                )
            turn = self._turns.ask(current_priority(traffic), size_bytes)
        while True:
            with self._lock:
                now_s = self._clock.monotonic_s()
                going = self._turns.admit(now_s)
                left_s = started_s + self.settings.turn_wait_s_max - now_s
                lacks = self._turns.lacks(turn, now_s) if turn.admitted is None else ""
                wait_s = min(left_s, self._turns.ready_in_s(turn, now_s))
                if turn.admitted is None:
                    # Under the lock: who admits it later sets the event after this.
                    turn.event.clear()
                    if left_s <= 0 or closing.is_set():
                        self._turns.withdraw(turn)
                        self._wake_all()
            for other in going:
                other.event.set()
            if turn.admitted is not None:
                self._add_wait(now_s - started_s)
                return turn
            if closing.is_set():
                raise StoreUnavailable(f"{what}: the store was closed while it waited for its turn")
            if left_s <= 0:
                self._add_wait(now_s - started_s)
                raise Throttled(
                    f"{what}: no turn within turn_wait_s_max = {self.settings.turn_wait_s_max:g} s under {lacks}",
                    hint="raise that limit, or limits.turn_wait_s_max",
                )
            self._clock.wait(turn.event, wait_s)

    def wake(self) -> None:
        """Lets everyone who waits look whether their store was closed."""
        with self._lock:
            self._wake_all()

    def _wake_all(self) -> None:
        """What they wait for changed otherwise than by time; the lock is held."""
        for turn in self._turns.waiting:
            turn.event.set()

    def settle(self, turn: Turn, moved_bytes: int) -> None:
        """What the request moved, when that wasn't known before it was sent."""
        with self._lock:
            self._turns.settle(turn, moved_bytes)
            if moved_bytes < turn.size_bytes:
                self._wake_all()

    def slow_down(self, turn: Turn) -> None:
        """The store refused the request of ``turn`` and asks for fewer."""
        with self._lock:
            self._turns.slow_down(turn, self._clock.monotonic_s())

    def status(self) -> LimitStatus:
        with self._lock:
            self._turns.pace.bucket(self._clock.monotonic_s())
            waiting = [turn.priority for turn in self._turns.waiting]
            return LimitStatus(
                limits={name: getattr(self.settings, name) for name in RATES if getattr(self.settings, name)},
                waiting={priority.name.lower(): waiting.count(priority) for priority in Priority},
                pace_requests_per_s=self._turns.pace.rate_per_s,
                slowdowns=self._turns.pace.slowdowns,
                waited_s=self._waited_s,
            )

    def _add_wait(self, waited_s: float) -> None:
        if waited_s > 0:
            _waited.seconds = turn_waited_s() + waited_s
            with self._lock:
                self._waited_s += waited_s
