"""The bytes that all streams of a process hold in memory together, and who gets them when they are scarce.

Owns the process's count, the line of streams that wait for room, and the choice of what is freed for them. Must never
call a stream while it holds its own lock, nor let bytes wait that nothing will ever free.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

__all__ = ["MemoryBudget"]

#: Grants are made in chunks, so that an offer rarely needs the process's lock: as much as is held, between these.
CHUNK_BYTES_MIN = 4 * 1024
CHUNK_BYTES_MAX = 256 * 1024
#: What waits for room asks for at least this share of a fair part, so that a turn is worth a read.
TURN_BYTES_MIN = 16 * 1024
TURN_BYTES_MAX = 2 * 1024 * 1024
#: Under pressure at least this share of the budget is kept moving into the store.
MOVING_SHARE = 8


@dataclass(slots=True)
class _Member:
    """One stream's buffer: ``wake`` tells it that it got room, ``relieve`` asks it to let go of bytes."""

    wake: Callable[[], None]
    relieve: Callable[[], int]
    granted_bytes: int = 0
    #: Granted while it waited in line, and not collected yet; counted in ``granted_bytes``.
    pending_bytes: int = 0


class MemoryBudget:
    """A bounded count of granted bytes. Streams come first come, first served: who waits in line goes before who asks.

    Args:
        limit_bytes: for all members together (``offload_memory_bytes_max``).
        on_pressure: called, without a lock, when somebody has to wait; is to call ``relieve`` soon.
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
        """Members in line."""
        return len(self._waiting)

    def join(self, who: Hashable, wake: Callable[[], None], relieve: Callable[[], int]) -> None:
        """Adds a member.

        Args:
            who: the name it uses from here on.
            wake: called when bytes were granted that it waited for; must be quick and take no lock of a buffer.
            relieve: asked under pressure to bring bytes on their way or to let go of them; how many those are.
        """
        with self._lock:
            self._members[who] = _Member(wake, relieve)

    def leave(self, who: Hashable) -> None:
        """Takes a member out, and everything it was granted back."""
        with self._lock:
            member = self._members.pop(who, None)
            self._waiting.pop(who, None)
            self._granted_bytes -= member.granted_bytes if member else 0
            woken = self._serve()
        _wake(woken)

    def take(self, who: Hashable, bytes_min: int, held_bytes: int) -> int:
        """Grants at least ``bytes_min`` more, a chunk where there is one, or nothing (0)."""
        with self._lock:
            granted = self._taken(who, bytes_min, held_bytes)
            pressed = bool(granted and self._waiting)
        if pressed:
            # What is held from now on wasn't there when ``relieve`` looked last.
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
        """Counts bytes that are held already (what encoding added), also above the limit."""
        with self._lock:
            member = self._members.get(who)
            if member is not None:
                self._grant(member, size_bytes)

    def give_back(self, who: Hashable, size_bytes: int) -> None:
        """Takes bytes back and hands them to those in line."""
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
        """What ``take`` would grant now."""
        with self._lock:
            member = self._members.get(who)
            if member is None:
                return 0
            return member.pending_bytes + (self._free() if self._is_next(who) else 0)

    def turn_bytes(self) -> int:
        """What it makes sense to wait for: a part of a fair share."""
        with self._lock:
            share = self.limit_bytes // (2 * (len(self._waiting) + 1))
        return min(max(TURN_BYTES_MIN, min(TURN_BYTES_MAX, share)), self.limit_bytes)

    def wait_for(self, who: Hashable, size_bytes: int) -> bool:
        """Gets in line for ``size_bytes``; True when they are there already. ``wake`` is called when they are."""
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
            # A grant that isn't enough goes back: if each in line kept a bit, there might never be enough for one.
            pending, member.pending_bytes = member.pending_bytes, 0
            self._grant(member, -pending)
            # Who is in line keeps its place, whatever it asks for now.
            self._waiting[who] = min(size_bytes, self.limit_bytes)
            woken = self._serve()
        _wake(woken)
        self.on_pressure()
        return False

    def leave_line(self, who: Hashable) -> None:
        """Waits no longer, and gives back what was granted in line and not collected."""
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
        """Asks members, the fullest first, to bring bytes on their way, as many as those in line need; how many are.

        Whatever the arrangement of streams: while somebody waits, some bytes move. Each of them that is freed serves
        the line and calls this again while somebody still waits.
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
        """Grants to those in line, in order, as far as it goes; who got something."""
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
