"""Queries and commands behind HTTP, the dashboard and Arrow Flight: read-only views of a process and its store, and
operations on its streams."""

from __future__ import annotations

import heapq
import itertools
import json
import logging
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Generic, TypeVar

from formats.entries import Position
from offloader.errors import InvalidCallError, NotFoundError, OffloaderError, parsing
from offloader.gc.plan import CleanupPlan
from offloader.gc.reconcile import Reconciliation
from offloader.gc.sweep import cleanup_stream
from offloader.groups.group_service import open_reader_groups
from offloader.inspect.inspect import segment_row, timeline_of
from offloader.maintenance import Maintenance, awaited_approval, plan_changed
from offloader.manifest.log import list_streams
from offloader.manifest.names import NamedStreams, named_streams, resolve_name, searched_name, stream_name
from offloader.manifest.protection import global_hold
from offloader.manifest.segment_table import SegmentRecord
from offloader.monitor import manifest_document, trouble_of, with_manifest
from offloader.parallel_map import at_once
from offloader.plot import StreamTimeline
from offloader.read.reader import load_stream
from offloader.retention.cycle import RetentionCycle
from offloader.retention.explain import explain, outcome_facts
from offloader.retention.state import read_decisions
from offloader.retention.subscribers import StreamRetention, open_retention
from offloader.runtime.clock import Clock
from offloader.service.answers import ASKERS_MAX, STORE_WAIT_S_MAX, KeptAnswers
from offloader.service.auth import without_places
from offloader.service.positions import cut_of, position_of
from offloader.service.process import ServingProcess
from offloader.service.streams import ProviderProblem
from offloader.service.truncation import truncate
from offloader.service.view_documents import (
    PARTITIONS_MAX,
    entry_page,
    graph_of,
    joint_plan,
    numbered,
    served_segments,
    timeline_document,
    topic_plan,
    topic_row,
)
from offloader.store.base import ObjectStore
from offloader.store.wrappers import with_short_retries
from offloader.telemetry.recorder import LastHour, namespace_of
from offloader.times import time_ms_of
from offloader.write.backfill_service import BackfillService

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[_Item]):
    """One page of a list.

    Attributes:
        items: the items, at most as many as requested.
        next_after: start of the next page; ``None``: this is the last page.
        total: current number of items on all pages.
    """

    items: tuple[_Item, ...]
    next_after: str | None
    total: int


class StreamOrder(StrEnum):
    """Order of a list of streams."""

    NAME = "name"
    #: The largest lag first.
    LAG = "lag"
    #: Stalled or failing ones first, then by lag.
    TROUBLE = "trouble"
    #: The highest rate first.
    RATE = "rate"


_Key = tuple[int, float, int, str]


def page_of(
    rows: Sequence[Mapping[str, Any]], order: StreamOrder, *, after: str, limit: int
) -> Page[Mapping[str, Any]]:
    """The rows after ``after`` in an order.

    Args:
        rows: of a status document, in any order.
        after: ``next_after`` of the previous page; empty: the first page.
        limit: maximum number of rows, at least 1.

    Raises:
        InvalidCallError: ``after`` is not valid for this order.
    """
    place = _place(after, order)
    rest = rows if place is None else [row for row in rows if _key(row, order) > place]
    # One more than requested shows whether another page follows.
    found = heapq.nsmallest(max(limit, 1) + 1, rest, key=lambda row: _key(row, order))
    items = tuple(found[: max(limit, 1)])
    last = json.dumps([order.value, *_key(items[-1], order)]) if len(found) > len(items) else None
    return Page(items, last, len(rows))


def _key(row: Mapping[str, Any], order: StreamOrder) -> _Key:
    name = str(row["stream"])
    if order is StreamOrder.NAME:
        return 0, 0.0, 0, name
    if order is StreamOrder.RATE:
        return 0, -float(row.get("bytes_per_second") or 0), 0, name
    lag = row.get("lag") or {}
    trouble = 0 if order is StreamOrder.TROUBLE and trouble_of(row) else 1
    return trouble, -float(lag.get("seconds") or 0), -int(lag.get("bytes") or 0), name


def _place(after: str, order: StreamOrder) -> _Key | None:
    if not after:
        return None
    with suppress(ValueError, TypeError, OverflowError, RecursionError):
        given, trouble, seconds, size_bytes, name = json.loads(after)
        if given == order.value and isinstance(name, str):
            return int(trouble), float(seconds), int(size_bytes), name
    raise InvalidCallError(
        f"{after[:100]!r} is not a place in the order {order.value}", hint="start with the first page"
    )


def start_after(segments: Sequence[SegmentRecord], after: str) -> int:
    """Index of the first segment after a place; if the place's segment is gone, the first one that begins there.

    Args:
        segments: in the stream's order.
        after: a segment's begin and uuid, separated by a space; empty: the beginning.

    Raises:
        InvalidCallError: ``after`` is not a valid place.
    """
    if not after:
        return 0
    begin, _, uuid = after.partition(" ")
    with parsing(f"{ascii(after)[:100]} is not a place among segments", hint="start with the first page"):
        position = Position.parse(begin)
    start, stop = (side(segments, position, key=lambda record: record.begin) for side in (bisect_left, bisect_right))
    return next((number + 1 for number in range(start, stop) if str(segments[number].uuid) == uuid), start)


#: Maximum number of digits of a partition number from a client.
_PARTITION_DIGITS_MAX = 10
#: Maximum number of items of one page.
LIMIT_MAX = 500
#: Maximum age of the cached list of the store's streams.
NAMES_AGE_S_MAX = 10.0
#: Maximum age of a manifest's cached status, for a stream in a list and for a single stream.
ROW_AGE_S_MAX = 30.0
ONE_AGE_S_MAX = 3.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of the process, with its problems.

    Attributes:
        ready: whether no problem blocks readiness.
        problems: all of them, blocking ones first.
    """

    ready: bool
    problems: tuple[ProviderProblem, ...]


class ServiceView:
    """Queries of a process and its store. Thread-safe.

    Args:
        store: of the streams; only read.
        last_hour: bytes offloaded by the process; default: none.
    """

    #: Filter for streams in answers about several streams; ``None``: no filter.
    sees: Callable[[str], bool] | None = None
    told: Callable[[Any], Any] = staticmethod(lambda answer: answer)

    def __init__(
        self, store: ObjectStore, *, clock: Clock, process: ServingProcess, last_hour: LastHour | None = None
    ) -> None:
        self._store, self._clock, self._process = with_short_retries(store), clock, process
        self._last_hour = last_hour or LastHour(clock)
        self._streams = streams = process.streams
        self._cycle = RetentionCycle(store, clock=clock, settings_of=streams.settings_of, source_of=streams.source_of)
        threads = ThreadPoolExecutor(ASKERS_MAX, thread_name_prefix="offloader-overview")
        self._names = KeptAnswers[list[str]](threads, clock, is_away=self._store_outage)
        self._rows = KeptAnswers[dict[str, Any] | NotFoundError](
            threads, clock, is_away=self._store_outage, kept_max=LIMIT_MAX
        )

    def limited(self, sees: Callable[[str], bool]) -> ServiceView:
        """This view limited to the streams that ``sees`` accepts. Queries about a single stream are checked by the
        caller."""
        found = copy(self)
        found.sees, found.told = sees, without_places
        return found

    def _shows(self, stream: str) -> bool:
        return self.sees is None or (bool(stream) and self.sees(stream))

    def overview(self) -> dict[str, Any]:
        """Overview of the process: version, times, store, buffer, limits, streams by mode, the last hour, and cleanups
        that need approval. From memory, without a store request."""
        document = self.status()
        rows: Sequence[Mapping[str, Any]] = document["streams"]
        lags = [row["lag"]["seconds"] for row in rows if row["lag"] and row["lag"]["seconds"] is not None]
        readiness, upkeep = self.readiness(), self._process.upkeep
        return {
            "software": document["software"],
            "pid": document["pid"],
            "now_ms": self._clock.now_ms(),
            "seen_ms": document["written_ms"],
            "started_ms": self._process.started_ms,
            "ready": readiness.ready,
            "problems": [asdict(each) for each in readiness.problems],
            "store": document["store"],
            "health": self.told(self._process.health()),
            "limits": document["limits"],
            "buffer": {
                "bytes": sum(row["buffer"]["bytes"] for row in rows if row["buffer"]),
                "bytes_max": self._streams.settings_of("").offload.offload_memory_size_max,
            },
            "streams": {
                "served": len(rows),
                "modes": dict(Counter(row["mode"] for row in rows)),
                "stalled": sum(1 for row in rows if row["stalled"]),
                "disconnected": sum(1 for row in rows if row["disconnected"]),
                "with_errors": sum(1 for row in rows if row["last_error"]),
                "lag_seconds_max": max(lags, default=None),
            },
            "last_hour": (self._last_hour if self.sees is None else LastHour(self._clock)).document(),
            "awaiting_approval": [
                asdict(each)
                for each in (() if upkeep is None else upkeep.awaited_approvals)
                if self._shows(each.stream)
            ],
        }

    def readiness(self) -> Readiness:
        """Current problems of the process, its providers and streams."""
        found = sorted(self._process.problems(), key=lambda each: not each.blocks_ready)
        # A problem of another component may name any stream.
        shown = [each for each in found if self._shows(each.where.partition("stream ")[2])]
        problems = tuple(replace(each, what=self.told(each.what), hint=self.told(each.hint)) for each in shown)
        return Readiness(not any(each.blocks_ready for each in found), problems)

    def errors(self, *, stream: str | None = None, limit: int = LIMIT_MAX) -> list[dict[str, Any]]:
        """The newest warnings and errors, the newest first; ``stream``: only of that stream or topic."""
        found = [each for each in self._process.recent.newest() if self._shows(each.stream)]
        wanted = None if stream is None else resolve_name(stream, {each.stream for each in found}).streams
        rows = [asdict(each) for each in found if wanted is None or each.stream in wanted][:limit]
        return [{**row, "message": self.told(row["message"]), "hint": self.told(row["hint"])} for row in rows]

    def status(self) -> Mapping[str, Any]:
        """The status document of the process (as ``offloader status --status-file`` reads it)."""
        document = self._process.document()
        if self.sees is None:
            return document
        # The settings contain topics and sources of tokens.
        rows = [row for row in document["streams"] if self._shows(row["stream"])]
        found: Mapping[str, Any] = self.told({**document, "settings": {}, "streams": rows})
        return found

    def config(self, topic: str = "") -> list[dict[str, Any]]:
        """Every effective setting of a topic, or of the process, with its source."""
        values = self._streams.file.values_of(stream_name(topic)).values()
        return sorted((each.as_json() for each in values), key=lambda row: str(row["name"]))

    def streams(
        self,
        *,
        order: StreamOrder = StreamOrder.NAME,
        contains: str = "",
        after: str = "",
        limit: int = 100,
        served_only: bool = False,
    ) -> Page[dict[str, Any]]:
        """A page of the streams as status documents, including streams that only the store has.

        Args:
            contains: only names with this substring, case-insensitive; also of a topic's name, ``persistent://...``.
            after: ``next_after`` of the previous page.
            served_only: only streams of this process, from memory, without a store request.

        Raises:
            InvalidCallError: ``after`` is not valid for this order.
        """
        deadline_s = self._clock.monotonic_s() + STORE_WAIT_S_MAX
        served = {row["stream"]: dict(row) for row in self.status()["streams"]}
        names = set(served)
        if not served_only:
            ask = partial(list_streams, self._store)
            names.update(self._names.get("", ask, age_s_max=NAMES_AGE_S_MAX, deadline_s=deadline_s))
        wanted = searched_name(contains).casefold()
        rows = [
            served.get(name) or {"stream": name, "lag": None, "stalled": None, "last_error": None}
            for name in names
            if wanted in name.casefold() and self._shows(name)
        ]
        page = page_of(rows, order, after=after, limit=min(limit, LIMIT_MAX))
        shown = (
            map(self._remembered, page.items) if served_only else at_once(partial(self._row, deadline_s), page.items)
        )
        return Page(tuple(shown), page.next_after, page.total)

    def stream(self, name: str, *, served_only: bool = False) -> dict[str, Any]:
        """One stream's status document, with its manifest's recent state; with ``store_error`` if the store doesn't
        respond for a stream that is served here. For a topic with partitions: ``topic_row``.

        Args:
            served_only: only the status in this process, from memory, without a store request.

        Raises:
            NotFoundError: neither served here nor, unless ``served_only``, in the store.
            OffloaderError: it isn't served here, and the store doesn't respond.
            InvalidCallError: a topic has more than ``PARTITIONS_MAX`` partitions.
        """
        served = {row["stream"]: row for row in self._process.document()["streams"]}
        try:
            return self._one_stream(name, served.get(name), served_only=served_only)
        except OffloaderError as error:
            partitions = served_segments(name, served) or dict(resolve_name(name, served).partitions)
            if isinstance(error, NotFoundError) and not served_only:
                partitions |= self._named(name).partitions
            if not partitions:
                raise
        named = NamedStreams(name, dict(sorted(partitions.items())))
        rows = at_once(lambda each: self._one_stream(each, served.get(each), served_only=served_only), named.streams)
        return topic_row(name, numbered(named.partitions, rows))

    def _one_stream(self, name: str, served: Mapping[str, Any] | None, *, served_only: bool) -> dict[str, Any]:
        if served_only:
            if served is None:
                raise NotFoundError(
                    f"stream {name} isn't offloaded by this process", hint="list the streams of this process"
                )
            return self._remembered(served)
        try:
            manifest = self._stored(name, self._clock.monotonic_s() + STORE_WAIT_S_MAX, age_s_max=ONE_AGE_S_MAX)
        except OffloaderError as error:
            if served is None:
                raise
            # The process's status matters most while the store doesn't respond.
            unknown = {} if isinstance(error, NotFoundError) else {"store_error": error.message}
            return self._labelled({**served, **unknown})
        return self._labelled(manifest if served is None else with_manifest(served, manifest))

    def _named(self, name: str) -> NamedStreams:
        """The streams of a name. Raises ``InvalidCallError``: too many partitions for one answer."""
        named = named_streams(self._store, name)
        if len(named.partitions) > PARTITIONS_MAX:
            named.require_one(f"an answer is of at most {PARTITIONS_MAX}")
        return named

    def segments(self, name: str, *, after: str = "", limit: int = 100) -> Page[dict[str, Any]]:
        """A page of a stream's segments in the stream's order; of a topic's, one partition after the other.

        Args:
            after: ``next_after`` of the previous page; empty: the first page.

        Raises:
            NotFoundError: no such stream.
            InvalidCallError: ``after`` isn't a place among segments, or a topic has more than ``PARTITIONS_MAX``
                partitions.
        """
        named = self._named(name)
        # For a topic the place is preceded by the partition's number.
        at, _, place = after.partition(" ") if named.partitions and after else ("0", "", after)
        if not at.isdecimal() or len(at) > _PARTITION_DIGITS_MAX:
            raise InvalidCallError(
                f"{ascii(after)[:100]} is not a place among segments", hint="start with the first page"
            )
        rows: list[dict[str, Any]] = []
        wanted, total, left, last = max(min(limit, LIMIT_MAX), 1), 0, 0, ""
        states = at_once(partial(load_stream, self._store), named.streams)
        for number, state in zip(named.partitions or (0,), states, strict=True):
            segments = state.segments.in_order()
            total += len(segments)
            if number < int(at):
                continue
            start = start_after(segments, place if number == int(at) else "")
            found = segments[start : start + wanted - len(rows)]
            left += len(segments) - start - len(found)
            of = {"stream": state.stream, "partition": number} if named.partitions else {}
            rows += [{**of, **segment_row(record, state.stream)} for record in found]
            if found:
                last = f"{found[-1].begin} {found[-1].uuid}"
                last = f"{number} {last}" if named.partitions else last
        return Page(tuple(rows), last if left else None, total)

    def entries(
        self, name: str, *, first: str = "", since: str = "", until: str = "", after: str = "", limit: int = 100
    ) -> tuple[list[dict[str, Any]], str | None]:
        """A page of entries, of the hot tier too if the stream is served here; and the place of the next page.

        Args:
            first: a position; since, until: in the forms of the command line; empty: not given.
            after: place of the page; empty: the first one.

        Raises: as ``entry_page`` and ``time_ms_of``.
        """
        now_ms = self._clock.now_ms()
        return entry_page(
            *(self._store, name, self._streams.source_of, self._streams.settings_of),
            first=position_of(first, "from") if first else None,
            from_ms=time_ms_of(since, option="since", now_ms=now_ms) if since else None,
            to_ms=time_ms_of(until, option="until", now_ms=now_ms) if until else None,
            after=after,
            limit=min(limit, LIMIT_MAX),
        )

    def ledgers(self, name: str) -> list[dict[str, Any]]:
        """The hot tier's ledgers of a stream that is served here; none of others. Of a topic with partitions: of those
        that are served here, one after the other, each with its ``stream`` and ``partition``."""

        def of(stream: str) -> list[dict[str, Any]]:
            source = self._streams.source_of(stream)
            return [] if source is None else [asdict(each) for each in source.ledgers()[-LIMIT_MAX:]]

        parts = resolve_name(name, [row["stream"] for row in self._process.document()["streams"]]).partitions.items()
        return [{**row, "stream": each, "partition": number} for number, each in parts for row in of(each)] or of(name)

    def timeline(self, name: str) -> dict[str, Any]:
        """Readable segments over their ledgers and time, for a plot (``timeline_document``); empty lists if no segment
        is readable yet. Of a topic with partitions: one of each, in ``partitions``.

        Raises:
            NotFoundError: no such stream.
        """
        named = self._named(name)
        if named.partitions:
            return {"partitions": numbered(named.partitions, at_once(self._timeline_of, named.streams))}
        return self._timeline_of(name)

    def graph(self, name: str) -> dict[str, Any]:
        """As ``graph_of``."""
        return graph_of(self._store, name)

    def _timeline_of(self, name: str) -> dict[str, Any]:
        state = load_stream(self._store, name)
        with suppress(NotFoundError):
            return timeline_document(timeline_of(state))
        return timeline_document(StreamTimeline(name, [], [], []))

    def retention(self, name: str) -> dict[str, Any]:
        """The next cycle's decision with its reasons: facts, and the same as lines of text (``words``).

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

        Raises ``NotFoundError``: no such stream or topic.
        """
        retention = open_retention(self._store, name, clock=self._clock)
        return [dict(each) for each in read_decisions(retention, retention.scope())]

    def recent_decisions(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest cycles of all streams in this process, the newest first, as text."""
        latest = {} if self._process.upkeep is None else self._process.upkeep.retention.latest
        shown = [each for each in latest.items() if self._shows(each[0])]
        shown.sort(key=lambda each: each[1].at_ms, reverse=True)
        return [
            {
                "stream": stream,
                "at_ms": cycle.at_ms,
                "why": None if cycle.outcome is None else cycle.outcome.why,
                "bytes": None if cycle.outcome is None else cycle.outcome.bytes_truncated,
                "overridden": [] if decision is None else [each.name for each in decision.overridden],
                "error": None if cycle.error is None else cycle.error.message,
                "hint": "" if cycle.error is None else cycle.error.hint,
            }
            for stream, cycle in shown[: min(limit, LIMIT_MAX)]
            for decision in [None if cycle.outcome is None else cycle.outcome.decision]
        ]

    def subscribers(self, name: str) -> list[dict[str, object]]:
        """A stream's subscribers, with their positions and whether they hold back deletion."""
        timeout_ms = int(self._streams.settings_of(name).retention.subscriber_timeout * 1000) or None
        retention = open_retention(self._store, name, source_of=self._streams.source_of, clock=self._clock)
        return [each.as_json() for each in retention.subscribers(timeout_ms=timeout_ms)]

    def cleanup_plan(self, name: str, *, limit: int = LIMIT_MAX) -> dict[str, Any]:
        """The next cleanup run's effect on a stream, segment by segment. Of a topic with partitions: ``topic_plan``."""
        named = self._named(name)
        if named.partitions:
            plans = at_once(partial(self._cleanup_plan, limit=limit), named.streams)
            return topic_plan(name, numbered(named.partitions, plans), limit=limit)
        return self._cleanup_plan(name, limit=limit)

    def _cleanup_plan(self, name: str, *, limit: int) -> dict[str, Any]:
        settings = self._streams.settings_of(name)
        report = cleanup_stream(self._store, name, clock=self._clock, settings=settings, dry_run=True)
        plan = report.plan
        lines = [] if plan is None else [each.as_json() for each in itertools.islice(plan.lines(), limit + 1)]
        stop = global_hold(self._store)
        return {
            "stream": name,
            "plan": None if plan is None else plan.identity,
            "segments": 0 if plan is None else plan.doomed_segments(),
            "bytes": 0 if plan is None else plan.doomed_bytes(),
            "bytes_stored": 0 if plan is None else plan.state.sums.object_bytes,
            "deletes": self._process.upkeep is not None and settings.cleanup.delete,
            "grace_seconds": settings.cleanup.grace_period,
            "held": report.held,
            "stopped": None if stop is None else {"by": stop.by, "reason": stop.reason},
            "is_deleted": report.is_deleted,
            "large": plan is not None and plan.large,
            "awaiting_approval": (None if plan is None or settings.cleanup.allow_large_delete else self._awaited(plan)),
            "lines": lines[:limit],
            "is_whole": len(lines) <= limit,
            "pending_batches": len(report.pending),
        }

    def _awaited(self, plan: CleanupPlan) -> dict[str, Any] | None:
        found = awaited_approval(self._store, plan)
        hint = (
            f"`offloader cleanup run {plan.state.stream} --allow-large --apply`, or cleanup.allow_large_delete = true"
        )
        return None if found is None else {**asdict(found), "hint": hint}

    def orphans(self) -> dict[str, Any]:
        """Orphans that this process's newest search left, by owner, and the ends of the last cleanup and search."""
        upkeep = self._process.upkeep
        if upkeep is None or self.sees is not None:  # the numbers cover the whole store
            return {"left": None, "jobs": {}}
        return {
            "left": {owner: asdict(left) for owner, left in upkeep.leftovers.items()},
            "jobs": {
                name: {"at_ms": run.at_ms, "error": None if run.error is None else str(run.error)}
                for name, run in upkeep.latest.items()
            },
        }

    def orphans_of(self, name: str, *, limit: int = 100) -> list[dict[str, object]]:
        """Orphaned objects under the stream's prefix, or those of a topic's partitions, from a dry run."""
        now_ms = self._clock.now_ms()
        found = (
            each.as_json(now_ms)
            for stream in self._named(name).streams
            for each in Reconciliation(
                self._store,
                stream,
                clock=self._clock,
                settings=self._streams.settings_of(stream).manifest,
                delete=False,
            ).leftovers()
        )
        return list(itertools.islice(found, min(limit, LIMIT_MAX)))

    def _remembered(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A page's row of a stream that is served here, without a request to the store."""
        stored = None if row["bytes_offloaded"] is not None else self._rows.kept(row["stream"])
        return self._labelled(with_manifest(row, stored) if isinstance(stored, dict) else row)

    def _row(self, deadline_s: float, row: Mapping[str, Any]) -> dict[str, Any]:
        """A page's row; the manifest fills in what this process doesn't know."""
        name: str = row["stream"]
        if row.get("bytes_offloaded") is not None:
            return self._labelled(row)
        try:
            stored = self._stored(name, deadline_s, age_s_max=ROW_AGE_S_MAX)
        except OffloaderError as error:
            # A served stream may not be in the store yet.
            return self._labelled(row if "mode" in row else {"stream": name, "mode": None, "last_error": error.message})
        return self._labelled(with_manifest(row, stored) if "mode" in row else stored)

    def _stored(self, name: str, deadline_s: float, *, age_s_max: float) -> dict[str, Any]:
        ask = partial(_manifest_of, self._store, name)
        found = self._rows.get(name, ask, age_s_max=age_s_max, deadline_s=deadline_s)
        if isinstance(found, NotFoundError):
            raise NotFoundError(found.message, hint=found.hint)
        return found

    def _store_outage(self) -> str:
        store = self._process.health()["store"]
        return f"the store doesn't answer: {store['why']}" if store and store["up"] is False else ""

    def _labelled(self, row: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"namespace": namespace_of(row["stream"]), "feed": None, "active": False, **row}
        return {**found, **self.told({name: each for name, each in found.items() if name != "stream"})}


def _manifest_of(store: ObjectStore, name: str) -> dict[str, Any] | NotFoundError:
    # Cache "not found" too, because a page requests all of its idle topics repeatedly.
    try:
        return manifest_document(load_stream(store, name))
    except NotFoundError as error:
        return error


_log = logging.getLogger("offloader.service.commands")

#: Counters of one cleanup round.
_SWEPT = ("retired", "released", "purged", "deleted_objects", "deleted_bytes")


class ServiceControl:
    """Executes commands. Thread-safe. ``store``: of the streams, open for writing."""

    def __init__(self, store: ObjectStore, *, clock: Clock, process: ServingProcess) -> None:
        self._store, self._clock, self._process = store, clock, process
        self.groups = open_reader_groups(store, source_of=process.streams.source_of, clock=clock)

    def offload(self, name: str, *, until: str = "", timeout_s: float, by: str) -> dict[str, Any]:
        """Closes and completes the current segment of a stream that is served here, and waits for it.

        Of a topic with partitions: of all that are served here, within the same limit, in ``partitions``.

        Args:
            until: last entry to offload; default: the newest one now.
            timeout_s: limit of the wait; offloading continues after it.
            by: the caller, for the log.

        Raises:
            InvalidCallError: ``until`` is not a position.
            NotFoundError: no such stream is served here.
            As ``StreamSupervisor.offload``.
        """
        last = position_of(until, "until") if until else None
        named = NamedStreams(name)
        if self._process.streams.get(name) is None:
            named = resolve_name(name, [row["stream"] for row in self._process.document()["streams"]])
        if last is not None:
            named.require_one("a position is of one")
        end_s = self._clock.monotonic_s() + timeout_s

        def offload(stream: str) -> dict[str, Any]:
            _tell("offload", stream, by)
            left_s = max(end_s - self._clock.monotonic_s(), 0.0)
            committed = self._process.streams.require(stream).offload(last, timeout_s=left_s)
            return {"stream": stream, "committed": None if committed is None else str(committed)}

        rows = [offload(each) for each in named.streams]
        return {"stream": name, "committed": None, "partitions": rows} if named.partitions else rows[0]

    def complete(self, name: str, until: Position, *, timeout_s: float) -> None:
        """Like ``offload``, but not logged, for frequent calls."""
        self._process.streams.require(name).offload(until, timeout_s=timeout_s)

    def pause(self, name: str, *, reason: str = "", by: str) -> dict[str, Any]:
        """Pauses offloading of a stream, or of each partition of a topic, until ``resume``.

        Raises ``NotFoundError``: no such stream; FencedError: it was deleted. Partitions before the one that failed are
        paused.
        """
        return self._each(name, "pause", lambda runs, each: runs.pause(each, reason), by)

    def resume(self, name: str, *, by: str) -> dict[str, Any]:
        """Resumes a paused stream. Raises as ``pause``."""
        return self._each(name, "resume", lambda runs, each: runs.resume(each), by)

    def clean(self, name: str, *, plan: str, by: str) -> dict[str, Any]:
        """Runs an approved cleanup that retires more than half of a stream, or of partitions of a topic.

        Args:
            plan: ``plan`` of the ``cleanup_plan`` that was approved.

        Raises:
            InvalidCallError: the plan has changed, the process runs no maintenance, or ``cleanup.delete`` is off.
            As ``cleanup_stream``.
        """
        upkeep = self._process.upkeep
        if upkeep is None:
            raise InvalidCallError(
                "this process runs no maintenance", hint="send the request to a process with serve.maintenance = true"
            )
        named = named_streams(self._store, name)
        if not named.partitions:
            return self._clean(upkeep, name, plan, by)
        plans = {each: self._identity(each) for each in named.streams}
        if joint_plan(plans) != plan:
            raise plan_changed(name)
        rows = [self._clean(upkeep, each, found, by) for each, found in plans.items() if found is not None]
        return {"stream": name, **{key: sum(row[key] for row in rows) for key in _SWEPT}, "partitions": rows}

    def _identity(self, stream: str) -> str | None:
        settings = self._process.streams.settings_of(stream)
        plan = cleanup_stream(self._store, stream, clock=self._clock, settings=settings, dry_run=True).plan
        return None if plan is None else plan.identity

    def _clean(self, upkeep: Maintenance, stream: str, plan: str, by: str) -> dict[str, Any]:
        _tell("clean", stream, by)
        swept = upkeep.clean_approved(stream, plan=plan, by=by).swept
        return {"stream": stream, **{key: getattr(swept, key) for key in _SWEPT}}

    def subscribe(
        self, name: str, subscriber: str, *, start: object = None, generation: int = 0, by: str
    ) -> dict[str, Any]:
        """Registers a subscriber, or raises its generation.

        Args:
            start: its initial position, as ``publish``'s ``at``; default: the stream's beginning.

        Raises: as ``StreamRetention.add``.
        """
        retention = self._retention(name)
        found = retention.add(
            subscriber, generation=generation, start=None if start is None else cut_of(retention, start, "start")
        )
        _tell("subscribe", name, by, subscriber)
        return {"stream": name, **found.as_json()}

    def publish(
        self, name: str, subscriber: str, at: object, *, generation: int | None = None, by: str
    ) -> dict[str, Any]:
        """Records a subscriber's position.

        Args:
            at: the first entry still needed: ``"7:12"``, ``"latest"``, or of a partitioned topic ``{"0": "7:12"}``.
            generation: refused unless the subscriber has this one.

        Raises: as ``StreamRetention.publish``; InvalidCallError: ``at`` is none of these.
        """
        retention = self._retention(name)
        found = retention.publish(subscriber, cut_of(retention, at, "at"), generation=generation)
        _tell("publish", name, by, subscriber)
        return {"stream": name, **found.as_json()}

    def unsubscribe(self, name: str, subscriber: str, *, generation: int | None = None, by: str) -> dict[str, Any]:
        """Removes a subscriber, which then no longer holds back deletion. Raises ``NotFoundError``: no such stream or
        subscriber."""
        retention = self._retention(name)
        if subscriber not in retention.registry().subscribers:
            raise NotFoundError(f"stream {name} has no subscriber {subscriber}", hint="list the stream's subscribers")
        removed = retention.remove(subscriber, generation=generation)
        _tell("unsubscribe", name, by, subscriber)
        return {"stream": name, "subscriber": subscriber, "removed": removed}

    def truncate(self, name: str, before: object, *, by: str) -> dict[str, Any]:
        """Moves a stream's start position. Raises as ``truncation.truncate``."""
        _tell("truncate", name, by)
        return truncate(self._store, name, before, clock=self._clock, streams=self._process.streams, by=by)

    def _each(self, name: str, what: str, change: Callable[[BackfillService, str], bool], by: str) -> dict[str, Any]:
        """The result for one stream, or the sum for a topic with each partition in ``partitions``."""
        named = named_streams(self._store, name)
        rows = [self._record(each, what, change, by) for each in named.streams]
        if not named.partitions:
            return rows[0]
        return {
            "stream": name,
            "paused": all(row["paused"] for row in rows),
            "changed": any(row["changed"] for row in rows),
            "assigned": sum(row["assigned"] for row in rows),
            "committed": None,
            "partitions": rows,
        }

    def _record(self, name: str, what: str, change: Callable[[BackfillService, str], bool], by: str) -> dict[str, Any]:
        if changed := change(self._process.history, name):
            _tell(what, name, by)
            if (served := self._process.streams.get(name)) is not None:
                served.wake()
        state = load_stream(self._store, name)
        committed = state.committed_end()
        return {
            "stream": name,
            "paused": state.paused,
            "changed": changed,
            "assigned": len(state.assigned()),
            "committed": None if committed is None else str(committed),
        }

    def _retention(self, name: str) -> StreamRetention:
        return open_retention(self._store, name, source_of=self._process.streams.source_of, clock=self._clock)


def _tell(what: str, stream: str, by: str, subscriber: str = "") -> None:
    extra = {"event": "asked", "stream": stream, "command": what, "by": by, "subscriber": subscriber}
    _log.info("%s of stream %s, requested by %s", what, stream, by, extra=extra)
