"""Demo run: reads the input, appends and offloads it, reads everything back, plots and scans it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from formats.entries import Position
from formats.keys import catalog_key, stream_prefix
from offloader.demo.input import EventDigest, Events, InputSummary, Source, open_input, survey
from offloader.errors import AccessDenied, Corrupt, InvalidCall, NotFound, OffloaderError, StoreUnavailable
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.manifest.state import SegmentRecord
from offloader.plot import Span, StreamShape, draw
from offloader.read.reader import open_reader
from offloader.runtime.clock import Clock
from offloader.settings import Settings
from offloader.store.attempts import VerbCount, requests_of
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.write.status import Mode

if TYPE_CHECKING:
    from offloader.spark.demo_query import ScanResult

__all__ = [
    "STREAM", "DemoPlace", "DemoRequest", "DemoResult", "Imported", "Observer", "OffloadReport", "Progress",
    "Verification", "demo_settings", "run_demo",
]  # fmt: skip

#: The demo's only stream.
STREAM = "public/default/persistent/demo"
#: Time without a commit after which the run fails, and the interval of progress reports.
STALL_S, _REPORT_S = 120.0, 0.1
#: Samples of publish times in the plot.
_TIMELINE_PER_BATCH, _TIMELINE_MAX = 64, 20_000
_CLEAN_HINT = "give --clean to remove the earlier run's data first, or --dir for another directory"
_NOTE_INPUT, _NOTE_EVENTS = "demo.input", "demo.events"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """Parameters of a run. Empty texts mean: the default store, the flights, a format by the file's suffix."""

    directory: str = "offloader-demo"
    store_url: str = ""
    endpoint_url: str = ""
    region: str = ""
    input_path: str = ""
    input_format: str = ""
    time_field: str = ""
    clean: bool = False
    spark: bool = True
    picture: bool = True

    @property
    def store_options(self) -> Mapping[str, str]:
        """The store's options besides its URL, as arguments of ``open_store``."""
        given = {"endpoint_url": self.endpoint_url, "region": self.region}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """Paths of the demo under ``directory``; objects may be in a store elsewhere.

    Each store has its own ledgers, so that the demo can run against several.
    """

    directory: Path
    store_url: str
    endpoint_url: str = ""

    @classmethod
    def at(cls, directory: str, store_url: str = "", endpoint_url: str = "") -> DemoPlace:
        """``store_url`` empty: the directory ``store`` in ``directory``."""
        root = Path(directory)
        return cls(root, store_url or (root / "store").absolute().as_uri(), endpoint_url)

    @property
    def is_default_store(self) -> bool:
        return self.store_url == (self.directory / "store").absolute().as_uri()

    @property
    def ledgers_path(self) -> Path:
        return self._path("ledgers", ".db")

    @property
    def picture_path(self) -> Path:
        return self._path("picture", ".png")

    def _path(self, name: str, suffix: str) -> Path:
        if not self.is_default_store:
            short = re.sub(r"[^A-Za-z0-9]+", "-", self.store_url).strip("-")[:40]
            name += f"-{short}-{hashlib.sha256(f'{self.store_url} {self.endpoint_url}'.encode()).hexdigest()[:8]}"
        return self.directory / f"{name}{suffix}"


@dataclass(frozen=True, slots=True)
class Imported:
    """State of the ledgers: how much of which input they have; nothing before the first run."""

    input_sha256: str = ""
    input_name: str = ""
    events: int = 0
    newest: Position | None = None
    ledgers: tuple[LedgerInfo, ...] = ()

    @classmethod
    def read(cls, place: DemoPlace) -> Imported:
        """Reads the ledgers and their notes without disturbing a current run. Raises ``Corrupt`` for other notes."""
        try:
            database = EmbeddedLedgers(str(place.ledgers_path), create=False)
        except NotFound:
            return cls()
        try:
            view = database.view_stream(STREAM)
            note, events, newest = view.get_note(_NOTE_INPUT), view.get_note(_NOTE_EVENTS), view.last_position()
            if note is None or events is None:
                return cls()
            recorded, ledgers = json.loads(note), tuple(info for info in view.ledgers() if info.entries)
            return cls(recorded["sha256"], recorded["name"], int(events), newest, ledgers)
        except NotFound:
            return cls()
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{place.ledgers_path}: the demo's notes can't be read", hint=_CLEAN_HINT) from error
        finally:
            database.close()


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run, in events of the input.

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
    """Called at the start of each step and with the progress of appends and offloading; must return quickly."""

    def step(self, text: str) -> None: ...

    def progress(self, now: Progress) -> None: ...


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """Result of appending and offloading: events of this run and of earlier ones, and the time taken."""

    appended_before: int
    appended: int
    appended_bytes: int
    seconds: float
    requests: Mapping[str, VerbCount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verification:
    """Events read back from the store, and whether they equal the appended ones.

    ``timeline``: some of the events, as (events before, publish time in ms).
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


@dataclass(slots=True, kw_only=True)
class DemoResult:
    """Result of a run. ``problems``: steps that failed without affecting others, the gravest first."""

    request: DemoRequest
    place: DemoPlace
    summary: InputSummary
    events_before: int = 0
    offload: OffloadReport | None = None
    ledgers: list[LedgerInfo] = field(default_factory=list)
    segments: list[SegmentRecord] = field(default_factory=list)
    verification: Verification | None = None
    scan: ScanResult | None = None
    scan_seconds: float = 0.0
    picture: Path | None = None
    problems: list[OffloaderError] = field(default_factory=list)
    removed_objects: int | None = None
    seconds: float = 0.0


def demo_settings(payload_bytes: int) -> Settings:
    """Sizes with which ``payload_bytes`` make 4 ledgers and 8 segments, whose ends don't coincide."""
    mib = 1024 * 1024
    segment_bytes = max(int(payload_bytes * 0.138), 64 * 1024)
    return Settings.of(
        {
            "ledgers": {"ledger_bytes_max": max(int(payload_bytes * 0.29), 128 * 1024)},
            "offload": {"max_size_per_offload_segment_mbytes": segment_bytes / mib, "part_bytes": 5 * mib},
        },
        origin="the demo's settings",
    )


def run_demo(request: DemoRequest, observer: Observer, clock: Clock) -> DemoResult:
    """Runs every step. After an interruption the same request resumes.

    Raises:
        InvalidCall: a broken input (nothing was imported), or the directory has other data.
        Fenced: another run took over.
        OffloaderError: another error stopped the import.
    """
    started_s = clock.monotonic_s()
    place = DemoPlace.at(request.directory, request.store_url, request.endpoint_url)
    _require_usable(place)
    source = open_input(request.input_path, file_format=request.input_format, time_field=request.time_field)
    observer.step(f"Looking through {source.name}")
    result = DemoResult(request=request, place=place, summary=survey(source))
    store = open_store(
        place.store_url, endpoint_url=request.endpoint_url or None, region=request.region or None, clock=clock
    )
    try:
        if request.clean:
            observer.step("Removing the earlier run's data")
            result.removed_objects = _clean(place, store)
        imported, committed = _check_fits(place, store, result.summary)
        result.events_before = imported.events
        if imported.events != result.summary.events or committed != imported.newest:
            observer.step(f"Appending to ledgers and offloading to {store.url}")
            result.offload = _Run(result, store, imported, observer, clock).report(source)
        observer.step("Reading everything back from the store")
        _read_back(result, store, clock)
    finally:
        store.close()
    if request.picture:
        _try(result, lambda: _draw(result))
    if request.spark:
        observer.step("Scanning with Spark")
        _try(result, lambda: _scan(result, clock))
    result.seconds = clock.monotonic_s() - started_s
    return result


def _try(result: DemoResult, step: Callable[[], None]) -> None:
    """Runs an optional step; the others count without it."""
    try:
        step()
    except OffloaderError as error:
        result.problems.append(error)


def _require_usable(place: DemoPlace) -> None:
    """Raises ``AccessDenied`` if the demo's directory isn't writable; creates nothing."""
    nearest = place.directory.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "may not be written to" if nearest.is_dir() else "is not a directory"
        raise AccessDenied(
            f"the demo's directory {place.directory} can't be used: {nearest} {why}", hint="name another one with --dir"
        )


def _check_fits(place: DemoPlace, store: ObjectStore, summary: InputSummary) -> tuple[Imported, Position | None]:
    """How much of this input earlier runs imported and offloaded.

    Raises:
        InvalidCall: the directory has another input's data; nothing was changed.
    """
    imported = Imported.read(place)
    try:
        committed = load_manifest(store, STREAM).committed_end()
    except NotFound:
        committed = None
    problem, path = "", place.ledgers_path
    if imported.events and imported.input_sha256 != summary.sha256:
        there = f"{imported.events:,} events of {imported.input_name}"
        problem = f"{path} holds {there}, and {summary.name} is another input"
    elif not imported.events and committed is not None:
        problem = f"{store.url} holds stream {STREAM} up to {committed}, and {path} knows nothing of it"
    if problem:
        raise InvalidCall(problem, hint=_CLEAN_HINT)
    return imported, committed


def _clean(place: DemoPlace, store: ObjectStore) -> int:
    """Removes the demo's stream from the store, its ledgers and plot; returns the number of objects."""
    removed = 0
    # The catalog entry last: an interrupted removal can be repeated.
    for prefix in (stream_prefix(STREAM), catalog_key(STREAM)):
        while keys := [info.key for info in store.list(prefix).objects]:
            if failures := store.delete(keys):
                raise StoreUnavailable(
                    f"{store.url}: {len(failures)} of {len(keys)} objects weren't deleted; {failures[0].key}: "
                    f"{failures[0].reason}",
                    hint="give the same command again",
                )
            removed += len(keys)
    for upload in store.list_uploads(stream_prefix(STREAM)):
        store.abort_upload(upload.key, upload.upload_id)
    try:
        for path in (place.ledgers_path, place.picture_path):
            for suffix in ("-wal", "-shm", ".acked", ""):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise AccessDenied(f"{place.directory}: can't remove {path.name}: {error.strerror or error}") from error
    return removed


class _Run:
    """Appends and offloads the rest of the input, and waits until all of it is in the store.

    Each batch and the number of events imported so far are committed in one transaction, so that an interrupted run
    resumes exactly.
    """

    def __init__(
        self, result: DemoResult, store: ObjectStore, imported: Imported, observer: Observer, clock: Clock
    ) -> None:
        self._summary, self._store, self._observer, self._clock = result.summary, store, observer, clock
        self._ledgers_path, self._before = result.place.ledgers_path, imported.events
        self._appended, self._appended_bytes = imported.events, 0
        # Events before each ledger: maps a position to the number of events up to it.
        self._events_before: dict[int, int] = {}

    def report(self, source: Source) -> OffloadReport:
        """Runs the import.

        Raises:
            InvalidCall: the input changed since it was read.
            StoreUnavailable: nothing was committed for ``STALL_S``; run it again to resume.
        """
        before, started_s = requests_of(self._store), self._clock.monotonic_s()
        topic = open_managed_ledger(
            STREAM,
            ledgers=str(self._ledgers_path),
            store=self._store,
            settings=demo_settings(self._summary.payload_bytes),
            clock=self._clock,
        )
        is_done, count = False, 0
        try:
            for ledger in topic.ledgers():
                if ledger.entries:
                    self._events_before[ledger.ledger_id] = count
                    count += ledger.entries
            self._append_all(topic, source)
            self._wait(topic)
            is_done = True
        finally:
            topic.close(drain=is_done)
        return OffloadReport(
            self._before,
            self._appended - self._before,
            self._appended_bytes,
            self._clock.monotonic_s() - started_s,
            _requests_since(before, self._store),
        )

    def _append_all(self, topic: ManagedLedger, source: Source) -> None:
        summary, digest = self._summary, EventDigest(with_times=source.has_times)
        for events in source.events():
            skipped = min(max(self._appended - digest.events, 0), len(events.payloads))
            digest.add(events)
            # Checked before the last batch is appended, so that a changed input never counts as complete.
            self._require_same(digest, is_over=digest.events >= summary.events)
            if skipped < len(events.payloads):
                self._append(topic, Events(events.payloads.slice(skipped), events.times_ms[skipped:]))
        self._require_same(digest, is_over=True)

    def _require_same(self, digest: EventDigest, *, is_over: bool) -> None:
        summary = self._summary
        if is_over and (digest.events, digest.hexdigest()) != (summary.events, summary.sha256):
            raise InvalidCall(f"{summary.name} changed while it was read", hint="give --clean and run the demo again")

    def _append(self, topic: ManagedLedger, events: Events) -> None:
        after = self._appended + len(events.payloads)
        notes = {_NOTE_INPUT: json.dumps(asdict(self._summary)).encode(), _NOTE_EVENTS: b"%d" % after}
        times = events.times_ms if self._summary.has_times else None
        for batch in topic.append_batch(events.payloads, times, notes=notes):
            self._events_before.setdefault(batch.ledger_id, self._appended)
            self._appended += len(batch)
            self._appended_bytes += batch.payload_bytes
        self._report(topic)

    def _wait(self, topic: ManagedLedger) -> None:
        committed, since_s = -1, self._clock.monotonic_s()
        while True:
            try:
                topic.offload(timeout_s=_REPORT_S)
                break
            except StoreUnavailable:
                now, now_s = self._report(topic), self._clock.monotonic_s()
                if now.committed > committed:
                    committed, since_s = now.committed, now_s
                elif now.mode == Mode.STOPPED.value:
                    raise
                elif now_s - since_s > STALL_S:
                    raise StoreUnavailable(
                        f"{STREAM}: nothing was offloaded for {STALL_S:g} s; last error: {now.error or 'none'}",
                        hint="all events are durable in the ledgers: the same command goes on",
                    ) from None
        self._report(topic)

    def _report(self, topic: ManagedLedger) -> Progress:
        status = topic.status()
        assert status is not None, "the demo streams"
        end = status.committed
        committed = 0 if end is None else self._events_before.get(end.ledger_id, 0) + end.entry_id + 1
        sizes = status.buffer_bytes, status.buffer_bytes_max
        now = Progress(self._appended, committed, self._summary.events, *sizes, status.mode.value, status.error)
        self._observer.progress(now)
        return now


def _read_back(result: DemoResult, store: ObjectStore, clock: Clock) -> None:
    """Reads the whole stream from the store alone and hashes it like the input."""
    reader = open_reader(store, STREAM, settings=demo_settings(result.summary.payload_bytes).read)
    result.segments = reader.segments()
    result.ledgers = list(Imported.read(result.place).ledgers)
    before, started_s = requests_of(store), clock.monotonic_s()
    digest = EventDigest(with_times=result.summary.has_times)
    timeline: list[tuple[int, int]] = []
    newest = 0
    for batch in reader.scan():
        step = max(len(batch) // _TIMELINE_PER_BATCH, 1)
        sampled = batch.publish_times_ms[::step].tolist()
        timeline += [(digest.events + i * step, time_ms) for i, time_ms in enumerate(sampled)]
        timeline = timeline[::2] if len(timeline) > _TIMELINE_MAX else timeline
        digest.add(Events(batch.payloads, batch.publish_times_ms))
        newest = int(batch.publish_times_ms[-1])
    if timeline:
        timeline.append((digest.events - 1, newest))
    result.verification = found = Verification(
        *(digest.events, digest.payload_bytes, digest.hexdigest(), result.summary, clock.monotonic_s() - started_s),
        tuple(timeline),
        _requests_since(before, store),
    )
    if not found.ok:
        text = (
            f"{store.url}: {found.events:,} events with SHA-256 {found.sha256} were read back, "
            f"appended were {found.expected.events:,} with {found.expected.sha256}"
        )
        result.problems.append(Corrupt(text, hint="keep the data and report this"))


def _requests_since(before: Mapping[str, VerbCount], store: ObjectStore) -> dict[str, VerbCount]:
    counts = {}
    for verb, now in requests_of(store).items():
        then = asdict(before.get(verb, VerbCount()))
        counts[verb] = VerbCount(**{name: value - then[name] for name, value in asdict(now).items()})
    return {verb: count for verb, count in counts.items() if count.requests}


def _draw(result: DemoResult) -> None:
    assert result.verification is not None
    summaries = [record.summary for record in result.segments if record.summary is not None]
    shape = StreamShape(
        Path(result.summary.name).name,
        _spans([(f"ledger {each.ledger_id}", each.entries, each.size_bytes) for each in result.ledgers]),
        _spans([(f"segment {number}", each.entries, each.data_bytes) for number, each in enumerate(summaries, 1)]),
        result.verification.timeline,
    )
    draw(shape, result.place.picture_path)
    result.picture = result.place.picture_path


def _spans(sizes: list[tuple[str, int, int]]) -> list[Span]:
    spans, start = [], 0
    for name, events, size_bytes in sizes:
        spans.append(Span(name, start, start + events, size_bytes))
        start += events
    return spans


def _scan(result: DemoResult, clock: Clock) -> None:
    from offloader.spark.demo_query import delays_by_carrier_and_month, entries_by_ledger

    started_s = clock.monotonic_s()
    question = entries_by_ledger if result.request.input_path else delays_by_carrier_and_month
    result.scan = question(result.place.store_url, STREAM, result.request.store_options)
    result.scan_seconds = clock.monotonic_s() - started_s
