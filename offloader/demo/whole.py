"""The whole demo: one step after another, and what came out of each.

Owns which step may fail without losing the others. Must never print: an observer hears of steps and progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from offloader.clock import Clock
from offloader.demo import place as places
from offloader.demo.input import InputSummary, open_input, survey
from offloader.demo.place import STREAM, DemoPlace
from offloader.demo.run import (
    OffloadReport,
    Progress,
    Verification,
    append_and_offload,
    demo_settings,
    is_offloaded,
    ledgers_of,
    verify,
)
from offloader.errors import Corrupt, OffloaderError
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import SegmentRecord
from offloader.picture import Span, StreamShape, draw
from offloader.read.reader import open_reader
from offloader.store.base import ObjectStore
from offloader.store.open import open_store

if TYPE_CHECKING:
    from offloader.spark.demo_query import ScanResult

__all__ = ["DemoObserver", "DemoRequest", "DemoResult", "run_demo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """What to run. Empty texts mean: the default store, the flights, a format by the file's suffix."""

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
        """What the store needs besides its URL, by the names that ``open_store`` has for them."""
        given = {"endpoint_url": self.endpoint_url, "region": self.region}
        return {name: value for name, value in given.items() if value}


class DemoObserver(Protocol):
    """Hears what the demo is doing; must return quickly."""

    def step(self, text: str) -> None:
        """A step begins."""
        ...

    def progress(self, now: Progress) -> None:
        """Appending and offloading got further."""
        ...


@dataclass(slots=True, kw_only=True)
class DemoResult:
    """What came out. ``problems``: steps that failed without spoiling the others, the gravest first."""

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


def run_demo(request: DemoRequest, observer: DemoObserver, clock: Clock) -> DemoResult:
    """Looks through the input, appends and offloads what isn't there yet, reads it back, draws it, scans it.

    Raises:
        InvalidCall: a broken input (nothing was imported), or other data is there already.
        OffloaderError: whatever stopped the import; the same request goes on where it was.
    """
    started_s = clock.monotonic_s()
    place = DemoPlace.at(request.directory, request.store_url, request.endpoint_url)
    places.require_usable(place)
    source = open_input(request.input_path, file_format=request.input_format, time_field=request.time_field)
    observer.step(f"Looking through {source.name}")
    result = DemoResult(request=request, place=place, summary=survey(source))
    store = open_store(
        place.store_url, endpoint_url=request.endpoint_url or None, region=request.region or None, clock=clock
    )
    try:
        if request.clean:
            observer.step("Removing the earlier run's data")
            result.removed_objects = places.clean(place, store)
        imported = places.check_fits(place, store, result.summary)
        result.events_before = imported.events
        if not is_offloaded(place, store, result.summary, imported):
            observer.step(f"Appending to ledgers and offloading to {store.url}")
            result.offload = append_and_offload(place, store, source, result.summary, imported, observer, clock)
        observer.step("Reading everything back from the store")
        _look_back(result, store, clock)
    finally:
        store.close()
    if request.picture:
        _try(result, lambda: _draw(result))
    if request.spark:
        observer.step("Scanning with Spark")
        _try(result, lambda: _scan(result, clock))
    result.seconds = clock.monotonic_s() - started_s
    return result


def _look_back(result: DemoResult, store: ObjectStore, clock: Clock) -> None:
    settings = demo_settings(result.summary.payload_bytes)
    result.segments = open_reader(store, STREAM, settings=settings.read).segments()
    result.ledgers = ledgers_of(result.place)
    result.verification = found = verify(store, result.summary, settings, clock)
    if not found.ok:
        result.problems.append(
            Corrupt(
                f"{store.url}: {found.events:,} events with SHA-256 {found.sha256} were read back, "
                f"appended were {found.expected.events:,} with {found.expected.sha256}",
                hint="keep the data and report this",
            )
        )


def _try(result: DemoResult, step: Callable[[], None]) -> None:
    """A step that needs something optional: without it the rest still counts."""
    try:
        step()
    except OffloaderError as error:
        result.problems.append(error)


def _draw(result: DemoResult) -> None:
    assert result.verification is not None
    events = 0
    ledgers = []
    for info in result.ledgers:
        ledgers.append(Span(f"ledger {info.ledger_id}", events, events + info.entries, info.size_bytes))
        events += info.entries
    events = 0
    segments = []
    for number, record in enumerate(result.segments, 1):
        assert record.summary is not None, "readable segments are complete"
        stop = events + record.summary.entries
        segments.append(Span(f"segment {number}", events, stop, record.summary.data_bytes))
        events = stop
    shape = StreamShape(Path(result.summary.name).name, ledgers, segments, result.verification.timeline)
    draw(shape, result.place.picture_path)
    result.picture = result.place.picture_path


def _scan(result: DemoResult, clock: Clock) -> None:
    from offloader.spark.demo_query import delays_by_carrier_and_month, entries_by_ledger

    started_s = clock.monotonic_s()
    question = entries_by_ledger if result.request.input_path else delays_by_carrier_and_month
    result.scan = question(result.place.store_url, STREAM, result.request.store_options)
    result.scan_seconds = clock.monotonic_s() - started_s
