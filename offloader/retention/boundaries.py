"""Segment boundaries as candidates of a retention decision, with the newest publish time before each. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, Position
from offloader.manifest.state import ManifestState
from offloader.retention.cuts import StreamCut, cut_at
from offloader.retention.entries import StreamEntries
from offloader.retention.state import Record

#: Time of a boundary with entries of unknown publish time before it: later than any time, so it is never old enough.
TIME_UNKNOWN = 2**62


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
        own: gives the positions their normal form.
    """

    ends: Mapping[int, NDArray[np.int64]]
    own: StreamEntries

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
        return self.own.canonical(cut_at({n: Position(int(last[0]), int(last[1])).next() for n, last in lasts.items()}))
