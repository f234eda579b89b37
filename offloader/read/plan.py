"""Which bytes hold which entries: positions -> segments -> blocks -> byte ranges; pure.

Owns every choice of what is fetched. Must never fetch: it sees a manifest's view and parsed indexes only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.entries import Position
from formats.keys import data_key, index_key
from formats.segment_map import SegmentMap
from offloader.manifest.segment_record import is_at_root
from offloader.manifest.segment_slice import SegmentSlice
from offloader.manifest.state import ManifestState, SegmentRecord

__all__ = [
    "BlockRun",
    "SegmentObjects",
    "block_runs",
    "readable_segments",
    "segments_between",
    "whole_range",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentObjects:
    """Where one segment is and what its two objects must be; small, picklable, needs no manifest.

    Attributes:
        stream: the stream's name.
        uuid: the segment's.
        ledger_id: V1's one ledger; ``None`` in V2.
        at_root: whether the objects lie at the store's root, as Pulsar's do, and not below the stream's name.
        data_bytes, index_bytes: lengths of the objects; ``None`` when nobody recorded them.
        index_crc32c: CRC-32C of the whole index object; ``None`` when nobody recorded it.
        blocks: how many the index has; ``None`` when nobody recorded it.
    """

    stream: str
    uuid: UUID
    ledger_id: int | None = None
    at_root: bool = False
    data_bytes: int | None = None
    index_bytes: int | None = None
    index_crc32c: int | None = None
    blocks: int | None = None

    @classmethod
    def of_record(cls, stream: str, record: SegmentRecord) -> SegmentObjects:
        """From the manifest's record of an offloaded segment."""
        summary = record.summary
        assert summary is not None, "only offloaded segments have objects"
        return cls(
            stream=stream,
            uuid=record.uuid,
            ledger_id=record.v1_ledger_id,
            at_root=is_at_root(record.driver),
            data_bytes=summary.data_bytes,
            index_bytes=summary.index_bytes,
            index_crc32c=summary.index_crc32c,
            blocks=summary.blocks,
        )

    @property
    def data_key(self) -> str:
        return data_key(self._folder, self.uuid, self.ledger_id)

    @property
    def index_key(self) -> str:
        return index_key(self._folder, self.uuid, self.ledger_id)

    @property
    def _folder(self) -> str:
        return "" if self.at_root else self.stream


@dataclass(frozen=True, slots=True, eq=False)
class BlockRun:
    """Neighbouring blocks of one data object that are fetched with one ranged GET.

    Attributes:
        objects: the segment.
        segment_map: its index.
        numbers: the blocks, int64, shape (n,), n > 0; each begins where the one before it ends.
        start, stop: the bytes to fetch.
    """

    objects: SegmentObjects
    segment_map: SegmentMap
    numbers: NDArray[np.int64]
    start: int
    stop: int


def whole_range(state: ManifestState) -> tuple[Position, Position] | None:
    """First and last readable position; ``None`` when nothing is readable.

    Source: spec of the manifest, "committed end": what lies after the longest prefix of offloaded ranges and recorded
    gaps isn't readable yet, even where a segment is there already.
    """
    first, last = state.first_position(), state.committed_end()
    if first is None or last is None or first > last:
        return None
    return first, last


def readable_segments(state: ManifestState) -> SegmentSlice:
    """The offloaded segments that hold readable entries, in the stream's order."""
    ends = whole_range(state)
    return state.offloaded()[:0] if ends is None else state.offloaded(*ends)


def segments_between(segments: SegmentSlice, first: Position, last: Position) -> SegmentSlice:
    """Those of ``segments`` that may hold positions of ``first`` .. ``last``.

    Args:
        segments: offloaded ones in the stream's order; as ranges never overlap, their ends are in order too.
        first, last: both included.
    """
    start = bisect_left(segments, first, key=_end_of)
    stop = bisect_right(segments, last, lo=start, key=_begin_of)
    return segments[start:stop]


def _begin_of(record: SegmentRecord) -> Position:
    return record.begin


def _end_of(record: SegmentRecord) -> Position:
    assert record.end is not None, "an offloaded segment has an end"
    return record.end


def block_runs(
    objects: SegmentObjects, segment_map: SegmentMap, numbers: NDArray[np.int64], request_bytes: int
) -> Iterator[BlockRun]:
    """Cuts blocks into runs for one ranged GET each: neighbours, together at most ``request_bytes`` long.

    A block larger than that is a run of its own: it is decoded as a whole anyway.

    Args:
        objects: the segment.
        segment_map: its index.
        numbers: the wanted blocks in the order in which they are wanted, int64, shape (n,).
        request_bytes: most bytes of one run.
    """
    starts = segment_map.blocks.offset[numbers]
    stops = starts + segment_map.blocks.length[numbers]
    needed = starts + segment_map.blocks.read_bytes[numbers]
    # Every index where a run must begin because its block isn't the neighbour of the one before.
    breaks = np.append(np.flatnonzero(starts[1:] != stops[:-1]) + 1, len(numbers))
    first = 0
    while first < len(numbers):
        end = int(breaks[np.searchsorted(breaks, first, side="right")])
        fitting = int(np.searchsorted(stops[first:end], starts[first] + request_bytes, side="right"))
        end = first + max(fitting, 1)
        yield BlockRun(objects, segment_map, numbers[first:end], int(starts[first]), int(needed[end - 1]))
        first = end
