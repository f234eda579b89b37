"""Rate limits with priorities: token buckets, AIMD back-off, and blocking waits for threads."""

from __future__ import annotations

import enum
import threading
from bisect import insort
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from offloader.errors import StoreUnavailableError, ThrottledError
from offloader.runtime.clock import Clock
from offloader.settings import LimitSettings

#: Names of the rate settings.
RATES = ("bytes_per_s", "requests_per_s")

#: Shortest wait. Shorter waits are below the clock's resolution.
_WAIT_S_MIN = 0.001
#: Tolerance between two sums of floats, as a fraction of the amount.
_ROUNDING = 1e-6
#: Burst while slowed down, as a fraction of a second's requests.
_PACE_BURST_S = 0.05


class Priority(enum.IntEnum):
    """Order of admission."""

    LIVE = 0
    READ = 1
    BACKFILL = 2
    DELETION = 3


class Traffic(enum.Enum):
    """Kind of request."""

    UPLOAD = "upload"
    READ = "read"
    DELETE = "delete"


class Bucket:
    """Token bucket: refills at ``rate_per_s`` up to ``burst``. Pure; the caller passes the time.

    In any interval ``t``, callers take at most ``rate_per_s * t + burst`` plus the largest single amount.
    """

    __slots__ = ("_at_s", "_level", "burst", "name", "rate_per_s")

    def __init__(self, name: str, rate_per_s: float, burst: float) -> None:
        self.name, self.rate_per_s, self.burst = name, rate_per_s, burst
        self._level = burst
        self._at_s: float | None = None

    def ready_in_s(self, amount: float, now_s: float) -> float:
        """Seconds until ``amount`` may be taken. An amount above ``burst`` waits for a full bucket."""
        self._fill(now_s)
        lacking = min(amount, self.burst) - self._level
        return 0.0 if lacking <= _ROUNDING * max(1.0, amount) else max(_WAIT_S_MIN, lacking / self.rate_per_s)

    def take(self, amount: float, now_s: float) -> None:
        """Take ``amount``; the bucket may become negative."""
        self._fill(now_s)
        self._level -= amount

    def give_back(self, amount: float) -> None:
        """Correct an estimated amount; negative: more was used."""
        self._level = min(self.burst, self._level + amount)

    def drain(self, now_s: float) -> None:
        """Empty the bucket."""
        self._fill(now_s)
        self._level = min(self._level, 0.0)

    def _fill(self, now_s: float) -> None:
        if self._at_s is not None and now_s > self._at_s:
            self._level = min(self.burst, self._level + (now_s - self._at_s) * self.rate_per_s)
        self._at_s = now_s


class AdaptiveRate:
    """AIMD request rate: unlimited until the store throttles. Pure."""

    def __init__(self, settings: LimitSettings) -> None:
        self._settings = settings
        self._bucket = Bucket("pace", 1.0, 1.0)
        self._free_at_per_s: float | None = None
        self._grown_s = 0.0
        self._window_s, self._window_count, self._previous_count = 0.0, 0, 0
        self.slowdowns = 0

    @property
    def rate_per_s(self) -> float | None:
        """``None``: unlimited."""
        return self._bucket.rate_per_s if self._free_at_per_s is not None else None

    def bucket(self, now_s: float) -> Bucket | None:
        """Bucket of the reduced rate, increased up to now; ``None`` while unlimited."""
        if self._free_at_per_s is None:
            return None
        gained = max(0.0, now_s - self._grown_s) * self._settings.recovery_requests_per_s
        self._grown_s = now_s
        self._set_rate(self._bucket.rate_per_s + gained)
        if self._bucket.rate_per_s >= self._free_at_per_s:
            self._free_at_per_s = None
            return None
        return self._bucket

    def admitted(self, now_s: float) -> None:
        """Count an admitted request."""
        self._shift_window(now_s)
        self._window_count += 1

    def slow_down(self, now_s: float) -> None:
        """Reduce the rate after the store throttled a request."""
        self.bucket(now_s)
        self._shift_window(now_s)
        free = self._free_at_per_s is None
        rate = float(max(self._previous_count, self._window_count, 1)) if free else self._bucket.rate_per_s
        if free:
            self._free_at_per_s = 2 * max(rate, self._settings.slowdown_requests_per_s_min)
        self._grown_s = now_s
        self._set_rate(max(self._settings.slowdown_requests_per_s_min, rate * self._settings.slowdown_factor))
        self._bucket.drain(now_s)
        self.slowdowns += 1

    def _set_rate(self, rate_per_s: float) -> None:
        self._bucket.rate_per_s = rate_per_s
        self._bucket.burst = max(1.0, rate_per_s * _PACE_BURST_S)

    def _shift_window(self, now_s: float) -> None:
        """Count requests per second. The first throttled request reduces this rate."""
        passed_s = now_s - self._window_s
        if passed_s >= 1.0:
            self._previous_count = self._window_count if passed_s < 2.0 else 0
            self._window_s, self._window_count = now_s, 0


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the queue, which is expected to move ``size_bytes``. ``number`` is its position among arrivals,
    ``admitted`` among admissions (``None`` while it waits)."""

    priority: Priority
    size_bytes: int
    number: int
    admitted: int | None = None
    event: threading.Event = field(default_factory=threading.Event, repr=False)


class RequestScheduler:
    """Queues and admits requests. A rate of 0 means no limit. Pure: no lock, no clock, no thread."""

    def __init__(self, settings: LimitSettings) -> None:
        self.pace = AdaptiveRate(settings)
        self.waiting: list[Ticket] = []
        self._admitted = self._asked = self._slowed_at = 0
        rates = {name: getattr(settings, name) for name in RATES}
        self._buckets = {
            name: Bucket(name, rate, max(1.0, rate * settings.burst)) for name, rate in rates.items() if rate
        }

    def ask(self, priority: Priority, size_bytes: int) -> Ticket:
        """Queue a request behind those of its priority."""
        self._asked += 1
        turn = Ticket(priority, size_bytes, self._asked)
        insort(self.waiting, turn, key=lambda other: (other.priority, other.number))
        return turn

    def admit(self, now_s: float) -> list[Ticket]:
        """Admit requests in order until one lacks tokens; that request blocks the rest."""
        going: list[Ticket] = []
        pace = self.pace.bucket(now_s)
        for turn in self.waiting:
            needs = self._needs(turn, pace)
            if any(bucket.ready_in_s(amount, now_s) > 0 for bucket, amount in needs):
                break
            for bucket, amount in needs:
                bucket.take(amount, now_s)
            self._admitted += 1
            turn.admitted = self._admitted
            self.pace.admitted(now_s)
            going.append(turn)
        del self.waiting[: len(going)]
        return going

    def ready_in_s(self, turn: Ticket, now_s: float) -> float:
        """Seconds until the buckets have enough tokens for this request and those ahead of it."""
        pace = self.pace.bucket(now_s)
        ready_s = _WAIT_S_MIN
        for other in self.waiting:
            ready_s = max([ready_s, *(bucket.ready_in_s(amount, now_s) for bucket, amount in self._needs(other, pace))])
            if other is turn:
                break
        return ready_s

    def lacks(self, turn: Ticket, now_s: float) -> str:
        """The limit that delays ``turn`` longest, with its value."""
        needs = self._needs(turn, self.pace.bucket(now_s))
        bucket = max(needs, key=lambda need: need[0].ready_in_s(need[1], now_s))[0] if needs else None
        if bucket is None:
            return "no limit"
        name = "the reduced request rate of the throttling store" if bucket.name == "pace" else f"limits.{bucket.name}"
        return f"{name} = {bucket.rate_per_s:g}"

    def settle(self, turn: Ticket, moved_bytes: int) -> None:
        """Replace the estimated amount by the moved bytes."""
        if (bucket := self._buckets.get("bytes_per_s")) is not None:
            bucket.give_back(turn.size_bytes - moved_bytes)

    def slow_down(self, turn: Ticket, now_s: float) -> bool:
        """Reduce the rate after the store throttled ``turn``; False if ``turn`` was sent before the last reduction."""
        if turn.admitted is None or turn.admitted <= self._slowed_at:
            return False
        self._slowed_at = self._admitted
        self.pace.slow_down(now_s)
        return True

    def _needs(self, turn: Ticket, pace: Bucket | None) -> list[tuple[Bucket, float]]:
        amounts = {"requests_per_s": 1.0, "bytes_per_s": float(turn.size_bytes)}
        limited = [(self._buckets[name], amount) for name, amount in amounts.items() if name in self._buckets]
        return limited if pace is None else [(pace, 1.0), *limited]


_priority: ContextVar[Priority | None] = ContextVar("offloader_priority", default=None)
_waited = threading.local()


@contextmanager
def working_at(priority: Priority) -> Iterator[None]:
    """Priority of this thread's requests inside the ``with``."""
    token = _priority.set(priority)
    try:
        yield
    finally:
        _priority.reset(token)


def current_priority(traffic: Traffic) -> Priority:
    """Priority set by ``working_at``, else the default of the kind: live for uploads, read for reads, deletion for
    deletes."""
    of_kind = {Traffic.UPLOAD: Priority.LIVE, Traffic.READ: Priority.READ, Traffic.DELETE: Priority.DELETION}
    given = _priority.get()
    return of_kind[traffic] if given is None else given


def throttled_s() -> float:
    """Time that this thread has spent in rate-limit waits. Retry budgets exclude it: the store didn't cause it."""
    return float(getattr(_waited, "seconds", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """Current state of the rate limits.

    Attributes:
        limits: name -> value of each limit in force.
        waiting: priority's name in lower case -> number of waiting requests.
        pace_requests_per_s: rate while slowed down; ``None``: unlimited.
        slowdowns: number of rate reductions.
        waited_s: total seconds that requests waited.
    """

    limits: Mapping[str, float]
    waiting: Mapping[str, int]
    pace_requests_per_s: float | None
    slowdowns: int
    waited_s: float


class Limiter:
    """Thread-safe ``RequestScheduler``, shared by all stores of a process under one rate limit."""

    def __init__(self, settings: LimitSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._turns = RequestScheduler(settings)
        self._waited_s = 0.0

    def acquire(self, traffic: Traffic, size_bytes: int, closing: threading.Event, *, what: str) -> Ticket:
        """Wait until a request may be sent.

        Args:
            size_bytes: bytes that the request is expected to move; ``settle`` corrects the estimate.
            closing: set when the store is being closed.
            what: the request's name in errors.

        Raises:
            ThrottledError: the request waited ``throttle_wait_max``, or ``throttle_queue_max`` others wait. Nothing
                was sent.
            StoreUnavailableError: the store was closed meanwhile. Nothing was sent.
        """
        started_s = self._clock.monotonic_s()
        with self._lock:
            if len(self._turns.waiting) >= self.settings.throttle_queue_max:
                raise ThrottledError(
                    f"{what}: not queued: {len(self._turns.waiting)} requests are already waiting for a rate limit",
                    hint="raise limits.throttle_queue_max, or the rate limit",
                )
            turn = self._turns.ask(current_priority(traffic), size_bytes)
        while True:
            with self._lock:
                now_s = self._clock.monotonic_s()
                going = self._turns.admit(now_s)
                left_s = started_s + self.settings.throttle_wait_max - now_s
                lacks = self._turns.lacks(turn, now_s) if turn.admitted is None else ""
                wait_s = min(left_s, self._turns.ready_in_s(turn, now_s))
                if turn.admitted is None:
                    # Under the lock: the admitting thread sets the event after this.
                    turn.event.clear()
                    if left_s <= 0 or closing.is_set():
                        self._turns.waiting.remove(turn)
                        self._wake_all()
            for other in going:
                other.event.set()
            if turn.admitted is not None:
                self._add_wait(now_s - started_s)
                return turn
            if closing.is_set():
                raise StoreUnavailableError(f"{what}: the store was closed while the request waited for a rate limit")
            if left_s <= 0:
                self._add_wait(now_s - started_s)
                raise ThrottledError(
                    f"{what}: not sent within throttle_wait_max = {self.settings.throttle_wait_max:g} s because of "
                    f"{lacks}",
                    hint="raise that limit, or limits.throttle_wait_max",
                )
            self._clock.wait(turn.event, wait_s)

    def wake(self) -> None:
        """Wake all waiting requests, which then check whether their store was closed."""
        with self._lock:
            self._wake_all()

    def _wake_all(self) -> None:
        """Wake all waiting requests after a change of the buckets. The caller holds the lock."""
        for turn in self._turns.waiting:
            turn.event.set()

    def settle(self, turn: Ticket, moved_bytes: int) -> None:
        """Replace the request's estimated amount by the moved bytes."""
        with self._lock:
            self._turns.settle(turn, moved_bytes)
            if moved_bytes < turn.size_bytes:
                self._wake_all()

    def slow_down(self, turn: Ticket) -> None:
        """Reduce the rate after the store throttled ``turn``."""
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
            _waited.seconds = throttled_s() + waited_s
            with self._lock:
                self._waited_s += waited_s
