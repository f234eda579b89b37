"""Expires old records, checkpoints and runs, and deletes a stream's manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from formats.checkpoint import Checkpoint, decode_checkpoint, run_record_id
from formats.keys import boundary_key, checkpoint_key, manifest_prefix, record_key
from formats.manifest import Boundary, OpenEpoch, StreamDeleted
from offloader.errors import (
    CorruptError,
    FencedError,
    InvalidCallError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.manifest.boundary import (
    FIRST_BOUNDARY,
    ManifestObjects,
    change_boundary,
    create_boundary,
    decoded,
    delete_keys,
    has_segment_of,
    incarnations_in,
    list_manifest,
    read_boundary,
)
from offloader.manifest.catalog import forget_name, is_released, read_entry, release_entry, require_entry
from offloader.manifest.checkpoint import checkpoint_now
from offloader.manifest.load import load_manifest_view
from offloader.manifest.log import ManifestLog
from offloader.manifest.protection import age_limit_ms, require_no_global_hold, time_for_deletion_ms
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.runtime.clock import Clock
from offloader.settings import ManifestSettings
from offloader.store.base import ObjectStore

#: Attempts to mark a stream as deleted while others change its manifest.
ATTEMPTS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredObjects:
    """Deleted objects, or in a dry run those to delete.

    Attributes:
        first_kept_id: of the boundary now.
        unknown: unrecognised keys, which are kept.
    """

    first_kept_id: int
    records: int = 0
    checkpoints: int = 0
    runs: int = 0
    unknown: Sequence[str] = ()


def expire_records(
    store: ObjectStore,
    state: ManifestState,
    *,
    clock: Clock,
    settings: ManifestSettings = ManifestSettings(),
    dry_run: bool = False,
) -> ExpiredObjects:
    """Deletes the records, checkpoints and runs of a stream's manifest that are folded, unnamed and old enough.

    None from the first one on that retired a segment which isn't purged.

    Raises:
        ClockSkewError: the clocks differ too much to trust any age.
        NotFoundError: the stream was deleted.
        CorruptError: a checkpoint is damaged; nothing was deleted.
    """
    old_ms = _old_ms(store, clock, settings, ask_store=not dry_run)
    manifest = store, state.stream, state.incarnation
    found = list_manifest(*manifest)
    # Records that retired a segment are kept until it is purged: the grace period is counted from their time.
    retired = [*state.segments.retired().retire_records().tolist(), *(each.retire_record for each in state.replaced)]
    before = min(retired, default=state.record_id + 1)
    old_checkpoints = [
        number for number, info in found.checkpoints.items() if info.modified_ms <= old_ms and number < before
    ]
    stored = read_boundary(*manifest)
    old_id = _newest_named(store, state, old_checkpoints, found.checkpoints, stored.boundary)

    def past_old(boundary: Boundary) -> Boundary:
        return replace(boundary, first_kept_id=max(boundary.first_kept_id, old_id + 1))

    stored = stored if dry_run else change_boundary(*manifest, past_old)
    base_id = past_old(stored.boundary).first_kept_id - 1
    if base_id == 0:
        return ExpiredObjects(first_kept_id=stored.boundary.first_kept_id, unknown=found.unknown)
    named = runs_named_by(store, state, base_id) | runs_named_by(store, state, stored.boundary.checkpoint_id)
    # Only after the boundary is raised, oldest first, so that the rest has no gap.
    records = [found.records[number].key for number in sorted(found.records) if number <= base_id]
    checkpoints = [info.key for number, info in found.checkpoints.items() if number < base_id]
    # A run that neither checkpoint names can't be named later (see ``offloader.manifest.checkpoint``).
    runs = [
        info.key
        for name, info in found.runs.items()
        if name not in named and (run_record_id(name) or 0) <= base_id and info.modified_ms <= old_ms
    ]
    if not dry_run:
        delete_keys(store, [*records, *checkpoints, *runs])
    return ExpiredObjects(
        first_kept_id=base_id + 1,
        records=len(records),
        checkpoints=len(checkpoints),
        runs=len(runs),
        unknown=found.unknown,
    )


def _old_ms(store: ObjectStore, clock: Clock, settings: ManifestSettings, *, ask_store: bool) -> int:
    """The latest time of an object that is old enough to be deleted now."""
    skew_ms_max = settings.clock_skew_max * 1000
    now_ms = time_for_deletion_ms(store, clock, skew_ms_max=skew_ms_max, ask_store=ask_store)
    return age_limit_ms(now_ms, settings.orphan_age_min)


def expire_history(
    store: ObjectStore, stream: str, *, clock: Clock, settings: ManifestSettings, dry_run: bool = False
) -> ExpiredObjects | None:
    """Runs ``expire_records`` on objects older than ``history_age_min``; reads the manifest first.

    Returns:
        The deleted objects, or in a dry run those to delete; ``None`` if settings or a hold forbid it, or there is no
        such stream.

    Raises:
        ClockSkewError, CorruptError: as ``expire_records``; CorruptError, Unsupported if the manifest is unreadable.
    """
    entry = None if settings.history_age_min < 0 else read_entry(store, stream)
    if entry is None:
        return None
    state = load_manifest_view(store, stream, entry.incarnation, requests_max=settings.record_requests_max).state
    if state.held or state.stream_deleted:
        return None
    kept = replace(settings, orphan_age_min=max(settings.orphan_age_min, settings.history_age_min))
    return expire_records(store, state, clock=clock, settings=kept, dry_run=dry_run)


def _newest_named(
    store: ObjectStore, state: ManifestState, old: Iterable[int], every: Iterable[int], boundary: Boundary
) -> int:
    """The newest old checkpoint that a boundary has named, from the first kept record on; 0: there is none.

    Views between checkpoints are found from the newest one back, each of which names the one before it: one that was
    never named leads to none. The first checkpoint after it that names it or a later one tells.
    """
    newest = boundary.checkpoint_id
    later = sorted(number for number in every if number <= newest)
    for number in sorted((each for each in old if boundary.first_kept_id <= each <= newest), reverse=True):
        bases = (_header(store, state, each).base_id for each in later if each > number)
        if number in (newest, next((base_id for base_id in bases if base_id >= number), 0)):
            return number
    return 0


def runs_named_by(store: ObjectStore, state: ManifestState, checkpoint_id: int) -> set[str]:
    """The names of the runs in a checkpoint of the stream."""
    header = _header(store, state, checkpoint_id)
    return {run.name for run in (*header.runs, *header.ledger_runs)}


def _header(store: ObjectStore, state: ManifestState, checkpoint_id: int) -> Checkpoint:
    key = checkpoint_key(state.stream, state.incarnation, checkpoint_id)
    try:
        data, _ = store.get(key)
    except NotFoundError as error:
        raise StoreUnavailableError(f"the checkpoint {key} is missing: another process is deleting objects") from error
    return decoded(data, key, decode_checkpoint, f"nothing is deleted: the checkpoint {key}")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDeletion:
    """Progress of a deletion.

    Attributes:
        is_finished: whether nothing of it is left, and the stream may be created again.
        deleted_objects: of the manifest, by this call.
        unknown: unrecognised keys under the manifest's prefix, which are kept.
    """

    incarnation: UUID
    is_finished: bool
    deleted_objects: int
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadIncarnation:
    """Objects deleted of an incarnation that no entry names, or in a dry run those to delete.

    Attributes:
        unknown: unrecognised keys, which are kept.
    """

    objects: int
    unknown: Sequence[str] = ()


def delete_stream(
    store: ObjectStore,
    stream: str,
    *,
    clock: Clock,
    delete_objects: Callable[[ManifestState], None],
    settings: ManifestSettings = ManifestSettings(),
    entropy: Callable[[int], bytes] = os.urandom,
) -> StreamDeletion:
    """Deletes a stream as far as that is safe now; call again after ``orphan_age_min`` to finish.

    Args:
        delete_objects: deletes the data of the given view (segments, index objects, unfinished uploads) and returns
            when nothing of it is left; called again after an interruption.

    Raises:
        NotFoundError: no such stream.
        EditRefusedError: the stream is on hold.
        DeletionStoppedError: a global hold was set meanwhile.
        ClockSkewError: the clocks differ too much to trust any age.
    """
    entry = require_entry(store, stream)
    if create_boundary(store, stream, entry.incarnation) and read_entry(store, stream) != entry:
        raise NotFoundError(f"stream {stream} no longer exists in {store.url}")
    # A process that stalls here until the stream is recreated still deletes the incarnation that it read.
    log = ManifestLog(store, stream, clock=clock, entropy=entropy, settings=settings, incarnation=entry.incarnation)
    state = _marked(log)

    def past_mark(found: Boundary) -> Boundary:
        # A boundary is never lowered: one without the checkpoint is another, which a stalled deleter created after the
        # stream's own boundary was deleted. Raised, it would name a missing checkpoint, and no load of it would end.
        if found.checkpoint_id < state.record_id:
            raise NotFoundError(f"stream {stream} was deleted from {store.url} by another process")
        return replace(found, first_kept_id=max(found.first_kept_id, state.record_id + 1))

    try:
        checkpoint_now(store, state, entropy, requests_max=settings.record_requests_max)
        change_boundary(store, stream, state.incarnation, past_mark)
        delete_objects(state)
    except NotFoundError as error:
        # Another deleter may have got further: the remaining work is the same for both. It has released the entry then;
        # else objects may be left, which only this manifest names.
        if read_entry(store, stream) == entry:
            raise StoreUnavailableError(
                f"stream {stream} isn't fully deleted yet: {error.message}", hint="try again"
            ) from error
    return _finish(store, state, clock, settings)


def sweep_dead_incarnations(
    store: ObjectStore,
    stream: str,
    *,
    clock: Clock,
    settings: ManifestSettings = ManifestSettings(),
    dry_run: bool = False,
    but: Collection[UUID] = (),
) -> Mapping[UUID, DeadIncarnation]:
    """Deletes manifests of the stream's incarnations that its catalogue entry doesn't name.

    Only if every object of one is older than ``orphan_age_min``, and never while the stream has no catalogue
    entry: that may be lost, and `manifest rebuild` then needs these objects.

    Args:
        but: incarnations to keep: the only record of their remaining segments.

    Raises:
        InvalidCallError: the stream has no catalogue entry.
        DeletionStoppedError: a global hold is set.
        ClockSkewError: the clocks differ too much to trust any age.
    """
    old_ms = _old_ms(store, clock, settings, ask_store=not dry_run)
    # Listed before the lookup: an entry is created before the first object of its incarnation.
    found = {each: list_manifest(store, stream, each) for each in incarnations_in(store, stream)}
    entry = read_entry(store, stream)
    if entry is None and not is_released(store, stream):
        raise InvalidCallError(
            f"stream {stream} has no catalogue entry, so its current manifest is unknown",
            hint="run `offloader manifest rebuild` first",
        )
    swept = {}
    for incarnation, objects in found.items():
        known = objects.known()
        is_old = all(info.modified_ms <= old_ms for info in known)
        if not known or not is_old or incarnation in but or (entry is not None and incarnation == entry.incarnation):
            continue
        swept[incarnation] = _deleted(store, objects, dry_run=dry_run)
    return swept


def sweep_late_writes(
    store: ObjectStore, stream: str, incarnation: UUID, *, old_ms: int, dry_run: bool = False
) -> DeadIncarnation | None:
    """Deletes objects that a stalled process wrote into a manifest after its stream was deleted and its name freed.

    A manifest without a boundary was deleted completely: the boundary is created before the first record and deleted
    after the last. A stalled process may have created a boundary again after that, which names no record. A boundary
    that names a record proves that records are lost, and is kept. Both are kept while a segment of the incarnation
    exists: then boundary and catalogue entry may both be lost, and `manifest rebuild` needs the records.

    Args:
        incarnation: named by no catalogue entry, and its stream has none.
        old_ms: younger objects are kept.

    Returns:
        The deleted objects, or those to delete; ``None`` if it isn't such a manifest, or is too young.

    Raises:
        DeletionStoppedError: a global hold is set.
    """
    found = list_manifest(store, stream, incarnation)
    known = found.known()
    if found.boundary is not None and (len(known) > 1 or not _is_unused(store, stream, incarnation)):
        return None
    is_young = any(info.modified_ms > old_ms for info in known)
    if not known or is_young or has_segment_of(store, stream, incarnation, or_index=True):
        return None
    return _deleted(store, found, dry_run=dry_run)


def _deleted(store: ObjectStore, found: ManifestObjects, *, dry_run: bool) -> DeadIncarnation:
    keys = [info.key for info in found.known()]
    if not dry_run:
        require_no_global_hold(store)
        delete_keys(store, keys)
    return DeadIncarnation(objects=len(keys), unknown=found.unknown)


def _is_unused(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Whether the boundary is readable and as it was created."""
    with suppress(CorruptError, NotFoundError, UnsupportedError):
        return read_boundary(store, stream, incarnation).boundary == FIRST_BOUNDARY
    return False


def _marked(log: ManifestLog) -> ManifestState:
    """The view with ``stream_deleted`` in it, committed unless it was before."""
    for _ in range(ATTEMPTS_MAX):
        state = log.load()
        if state.stream_deleted:
            return state
        try:
            return log.commit_as_maintainer([OpenEpoch(state.epoch + 1), StreamDeleted()])
        except FencedError as error:
            raise NotFoundError(f"stream {log.stream} was deleted by another process") from error
        except EditRefusedError:
            if log.load().held:
                raise
    raise StoreUnavailableError(f"stream {log.stream}: other processes changed its manifest {ATTEMPTS_MAX} times")


def _finish(store: ObjectStore, state: ManifestState, clock: Clock, settings: ManifestSettings) -> StreamDeletion:
    """Deletes the records, and once the tombstone is old the rest."""
    stream, incarnation = state.stream, state.incarnation
    found = list_manifest(store, stream, incarnation)
    tombstone = found.checkpoints.get(state.record_id)
    # The boundary needs its checkpoint, so that readers find the stream deleted and not damaged.
    runs = set() if tombstone is None else runs_named_by(store, state, state.record_id)
    kept = {
        boundary_key(stream, incarnation),
        checkpoint_key(stream, incarnation, state.record_id),
        record_key(stream, incarnation, state.record_id),
        *(f"{manifest_prefix(stream, incarnation)}{name}" for name in runs),
    }
    doomed = [info.key for info in found.known() if info.key not in kept]
    require_no_global_hold(store)
    delete_keys(store, doomed)
    now_ms = time_for_deletion_ms(store, clock, skew_ms_max=settings.clock_skew_max * 1000)
    born_ms = now_ms if tombstone is None else tombstone.modified_ms
    done = partial(StreamDeletion, incarnation=incarnation, unknown=found.unknown)
    if born_ms > age_limit_ms(now_ms, settings.orphan_age_min):
        return done(is_finished=False, deleted_objects=len(doomed))
    require_no_global_hold(store)
    # The entry first, if it is still this incarnation's: after this the stream may be created again under other keys. A
    # crash then leaves an incarnation that no entry names.
    release_entry(store, stream, incarnation)
    rest = [info.key for info in found.known() if info.key in kept]
    delete_keys(store, rest)
    # A crash after this leaves a tombstone; so do other objects of this project below the name.
    forget_name(store, stream, clock=clock, now_ms=now_ms)
    return done(is_finished=True, deleted_objects=len(doomed) + len(rest))
