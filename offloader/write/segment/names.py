"""The names of a process's segments: each is used once.

Owns that refusal, for as many names as are worth remembering. Must never make a name.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from uuid import UUID

from offloader.errors import InvalidCall

__all__ = ["SegmentNames"]

#: Names remembered to refuse a second segment of the same name.
REMEMBERED_MAX = 65_536


class SegmentNames:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: OrderedDict[UUID, None] = OrderedDict()

    def claim(self, uuid: UUID) -> None:
        """Takes a name.

        Raises:
            InvalidCall: it was taken before.
        """
        with self._lock:
            if uuid in self._used:
                raise InvalidCall(
                    f"segment {uuid} exists already", hint="each segment and each attempt has its own uuid"
                )
            self._used[uuid] = None
            if len(self._used) > REMEMBERED_MAX:
                self._used.popitem(last=False)
