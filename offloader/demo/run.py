"""Demo run: reads the input, appends and offloads it, reads all events back, plots and scans them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from formats.entries import Position
from formats.errors import FormatError
from formats.keys import catalog_key, stream_prefix
from offloader.demo.input import EventDigest, Events, InputSummary, Source, open_input, survey
from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
)
from offloader.inspect.saving import Saving, measure_saving
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.manifest.state import SegmentRecord
from offloader.plot import Span, StreamTimeline, draw
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import Clock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import VerbCount, requests_of
from offloader.write.stream import Mode

if TYPE_CHECKING:
    from offloader.spark.demo_query import ScanResult, WaitForSession

#: The demo's only stream.
STREAM = "public/default/persistent/demo"
#: Maximum time without a commit, and the interval of progress reports.
STALL_S, _REPORT_S = 120.0, 0.1
#: Samples of publish times in the plot.
_TIMELINE_PER_BATCH, _TIMELINE_MAX = 64, 20_000
_CLEAN_HINT = "give --clean to remove the earlier run's data first, or --dir for another directory"
_NOTE_INPUT, _NOTE_EVENTS = "demo.input", "demo.events"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """Parameters of a run. Empty texts: the default store, the flights, a format by the file's suffix.

    Each store has its own ledgers and picture in ``directory``, so that the demo can run against several.
    """

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
        """The store's options besides its URL, with the names of Spark's data source."""
        given = {"endpointUrl": self.endpoint_url, "region": self.region}
        return {name: value for name, value in given.items() if value}

    @property
    def url(self) -> str:
        """The store's URL; by default the directory ``store`` in ``directory``."""
        return self.store_url or self._default_url

    @property
    def ledgers_path(self) -> Path:
        return self._path("ledgers", ".db")

    @property
    def picture_path(self) -> Path:
        return self._path("picture", ".png")

    @property
    def _default_url(self) -> str:
        return (Path(self.directory) / "store").absolute().as_uri()

    def _path(self, name: str, suffix: str) -> Path:
        if self.url != self._default_url:
            short = re.sub(r"[^A-Za-z0-9]+", "-", self.url).strip("-")[:40]
            name += f"-{short}-{hashlib.sha256(f'{self.url} {self.endpoint_url}'.encode()).hexdigest()[:8]}"
        return Path(self.directory) / f"{name}{suffix}"


@dataclass(frozen=True, slots=True)
class Imported:
    """State of the ledgers: their input and number of its events; empty before the first run."""

    input_sha256: str = ""
    input_name: str = ""
    events: int = 0
    newest: Position | None = None
    ledgers: tuple[LedgerInfo, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Imported:
        """Reads a ledger database and its notes without an effect on a current run.

        Raises:
            CorruptError: its notes aren't the demo's.
        """
        try:
            with closing(EmbeddedLedgers(str(path), create=False)) as database:
                view = database.view_stream(STREAM)
                note, events, newest = view.get_note(_NOTE_INPUT), view.get_note(_NOTE_EVENTS), view.last_position()
                if note is None or events is None:
                    return cls()
                recorded, ledgers = json.loads(note), tuple(info for info in view.ledgers() if info.entries)
                return cls(recorded["sha256"], recorded["name"], int(events), newest, ledgers)
        except NotFoundError:
            return cls()
        except OffloaderError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{path}: the demo's notes can't be read", hint=_CLEAN_HINT) from error


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


class Observer:
    """Called at the start of each step and with the progress of appends and offloading; must return quickly. This base
    class prints no output and keeps the newest progress."""

    now: Progress | None = None

    def step(self, text: str) -> None:
        """The step ``text`` starts."""

    def progress(self, now: Progress) -> None:
        """The progress of the current step."""
        self.now = now

    def results(self, result: DemoResult) -> None:
        """All results except Spark's scan are known; Spark is starting."""


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """Result of appending and offloading: events and bytes of this run, the time taken and the requests."""

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
    """Result of a run.

    ``problems``: steps that failed without an effect on others, worst first. ``saving``: of compression, by a sample
    of the largest segment.
    """

    request: DemoRequest
    summary: InputSummary
    events_before: int = 0
    offload: OffloadReport | None = None
    ledgers: list[LedgerInfo] = field(default_factory=list)
    segments: list[SegmentRecord] = field(default_factory=list)
    verification: Verification | None = None
    scan: ScanResult | None = None
    scan_seconds: float = 0.0
    picture: Path | None = None
    saving: Saving | None = None
    problems: list[OffloaderError] = field(default_factory=list)
    removed_objects: int | None = None
    seconds: float = 0.0


def demo_settings(payload_bytes: int) -> Settings:
    """Sizes that divide ``payload_bytes`` into 4 ledgers and 8 segments with different ends."""
    mib = 1024 * 1024
    segment_bytes = max(int(payload_bytes * 0.138), 64 * 1024)
    return Settings.of(
        {
            "ledgers": {"ledger_size_max": max(int(payload_bytes * 0.29), 128 * 1024)},
            "offload": {"segment_size_max": segment_bytes, "part_size": 5 * mib},
        },
        origin="the demo's settings",
    )


def run_demo(request: DemoRequest, observer: Observer, clock: Clock) -> DemoResult:
    """Runs every step. After an interruption the same request resumes.

    Raises:
        InvalidCallError: a broken input (nothing was imported), or the directory has other data.
        FencedError: another run took over.
        OffloaderError: another error stopped the import.
    """
    started_s = clock.monotonic_s()
    _require_usable(Path(request.directory))
    source = open_input(request.input_path, file_format=request.input_format, time_field=request.time_field)
    observer.step(f"Checking {source.name}")
    result = DemoResult(request=request, summary=survey(source))
    with closing(
        open_store(request.url, endpoint_url=request.endpoint_url or None, region=request.region or None, clock=clock)
    ) as store:
        if request.clean:
            observer.step("Removing the earlier run's data")
            result.removed_objects = _clean(request, store)
        imported, committed = _check_fits(request, store, result.summary)
        result.events_before = imported.events
        if imported.events != result.summary.events or committed != imported.newest:
            observer.step(f"Appending to ledgers and offloading to {store.url}")
            result.offload = _Run(result, store, observer, clock).report(source)
        observer.step("Reading all events back from the store")
        _read_back(result, store, clock)
    with _spark_starting(request) as session:
        before_spark_s = clock.monotonic_s()
        if request.picture:
            _try(result, lambda: _draw(result))
        observer.results(result)
        if session is not None:
            observer.step("Scanning with Spark")
            _try(result, lambda: _scan(result, session))
            result.scan_seconds = clock.monotonic_s() - before_spark_s
    result.seconds = clock.monotonic_s() - started_s
    return result


def _try(result: DemoResult, step: Callable[[], None]) -> None:
    try:
        step()
    except OffloaderError as error:
        result.problems.append(error)


def _require_usable(directory: Path) -> None:
    """Raises ``AccessDeniedError`` if the demo's directory isn't writable or can't be created; leaves no files."""
    whole = directory.absolute()
    nearest = next(each for each in (whole, *whole.parents) if each.exists())
    try:
        TemporaryDirectory(dir=nearest).cleanup()
    except OSError as cause:
        raise AccessDeniedError(
            f"the demo's directory {directory} can't be created in {nearest}: {cause.strerror}",
            hint="give another directory with --dir",
        ) from cause


def _check_fits(request: DemoRequest, store: ObjectStore, summary: InputSummary) -> tuple[Imported, Position | None]:
    """The amounts that earlier runs imported and offloaded; raises ``InvalidCallError`` for data of another input."""
    path, committed = request.ledgers_path, None
    imported = Imported.read(path)
    with suppress(NotFoundError):
        committed = load_manifest(store, STREAM).committed_end()
    if imported.events and imported.input_sha256 != summary.sha256:
        raise InvalidCallError(
            f"{path} holds {imported.events:,} events of {imported.input_name}, but {summary.name} is another input",
            hint=_CLEAN_HINT,
        )
    if not imported.events and committed is not None:
        raise InvalidCallError(
            f"{store.url} holds stream {STREAM} up to {committed}, but {path} has no record of it", hint=_CLEAN_HINT
        )
    return imported, committed


def _clean(request: DemoRequest, store: ObjectStore) -> int:
    """Removes the demo's stream from the store, its ledgers and plot; returns the number of objects."""
    removed = 0
    # Delete the catalogue entry last, so that an interrupted removal can be repeated.
    for prefix in (stream_prefix(STREAM), catalog_key(STREAM)):
        while keys := [info.key for info in store.list(prefix).objects]:
            if failures := store.delete(keys):
                raise StoreUnavailableError(
                    f"{store.url}: {len(failures)} of {len(keys)} objects weren't deleted; {failures[0].key}: "
                    f"{failures[0].reason}",
                    hint="repeat the command",
                )
            removed += len(keys)
    for upload in store.list_uploads(stream_prefix(STREAM)):
        store.abort_upload(upload.key, upload.upload_id)
    try:
        for path in (request.ledgers_path, request.picture_path):
            for suffix in ("-wal", "-shm", ".acked", ""):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise AccessDeniedError(f"{request.directory}: can't remove {path.name}: {error.strerror or error}") from error
    return removed


class _Run:
    """Appends and offloads the rest of the input, and waits until all of it is in the store.

    Each batch and the number of events imported so far are committed in one transaction, so that an interrupted run
    resumes exactly.
    """

    def __init__(self, result: DemoResult, store: ObjectStore, observer: Observer, clock: Clock) -> None:
        self._result, self._summary, self._store = result, result.summary, store
        self._observer, self._clock = observer, clock
        self._appended, self._appended_bytes = result.events_before, 0
        # Events before each ledger: maps a position to the number of events up to it.
        self._events_before: dict[int, int] = {}

    def report(self, source: Source) -> OffloadReport:
        before, started_s = requests_of(self._store), self._clock.monotonic_s()
        count = 0
        with open_managed_ledger(
            STREAM,
            ledgers=str(self._result.request.ledgers_path),
            store=self._store,
            settings=demo_settings(self._summary.payload_bytes),
            clock=self._clock,
        ) as topic:
            for ledger in topic.ledgers():
                if ledger.entries:
                    self._events_before[ledger.ledger_id] = count
                    count += ledger.entries
            self._append_all(topic, source)
            self._wait(topic)
        return OffloadReport(
            self._appended - self._result.events_before,
            self._appended_bytes,
            self._clock.monotonic_s() - started_s,
            _requests_since(before, self._store),
        )

    def _append_all(self, topic: ManagedLedger, source: Source) -> None:
        digest = EventDigest(with_times=source.has_times)
        for events in source.events():
            skipped = min(max(self._appended - digest.events, 0), len(events.payloads))
            digest.add(events)
            # Check before the append of the last batch, so that a changed input never counts as complete.
            if digest.events >= self._summary.events:
                self._require_same(digest)
            if skipped < len(events.payloads):
                self._append(topic, Events(events.payloads.slice(skipped), events.times_ms[skipped:]))
        self._require_same(digest)

    def _require_same(self, digest: EventDigest) -> None:
        summary = self._summary
        if (digest.events, digest.hexdigest()) != (summary.events, summary.sha256):
            raise InvalidCallError(f"{summary.name} changed during the run", hint="give --clean and run the demo again")

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
            except StoreUnavailableError:
                now, now_s = self._report(topic), self._clock.monotonic_s()
                if now.committed > committed:
                    committed, since_s = now.committed, now_s
                elif now.mode == Mode.STOPPED.value:
                    raise
                elif now_s - since_s > STALL_S:
                    raise StoreUnavailableError(
                        f"{STREAM}: no commit for {STALL_S:g} s; last error: {now.error or 'none'}",
                        hint="all events are durable in the ledgers; repeat the command to resume",
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
    """Reads the whole stream from the store alone and hashes it in the same way as the input."""
    reader = open_stream_reader(store, STREAM, settings=demo_settings(result.summary.payload_bytes).read)
    result.segments = reader.segments()
    result.ledgers = list(Imported.read(result.request.ledgers_path).ledgers)
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
    largest = max(result.segments, key=lambda each: each.content.data_bytes, default=None)
    if largest is not None:
        with suppress(OffloaderError, FormatError):  # only advice: no reason to fail
            key = largest.object_keys(STREAM)[0]
            result.saving = measure_saving(store, key, largest.content, clock=clock)
    if not found.ok:
        text = (
            f"{store.url}: read {found.events:,} events with SHA-256 {found.sha256} back, but appended "
            f"{found.expected.events:,} with {found.expected.sha256}"
        )
        result.problems.append(CorruptError(text, hint="keep the data and report this"))


def _requests_since(before: Mapping[str, VerbCount], store: ObjectStore) -> dict[str, VerbCount]:
    counts = {}
    for verb, now in requests_of(store).items():
        then = asdict(before.get(verb, VerbCount()))
        counts[verb] = VerbCount(**{name: value - then[name] for name, value in asdict(now).items()})
    return {verb: count for verb, count in counts.items() if count.requests}


def _draw(result: DemoResult) -> None:
    assert result.verification is not None
    summaries = [record.summary for record in result.segments if record.summary is not None]
    shape = StreamTimeline(
        Path(result.summary.name).name,
        _spans([(f"ledger {each.ledger_id}", each.entries, each.size_bytes) for each in result.ledgers]),
        _spans([(f"segment {number}", each.entries, each.data_bytes) for number, each in enumerate(summaries, 1)]),
        result.verification.timeline,
    )
    draw(shape, result.request.picture_path)
    result.picture = result.request.picture_path


def _spans(sizes: list[tuple[str, int, int]]) -> list[Span]:
    stops = accumulate(events for _, events, _ in sizes)
    return [Span(name, stop - events, stop, size) for (name, events, size), stop in zip(sizes, stops, strict=True)]


@contextmanager
def _spark_starting(request: DemoRequest) -> Iterator[WaitForSession | None]:
    """Starts Spark, which takes seconds, in parallel with drawing and printing of the results."""
    if not request.spark:
        yield None
        return
    from offloader.spark.demo_query import starting_session

    with starting_session() as session:
        yield session


def _scan(result: DemoResult, session: WaitForSession) -> None:
    from offloader.spark.demo_query import delays_by_carrier_and_month, entries_by_ledger

    question = entries_by_ledger if result.request.input_path else delays_by_carrier_and_month
    result.scan = question(session, result.request.url, STREAM, result.request.store_options)
