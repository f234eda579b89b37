"""The chunks in which a broker reads a ledger of the cold tier. Does no I/O.

They depend on the manifest and the indexes only, never on who asks: caches of several brokers hold the same ones. A
chunk is whole blocks of one object, or entries that only the sidecar gives: of compressed blocks, of fills, of parts of
blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.block import BLOCK_HEADER_BYTES, Layout
from formats.entries import ENTRY_HEADER_BYTES, Position
from formats.extension import Codec
from formats.manifest import GapFilled
from formats.segment_map import CRC_UNKNOWN, SegmentMap, block_checksums
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.ledger_standing import LedgerIncomplete, LedgerStanding, fill_runs, span_of

Int64s = NDArray[np.int64]

#: Payload bytes of a chunk; a larger block or entry is a chunk of its own.
CHUNK_BYTES = 4 * 1024 * 1024
#: A plain block of another writer is fetched directly up to this length; longer ones are cut by entry ids.
PLAIN_BLOCK_BYTES_MAX = 2 * CHUNK_BYTES
#: In ``Parts.object``: only the sidecar can give these entries.
NO_OBJECT = -1


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of a ledger in columns, int64, shape (n,), ascending and disjoint.

    Attributes:
        first, last: ids of the first and the last entry.
        payload_bytes: of the entries; estimated where the index of another writer doesn't tell.
        object: number of the object, or ``NO_OBJECT``.
        start, stop: of the block in the object, ``stop`` excluded; 0 without an object.
        crc32c: of these bytes, or ``CRC_UNKNOWN``.
    """

    first: Int64s
    last: Int64s
    payload_bytes: Int64s
    object: Int64s
    start: Int64s
    stop: Int64s
    crc32c: Int64s

    def __len__(self) -> int:
        return len(self.first)

    def rows(self, chosen: slice | NDArray[Any]) -> Parts:
        """Some of them."""
        return Parts(*(getattr(self, each.name)[chosen] for each in fields(self)))

    @classmethod
    def joined(cls, parts: Iterable[Parts]) -> Parts:
        """All of them, in the order of their entries."""
        given = list(parts)
        found = cls(*(np.concatenate([getattr(each, one.name) for each in given]) for one in fields(cls)))
        return found.rows(np.argsort(found.first, kind="stable"))


def segment_parts(record: SegmentRecord, segment_map: SegmentMap, ledger_id: int, number: int) -> Parts:
    """A ledger's blocks in a segment.

    Args:
        number: of its data object, ``NO_OBJECT`` if nobody else can read it.
    """
    span = span_of(record, ledger_id)
    assert span is not None, "a record of the standing has entries of the ledger"
    low, high = span.first_entry_id, span.last_entry_id
    numbers = segment_map.find(Position(ledger_id, low), Position(ledger_id, high))
    blocks = segment_map.blocks
    first, length = blocks.first_entry_id[numbers], blocks.length[numbers]
    if segment_map.has_extension:
        last = blocks.last_entry_id[numbers]
        payload = blocks.uncompressed_bytes[numbers] - ENTRY_HEADER_BYTES * blocks.entries[numbers]
        is_direct = blocks.codec[numbers] == int(Codec.NONE)
    else:
        last = np.append(first[1:] - 1, high)
        payload = _shares(span.payload_bytes, np.maximum(length - BLOCK_HEADER_BYTES, 1))
        # Pulsar's V1 index names every block, and nothing else.
        is_direct = (length <= PLAIN_BLOCK_BYTES_MAX) & (segment_map.layout is Layout.V1)
    start = blocks.offset[numbers]
    return Parts(
        first=np.maximum(first, low),
        last=np.minimum(last, high),
        payload_bytes=payload,
        object=np.where(is_direct, number, NO_OBJECT),
        start=np.where(is_direct, start, 0),
        stop=np.where(is_direct, start + length, 0),
        crc32c=np.where(is_direct, block_checksums(segment_map, numbers), CRC_UNKNOWN),
    )


def fill_parts(state: ManifestState, fill: GapFilled) -> Parts:
    """The runs of entries in a fill."""
    runs = np.array(fill_runs(state, fill), dtype=np.int64).reshape(-1, 2)
    ids = runs[:, 1] - runs[:, 0] + 1
    return _without_object(runs[:, 0], runs[:, 1], _shares(fill.payload_bytes, ids))


def truncated_part(standing: LedgerStanding, known_bytes: int) -> Parts:
    """The entries before the stream's start position; asking for them is an error.

    Args:
        known_bytes: of all others.
    """
    left = np.array([max(standing.payload_bytes - known_bytes, 0)], dtype=np.int64)
    return _without_object(np.zeros(1, np.int64), np.array([standing.first - 1], dtype=np.int64), left)


def cut_at(parts: Parts, first: int) -> Parts:
    """The parts from an entry on; a block that it cuts can't be fetched as a whole."""
    found = parts.rows(parts.last >= first)
    is_cut = found.first < first
    share = (found.last - first + 1) / np.maximum(found.last - found.first + 1, 1)
    return Parts(
        first=np.where(is_cut, first, found.first),
        last=found.last,
        payload_bytes=np.where(is_cut, (found.payload_bytes * share).astype(np.int64), found.payload_bytes),
        object=np.where(is_cut, NO_OBJECT, found.object),
        start=np.where(is_cut, 0, found.start),
        stop=np.where(is_cut, 0, found.stop),
        crc32c=np.where(is_cut, CRC_UNKNOWN, found.crc32c),
    )


def _without_object(first: Int64s, last: Int64s, payload_bytes: Int64s) -> Parts:
    zeros = np.zeros(len(first), dtype=np.int64)
    return Parts(first, last, payload_bytes, zeros + NO_OBJECT, zeros, zeros, zeros + CRC_UNKNOWN)


def _shares(total: int, weights: Int64s) -> Int64s:
    """``total`` divided by weights, without a rest."""
    ends = np.cumsum(weights, dtype=np.float64)
    bounds = np.rint(ends / ends[-1] * total).astype(np.int64) if len(ends) else np.zeros(0, np.int64)
    return np.diff(bounds, prepend=0)


def split_large(parts: Parts, bytes_max: int = CHUNK_BYTES) -> Parts:
    """The same parts; those without an object are cut by entry ids where they are larger than a chunk."""
    entries = parts.last - parts.first + 1
    count = np.where(parts.object == NO_OBJECT, -(-parts.payload_bytes // bytes_max), 1)
    count = np.clip(count, 1, entries)
    if (count == 1).all():
        return parts
    rows = np.repeat(np.arange(len(parts)), count)
    at = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    of, size, total = count[rows], entries[rows], parts.payload_bytes[rows]
    # By division, so that all pieces are about equal.
    begin, end = at * size // of, (at + 1) * size // of
    return Parts(
        first=parts.first[rows] + begin,
        last=parts.first[rows] + end - 1,
        payload_bytes=(at + 1) * total // of - at * total // of,
        object=parts.object[rows],
        start=parts.start[rows],
        stop=parts.stop[rows],
        crc32c=parts.crc32c[rows],
    )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive entries that are fetched together.

    Attributes:
        payload_bytes: of the entries, estimated as in ``Parts``.
        object: number of the object, or ``NO_OBJECT``.
        start, stop: the bytes of whole blocks there.
        blocks: start, stop and CRC-32C (``None``: not known) of each block.
    """

    first: int
    last: int
    payload_bytes: int
    object: int
    start: int
    stop: int
    blocks: tuple[tuple[int, int, int | None], ...]


def chunks_of(parts: Parts, bytes_max: int = CHUNK_BYTES) -> list[Chunk]:
    """The chunks of a ledger, each of at most ``bytes_max`` payload bytes or of one part."""
    ends = np.cumsum(parts.payload_bytes)
    is_other = (parts.object[1:] != parts.object[:-1]) | (parts.start[1:] != parts.stop[:-1])
    is_direct = parts.object != NO_OBJECT
    # Where a chunk of whole blocks has to end, and where one becomes the sidecar's.
    cuts = np.flatnonzero(is_other & is_direct[1:] & is_direct[:-1]) + 1
    indirect = np.flatnonzero(~is_direct)
    found, start = [], 0
    while start < len(parts):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + bytes_max, "right")), start + 1)
        cut = _next(cuts, start + 1, len(parts))
        is_whole = _next(indirect, start, len(parts)) >= min(stop, cut)
        stop = min(stop, cut) if is_whole else stop
        found.append(_chunk(parts, start, stop, int(ends[stop - 1]) - before, is_whole=is_whole))
        start = stop
    return found


def _next(rows: NDArray[np.intp], start: int, end: int) -> int:
    """The first of ``rows``, which ascend, from ``start`` on; ``end``: there is none."""
    at = int(np.searchsorted(rows, start))
    return int(rows[at]) if at < len(rows) else end


def _chunk(parts: Parts, start: int, stop: int, payload_bytes: int, *, is_whole: bool) -> Chunk:
    first, last = int(parts.first[start]), int(parts.last[stop - 1])
    if not is_whole:
        return Chunk(first, last, payload_bytes, NO_OBJECT, 0, 0, ())
    starts, stops, checksums = (column[start:stop].tolist() for column in (parts.start, parts.stop, parts.crc32c))
    known = [None if each == CRC_UNKNOWN else each for each in checksums]
    blocks = tuple(zip(starts, stops, known, strict=True))
    return Chunk(first, last, payload_bytes, int(parts.object[start]), starts[0], stops[-1], blocks)


def require_contiguous(stream: str, standing: LedgerStanding, parts: Parts) -> None:
    """Raises ``LedgerIncomplete``: the indexes don't have what the manifest says."""
    expected = np.append(0, parts.last[:-1] + 1) if len(parts) else np.zeros(0, np.int64)
    wrong = np.flatnonzero(parts.first != expected)
    end = int(parts.last[-1]) if len(parts) else -1
    if len(wrong) or end != standing.last:
        at = f"before {parts.first[wrong[0]]}" if len(wrong) else f"after {end}"
        raise LedgerIncomplete(
            f"stream {stream}, ledger {standing.ledger_id}: its indexes have a hole {at}; it ends at {standing.last}",
            hint="`offloader verify` names the damaged segment; nothing is skipped",
        )


def ledger_chunks(
    state: ManifestState, standing: LedgerStanding, maps: Sequence[SegmentMap], numbers: Sequence[int]
) -> list[Chunk]:
    """The chunks of a ledger, ids from 0 to its last entry.

    Args:
        standing: a whole ledger's.
        maps: the indexes of ``standing.records``.
        numbers: of their data objects, or ``NO_OBJECT``.

    Raises:
        LedgerIncomplete: the indexes contradict the manifest.
    """
    ledger_id = standing.ledger_id
    segments = zip(standing.records, maps, numbers, strict=True)
    held = itertools.chain(
        (segment_parts(record, segment_map, ledger_id, number) for record, segment_map, number in segments),
        (fill_parts(state, fill) for fill in standing.fills),
    )
    parts = cut_at(Parts.joined(held), standing.first)
    before = truncated_part(standing, int(parts.payload_bytes.sum())) if standing.first else parts.rows(slice(0))
    require_contiguous(state.stream, standing, Parts.joined([before, parts]))
    # A chunk of its own: nobody gets it, and everybody the others.
    return [*chunks_of(before), *chunks_of(split_large(parts))]
