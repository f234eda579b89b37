"""Retention that runs by itself: a cycle for every stream now and then.

Owns when a stream has its turn and what is told of it. Must never let one stream's failure keep the others from their
turns, nor run two cycles of one stream at once.

Turns are spread over the period by the streams' names, so that ten thousand streams are a steady trickle of requests;
no stream has a thread or a timer of its own.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

from offloader.clock import Clock
from offloader.errors import NotFound, OffloaderError
from offloader.limits import Priority, working_at
from offloader.manifest.catalog import list_streams
from offloader.manifest.topics import partition_of
from offloader.retention.cycle import CycleOutcome, RetentionCycle
from offloader.retention.decision import Decision
from offloader.retention.hot_streams import HotStreams
from offloader.retention.policies import is_internal
from offloader.retention.policy import PolicyKind
from offloader.store.base import ObjectStore
from offloader.telemetry import NO_TELEMETRY, Reading, Recorder

__all__ = ["RetentionService", "StreamCycle", "retained_streams"]

_log = logging.getLogger("offloader.retention")

#: A turn comes by this part of the period earlier or later.
JITTER = 0.1
#: A stream whose cycle failed is tried again after this part of the period, but not sooner than ``RETRY_S_MIN``.
RETRY = 0.1
RETRY_S_MIN = 10.0
#: Longest time between two looks at the list of streams.
DISCOVERY_S_MAX = 300.0


@dataclass(frozen=True, slots=True)
class StreamCycle:
    """The newest cycle of a stream: what it did, or why it failed."""

    outcome: CycleOutcome | None
    error: OffloaderError | None
    at_ms: int


def retained_streams(store: ObjectStore) -> list[str]:
    """What retention decides about: streams, and partitioned topics by the topic's name; not what brokers keep for
    themselves."""
    streams = list_streams(store)
    plain = set(streams)
    found = set()
    for stream in plain:
        split = partition_of(stream)
        # A topic that is a stream itself has no partitions of ours: those are streams with odd names.
        name = stream if split is None or split[0] in plain else split[0]
        if not is_internal(name):
            found.add(name)
    return sorted(found)


class RetentionService:
    """Runs cycles until it is closed.

    Args:
        cycle: runs one.
        clock: decides who is due.
        period_s: between two cycles of a stream.
        recorder: takes the measurements of the retention specification, section 5.
        streams: which streams there are; default: those of the cycle's store.
        hot_streams: streams of this process that aren't offloaded.
        on_cycle: hears of each cycle, by stream.
    """

    def __init__(
        self,
        cycle: RetentionCycle,
        *,
        clock: Clock,
        period_s: float,
        recorder: Recorder = NO_TELEMETRY,
        streams: Callable[[], Iterable[str]] | None = None,
        hot_streams: HotStreams | None = None,
        on_cycle: Callable[[str, StreamCycle], object] = lambda _stream, _cycle: None,
    ) -> None:
        self._cycle = cycle
        self._clock = clock
        self._period_s = period_s
        self._recorder = recorder
        self._streams = streams or (lambda: retained_streams(cycle.store))
        self._hot_streams = hot_streams
        self._on_cycle = on_cycle
        # Guards what follows; no request is made while it is held.
        self._lock = threading.Lock()
        self._due: list[tuple[float, str]] = []
        self._known: set[str] = set()
        self._latest: dict[str, StreamCycle] = {}
        self._discovery_due_s = 0.0
        self._turns = 0
        self._running = threading.Lock()
        self._started = False
        self._closed = False
        self._unwatch = recorder.watch(self._readings)

    def start(self, call_after: Callable[[float, Callable[[], object]], object]) -> None:
        """Runs what is due from now on; a second call changes nothing.

        Args:
            call_after: runs something after so many seconds, on another thread.
        """
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True

        def turn() -> None:
            wait_s = 1.0
            try:
                wait_s = self.run_due()
            except Exception:
                # Retention must outlive whatever is wrong with one stream.
                _log.exception("a round of retention failed; it is tried again")
                wait_s = RETRY_S_MIN
            if not self._closed:
                call_after(wait_s, turn)

        call_after(0.0, turn)

    def close(self) -> None:
        """No further cycle begins; waits for the one that runs. Closing twice is fine."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._unwatch()
        with self._running:
            pass

    @property
    def latest(self) -> Mapping[str, StreamCycle]:
        """The newest cycle of each stream that had one."""
        with self._lock:
            return dict(self._latest)

    def run_due(self) -> float:
        """Runs every cycle that is due, one after the other; seconds until the next one is."""
        with self._running:
            self._discover()
            while not self._closed:
                stream = self._next_due()
                if stream is None:
                    break
                self._run(stream)
            with self._lock:
                next_s = min([self._discovery_due_s, *(due for due, _ in self._due[:1])])
            return max(next_s - self._clock.monotonic_s(), 0.0)

    def _discover(self) -> None:
        """Looks which streams there are: new ones get a turn, those that are gone are forgotten."""
        now_s = self._clock.monotonic_s()
        if now_s < self._discovery_due_s:
            return
        if self._hot_streams is not None:
            self._hot_streams.enrol()
        try:
            streams = set(self._streams())
        except OffloaderError as error:
            _log.warning("retention can't list the streams: %s", error)
            self._discovery_due_s = now_s + RETRY_S_MIN
            return
        self._discovery_due_s = now_s + min(self._period_s, DISCOVERY_S_MAX)
        with self._lock:
            if not self._known <= streams:
                # Also the turns of those that are gone: one that is created again has one turn, not two.
                self._due = [each for each in self._due if each[1] in streams]
                heapq.heapify(self._due)
            for stream in streams - self._known:
                heapq.heappush(self._due, (now_s + self._phase(stream) * self._period_s, stream))
            for stream in self._known - streams:
                self._latest.pop(stream, None)
            self._known = streams

    def _next_due(self) -> str | None:
        with self._lock:
            while self._due and self._due[0][0] <= self._clock.monotonic_s():
                _, stream = heapq.heappop(self._due)
                if stream in self._known:
                    return stream
            return None

    def _run(self, stream: str) -> None:
        with working_at(Priority.DELETION):
            found = self._cycle_of(stream)
        self._tell(stream, found)
        self._turns += 1
        jitter = (self._phase(f"{stream} {self._turns}") * 2 - 1) * JITTER
        wait_s = self._period_s * (1 + jitter)
        if found.error is not None:
            wait_s = min(max(self._period_s * RETRY, RETRY_S_MIN), wait_s)
        with self._lock:
            before = self._latest.get(stream)
        self._count_reads(before, found, stream)
        with self._lock:
            if isinstance(found.error, NotFound):
                # Deleted meanwhile; if it comes back, the next look at the list finds it.
                self._known.discard(stream)
                self._latest.pop(stream, None)
                return
            self._latest[stream] = found
            heapq.heappush(self._due, (self._clock.monotonic_s() + wait_s, stream))

    def _cycle_of(self, stream: str) -> StreamCycle:
        try:
            return StreamCycle(self._cycle.run(stream), None, self._clock.now_ms())
        except OffloaderError as error:
            return StreamCycle(None, error, self._clock.now_ms())

    def _phase(self, text: str) -> float:
        """A number in [0, 1) that is always the same for the same text."""
        return crc32(text.encode()) / 2**32

    # --- telling -------------------------------------------------------------------------------------------------

    def _tell(self, stream: str, found: StreamCycle) -> None:
        add = self._recorder.add
        outcome, error = found.outcome, found.error
        add("retention_cycles_total", stream=stream, label="failed" if error else "done")
        if error is not None:
            add("retention_refusals_total", stream=stream, label=type(error).__name__)
            level = logging.INFO if isinstance(error, NotFound) else logging.WARNING
            extra = {"event": "retention_failed", "stream": stream, "retryable": error.retryable}
            _log.log(level, "retention of stream %s: %s", stream, error, extra=extra)
        elif outcome is not None and outcome.decision is not None:
            decision, done = outcome.decision, bool(outcome.truncations)
            # Zeros too, so that the first truncation is an increase and not a new series.
            add("retention_truncations_total", float(done), stream=stream)
            add("retention_truncated_bytes_total", outcome.bytes_truncated, stream=stream)
            add("subscribers_overridden_total", float(len(decision.overridden)), stream=stream)
            if done:
                self._log_truncation(stream, outcome, decision)
        self._on_cycle(stream, found)

    def _log_truncation(self, stream: str, outcome: CycleOutcome, decision: Decision) -> None:
        losers = [each.name for each in decision.overridden]
        extra = {
            "event": "truncated",
            "stream": stream,
            "head": str(decision.cut),
            "rule": decision.rule.name.lower(),
            "bytes": outcome.bytes_truncated,
            "overridden": losers,
        }
        text = f"stream {stream} begins at {decision.cut}: {decision.rule.value}; {outcome.bytes_truncated} bytes"
        text += f", not read by {', '.join(losers)}" if losers else ""
        _log.log(logging.WARNING if losers else logging.INFO, "%s", text, extra=extra)

    def _count_reads(self, before: StreamCycle | None, now: StreamCycle, stream: str) -> None:
        """How far the subscribers went since the cycle before."""
        if before is None or before.outcome is None or now.outcome is None:
            return
        old = {lag.name: before.outcome.sizes.get(lag.cut) for lag in before.outcome.lags}
        for lag in now.outcome.lags:
            was, size = old.get(lag.name), now.outcome.sizes.get(lag.cut)
            if was is not None and size is not None and size > was:
                self._recorder.add("subscriber_read_bytes_total", size - was, stream=stream, label=lag.name)

    def _readings(self) -> Iterator[Reading]:
        for stream, found in self.latest.items():
            outcome = found.outcome
            yield Reading("streams_retention_failing", float(found.error is not None), stream)
            if outcome is None:
                continue
            yield Reading("unconsumed_bytes", outcome.unread_bytes, stream)
            yield Reading("unconsumed_entries", outcome.unread_entries, stream)
            is_queue = outcome.policy is not None and outcome.policy.kind is PolicyKind.CONSUMPTION
            yield Reading("streams_without_subscribers", float(is_queue and not outcome.subscribers), stream)
            for lag in outcome.lags:
                yield Reading("subscriber_lag_bytes", lag.unread_bytes or 0, stream, lag.name)
                yield Reading("subscriber_lag_entries", lag.unread_entries or 0, stream, lag.name)
