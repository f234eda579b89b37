"""The bytes that one stream holds in memory, counted exactly.

Owns the counter and its limit. Must never block, and never let a caller take more than there is room for.
"""

from __future__ import annotations

import threading

__all__ = ["StreamBuffer"]


class StreamBuffer:
    """A bounded count of bytes, shared by the segments of a stream (one is being completed while the next fills).

    Entries are admitted against the limit with ``take``. What encoding adds to them (block headers, entry tables) is
    counted too, through ``adjust``, and may go above the limit by that much.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held_bytes = 0

    def __repr__(self) -> str:
        return f"<StreamBuffer {self._held_bytes} of {self.limit_bytes} bytes>"

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def room_bytes(self) -> int:
        """What ``take`` would still admit."""
        return max(0, self.limit_bytes - self._held_bytes)

    def take(self, size_bytes: int) -> bool:
        """Counts ``size_bytes`` more, or answers False and counts nothing."""
        with self._lock:
            if self._held_bytes + size_bytes > self.limit_bytes:
                return False
            self._held_bytes += size_bytes
            return True

    def adjust(self, change_bytes: int) -> None:
        """Corrects the count by what encoding added or an upload gave back."""
        with self._lock:
            self._held_bytes += change_bytes
            assert self._held_bytes >= 0, "more bytes given back than were held"
