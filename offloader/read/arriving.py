"""Blocks of a request that are decoded one after the other while it is answered, all out of the same memory.

Owns that memory, and what came of each block. Must never hand a view of it out, nor decide anything before all of the
answer is there.

A decoder that begins when all of 16 MiB came fetches from main memory what was in the processor's cache a moment
before. A block's entries are copied out of it anyway, as Arrow's values lie behind each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from formats.buffers import Bytes
from formats.entries import EntryBatch
from offloader.errors import Corrupt
from offloader.read.plan import BlockRun

__all__ = ["ArrivingBlocks", "Decode", "SkipCorrupt"]

#: A block's entries out of its bytes, in memory of their own. Arguments: the run, the block's number, the bytes.
Decode = Callable[[BlockRun, int, Bytes], EntryBatch]
#: Told of each damaged block that is left out; without it damage is an error.
SkipCorrupt = Callable[[Corrupt], None]


class ArrivingBlocks:
    """A ``Receiver`` of a run's bytes.

    Args:
        run: blocks that are decoded out of their own bytes alone: an index with our extension tells of them.
        decode: what is made of each; its answer must not share memory with what it is given.
    """

    def __init__(self, run: BlockRun, decode: Decode) -> None:
        self._run = run
        self._decode = decode
        self._lengths: Sequence[int] = run.segment_map.blocks.length[run.numbers].tolist()
        self._memory = np.empty(max(self._lengths), dtype=np.uint8)
        self._found: list[EntryBatch | Exception] = []
        self._filled = 0
        self.received_bytes = 0

    def begin(self) -> None:
        self._found.clear()
        self._filled = self.received_bytes = 0

    def room(self) -> memoryview:
        return self._memory.data[self._filled : self._lengths[len(self._found)]]

    def came(self, count: int) -> None:
        self.received_bytes += count
        self._filled += count
        done = len(self._found)
        if self._filled < self._lengths[done]:
            return
        self._filled = 0
        try:
            found = self._decode(self._run, int(self._run.numbers[done]), self._memory[: self._lengths[done]])
        except Exception as error:
            # What is wrong with a block counts only if all of the answer comes; the store would take it for its own.
            self._found.append(error)
        else:
            self._found.append(found)

    def batches(self, skip: SkipCorrupt | None = None) -> list[EntryBatch]:
        """The entries, one batch per block, in order; to be called when all bytes came.

        Args:
            skip: called with the error of each damaged block, which then counts as empty.

        Raises:
            what ``decode`` raised.
        """
        batches = []
        for found in self._found:
            if isinstance(found, EntryBatch):
                batches.append(found)
            elif skip is not None and isinstance(found, Corrupt):
                skip(found)
            else:
                raise found
        return batches
