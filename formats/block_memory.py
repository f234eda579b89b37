"""Pool of equal buffers for the entries of blocks, bounded in unused memory.

A buffer is reused only after its last view is released: an upload attempt that timed out keeps its bytes. Reuse avoids
fresh memory, which the system clears page by page in more time than filling it takes.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from formats.entries import Bytes

#: Buffers are cut from mappings of this size, which the system backs with a few huge pages instead of thousands.
_STRETCH_BYTES = 8 * 1024 * 1024


class _Buffer(NamedTuple):
    data: Bytes
    stretch: mmap.mmap
    offset: int


class BlockMemory:
    """Pool of buffers of ``buffer_bytes``. Thread-safe.

    Args:
        buffer_bytes: length of each.
        kept_bytes_max: total of unused buffers that are kept; the memory of others is returned to the system.
    """

    def __init__(self, buffer_bytes: int, kept_bytes_max: int) -> None:
        self.buffer_bytes = buffer_bytes
        self._kept_max = kept_bytes_max // buffer_bytes
        self._unused: deque[_Buffer] = deque()
        #: Buffers without memory: addresses only, as many as were ever in use together.
        self._empty: deque[_Buffer] = deque()

    def take(self) -> Bytes:
        """A buffer, uint8, shape (``buffer_bytes``,), uninitialised; released with its last view."""
        for buffers in (self._unused, self._empty):
            with contextlib.suppress(IndexError):
                return np.asarray(_Loan(self, buffers.pop()))
        # Two threads may both find none and map more: those are addresses, which get memory on use.
        first, *others = self._made()
        self._empty.extend(reversed(others))
        return np.asarray(_Loan(self, first))

    def give_back(self, buffer: _Buffer) -> None:
        """Returns a buffer without views to the pool; called automatically."""
        # Two threads may both take the last place: the limit is exceeded by one buffer for a moment.
        if len(self._unused) < self._kept_max:
            self._unused.append(buffer)
            return
        # Its pages return to the system; the addresses remain reserved.
        buffer.stretch.madvise(mmap.MADV_DONTNEED, buffer.offset, _paged(self.buffer_bytes))
        self._empty.append(buffer)

    def _made(self) -> list[_Buffer]:
        """Maps new buffers.

        Mapped directly, because freed large buffers would fragment the heap. Private, because Python's default mapping
        is shared with forked processes, which would write into each other's blocks, and can't use huge pages.
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
    """Base object of all views of a buffer, through NumPy; its destruction frees the buffer."""

    __slots__ = ("__array_interface__", "_buffer", "_memory")

    def __init__(self, memory: BlockMemory, buffer: _Buffer) -> None:
        self._memory = memory
        self._buffer = buffer
        self.__array_interface__: dict[str, Any] = dict(buffer.data.__array_interface__)

    def __del__(self) -> None:
        self._memory.give_back(self._buffer)


def _paged(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
