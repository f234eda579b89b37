"""The retention set: cuts that were recorded at a stream's tail, by which later decisions measure and cut.

Owns what enters the set, what leaves it at a truncation, and how it stays small. Must never decide where to truncate,
nor read a clock.

Rules: the retention specification, section 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from offloader.retention.cuts import Cut
from offloader.retention.lineage import Lineage
from offloader.retention.policy import Limits, Unit

__all__ = ["RECORDS_MAX", "Record", "RetentionSet"]

#: What a set is cut down to, whatever the spacing then is. The rule alone needs 16 ln(oldest / newest) records by age
#: and as many by size, so about 1,000; only limits that lie very close to each other need more.
RECORDS_MAX = 4096
#: Of what lies behind a gap, the part that the gap may be.
_GAP_OF_KEPT = 16
#: Of the room between min and max, the part that a gap may be.
_GAP_OF_ROOM = 4


@dataclass(frozen=True, slots=True)
class Record:
    """A cut that was a stream's tail.

    Attributes:
        time_ms: when, ms since 1970 UTC.
        cut: where.
        size_bytes: bytes before it since the stream's creation, ``None`` where unknown.
    """

    time_ms: int
    cut: Cut
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RetentionSet:
    """Recorded cuts of one stream.

    Attributes:
        records: oldest first, times strictly increasing, each cut at or after the one before it.
    """

    records: tuple[Record, ...] = ()

    @property
    def newest(self) -> Record | None:
        return self.records[-1] if self.records else None

    def is_due(self, now_ms: int, period_ms: int) -> bool:
        """Whether the tail is to be recorded: more than ``period_ms`` passed since it last was."""
        return not self.records or now_ms - self.records[-1].time_ms > period_ms

    def add(self, record: Record) -> RetentionSet:
        """With ``record``, unless it isn't newer than the newest."""
        if self.records and record.time_ms <= self.records[-1].time_ms:
            return self
        return replace(self, records=(*self.records, record))

    def up_to_time(self, time_ms: int) -> tuple[Record, ...]:
        """Those recorded at ``time_ms`` or earlier."""
        return self.records[: bisect_right(self.records, time_ms, key=lambda record: record.time_ms)]

    def without_up_to_time(self, time_ms: int) -> RetentionSet:
        """Without those recorded at ``time_ms`` or earlier."""
        return replace(self, records=self.records[len(self.up_to_time(time_ms)) :])

    def at_or_before_size(self, size_bytes: int) -> Record | None:
        """The newest with at most ``size_bytes`` before it."""
        sized = [record for record in self.records if record.size_bytes is not None]
        return _last(sized[: bisect_right(sized, size_bytes, key=lambda record: record.size_bytes or 0)])

    def up_to(self, cut: Cut, lineage: Lineage) -> tuple[Record, ...]:
        """Those at or before ``cut``: what leaves the set when the stream is truncated there."""
        # As each is at or after the one before it, those at or before a cut are the oldest
        return self.records[: bisect_left(self.records, True, key=lambda record: not lineage.reaches(cut, record.cut))]

    def at_or_before(self, cut: Cut, lineage: Lineage) -> Record | None:
        """The newest at or before ``cut``. Data behind ``cut`` is at least as young."""
        return _last(self.up_to(cut, lineage))

    def truncated(self, head: Cut, lineage: Lineage) -> RetentionSet:
        """What is left when ``head`` became the stream's head."""
        return replace(self, records=self.records[len(self.up_to(head, lineage)) :])

    def thinned(self, now_ms: int, limits: Sequence[Limits], used_ms: Collection[int] = ()) -> RetentionSet:
        """Without older records that later decisions can do without.

        Two neighbours stay, or become, at most a quarter of max - min of each of ``limits`` apart, and at most a
        sixteenth of the age and of the size kept behind the younger one. Records are never moved; those that are
        further apart already stay so. Above ``RECORDS_MAX`` the spacing is doubled until they fit.

        Args:
            now_ms: the time.
            limits: by which the set may be asked: a policy's, and those of its fallback.
            used_ms: times of the records that the current decision uses; they stay.
        """
        records, widening = self._spaced(now_ms, limits, used_ms, 1), 2
        while len(records) > max(RECORDS_MAX, 2 + len(used_ms)):
            records, widening = self._spaced(now_ms, limits, used_ms, widening), 2 * widening
        return self if len(records) == len(self.records) else replace(self, records=tuple(records))

    def _spaced(
        self, now_ms: int, limits: Sequence[Limits], used_ms: Collection[int], widening: int
    ) -> Sequence[Record]:
        if len(self.records) <= 2:
            return self.records
        stay = [self.records[0]]
        for record, following in zip(self.records[1:-1], self.records[2:], strict=True):
            if record.time_ms in used_ms or not self._may_neighbour(stay[-1], following, now_ms, limits, widening):
                stay.append(record)
        return [*stay, self.records[-1]]

    def _may_neighbour(
        self, older: Record, younger: Record, now_ms: int, limits: Sequence[Limits], widening: int
    ) -> bool:
        gaps: dict[Unit, int] = {Unit.TIME: younger.time_ms - older.time_ms}
        kept: dict[Unit, int] = {Unit.TIME: now_ms - younger.time_ms}
        newest = self.records[-1]
        if older.size_bytes is not None and younger.size_bytes is not None and newest.size_bytes is not None:
            gaps[Unit.SIZE] = younger.size_bytes - older.size_bytes
            kept[Unit.SIZE] = newest.size_bytes - younger.size_bytes
        if any(gap * _GAP_OF_KEPT > max(kept[unit], 1) * widening for unit, gap in gaps.items()):
            return False
        rooms = [(one.unit, one.max - one.min) for one in limits if one.max is not None]
        # A limit by size tells nothing about records whose size nobody knows
        return all(gaps.get(unit, 0) * _GAP_OF_ROOM <= max(room, 1) * widening for unit, room in rooms)


def _last(records: Sequence[Record]) -> Record | None:
    return records[-1] if records else None
