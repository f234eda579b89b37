"""Cuts of our own streams: how much lies before a position, and which positions there are; pure.

Owns counting from a manifest's columns and the hot tier's list of ledgers. Must never look at an object of a segment,
nor say that more was consumed than was.

A cut has a position per partition: the first entry that isn't before it. Entries are counted in pieces: the part of a
ledger in one segment, or what of a ledger only the hot tier has. A position inside a piece counts as its start for
bytes; entries of a piece without holes are counted exactly. What is nowhere (gaps) counts 0, a partition that a cut
doesn't name as well.

What a truncation removed leaves the manifest at some time. So sizes are counted from a place that stays: see ``Known``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.entries import Position
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.retention.cuts import Cut
from offloader.retention.rows import partition_segment

__all__ = ["Known", "OwnCuts", "PartitionEntries", "Size"]


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
    """What lies before a position since the stream was created, as an earlier look at it found.

    Attributes:
        position: the beginning of the piece that holds the head, which stays while the head is in it; or the head.
        before: what lies before it.
        before_ledger: what lies before the ledger of ``position``: rewriting joins the pieces of whole ledgers, and
            then ``position`` is inside one.
    """

    position: Position
    before: Size
    before_ledger: Size


class PartitionEntries:
    """Where the entries of one partition are, counted. A value.

    Args:
        state: the view of its manifest; ``None``: nothing was ever offloaded.
        ledgers: the hot tier's, ascending; without them the stream ends at the committed end.
        known: where counting begins; ``None``: with the first entry that there is.
    """

    def __init__(
        self, state: ManifestState | None, ledgers: Sequence[LedgerInfo] = (), known: Known | None = None
    ) -> None:
        self._state = state
        self._ledgers = {info.ledger_id: info for info in ledgers}
        self._pieces = _merged(_with_known(_cold_pieces(state), known), list(ledgers))
        self._bytes = np.concatenate([[0], np.cumsum(self._pieces[:, 4])])
        self._entries = np.concatenate([[0], np.cumsum(self._pieces[:, 3])])
        self._offset = NOTHING
        if known is not None:
            self._offset = known.before_ledger.minus(self._raw(Position(known.position.ledger_id, 0)))

    @property
    def head(self) -> Position | None:
        """What lies before it is truncated; ``None``: nothing ever was."""
        return None if self._state is None else self._state.head

    @property
    def first(self) -> Position | None:
        """The first entry that is counted; ``None``: none is."""
        return Position(*self._pieces[0, :2].tolist()) if len(self._pieces) else None

    @cached_property
    def last(self) -> Position | None:
        """The newest entry."""
        row = len(self._pieces) - 1
        return None if row < 0 else Position(int(self._pieces[row, 0]), int(self._pieces[row, 2]))

    @cached_property
    def tail(self) -> Position | None:
        """The position after the newest entry, or the head if that is later; ``None`` where no entry ever was."""
        if self.last is None:
            return self.head
        after = Position(self.last.ledger_id, self.last.entry_id + 1)
        return after if self.head is None else max(after, self.head)

    def before(self, position: Position) -> Size:
        """What lies before a position since the stream was created; O(log n)."""
        return self._offset.plus(self._raw(position))

    def total(self) -> Size:
        """What lies before the tail."""
        return self._offset.plus(Size(int(self._bytes[-1]), int(self._entries[-1])))

    def known(self, head: Position) -> Known:
        """Where a later look may begin to count, when the stream begins at ``head`` by then, or later.

        To be kept durably before a truncation there: the hot tier gives up what lies before it at once, the manifest
        after a time.
        """
        row = self._row(head)
        at = head
        if row >= 0 and head <= self._last_of(row):
            at = Position(int(self._pieces[row, 0]), int(self._pieces[row, 1]))
        return Known(at, self.before(at), self.before(Position(at.ledger_id, 0)))

    def _last_of(self, row: int) -> Position:
        return Position(int(self._pieces[row, 0]), int(self._pieces[row, 2]))

    def canonical(self, position: Position) -> Position:
        """The same place, as the next entry's position where it is the end of a ledger and another one follows."""
        row = self._row(position)
        if row < 0 or row + 1 >= len(self._pieces):
            return position
        ledger_id, first, last = (int(number) for number in self._pieces[row, :3])
        after = Position(int(self._pieces[row + 1, 0]), int(self._pieces[row + 1, 1]))
        is_end = position.ledger_id == ledger_id and position.entry_id == last + 1 and first <= last
        return after if is_end and after.ledger_id > ledger_id and self._ends(Position(ledger_id, last)) else position

    def at_or_before(self, position: Position) -> Position | None:
        """The latest place of this stream at or before a position of somebody who knows other ledgers too.

        ``None``: the position is before everything there is, or there is nothing.
        """
        if self.head is not None and position <= self.head:
            return position
        row = self._row(position)
        if row < 0:
            return self.head
        last = self._last_of(row)
        end = Position(last.ledger_id, last.entry_id + 1)
        return min(position, end) if self.head is None else max(self.head, min(position, end))

    def is_at_tail(self, position: Position) -> bool:
        """Whether no entry lies at or after a position."""
        return self.last is None or position > self.last

    def problem(self, position: Position) -> str:
        """Why a position is no place between two entries of this stream; empty if it is one."""
        if position.ledger_id < 0 or position.entry_id < 0:
            return f"{position} is no position"
        if self.head is not None and position <= self.head:
            return ""  # what was there is gone
        if self.tail is None:
            return f"{position} is beyond the tail: there is no entry"
        row = self._row(position)
        if row >= 0:
            ledger_id, _, last = (int(number) for number in self._pieces[row, :3])
            if position.ledger_id == ledger_id and position.entry_id <= last + 1:
                return ""
        if self._is_in_gap(position) or self._is_begin_of_ledger(position):
            return ""
        if position > self.tail:
            return f"{position} is beyond the tail {self.tail}"
        return f"{position} is no entry's place, nor the end of a ledger"

    def _row(self, position: Position) -> int:
        """The last piece that begins at or before a position; -1: none."""
        pieces = self._pieces
        start = int(np.searchsorted(pieces[:, 0], position.ledger_id, "left"))
        stop = int(np.searchsorted(pieces[:, 0], position.ledger_id, "right"))
        return start + bisect_right(pieces[start:stop, 1], position.entry_id) - 1

    def _raw(self, position: Position) -> Size:
        row = self._row(position)
        if row < 0:
            return NOTHING
        ledger_id, first, last, entries, _ = self._pieces[row].tolist()
        if position > Position(ledger_id, last):
            return Size(int(self._bytes[row + 1]), int(self._entries[row + 1]))
        inside = position.entry_id - first if entries == last - first + 1 else 0
        return Size(int(self._bytes[row]), int(self._entries[row]) + inside)

    def _ends(self, last: Position) -> bool:
        """Whether the source said that a ledger ends there."""
        info = self._ledgers.get(last.ledger_id)
        if info is not None and info.closed:
            return info.last_entry_id == last.entry_id
        return self._state is not None and self._state.closed_ledgers.get(last.ledger_id) == last.entry_id

    def _is_in_gap(self, position: Position) -> bool:
        gaps = () if self._state is None else self._state.gaps
        return any(gap.first <= position <= gap.last for gap in gaps)

    def _is_begin_of_ledger(self, position: Position) -> bool:
        if position.entry_id:
            return False
        closed: Mapping[int, int] = {} if self._state is None else self._state.closed_ledgers
        return position.ledger_id in self._ledgers or position.ledger_id in closed


def _cold_pieces(state: ManifestState | None) -> NDArray[np.int64]:
    """The parts of ledgers that the manifest has up to the committed end: int64, shape (n, 5), ascending."""
    end = None if state is None else state.committed_end()
    if state is None or end is None:
        return np.empty((0, 5), np.int64)
    # Retired ones count as well: their entries were there, and what lies before the head is counted too.
    pieces = state.segments.in_order(None, end).ledger_spans()
    up_to_end = (pieces[:, 0] < end.ledger_id) | ((pieces[:, 0] == end.ledger_id) & (pieces[:, 2] <= end.entry_id))
    committed: NDArray[np.int64] = pieces[up_to_end]
    return committed


def _with_known(cold: NDArray[np.int64], known: Known | None) -> NDArray[np.int64]:
    """The pieces, with what is known of its ledger before a known position as one of them.

    Those that are there of it go: others may have left the manifest. A piece around the position is a rewritten ledger,
    of which everything is there.
    """
    if known is None or known.position.entry_id == 0:
        return cold
    ledger_id, entry_id = known.position
    own = cold[:, 0] == ledger_id
    if bool((own & (cold[:, 1] < entry_id) & (cold[:, 2] >= entry_id)).any()):
        return cold
    part = known.before.minus(known.before_ledger)
    row = np.array([[ledger_id, 0, entry_id - 1, part.entries, part.payload_bytes]], dtype=np.int64)
    pieces = np.concatenate([cold[~(own & (cold[:, 1] < entry_id))], row])
    ordered: NDArray[np.int64] = pieces[np.lexsort((pieces[:, 1], pieces[:, 0]))]
    return ordered


def _merged(cold: NDArray[np.int64], ledgers: Sequence[LedgerInfo]) -> NDArray[np.int64]:
    """The pieces of both tiers, ascending; where both have a ledger, its rest is the hot tier's."""
    counts = {info.ledger_id: info for info in ledgers if info.entries}
    if not counts:
        return cold
    hot = []
    for ledger_id, info in counts.items():
        start, stop = (int(np.searchsorted(cold[:, 0], ledger_id, side)) for side in ("left", "right"))
        own = cold[start:stop]
        first = int(own[-1, 2]) + 1 if len(own) else 0
        if first < info.entries:
            rest = max(info.size_bytes - int(own[:, 4].sum()), 0)
            hot.append((ledger_id, first, info.last_entry_id, info.entries - first, rest))
    pieces = np.concatenate([cold, np.array(hot, dtype=np.int64).reshape(-1, 5)])
    merged: NDArray[np.int64] = pieces[np.lexsort((pieces[:, 1], pieces[:, 0]))]
    return merged


class OwnCuts:
    """Measures and checks cuts of a stream's or a topic's partitions; ``Measure`` and ``CutRules`` in one.

    Args:
        partitions: number -> its entries, counted.
    """

    def __init__(self, partitions: Mapping[int, PartitionEntries]) -> None:
        self.partitions = partitions

    def tail(self) -> Cut:
        """After everything there is; partitions without an entry aren't in it."""
        tails = {number: each.tail for number, each in self.partitions.items()}
        return Cut({partition_segment(number): tail for number, tail in tails.items() if tail is not None})

    def head(self) -> Cut:
        """Where the partitions begin; those of which nothing was truncated aren't in it."""
        heads = {number: each.head for number, each in self.partitions.items()}
        return Cut({partition_segment(number): head for number, head in heads.items() if head is not None})

    def begin(self) -> Cut:
        """Where the partitions begin: their heads, or the first entries; those without an entry aren't in it."""
        firsts = {number: each.head or each.first for number, each in self.partitions.items()}
        return Cut({partition_segment(number): first for number, first in firsts.items() if first is not None})

    def total(self) -> Size:
        """What lies before the tail."""
        return _sum_of(each.total() for each in self.partitions.values())

    def size_before(self, cut: Cut) -> Size:
        """What lies before a cut since the stream was created."""
        positions = ((segment.number, _position(cut, segment.number)) for segment in cut.offsets)
        known = self.partitions
        return _sum_of(known[n].before(position) for n, position in positions if position is not None and n in known)

    def bytes_before(self, cut: Cut) -> int:
        """Payload bytes of ``size_before``."""
        return self.size_before(cut).payload_bytes

    def entries_before(self, cut: Cut) -> int:
        """Entries of ``size_before``."""
        return self.size_before(cut).entries

    def canonical(self, cut: Cut) -> Cut:
        """The same cut, each position as that of the next entry where there is one."""
        known = self.partitions
        return Cut(
            {
                segment: known[segment.number].canonical(offset)
                if isinstance(offset, Position) and segment.number in known
                else offset
                for segment, offset in cut.offsets.items()
            }
        )

    def joined(self, one: Cut, other: Cut) -> Cut:
        """The later of two positions in each partition."""
        later = [
            s
            for s in other.offsets
            if not self._reaches(s.number, _position(one, s.number), _position(other, s.number))
        ]
        return Cut({**one.offsets, **{segment: other.offsets[segment] for segment in later}})

    def problem(self, cut: Cut) -> str:
        """Why a cut is none of this stream's; empty if it is one."""
        if not cut.offsets:
            return "it names no position"
        for segment, offset in cut.offsets.items():
            if segment.epoch or segment.number not in self.partitions:
                return f"the stream has no partition {segment.number}" if not segment.epoch else f"{segment} is none"
            if not isinstance(offset, Position):
                return f"{offset} in partition {segment.number} is no position"
            found = self.partitions[segment.number].problem(offset)
            if found:
                return found if len(self.partitions) == 1 else f"partition {segment.number}: {found}"
        return ""

    def reaches(self, one: Cut, other: Cut) -> bool:
        """Whether ``one`` is at or after ``other`` in each partition."""
        wanted = ((segment.number, _position(other, segment.number)) for segment in other.offsets)
        return all(self._reaches(n, _position(one, n), other) for n, other in wanted if n in self.partitions)

    def _reaches(self, number: int, one: Position | None, other: Position | None) -> bool:
        if other is None or (one is not None and one >= other):
            return True
        each = self.partitions[number]
        # The end of a ledger and the beginning of the next one are the same place.
        return one is not None and each.canonical(one) >= each.canonical(other)


def _sum_of(sizes: Iterable[Size]) -> Size:
    total = NOTHING
    for size in sizes:
        total = total.plus(size)
    return total


def _position(cut: Cut, number: int) -> Position | None:
    offset = cut.offsets.get(partition_segment(number))
    return offset if isinstance(offset, Position) else None
