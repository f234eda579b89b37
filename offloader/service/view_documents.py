"""Documents for the views: pages of entries of both tiers, timelines, and topics as sums of their partitions."""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from formats.entries import TIME_UNKNOWN_MS, Entry, EntryBatch, Position
from formats.topic_layout import HASHES, TopicLayout
from offloader.errors import BeyondEndError, InvalidCallError
from offloader.ledgers.base import LedgerSource
from offloader.manifest.names import named_streams
from offloader.manifest.topic_layouts import in_order, read_layout, without_overlap
from offloader.parallel_map import IN_FLIGHT_MAX, at_once
from offloader.plot import StreamTimeline, thinned
from offloader.read.partitions import timed_batch
from offloader.read.reader import Reader, open_stream_reader
from offloader.settings import ReadSettings, Settings, Size
from offloader.store.base import ObjectStore
from offloader.stream_names import is_place, is_segment, place_of, require_stream_name

#: Maximum number of bars of ledgers, and of segments; above it neighbours are merged.
BARS_MAX = 400
#: Points of entries over time.
POINTS_MAX = 800
#: Gaps listed.
GAPS_MAX = 200


def timeline_document(shape: StreamTimeline) -> dict[str, Any]:
    """``{"ledgers", "segments", "timeline", "gaps", "ledgers_total", "segments_total", "is_thinned"}``.

    A span is ``{"name", "start", "stop", "size_bytes"}`` in entries of the stream; ``timeline`` has pairs of the
    number of entries before a point and its publish time in ms (-1: unknown), ``gaps`` the number of entries before
    and in each gap.
    """
    ledgers, segments = thinned(shape.ledgers, BARS_MAX), thinned(shape.segments, BARS_MAX)
    step = -(-len(shape.timeline) // POINTS_MAX) or 1
    # From the end, to include the last point; the first one is the origin of the axis.
    points = [shape.timeline[0], *reversed(shape.timeline[:0:-step])] if shape.timeline else []
    return {
        "ledgers": list(map(asdict, ledgers)),
        "segments": list(map(asdict, segments)),
        "timeline": [list(point) for point in points],
        "gaps": [list(gap) for gap in shape.gaps[:GAPS_MAX]],
        "ledgers_total": len(shape.ledgers),
        "segments_total": len(shape.segments),
        "is_thinned": len(ledgers) < len(shape.ledgers) or len(segments) < len(shape.segments),
    }


def served_segments(place: str, served: Iterable[str]) -> dict[int, str]:
    """Id -> stream of the segments of a scalable topic among some streams."""
    found = {stream.rpartition("-")[2]: stream for stream in served if is_segment(stream) and place_of(stream) == place}
    return {int(number): stream for number, stream in found.items() if number.isdecimal()}


def graph_of(store: ObjectStore, name: str) -> dict[str, Any]:
    """The segments of a scalable topic, by its name or one of theirs (``graph_document``); of any other stream none.

    Raises:
        InvalidCallError: not a stream's name. CorruptError, UnsupportedError: the layout can't be read.
    """
    require_stream_name(name)
    place = name if is_place(name) else place_of(name)
    layout = None if place is None else read_layout(store, place)
    is_part = layout is not None and (name == place or any(row.stream == name for row in layout.segments))
    return graph_document(layout if is_part else None)


def graph_document(layout: TopicLayout | None) -> dict[str, Any]:
    """``{"topic", "epoch", "hashes", "levels"}``: each level has segments that can be read at the same time, after
    those of the levels above.

    A segment is ``{"segment", "stream", "hash_start", "hash_stop", "after", "state"}``; ``state`` is ``active``,
    ``sealed``, or ``ending`` while its end isn't recorded.
    """
    if layout is None:
        return {"topic": None, "epoch": None, "hashes": HASHES, "levels": []}
    levels = [
        [
            {
                "segment": row.id,
                "stream": row.stream,
                "hash_start": row.hash_start,
                "hash_stop": row.hash_stop,
                "after": list(row.parents),
                "state": "active" if not row.is_sealed else "ending" if row.end is None else "sealed",
            }
            for row in line
        ]
        for group in in_order(layout)
        for line in without_overlap(group)
    ]
    return {"topic": layout.topic, "epoch": layout.epoch, "hashes": HASHES, "levels": levels}


_Row = Mapping[str, Any]
_TROUBLES = ("stalled", "disconnected", "last_error", "store_error")


def numbered(partitions: Mapping[int, str], answers: Iterable[_Row]) -> list[dict[str, Any]]:
    """The answers, in the order of the partitions, each with its ``stream`` and its ``partition``."""
    return [
        {**answer, "stream": stream, "partition": number}
        for (number, stream), answer in zip(partitions.items(), answers, strict=True)
    ]


def topic_row(topic: str, rows: Sequence[_Row]) -> dict[str, Any]:
    """A topic's status document: sums of its partitions' documents, and these in ``partitions``.

    A value unknown for one partition is unknown for the topic. The topic has a mode if all partitions have it.
    """
    lags = [row["lag"] for row in rows]
    buffers = [row["buffer"] for row in rows if row.get("buffer")]
    rates = [row["bytes_per_second"] for row in rows if row.get("bytes_per_second") is not None]
    segments: dict[str, int | None] = {}
    for row in rows:
        for status, count in (row.get("segments") or {}).items():
            segments[status] = _sum([segments.get(status, 0), count])
    found: dict[str, Any] = {
        "stream": topic,
        **{key: _same(row.get(key) for row in rows) for key in ("namespace", "feed", "mode", "method")},
        "active": any(row["active"] for row in rows),
        "lag": {
            "entries": sum(each["entries"] for each in lags),
            "bytes": sum(each["bytes"] for each in lags),
            "seconds": max((each["seconds"] for each in lags if each["seconds"] is not None), default=None),
        }
        if all(lags)
        else None,
        "lag_known_ms": min((row["lag_known_ms"] for row in rows if row.get("lag_known_ms")), default=None),
        "buffer": {
            "bytes": sum(each["bytes"] for each in buffers),
            "bytes_max": max(each["bytes_max"] for each in buffers),
        }
        if buffers
        else None,
        "segments": segments,
        **{key: _sum(row.get(key) for row in rows) for key in ("entries_offloaded", "bytes_offloaded")},
        "bytes_per_second": sum(rates) if rates else None,
        "last_progress_ms": max((row["last_progress_ms"] for row in rows if row.get("last_progress_ms")), default=None),
        "partitions": list(rows),
    }
    for key in _TROUBLES:
        said = [f"partition {row['partition']}: {row[key]}" for row in rows if row.get(key)]
        more = f"; and {len(said) - 1} more" if len(said) > 1 else ""
        if said or key != "store_error":
            found[key] = f"{said[0]}{more}" if said else None
    return found


def topic_plan(topic: str, plans: Sequence[_Row], *, limit: int) -> dict[str, Any]:
    """A topic's cleanup plan: sums of its partitions' plans, and these in ``partitions``.

    Args:
        limit: maximum number of lines of all plans; each has its ``stream``.
    """
    lines = [{**line, "stream": plan["stream"]} for plan in plans for line in plan["lines"]]
    return {
        "stream": topic,
        "plan": joint_plan({plan["stream"]: plan["plan"] for plan in plans}),
        **{key: sum(plan[key] for plan in plans) for key in ("segments", "bytes", "bytes_stored", "pending_batches")},
        **{key: all(plan[key] for plan in plans) for key in ("deletes", "is_deleted")},
        "grace_seconds": max(plan["grace_seconds"] for plan in plans),
        **{key: any(plan[key] for plan in plans) for key in ("held", "large")},
        "stopped": plans[0]["stopped"],
        "awaiting_approval": next((plan["awaiting_approval"] for plan in plans if plan["awaiting_approval"]), None),
        "lines": lines[:limit],
        "is_whole": len(lines) <= limit and all(plan["is_whole"] for plan in plans),
        "partitions": [
            {key: value for key, value in plan.items() if key not in ("lines", "is_whole")} for plan in plans
        ],
    }


def joint_plan(plans: Mapping[str, str | None]) -> str | None:
    """The identity of a topic's plan, derived from its partitions' plans; ``None``: no partition has a plan."""
    known = sorted((stream, plan) for stream, plan in plans.items() if plan is not None)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:32] if known else None


def _same(values: Iterable[Any]) -> Any:
    """The common value; ``None``: the values differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; ``None``: one value is unknown."""
    known = list(values)
    return None if None in known else sum(each for each in known if each is not None)


#: Maximum payload bytes of a page; a larger entry gets a separate page.
PAGE_BYTES_MAX = 512 * 1024
#: Maximum number of partitions of a page's topic: the cursor in the request line has a position in each.
PARTITIONS_MAX = 1000
#: Maximum number of partitions open concurrently for a page; each holds the data of about two requests.
PARTITIONS_OPEN_MAX = 32
#: Settings of a page's readers: one small request in flight each.
_SETTINGS = ReadSettings(request_size=Size(1024 * 1024), requests_in_flight_max=1, batch_size=Size(PAGE_BYTES_MAX))


def entry_page(
    store: ObjectStore,
    name: str,
    source_of: Callable[[str], LedgerSource | None],
    settings_of: Callable[[str], Settings] = lambda _: Settings(),
    *,
    first: Position | None,
    from_ms: int | None,
    to_ms: int | None,
    after: str,
    limit: int,
) -> tuple[list[dict[str, Any]], str | None]:
    """A page's rows, and the place of the next page; ``None``: no further entries at present.

    Args:
        settings_of: a stream's settings, for its relocated buckets.
        first: start position in one stream; ``None``: by ``from_ms``, else the first entry.
        from_ms, to_ms: publish times, the end excluded; ``None``: no bound.
        after: place of the page; empty: the first page.
        limit: maximum number of entries.

    Raises:
        NotFoundError: no such stream and no such topic.
        InvalidCallError: a position in a topic with partitions, or two beginnings, or ``after`` isn't a place.
        TrimmedError, BeyondEndError: ``first`` or a place isn't in the stream (any more).
    """
    named = named_streams(store, name)
    if named.partitions and first is not None:
        raise InvalidCallError(
            f"{named.name} has {len(named.partitions)} partitions, and a position is of one",
            hint=f"give since, or request one partition: {named.streams[0]}",
        )
    if first is not None and from_ms is not None:
        raise InvalidCallError("from and since exclude each other", hint="leave one of them out")
    if len(named.partitions) > PARTITIONS_MAX:
        raise InvalidCallError(f"{named.name} has more than {PARTITIONS_MAX} partitions", hint="request one of them")
    asked = _Asked(store, source_of, settings_of, first, from_ms, to_ms, _places(after))
    streams = list(enumerate(zip(named.partitions or [None], named.streams, strict=True)))
    begins: list[Position | None] = []
    page: list[_PageEntry] = []
    is_cut = False
    with ExitStack() as whole:
        threads = whole.enter_context(ThreadPoolExecutor(IN_FLIGHT_MAX)) if named.partitions else None
        # The first entries of all partitions are also the first of their group, so no other entry has to be kept.
        for start in range(0, len(streams), PARTITIONS_OPEN_MAX):
            with ExitStack() as stack:
                group = streams[start : start + PARTITIONS_OPEN_MAX]
                opened = at_once(partial(asked.open, stack, threads), group, sequential_max=1)
                begins += [begin for begin, _ in opened]
                merged = heapq.merge(page, *(entries for _, entries in opened), key=lambda each: each[:2])
                page, is_more = _first_page(merged, limit)
                is_cut = is_cut or is_more
                del opened, merged  # they have the group's entries, which the next group must not be added to
    rows = [_row(streams[each.at][1][1], streams[each.at][1][0], each.entry) for each in page]
    reached = dict(zip([number for _, (number, _) in streams], begins, strict=True))
    reached |= {streams[each.at][1][0]: each.entry.position.next() for each in page}
    return rows, _place_text(reached) if is_cut else None


class _PageEntry(NamedTuple):
    """An entry of a page.

    Attributes:
        time_ms: its publish time in the merge: none is below that of an earlier entry of its stream.
        at: the number of its stream among those of the page.
    """

    time_ms: int
    at: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class _Asked:
    """The parameters of ``entry_page``; ``places``: the positions at which the partitions continue."""

    store: ObjectStore
    source_of: Callable[[str], LedgerSource | None]
    settings_of: Callable[[str], Settings]
    first: Position | None
    from_ms: int | None
    to_ms: int | None
    places: Mapping[int | None, Position]

    def open(
        self, stack: ExitStack, threads: Executor | None, given: tuple[int, tuple[int | None, str]]
    ) -> tuple[Position | None, Iterable[_PageEntry]]:
        """The start position of a stream, and its entries, of which the first is fetched; ``stack`` closes the
        reader."""
        at, (number, stream) = given
        settings = replace(_SETTINGS, relocate=self.settings_of(stream).read.relocate)
        reader = stack.enter_context(
            open_stream_reader(self.store, stream, settings=settings, source=self.source_of(stream), executor=threads)
        )
        begin = self.places.get(number) or self.first
        if begin is None and self.from_ms is not None:
            begin = reader.position_at(self.from_ms)
        if (chosen := _range(reader, begin, self.first, self.from_ms, self.to_ms)) is None:
            return begin, ()
        entries = _page_entries(stack.enter_context(closing(reader.scan(*chosen))), at)
        return begin, chain(list(islice(entries, 1)), entries)


def _page_entries(scan: Iterator[EntryBatch], at: int) -> Iterator[_PageEntry]:
    after_ms = TIME_UNKNOWN_MS
    while (head := timed_batch(scan, after_ms)) is not None:
        batch, times = head
        for entry, time_ms in zip(batch.entries(), times.tolist(), strict=True):
            yield _PageEntry(time_ms, at, entry)
        after_ms = int(times[-1])


def _first_page(entries: Iterable[_PageEntry], limit: int) -> tuple[list[_PageEntry], bool]:
    """The entries of one page, and whether there are more."""
    page: list[_PageEntry] = []
    size_bytes = 0
    for each in entries:
        if len(page) == limit or (page and size_bytes + len(each.entry.payload) > PAGE_BYTES_MAX):
            return page, True
        page.append(each)
        size_bytes += len(each.entry.payload)
    return page, False


def _range(
    reader: Reader, begin: Position | None, first: Position | None, from_ms: int | None, to_ms: int | None
) -> tuple[Position | None, Position | None] | None:
    """First and last position; ``None``: no entry of the stream is selected."""
    last = reader.last_position
    if last is None or (begin is None and from_ms is not None):
        return None
    if begin is not None and begin > last:
        if begin == first and begin != last.next():
            raise BeyondEndError(
                f"stream {reader.stream}: position {begin} is beyond the last readable entry {last}",
                last_available=last,
                hint=f"begin at {last.next()} or earlier",
            )
        return None
    return reader.range_of(begin, None, None, to_ms)


def _place_text(reached: Mapping[int | None, Position | None]) -> str:
    """The place of the next page: numbers of partitions, ledgers and entries, each in a list, which compresses well."""
    known = [(number, *each) for number, each in reached.items() if each is not None]
    return json.dumps(list(zip(*known, strict=True)), separators=(",", ":"))


def _places(after: str) -> Mapping[int | None, Position]:
    """Partition number, or ``None`` -> position at which it continues."""
    if not after:
        return {}
    try:
        known = zip(*json.loads(after), strict=True)
        return {number: Position.parse(f"{ledger}:{entry}") for number, ledger, entry in known}
    except (ValueError, AttributeError, TypeError, RecursionError) as cause:
        raise InvalidCallError(
            "cursor: not a cursor of this list", hint="use next_cursor of the previous page"
        ) from cause


def _row(stream: str, number: int | None, entry: Entry) -> dict[str, Any]:
    return {
        **({} if number is None else {"stream": stream, "partition": number}),
        "position": str(entry.position),
        "publish_time_ms": None if entry.publish_time_ms == TIME_UNKNOWN_MS else entry.publish_time_ms,
        "payload_base64": base64.b64encode(entry.payload).decode("ascii"),
    }
