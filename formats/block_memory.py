"""Memory for the entries of blocks, used again as soon as nobody looks at it any more.

Owns a bounded number of buffers of one length. Must never give out a buffer that anybody still has a view of.

Fresh memory is expensive: the system clears each page before it gives it, which takes longer than filling it with
entries. What was sent is given back by the last view of it that goes, so an attempt that timed out keeps its bytes.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from formats.entries import Bytes

__all__ = ["BlockMemory"]

#: Buffers are cut from stretches of this size, which the system fills with a few huge pages instead of thousands.
_STRETCH_BYTES = 8 * 1024 * 1024


class _Buffer(NamedTuple):
    """One buffer, and where it lies in its stretch."""

    data: Bytes
    stretch: mmap.mmap
    offset: int

    def empty(self) -> None:
        """Gives its pages back to the system; the addresses stay."""
        self.stretch.madvise(mmap.MADV_DONTNEED, self.offset, _paged(len(self.data)))


class BlockMemory:
    """Buffers of ``buffer_bytes``. Thread-safe.

    Args:
        buffer_bytes: length of each.
        kept_bytes_max: unused buffers that are kept, together; the memory of more is given back to the system.
    """

    def __init__(self, buffer_bytes: int, kept_bytes_max: int) -> None:
        self.buffer_bytes = buffer_bytes
        self._kept_max = kept_bytes_max // buffer_bytes
        self._unused: deque[_Buffer] = deque()
        #: Without memory: addresses only, as many as there ever were buffers at once.
        self._empty: deque[_Buffer] = deque()

    def __repr__(self) -> str:
        return f"<BlockMemory {len(self._unused)} unused of {self.buffer_bytes} bytes>"

    @property
    def kept_bytes(self) -> int:
        """Bytes of unused buffers."""
        return len(self._unused) * self.buffer_bytes

    def take(self) -> Bytes:
        """A buffer, uint8, shape (``buffer_bytes``,), with whatever it holds; back in here when its last view goes."""
        for buffers in (self._unused, self._empty):
            with contextlib.suppress(IndexError):
                return np.asarray(_Loan(self, buffers.pop()))
        # Two threads may both find none and make more: those are addresses, and get memory when they are used.
        first, *others = self._made()
        self._empty.extend(reversed(others))
        return np.asarray(_Loan(self, first))

    def give_back(self, buffer: _Buffer) -> None:
        """Takes a buffer that nobody looks at any more; called by itself."""
        # Two threads may both find room for the last one: that is one buffer above the limit, for a moment.
        if len(self._unused) < self._kept_max:
            self._unused.append(buffer)
            return
        buffer.empty()
        self._empty.append(buffer)

    def _made(self) -> list[_Buffer]:
        """A stretch of new buffers.

        From the system itself: in between the small things of the heap, large ones leave holes when they go. And
        private: what Python maps by default is shared with forked processes, which would write into each other's
        blocks, and can't be had in huge pages.
        """
        step = _paged(self.buffer_bytes)
        count = max(1, _STRETCH_BYTES // step)
        stretch = mmap.mmap(-1, count * step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                stretch.madvise(mmap.MADV_HUGEPAGE)
        everything = np.frombuffer(stretch, dtype=np.uint8)
        return [
            _Buffer(everything[offset : offset + self.buffer_bytes], stretch, offset)
            for offset in range(0, count * step, step)
        ]


class _Loan:
    """What every view of a buffer refers to, through NumPy: when nobody does any more, the buffer is free again."""

    __slots__ = ("__array_interface__", "_buffer", "_memory")

    def __init__(self, memory: BlockMemory, buffer: _Buffer) -> None:
        self._memory = memory
        self._buffer = buffer
        self.__array_interface__: dict[str, Any] = dict(buffer.data.__array_interface__)

    def __del__(self) -> None:
        self._memory.give_back(self._buffer)


def _paged(size_bytes: int) -> int:
    """In whole pages."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
