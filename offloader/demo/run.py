"""The demo's steps: append while offloading, then read everything back and compare.

Owns the order of the steps and what they report. Must never print: an observer hears of progress.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from formats.entries import Position
from offloader.clock import Clock
from offloader.demo.events import EventDigest, Events
from offloader.demo.input import InputSummary, Source
from offloader.demo.place import STREAM, DemoPlace, Imported, notes_after
from offloader.errors import InvalidCall, NotFound, StoreUnavailable
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.read.reader import open_reader
from offloader.settings import Settings
from offloader.store.attempts import VerbCount, requests_of
from offloader.store.base import ObjectStore

__all__ = [
    "Observer",
    "OffloadReport",
    "Progress",
    "Verification",
    "append_and_offload",
    "demo_settings",
    "is_offloaded",
    "ledgers_of",
    "verify",
]

#: How long nothing may be committed while the rest is waited for.
STALL_S = 120.0
#: How often progress is looked at while waiting.
_LOOK_S = 0.1
#: Times that the picture is drawn from.
_TIMELINE_PER_BATCH = 64
_TIMELINE_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of the run, in events of the input.

    ``buffer_bytes`` of ``buffer_bytes_max`` are held for upload; ``lag_events`` are durable and not in the store yet.
    """

    appended: int
    committed: int
    total: int
    buffer_bytes: int
    buffer_bytes_max: int
    mode: str
    error: str

    @property
    def lag_events(self) -> int:
        return self.appended - self.committed


class Observer(Protocol):
    """Hears what the run is doing; must return quickly."""

    def progress(self, now: Progress) -> None: ...


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """What appending and offloading did: events appended by this run and before, and how long it took."""

    appended_before: int
    appended: int
    appended_bytes: int
    seconds: float
    requests: Mapping[str, VerbCount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verification:
    """What was read back from the store, and whether it is what was appended.

    ``timeline``: some of the events, as (how many come before it, its publish time in ms).
    """

    events: int
    payload_bytes: int
    sha256: str
    expected: InputSummary
    seconds: float
    timeline: tuple[tuple[int, int], ...] = ()
    requests: Mapping[str, VerbCount] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return (self.events, self.sha256) == (self.expected.events, self.expected.sha256)


def demo_settings(payload_bytes: int) -> Settings:
    """Sizes with which ``payload_bytes`` make 4 ledgers and 8 segments, whose ends don't fall together."""
    mib = 1024 * 1024
    segment_bytes = max(int(payload_bytes * 0.138), 64 * 1024)
    return Settings.of(
        {
            "ledgers": {"ledger_bytes_max": max(int(payload_bytes * 0.29), 128 * 1024)},
            "offload": {
                "max_size_per_offload_segment_mbytes": segment_bytes / mib,
                "part_bytes": 5 * mib,
            },
        },
        origin="the demo's settings",
    )


def append_and_offload(
    place: DemoPlace,
    store: ObjectStore,
    source: Source,
    summary: InputSummary,
    imported: Imported,
    observer: Observer,
    clock: Clock,
) -> OffloadReport:
    """Appends what isn't imported yet while it is offloaded, and waits until all of it is in the store.

    Each batch and the number of events imported so far become durable in one transaction, so that a run that is
    interrupted anywhere goes on exactly where it was.

    Raises:
        Fenced: another run took over.
        InvalidCall: the input changed since it was looked through.
        StoreUnavailable: nothing was committed for ``STALL_S``; run it again to go on.
    """
    before, started_s = requests_of(store), clock.monotonic_s()
    topic = open_managed_ledger(
        STREAM, ledgers=str(place.ledgers_path), store=store, settings=demo_settings(summary.payload_bytes), clock=clock
    )
    done = False
    try:
        run = _Run(topic, summary, observer, clock, imported.events)
        run.append(source)
        run.wait_until_offloaded()
        done = True
    finally:
        topic.close(drain=done)
    return OffloadReport(
        imported.events,
        run.appended - imported.events,
        run.appended_bytes,
        clock.monotonic_s() - started_s,
        _requests_since(before, requests_of(store)),
    )


class _Run:
    """Appending and waiting, with what is needed to say how far it is."""

    def __init__(
        self, topic: ManagedLedger, summary: InputSummary, observer: Observer, clock: Clock, done: int
    ) -> None:
        self._topic = topic
        self._summary = summary
        self._observer = observer
        self._clock = clock
        self.appended = done
        self.appended_bytes = 0
        # events before each ledger, so that a position says how many events it is into the stream
        self._events_before: dict[int, int] = {}
        self._count_ledgers(topic.ledgers())

    def append(self, source: Source) -> None:
        digest = EventDigest(with_times=source.has_times)
        for events in source.events():
            skipped = min(max(self.appended - digest.events, 0), len(events.payloads))
            digest.add(events)
            if digest.events > self._summary.events or (
                digest.events == self._summary.events and digest.hexdigest() != self._summary.sha256
            ):
                # found before the last batch is appended, so that a changed input never counts as complete
                raise self._changed()
            if skipped < len(events.payloads):
                self._append(Events(events.payloads.slice(skipped), events.times_ms[skipped:]), source.has_times)
        if digest.events != self._summary.events:
            raise self._changed()

    def _append(self, events: Events, has_times: bool) -> None:
        after = self.appended + len(events.payloads)
        batches = self._topic.append_batch(
            events.payloads, events.times_ms if has_times else None, notes=notes_after(self._summary, after)
        )
        for batch in batches:
            self._events_before.setdefault(batch.ledger_id, self.appended)
            self.appended += len(batch)
            self.appended_bytes += batch.payload_bytes
        self._report()

    def wait_until_offloaded(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            # the deadline is ours: as long as something is committed now and then, it may take its time
            waiting = pool.submit(self._topic.offload, timeout_s=float(2**31))
            committed, since_s = -1, self._clock.monotonic_s()
            try:
                while True:
                    try:
                        waiting.result(_LOOK_S)
                        break
                    except concurrent.futures.TimeoutError:
                        now = self._report()
                    if now.committed > committed:
                        committed, since_s = now.committed, self._clock.monotonic_s()
                    elif self._clock.monotonic_s() - since_s > STALL_S:
                        raise StoreUnavailable(
                            f"{STREAM}: nothing was offloaded for {STALL_S:g} s; last error: {now.error or 'none'}",
                            hint="all events are durable in the ledgers: the same command goes on",
                        )
            except BaseException:
                # ends the wait, so that the pool can be left
                self._topic.close(drain=False)
                raise
        self._report()

    def _report(self) -> Progress:
        status = self._topic.status()
        assert status is not None, "the demo streams"
        now = Progress(
            self.appended,
            self._events_up_to(status.committed),
            self._summary.events,
            status.buffer_bytes,
            status.buffer_bytes_max,
            status.mode.value,
            status.error,
        )
        self._observer.progress(now)
        return now

    def _count_ledgers(self, ledgers: list[LedgerInfo]) -> None:
        before = 0
        for ledger in ledgers:
            if ledger.entries:
                self._events_before[ledger.ledger_id] = before
            before += ledger.entries

    def _events_up_to(self, position: Position | None) -> int:
        return 0 if position is None else self._events_before.get(position.ledger_id, 0) + position.entry_id + 1

    def _changed(self) -> InvalidCall:
        return InvalidCall(
            f"{self._summary.name} changed while it was read", hint="give --clean and run the demo again"
        )


def is_offloaded(place: DemoPlace, store: ObjectStore, summary: InputSummary, imported: Imported) -> bool:
    """Whether an earlier run imported all of the input and the store has all of it."""
    if imported.events != summary.events:
        return False
    ledgers = EmbeddedLedgers(str(place.ledgers_path), create=False)
    try:
        newest = ledgers.view_stream(STREAM).last_position()
    finally:
        ledgers.close()
    try:
        return load_manifest(store, STREAM).committed_end() == newest
    except NotFound:
        return False


def ledgers_of(place: DemoPlace) -> list[LedgerInfo]:
    """The ledgers that hold the demo's events."""
    ledgers = EmbeddedLedgers(str(place.ledgers_path), create=False)
    try:
        return [info for info in ledgers.view_stream(STREAM).ledgers() if info.entries]
    finally:
        ledgers.close()


def verify(store: ObjectStore, summary: InputSummary, settings: Settings, clock: Clock) -> Verification:
    """Reads the whole stream from the store alone and hashes it as the input was hashed."""
    before, started_s = requests_of(store), clock.monotonic_s()
    digest = EventDigest(with_times=summary.has_times)
    timeline: list[tuple[int, int]] = []
    for batch in open_reader(store, STREAM, settings=settings.read).scan():
        step = max(len(batch) // _TIMELINE_PER_BATCH, 1)
        sampled = batch.publish_times_ms[::step].tolist()
        timeline += [(digest.events + i * step, time_ms) for i, time_ms in enumerate(sampled)]
        if len(timeline) > _TIMELINE_MAX:
            timeline = timeline[::2]
        digest.add(Events(batch.payloads, batch.publish_times_ms))
        newest = int(batch.publish_times_ms[-1])
    if timeline:
        timeline.append((digest.events - 1, newest))
    return Verification(
        digest.events,
        digest.payload_bytes,
        digest.hexdigest(),
        summary,
        clock.monotonic_s() - started_s,
        tuple(timeline),
        _requests_since(before, requests_of(store)),
    )


def _requests_since(before: Mapping[str, VerbCount], after: Mapping[str, VerbCount]) -> dict[str, VerbCount]:
    counts = {}
    for verb, now in after.items():
        then = before.get(verb, VerbCount())
        counts[verb] = VerbCount(
            now.requests - then.requests,
            now.errors - then.errors,
            now.bytes_sent - then.bytes_sent,
            now.bytes_received - then.bytes_received,
        )
    return {verb: count for verb, count in counts.items() if count.requests}
