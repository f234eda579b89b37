"""Streaming queries: offsets, batch limits, the range of each batch, and the query as a retention subscriber.

The segments of a scalable topic are admitted one after the other: see ``offloader.spark.segments``.

As a subscriber a query publishes the positions that it still needs, after its commits only. That never fails the query,
and has a separate thread: a batch may take hours, and a silent subscriber expires.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from formats.entries import TIME_UNKNOWN_MS, Position
from formats.segment_map import SegmentMap
from formats.summary import SegmentSummary
from formats.topic_layout import TopicLayout
from offloader.errors import BeyondEndError, InvalidCallError, NotFoundError, OffloaderError, TrimmedError
from offloader.manifest.names import named_streams
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.cold import objects_of
from offloader.read.fetch import Fetcher
from offloader.read.ranges import is_lost_between, readable_segments, segments_between, whole_range
from offloader.read.reader import open_stream_reader, require_inside
from offloader.retention.cuts import StreamCut, cut_at
from offloader.retention.scope import home_of
from offloader.retention.subscribers import PublishStatus, StreamRetention, open_retention, require_subscriber_name
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import ReadSettings
from offloader.spark.options import SourceOptions, projection
from offloader.spark.scan import (
    StreamRange,
    index_or_none,
    load_streams,
    parts_between,
    plan_ranges,
    read_slices,
    streams_named,
)
from offloader.spark.segments import admitted, is_at_end, require_recorded
from offloader.spark.session import work_begins
from offloader.store.base import ObjectStore
from offloader.store.probe import require_conditional_puts
from offloader.stream_names import is_pattern


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Read position of one stream.

    Attributes:
        incarnation: the stream's; another one means that it was deleted and created again.
        manifest: the manifest record with these entries; for people.
        position: the last position read or skipped; ``None``: none yet, everything is wanted.
        since: the position after which the query began. Spark requests the initial offset again when a query ends
            before its first batch was committed, and ``latest`` and the stream's beginning have moved by then; a
            batch's end keeps it.
    """

    incarnation: UUID
    manifest: int
    position: Position | None
    since: Position | None


def encode_offsets(offsets: Mapping[str, StreamOffset]) -> dict[str, dict[str, object]]:
    """As JSON values, sorted by stream: Spark compares the text."""
    found: dict[str, dict[str, object]] = {}
    for name, offset in sorted(offsets.items()):
        positions = {"position": offset.position, "since": offset.since}
        known = {key: str(position) for key, position in positions.items() if position is not None}
        found[name] = {"incarnation": str(offset.incarnation), "manifest": offset.manifest, **known}
    return found


def decode_offsets(values: Mapping[str, Any]) -> dict[str, StreamOffset]:
    """Decodes ``encode_offsets``' values from the checkpoint; raises ``InvalidCallError`` for invalid ones."""
    found = {}
    for name, given in values.items():
        try:
            unknown = set(given) - {"incarnation", "manifest", "position", "since"}
            if unknown:
                raise ValueError(f"unknown {', '.join(sorted(unknown))}")
            positions = [Position.parse(given[key]) if key in given else None for key in ("position", "since")]
            found[name] = StreamOffset(UUID(given["incarnation"]), int(given["manifest"]), *positions)
        except (KeyError, TypeError, ValueError, AttributeError) as cause:
            raise InvalidCallError(
                f"the query's checkpoint holds no offset of this source for stream {name}: {given!r} ({cause})",
                hint="use the checkpoint directory that belongs to this query",
            ) from cause
    return found


def begin_of_batch(start: StreamOffset | None, end: StreamOffset) -> Position | None:
    """The position after which a batch begins; ``None``: the stream's beginning.

    Before the first read ``start`` may be a newer initial offset; ``end`` has the one it was made for.
    """
    if start is None or start.incarnation != end.incarnation or start.position == start.since:
        return end.since
    return start.position


def behind(state: ManifestState, reached: Position | None) -> tuple[int, int]:
    """Entries and bytes of payloads after ``reached`` up to the committed end; ``None``: all.

    Of a segment that is read in part the bytes are in proportion to its entry ids.
    """
    ends = whole_range(state)
    first = None if ends is None else ends[0] if reached is None else max(ends[0], reached.next())
    if ends is None or first is None or first > ends[1]:
        return 0, 0
    found = segments_between(readable_segments(state), first, ends[1])
    if not found:
        return 0, 0
    sums, part = found.sums(), found[0].content
    whole = max(_ids_between(part, part.begin, part.end), 1)
    read = whole - _ids_between(part, first, part.end)
    return sums.entries - part.entries * read // whole, sums.payload_bytes - part.payload_bytes * read // whole


def is_lost(state: ManifestState, position: Position) -> bool:
    """Whether entries right after ``position`` were deleted: the stream begins later.

    A start position exactly at the next entry, after recorded gaps or in the next ledger, loses nothing.
    """
    committed, head = state.committed_end(), state.head
    if committed is None or position >= committed or head is None or head <= position.next():
        return False
    first = state.first_position()
    return first is None or first > committed or is_lost_between(state, position, first)


#: The index of a segment; ``None`` for one that can't be read.
IndexOf = Callable[[str, SegmentRecord], SegmentMap | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a batch. ``data_bytes`` are those of the fetched blocks; ``None``: no limit."""

    entries: int | None = None
    data_bytes: int | None = None

    def share(self, count: int) -> Limits:
        """One of ``count`` equal parts."""
        return Limits(*(None if each is None else each // count for each in (self.entries, self.data_bytes)))

    def less(self, taken: _Taken) -> Limits:
        """The remainder."""
        return Limits(
            None if self.entries is None else self.entries - taken.entries,
            None if self.data_bytes is None else self.data_bytes - taken.data_bytes,
        )

    def hold(self, entries: int, data_bytes: int) -> bool:
        """Whether so much fits."""
        return (self.entries is None or entries <= self.entries) and (
            self.data_bytes is None or data_bytes <= self.data_bytes
        )


class _Taken(NamedTuple):
    """A stream's part of a batch: up to ``end``, inclusive; ``None``: nothing."""

    end: Position | None = None
    entries: int = 0
    data_bytes: int = 0


def batch_ends(backlogs: Mapping[str, StreamRange], limits: Limits, index_of: IndexOf) -> dict[str, Position]:
    """The end of each stream's part of a batch; without streams that have no part.

    Every stream gets an equal share; the unused rest of short ones goes to the others. A batch holds at least one block
    or entry, so that a limit below a block's size slows a query down and doesn't stop it.

    Args:
        backlogs: name -> its unread range.
        index_of: indexes of segments that are split.
    """
    if limits == Limits():
        return {name: backlog.last for name, backlog in backlogs.items()}
    order = sorted(backlogs, key=lambda name: (*_size(backlogs[name], limits), name))
    ends: dict[str, Position | None] = {}
    left = limits
    for number, name in enumerate(order):
        taken = _cut(backlogs[name], left.share(len(order) - number), index_of, at_least_one=False)
        left, ends[name] = left.less(taken), taken.end
    if order and all(end is None for end in ends.values()):
        ends[order[-1]] = _cut(backlogs[order[-1]], limits, index_of, at_least_one=True).end
    return {name: end for name, end in ends.items() if end is not None}


def _size(backlog: StreamRange, limits: Limits) -> tuple[int, int]:
    """Bytes and entries, counted until they exceed the limits: a backlog may have a million segments."""
    entries = data_bytes = 0
    for record in _segments(backlog):
        if not limits.hold(entries, data_bytes):
            break
        summary = record.content
        count = _ids_between(summary, backlog.first, backlog.last)
        entries += count
        data_bytes += _part_of_bytes(summary, count)
    return (data_bytes, entries) if limits.data_bytes is not None else (entries, data_bytes)


def _cut(backlog: StreamRange, limits: Limits, index_of: IndexOf, *, at_least_one: bool) -> _Taken:
    taken = _Taken()
    for record in _segments(backlog):
        summary = record.content
        first, last = _first_inside(summary, backlog.first), min(backlog.last, summary.end)
        count = _ids_between(summary, first, last)
        is_whole = first == summary.begin and last == summary.end
        index = None if is_whole or limits.data_bytes is None else index_of(backlog.state.stream, record)
        cost = _bytes_between(summary, index, first, last)
        if limits.hold(taken.entries + count, taken.data_bytes + cost):
            taken = _Taken(last, taken.entries + count, taken.data_bytes + cost)
            continue
        left = limits.less(taken)
        end = last if left.entries is None else _end_of_entries(summary, first, last, left.entries)
        if left.data_bytes is not None and cost > left.data_bytes:
            index = index_of(backlog.state.stream, record) if index is None else index
            one = at_least_one and taken.end is None
            by_bytes = _end_of_bytes(summary, index, first, last, left.data_bytes, at_least_one=one)
            end = None if end is None or by_bytes is None else min(end, by_bytes)
        if end is not None:
            count, cost = _ids_between(summary, first, end), _bytes_between(summary, index, first, end)
            taken = _Taken(end, taken.entries + count, taken.data_bytes + cost)
        break
    return taken


def _segments(backlog: StreamRange) -> Sequence[SegmentRecord]:
    return segments_between(readable_segments(backlog.state), backlog.first, backlog.last)


def _ids_between(summary: SegmentSummary, first: Position, last: Position) -> int:
    """Entry ids of a segment from ``first`` to ``last``, inclusive: the entries, unless ids are missing."""
    return sum(part.entries for part in parts_between(summary.ledgers, first, last))


def _first_inside(summary: SegmentSummary, first: Position) -> Position:
    """The segment's lowest position from ``first``; a plain index would find a ledger's last block for a later one."""
    for span in summary.ledgers:
        if Position(span.ledger_id, span.last_entry_id) >= first:
            return max(first, Position(span.ledger_id, span.first_entry_id))
    return summary.end


def _end_of_entries(summary: SegmentSummary, first: Position, last: Position, entries: int) -> Position | None:
    """The end of ``entries`` ids from ``first``; ``None``: none."""
    end = None
    for part in parts_between(summary.ledgers, first, last):
        taken = min(part.entries, entries)
        if taken > 0:
            end, entries = Position(part.ledger_id, part.first + taken - 1), entries - taken
    return end


def _part_of_bytes(summary: SegmentSummary, count: int) -> int:
    return summary.data_bytes * count // max(_ids_between(summary, summary.begin, summary.end), 1)


def _bytes_between(summary: SegmentSummary, index: SegmentMap | None, first: Position, last: Position) -> int:
    """Bytes of the blocks that hold ``first`` .. ``last``; without an index in proportion."""
    if index is None:
        return _part_of_bytes(summary, _ids_between(summary, first, last))
    return int(index.blocks.length[index.find(first, last)].sum())


def _end_of_bytes(
    summary: SegmentSummary,
    index: SegmentMap | None,
    first: Position,
    last: Position,
    data_bytes: int,
    *,
    at_least_one: bool,
) -> Position | None:
    """The end of the last block that fits; ``None``: none does. Without an index all or nothing."""
    if index is None:
        return last if at_least_one else None
    numbers = index.find(first, last)
    fitting = int(np.searchsorted(np.cumsum(index.blocks.length[numbers]), data_bytes, side="right"))
    if at_least_one:
        fitting = max(fitting, 1)
    if fitting == 0:
        return None
    if fitting >= len(numbers):
        return last
    inside, beyond = numbers[fitting - 1], numbers[fitting]
    ledger_id = int(index.blocks.ledger_id[inside])
    if ledger_id == int(index.blocks.ledger_id[beyond]):
        return Position(ledger_id, int(index.blocks.first_entry_id[beyond]) - 1)
    [span] = [span for span in summary.ledgers if span.ledger_id == ledger_id]
    return Position(ledger_id, span.last_entry_id)


_log = logging.getLogger("offloader.spark")

#: Age up to which manifests' views are used: Spark asks an idle query a hundred times a second. It doubles from the
#: first to the second while nothing new is found.
POLL_SECONDS, IDLE_POLL_SECONDS = 1.0, 10.0
_TO_GO_ON = "option failOnDataLoss=false continues at the stream's current beginning; a new checkpoint starts again"

_Json = dict[str, dict[str, object]]


class StreamingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, all of a topic, or all that match a pattern, in batches.

    Pickled to the executors: holds no store.
    """

    def __init__(self, options: SourceOptions, schema: StructType, *, clock: Clock | None = None) -> None:
        options.require_stream()
        self.options = options
        self.projection = projection(schema.fields, options.content)
        self._clock = clock or SystemClock()
        self._views: dict[str, ManifestState] = {}
        # Of a scalable topic, with the views.
        self._layout: TopicLayout | None = None
        # Sealed segments that committed batches have read to their ends: they get no more entries.
        self._finished: set[str] = set()
        self._looked_s: float | None = None
        self._poll_s = POLL_SECONDS
        self._targets: dict[str, Position | None] | None = None
        self._planned: dict[str, StreamOffset] = {}
        self._subscription: Subscription | None = None
        if options.subscriber:
            require_subscriber_name(options.subscriber)
            open_store = partial(options.open_store, read_only=False)
            self._subscription = Subscription(options.subscriber, open_store, options.subscriber_renew_s, self._clock)

    def initialOffset(self) -> _Json:  # noqa: N802 - Spark's name
        """The initial offset of a query without a checkpoint, by stream."""
        begins = {name: self._initial(state) for name, state in self._look().items()}
        if self._layout is not None:
            begins = {name: begins[name] for name in admitted(self._layout, self._views, begins) if name in begins}
        self._needs(begins)
        return encode_offsets({name: _offset(self._views[name], at, at) for name, at in begins.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit for ``latestOffset``, unless the trigger wants everything."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_entries_per_trigger is not None:
            return ReadMaxRows(self.options.max_entries_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next batch; ``start`` itself without unread entries.

        Raises:
            TrimmedError: entries were deleted before they were read, unless ``failOnDataLoss`` is off.
            InvalidCallError: ``start`` isn't an offset of this source, or names a segment that the recorded layout
                doesn't have.
        """
        offsets = decode_offsets(start)
        views = self._look()
        if self._layout is not None:
            require_recorded(self._layout, offsets)
            ended = (row for row in self._layout.segments if row.stream in offsets)
            self._finished = {row.stream for row in ended if is_at_end(row, offsets[row.stream].position)}
        for name in sorted(set(offsets) - set(views)):
            if (kept := self._gone(name, offsets.pop(name))) is not None:
                offsets[name] = kept
        # Earlier entries are committed: Spark requests the next offset when a batch is done.
        self._needs({name: offset.position for name, offset in offsets.items()})
        offsets.update({name: self._held(views[name], offset) for name, offset in offsets.items() if name in views})
        first = self.options.start_position
        new = None if first is None else first.previous()
        reached = {name: offsets[name].position if name in offsets else new for name in {**views, **offsets}}
        wanted = views if self._layout is None else admitted(self._layout, views, reached, offsets)
        backlogs = {
            name: backlog
            for name in wanted
            if name in views and (backlog := self._backlog(views[name], reached[name])) is not None
        }
        limits = Limits()
        if isinstance(limit, ReadMaxBytes | ReadMaxRows):
            # Spark passes one of our limits or none, never two: both apply.
            limits = Limits(self.options.max_entries_per_trigger, self.options.max_bytes_per_trigger)
        for name, end in batch_ends(backlogs, limits, self._index).items():
            since = offsets[name].since if name in offsets else new
            if reached[name] is None:  # a first batch from the stream's beginning has these rows again, or fails
                since = backlogs[name].first.previous()
            offsets[name] = _offset(views[name], end, since)
        self._planned = dict(offsets)
        return encode_offsets(offsets)

    def reportLatestOffset(self) -> _Json | None:  # noqa: N802 - Spark's name
        """The committed ends, for the query's progress, and the backlog between the batch's end and them.

        Spark calls this after ``latestOffset``.
        """
        views = self._look()
        found = encode_offsets({name: _offset(state, state.committed_end(), None) for name, state in views.items()})
        for name, state in views.items():
            planned = self._planned.get(name)
            entries, payload_bytes = behind(state, planned.position if planned is not None else None)
            found[name].update(entriesBehind=entries, bytesBehind=payload_bytes)
        return found

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Bounds the query by the currently committed ends."""
        self._targets = {name: state.committed_end() for name, state in self._look(anew=True).items()}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The partitions of one batch: always the same rows, as positions identify them.

        Raises:
            the errors of ``latestOffset``;
            BeyondEndError: a stream ends before ``end``: the checkpoint is another stream's, or the store was restored.
        """
        starts, ends = decode_offsets(start), decode_offsets(end)
        views = self._look()
        if self._layout is not None:
            require_recorded(self._layout, ends)
        if any(_is_short(views.get(name), offset) for name, offset in ends.items()):
            views = self._look(anew=True)
        # Also for a batch repeated after a restart, before any other call.
        self._needs({name: begin_of_batch(starts.get(name), offset) for name, offset in ends.items()})
        wanted = (self._range(views.get(name), name, starts.get(name), offset) for name, offset in ends.items())
        ranges = [each for each in wanted if each is not None]
        store = self.options.open_store()
        return [InputPartition(each) for each in plan_ranges(self.options, self.projection.needs, ranges, store)]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Releases the entries of a finished batch."""
        self._needs({name: offset.position for name, offset in decode_offsets(end).items()})

    def stop(self) -> None:
        """Ends the query; it remains a subscriber for its restart."""
        if self._subscription is not None:
            self._subscription.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        work_begins()
        return read_slices(partition.value, self.options, self.projection, self.options.open_store())

    def __getstate__(self) -> dict[str, Any]:
        """For an executor, which needs no manifest."""
        return {**self.__dict__, "_views": {}, "_layout": None, "_looked_s": None, "_subscription": None}

    def _needs(self, read: Mapping[str, Position | None]) -> None:
        """Publishes the query's needs to retention: the entries after the last positions read or skipped."""
        if self._subscription is None:
            return
        first = {name: None if at is None else at.next() for name, at in read.items()}
        for name, state in self._views.items():
            if first.get(name) is None:
                first[name] = state.first_position()
        self._subscription.needs({name: at for name, at in first.items() if name in self._views})

    def _look(self, *, anew: bool = False) -> dict[str, ManifestState]:
        """The streams and their manifests, at most ``POLL_SECONDS`` old; ``IDLE_POLL_SECONDS`` if nothing comes."""
        now_s = self._clock.monotonic_s()
        if anew or self._looked_s is None or now_s - self._looked_s >= self._poll_s:
            options, store, before = self.options, self.options.open_store(), self._views
            several, layout = is_pattern(options.stream), None
            # A stream that was found isn't a topic.
            if several or list(before) == [options.stream]:
                names = streams_named(options, store) if several else list(before)
            else:
                # The layout before the manifests: they have the entries up to its ends, or will have them.
                named = named_streams(store, options.stream)
                names, layout = list(named.streams), named.layout
            done = {name: before[name] for name in names if name in self._finished and name in before}
            fresh = [name for name in names if name not in done]
            loaded = load_streams(fresh, store, may_be_gone=several or layout is not None, known=before)
            self._views = done | {state.stream: state for state in loaded}
            is_idle = _ends(self._views) == _ends(before) and layout == self._layout
            self._poll_s = min(2 * self._poll_s, IDLE_POLL_SECONDS) if is_idle else POLL_SECONDS
            self._looked_s, self._layout = now_s, layout
        return self._views

    def _initial(self, state: ManifestState) -> Position | None:
        """The position after which a new query begins; ``None``: the stream's beginning."""
        options, committed = self.options, state.committed_end()
        if options.start_latest:
            return committed
        begins = []
        if options.start_position is not None:
            if state.stream == options.stream:
                require_inside(state, whole_range(state), options.start_position, None)
            begins.append(options.start_position.previous())
        if options.start_ms is not None:
            # Rows are bounded by their times too; this skips everything before the first match.
            found = self._first_since(state, options.start_ms)
            begins += [found.previous()] if found is not None else [committed] if committed is not None else []
        return max(begins, default=None)

    def _first_since(self, state: ManifestState, start_ms: int) -> Position | None:
        """A position before all wanted rows; ``None``: no current row is wanted."""
        if self.options.content == "messages":
            # Entries without a recorded time hold messages with their own.
            for record in readable_segments(state):
                latest_ms = record.content.publish_time_max_ms
                if latest_ms == TIME_UNKNOWN_MS or latest_ms >= start_ms:
                    return record.begin
            return None
        settings = ReadSettings(relocate=self.options.relocate)
        return open_stream_reader(self.options.open_store(), state.stream, state=state, settings=settings).position_at(
            start_ms
        )

    def _backlog(self, state: ManifestState, reached: Position | None) -> StreamRange | None:
        """The unread range of a stream; ``None``: nothing."""
        ends = whole_range(state)
        if ends is None:
            return None
        first, last = ends
        if reached is not None:
            first = max(first, reached.next())
        if self._targets is not None:
            target = self._targets.get(state.stream)
            if target is None:
                return None
            last = min(last, target)
        return StreamRange(state, first, last) if first <= last and (reached is None or reached < last) else None

    def _held(self, state: ManifestState, offset: StreamOffset) -> StreamOffset:
        """The offset, if its next entries still exist; else an error or their replacement."""
        if state.incarnation != offset.incarnation:
            self._lost(
                f"stream {state.stream} was deleted and created again, {offset.position} was the last position read"
            )
            return _offset(state, None, None)
        if offset.position is not None and is_lost(state, offset.position):
            self._lost_head(state, offset.position)
            if whole_range(state) is None:
                return _offset(state, state.committed_end(), offset.since)
        return offset

    def _gone(self, name: str, offset: StreamOffset) -> StreamOffset | None:
        """The offset of a deleted stream, if it was read to its recorded end; else an error or its replacement.

        Of a segment with a recorded end that is the end: its children are read after it. ``None``: it is forgotten.
        """
        rows = () if self._layout is None else self._layout.segments
        row = next((row for row in rows if row.stream == name and row.end and row.end.entry_id >= 0), None)
        if row is not None and is_at_end(row, offset.position):
            return offset
        self._lost(f"stream {name} was deleted; {offset.position} was the last position read")
        return None if row is None else replace(offset, position=row.end)

    def _range(
        self, state: ManifestState | None, name: str, start: StreamOffset | None, end: StreamOffset
    ) -> StreamRange | None:
        begin = begin_of_batch(start, end)
        if end.position is None or (begin is not None and begin >= end.position):
            return None
        if state is None or state.incarnation != end.incarnation:
            self._lost(f"stream {name} was deleted before it was read up to {end.position}")
            return None
        if _is_short(state, end):
            raise BeyondEndError(
                f"stream {name} ends at {state.committed_end()}, but the query's checkpoint has {end.position}",
                last_available=state.committed_end(),
                hint="use the checkpoint directory that belongs to this store",
            )
        if begin is not None and is_lost(state, begin):
            self._lost_head(state, begin)
        ends = whole_range(state)
        first = begin.next() if begin is not None else None
        if ends is None or ends[0] > end.position:
            if begin is None:
                self._lost(f"stream {name} was deleted up to {end.position} and beyond before it was read")
            return None
        return StreamRange(state, ends[0] if first is None else max(ends[0], first), end.position)

    def _lost_head(self, state: ManifestState, position: Position) -> None:
        begin = state.first_position() or state.head
        reached = f"has read it up to {position}" if position.entry_id >= 0 else f"begins at {position.next()}"
        self._lost(f"stream {state.stream} now begins at {begin}, but the query {reached}", begin)

    def _lost(self, what: str, begin: Position | None = None) -> None:
        if self.options.fail_on_data_loss:
            raise TrimmedError(what, first_available=begin, hint=_TO_GO_ON)
        _log.warning("%s; continuing, as failOnDataLoss is false", what)

    def _index(self, stream: str, record: SegmentRecord) -> SegmentMap | None:
        store = self.options.open_store()
        return index_or_none(Fetcher(store, ReadSettings()), objects_of(stream, record, store, self.options.relocate))


def _ends(views: Mapping[str, ManifestState]) -> dict[str, tuple[UUID, int]]:
    """The newest record of each stream."""
    return {name: (state.incarnation, state.record_id) for name, state in views.items()}


def _offset(state: ManifestState, position: Position | None, since: Position | None) -> StreamOffset:
    return StreamOffset(state.incarnation, state.record_id, position, since)


def _is_short(state: ManifestState | None, end: StreamOffset) -> bool:
    committed = None if state is None else state.committed_end()
    return end.position is not None and (committed is None or committed < end.position)


#: Longest wait of a query for the publication of its progress.
PUBLISH_WAIT_S = 10.0
#: Wait before a retry.
RETRY_S = 5.0


class _Told(NamedTuple):
    """Last publication for a stream or topic: ``done`` unless the store failed, repeated at ``again_s``."""

    cut: StreamCut
    done: bool
    again_s: float


class Subscription:
    """Publishes for one query, every ``renew_s`` seconds at least. The first call of ``needs`` starts its thread."""

    def __init__(self, name: str, open_store: Callable[[], ObjectStore], renew_s: float, clock: Clock) -> None:
        self._name = name
        self._open_store = open_store
        self._renew_s = renew_s
        self._clock = clock
        self._condition = threading.Condition()
        self._wanted: dict[str, Position | None] = {}
        self._asked = self._answered = 0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        # Used by the thread only:
        self._retentions: dict[str, StreamRetention] = {}
        self._told: dict[str, _Told] = {}
        self._homes: dict[str, tuple[str, int]] = {}

    def needs(self, first: Mapping[str, Position | None]) -> None:
        """Sets by stream the first position that the query still needs; ``None``: everything, without an entry yet.

        Returns after it is published or refused, or failed and will be retried, or after ``PUBLISH_WAIT_S``.
        """
        with self._condition:
            if self._thread is not None and first == self._wanted:
                return
            self._wanted = dict(first)
            self._asked += 1
            asked = self._asked
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"subscriber {self._name}", daemon=True)
                self._thread.start()
            self._wake.set()
            self._condition.wait_for(lambda: self._answered >= asked, PUBLISH_WAIT_S)

    def stop(self) -> None:
        """Ends the thread after its current call."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(PUBLISH_WAIT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            with self._condition:
                asked, wanted = self._asked, dict(self._wanted)
            try:
                wait_s = self._publish(wanted)
            except Exception:
                # A publication error must not end the query.
                _log.exception("subscriber %s couldn't publish", self._name)
                wait_s = RETRY_S
            with self._condition:
                self._answered = asked
                self._condition.notify_all()
            self._clock.wait(self._wake, wait_s)

    def _publish(self, wanted: Mapping[str, Position | None]) -> float:
        """Publishes new or due positions; returns the seconds until the next publication."""
        store = self._store
        for stream in wanted.keys() - self._homes.keys():
            self._homes[stream] = home_of(store, stream)
        positions: dict[str, dict[int, Position | None]] = {}
        for stream, position in wanted.items():
            place, number = self._homes[stream]
            positions.setdefault(place, {})[number] = position
        places = {place: cut_at(each) for place, each in positions.items()}
        for place, cut in places.items():
            told, now_s = self._told.get(place), self._clock.monotonic_s()
            # After a failure even a new cut waits: the store needs fewer requests.
            is_new = told is None or (told.done and told.cut != cut)
            if is_new or now_s >= self._told[place].again_s:
                done = self._tell(store, place, cut)
                self._told[place] = _Told(cut, done, now_s + (self._renew_s if done else RETRY_S))
        again_s = min((self._told[place].again_s for place in places), default=0.0)
        return max(again_s - self._clock.monotonic_s(), 0.0) if places else self._renew_s

    def _tell(self, store: ObjectStore, place: str, cut: StreamCut) -> bool:
        """Publishes a cut; False: retry soon."""
        try:
            if place not in self._retentions:
                self._retentions[place] = open_retention(store, place, clock=self._clock)
            retention = self._retentions[place]
            if not cut.offsets:
                # A stream without entries has nothing to delete and no position to publish.
                retention.add(self._name)
                return True
            outcome = retention.try_publish(self._name, cut)
            if outcome.status is PublishStatus.SUBSCRIBER_NOT_FOUND:
                retention.add(self._name)
                outcome = retention.try_publish(self._name, cut)
            if outcome.status is not PublishStatus.SUCCESS:
                # For example a restarted query that begins before its published position: renew it nevertheless.
                retention.add(self._name)
                _log.warning("subscriber %s of %s: %s", self._name, place, outcome.why)
        except (InvalidCallError, NotFoundError) as error:
            _log.warning("subscriber %s of %s: %s", self._name, place, error)
        except OffloaderError as error:
            _log.warning("subscriber %s of %s: %s; retrying", self._name, place, error)
            return False
        return True

    @cached_property
    def _store(self) -> ObjectStore:
        store = self._open_store()
        require_conditional_puts(store)
        return store
