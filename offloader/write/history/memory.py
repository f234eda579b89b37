"""What the segments of one run over a stream's history may hold in memory.

Owns the run's share of the process's budget. Must never make live streams wait for more than one of its segments.
"""

from __future__ import annotations

from collections.abc import Callable

from offloader.settings import OffloadSettings
from offloader.write.segment.assignment import part_bytes_for, segment_bytes_max
from offloader.write.segment.by_ledger import READ_BYTES
from offloader.write.segment.memory import MemoryBudget

__all__ = ["HistoryMemory", "parts_at_once", "segment_memory_bytes"]

#: Several segments together take at most this share of the budget; the first one takes what it needs.
HISTORY_SHARE = 2


def segment_memory_bytes(settings: OffloadSettings, parts_max: int = 1) -> int:
    """What reading and uploading one segment holds: a read, the open part, the blocks on their way into it, and the
    parts that are sent meanwhile, ``parts_max`` of them; 1: none is made while one is sent."""
    segment_bytes = segment_bytes_max(settings)
    part_bytes = min(part_bytes_for(settings), segment_bytes)
    parts = 1 if parts_max == 1 else 1 + parts_max
    return READ_BYTES + parts * part_bytes + 2 * min(settings.block_bytes, segment_bytes)


def parts_at_once(settings: OffloadSettings, segments_max: int, limit_bytes: int) -> int:
    """Parts of each segment of a run to be sent at once: together as many as of one live segment, as far as the
    segments' share of the budget has room. Several segments on their way keep a store busy by themselves.

    Args:
        segments_max: of the run, on their way at once.
        limit_bytes: the process's budget.
    """
    parts = max(1, settings.parts_in_flight_max // segments_max)
    while parts > 1 and segments_max * segment_memory_bytes(settings, parts) * HISTORY_SHARE > limit_bytes:
        parts -= 1
    return parts


class HistoryMemory:
    """Reservations of one size, one for each segment on its way. Used by one thread at a time.

    Args:
        budget: of the process.
        segment_bytes: of one reservation; less where the whole budget is smaller.

    Attributes:
        wake: called when there is room that ``take`` waits for; set by the run.
    """

    def __init__(self, budget: MemoryBudget, segment_bytes: int) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._budget = budget
        self._segment_bytes = min(segment_bytes, budget.limit_bytes)
        self._granted_bytes = 0
        self._segments = 0
        self._joined = False

    def take(self) -> bool:
        """Reserves room for one more segment; False: not now. The first one gets in line, and ``wake`` is called."""
        if not self._joined:
            # Under pressure nothing has to be asked of it: what is reserved is on its way and comes back.
            self._budget.join(self, lambda: self.wake(), lambda: self._granted_bytes)
            self._joined = True
        wanted = (self._segments + 1) * self._segment_bytes
        missing = wanted - self._granted_bytes
        if missing > 0:
            if self._segments == 0:
                there = self._budget.wait_for(self, missing)
            else:
                there = wanted * HISTORY_SHARE <= self._budget.limit_bytes and self._budget.room_for(self) >= missing
            granted = self._budget.take(self, missing, 0) if there else 0
            if granted == 0:
                return False
            self._granted_bytes += granted
        self._segments += 1
        return True

    def keep(self, segments: int, *, leave: bool) -> None:
        """Gives back what more than ``segments`` segments were granted.

        Args:
            leave: nothing more will be taken: with no segment left, nothing is waited for either.
        """
        if not self._joined or segments > self._segments:
            return
        self._segments = segments
        over = self._granted_bytes - segments * self._segment_bytes
        if over > 0:
            self._granted_bytes -= over
            self._budget.give_back(self, over)
        if leave and segments == 0:
            self._joined = False
            self._budget.leave(self)
