"""The state of one ledger in a manifest, and the chunks in which a broker reads it from the cold tier. Does no I/O.

Chunks depend only on the manifest and the indexes, never on the caller, so that caches of several brokers hold the same
chunks. A chunk is either whole blocks of one object, or entries that only the sidecar can provide: from compressed
blocks, fills, or parts of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.block import BLOCK_HEADER_BYTES
from formats.checkpoint import LAST_UNKNOWN
from formats.entries import ENTRY_HEADER_BYTES, Position
from formats.extension import Codec
from formats.manifest import FACT_UNKNOWN, GapFilled
from formats.segment_map import CRC_UNKNOWN, SegmentMap, block_checksums
from formats.summary import Layout, LedgerSpan
from offloader.coverage import ENTRY_ID_MAX, Run, count_of, gap_runs, without
from offloader.errors import NotFoundError, SourceMismatchError, StoreUnavailableError, TrimmedError
from offloader.manifest.ledger_table import fills_in, is_gone
from offloader.manifest.segment_table import is_at_root
from offloader.manifest.state import ManifestState, SegmentRecord

#: Number of ranges listed in an error.
RUNS_NAMED_MAX = 5


class LedgerTrimmed(TrimmedError):
    """A ledger was deliberately deleted from its stream."""


class LedgerMismatch(SourceMismatchError):
    """A broker's ledger differs from the manifest's ledger of the same number."""


class LedgerIncompleteError(StoreUnavailableError):
    """Entries of a ledger are not in the cold tier, and no record of their deletion exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStanding:
    """The state of one ledger in a manifest.

    Attributes:
        first: the first readable entry; above 0 where a part was truncated.
        last: the last entry, -1: none. As recorded when the ledger was closed, else the last entry in the cold tier.
        is_closed: whether the manifest records the ledger's end.
        records: readable segments with entries of it, in order.
        fills: objects with entries that readers don't receive.
        missing: runs of ids in recorded gaps without a fill.
        holes: runs of ids without any record.
        payload_bytes: of all entries in segments and fills, and of truncated entries where known.
        created_ms: its creation time; ``None``: not recorded.
    """

    ledger_id: int
    first: int
    last: int
    is_closed: bool
    records: tuple[SegmentRecord, ...]
    fills: tuple[GapFilled, ...]
    missing: tuple[Run, ...]
    holes: tuple[Run, ...]
    payload_bytes: int
    created_ms: int | None

    @property
    def entries(self) -> int:
        """Number of entries, with ids from 0 to ``last``."""
        return self.last + 1

    @property
    def is_whole(self) -> bool:
        """Whether every entry from ``first`` to ``last`` is in the cold tier."""
        return self.last >= 0 and not self.missing and not self.holes


def ledger_standing(state: ManifestState, ledger_id: int, *, last: int | None = None) -> LedgerStanding:
    """The state of a ledger.

    Args:
        last: the ledger's last entry, if the caller knows it; default: as recorded in the manifest.

    Raises:
        LedgerTrimmed: it was deleted, or truncated as a whole.
        NotFoundError: the manifest has no entry of it.
    """
    _require_kept(state, ledger_id)
    fact = state.ledgers.get(ledger_id)
    is_closed = fact.last_entry_id != LAST_UNKNOWN
    records = state.offloaded(Position(ledger_id, 0), Position(ledger_id, ENTRY_ID_MAX))
    held = [(each, span) for each in records if (span := span_of(each, ledger_id)) is not None]
    spans = [span for _, span in held]
    gaps = gap_runs(state.gaps, ledger_id, 0, ENTRY_ID_MAX)
    fills = tuple(fills_in(state.fills, ledger_id, 0, ENTRY_ID_MAX))
    if not spans and not fills and not (gaps and (is_closed or last is not None)):
        raise NotFoundError(
            f"stream {state.stream}: the cold tier has no entry of ledger {ledger_id}",
            hint="the ledger is not offloaded yet, or belongs to another stream",
        )
    if last is None:
        ends = [*(span.last_entry_id for span in spans), *(fill.last.entry_id for fill in fills)]
        last = fact.last_entry_id if is_closed else max(ends, default=-1)
    first = state.head.entry_id if state.head is not None and state.head.ledger_id == ledger_id else 0
    rest = without([(first, last)] if first <= last else [], _readable(state, spans))
    in_gaps = without(rest, without(rest, gaps))
    payload_bytes = sum(span.payload_bytes for span in spans) + sum(fill.payload_bytes for fill in fills)
    if first and fact.payload_bytes != FACT_UNKNOWN:
        payload_bytes = fact.payload_bytes  # segments of the truncated part may be deleted
    return LedgerStanding(
        ledger_id=ledger_id,
        first=first,
        last=last,
        is_closed=is_closed,
        records=tuple(record for record, _ in held),
        fills=fills,
        missing=tuple(without(in_gaps, [run for fill in fills for run in fill_runs(state, fill)])),
        holes=tuple(without(rest, in_gaps)),
        payload_bytes=payload_bytes,
        created_ms=None if fact.created_ms == FACT_UNKNOWN else fact.created_ms,
    )


def _readable(state: ManifestState, spans: Sequence[LedgerSpan]) -> list[Run]:
    """The entries in segments that belong to the committed run: readers receive no others."""
    end, begin = state.committed_end(), state.committed_from or Position(0, 0)
    if end is None:
        return []
    ranges = (
        (
            max(Position(span.ledger_id, span.first_entry_id), begin),
            min(Position(span.ledger_id, span.last_entry_id), end),
        )
        for span in spans
    )
    return [(low.entry_id, high.entry_id) for low, high in ranges if low <= high]


def span_of(record: SegmentRecord, ledger_id: int) -> LedgerSpan | None:
    """The part of a ledger in a segment."""
    return next((span for span in record.spans if span.ledger_id == ledger_id), None)


def fill_runs(state: ManifestState, fill: GapFilled) -> list[Run]:
    """The runs of entry ids in a fill."""
    return gap_runs(state.gaps, fill.first.ledger_id, fill.first.entry_id, fill.last.entry_id)


def _require_kept(state: ManifestState, ledger_id: int) -> None:
    """Raise ``LedgerTrimmed`` if the manifest records the deletion of the whole ledger."""
    why = ""
    if state.stream_deleted:
        why = "the stream was deleted"
    elif ledger_id in state.deleted_ledgers:
        why = "it was deleted from the stream"
    elif is_gone(ledger_id, state.ledgers.get(ledger_id), state.head):
        why = f"the stream now begins at {state.head}"
    if why:
        raise LedgerTrimmed(
            f"stream {state.stream}: ledger {ledger_id} was deliberately deleted: {why}",
            first_available=state.first_position(),
            hint="its entries can no longer be read",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """A closed ledger as reported by its broker.

    Attributes:
        uuid: of the offload attempt.
        length: payload bytes.
        created_ms: ms since 1970 UTC; ``None``: not reported.
    """

    uuid: UUID | None
    last: int
    length: int
    entries: int
    created_ms: int | None = None


def require_same_ledger(stream: str, standing: LedgerStanding, facts: BrokerFacts) -> None:
    """Compare the broker's facts of a ledger with the manifest.

    The length is compared only when every entry is in the cold tier, as it is unknown before.

    Raises:
        LedgerMismatch: they differ; the error names both values.
    """
    last, created_ms = standing.last, standing.created_ms
    found = ""
    if facts.entries != facts.last + 1:
        found = f"the broker's ledger has {facts.entries} entries up to {facts.last}"
    elif standing.is_closed and last != facts.last:
        found = f"the broker's ledger ends at entry {facts.last}, the manifest's at {last}"
    elif created_ms is not None and facts.created_ms is not None and created_ms != facts.created_ms:
        found = f"the broker's ledger was opened at {facts.created_ms} ms, the manifest's at {created_ms} ms"
    elif (reached := _reached(standing)) > facts.last:
        found = f"the broker's ledger ends at entry {facts.last}, but the cold tier has entry {reached}"
    if found:
        raise LedgerMismatch(
            f"stream {stream}, ledger {standing.ledger_id}: the broker's ledger differs from the one in the cold "
            f"tier: {found}",
            hint="check whether this store belongs to another cluster",
        )
    require_same_uuid(stream, standing, facts.uuid)
    if standing.is_whole and not standing.first and standing.payload_bytes != facts.length:
        raise LedgerMismatch(
            f"stream {stream}, ledger {standing.ledger_id}: the broker's {facts.entries} entries have "
            f"{facts.length} bytes, those in the cold tier have {standing.payload_bytes}",
            hint="if the brokers add entry metadata, set exposingBrokerEntryMetadataToClientEnabled = true, or the "
            "cold tier receives entries without it; otherwise check whether this store belongs to another "
            "cluster",
        )


def _reached(standing: LedgerStanding) -> int:
    """The last entry in a segment or a fill; -1: none."""
    spans = [span_of(record, standing.ledger_id) for record in standing.records]
    ends = [*(span.last_entry_id for span in spans if span), *(fill.last.entry_id for fill in standing.fills)]
    return max(ends, default=-1)


def adopted_uuid(standing: LedgerStanding) -> UUID | None:
    """The attempt in which Pulsar's own offloader wrote the ledger's objects; ``None``: offloader wrote them."""
    return next((each.uuid for each in standing.records if is_at_root(each.driver)), None)


def next_ledger(state: ManifestState, ledger_id: int) -> int | None:
    """The next ledger with entries, if the manifest records its end and all of it is committed."""
    following = state.closed_ledgers.next_with_entries(ledger_id)
    end = state.committed_end()
    if following is None or end is None or Position(following, state.closed_ledgers[following]) > end:
        return None
    return following


def require_same_uuid(stream: str, standing: LedgerStanding, uuid: UUID | None) -> None:
    """Compare the broker's uuid with that of the objects that Pulsar's own offloader wrote for the ledger.

    All attempts share the objects that offloader wrote, whatever their uuid.

    Raises:
        LedgerMismatch: the uuids differ.
    """
    own = adopted_uuid(standing)
    if uuid is not None and own is not None and uuid != own:
        raise LedgerMismatch(
            f"stream {stream}, ledger {standing.ledger_id}: requested attempt {uuid}, but imported attempt {own}",
            hint="check whether this store belongs to another cluster",
        )


def require_whole(stream: str, standing: LedgerStanding) -> None:
    """Raise ``LedgerIncompleteError`` if an entry is not in the cold tier."""
    if standing.is_whole:
        return
    holes = standing.holes or standing.missing
    named = ", ".join(f"{low}..{high}" for low, high in holes[:RUNS_NAMED_MAX])
    why = "are missing" if standing.holes else "are recorded as a gap"
    raise LedgerIncompleteError(
        f"stream {stream}, ledger {standing.ledger_id}: entries {named} {why} ({count_of(holes)} in total)",
        hint="offload the ledger from the broker to complete it; missing entries are not skipped",
    )


Int64s = NDArray[np.int64]

#: Payload bytes of a chunk; a larger block or entry is a separate chunk.
CHUNK_BYTES = 4 * 1024 * 1024
#: A plain block of another writer is fetched directly up to this length; longer blocks are split by entry ids.
PLAIN_BLOCK_BYTES_MAX = 2 * CHUNK_BYTES
#: In ``Parts.object``: only the sidecar can provide these entries.
NO_OBJECT = -1


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of a ledger in columns, int64, shape (n,), ascending and disjoint.

    Attributes:
        first, last: ids of the first and the last entry.
        payload_bytes: of the entries; estimated if another writer's index does not record it.
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
        """The chosen rows."""
        return Parts(*(getattr(self, each.name)[chosen] for each in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Parts]) -> Parts:
        """All rows, in the order of their entries."""
        found = cls(*(np.concatenate([getattr(each, one.name) for each in parts]) for one in fields(cls)))
        return found.rows(np.argsort(found.first, kind="stable"))


def segment_parts(record: SegmentRecord, segment_map: SegmentMap, ledger_id: int, number: int) -> Parts:
    """A ledger's blocks in a segment.

    Args:
        number: of its data object, ``NO_OBJECT`` if only the sidecar can read it.
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
        # Pulsar's V1 index lists every block, and nothing else.
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
    return _without_object(runs[:, 0], runs[:, 1], _shares(fill.payload_bytes, runs[:, 1] - runs[:, 0] + 1))


def truncated_part(standing: LedgerStanding, known_bytes: int) -> Parts:
    """The entries before the stream's start position, which can't be read.

    Args:
        known_bytes: of all others.
    """
    left = np.array([max(standing.payload_bytes - known_bytes, 0)], dtype=np.int64)
    return _without_object(np.zeros(1, np.int64), np.array([standing.first - 1], dtype=np.int64), left)


def cut_at(parts: Parts, first: int) -> Parts:
    """The parts from an entry on; a block that this splits can't be fetched as a whole."""
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
    """``total`` divided in proportion to the weights, without a remainder."""
    ends = np.cumsum(weights, dtype=np.float64)
    bounds = np.rint(ends / ends[-1] * total).astype(np.int64) if len(ends) else np.zeros(0, np.int64)
    return np.diff(bounds, prepend=0)


def split_large(parts: Parts, bytes_max: int = CHUNK_BYTES) -> Parts:
    """The same parts; those without an object are split by entry ids if they are larger than a chunk."""
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
        start, stop: the bytes of its whole blocks in the object.
        blocks: start, stop, CRC-32C (``None``: unknown) and first entry of each block.
    """

    first: int
    last: int
    payload_bytes: int
    object: int
    start: int
    stop: int
    blocks: tuple[tuple[int, int, int | None, int], ...]


def chunks_of(parts: Parts, bytes_max: int = CHUNK_BYTES) -> list[Chunk]:
    """The chunks of a ledger, each with at most ``bytes_max`` payload bytes or one part."""
    ends = np.cumsum(parts.payload_bytes)
    is_other = (parts.object[1:] != parts.object[:-1]) | (parts.start[1:] != parts.stop[:-1])
    is_direct = parts.object != NO_OBJECT
    # Rows where a chunk of whole blocks must end, and where a sidecar chunk begins.
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
    """The first of ``rows``, which ascend, at or after ``start``; ``end`` if there is none."""
    at = int(np.searchsorted(rows, start))
    return int(rows[at]) if at < len(rows) else end


def _chunk(parts: Parts, start: int, stop: int, payload_bytes: int, *, is_whole: bool) -> Chunk:
    first, last = int(parts.first[start]), int(parts.last[stop - 1])
    if not is_whole:
        return Chunk(first, last, payload_bytes, NO_OBJECT, 0, 0, ())
    columns = (parts.start, parts.stop, parts.crc32c, parts.first)
    starts, stops, checksums, firsts = (column[start:stop].tolist() for column in columns)
    known = [None if each == CRC_UNKNOWN else each for each in checksums]
    blocks = tuple(zip(starts, stops, known, firsts, strict=True))
    return Chunk(first, last, payload_bytes, int(parts.object[start]), starts[0], stops[-1], blocks)


def require_contiguous(stream: str, standing: LedgerStanding, parts: Parts) -> None:
    """Raise ``LedgerIncompleteError`` if the indexes lack entries that the manifest records."""
    expected = np.append(0, parts.last[:-1] + 1) if len(parts) else np.zeros(0, np.int64)
    wrong = np.flatnonzero(parts.first != expected)
    end = int(parts.last[-1]) if len(parts) else -1
    if len(wrong) or end != standing.last:
        at = f"before {parts.first[wrong[0]]}" if len(wrong) else f"after {end}"
        raise LedgerIncompleteError(
            f"stream {stream}, ledger {standing.ledger_id}: its indexes have a hole {at}; the ledger ends at "
            f"{standing.last}",
            hint="run `offloader verify` to find the damaged segment; missing entries are not skipped",
        )


def ledger_chunks(
    state: ManifestState, standing: LedgerStanding, maps: Sequence[SegmentMap], numbers: Sequence[int]
) -> list[Chunk]:
    """The chunks of a ledger, ids from 0 to its last entry.

    Args:
        standing: of a whole ledger.
        maps: the indexes of ``standing.records``.
        numbers: of their data objects, or ``NO_OBJECT``.

    Raises:
        LedgerIncompleteError: the indexes contradict the manifest.
    """
    held = [
        segment_parts(record, segment_map, standing.ledger_id, number)
        for record, segment_map, number in zip(standing.records, maps, numbers, strict=True)
    ]
    held += [fill_parts(state, fill) for fill in standing.fills]
    parts = cut_at(Parts.joined(held), standing.first)
    before = truncated_part(standing, int(parts.payload_bytes.sum())) if standing.first else parts.rows(slice(0))
    require_contiguous(state.stream, standing, Parts.joined([before, parts]))
    # A separate chunk, so that the truncated entries don't make others unreadable.
    return [*chunks_of(before), *chunks_of(split_large(parts))]
