"""Memory budget of a process, each stream's share of it, and the limits of a segment."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formats.entries import ENTRY_HEADER_BYTES, EntryBatch
from offloader.settings import OffloadSettings

__all__ = [
    "MemoryBudget",
    "StreamQuota",
    "entries_that_fit",
    "part_bytes_for",
    "segment_bytes_max",
    "segment_is_full",
    "segment_is_old",
]

#: Bounds of a grant: chunks as large as the held bytes, so that an offer rarely needs the process's lock.
CHUNK_BYTES_MIN = 4 * 1024
CHUNK_BYTES_MAX = 256 * 1024
#: Minimum request of a waiting member, as a share of a fair part, so that a grant is worth a read.
TURN_BYTES_MIN = 16 * 1024
TURN_BYTES_MAX = 2 * 1024 * 1024
#: Under pressure at least this share of the budget is kept being flushed.
MOVING_SHARE = 8


@dataclass(slots=True)
class _Member:
    """One stream's buffer: ``wake`` signals granted room, ``relieve`` requests a flush."""

    wake: Callable[[], None]
    relieve: Callable[[], int]
    granted_bytes: int = 0
    #: Granted in the queue and not collected yet; counted in ``granted_bytes``.
    pending_bytes: int = 0


class MemoryBudget:
    """Bounded count of granted bytes. First come, first served: queued members precede new requests.

    Args:
        limit_bytes: for all members together (``offload_memory_bytes_max``).
        on_pressure: called, without a lock, when a member has to wait; should call ``relieve`` soon.
    """

    def __init__(self, limit_bytes: int, on_pressure: Callable[[], None] = lambda: None) -> None:
        self.limit_bytes = limit_bytes
        self.on_pressure = on_pressure
        self._lock = threading.Lock()
        self._members: dict[Hashable, _Member] = {}
        self._waiting: OrderedDict[Hashable, int] = OrderedDict()
        self._granted_bytes = 0

    def __repr__(self) -> str:
        return f"<MemoryBudget {self._granted_bytes} of {self.limit_bytes} bytes, {len(self._waiting)} waiting>"

    @property
    def granted_bytes(self) -> int:
        """Bytes that members may hold now."""
        return self._granted_bytes

    @property
    def waiting(self) -> int:
        """Members in the queue."""
        return len(self._waiting)

    def join(self, who: Hashable, wake: Callable[[], None], relieve: Callable[[], int]) -> None:
        """Add a member.

        Args:
            who: its name in later calls.
            wake: called when bytes were granted that it waited for; must be quick and take no lock of a buffer.
            relieve: called under pressure to flush or drop bytes; returns their number.
        """
        with self._lock:
            self._members[who] = _Member(wake, relieve)

    def leave(self, who: Hashable) -> None:
        """Remove a member and return all its grants."""
        with self._lock:
            member = self._members.pop(who, None)
            self._waiting.pop(who, None)
            self._granted_bytes -= member.granted_bytes if member else 0
            woken = self._serve()
        _wake(woken)

    def take(self, who: Hashable, bytes_min: int, held_bytes: int) -> int:
        """Grant at least ``bytes_min`` more, a chunk where available, or nothing (0)."""
        with self._lock:
            granted = self._taken(who, bytes_min, held_bytes)
            pressed = bool(granted and self._waiting)
        if pressed:
            # The last ``relieve`` didn't count these bytes.
            self.on_pressure()
        return granted

    def _taken(self, who: Hashable, bytes_min: int, held_bytes: int) -> int:
        member = self._members.get(who)
        if member is None:
            return 0
        pending, member.pending_bytes = member.pending_bytes, 0
        if pending >= bytes_min:
            return pending
        missing = bytes_min - pending
        free = self._free()
        if missing > free or not self._is_next(who):
            member.pending_bytes = pending
            return 0
        more = max(missing, min(free, max(CHUNK_BYTES_MIN, min(held_bytes, CHUNK_BYTES_MAX))))
        self._waiting.pop(who, None)
        self._grant(member, more)
        return pending + more

    def force(self, who: Hashable, size_bytes: int) -> None:
        """Count bytes that are held already (overhead of encoding), also above the limit."""
        with self._lock:
            member = self._members.get(who)
            if member is not None:
                self._grant(member, size_bytes)

    def give_back(self, who: Hashable, size_bytes: int) -> None:
        """Take bytes back and grant them to the queue."""
        with self._lock:
            member = self._members.get(who)
            if member is None:
                return
            self._grant(member, -size_bytes)
            woken = self._serve()
            pressed = bool(self._waiting)
        _wake(woken)
        if pressed:
            self.on_pressure()

    def room_for(self, who: Hashable) -> int:
        """Bytes that ``take`` would grant now."""
        with self._lock:
            member = self._members.get(who)
            if member is None:
                return 0
            return member.pending_bytes + (self._free() if self._is_next(who) else 0)

    def turn_bytes(self) -> int:
        """Bytes worth waiting for: a part of a fair share."""
        with self._lock:
            share = self.limit_bytes // (2 * (len(self._waiting) + 1))
        return min(max(TURN_BYTES_MIN, min(TURN_BYTES_MAX, share)), self.limit_bytes)

    def wait_for(self, who: Hashable, size_bytes: int) -> bool:
        """Queue for ``size_bytes``; True when they are available already. ``wake`` is called when they are."""
        with self._lock:
            member = self._members.get(who)
            if member is None:
                return False
            if member.pending_bytes >= size_bytes:
                return True
            if not self._waiting and size_bytes - member.pending_bytes <= self._free():
                more = size_bytes - member.pending_bytes
                self._grant(member, more)
                member.pending_bytes += more
                return True
            # An insufficient grant is returned: if each queued member kept one, no request might ever be satisfied.
            pending, member.pending_bytes = member.pending_bytes, 0
            self._grant(member, -pending)
            # A queued member keeps its place, whatever its new request.
            self._waiting[who] = min(size_bytes, self.limit_bytes)
            woken = self._serve()
        _wake(woken)
        self.on_pressure()
        return False

    def leave_line(self, who: Hashable) -> None:
        """Leave the queue, and return uncollected grants."""
        with self._lock:
            self._waiting.pop(who, None)
            member = self._members.get(who)
            if member is None:
                return
            pending, member.pending_bytes = member.pending_bytes, 0
            self._grant(member, -pending)
            woken = self._serve()
        _wake(woken)

    def relieve(self) -> int:
        """Ask members, the fullest first, to flush as many bytes as the queue needs; returns how many they do.

        While a member waits, some bytes are being flushed, whatever the arrangement of streams. Freed bytes serve the
        queue and trigger this again while members wait.
        """
        with self._lock:
            if not self._waiting:
                return 0
            wanted = max(next(iter(self._waiting.values())), self.limit_bytes // MOVING_SHARE)
            ranked = sorted(
                (member for member in self._members.values() if member.granted_bytes),
                key=lambda member: member.granted_bytes,
                reverse=True,
            )
        moving = 0
        for member in ranked:
            if moving >= wanted:
                break
            moving += member.relieve()
        return moving

    def _is_next(self, who: Hashable) -> bool:
        return not self._waiting or next(iter(self._waiting)) == who

    def _free(self) -> int:
        return max(0, self.limit_bytes - self._granted_bytes)

    def _grant(self, member: _Member, size_bytes: int) -> None:
        member.granted_bytes += size_bytes
        self._granted_bytes += size_bytes
        assert member.granted_bytes >= member.pending_bytes >= 0, "more bytes given back than were granted"

    def _serve(self) -> list[_Member]:
        """Grant to the queue in order while room lasts; returns the served members."""
        woken = []
        while self._waiting:
            who, wanted = next(iter(self._waiting.items()))
            member = self._members[who]
            if wanted > self._free():
                break
            del self._waiting[who]
            self._grant(member, wanted)
            member.pending_bytes += wanted
            woken.append(member)
        return woken


def _wake(members: list[_Member]) -> None:
    for member in members:
        member.wake()


class StreamQuota:
    """Bounded count of bytes, shared by the segments of a stream (one is being completed while the next fills).

    Entries are admitted against the limit with ``take``. The overhead of encoding (block headers, entry tables) is
    counted through ``adjust``, and may exceed the limit by that much.

    Args:
        limit_bytes: of this stream (``offload_buffer_bytes_max``).
        budget: of the process, ``None``: no other limit.
        wake: called when room was granted that ``wait_for_room`` requested.
        relieve: see ``MemoryBudget.join``.

    Attributes:
        lock: guards the counters. The segments of the stream use it as their own, so that an offer takes one lock.
        held_bytes: counted now.
        granted_bytes: may be held without a request to the budget, at most ``limit_bytes`` but for forced bytes.
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
        """Name of a setting -> its upper bound of bytes taken at once."""
        own = {"offload_buffer_bytes_max": self.limit_bytes}
        return own if self._budget is None else {**own, "offload_memory_bytes_max": self._budget.limit_bytes}

    @property
    def room_bytes(self) -> int:
        """Bytes that ``take`` would still admit."""
        with self.lock:
            room = self.limit_bytes - self.held_bytes
            if self._budget is not None and room > self.granted_bytes - self.held_bytes:
                room = min(room, self.granted_bytes - self.held_bytes + self._budget.room_for(self))
            return max(0, room)

    def turn_bytes(self, size_bytes: int) -> int:
        """Part of ``size_bytes`` worth waiting for: a small buffer is used in quarters."""
        turn = min(size_bytes, self.limit_bytes // 4)
        return turn if self._budget is None else min(turn, self._budget.turn_bytes())

    def take(self, size_bytes: int) -> bool:
        """Count ``size_bytes`` more, or return False and count nothing."""
        with self.lock:
            held = self.held_bytes + size_bytes
            if held > self.limit_bytes:
                return False
            if held > self.granted_bytes and not self._extend(held - self.granted_bytes):
                return False
            self.held_bytes = held
            return True

    def take_leading(self, payload_bytes: NDArray[np.int32]) -> int:
        """Count as many leading entries as fit; returns their number."""
        ends = np.cumsum(payload_bytes.astype(np.int64) + ENTRY_HEADER_BYTES)
        with self.lock:
            count = int(np.searchsorted(ends, self.room_bytes, side="right"))
            # Another stream may have taken the room since: then count nothing, and request it again later.
            return count if count and self.take(int(ends[count - 1])) else 0

    def adjust(self, change_bytes: int) -> None:
        """Correct the count by the overhead of encoding or bytes that an upload freed."""
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
            # Keep a chunk, so that a steady stream rarely requests one, unless members wait for it.
            kept = 0 if self._budget.waiting else min(self.held_bytes, CHUNK_BYTES_MAX)
            if spare > 2 * kept:
                self.granted_bytes -= spare - kept
                self._budget.give_back(self, spare - kept)

    def wait_for_room(self, size_bytes: int) -> bool:
        """Whether there is room for ``size_bytes``; else the process's budget calls ``wake`` when there is.

        Doesn't wait if this stream's own limit is exceeded: its own bytes have to be flushed.
        """
        with self.lock:
            if self.limit_bytes - self.held_bytes < size_bytes:
                return False
            missing = self.held_bytes + size_bytes - self.granted_bytes
            return missing <= 0 or self._budget is None or self._budget.wait_for(self, missing)

    def stop_waiting(self) -> None:
        """Stop waiting for room, and return grants received meanwhile."""
        if self._budget is not None:
            self._budget.leave_line(self)

    def leave(self) -> None:
        """Return everything; nothing is admitted any more."""
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


#: S3 takes at most 10,000 parts an object; a tenth is kept for the last segment's overshoot and the block's overhead.
PARTS_MAX = 9_000


def segment_bytes_max(settings: OffloadSettings) -> int:
    """Entry bytes (headers included) at which a segment closes."""
    return max(1, int(settings.max_size_per_offload_segment_mbytes * 1024 * 1024))


def part_bytes_for(settings: OffloadSettings) -> int:
    """Part size of a segment: the setting, or more where the segment would need too many parts."""
    return max(settings.part_bytes, -(-segment_bytes_max(settings) // PARTS_MAX))


def segment_is_full(held_wire_bytes: int, settings: OffloadSettings) -> bool:
    """Whether a segment that took ``held_wire_bytes`` (payloads and 12-byte entry headers) closes now."""
    return held_wire_bytes >= segment_bytes_max(settings)


def segment_is_old(age_s: float, settings: OffloadSettings) -> bool:
    """Whether a segment closes ``age_s`` seconds after its first entry."""
    return age_s >= settings.max_offload_segment_rollover_time_minutes * 60


def entries_that_fit(batch: EntryBatch, held_wire_bytes: int, settings: OffloadSettings) -> int:
    """How many leading entries of ``batch`` belong to a segment that holds ``held_wire_bytes``.

    The entry that reaches the limit is the last one in, so a segment always takes at least one entry.
    """
    free_bytes = segment_bytes_max(settings) - held_wire_bytes
    if batch.wire_bytes <= free_bytes:
        return len(batch)
    sizes = batch.lengths.astype(np.int64) + ENTRY_HEADER_BYTES
    return min(len(batch), int(np.searchsorted(np.cumsum(sizes), free_bytes, side="left")) + 1)
