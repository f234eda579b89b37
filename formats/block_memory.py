"""Memory for the entries of blocks, used again as soon as nobody looks at it any more.

Owns a bounded number of buffers of one length. Must never give out a buffer that anybody still has a view of.

Fresh memory is expensive: the system clears each page before it gives it, which takes longer than filling it with
entries. What was sent is given back by the last view of it that goes, so an attempt that timed out keeps its bytes.
"""

from __future__ import annotations

from collections import deque
from mmap import mmap
from typing import Any

import numpy as np

from formats.buffers import Bytes

__all__ = ["BlockMemory"]


class BlockMemory:
    """Buffers of ``buffer_bytes``. Thread-safe.

    Args:
        buffer_bytes: length of each.
        kept_bytes_max: unused buffers that are kept, together; more are given back to the system.
    """

    def __init__(self, buffer_bytes: int, kept_bytes_max: int) -> None:
        self.buffer_bytes = buffer_bytes
        self._kept_max = kept_bytes_max // buffer_bytes
        self._unused: deque[Bytes] = deque()

    def __repr__(self) -> str:
        return f"<BlockMemory {len(self._unused)} unused of {self.buffer_bytes} bytes>"

    @property
    def kept_bytes(self) -> int:
        """Bytes of unused buffers."""
        return len(self._unused) * self.buffer_bytes

    def take(self) -> Bytes:
        """A buffer, uint8, shape (``buffer_bytes``,), with whatever it holds; back in here when its last view goes."""
        try:
            buffer = self._unused.pop()
        except IndexError:
            # From the system itself: in between the small things of the heap, large ones leave holes when they go.
            buffer = np.frombuffer(mmap(-1, self.buffer_bytes), dtype=np.uint8)
        return np.asarray(_Loan(self, buffer))

    def give_back(self, buffer: Bytes) -> None:
        """Takes a buffer that nobody looks at any more; called by itself."""
        # Two threads may both find room for the last one: that is one buffer above the limit, for a moment.
        if len(self._unused) < self._kept_max:
            self._unused.append(buffer)


class _Loan:
    """What every view of a buffer refers to, through NumPy: when nobody does any more, the buffer is free again."""

    __slots__ = ("__array_interface__", "_buffer", "_memory")

    def __init__(self, memory: BlockMemory, buffer: Bytes) -> None:
        self._memory = memory
        self._buffer = buffer
        self.__array_interface__: dict[str, Any] = dict(buffer.__array_interface__)

    def __del__(self) -> None:
        self._memory.give_back(self._buffer)
