"""Read entries and fills from the object store, as of one pinned manifest version."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial
from typing import TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import numpy as np

from formats.checksum import crc32c
from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from formats.errors import FormatError
from formats.frames import decode_fill
from formats.keys import fill_key
from formats.manifest import GapFilled
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    ObjectChangedError,
    ObjectMissingError,
    OffloaderError,
    TrimmedError,
)
from offloader.manifest.segment_table import SegmentSlice
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.fetch import Fetcher, SegmentObjects, Sized, block_runs, newest_view, request_sizes
from offloader.read.ranges import Run, consecutive, readable_segments, segments_between, whole_range
from offloader.settings import Pairs
from offloader.store.base import ByteRange, ObjectStore

#: A read over more segments than this is a scan and bypasses the cache.
CACHED_READ_SEGMENTS_MAX = 2
#: Maximum size of an index that is fetched while a stream is opened.
INDEX_AHEAD_BYTES_MAX = 1024 * 1024
#: Number of segments remembered for short reads.
RECENT_SEGMENTS_MAX = 8
#: A filter that matches more separate parts of a range is not narrowed by the blocks' statistics: that would fetch
#: two indexes for each part, one after the other.
NARROWED_PARTS_MAX = 16
#: A read of more than this fraction of the cache is also a scan.
CACHED_READ_CACHE_SHARE = 4

#: No relocated bucket.
NOT_MOVED = Pairs()

_T = TypeVar("_T")
_Range = tuple[Position, Position]
_MayMatch = Callable[[Sequence[Run]], Sequence[bool]]
_PLACE = ("managedLedgerOffloadDriver", "bucket", "serviceEndpoint")
#: Number of endpoints whose canonical form is cached.
_ENDPOINTS_MAX = 64
_PORTS = {"http": 80, "https": 443}
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


class ColdTier:
    """The offloaded entries of ``state``.

    Args:
        skipped: receives each segment with a missing object, with the reason, from any thread; the segment then counts
            as empty. Without it, a missing object is an error.

    Attributes:
        ends: first and last readable position, ``None`` when there is no readable entry.
        segments: the segments with readable entries, in stream order.
    """

    def __init__(self, fetcher: Fetcher, state: ManifestState, skipped: dict[UUID, str] | None = None) -> None:
        self._fetcher = fetcher
        self._stream = state.stream
        self._skipped = skipped
        #: Begin, end and objects of the most recently read segments; replaced as a whole, so no lock is needed.
        self._recent: tuple[tuple[Position, Position, SegmentObjects], ...] = ()
        self.ends = whole_range(state)
        self.segments = readable_segments(state)

    def read_ahead(self) -> None:
        """Bring the first segment's index into the cache: the first read after opening usually needs it."""
        for record in self.segments[:1]:
            objects = self._objects(record)
            if objects.index_bytes is not None and objects.index_bytes <= INDEX_AHEAD_BYTES_MAX:
                self._fetcher.index(objects)

    def batches(self, first: Position, last: Position) -> Generator[EntryBatch, None, None]:
        """Entries of a range, one batch per block, prefetched in parallel, bypassing the cache."""
        fetcher = self._fetcher
        segments = [self._objects(record) for record in segments_between(self.segments, first, last)]
        # Prefetch indexes like blocks, so that a stream of many small segments doesn't stall.
        maps = fetcher.workers.in_order(
            partial(self._unless_missing, objects, partial(fetcher.index, objects, keep=False)) for objects in segments
        )
        sizes = request_sizes(fetcher.settings.request_size)
        runs = (
            run
            for objects, segment_map in zip(segments, maps, strict=True)
            if segment_map is not None
            for run in block_runs(objects, segment_map, segment_map.find(first, last), sizes)
        )
        found = fetcher.workers.in_order(
            Sized(partial(self._unless_missing, run.objects, partial(fetcher.run, run)), run.held_bytes) for run in runs
        )
        with closing(maps), closing(found) as results:
            for batches in results:
                for batch in batches or ():
                    if len(part := batch.between(first, last)):
                        fetcher.count_used(self._stream, part)
                        yield part

    def cached(self, first: Position, last: Position) -> list[EntryBatch] | None:
        """Entries of a range through the cache; ``None``: the range is too long, or an object to skip is missing."""
        if (found := self._few_segments(first, last)) is None:
            return None
        try:
            segments = [(objects, self._fetcher.index(objects)) for objects in found]
            wanted = [(objects, segment_map, segment_map.find(first, last)) for objects, segment_map in segments]
            stored_bytes = sum(segment_map.stored_bytes(numbers) for _, segment_map, numbers in wanted)
            if stored_bytes > self._fetcher.settings.cache_size_max // CACHED_READ_CACHE_SHARE:
                return None
            parts = [
                batch.between(first, last)
                for objects, segment_map, numbers in wanted
                for batch in self._fetcher.kept_blocks(objects, segment_map, numbers)
            ]
        except ObjectMissingError:
            if self._skipped is None:
                raise
            return None
        for part in parts:
            self._fetcher.count_used(self._stream, part)
        return parts

    def _few_segments(self, first: Position, last: Position) -> list[SegmentObjects] | None:
        """Segments of a range; ``None`` for more segments than a cached read may use.

        The most recent segments are remembered: finding them in the manifest takes longer than reading a cached block.
        """
        for begin, end, objects in self._recent:
            if begin <= first and last <= end:
                return [objects]
        records = segments_between(self.segments, first, last)
        if len(records) > CACHED_READ_SEGMENTS_MAX:
            return None
        found = [self._objects(record) for record in records]
        if len(records) == 1 and records[0].end is not None:
            self._recent = (
                (records[0].begin, records[0].end, found[0]),
                *self._recent[: RECENT_SEGMENTS_MAX - 1],
            )
        return found

    def count(self, first: Position, last: Position) -> int:
        """Number of entries in a range; see ``Reader.count``."""
        records = segments_between(self.segments, first, last)
        if self._skipped is not None:
            return sum(self._count_of(record, first, last) for record in self._there(records))
        # The range can only cut the first and the last segment.
        ends = (*records[:1], *records[max(len(records) - 1, 1) :])
        return records[1:-1].sums().entries + sum(self._count_of(record, first, last) for record in ends)

    def _there(self, records: Iterable[SegmentRecord]) -> list[SegmentRecord]:
        """The segments whose objects exist, by one HEAD request each; the others are skipped."""
        kept = list(records)
        looks = (
            partial(self._unless_missing, objects, partial(self._fetcher.require_there, objects))
            for objects in map(self._objects, kept)
        )
        with closing(self._fetcher.workers.in_order(looks)) as found:
            return list(itertools.compress(kept, found))

    def _count_of(self, record: SegmentRecord, first: Position, last: Position) -> int:
        if record.content.begin >= first and record.content.end <= last:
            return record.content.entries
        objects = self._objects(record)
        return self._unless_missing(objects, partial(self._count_cut, objects, first, last)) or 0

    def _count_cut(self, objects: SegmentObjects, first: Position, last: Position) -> int:
        segment_map = self._fetcher.index(objects)
        numbers = segment_map.find(first, last)
        if not segment_map.has_extension:
            runs = block_runs(objects, segment_map, numbers, self._fetcher.settings.request_size)
            with closing(self._fetcher.runs(runs)) as results:
                return sum(len(batch.between(first, last)) for batches in results for batch in batches)
        blocks = segment_map.blocks
        ledger, low, high = (
            column[numbers] for column in (blocks.ledger_id, blocks.first_entry_id, blocks.last_entry_id)
        )
        # Entry ids in our own blocks are consecutive.
        low = np.where(ledger == first.ledger_id, np.maximum(low, first.entry_id), low)
        high = np.where(ledger == last.ledger_id, np.minimum(high, last.entry_id), high)
        return int(np.maximum(high - low + 1, 0).sum())

    def narrowed(self, first: Position, last: Position, may_match: _MayMatch) -> list[_Range]:
        """The parts of a range that may match, by the statistics of segments, then of the blocks at each part's ends.

        Args:
            may_match: for each run of entries, whether one of them may match.
        """
        records = segments_between(self.segments, first, last)
        facts = (record.content for record in records)
        runs = [Run(each.begin, each.end, each.publish_time_min_ms, each.publish_time_max_ms) for each in facts]
        kept = itertools.groupby(zip(range(len(runs)), may_match(runs), strict=True), key=lambda numbered: numbered[1])
        parts = [[number for number, _ in numbers] for is_kept, numbers in kept if is_kept]
        if len(parts) > NARROWED_PARTS_MAX:
            return [(max(first, runs[part[0]].first), min(last, runs[part[-1]].last)) for part in parts]
        found = (self._trimmed(records[part[0] : part[-1] + 1], first, last, may_match) for part in parts)
        return [each for each in found if each is not None]

    def _trimmed(self, records: SegmentSlice, first: Position, last: Position, may_match: _MayMatch) -> _Range | None:
        """From the first block to the last one that may match; ``None``: there is none."""
        matching = (self._matching(record, first, last, may_match) for record in records)
        if (begin := next((each for each in matching if each is not None), None)) is None:
            return None
        matching = (self._matching(record, first, last, may_match) for record in reversed(records))
        end = next(each for each in matching if each is not None)
        return begin[0], end[1]

    def _matching(self, record: SegmentRecord, first: Position, last: Position, may_match: _MayMatch) -> _Range | None:
        """The part of one segment from its first block to its last one that may match; all of a plain segment."""
        objects = self._objects(record)
        segment_map = self._unless_missing(objects, partial(self._fetcher.index, objects))
        if segment_map is None:
            return None
        begin, end = max(first, record.content.begin), min(last, record.content.end)
        if not segment_map.has_extension:
            return begin, end
        blocks, numbers = segment_map.blocks, segment_map.find(begin, end)
        columns = (
            blocks.ledger_id,
            blocks.first_entry_id,
            blocks.last_entry_id,
            blocks.publish_time_min_ms,
            blocks.publish_time_max_ms,
        )
        rows = zip(*(column[numbers].tolist() for column in columns), strict=True)
        runs = [Run(Position(row[0], row[1]), Position(row[0], row[2]), row[3], row[4]) for row in rows]
        kept = list(itertools.compress(runs, may_match(runs)))
        return (max(begin, kept[0].first), min(end, kept[-1].last)) if kept else None

    def entry_ranges(self, first: Position, last: Position) -> Generator[_Range, None, None]:
        """The positions of a range that hold entries, as ranges inside one ledger; reads data of plain segments only.

        The manifest is enough for a segment whose entry ids have no gap; otherwise the index is read.
        """
        for record in segments_between(self.segments, first, last):
            spans = record.content.ledgers
            if all(span.entries == span.last_entry_id - span.first_entry_id + 1 for span in spans):
                held: Iterable[_Range] = (
                    (Position(span.ledger_id, span.first_entry_id), Position(span.ledger_id, span.last_entry_id))
                    for span in spans
                )
            else:
                held = self._indexed_ranges(self._objects(record), first, last)
            for begin, end in held:
                if begin <= last and end >= first:
                    yield max(begin, first), min(end, last)

    def _indexed_ranges(self, objects: SegmentObjects, first: Position, last: Position) -> Iterator[_Range]:
        segment_map = self._fetcher.index(objects)
        blocks, numbers = segment_map.blocks, segment_map.find(first, last)
        if segment_map.has_extension:  # entry ids in such blocks are consecutive
            columns = (blocks.ledger_id, blocks.first_entry_id, blocks.last_entry_id)
            for ledger, low, high in zip(*(column[numbers].tolist() for column in columns), strict=True):
                yield Position(ledger, low), Position(ledger, high)
            return
        runs = block_runs(objects, segment_map, numbers, self._fetcher.settings.request_size)
        with closing(self._fetcher.runs(runs)) as results:
            for batch in itertools.chain.from_iterable(results):
                yield from consecutive(batch)

    def position_at(self, publish_time_ms: int) -> Position | None:
        """Earliest position published at or after that time; statistics select the blocks to fetch."""
        for record in self.segments.published_from(publish_time_ms):
            objects = self._objects(record)
            position = self._unless_missing(objects, partial(self._time_in_segment, objects, publish_time_ms))
            if position is not None:
                return position
        return None

    def _time_in_segment(self, objects: SegmentObjects, publish_time_ms: int) -> Position | None:
        assert self.ends is not None
        segment_map = self._fetcher.index(objects)
        latest = segment_map.blocks.publish_time_max_ms
        for number in segment_map.find(*self.ends).tolist():
            if latest[number] != TIME_UNKNOWN_MS and latest[number] >= publish_time_ms:
                [batch] = self._fetcher.kept_blocks(objects, segment_map, np.array([number], dtype=np.int64))
                if (position := first_at(batch.between(*self.ends), publish_time_ms)) is not None:
                    return position
        return None

    def _unless_missing(self, objects: SegmentObjects, read: Callable[[], _T]) -> _T | None:
        """The result of ``read``; ``None`` if an object is missing and missing objects are skipped."""
        try:
            return read()
        except ObjectMissingError as error:
            if self._skipped is None:
                raise
            self._skipped.setdefault(objects.uuid, error.message)
            return None

    def _objects(self, record: SegmentRecord) -> SegmentObjects:
        return objects_of(self._stream, record, self._fetcher.store, self._fetcher.settings.relocate)


def objects_of(stream: str, record: SegmentRecord, store: ObjectStore, relocate: Pairs = NOT_MOVED) -> SegmentObjects:
    """The objects of an offloaded segment, expected in ``store``; ``relocate``: the moved buckets.

    Raises:
        InvalidCallError: the manifest records another location. The region is not compared: it is a route to a bucket,
            not another bucket.
    """
    require_same_place(f"stream {stream}, segment {record.uuid}", record.driver, store, relocate)
    return SegmentObjects.of_record(stream, record)


def require_same_place(what: str, driver: Mapping[str, str], store: ObjectStore, relocate: Pairs = NOT_MOVED) -> None:
    """Raise ``InvalidCallError`` when recorded driver metadata of the object ``what`` names another location than
    ``store``.

    A bucket that ``relocate`` maps to the store's bucket is accepted, on any server. Different spellings of an endpoint
    are equal: a trailing slash, a default port, and the names of this machine.
    """
    here = store.driver_metadata
    if not driver or _compared(driver) == _compared(here):
        return
    if relocate.get(driver.get("bucket", "")) != here.get("bucket", ""):
        raise InvalidCallError(
            f"{what} was written to {_place(driver)}; this store is {_place(here)}",
            hint="open the store where it was written, or name the move in the setting read.relocate: old = new",
        )


def first_at(batch: EntryBatch, publish_time_ms: int) -> Position | None:
    """The first entry of a batch that was published at or after that time."""
    times = batch.publish_times_ms
    later = np.flatnonzero((times >= publish_time_ms) & (times != TIME_UNKNOWN_MS))
    return Position(batch.ledger_id, int(batch.entry_ids[later[0]])) if len(later) else None


def _compared(driver: Mapping[str, str]) -> tuple[str, str, str]:
    """The canonical location of objects, for comparison. The name of an S3 driver depends on the endpoint."""
    name, bucket, endpoint = (driver.get(each, "") for each in _PLACE)
    return "aws-s3" if name.lower() == "s3" else name, bucket, _same_endpoint(endpoint)


@lru_cache(maxsize=_ENDPOINTS_MAX)
def _same_endpoint(url: str) -> str:
    with suppress(ValueError):
        parts = urlsplit(url)
        scheme, host = parts.scheme.lower(), (parts.hostname or "").rstrip(".")
        port = parts.port or _PORTS.get(scheme)
        if host:
            return f"{scheme}://{'127.0.0.1' if host in _THIS_MACHINE else host}:{port}{parts.path.rstrip('/')}"
    return url


def _place(driver: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={driver.get(name, '')}" for name in _PLACE)


_RESTORE = "restore the object from a copy"


def read_fill(store: ObjectStore, stream: str, fill: GapFilled) -> EntryBatch:
    """The entries of a fill, verified against its record in the manifest. One GET, of at most 8 MiB.

    Raises:
        ObjectMissingError: the object is missing.
        TrimmedError: its ledger was deleted since the manifest was loaded.
        ObjectChangedError, CorruptError: the object differs from its record.
    """
    key = fill_key(stream, fill.uuid)
    where = f"stream {stream}, object {key}"
    try:
        body, info = store.get(key, ByteRange(0, fill.object_bytes))
    except NotFoundError as cause:
        raise _missing(store, stream, fill, where) from cause
    if info.size_bytes != fill.object_bytes:
        raise ObjectChangedError(
            f"{where} in {store.url}: expected {fill.object_bytes} bytes, found {info.size_bytes}", hint=_RESTORE
        )
    found = crc32c(body)
    if found != fill.crc32c:
        raise CorruptError(
            f"{where} in {store.url}: expected CRC-32C {fill.crc32c:08x}, found {found:08x}", hint=_RESTORE
        )
    try:
        batch = decode_fill(body, object_name=key)
    except FormatError as error:
        raise CorruptError(f"stream {stream}: {error}", hint=_RESTORE) from error
    if (batch.first, batch.last, len(batch)) != (fill.first, fill.last, fill.entries):
        raise ObjectChangedError(
            f"{where}: the manifest records {fill.entries} entries at {fill.first}..{fill.last}, the object has "
            f"{len(batch)} at {batch.first}..{batch.last}",
            hint=_RESTORE,
        )
    return batch


def _missing(store: ObjectStore, stream: str, fill: GapFilled, where: str) -> OffloaderError:
    state = newest_view(store, stream)
    if state is not None and fill in state.fills:
        return ObjectMissingError(
            f"{where} is missing from {store.url}, but the manifest records it for {fill.first}..{fill.last}",
            hint=_RESTORE,
        )
    return TrimmedError(
        f"{where}: ledger {fill.first.ledger_id} was deleted during the read",
        first_available=None if state is None else state.first_position(),
        hint="reopen the stream",
    )
