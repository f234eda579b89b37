"""Memory budget of a process, each stream's share of it, and the limits of a segment."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from formats.entries import ENTRY_HEADER_BYTES, EntryBatch
from offloader.settings import OffloadSettings, Size

#: Bounds of a grant: chunks as large as the held bytes, so that an offer rarely needs the process's lock.
CHUNK_BYTES_MIN = 4 * 1024
CHUNK_BYTES_MAX = 256 * 1024
#: Minimum request of a waiting member, as a share of a fair part, so that a grant is worth a read.
WAIT_BYTES_MIN = 16 * 1024
WAIT_BYTES_MAX = 2 * 1024 * 1024
#: Under pressure at least this share of the budget is kept being flushed.
MOVING_SHARE = 8


@dataclass(slots=True)
class _Member:
    """One stream's buffer: ``wake`` signals granted room, ``request_flush`` requests a flush."""

    wake: Callable[[], None]
    request_flush: Callable[[], int]
    granted_bytes: int = 0
    #: Granted in the queue and not collected yet; counted in ``granted_bytes``.
    pending_bytes: int = 0


class MemoryBudget:
    """Bounded count of granted bytes. First come, first served: queued members precede new requests.

    Args:
        limit_bytes: for all members together (``offload_memory_size_max``).
        on_pressure: called, without a lock, when a member has to wait; should call ``request_flush`` soon.

    Attributes:
        granted_bytes: members may hold them now.
    """

    def __init__(self, limit_bytes: int, on_pressure: Callable[[], None] = lambda: None) -> None:
        self.limit_bytes, self.on_pressure = limit_bytes, on_pressure
        self._lock = threading.Lock()
        self._members: dict[Hashable, _Member] = {}
        self._waiting: OrderedDict[Hashable, int] = OrderedDict()
        self.granted_bytes = 0

    @property
    def waiting(self) -> int:
        """Members in the queue."""
        return len(self._waiting)

    def join(self, who: Hashable, wake: Callable[[], None], request_flush: Callable[[], int]) -> None:
        """Add a member.

        Args:
            who: its name in later calls.
            wake: called when bytes were granted that it waited for; must be quick and take no lock of a buffer.
            request_flush: called under pressure to flush or drop bytes; returns their number.
        """
        with self._lock:
            self._members[who] = _Member(wake, request_flush)

    def leave(self, who: Hashable) -> None:
        """Remove a member and return all its grants; it makes no other call afterwards, except ``leave_line``."""
        with self._freeing():
            self._waiting.pop(who, None)
            self.granted_bytes -= self._members.pop(who).granted_bytes

    def take(self, who: Hashable, bytes_min: int, held_bytes: int) -> int:
        """Grant at least ``bytes_min`` more, a chunk where available, or nothing (0)."""
        with self._lock:
            member, free = self._members[who], self._free()
            granted = member.pending_bytes
            if (missing := bytes_min - granted) > 0:
                if missing > free or not self._is_next(who):
                    return 0
                more = max(missing, min(free, max(CHUNK_BYTES_MIN, min(held_bytes, CHUNK_BYTES_MAX))))
                self._waiting.pop(who, None)
                self._grant(member, more)
                granted += more
            member.pending_bytes = 0
            pressed = bool(self._waiting)
        if pressed:
            # The last ``request_flush`` didn't count these bytes.
            self.on_pressure()
        return granted

    def charge(self, who: Hashable, size_bytes: int) -> None:
        """Count bytes that are held already (overhead of encoding), also above the limit."""
        with self._lock:
            self._grant(self._members[who], size_bytes)

    def give_back(self, who: Hashable, size_bytes: int) -> None:
        """Take bytes back and grant them to the queue."""
        with self._freeing():
            self._grant(self._members[who], -size_bytes)
        if self._waiting:
            self.on_pressure()

    def room_for(self, who: Hashable) -> int:
        """Bytes that ``take`` would grant now."""
        with self._lock:
            return self._members[who].pending_bytes + (self._free() if self._is_next(who) else 0)

    def wait_bytes(self) -> int:
        """Bytes worth waiting for: a part of a fair share."""
        with self._lock:
            share = self.limit_bytes // (2 * (len(self._waiting) + 1))
        return min(max(WAIT_BYTES_MIN, min(WAIT_BYTES_MAX, share)), self.limit_bytes)

    def wait_for(self, who: Hashable, size_bytes: int) -> bool:
        """Queue for ``size_bytes``; True when they are available already. ``wake`` is called when they are."""
        with self._freeing():
            member = self._members[who]
            missing = size_bytes - member.pending_bytes
            if missing <= 0:
                return True
            if not self._waiting and missing <= self._free():
                self._grant_pending(member, missing)
                return True
            # An insufficient grant is returned: if each queued member kept one, no request might ever be satisfied.
            self._grant_pending(member, -member.pending_bytes)
            # A queued member keeps its place, whatever its new request.
            self._waiting[who] = min(size_bytes, self.limit_bytes)
        self.on_pressure()
        return False

    def leave_line(self, who: Hashable) -> None:
        """Leave the queue, and return uncollected grants. No effect after ``leave``."""
        with self._freeing():
            self._waiting.pop(who, None)
            if (member := self._members.get(who)) is not None:
                self._grant_pending(member, -member.pending_bytes)

    def request_flush(self) -> int:
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
            )
        moving = 0
        while ranked and moving < wanted:
            moving += ranked.pop().request_flush()
        return moving

    def _is_next(self, who: Hashable) -> bool:
        return not self._waiting or next(iter(self._waiting)) == who

    def _free(self) -> int:
        return max(0, self.limit_bytes - self.granted_bytes)

    def _grant(self, member: _Member, size_bytes: int) -> None:
        member.granted_bytes += size_bytes
        self.granted_bytes += size_bytes
        assert member.granted_bytes >= member.pending_bytes >= 0, "more bytes given back than were granted"

    def _grant_pending(self, member: _Member, size_bytes: int) -> None:
        member.pending_bytes += size_bytes
        self._grant(member, size_bytes)

    @contextmanager
    def _freeing(self) -> Iterator[None]:
        """Hold the lock; then grant to the queue in order while room lasts, and wake the served members."""
        woken = []
        with self._lock:
            yield
            while self._waiting:
                who, wanted = next(iter(self._waiting.items()))
                if wanted > self._free():
                    break
                del self._waiting[who]
                self._grant_pending(self._members[who], wanted)
                woken.append(self._members[who])
        for member in woken:
            member.wake()


class StreamQuota:
    """Bounded count of bytes, shared by the segments of a stream (one is being completed while the next fills).

    Entries are admitted against the limit with ``take``. The overhead of encoding (block headers, entry tables) is
    counted through ``adjust``, and may exceed the limit by that much.

    Args:
        limit_bytes: of this stream (``offload_buffer_size_max``).
        budget: of the process, ``None``: no other limit.
        wake: called when room was granted that ``wait_for_room`` requested.
        request_flush: see ``MemoryBudget.join``.

    Attributes:
        lock: guards the counters. The segments of the stream use it as their own, so that an offer takes one lock.
        held_bytes: counted now.
        granted_bytes: may be held without a request to the budget, at most ``limit_bytes`` and the forced bytes.
    """

    __slots__ = ("_budget", "granted_bytes", "held_bytes", "limit_bytes", "lock")

    def __init__(
        self,
        limit_bytes: int,
        budget: MemoryBudget | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
        request_flush: Callable[[], int] = lambda: 0,
    ) -> None:
        self.lock = threading.RLock()
        self.limit_bytes, self._budget = limit_bytes, budget
        self.held_bytes, self.granted_bytes = 0, 0 if budget else limit_bytes
        if budget is not None:
            budget.join(self, wake, request_flush)

    @property
    def limits(self) -> dict[str, int]:
        """Name of a setting -> maximum bytes of one call by it."""
        own = {"offload_buffer_size_max": self.limit_bytes}
        return own if (budget := self._budget) is None else {**own, "offload_memory_size_max": budget.limit_bytes}

    @property
    def room_bytes(self) -> int:
        """Bytes that ``take`` would still admit."""
        with self.lock:
            room = self.limit_bytes - self.held_bytes
            if self._budget is not None and room > self.granted_bytes - self.held_bytes:
                room = min(room, self.granted_bytes - self.held_bytes + self._budget.room_for(self))
            return max(0, room)

    def wait_bytes(self, size_bytes: int) -> int:
        """Part of ``size_bytes`` worth waiting for: a small buffer is used in quarters."""
        turn = min(size_bytes, self.limit_bytes // 4)
        return turn if (budget := self._budget) is None else min(turn, budget.wait_bytes())

    def take(self, size_bytes: int) -> bool:
        """Count ``size_bytes`` more, or return False and count nothing."""
        with self.lock:
            held = self.held_bytes + size_bytes
            if held > self.limit_bytes:
                return False
            if held > self.granted_bytes:
                granted = self._budget.take(self, held - self.granted_bytes, self.held_bytes) if self._budget else 0
                if not granted:
                    return False
                self.granted_bytes += granted
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
                self._budget.charge(self, -spare)
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
        if (budget := self._budget) is not None:
            budget.leave_line(self)

    def leave(self) -> None:
        """Return everything; nothing is admitted any more."""
        with self.lock:
            self.limit_bytes = self.granted_bytes = 0
            budget, self._budget = self._budget, None
            if budget is not None:
                budget.leave(self)


#: S3 takes at most 10,000 parts an object; a tenth is kept for the last segment's overshoot and the block's overhead.
PARTS_MAX = 9_000


def sized_for(settings: OffloadSettings, payload_bytes: int) -> OffloadSettings:
    """The settings for an object of so many bytes: a ledger may be larger than a segment, so are its parts."""
    return replace(settings, segment_size_max=max(settings.segment_size_max, Size(2 * payload_bytes)))


def segment_bytes_max(settings: OffloadSettings) -> int:
    """Entry bytes (headers included) at which a segment closes."""
    return max(1, settings.segment_size_max)


def segment_age_s_max(settings: OffloadSettings) -> float:
    """The longest time for which a segment gathers entries."""
    return max(settings.segment_age_max, settings.segment_age_limit if settings.segment_size_min else 0)


def part_bytes_for(settings: OffloadSettings) -> int:
    """Part size of a segment: the setting, or more where the segment would need too many parts."""
    return max(settings.part_size, -(-segment_bytes_max(settings) // PARTS_MAX))


def entries_that_fit(batch: EntryBatch, held_wire_bytes: int, settings: OffloadSettings) -> int:
    """How many leading entries of ``batch`` belong to a segment that holds ``held_wire_bytes``.

    The entry that reaches the limit is the last one in, so a segment always takes at least one entry.
    """
    free_bytes = segment_bytes_max(settings) - held_wire_bytes
    if batch.wire_bytes <= free_bytes:
        return len(batch)
    sizes = batch.lengths.astype(np.int64) + ENTRY_HEADER_BYTES
    return min(len(batch), int(np.searchsorted(np.cumsum(sizes), free_bytes, side="left")) + 1)
