"""How many messages a broker may send before what came was taken.

Owns that count, and the bytes it stands for. Must never promise room that the buffer doesn't have, as far as past
messages tell the size of the next.
"""

from __future__ import annotations

__all__ = ["FlowWindow"]

#: Taken for the size of a message before one was seen; the estimate falls to the real size within a few entries.
FIRST_ESTIMATE_BYTES = 64 * 1024
#: What brokers can count.
PERMITS_MAX = 2**31 - 1


class FlowWindow:
    """Permits count messages, as the protocol has it; the buffer counts bytes. Not thread-safe.

    A broker sends whole batches: it may send more than it was permitted, and what is permitted next is less.

    Args:
        messages_max: sent and not taken.
        bytes_max: about as much, by the largest of the last messages; may be changed.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self.bytes_max = bytes_max
        self._message_bytes = float(FIRST_ESTIMATE_BYTES)
        self._permitted = 0
        self.messages = 0
        self.bytes = 0

    def arrived(self, messages: int, size_bytes: int, *, kept: bool) -> None:
        """An entry arrived, and is in the buffer if it is ``kept``."""
        self._permitted -= messages
        self._message_bytes = max(size_bytes / messages, self._message_bytes * 15 / 16, 1.0)
        if kept:
            self.messages += messages
            self.bytes += size_bytes

    def emptied(self) -> None:
        """All that was kept is taken."""
        self.messages = self.bytes = 0

    def restarted(self) -> None:
        """A broker that knows of no permits begins."""
        self._permitted = 0

    def grant(self) -> int:
        """How many messages to permit now, 0: not worth a command. They count as permitted from here on."""
        by_bytes = int((self.bytes_max - self.bytes) / self._message_bytes)
        room = min(self._messages_max - self.messages, by_bytes)
        if not self.messages:
            room = max(room, 1)  # one message must fit, however large
        more = min(room - self._permitted, PERMITS_MAX)
        if more <= 0 or more < room // 2:
            return 0
        self._permitted += more
        return more
