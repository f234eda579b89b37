"""Deleting what a manifest doesn't need any more: old records, checkpoints and runs.

Owns which of them may go. Must never delete a record that the boundary keeps: the boundary is raised first.

What is kept: everything from the newest checkpoint on that is older than ``orphan_age_hours_min``. So a pinned view of
that age can still be read, and a load that is under way for less than that isn't disturbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from formats.checkpoint import decode_checkpoint, run_record_id
from formats.errors import FormatError
from formats.keys import checkpoint_key
from offloader.clock import Clock
from offloader.errors import NotFound, StoreUnavailable
from offloader.manifest.boundary import StoredBoundary, raise_boundary, read_boundary
from offloader.manifest.catalog import read_entry
from offloader.manifest.load import load_manifest_view
from offloader.manifest.objects import delete_keys, list_manifest
from offloader.manifest.state import ManifestState
from offloader.manifest.store_time import time_for_deletion_ms
from offloader.manifest.unreadable import unreadable
from offloader.settings import ManifestSettings
from offloader.store.base import ObjectInfo, ObjectStore

__all__ = ["ExpiredObjects", "expire_history", "expire_records", "runs_named_by"]

#: How often raising the boundary is tried while checkpointers raise it too.
ATTEMPTS_MAX = 10
_MS_PER_HOUR = 3_600_000
_HOURS_PER_DAY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredObjects:
    """What was deleted, or in a dry run would be.

    Attributes:
        first_kept_id: of the boundary now.
        records, checkpoints, runs: how many objects.
        unknown: keys that this project doesn't give; they stay.
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
    settings: ManifestSettings | None = None,
    dry_run: bool = False,
) -> ExpiredObjects:
    """Deletes the records, checkpoints and runs of a stream's manifest that are folded, unnamed and old enough.

    Raises:
        ClockSkew: the clocks differ too much to call anything old.
        NotFound: the stream was deleted.
        Corrupt: a checkpoint is damaged; nothing was deleted.
    """
    chosen = settings or ManifestSettings()
    now_ms = time_for_deletion_ms(store, clock, skew_ms_max=chosen.clock_skew_seconds_max * 1000, ask_store=not dry_run)
    old_ms = now_ms - int(chosen.orphan_age_hours_min * _MS_PER_HOUR)
    found = list_manifest(store, state.stream, state.incarnation)
    old_checkpoints = [number for number, info in found.checkpoints.items() if info.modified_ms <= old_ms]
    stored, base_id = _raised(store, state, old_checkpoints, dry_run=dry_run)
    if base_id == 0:
        return ExpiredObjects(first_kept_id=stored.boundary.first_kept_id, unknown=found.unknown)
    named = runs_named_by(store, state, base_id) | runs_named_by(store, state, stored.boundary.checkpoint_id)
    # Only now, below a boundary that is raised. From the oldest on, so that what is left has no hole.
    records = [found.records[number].key for number in sorted(found.records) if number <= base_id]
    checkpoints = [info.key for number, info in found.checkpoints.items() if number < base_id]
    runs = [i.key for name, i in found.runs.items() if name not in named and _is_garbage(name, i, base_id, old_ms)]
    if not dry_run:
        delete_keys(store, [*records, *checkpoints, *runs])
    return ExpiredObjects(
        first_kept_id=base_id + 1,
        records=len(records),
        checkpoints=len(checkpoints),
        runs=len(runs),
        unknown=found.unknown,
    )


def expire_history(
    store: ObjectStore, stream: str, *, clock: Clock, settings: ManifestSettings, dry_run: bool = False
) -> ExpiredObjects | None:
    """What ``expire_records`` does, of what is older than ``history_days_min`` too; the manifest is read first.

    Returns:
        What was deleted, or in a dry run would be; ``None``: nothing may be, as the settings or a hold say, or there is
        no such stream.

    Raises:
        ClockSkew, Corrupt: likewise; and Corrupt, Unsupported where the manifest can't be read.
    """
    entry = None if settings.history_days_min < 0 else read_entry(store, stream)
    if entry is None:
        return None
    empty = ManifestState(stream=stream, incarnation=entry.incarnation)
    state = load_manifest_view(store, empty, requests_max=settings.record_requests_max).state
    if state.held or state.stream_deleted:
        return None
    age_hours = max(settings.orphan_age_hours_min, settings.history_days_min * _HOURS_PER_DAY)
    chosen = replace(settings, orphan_age_hours_min=age_hours)
    return expire_records(store, state, clock=clock, settings=chosen, dry_run=dry_run)


def _raised(
    store: ObjectStore, state: ManifestState, old_checkpoints: list[int], *, dry_run: bool
) -> tuple[StoredBoundary, int]:
    """Raises the first kept id past the newest old checkpoint; the boundary now, and that checkpoint's id (0: none)."""
    for _ in range(ATTEMPTS_MAX):
        stored = read_boundary(store, state.stream, state.incarnation)
        boundary = stored.boundary
        # A checkpoint that the boundary hasn't reached may never be named: nothing hangs on it yet.
        base_id = max((number for number in old_checkpoints if number <= boundary.checkpoint_id), default=0)
        if dry_run or boundary.first_kept_id > base_id:
            return stored, max(base_id, boundary.first_kept_id - 1)
        wanted = replace(boundary, first_kept_id=base_id + 1)
        raised = raise_boundary(store, state.stream, state.incarnation, stored, wanted)
        if raised is not None:
            return raised, base_id
    raise StoreUnavailable(f"stream {state.stream}: its boundary changed {ATTEMPTS_MAX} times meanwhile")


def runs_named_by(store: ObjectStore, state: ManifestState, checkpoint_id: int) -> set[str]:
    """The names of the runs that a checkpoint of the stream has."""
    key = checkpoint_key(state.stream, state.incarnation, checkpoint_id)
    try:
        header, _ = decode_checkpoint(store.get(key)[0], object_name=key)
    except FormatError as error:
        raise unreadable(f"nothing is deleted: the checkpoint {key}", error) from error
    except NotFound as error:
        raise StoreUnavailable(f"the checkpoint {key} is gone: somebody else deletes at the same time") from error
    return {run.name for run in (*header.runs, *header.ledger_runs)}


def _is_garbage(name: str, info: ObjectInfo, base_id: int, old_ms: int) -> bool:
    """Of a run that neither checkpoint names: whether no later one will (see ``offloader.manifest.checkpointer``)."""
    return (run_record_id(name) or 0) <= base_id and info.modified_ms <= old_ms
