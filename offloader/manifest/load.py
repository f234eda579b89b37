"""A stream's manifest out of the bucket: checkpoint, then the records after it.

Owns the order of reads that makes a view sound. Must never trust a listing, nor answer a view of which a record may
have been one that was deleted and created again.

Records below the boundary are gone, and whoever stalled long enough can create one of their numbers anew. So a view
counts only when the boundary, read after the last record, still keeps every record that was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar
from uuid import UUID

from formats.checkpoint import Checkpoint, RunRef, decode_checkpoint
from formats.checkpoint_columns import SegmentColumns
from formats.checkpoint_ledgers import decode_ledgers
from formats.checkpoint_parquet import decode_columns
from formats.checksum import crc32c
from formats.errors import FormatError
from formats.keys import checkpoint_key, manifest_prefix, record_key
from offloader.errors import Corrupt, InvalidCall, NotFound, OffloaderError, StoreUnavailable
from offloader.manifest.apply import fold
from offloader.manifest.boundary import GIVEN_UP_ID, StoredBoundary, read_boundary, require_never_begun
from offloader.manifest.catalog import read_entry
from offloader.manifest.sealing import RUN_ROWS_MIN, compacted, restored
from offloader.manifest.state import ManifestState
from offloader.manifest.tail import Passed, Reading, View, folded, with_tail
from offloader.manifest.unreadable import REBUILD, LostRecords, Unreadable, unreadable
from offloader.store.base import ObjectStore

__all__ = [
    "RECORD_REQUESTS_MAX",
    "LoadedManifest",
    "Reading",
    "View",
    "check_checkpoints",
    "load_manifest",
    "load_manifest_view",
    "load_manifest_view_at",
    "load_view",
    "read_run",
    "refreshed",
    "refreshed_view",
    "view_in_checkpoint",
]

#: How often a load starts over because the boundary passed it.
RESTARTS_MAX = 20
#: Records after which an old view isn't brought up to date but loaded anew, from the newest checkpoint.
REFRESHED_RECORDS_MAX = 256
#: GETs of records in flight of one load.
RECORD_REQUESTS_MAX = 8


class LoadedManifest(NamedTuple):
    """A view, and the boundary as it was after the view was read; ``None``: the stream has none."""

    state: ManifestState
    boundary: StoredBoundary | None


_View = TypeVar("_View", bound=View)


def load_manifest(store: ObjectStore, stream: str) -> ManifestState:
    """The newest view of a stream's manifest, for readers.

    Raises:
        NotFound: no such stream.
        Corrupt: a record, a checkpoint, the boundary or the catalogue entry is damaged or missing.
        Unsupported: a later release wrote one of them.
        StoreUnavailable: the store doesn't answer.
    """
    entry = read_entry(store, stream)
    if entry is None:
        raise NotFound(f"stream {stream} isn't in {store.url}", hint="`offloader ls` lists the streams")
    return load_manifest_view(store, ManifestState(stream=stream, incarnation=entry.incarnation)).state


def load_manifest_view(
    store: ObjectStore, empty: ManifestState, *, requests_max: int = RECORD_REQUESTS_MAX
) -> LoadedManifest:
    """The newest view of the incarnation that ``empty`` names, from its newest checkpoint on.

    Requests: boundary, checkpoint, its runs, the records since (two absent ones end them), boundary.

    Args:
        requests_max: records asked for at once; 1: one after the other, on this thread.
    """
    return LoadedManifest(*load_view(store, empty.stream, empty.incarnation, _WHOLE, requests_max=requests_max))


def refreshed(store: ObjectStore, state: ManifestState, *, requests_max: int = RECORD_REQUESTS_MAX) -> LoadedManifest:
    """The newest view, from ``state`` on where that is still possible."""
    return LoadedManifest(*refreshed_view(store, state, _WHOLE, requests_max=requests_max))


def load_view(
    store: ObjectStore,
    stream: str,
    incarnation: UUID,
    reading: Reading[_View],
    *,
    requests_max: int = RECORD_REQUESTS_MAX,
) -> tuple[_View, StoredBoundary | None]:
    """The newest view of an incarnation, and its boundary, as ``load_manifest_view`` reads them."""
    for _ in range(RESTARTS_MAX):
        try:
            stored = read_boundary(store, stream, incarnation)
        except NotFound:
            # Created before the first record, deleted after the last. Where the catalogue names it, it may be lost.
            if _is_empty(store, stream, incarnation):
                return reading.begin(stream, incarnation), None
            continue
        if stored.boundary.first_kept_id >= GIVEN_UP_ID:
            raise Corrupt(f"the manifest of stream {stream} was given up to be rebuilt", hint=REBUILD)
        try:
            view = _from_checkpoint(store, stream, incarnation, stored, reading)
            view, after = with_tail(store, view, reading, requests_max)
        except Passed:
            continue
        if after is not None and (view.record_id or _is_empty(store, stream, incarnation)):
            return view, after
        # The stream was deleted while it was read: its newest records may have gone before they were asked for.
    raise StoreUnavailable(f"stream {stream}: its boundary moved {RESTARTS_MAX} times while it was loaded")


def _is_empty(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Whether an incarnation without a record never had one; False: it has one by now, look again.

    Only the incarnation that the catalogue names can have lost its records; what others left is reported by who looks.

    Raises:
        Corrupt: there are records without a boundary.
        LostRecords: there are segments and no record.
    """
    try:
        entry = read_entry(store, stream)
    except Unreadable:
        return True  # a manifest is rebuilt without one
    if entry is None or entry.incarnation != incarnation:
        return True
    return require_never_begun(store, stream, incarnation)


def refreshed_view(
    store: ObjectStore, view: _View, reading: Reading[_View], *, requests_max: int = RECORD_REQUESTS_MAX
) -> tuple[_View, StoredBoundary | None]:
    """The newest view and its boundary, from ``view`` on where that is still possible.

    Raises:
        LostRecords: what is there ends before ``view`` does, or with another record.
    """
    seen_id, seen_nonce = view.record_id, view.nonce
    if view.record_id:
        try:
            return with_tail(store, view, reading, requests_max, records_max=REFRESHED_RECORDS_MAX)
        except Passed:
            pass
    newer, boundary = load_view(store, view.stream, view.incarnation, reading, requests_max=requests_max)
    is_other = newer.record_id == seen_id and newer.nonce != seen_nonce
    if boundary is not None and (newer.record_id < seen_id or is_other):
        raise LostRecords(
            f"manifest of stream {view.stream}: it ends with record {newer.record_id}, and record {seen_id} was read "
            "before",
            hint=REBUILD,
        )
    return newer, boundary


def load_manifest_view_at(store: ObjectStore, newest: ManifestState, record_id: int) -> ManifestState:
    """The view after record ``record_id``, and nothing later.

    Args:
        newest: the newest view.
        record_id: at most ``newest.record_id``.

    Raises:
        InvalidCall: that record was deleted, folded into a checkpoint.
    """
    stream = newest.stream
    stored = read_boundary(store, stream, newest.incarnation)
    empty = ManifestState(stream=stream, incarnation=newest.incarnation)
    gone = InvalidCall(
        f"stream {stream}: record {record_id} can't be pinned: records below {stored.boundary.first_kept_id} are gone",
        hint=f"the newest record is {newest.record_id}",
    )
    if record_id < stored.boundary.first_kept_id - 1:
        raise gone
    try:
        state = _checkpoint_at(store, empty, stored, record_id)
        while state.record_id < record_id:
            key = record_key(stream, state.incarnation, state.record_id + 1)
            state = folded(state, store.get(key)[0], key, _WHOLE)
    except NotFound as error:
        raise gone from error
    return state


def _checkpoint_at(store: ObjectStore, empty: ManifestState, stored: StoredBoundary, record_id: int) -> ManifestState:
    """The newest view at most at ``record_id`` that a checkpoint holds; each checkpoint names the one before it."""
    checkpoint_id, checksum = stored.boundary.checkpoint_id, stored.boundary.checkpoint_crc32c or None
    while checkpoint_id > record_id:
        header, _ = _checkpoint(store, empty.stream, empty.incarnation, checkpoint_id, checksum)
        checkpoint_id, checksum = header.base_id, header.base_crc32c or None
    if not checkpoint_id:
        return empty
    header, own = _checkpoint(store, empty.stream, empty.incarnation, checkpoint_id, checksum)
    return _restored(store, empty.stream, header, own)


def view_in_checkpoint(store: ObjectStore, stream: str, incarnation: UUID, checkpoint_id: int) -> ManifestState:
    """The view that one checkpoint holds, whether or not a boundary names it.

    Raises:
        NotFound: it, or a run of it, isn't there.
        Corrupt, Unsupported: one of them can't be read.
    """
    return _restored(store, stream, *_checkpoint(store, stream, incarnation, checkpoint_id, None))


def check_checkpoints(
    store: ObjectStore, state: ManifestState, stored: StoredBoundary
) -> Iterator[tuple[str, OffloaderError]]:
    """What is wrong with the kept checkpoints and their runs, from the newest back: key and reason.

    Each names the one it was built on, and that one's checksum.
    """
    checkpoint_id, checksum = stored.boundary.checkpoint_id, stored.boundary.checkpoint_crc32c or None
    prefix = manifest_prefix(state.stream, state.incarnation)
    while checkpoint_id >= max(stored.boundary.first_kept_id - 1, 1):
        key = checkpoint_key(state.stream, state.incarnation, checkpoint_id)
        try:
            header, _ = _checkpoint(store, state.stream, state.incarnation, checkpoint_id, checksum)
        except (NotFound, *Unreadable) as error:
            yield key, error
            return
        for run in (*header.runs, *header.ledger_runs):
            try:
                read_run(store, prefix, run)
            except (NotFound, Corrupt) as error:
                yield f"{prefix}{run.name}", error
        checkpoint_id, checksum = header.base_id, header.base_crc32c or None


def _from_checkpoint(
    store: ObjectStore, stream: str, incarnation: UUID, stored: StoredBoundary, reading: Reading[_View]
) -> _View:
    boundary = stored.boundary
    if boundary.checkpoint_id == 0:
        return reading.begin(stream, incarnation)
    try:
        header, own = _checkpoint(store, stream, incarnation, boundary.checkpoint_id, boundary.checkpoint_crc32c)
        return reading.restore(store, stream, header, own)
    except (NotFound, *Unreadable) as error:
        # A newer checkpoint may have come, and this one's runs have gone, while it was read.
        if read_boundary(store, stream, incarnation).boundary != boundary:
            raise Passed from error
        if isinstance(error, NotFound):
            raise Corrupt(
                f"manifest of stream {stream}: checkpoint {boundary.checkpoint_id} or a run of it is missing: "
                f"{error.message}",
                hint=REBUILD,
            ) from error
        raise


def _restored(store: ObjectStore, stream: str, header: Checkpoint, own: SegmentColumns) -> ManifestState:
    """The whole view in one checkpoint; ``NotFound`` when a run of it isn't there."""
    prefix = manifest_prefix(stream, header.incarnation)
    try:
        # One run after the other: the bytes of one are gone before the next one's come.
        runs = [decode_columns(read_run(store, prefix, run), object_name=run.name) for run in header.runs]
        ledgers = [decode_ledgers(read_run(store, prefix, run), object_name=run.name) for run in header.ledger_runs]
    except FormatError as error:
        raise unreadable(f"manifest of stream {stream}", error) from error
    rows = [*map(len, runs), *map(len, ledgers)]
    for run, found in zip((*header.runs, *header.ledger_runs), rows, strict=True):
        if found != run.rows:
            raise Corrupt(f"{prefix}{run.name} has {found} rows, its checkpoint names {run.rows}", hint=REBUILD)
    return restored(stream, header, own, runs, ledgers)


def _checkpoint(
    store: ObjectStore, stream: str, incarnation: UUID, checkpoint_id: int, checksum: int | None
) -> tuple[Checkpoint, SegmentColumns]:
    """One checkpoint's object, decoded; ``checksum``: what the boundary, or the checkpoint built on it, says of it."""
    key = checkpoint_key(stream, incarnation, checkpoint_id)
    data = store.get(key)[0]
    found = crc32c(data)
    if checksum not in (None, found):
        raise Corrupt(
            f"manifest of stream {stream}: {key} has CRC-32C {found:08x}, what names it says {checksum:08x}",
            hint=REBUILD,
        )
    try:
        header, own = decode_checkpoint(data, object_name=key)
    except FormatError as error:
        raise unreadable(f"the checkpoint {key}", error) from error
    is_this = header.record_id == checkpoint_id and header.incarnation == incarnation
    if not is_this or header.base_id >= checkpoint_id:
        raise Corrupt(
            f"{key} is of record {header.record_id}, incarnation {header.incarnation}, built on {header.base_id}",
            hint=REBUILD,
        )
    return header, own


def read_run(store: ObjectStore, prefix: str, run: RunRef) -> bytes:
    """The bytes of a run below the manifest's ``prefix``.

    Raises:
        NotFound: it isn't there.
        Corrupt: it isn't what the checkpoint names.
    """
    data = store.get(f"{prefix}{run.name}")[0]
    if len(data) != run.object_bytes or crc32c(data) != run.crc32c:
        raise Corrupt(
            f"{prefix}{run.name} isn't the object that its checkpoint names: its length or checksum differs",
            hint=REBUILD,
        )
    return data


def _empty(stream: str, incarnation: UUID) -> ManifestState:
    return ManifestState(stream=stream, incarnation=incarnation)


def _settled(state: ManifestState) -> ManifestState:
    return compacted(state) if len(state.segments.tail) > RUN_ROWS_MIN else state


_WHOLE = Reading(begin=_empty, restore=_restored, fold=fold, settle=_settled)
