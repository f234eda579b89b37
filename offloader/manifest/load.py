"""Loads a stream's manifest: checkpoint, later records, and the proof of the log's end.

Rules M30 to M36 of docs/explanation/manifest.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import NamedTuple
from uuid import UUID

from formats.checkpoint import Checkpoint, RunRef, decode_checkpoint, decode_ledgers
from formats.checkpoint_parquet import SegmentColumns, decode_columns
from formats.checksum import crc32c
from formats.errors import FormatError
from formats.keys import checkpoint_key, manifest_prefix, record_key
from formats.manifest import Record, decode_record
from offloader.errors import CorruptError, InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.manifest.apply import fold
from offloader.manifest.boundary import (
    GIVEN_UP_ID,
    REBUILD,
    LostRecordsError,
    StoredBoundary,
    Unreadable,
    decoded,
    number_in,
    read_boundary,
    read_record,
    require_never_begun,
    unreadable,
)
from offloader.manifest.catalog import read_entry, require_entry
from offloader.manifest.compaction import RUN_ROWS_MIN, compacted, restored
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.parallel_map import at_once, both
from offloader.store.base import ObjectStore, is_local

#: Concurrent GETs of tail records: initially, then doubling up to the maximum.
WINDOW_MIN, WINDOW_MAX = 1, 16
#: ... and initially for a view that is loaded from a checkpoint: a wait costs more than GETs of missing records.
FIRST_WINDOW = 8
#: Listed names checked after the last record: the first decides, the others are for stores that don't sort.
LISTED_MAX = 10


class Passed(Exception):
    """The boundary has passed the records that were read."""


#: Requests that a view will probably need.
Meanwhile = Callable[[ManifestState], object]


def with_tail(
    store: ObjectStore,
    view: ManifestState,
    requests_max: int,
    records_max: int | None = None,
    *,
    window: int = WINDOW_MIN,
    meanwhile: Meanwhile | None = None,
) -> LoadedManifest:
    """``view`` with every later record, and the boundary read after that; ``None``: there is none.

    Args:
        requests_max: concurrent requests; 1: sequential, on this thread.
        records_max: more of them raise ``Passed``.
        window: records asked for at first.
        meanwhile: called with a view while it is checked, on another thread; its result is dropped.

    Raises:
        Passed: the boundary has passed some of them.
        LostRecordsError: a record existed and is missing.
        CorruptError, UnsupportedError: one can't be read, or doesn't follow.
    """
    first = view.record_id + 1
    nonces = {view.record_id: view.nonce}
    if is_local(store):
        requests_max = 1
    while True:
        try:
            view = _tail(store, view, requests_max, records_max, nonces, window)
            window = WINDOW_MIN
        except Unreadable as error:
            # Or it was deleted, or deleted and created again: the boundary decides.
            if _boundary(store, view, first) is None:
                raise Passed from error
            raise
        with nullcontext() if meanwhile is None or requests_max == 1 else _aside(meanwhile, view):
            listed, stored = both(
                partial(_highest_listed, store, view),
                partial(_boundary, store, view, first),
                sequential=requests_max == 1,
            )
        if stored is None:
            return LoadedManifest(view, None)
        boundary = stored.boundary
        newest = max(listed, boundary.newest_id, boundary.checkpoint_id)
        if newest <= view.record_id:
            named = nonces.get(boundary.newest_id)
            if boundary.newest_id and named is not None and named != boundary.newest_nonce:
                raise LostRecordsError(
                    f"manifest of stream {view.stream}: record {boundary.newest_id} isn't the record that the boundary "
                    "names: that record was lost, and its number was used again",
                    hint=REBUILD,
                )
            return LoadedManifest(view, stored)
        if _record(store, record_key(view.stream, view.incarnation, view.record_id + 1)) is None:
            if _boundary(store, view, first) is None:
                return LoadedManifest(view, None)
            raise _lost(view, view.record_id + 1, newest)


@contextmanager
def _aside(call: Meanwhile, view: ManifestState) -> Iterator[None]:
    """Runs a call on another thread for as long as the block, at least."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(copy_context().run, call, view)
        yield


def _boundary(store: ObjectStore, view: ManifestState, first: int) -> StoredBoundary | None:
    """The boundary now; raises ``Passed`` if it doesn't keep record ``first`` any more."""
    with suppress(NotFoundError):
        stored = read_boundary(store, view.stream, view.incarnation)
        if stored.boundary.first_kept_id > first:
            raise Passed
        return stored
    return None


def _highest_listed(store: ObjectStore, view: ManifestState) -> int:
    """The highest number among the names listed after the last record read; 0: there is none."""
    prefix = manifest_prefix(view.stream, view.incarnation)
    page = store.list(prefix, after=record_key(view.stream, view.incarnation, view.record_id), limit=LISTED_MAX)
    return max((number_in(info.key[len(prefix) :]) or 0 for info in page.objects), default=0)


def _lost(view: ManifestState, record_id: int, newest: int) -> LostRecordsError:
    return LostRecordsError(
        f"manifest of stream {view.stream}: record {record_id} is missing, but later records exist: record {newest} "
        "certainly existed",
        hint=REBUILD,
    )


def _tail(
    store: ObjectStore,
    view: ManifestState,
    requests_max: int,
    records_max: int | None,
    nonces: dict[int, str],
    window: int,
) -> ManifestState:
    """Reads records until one is missing; adds the nonce of each to ``nonces``."""
    start = view.record_id
    while True:
        first = view.record_id + 1
        keys = [record_key(view.stream, view.incarnation, first + offset) for offset in range(window)]
        bodies = _records(store, keys, requests_max)
        newest = max((number for number, body in enumerate(bodies) if body is not None), default=-1)
        for number, (key, found) in enumerate(zip(keys, bodies, strict=False)):
            # One before others was created after its GET, like those; or it is lost.
            body = _record(store, key) if found is None and number < newest else found
            if body is None and number < newest:
                raise _lost(view, first + number, first + newest)
            if body is None:
                return view
            view = folded(view, body, key)
            nonces[view.record_id] = view.nonce
        if records_max is not None and view.record_id - start > records_max:
            raise Passed
        if len(view.segments.tail) > RUN_ROWS_MIN:
            view = compacted(view)
        window = min(window * 2, WINDOW_MAX, requests_max)


def _records(store: ObjectStore, keys: Sequence[str], requests_max: int) -> list[bytes | None]:
    """The records under the keys; sequentially only up to the first missing one."""
    if len(keys) == 1 or requests_max == 1:
        found: list[bytes | None] = []
        while len(found) < len(keys) and (not found or found[-1] is not None):
            found.append(_record(store, keys[len(found)]))
        return found
    return at_once(partial(_record, store), keys, sequential_max=1, in_flight_max=requests_max)


def _record(store: ObjectStore, key: str) -> bytes | None:
    with suppress(NotFoundError):
        return store.get(key)[0]
    return None


def folded(view: ManifestState, body: bytes, key: str) -> ManifestState:
    """The view after the record in ``body``; raises ``CorruptError`` or ``UnsupportedError``."""
    try:
        return fold(view, decode_record(body, object_name=key))
    except (FormatError, EditRefusedError) as error:
        raise unreadable(f"manifest of stream {view.stream}, record {view.record_id + 1}", error) from error


#: Restarts of a load because the boundary passed it.
RESTARTS_MAX = 20
#: Records after which an old view is loaded from the newest checkpoint instead of updated.
REFRESHED_RECORDS_MAX = 256
#: Concurrent GETs of records in one load.
RECORD_REQUESTS_MAX = 8


class LoadedManifest(NamedTuple):
    """A view, and the boundary read after it; ``None`` if the stream has none."""

    state: ManifestState
    boundary: StoredBoundary | None


def load_manifest(store: ObjectStore, stream: str, *, meanwhile: Meanwhile | None = None) -> ManifestState:
    """The newest view of a stream's manifest, for readers.

    Args:
        meanwhile: called with a view while it is still checked, on another thread, where the store is elsewhere.

    Raises:
        NotFoundError: no such stream.
        CorruptError: a record, a checkpoint, the boundary or the catalogue entry is damaged or missing.
        UnsupportedError: a later release wrote one of them.
        StoreUnavailableError: the store doesn't respond.
    """
    return load_manifest_view(store, stream, require_entry(store, stream).incarnation, meanwhile=meanwhile).state


def load_manifest_view(
    store: ObjectStore,
    stream: str,
    incarnation: UUID,
    *,
    requests_max: int = RECORD_REQUESTS_MAX,
    meanwhile: Meanwhile | None = None,
) -> LoadedManifest:
    """The newest view of an incarnation, loaded from its newest checkpoint.

    Requests: boundary, checkpoint, its runs, the records since, up to one that is missing, boundary and a listing.

    Args:
        requests_max: concurrent requests; 1: sequential, on this thread.
        meanwhile: as for ``load_manifest``.
    """
    for _ in range(RESTARTS_MAX):
        try:
            stored = read_boundary(store, stream, incarnation)
        except NotFoundError:
            # The boundary is created before the first record and deleted after the last. If the catalogue names the
            # incarnation, it may be lost.
            if _is_empty(store, stream, incarnation):
                return LoadedManifest(ManifestState(stream=stream, incarnation=incarnation), None)
            continue
        if stored.boundary.first_kept_id >= GIVEN_UP_ID:
            raise CorruptError(f"the manifest of stream {stream} was abandoned for a rebuild", hint=REBUILD)
        with suppress(Passed):
            view = _from_checkpoint(store, stream, incarnation, stored)
            view, after = with_tail(store, view, requests_max, window=FIRST_WINDOW, meanwhile=meanwhile)
            # Else the stream was deleted meanwhile: its newest records may have been deleted before the GETs.
            if after is not None and (view.record_id or _is_empty(store, stream, incarnation)):
                return LoadedManifest(view, after)
    raise StoreUnavailableError(
        f"stream {stream}: its boundary changed {RESTARTS_MAX} times while the manifest was loaded"
    )


def _is_empty(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Whether an incarnation without a record never had one; False if it has one by now: read again.

    Only the incarnation in the catalogue can have lost its records; orphan searches report what others left.

    Raises:
        CorruptError: there are records without a boundary.
        LostRecordsError: there are segments and no record.
    """
    try:
        entry = read_entry(store, stream)
    except Unreadable:
        return True  # a rebuild works without one
    if entry is None or entry.incarnation != incarnation:
        return True
    return require_never_begun(store, stream, incarnation)


def refreshed(
    store: ObjectStore, state: ManifestState, *, requests_max: int = RECORD_REQUESTS_MAX, anew: bool = False
) -> LoadedManifest:
    """The newest view, updated from ``state`` if possible.

    Args:
        anew: read the newest checkpoint and every record since it; the view must still follow ``state``.

    Raises:
        LostRecordsError: the manifest ends before ``state`` does, or with another record.
    """
    if state.record_id and not anew:
        with suppress(Passed):
            return with_tail(store, state, requests_max, records_max=REFRESHED_RECORDS_MAX)
    newer, boundary = load_manifest_view(store, state.stream, state.incarnation, requests_max=requests_max)
    is_other = newer.record_id == state.record_id and newer.nonce != state.nonce
    if boundary is not None and (newer.record_id < state.record_id or is_other):
        raise LostRecordsError(
            f"manifest of stream {state.stream}: it ends with record {newer.record_id}, but record {state.record_id} "
            "was read earlier",
            hint=REBUILD,
        )
    return LoadedManifest(newer, boundary)


def load_manifest_view_at(store: ObjectStore, newest: ManifestState, record_id: int) -> ManifestState:
    """The view exactly at record ``record_id``.

    Args:
        record_id: at most ``newest.record_id``.

    Raises:
        InvalidCallError: that record was deleted, folded into a checkpoint.
    """
    stream = newest.stream
    stored = read_boundary(store, stream, newest.incarnation)
    empty = ManifestState(stream=stream, incarnation=newest.incarnation)
    gone = InvalidCallError(
        f"stream {stream}: can't pin record {record_id}: records below {stored.boundary.first_kept_id} were deleted",
        hint=f"the newest record is {newest.record_id}",
    )
    if record_id < stored.boundary.first_kept_id - 1:
        raise gone
    try:
        state = _checkpoint_at(store, empty, stored, record_id)
        while state.record_id < record_id:
            key = record_key(stream, state.incarnation, state.record_id + 1)
            state = folded(state, store.get(key)[0], key)
    except NotFoundError as error:
        raise gone from error
    return state


def _checkpoint_at(store: ObjectStore, empty: ManifestState, stored: StoredBoundary, record_id: int) -> ManifestState:
    """The newest checkpointed view at or before ``record_id``; each checkpoint names the one before it."""
    checkpoint_id, checksum = stored.boundary.checkpoint_id, stored.boundary.checkpoint_crc32c or None
    while checkpoint_id:
        header, own = _checkpoint(store, empty.stream, empty.incarnation, checkpoint_id, checksum)
        if checkpoint_id <= record_id:
            return _restored(store, empty.stream, header, own)
        checkpoint_id, checksum = header.base_id, header.base_crc32c or None
    return empty


def view_in_checkpoint(store: ObjectStore, stream: str, incarnation: UUID, checkpoint_id: int) -> ManifestState:
    """The view in one checkpoint, whether or not a boundary names it.

    Raises:
        NotFoundError: it, or a run of it, is missing.
        CorruptError, UnsupportedError: one of them can't be read.
    """
    return _restored(store, stream, *_checkpoint(store, stream, incarnation, checkpoint_id, None))


def check_checkpoints(
    store: ObjectStore, state: ManifestState, stored: StoredBoundary
) -> Iterator[tuple[str, OffloaderError]]:
    """Checks the kept checkpoints and their runs, from the newest back; returns key and reason of each problem.

    Each names the one it was built on, and that one's checksum.
    """
    checkpoint_id, checksum = stored.boundary.checkpoint_id, stored.boundary.checkpoint_crc32c or None
    prefix = manifest_prefix(state.stream, state.incarnation)
    while checkpoint_id >= max(stored.boundary.first_kept_id - 1, 1):
        key = checkpoint_key(state.stream, state.incarnation, checkpoint_id)
        try:
            header, _ = _checkpoint(store, state.stream, state.incarnation, checkpoint_id, checksum)
        except (NotFoundError, *Unreadable) as error:
            yield key, error
            return
        for run in (*header.runs, *header.ledger_runs):
            try:
                read_run(store, prefix, run)
            except (NotFoundError, CorruptError) as error:
                yield f"{prefix}{run.name}", error
        checkpoint_id, checksum = header.base_id, header.base_crc32c or None


def _from_checkpoint(store: ObjectStore, stream: str, incarnation: UUID, stored: StoredBoundary) -> ManifestState:
    boundary = stored.boundary
    if boundary.checkpoint_id == 0:
        return ManifestState(stream=stream, incarnation=incarnation)
    try:
        header, own = _checkpoint(store, stream, incarnation, boundary.checkpoint_id, boundary.checkpoint_crc32c)
        return _restored(store, stream, header, own)
    except (NotFoundError, *Unreadable) as error:
        # A newer checkpoint may have been written, and this one's runs deleted, meanwhile.
        if read_boundary(store, stream, incarnation).boundary != boundary:
            raise Passed from error
        if isinstance(error, NotFoundError):
            raise CorruptError(
                f"manifest of stream {stream}: checkpoint {boundary.checkpoint_id} or a run of it is missing: "
                f"{error.message}",
                hint=REBUILD,
            ) from error
        raise


def _restored(store: ObjectStore, stream: str, header: Checkpoint, own: SegmentColumns) -> ManifestState:
    """The whole view in one checkpoint; ``NotFoundError`` if a run of it is missing."""
    prefix = manifest_prefix(stream, header.incarnation)
    what = f"manifest of stream {stream}"
    # One run at a time: the bytes of one are freed before the next one is read.
    runs = [decoded(read_run(store, prefix, run), run.name, decode_columns, what) for run in header.runs]
    ledgers = [decoded(read_run(store, prefix, run), run.name, decode_ledgers, what) for run in header.ledger_runs]
    rows = [*map(len, runs), *map(len, ledgers)]
    for run, found in zip((*header.runs, *header.ledger_runs), rows, strict=True):
        if found != run.rows:
            raise CorruptError(f"{prefix}{run.name} has {found} rows, its checkpoint names {run.rows}", hint=REBUILD)
    return restored(stream, header, own, runs, ledgers)


def _checkpoint(
    store: ObjectStore, stream: str, incarnation: UUID, checkpoint_id: int, checksum: int | None
) -> tuple[Checkpoint, SegmentColumns]:
    """Reads and decodes one checkpoint; ``checksum``: from the boundary, or from the checkpoint built on it."""
    key = checkpoint_key(stream, incarnation, checkpoint_id)
    data = store.get(key)[0]
    found = crc32c(data)
    if checksum not in (None, found):
        raise CorruptError(
            f"manifest of stream {stream}: {key} has CRC-32C {found:08x}, expected {checksum:08x}",
            hint=REBUILD,
        )
    header, own = decoded(data, key, decode_checkpoint, f"the checkpoint {key}")
    is_this = header.record_id == checkpoint_id and header.incarnation == incarnation
    if not is_this or header.base_id >= checkpoint_id:
        raise CorruptError(
            f"{key} belongs to record {header.record_id}, incarnation {header.incarnation}, built on {header.base_id}",
            hint=REBUILD,
        )
    return header, own


def read_run(store: ObjectStore, prefix: str, run: RunRef) -> bytes:
    """The bytes of a run below the manifest's ``prefix``.

    Raises:
        NotFoundError: it is missing.
        CorruptError: its length or checksum isn't that of the checkpoint's reference.
    """
    data = store.get(f"{prefix}{run.name}")[0]
    if len(data) != run.object_bytes or crc32c(data) != run.crc32c:
        raise CorruptError(
            f"{prefix}{run.name} isn't the object that its checkpoint names: its length or checksum differs",
            hint=REBUILD,
        )
    return data


def kept_records(
    store: ObjectStore, state: ManifestState, *, newest_first: bool = False, count: int | None = None
) -> Iterator[Record]:
    """Kept records of a manifest up to the one at which ``state`` ends; several are read ahead.

    Args:
        newest_first: the order; default: the oldest first.
        count: limit, the newest ones.

    Raises:
        CorruptError: one of them is damaged.
    """
    first = read_boundary(store, state.stream, state.incarnation).boundary.first_kept_id
    numbers = range(first if count is None else max(first, state.record_id - count + 1), state.record_id + 1)
    numbers = numbers[::-1] if newest_first else numbers
    window, sequential_max = WINDOW_MIN, WINDOW_MAX if is_local(store) else 1
    while numbers:
        yield from at_once(partial(_kept_record, store, state), numbers[:window], sequential_max=sequential_max)
        numbers, window = numbers[window:], min(window * 2, WINDOW_MAX)


def _kept_record(store: ObjectStore, state: ManifestState, number: int) -> Record:
    return read_record(store, state.stream, record_key(state.stream, state.incarnation, number), number)[0]
