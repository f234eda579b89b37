"""Plan, fetch in parallel, cache and verify the indexes and blocks of a range of entries.

**The problem.** A request costs tens of milliseconds, so a read needs few and large ones, in parallel, ahead of the
consumer, in bounded memory. The view of a reader may be older than the store: cleanup may have deleted an object that
the view names. Bytes may be damaged, and a damaged entry must never look like a missing or a good one.

**Verification.** Each part is checked against the part before it, and no entry is returned unchecked:

1. The manifest has the length and CRC-32C of the index, the length of the data object and the number of blocks. A check
   is skipped where the manifest has no value, as for Pulsar's objects without a manifest.
2. The index has the range of each block. With the offloader extension it also has the checksums.
3. Each response reports the length of the whole object, which is compared with the expected one, like the bytes
   received and the format version in the metadata.
4. Each block is decoded completely. Its header is compared with the index, its content with its checksums. Blocks that
   Pulsar wrote have no checksum, and their structure is checked.

**Errors.** ``missing`` loads the newest manifest to explain a missing object.

* ``TrimmedError``: that manifest no longer offers the segment. Its first position is in the error.
* ``ObjectMissingError``: it still records the segment as offloaded, or there is no manifest.
* ``ObjectChangedError``: the object has another length. It was replaced or cut off.
* ``CorruptError``: a checksum or the structure is wrong. A caller of ``run`` may skip such blocks, and gets the error
  of each.
* ``LimitReachedError``, ``UnsupportedError``: a block is above a limit, or a later release wrote the object.

**Invariants.**

* Objects never change under their keys: uuids are used once (M4). The cache needs no invalidation, and readers of any
  view share it. Only single reads fill it; scans look up indexes in it.
* Concurrent misses of one key share one load. A call finishes its own loads before it waits for others, so that two
  calls can't deadlock. A failed load is stored nowhere, and every waiting call gets its error.
* ``in_order`` returns results in the order of the tasks. ``PrefetchWindow`` limits how many run ahead of the consumer,
  ``held_bytes_max`` the bytes of ``Sized`` ones. If the consumer stops early, running tasks are awaited and the others
  cancelled.
* A damaged block is reported after its whole response was received: the store takes an error during the response for a
  failure of the request.

This module writes nothing, so a crash needs no recovery. The lease of a reader is in ``offloader.read.reader``.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.checksum import crc32c
from formats.entries import Bytes, EntryBatch, byte_array
from formats.errors import FormatError, InconsistentError, LimitExceededError, UnsupportedVersionError
from formats.extension import EntryTable
from formats.keys import check_object_version, data_key, index_key
from formats.segment_map import SegmentMap
from offloader.errors import (
    CorruptError,
    LimitReachedError,
    NotFoundError,
    ObjectChangedError,
    ObjectMissingError,
    OffloaderError,
    TrimmedError,
    UnsupportedError,
)
from offloader.manifest.load import load_manifest
from offloader.manifest.segment_table import is_at_root
from offloader.manifest.state import ManifestState, SegmentRecord, SegmentStatus
from offloader.settings import ReadSettings
from offloader.store.base import ByteRange, ObjectStore
from offloader.store.wrappers import recorder_of

_K = TypeVar("_K", bound=Hashable)


class Cache:
    """LRU cache of single reads, bounded in bytes. Thread-safe; readers may share it.

    Concurrent misses of one key share one load. Loaders run outside the lock.

    Args:
        bytes_max: maximum number of bytes held; a larger value is returned but not kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._loading: dict[Hashable, Future[Any]] = {}
        self._held_bytes = 0

    def grow(self, bytes_max: int) -> None:
        """Raise the bound to ``bytes_max``, if that is larger."""
        with self._lock:
            self.bytes_max = max(self.bytes_max, bytes_max)

    def find(self, key: Hashable, *, is_use: bool = False) -> Any | None:
        """The cached value, if any; ``is_use``: whether this lookup delays its eviction."""
        with self._lock:
            held = self._values.get(key)
            if is_use and held is not None:
                self._values.move_to_end(key)
        return None if held is None else held[0]

    def get_many(
        self, keys: Iterable[_K], load: Callable[[list[_K]], Mapping[_K, Any]], size_bytes: Callable[[Any], int]
    ) -> tuple[dict[_K, Any], int]:
        """The values of ``keys``, and the number of keys for which ``load`` was called.

        Args:
            keys: distinct keys.
            load: receives the keys that are neither cached nor being loaded, in order, and returns all of their values.
                Called at most once, outside the lock, in this thread. Must not use this cache.
            size_bytes: accounted size of a value.

        Raises:
            any error of ``load``, in this thread or in another thread that was loading a key.
        """
        found: dict[_K, Any] = {}
        mine: dict[_K, Future[Any]] = {}
        others: dict[_K, Future[Any]] = {}
        with self._lock:
            for key in keys:
                held = self._values.get(key)
                if held is not None:
                    self._values.move_to_end(key)
                    found[key] = held[0]
                elif key in self._loading:
                    others[key] = self._loading[key]
                else:
                    mine[key] = self._loading[key] = Future()
        if mine:
            found.update(self._load(mine, load, size_bytes))
        # Settle this call's keys before waiting for others, so that two calls can't deadlock.
        for key, future in others.items():
            found[key] = future.result()
        return found, len(mine)

    def get(self, key: Hashable, load: Callable[[], Any], size_bytes: Callable[[Any], int]) -> Any:
        """The value of one key; see ``get_many``."""
        return self.get_many([key], lambda _: {key: load()}, size_bytes)[0][key]

    def _load(
        self,
        mine: Mapping[_K, Future[Any]],
        load: Callable[[list[_K]], Mapping[_K, Any]],
        size_bytes: Callable[[Any], int],
    ) -> Mapping[_K, Any]:
        try:
            loaded = load(list(mine))
            sizes = {key: size_bytes(loaded[key]) for key in mine}
        except BaseException as error:
            with self._lock:
                for key in mine:
                    del self._loading[key]
            for future in mine.values():
                future.set_exception(error)
            raise
        with self._lock:
            for key in mine:
                del self._loading[key]
                if sizes[key] <= self.bytes_max:
                    self._values[key] = (loaded[key], sizes[key])
                    self._held_bytes += sizes[key]
            while self._held_bytes > self.bytes_max:
                _, (_, gone) = self._values.popitem(last=False)
                self._held_bytes -= gone
        for key, future in mine.items():
            future.set_result(loaded[key])
        return loaded


_PROCESS_CACHE = Cache(0)


def process_cache(bytes_max: int) -> Cache:
    """The default cache, shared by all readers of this process.

    Blocks and indexes are immutable under their keys, so readers of any stream and any manifest version may share them.

    Args:
        bytes_max: the caller's limit; the bound is the largest limit requested so far. 0: a private cache that keeps
            nothing.
    """
    if bytes_max == 0:
        return Cache(0)
    _PROCESS_CACHE.grow(bytes_max)
    return _PROCESS_CACHE


#: Number and size of the first ranged GETs of a scan.
FIRST_REQUESTS, FIRST_REQUEST_BYTES = 3, 4 << 20
#: A ranged GET has the configured length up to this compression ratio.
COMPRESSED_SHARE = 4
#: Growth factor of the window when the consumer waits. Parallel requests take about as long as a single one, so each
#: step takes effect one whole request later: few large steps.
GROWTH = 4

_T = TypeVar("_T")


class PrefetchWindow:
    """Number of tasks to run ahead of the consumer: starts small, grows while the consumer waits, else shrinks. Pure.

    A consumer that reads once costs one extra task, not ``tasks_max``; when it waits again, four run ahead.
    """

    def __init__(self, tasks_max: int) -> None:
        self._tasks_max = tasks_max
        self._unwaited = 0
        self.tasks = 1

    def asked(self, *, waits: bool) -> None:
        """Record a request for another result; ``waits``: the result was not ready."""
        if waits:
            self._unwaited = 0
            self.tasks = min(self.tasks * GROWTH, self._tasks_max)
            return
        self._unwaited += 1
        # Tasks that start together end together: shrink only after two rounds without a wait.
        if self._unwaited > 2 * (self.tasks + 1):
            self._unwaited = 0
            self.tasks = max(self.tasks - 1, 1)


@dataclass(frozen=True, slots=True)
class Sized(Generic[_T]):
    """A task that holds about this many bytes, from its start until its result is taken."""

    call: Callable[[], _T]
    held_bytes: int

    def __call__(self) -> _T:
        return self.call()


class ReaderThreads:
    """Bounded thread pool of one reader.

    Its threads start with the first parallel read in progress and end with the last: an idle reader holds no threads
    and need not be closed.

    Args:
        in_flight_max: maximum number of parallel tasks, over all users of this object.
        executor: a pool to use instead; the caller keeps it, and its size is the bound.
        held_bytes_max: maximum size of one iterator's ``Sized`` tasks that have started and whose results aren't taken.
    """

    def __init__(self, in_flight_max: int, executor: Executor | None = None, held_bytes_max: int = sys.maxsize) -> None:
        self.in_flight_max = in_flight_max
        self._held_bytes_max = held_bytes_max
        self._given = executor
        self._lock = threading.Lock()
        self._own: ThreadPoolExecutor | None = None
        self._users = 0

    def in_order(self, tasks: Iterable[Callable[[], _T]]) -> Generator[_T, None, None]:
        """Run ``tasks`` in parallel and yield their results in order.

        ``tasks`` is consumed lazily in the consumer's thread, ahead of the yielded result by ``PrefetchWindow``. At
        most ``in_flight_max`` + 1 results are held, with at most ``held_bytes_max`` bytes or one larger result. An
        error raised by ``tasks`` itself follows all results of the tasks before it. Closing the generator cancels
        unstarted tasks and waits for running ones.
        """
        pending: deque[tuple[Future[_T], int]] = deque()
        held_bytes = 0
        source, waiting = iter(tasks), list[Callable[[], _T]]()
        ahead = PrefetchWindow(self.in_flight_max)
        failure: Exception | None = None
        exhausted = False
        with self._threads() as executor:
            try:
                while True:
                    if pending:
                        ahead.asked(waits=not pending[0][0].done())
                    while (waiting or not exhausted) and len(pending) <= ahead.tasks:
                        try:
                            task = waiting.pop() if waiting else next(source)
                        except StopIteration:
                            exhausted = True
                            break
                        except Exception as error:
                            exhausted, failure = True, error
                            break
                        size = task.held_bytes if isinstance(task, Sized) else 0
                        if pending and held_bytes + size > self._held_bytes_max:
                            waiting.append(task)
                            break
                        pending.append((executor.submit(task), size))
                        held_bytes += size
                    if not pending:
                        break
                    held_bytes -= pending[0][1]
                    yield pending.popleft()[0].result()
                if failure is not None:
                    raise failure
            finally:
                for future, _ in pending:
                    future.cancel()
                wait([future for future, _ in pending])
                if isinstance(source, Generator):
                    source.close()

    @contextmanager
    def _threads(self) -> Iterator[Executor]:
        if self._given is not None:
            yield self._given
            return
        with self._lock:
            if self._own is None:
                self._own = ThreadPoolExecutor(self.in_flight_max, thread_name_prefix="offloader-read")
            self._users += 1
            executor = self._own
        try:
            yield executor
        finally:
            with self._lock:
                self._users -= 1
                last = self._users == 0
                if last:
                    self._own = None
            if last:
                # No task is running: idle threads end without a wait.
                executor.shutdown(wait=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentObjects:
    """Location and expected properties of one segment's two objects; small, picklable, independent of the manifest.

    Attributes:
        ledger_id: the ledger of a V1 segment; ``None`` in V2.
        at_root: whether the objects are at the store's root, like Pulsar's, instead of below the stream's name.
        data_bytes, index_bytes, index_crc32c, blocks: as in ``SegmentSummary``; ``None`` if not recorded.
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
        summary = record.content
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
    """Adjacent blocks of one data object, fetched with one ranged GET.

    Attributes:
        numbers: the blocks, int64, shape (n,), n > 0; each begins at the end of the previous one.
        start, stop: the bytes to fetch.
    """

    objects: SegmentObjects
    segment_map: SegmentMap
    numbers: NDArray[np.int64]
    start: int
    stop: int

    @property
    def held_bytes(self) -> int:
        """Approximate memory to fetch and decode the run: the entries, plus one stored block."""
        blocks = self.segment_map.blocks
        lengths, decoded = blocks.length[self.numbers], blocks.uncompressed_bytes[self.numbers]
        return int(np.where(decoded < 0, lengths, decoded).sum() + lengths.max())


def newest_view(store: ObjectStore, stream: str) -> ManifestState | None:
    """The newest view of a stream's manifest; ``None``: the manifest does not exist (any more)."""
    with suppress(NotFoundError):
        return load_manifest(store, stream)
    return None


def request_sizes(bytes_max: int) -> Iterator[int]:
    """Sizes of a scan's ranged GETs in bytes; the first ones are small, so that the first entries arrive sooner.

    The second request is in flight when the first one arrives (``PrefetchWindow``): one batch costs 8 MiB of transfer.
    """
    return itertools.chain(
        itertools.repeat(min(FIRST_REQUEST_BYTES, bytes_max), FIRST_REQUESTS), itertools.repeat(bytes_max)
    )


def block_runs(
    objects: SegmentObjects, segment_map: SegmentMap, numbers: NDArray[np.int64], request_bytes: int | Iterator[int]
) -> Iterator[BlockRun]:
    """Group blocks into runs for one ranged GET each: adjacent, together at most ``request_bytes`` long.

    A larger block is a separate run: it is decoded as a whole in any case. A block that is compressed to less than
    1/``COMPRESSED_SHARE`` counts as 1/``COMPRESSED_SHARE`` of its entries, so that few requests don't take much memory.

    Args:
        numbers: the wanted blocks in the wanted order, int64, shape (n,).
        request_bytes: for all runs, or for each: an iterator that several calls may share.
    """
    sizes = itertools.repeat(request_bytes) if isinstance(request_bytes, int) else request_bytes
    starts = segment_map.blocks.offset[numbers]
    stops = starts + segment_map.blocks.length[numbers]
    needed = starts + segment_map.blocks.read_bytes[numbers]
    # -1 where the length of the entries is unknown.
    counted = np.maximum(stops - starts, segment_map.blocks.uncompressed_bytes[numbers] // COMPRESSED_SHARE)
    sums = np.concatenate(([0], np.cumsum(counted)))
    # Indexes at which a run must begin because the block is not adjacent to the previous one.
    breaks = np.append(np.flatnonzero(starts[1:] != stops[:-1]) + 1, len(numbers))
    first = 0
    while first < len(numbers):
        end = int(breaks[np.searchsorted(breaks, first, side="right")])
        fitting = int(np.searchsorted(sums[first + 1 : end + 1], sums[first] + next(sizes), side="right"))
        end = first + max(fitting, 1)
        yield BlockRun(objects, segment_map, numbers[first:end], int(starts[first]), int(needed[end - 1]))
        first = end


#: Decodes a block's entries into newly allocated memory. Arguments: the run, the block's number, the bytes.
Decode = Callable[[BlockRun, int, Bytes], EntryBatch]
#: Called with each damaged block that is skipped; without it, damage is an error.
SkipCorrupt = Callable[[CorruptError], None]


class ArrivingBlocks:
    """A ``Sink`` that decodes a run's blocks while they arrive.

    Args:
        run: blocks that decode independently: their index has the offloader extension.
        decode: decodes each block; its result must not share memory with its input.
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
            self._found.append(
                self._decode(self._run, int(self._run.numbers[done]), self._memory[: self._lengths[done]])
            )
        except Exception as error:
            # Report a damaged block only after the whole response has arrived: the store treats an error raised here as
            # its own.
            self._found.append(error)

    def batches(self, skip: SkipCorrupt | None = None) -> list[EntryBatch]:
        """Entries, one batch per block, in order, as ``Fetcher.run``; call after all bytes have arrived."""
        batches = []
        for found in self._found:
            if isinstance(found, EntryBatch):
                batches.append(found)
            elif skip is not None and isinstance(found, CorruptError):
                skip(found)
            else:
                raise found
        return batches


#: Cache key of an index: store and server, stream, segment, ledger.
_IndexKey = tuple[tuple[str, str], str, int, int | None]
#: Cache key of a block: the key of its index, and its number.
_BlockKey = tuple[_IndexKey, int]

#: Memory of a parsed index: its length plus this many bytes per block.
_ROW_BYTES = 280


class Fetcher:
    """Fetches and verifies objects of one store. Thread-safe.

    Args:
        cache: for single reads; default: a private one, of ``settings.cache_size_max``. Fetchers may share it.
        executor: a thread pool to use instead of own threads.

    Attributes:
        hits: blocks and indexes that its calls found in memory; exact if only one thread calls it.
    """

    def __init__(
        self,
        store: ObjectStore,
        settings: ReadSettings,
        *,
        cache: Cache | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.hits = 0
        self.store = store
        self.settings = settings
        self.cache = cache or Cache(settings.cache_size_max)
        self.workers = ReaderThreads(settings.requests_in_flight_max, executor, settings.ahead_size_max)
        # Two servers may have buckets of the same name.
        self._place = (store.url, store.driver_metadata.get("serviceEndpoint", ""))
        self._recorder = recorder_of(store)

    def _index_key(self, objects: SegmentObjects) -> _IndexKey:
        """Cache key of a segment, cheaper than its object names."""
        return self._place, objects.stream, objects.uuid.int, objects.ledger_id

    def index(self, objects: SegmentObjects, *, keep: bool = True) -> SegmentMap:
        """The segment's index, checked against ``objects``; ``keep``: whether to cache it. Scans only look it up.

        Raises:
            TrimmedError, ObjectMissingError, ObjectChangedError, CorruptError, UnsupportedError: see the module; and
                the store's errors.
        """
        key = self._index_key(objects)
        found: SegmentMap | None = self.cache.find(key, is_use=keep)
        if not keep:
            return found if found is not None else self._load_index(objects)
        misses = 0
        if found is None:
            loaded, misses = self.cache.get_many([key], lambda _: {key: self._load_index(objects)}, _index_held_bytes)
            found = loaded[key]
        self._count_cached(objects, 1 - misses, misses)
        return found

    def run(self, run: BlockRun, skip: SkipCorrupt | None = None) -> list[EntryBatch]:
        """Entries of a run's blocks, one batch per block, in order; one ranged GET, bypassing the cache.

        ``skip`` is called with the error of each damaged block, which then counts as empty.

        Raises:
            TrimmedError, ObjectMissingError, ObjectChangedError, CorruptError, LimitReachedError, Unsupported.
        """
        if len(run.numbers) == 1 or not run.segment_map.has_extension:
            return self.decode(run, self.run_bytes(run), skip)
        self._require_small_blocks(run)
        blocks = ArrivingBlocks(run, self._decode)
        data = self._get(
            run.objects, run.objects.data_key, ByteRange(run.start, run.stop), run.segment_map.data_bytes, blocks
        )
        return blocks.batches(skip) if blocks.received_bytes else self.decode(run, data, skip)

    def run_bytes(self, run: BlockRun) -> bytes:
        """A run's bytes, undecoded; errors as ``run``, except for damaged blocks."""
        self._require_small_blocks(run)
        return self.bytes_of(run.objects, run.segment_map, run.start, run.stop)

    def decode(self, run: BlockRun, data: bytes, skip: SkipCorrupt | None = None) -> list[EntryBatch]:
        """Decode a run's bytes, one batch per block, in order; errors as ``run``."""
        view = byte_array(data)
        batches = []
        for number in run.numbers.tolist():
            try:
                batches.append(self._decode(run, number, view[_extent(run, number)[0] - run.start :]))
            except CorruptError as error:
                if skip is None:
                    raise
                skip(error)
        return batches

    def runs(self, runs: Iterable[BlockRun]) -> Generator[list[EntryBatch], None, None]:
        """``run`` of each, in parallel, in order."""
        return self.workers.in_order(Sized(partial(self.run, run), run.held_bytes) for run in runs)

    def kept_blocks(
        self, objects: SegmentObjects, segment_map: SegmentMap, numbers: NDArray[np.int64]
    ) -> list[EntryBatch]:
        """Entries of the blocks ``numbers``, one batch per block, through the cache; coalesces requests for misses."""
        index_key = self._index_key(objects)
        if len(numbers) == 1:
            # Fast path for one entry of a cached block.
            held: EntryBatch | None = self.cache.find((index_key, int(numbers[0])), is_use=True)
            if held is not None:
                self._count_cached(objects, 1, 0)
                return [held]

        def load(wanted: list[_BlockKey]) -> dict[_BlockKey, EntryBatch]:
            absent = np.array([number for _, number in wanted], dtype=np.int64)
            runs = list(block_runs(objects, segment_map, absent, self.settings.request_size))
            loaded = [self.run(runs[0])] if len(runs) == 1 else list(self.runs(runs))
            return dict(zip(wanted, itertools.chain.from_iterable(loaded), strict=True))

        keys = [(index_key, number) for number in numbers.tolist()]
        found, misses = self.cache.get_many(keys, load, _batch_held_bytes)
        self._count_cached(objects, len(keys) - misses, misses)
        return [found[key] for key in keys]

    def entry_table(self, objects: SegmentObjects, segment_map: SegmentMap, number: int) -> EntryTable:
        """Lengths and publish times of a block's entries, by one ranged GET of its entry table.

        The index must have the offloader extension, so that the block has a table.
        """
        start = int(segment_map.blocks.table_offset[number])
        stop = start + int(segment_map.blocks.table_bytes[number])
        data = self.bytes_of(objects, segment_map, start, stop)
        try:
            return segment_map.decode_entry_table(
                number, data, decompressed_bytes_max=self.settings.decompressed_size_max
            )
        except FormatError as error:
            raise _translated(error, objects, objects.data_key, start, stop) from error

    def bytes_of(self, objects: SegmentObjects, segment_map: SegmentMap, start: int, stop: int) -> bytes:
        """Bytes ``start`` .. ``stop`` of a segment's data object; verifies the count and the object's length."""
        return self._get(objects, objects.data_key, ByteRange(start, stop), segment_map.data_bytes)

    def count_used(self, stream: str, batch: EntryBatch) -> None:
        """Count entries as delivered to a reader, so that metrics show the fetched bytes that were not used."""
        self._recorder.add("read_used_bytes_total", batch.payload_bytes, stream=stream)

    def _count_cached(self, objects: SegmentObjects, hits: int, misses: int) -> None:
        self.hits += hits
        if hits:
            self._recorder.add("cache_hits_total", hits, stream=objects.stream)
        if misses:
            self._recorder.add("cache_misses_total", misses, stream=objects.stream)

    def _load_index(self, objects: SegmentObjects) -> SegmentMap:
        key = objects.index_key
        # A range keeps an unexpectedly large object out of memory; the response still reports the whole length.
        byte_range = None if objects.index_bytes is None else ByteRange(0, objects.index_bytes)
        data = self._get(objects, key, byte_range, objects.index_bytes)
        found = crc32c(data)
        if objects.index_crc32c is not None and found != objects.index_crc32c:
            raise CorruptError(
                f"stream {objects.stream}, object {key}, bytes 0..{len(data)}: expected CRC-32C "
                f"{objects.index_crc32c:08x} (from the manifest), found {found:08x}",
                hint="restore the index object, or rebuild it from the data object",
            )
        try:
            segment_map = SegmentMap.parse(data, object_name=key, ledger_id=objects.ledger_id)
            if objects.data_bytes is not None and segment_map.data_bytes != objects.data_bytes:
                raise InconsistentError("data object length", expected=objects.data_bytes, found=segment_map.data_bytes)
            if objects.blocks is not None and len(segment_map.blocks) != objects.blocks:
                raise InconsistentError("number of blocks", expected=objects.blocks, found=len(segment_map.blocks))
        except FormatError as error:
            raise _translated(error, objects, key, 0, len(data)) from error
        return segment_map

    def _get(
        self,
        objects: SegmentObjects,
        key: str,
        byte_range: ByteRange | None,
        expected_bytes: int | None,
        into: ArrivingBlocks | None = None,
    ) -> bytes:
        try:
            data, info = self.store.get(key, byte_range, into=into)
        except NotFoundError as cause:
            raise self.missing(objects, key) from cause
        came_bytes = len(data) + (0 if into is None else into.received_bytes)
        self._recorder.add("read_fetched_bytes_total", came_bytes, stream=objects.stream)
        wanted = info.size_bytes if byte_range is None else byte_range.length
        if (expected_bytes is not None and info.size_bytes != expected_bytes) or came_bytes != wanted:
            raise ObjectChangedError(
                f"stream {objects.stream}, object {key} in {self.store.url}: "
                f"expected {expected_bytes or wanted} bytes, found {info.size_bytes}",
                hint="the object was replaced or truncated: restore it from a copy",
            )
        if info.metadata:  # not every store keeps user metadata
            try:
                check_object_version(info.metadata, key)
            except UnsupportedVersionError as error:
                raise UnsupportedError(
                    f"stream {objects.stream}: {error}", hint="upgrade to the release that wrote it, or a later one"
                ) from error
        return data

    def require_there(self, objects: SegmentObjects) -> bool:
        """Return True if both objects exist; otherwise raise the error of ``missing``."""
        for key in (objects.data_key, objects.index_key):
            try:
                self.store.head(key)
            except NotFoundError as cause:
                raise self.missing(objects, key) from cause
        return True

    def missing(self, objects: SegmentObjects, key: str) -> OffloaderError:
        """The error for a missing object, by the newest manifest: ``TrimmedError`` or ``ObjectMissingError``."""
        where = f"stream {objects.stream}, object {key}"
        # Objects at the store's root are Pulsar's and have no manifest.
        state = newest_view(self.store, objects.stream) if objects.stream else None
        if state is None:
            return ObjectMissingError(f"{where} is missing from {self.store.url}, and the stream has no manifest")
        record = state.segments.get(objects.uuid)
        if record is not None and record.status is SegmentStatus.OFFLOADED:
            return ObjectMissingError(
                f"{where} is missing from {self.store.url}, but the manifest records segment {objects.uuid} at "
                f"{record.begin}..{record.end}",
                hint="restore it from a copy; other segments can still be read",
            )
        first = state.first_position()
        return TrimmedError(
            f"{where}: retention deleted segment {objects.uuid} during the read; the stream now begins at "
            f"{first or 'nothing'}",
            first_available=first,
            hint="reopen the stream",
        )

    def _require_small_blocks(self, run: BlockRun) -> None:
        largest = int(run.segment_map.blocks.length[run.numbers].max())
        if largest > self.settings.block_size_max:
            raise LimitReachedError(
                f"stream {run.objects.stream}, object {run.objects.data_key}: a block of {largest} bytes exceeds "
                f"read.block_size_max = {self.settings.block_size_max}",
                hint="increase read.block_size_max",
            )

    def _decode(self, run: BlockRun, number: int, data: Bytes) -> EntryBatch:
        offset, length = _extent(run, number)
        try:
            return run.segment_map.decode(
                number,
                data,
                block_bytes_max=self.settings.block_size_max,
                decompressed_bytes_max=self.settings.decompressed_size_max,
            )
        except FormatError as error:
            raise _translated(error, run.objects, run.objects.data_key, offset, offset + length) from error


def _extent(run: BlockRun, number: int) -> tuple[int, int]:
    return int(run.segment_map.blocks.offset[number]), int(run.segment_map.blocks.length[number])


def _translated(error: FormatError, objects: SegmentObjects, key: str, start: int, stop: int) -> OffloaderError:
    text = f"stream {objects.stream}, object {key}, bytes {start}..{stop}: {error.described()}"
    if isinstance(error, LimitExceededError):
        return LimitReachedError(text, hint="increase read.block_size_max or read.decompressed_size_max")
    if isinstance(error, UnsupportedVersionError):
        return UnsupportedError(text, hint="upgrade to the release that wrote it, or a later one")
    return CorruptError(text, hint="restore this object from a copy; the rest of the stream can still be read")


def _index_held_bytes(segment_map: SegmentMap) -> int:
    return len(segment_map.blocks) * _ROW_BYTES + sum(len(group.metadata) for group in segment_map.ledgers)


def _batch_held_bytes(batch: EntryBatch) -> int:
    return batch.payload_bytes + batch.entry_ids.nbytes + batch.publish_times_ms.nbytes + batch.offsets.nbytes
