"""The bytes that one stream holds in memory, counted exactly.

Owns the counter, its limit, and the chunks it took of the process's budget. Must never block, and never let a caller
take more than there is room for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from formats.entries import ENTRY_HEADER_BYTES
from offloader.write.segment.memory import CHUNK_BYTES_MAX, MemoryBudget

__all__ = ["StreamBuffer"]


class StreamBuffer:
    """A bounded count of bytes, shared by the segments of a stream (one is being completed while the next fills).

    Entries are admitted against the limit with ``take``. What encoding adds to them (block headers, entry tables) is
    counted too, through ``adjust``, and may go above the limit by that much.

    Args:
        limit_bytes: of this stream (``offload_buffer_bytes_max``).
        budget: of the process, ``None``: there is no other limit.
        wake: called when room was granted that ``wait_for_room`` asked for.
        relieve: see ``MemoryBudget.join``.

    Attributes:
        lock: guards the counters. The segments of the stream use it as their own, so that an offer takes one lock.
        held_bytes: counted now.
        granted_bytes: what may be held without asking the budget, at most ``limit_bytes`` but for forced bytes.
    """

    __slots__ = ("_budget", "granted_bytes", "held_bytes", "limit_bytes", "lock")

    def __init__(
        self,
        limit_bytes: int,
        budget: MemoryBudget | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
        relieve: Callable[[], int] = lambda: 0,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.lock = threading.RLock()
        self.held_bytes = 0
        self.granted_bytes = 0 if budget else limit_bytes
        self._budget = budget
        if budget is not None:
            budget.join(self, wake, relieve)

    def __repr__(self) -> str:
        return f"<StreamBuffer {self.held_bytes} of {self.limit_bytes} bytes>"

    @property
    def limits(self) -> dict[str, int]:
        """Name of a setting -> bytes that can never be taken at once because of it."""
        own = {"offload_buffer_bytes_max": self.limit_bytes}
        return own if self._budget is None else {**own, "offload_memory_bytes_max": self._budget.limit_bytes}

    @property
    def room_bytes(self) -> int:
        """What ``take`` would still admit."""
        with self.lock:
            room = self.limit_bytes - self.held_bytes
            if self._budget is not None and room > self.granted_bytes - self.held_bytes:
                room = min(room, self.granted_bytes - self.held_bytes + self._budget.room_for(self))
            return max(0, room)

    def turn_bytes(self, size_bytes: int) -> int:
        """How much of ``size_bytes`` it makes sense to wait for: a small buffer is used in quarters."""
        turn = min(size_bytes, self.limit_bytes // 4)
        return turn if self._budget is None else min(turn, self._budget.turn_bytes())

    def take(self, size_bytes: int) -> bool:
        """Counts ``size_bytes`` more, or answers False and counts nothing."""
        with self.lock:
            held = self.held_bytes + size_bytes
            if held > self.limit_bytes:
                return False
            if held > self.granted_bytes and not self._extend(held - self.granted_bytes):
                return False
            self.held_bytes = held
            return True

    def take_leading(self, payload_bytes: NDArray[np.int32]) -> int:
        """Counts as many of these entries as there is room for, the first ones; how many."""
        ends = np.cumsum(payload_bytes.astype(np.int64) + ENTRY_HEADER_BYTES)
        with self.lock:
            count = int(np.searchsorted(ends, self.room_bytes, side="right"))
            # Another stream may have taken the room since: then nothing is counted, and asked again later.
            return count if count and self.take(int(ends[count - 1])) else 0

    def adjust(self, change_bytes: int) -> None:
        """Corrects the count by what encoding added or an upload gave back."""
        with self.lock:
            self.held_bytes += change_bytes
            assert self.held_bytes >= 0, "more bytes given back than were held"
            if self._budget is None:
                return
            spare = self.granted_bytes - self.held_bytes
            if spare < 0:
                self._budget.force(self, -spare)
                self.granted_bytes = self.held_bytes
                return
            # A chunk is kept, so that a steady stream rarely asks; not while somebody waits for it.
            kept = 0 if self._budget.waiting else min(self.held_bytes, CHUNK_BYTES_MAX)
            if spare > 2 * kept:
                self.granted_bytes -= spare - kept
                self._budget.give_back(self, spare - kept)

    def wait_for_room(self, size_bytes: int) -> bool:
        """Whether there is room for ``size_bytes``; else the process's budget calls ``wake`` when there is.

        When this stream's own limit is what stands in the way, nothing is waited for: its own bytes have to leave.
        """
        with self.lock:
            if self.limit_bytes - self.held_bytes < size_bytes:
                return False
            missing = self.held_bytes + size_bytes - self.granted_bytes
            return missing <= 0 or self._budget is None or self._budget.wait_for(self, missing)

    def stop_waiting(self) -> None:
        """Waits for room no longer, and gives back what was granted meanwhile."""
        if self._budget is not None:
            self._budget.leave_line(self)

    def leave(self) -> None:
        """Gives everything back; nothing is admitted any more."""
        with self.lock:
            self.limit_bytes = self.granted_bytes = 0
            if self._budget is not None:
                self._budget.leave(self)

    def _extend(self, missing_bytes: int) -> bool:
        if self._budget is None:
            return False
        granted = self._budget.take(self, missing_bytes, self.held_bytes)
        self.granted_bytes += granted
        return granted > 0
