"""Entries of a stream's partitions in both tiers: sizes before cuts, valid positions, and ends of segments. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, Position
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.retention.cuts import Record, StreamCut, cut_at, partition_segment

#: Time of a boundary with entries of unknown publish time before it: later than any time, so it is never old enough.
TIME_UNKNOWN = 2**62


class Size(NamedTuple):
    """Payload bytes before compression, and entries."""

    payload_bytes: int
    entries: int

    def plus(self, other: Size) -> Size:
        return Size(self.payload_bytes + other.payload_bytes, self.entries + other.entries)

    def minus(self, other: Size) -> Size:
        return Size(self.payload_bytes - other.payload_bytes, self.entries - other.entries)


NOTHING = Size(0, 0)


@dataclass(frozen=True, slots=True)
class Known:
    """Size before a position since the stream was created, as counted earlier.

    Attributes:
        position: the beginning of the piece with the head, while the head is in that piece; or the head.
        before: the size before it.
        before_ledger: the size before its ledger: compaction joins the pieces of ledgers, then it is inside one.
    """

    position: Position
    before: Size
    before_ledger: Size

    def raised(self, more: Size) -> Known:
        """The same with ``more`` before it."""
        return Known(self.position, self.before.plus(more), self.before_ledger.plus(more))


class PartitionEntries:
    """Counted entries of one partition, as a value.

    Args:
        state: the view of its manifest.
        ledgers: the hot tier's, ascending; without them the stream ends at the committed end.
        known: where counting begins; ``None``: at the first existing entry.
    """

    def __init__(self, state: ManifestState, ledgers: Sequence[LedgerInfo] = (), known: Known | None = None) -> None:
        #: The start position; ``None``: never truncated.
        self.head = state.head
        #: The counted pieces. A newer manifest has ends of segments inside one of them.
        self.state = state
        self._ledgers = {info.ledger_id: info for info in ledgers}
        self._pieces = _merged(_with_known(_cold_pieces(state), known), list(ledgers))
        self._bytes = np.concatenate([[0], np.cumsum(self._pieces[:, 4])])
        self._entries = np.concatenate([[0], np.cumsum(self._pieces[:, 3])])
        self._offset = (
            NOTHING if known is None else known.before_ledger.minus(self._raw(Position(known.position.ledger_id, 0)))
        )
        self._total = self._offset.plus(Size(int(self._bytes[-1]), int(self._entries[-1])))

    @property
    def first(self) -> Position | None:
        """The first counted entry; ``None``: none."""
        return self._first_of(0) if len(self._pieces) else None

    @cached_property
    def tail(self) -> Position | None:
        """The position after the newest entry, or the start position if later; ``None`` where no entry ever was."""
        after_last = self._last_of(-1).next() if len(self._pieces) else None
        return max((each for each in (self.head, after_last) if each is not None), default=None)

    def before(self, position: Position) -> Size:
        """Size before a position since the stream was created; O(log n)."""
        return self._offset.plus(self._raw(position))

    def bytes_in_doubt(self, position: Position) -> int:
        """Payload bytes that may lie before a position beyond ``before``: of the piece that it is inside of."""
        row = self._row(position)
        is_inside = row >= 0 and self._first_of(row) < position <= self._last_of(row)
        return int(self._pieces[row, 4]) if is_inside else 0

    def total(self) -> Size:
        """Size before the tail."""
        return self._total

    def known(self, head: Position) -> Known:
        """Where a later count may begin, once the stream begins at ``head`` or later.

        Make it durable before truncating there: the hot tier deletes earlier entries immediately, the manifest later.
        """
        row = self._row(head)
        at = self._first_of(row) if row >= 0 and head <= self._last_of(row) else head
        return Known(at, self.before(at), self.before(Position(at.ledger_id, 0)))

    def _first_of(self, row: int) -> Position:
        return Position(int(self._pieces[row, 0]), int(self._pieces[row, 1]))

    def _last_of(self, row: int) -> Position:
        return Position(int(self._pieces[row, 0]), int(self._pieces[row, 2]))

    def canonical(self, position: Position) -> Position:
        """The same place; at the end of a ledger with a successor, the position of the next entry."""
        row = self._row(position)
        if row < 0 or row + 1 >= len(self._pieces):
            return position
        last, after = self._last_of(row), self._first_of(row + 1)
        is_end = position == last.next() and self._first_of(row) <= last and after.ledger_id > last.ledger_id
        return after if is_end and self._ends(last) else position

    def at_or_before(self, position: Position) -> Position | None:
        """The latest place of this stream at or before a position that may be in an unknown ledger; ``None``: none."""
        if self.head is not None and position <= self.head:
            return position
        if (row := self._row(position)) < 0:
            return self.head
        found = min(position, self._last_of(row).next())
        return found if self.head is None else max(self.head, found)

    def problem(self, position: Position) -> str:
        """Why a position isn't between two entries of this stream; empty if it is."""
        if position.ledger_id < 0 or position.entry_id < 0:
            return f"{position} is not a position"
        if self.head is not None and position <= self.head:
            return ""  # its entries are deleted
        if self.tail is None:
            return f"{position} is beyond the tail: there is no entry"
        row = self._row(position)
        is_inside = row >= 0 and position.ledger_id == self._pieces[row, 0] and position <= self._last_of(row).next()
        is_begin = position.entry_id == 0 and (
            position.ledger_id in self._ledgers or position.ledger_id in self.state.closed_ledgers
        )
        if is_inside or is_begin or any(gap.first <= position <= gap.last for gap in self.state.gaps):
            return ""
        if position > self.tail:
            return f"{position} is beyond the tail {self.tail}"
        return f"{position} is no entry's place, nor the end of a ledger"

    def _row(self, position: Position) -> int:
        """The last piece that begins at or before a position; -1: none."""
        ledger_ids = self._pieces[:, 0]
        stop = int(ledger_ids.searchsorted(position.ledger_id, "right"))
        row = stop - 1
        # Most ledgers are one piece, and most others are looked up near their end.
        if row >= 0 and self._pieces[row, 0] == position.ledger_id and self._pieces[row, 1] > position.entry_id:
            start = int(ledger_ids.searchsorted(position.ledger_id, "left"))
            row = start + bisect_right(self._pieces[start:stop, 1], position.entry_id) - 1
        return row

    def _raw(self, position: Position) -> Size:
        if (row := self._row(position)) < 0:
            return NOTHING
        ledger_id, first, last, entries, _ = self._pieces[row].tolist()
        if position > (ledger_id, last):
            return Size(int(self._bytes[row + 1]), int(self._entries[row + 1]))
        inside = position.entry_id - first if entries == last - first + 1 else 0
        return Size(int(self._bytes[row]), int(self._entries[row]) + inside)

    def _ends(self, last: Position) -> bool:
        """Whether the source reported the ledger's end there."""
        if (info := self._ledgers.get(last.ledger_id)) is not None and info.closed:
            return info.last_entry_id == last.entry_id
        return self.state.closed_ledgers.get(last.ledger_id) == last.entry_id


def _cold_pieces(state: ManifestState) -> NDArray[np.int64]:
    """Parts of ledgers in the manifest up to the committed end: int64, shape (n, 5), ascending."""
    if (end := state.committed_end()) is None:
        return np.empty((0, 5), np.int64)
    # Include retired ones: the size before the start position counts too.
    pieces = state.segments.in_order(None, end).ledger_spans()
    up_to_end = (pieces[:, 0] < end.ledger_id) | ((pieces[:, 0] == end.ledger_id) & (pieces[:, 2] <= end.entry_id))
    return pieces.compress(up_to_end, axis=0)


def _with_known(cold: NDArray[np.int64], known: Known | None) -> NDArray[np.int64]:
    """The pieces, with the known size of the ledger before a known position as one of them.

    It replaces those left in the manifest, unless all of them are. A piece around the position is a rewritten, complete
    ledger.
    """
    if known is None or known.position.entry_id == 0:
        return cold
    ledger_id, entry_id = known.position
    own = cold[:, 0] == ledger_id
    if bool((own & (cold[:, 1] < entry_id) & (cold[:, 2] >= entry_id)).any()):
        return cold
    part = known.before.minus(known.before_ledger)
    left = cold[own & (cold[:, 1] < entry_id)]
    if (int(left[:, 3].sum()), int(left[:, 4].sum())) == (part.entries, part.payload_bytes):
        return cold  # all pieces exist: ends of segments in front of the position remain exact
    row = np.array([[ledger_id, 0, entry_id - 1, part.entries, part.payload_bytes]], dtype=np.int64)
    return _ordered(cold[~(own & (cold[:, 1] < entry_id))], row)


def _merged(cold: NDArray[np.int64], ledgers: Sequence[LedgerInfo]) -> NDArray[np.int64]:
    """Pieces of both tiers, ascending; of a ledger in both, the hot tier supplies the rest."""
    if not (counts := {info.ledger_id: info for info in ledgers if info.entries}):
        return cold
    hot = []
    for ledger_id, info in counts.items():
        start, stop = (int(np.searchsorted(cold[:, 0], ledger_id, side)) for side in ("left", "right"))
        own = cold[start:stop]
        first = int(own[-1, 2]) + 1 if len(own) else 0
        if first < info.entries:
            rest = max(info.size_bytes - int(own[:, 4].sum()), 0)
            hot.append((ledger_id, first, info.last_entry_id, info.entries - first, rest))
    return _ordered(cold, np.array(hot, dtype=np.int64).reshape(-1, 5))


def _ordered(*given: NDArray[np.int64]) -> NDArray[np.int64]:
    pieces = np.concatenate(given)
    return pieces.take(np.lexsort((pieces[:, 1], pieces[:, 0])), axis=0)


class StreamEntries:
    """Measures and checks cuts of a stream's or a topic's partitions; implements ``Measure`` and ``CutRules``.

    Args:
        partitions: number -> entries.
        recorded: recorded cuts and the sizes measured then, oldest first. A position inside a block counts as the
            block's start, so a recorded cut at or before it may be a better bound. Neither overstates the size.
        more: partition -> payload bytes that its entries lack.
    """

    def __init__(
        self,
        partitions: Mapping[int, PartitionEntries],
        recorded: Sequence[tuple[StreamCut, int]] = (),
        more: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.partitions = partitions
        self._recorded = recorded
        self._more = more

    def tail(self) -> StreamCut:
        """The cut after all entries, without partitions that have none."""
        return cut_at({number: each.tail for number, each in self.partitions.items()})

    def head(self) -> StreamCut:
        """Start positions of the partitions, without those never truncated."""
        return cut_at({number: each.head for number, each in self.partitions.items()})

    def begin(self) -> StreamCut:
        """Begin of the partitions: the start position, or the first entry; without partitions that have none."""
        return cut_at({number: each.head or each.first for number, each in self.partitions.items()})

    def total(self) -> Size:
        """Size before the tail."""
        return _sum(each.total() for each in self.partitions.values())

    def size_before(self, cut: StreamCut) -> Size:
        """Size before a cut since the stream was created."""
        return _sum(entries.before(position) for entries, position in self._places(cut))

    def _places(self, cut: StreamCut) -> Iterator[tuple[PartitionEntries, Position]]:
        for segment in cut.offsets:
            position = _position(cut, segment.number)
            if segment.number in self.partitions and position is not None:
                yield self.partitions[segment.number], position

    def bytes_before(self, cut: StreamCut) -> int:
        """Payload bytes before a cut since the stream was created, no fewer than before an earlier recorded one."""
        count = self._recorded_before(cut)
        least = self._recorded[count - 1][1] if count else 0
        more = sum(self._more.get(segment.number, 0) for segment in cut.offsets)
        return max(self.size_before(cut).payload_bytes + more, least)

    def _recorded_before(self, cut: StreamCut) -> int:
        """How many recorded cuts are at or before a cut."""
        return bisect_right(self._recorded, False, key=lambda each: not self.reaches(cut, each[0]))

    def bytes_after(self, cut: StreamCut) -> int:
        """Payload bytes from a cut to the tail: fewer than recorded sizes tell if a partition was deleted since."""
        return self.total().payload_bytes - self.size_before(cut).payload_bytes

    def bytes_in_doubt(self, cut: StreamCut) -> int:
        """Payload bytes that may lie before a cut beyond ``bytes_before``: of pieces that it is inside of.

        None where the cut was recorded.
        """
        count = self._recorded_before(cut)
        if count and self.reaches(self._recorded[count - 1][0], cut):
            return 0
        return sum(entries.bytes_in_doubt(position) for entries, position in self._places(cut))

    def entries_before(self, cut: StreamCut) -> int:
        """Entries of ``size_before``."""
        return self.size_before(cut).entries

    def canonical(self, cut: StreamCut) -> StreamCut:
        """The same cut, with each position as that of the next entry where one exists."""
        known = {
            segment: self.partitions[segment.number].canonical(offset)
            for segment, offset in cut.offsets.items()
            if isinstance(offset, Position) and segment.number in self.partitions
        }
        return StreamCut({**cut.offsets, **known})

    def problem(self, cut: StreamCut) -> str:
        """Why a cut isn't valid in this stream; empty if it is."""
        if not cut.offsets:
            return "it names no position"
        for segment, offset in cut.offsets.items():
            if segment.epoch:
                return f"{segment} is none"
            if segment.number not in self.partitions:
                return f"the stream has no partition {segment.number}"
            if not isinstance(offset, Position):
                return f"{offset} in partition {segment.number} is not a position"
            if found := self.partitions[segment.number].problem(offset):
                return found if len(self.partitions) == 1 else f"partition {segment.number}: {found}"
        return ""

    def reaches(self, one: StreamCut, other: StreamCut) -> bool:
        """Whether ``one`` is at or after ``other`` in each partition."""
        wanted = ((segment.number, _position(other, segment.number)) for segment in other.offsets)
        return all(self._reaches(n, _position(one, n), other) for n, other in wanted if n in self.partitions)

    def _reaches(self, number: int, one: Position | None, other: Position | None) -> bool:
        if other is None or (one is not None and one >= other):
            return True
        each = self.partitions[number]
        # The end of a ledger and the beginning of the next one are the same place.
        return one is not None and each.canonical(one) >= each.canonical(other)


def _sum(sizes: Iterable[Size]) -> Size:
    payload_bytes = entries = 0
    for each in sizes:
        payload_bytes += each.payload_bytes
        entries += each.entries
    return Size(payload_bytes, entries)


def _position(cut: StreamCut, number: int) -> Position | None:
    offset = cut.offsets.get(partition_segment(number))
    return offset if isinstance(offset, Position) else None


# --- ends of segments as candidates -----------------------------------------------------------------------------------


def segment_ends(state: ManifestState) -> NDArray[np.int64]:
    """The last position of each segment of a stream, and the newest publish time from its start position to there.

    Returns:
        int64, shape (n, 3), ascending: ledger id, entry id, ms since 1970 UTC or ``TIME_UNKNOWN``.
    """
    if (end := state.prefix_end()) is None:
        return np.empty((0, 3), np.int64)
    found = state.offloaded(state.head, end).ends()
    times = np.where(found[:, 2] == TIME_UNKNOWN_MS, TIME_UNKNOWN, found[:, 2])
    found[:, 2] = np.maximum.accumulate(times)
    inside = (found[:, 0] < end.ledger_id) | ((found[:, 0] == end.ledger_id) & (found[:, 1] <= end.entry_id))
    return found.compress(inside, axis=0)


@dataclass(frozen=True, slots=True)
class Ahead:
    """Entries with a publish time in the future. No end of a segment from theirs on is old enough before that time.

    Attributes:
        stream: the stream, or the topic's partition.
        first, last: of the segment that has them.
        time_ms: the newest publish time in it.
    """

    stream: str
    first: Position
    last: Position
    time_ms: int


def published_ahead(state: ManifestState, after_ms: int) -> Ahead | None:
    """The first segment with entries published after a time; ``None``: there is none."""
    if (end := state.prefix_end()) is None:
        return None
    segments = state.offloaded(state.head, end)
    ends = segments.ends()
    rows = np.flatnonzero(ends[:, 2] > after_ms)
    if not len(rows):
        return None
    row = int(rows[0])
    ledger_id, entry_id, time_ms = ends[row].tolist()
    return Ahead(state.stream, segments[row].begin, Position(ledger_id, entry_id), time_ms)


@dataclass(frozen=True)
class Boundaries(Sequence[Record]):
    """The boundaries of a stream's or a topic's segments, oldest first: ``Record``s derived from segments.

    Boundaries of several partitions are joined at one publish time: each partition's latest boundary with no younger
    entry before it. Cuts are built on access, because a decision looks at few of them.

    Attributes:
        ends: by partition, as ``segment_ends``.
        canonical: gives a cut its normal form: a cut before another one doesn't become a later one.
    """

    ends: Mapping[int, NDArray[np.int64]]
    canonical: Callable[[StreamCut], StreamCut]

    @cached_property
    def _times(self) -> NDArray[np.int64]:
        each = [ends[:, 2] for ends in self.ends.values()]
        return each[0] if len(each) == 1 else np.unique(np.concatenate([np.empty(0, np.int64), *each]))

    def __len__(self) -> int:
        return len(self._times)

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Record]: ...

    def __getitem__(self, at: int | slice) -> Record | Sequence[Record]:
        if isinstance(at, slice):
            return [self[row] for row in range(len(self))[at]]
        row = range(len(self))[at]
        time_ms = int(self._times[row])
        if len(self.ends) == 1:
            return Record(time_ms, self._cut(dict.fromkeys(self.ends, row)))
        rows = {number: bisect_right(ends[:, 2], time_ms) - 1 for number, ends in self.ends.items()}
        return Record(time_ms, self._cut(rows))

    def _cut(self, rows: Mapping[int, int]) -> StreamCut:
        """The cut after the segments in those rows; -1: nothing of the partition is before it."""
        lasts = {number: self.ends[number][row] for number, row in rows.items() if row >= 0}
        return self.canonical(cut_at({n: Position(int(last[0]), int(last[1])).next() for n, last in lasts.items()}))
