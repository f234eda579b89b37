"""What the serving process shows of itself and of its store: to the HTTP interface, the page and Arrow Flight.

Owns which questions can be asked and how the answers are cut into pages. Must never change anything, nor hold up a
stream: what is known in memory is answered from there, the rest by bounded reads of the store.

Answers are documents with the field names of the command line's ``--json`` (docs/OBSERVING.md): positions are
``"ledger:entry"``, times ms since 1970 UTC. None holds a secret: settings name where secrets are, never what they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from offloader.cleanup.cycle import cleanup_stream
from offloader.cleanup.reconciler import Reconciliation
from offloader.clock import Clock
from offloader.effective_settings import SettingsFile
from offloader.errors import NotFound, OffloaderError
from offloader.ledgers.base import LedgerSource
from offloader.manifest.global_hold import global_hold
from offloader.manifest.log import list_streams
from offloader.picture import StreamShape
from offloader.read.segment_rows import segment_row
from offloader.read.stream_shape import shape_of
from offloader.read.streams import load_stream
from offloader.retention.at_once import at_once
from offloader.retention.cycle import RetentionCycle
from offloader.retention.explain import explain, outcome_facts
from offloader.retention.recorded_state import read_decisions
from offloader.retention.stream_retention import open_retention
from offloader.service.feeds import Problem
from offloader.service.kept import KeptAnswers
from offloader.service.pages import Page, StreamOrder, page_of, place_after, start_after
from offloader.service.recent import RecentErrors
from offloader.service.stream_picture import shape_document
from offloader.status_document import manifest_document, with_manifest
from offloader.store.base import ObjectStore
from offloader.store.retrying import impatient
from offloader.telemetry import namespace_of
from offloader.upkeep import Upkeep

__all__ = ["LIMIT_MAX", "ProcessState", "Readiness", "ServiceView"]

#: Most items of one page.
LIMIT_MAX = 500
#: How long the list of the store's streams is used before it is asked for again.
NAMES_AGE_S_MAX = 10.0
#: The same for what a manifest says of a stream in a list, and of one that is asked for by name.
ROW_AGE_S_MAX = 30.0
ONE_AGE_S_MAX = 3.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process does its work, and what keeps it from it.

    Attributes:
        ready: whether no problem blocks it.
        problems: all there are, those that block first.
    """

    ready: bool
    problems: tuple[Problem, ...]


class ProcessState(Protocol):
    """What is known in memory. Every answer is quick and asks nobody."""

    @property
    def started_ms(self) -> int: ...

    @property
    def file(self) -> SettingsFile:
        """The settings in force."""
        ...

    @property
    def upkeep(self) -> Upkeep | None: ...

    @property
    def recent(self) -> RecentErrors: ...

    def document(self) -> Mapping[str, Any]:
        """The status document; its stream rows have ``feed``, ``active`` and ``method`` too."""
        ...

    def problems(self) -> Sequence[Problem]: ...

    def source_of(self, stream: str) -> LedgerSource | None:
        """The hot tier of a stream that is served here."""
        ...


class ServiceView:
    """Thread-safe.

    Args:
        store: where the streams are; a view reads only.
        clock: for ages.
        process: what is known in memory.
    """

    def __init__(self, store: ObjectStore, *, clock: Clock, process: ProcessState) -> None:
        self._store, self._clock, self._process = impatient(store), clock, process
        self._cycle = RetentionCycle(
            store, clock=clock, settings_of=lambda name: process.file.settings_of(name), source_of=process.source_of
        )
        self._names = KeptAnswers[list[str]](clock, age_s_max=NAMES_AGE_S_MAX)
        self._stored_rows = KeptAnswers[dict[str, Any]](clock, age_s_max=ROW_AGE_S_MAX, kept_max=LIMIT_MAX)

    # --- the process ---------------------------------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        """The process in short: version, times, store, buffer, limits, how many streams are in which mode."""
        document = self._process.document()
        rows: Sequence[Mapping[str, Any]] = document["streams"]
        modes: dict[str, int] = {}
        for row in rows:
            modes[row["mode"]] = modes.get(row["mode"], 0) + 1
        lags = [row["lag"]["seconds"] for row in rows if row["lag"] and row["lag"]["seconds"] is not None]
        readiness = self.readiness()
        return {
            "software": document["software"],
            "pid": document["pid"],
            "now_ms": self._clock.now_ms(),
            "started_ms": self._process.started_ms,
            "ready": readiness.ready,
            "problems": [asdict(each) for each in readiness.problems],
            "store": document["store"],
            "limits": document["limits"],
            "buffer": {
                "bytes": sum(row["buffer"]["bytes"] for row in rows if row["buffer"]),
                "bytes_max": self._process.file.settings_of("").offload.offload_memory_bytes_max,
            },
            "streams": {
                "served": len(rows),
                "modes": modes,
                "stalled": sum(1 for row in rows if row["stalled"]),
                "with_errors": sum(1 for row in rows if row["last_error"]),
                "lag_seconds_max": max(lags, default=None),
            },
        }

    def readiness(self) -> Readiness:
        """What keeps the process, a feed or a stream from its work now."""
        found = sorted(self._process.problems(), key=lambda each: not each.blocks_ready)
        return Readiness(not any(each.blocks_ready for each in found), tuple(found))

    def errors(self, *, stream: str | None = None, limit: int = LIMIT_MAX) -> list[dict[str, Any]]:
        """The newest warnings and errors, the newest first."""
        return [each.as_json() for each in self._process.recent.newest(limit, stream=stream)]

    def status(self) -> Mapping[str, Any]:
        """The status document of the process (``offloader status --status-file`` reads the same)."""
        return self._process.document()

    def config(self, topic: str = "") -> list[dict[str, Any]]:
        """Every effective setting of a topic, or of the process, and where it comes from."""
        values = self._process.file.values_of(topic).values()
        return [asdict(each) for each in sorted(values, key=lambda each: ("." in each.name, each.name))]

    # --- streams -------------------------------------------------------------------------------------------------

    def streams(
        self,
        *,
        order: StreamOrder = StreamOrder.NAME,
        contains: str = "",
        after: str = "",
        limit: int = 100,
        served_only: bool = False,
    ) -> Page[dict[str, Any]]:
        """A page of the streams, those that only the store knows too, as status documents.

        Args:
            contains: only names with this in them, upper and lower case alike.
            after: ``next_after`` of the page before.

        Raises:
            InvalidCall: ``after`` isn't one of this order.
        """
        served = {row["stream"]: dict(row) for row in self._process.document()["streams"]}
        names = set(served) if served_only else set(served) | set(self._stored_names())
        wanted = contains.casefold()
        rows = [
            served.get(name) or {"stream": name, "lag": None, "stalled": None, "last_error": None}
            for name in names
            if wanted in name.casefold()
        ]
        page = page_of(rows, order, after=after, limit=min(limit, LIMIT_MAX))
        return Page(tuple(at_once(self._row, page.items)), page.next_after, page.total)

    def stream(self, name: str) -> dict[str, Any]:
        """One stream's status document, with what its manifest said a moment ago; ``store_error`` where that couldn't
        be asked for a stream that is served here.

        Raises:
            NotFound: neither served here nor in the store.
            OffloaderError: it isn't served here, and the store can't be asked.
        """
        row = self._served_row(name)
        try:
            manifest = self._stored(name, age_s_max=ONE_AGE_S_MAX)
        except OffloaderError as error:
            if row is None:
                raise
            # What the process knows counts most when the store can't be asked.
            unknown = {} if isinstance(error, NotFound) else {"store_error": error.message}
            return self._labelled({**row, **unknown})
        return self._labelled(manifest if row is None else with_manifest(row, manifest))

    def segments(self, name: str, *, after: str = "", limit: int = 100) -> Page[dict[str, Any]]:
        """A page of a stream's segments in the stream's order.

        Args:
            after: ``next_after`` of the page before; empty: the first page.

        Raises:
            NotFound: no such stream.
            InvalidCall: ``after`` isn't a place among segments.
        """
        segments = load_stream(self._store, name).segments.in_order()
        start = start_after(segments, after)
        found = segments[start : start + max(min(limit, LIMIT_MAX), 1)]
        more = start + len(found) < len(segments)
        rows = tuple(segment_row(record, name) for record in found)
        return Page(rows, place_after(found[-1]) if more else None, len(segments))

    def ledgers(self, name: str) -> list[dict[str, Any]]:
        """The hot tier's ledgers of a stream that is served here; none of others."""
        source = self._process.source_of(name)
        return [] if source is None else [asdict(each) for each in source.ledgers()[-LIMIT_MAX:]]

    def shape(self, name: str) -> dict[str, Any]:
        """The readable segments against the ledgers in them and time, for a picture (``shape_document``); empty lists
        where nothing is readable yet.

        Raises:
            NotFound: no such stream.
        """
        state = load_stream(self._store, name)
        try:
            return shape_document(shape_of(state))
        except NotFound:
            return shape_document(StreamShape(name, [], [], []))

    # --- retention -----------------------------------------------------------------------------------------------

    def retention(self, name: str) -> dict[str, Any]:
        """What the next cycle would do and why: facts, and the same as lines of text (``words``).

        Raises: as ``RetentionCycle.plan``.
        """
        outcome = self._cycle.plan(name)
        latest = None if self._process.upkeep is None else self._process.upkeep.retention.latest.get(name)
        return {
            **outcome_facts(outcome, done=False),
            "words": list(explain(outcome)),
            "latest_cycle_ms": None if latest is None else latest.at_ms,
            "latest_cycle_error": None if latest is None or latest.error is None else str(latest.error),
        }

    def decisions(self, name: str) -> list[dict[str, Any]]:
        """The recorded decisions about a stream, the newest first.

        Raises:
            NotFound: no such stream or topic.
        """
        retention = open_retention(self._store, name, clock=self._clock)
        return [dict(each) for each in read_decisions(retention, retention.place())]

    def recent_decisions(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest cycles of all streams in this process, the newest first: what was decided, in words."""
        latest = {} if self._process.upkeep is None else self._process.upkeep.retention.latest
        newest = sorted(latest.items(), key=lambda each: each[1].at_ms, reverse=True)[: min(limit, LIMIT_MAX)]
        found = []
        for stream, cycle in newest:
            decision = None if cycle.outcome is None else cycle.outcome.decision
            found.append(
                {
                    "stream": stream,
                    "at_ms": cycle.at_ms,
                    "why": None if decision is None else decision.why,
                    "bytes": None if cycle.outcome is None else cycle.outcome.bytes_truncated,
                    "overridden": [] if decision is None else [each.name for each in decision.overridden],
                    "error": None if cycle.error is None else cycle.error.message,
                    "hint": "" if cycle.error is None else cycle.error.hint,
                }
            )
        return found

    def subscribers(self, name: str) -> list[dict[str, object]]:
        """Who consumes a stream, how far each is and whether it holds data back."""
        settings = self._process.file.settings_of(name).retention
        retention = open_retention(self._store, name, source_of=self._process.source_of, clock=self._clock)
        timeout_ms = int(settings.subscriber_timeout_minutes * 60_000) or None
        return [each.as_json() for each in retention.subscribers(timeout_ms=timeout_ms)]

    # --- cleanup -------------------------------------------------------------------------------------------------

    def cleanup_plan(self, name: str, *, limit: int = LIMIT_MAX) -> dict[str, Any]:
        """What the next round of cleanup would do to a stream, segment by segment."""
        settings = self._process.file.settings_of(name)
        report = cleanup_stream(self._store, name, clock=self._clock, settings=settings, dry_run=True)
        plan = report.plan
        lines = [] if plan is None else [each.as_json() for each in itertools.islice(plan.lines(), limit + 1)]
        stop = global_hold(self._store)
        return {
            "stream": name,
            "held": report.held,
            "stopped": None if stop is None else {"by": stop.by, "reason": stop.reason},
            "is_deleted": report.is_deleted,
            "large": plan is not None and plan.large,
            "lines": lines[:limit],
            "is_whole": len(lines) <= limit,
            "pending_batches": len(report.pending),
        }

    def orphans(self) -> dict[str, Any]:
        """What the newest search of this process left, by owner, and when cleanup and that search ended last."""
        upkeep = self._process.upkeep
        if upkeep is None:
            return {"left": None, "jobs": {}}
        jobs = {
            name: {"at_ms": run.at_ms, "error": None if run.error is None else str(run.error)}
            for name, run in upkeep.latest.items()
        }
        return {"left": {owner: asdict(left) for owner, left in upkeep.leftovers.items()}, "jobs": jobs}

    def orphans_of(self, name: str, *, limit: int = 100) -> list[dict[str, object]]:
        """Things below a stream's name that no manifest needs, as a dry run finds them."""
        search = Reconciliation(
            self._store, name, clock=self._clock, settings=self._process.file.settings_of(name).manifest, delete=False
        )
        now_ms = self._clock.now_ms()
        return [each.as_json(now_ms) for each in itertools.islice(search.leftovers(), min(limit, LIMIT_MAX))]

    # --- inside --------------------------------------------------------------------------------------------------

    def _served_row(self, name: str) -> dict[str, Any] | None:
        rows = self._process.document()["streams"]
        return next((dict(row) for row in rows if row["stream"] == name), None)

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A page's row; of what this process doesn't know itself, the manifest tells."""
        name: str = row["stream"]
        if row.get("bytes_offloaded") is not None:
            return self._labelled(row)
        try:
            stored = self._stored(name, age_s_max=ROW_AGE_S_MAX)
        except OffloaderError as error:
            # One that is served and isn't in the store yet has nothing there.
            found = row if "mode" in row else {"stream": name, "mode": None, "last_error": error.message}
            return self._labelled(found)
        return self._labelled(with_manifest(row, stored) if "mode" in row else stored)

    def _stored(self, name: str, *, age_s_max: float) -> dict[str, Any]:
        return self._stored_rows.get(
            name, lambda: manifest_document(load_stream(self._store, name)), age_s_max=age_s_max
        )

    def _labelled(self, row: Mapping[str, Any]) -> dict[str, Any]:
        served = {"namespace": namespace_of(row["stream"]), "feed": None, "active": False}
        return {**served, **row}

    def _stored_names(self) -> list[str]:
        """What the store's catalogue lists, at most ``NAMES_AGE_S_MAX`` old."""
        return self._names.get("", lambda: list(list_streams(self._store)))
