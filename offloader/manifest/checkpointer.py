"""Writing a checkpoint and naming it in the boundary.

Owns the order: runs, checkpoint, boundary. Must never name a checkpoint whose runs may be gone: what a boundary's
checkpoint doesn't name, and is not newer than it, is garbage that may be deleted at any time.

So a checkpoint is built on the one that the boundary named when its ETag was read, and named with If-Match on that
ETag: each checkpoint that a boundary ever names inherits runs only from the one before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from formats.checkpoint import decode_checkpoint, run_record_id
from formats.checksum import crc32c
from formats.errors import FormatError
from formats.keys import checkpoint_key, manifest_prefix
from offloader.errors import LimitReached, NotFound, PreconditionFailed, StoreUnavailable
from offloader.manifest.boundary import StoredBoundary, naming, raise_boundary, read_boundary
from offloader.manifest.load import RECORD_REQUESTS_MAX, LoadedManifest, refreshed
from offloader.manifest.sealing import CheckpointPlan, plan_checkpoint
from offloader.manifest.state import ManifestState
from offloader.manifest.unreadable import unreadable
from offloader.store.base import CREATE, IfMatch, ObjectStore

__all__ = ["checkpoint_now", "write_checkpoint"]

#: How often a checkpoint is tried while others change the boundary.
ATTEMPTS_MAX = 10


def checkpoint_now(
    store: ObjectStore,
    state: ManifestState,
    entropy: Callable[[int], bytes],
    *,
    requests_max: int = RECORD_REQUESTS_MAX,
) -> LoadedManifest:
    """Makes the boundary name a checkpoint of ``state`` or of a later view.

    Args:
        entropy: random bytes, for the names of runs.
        requests_max: records asked for at once where others wrote a checkpoint meanwhile.

    Raises:
        NotFound: the stream was deleted.
        StoreUnavailable: others changed the boundary every time.
    """
    for _ in range(ATTEMPTS_MAX):
        stored = read_boundary(store, state.stream, state.incarnation)
        if stored.boundary.checkpoint_id >= state.record_id:
            return LoadedManifest(state, stored)
        if stored.boundary.checkpoint_id != state.checkpoint_id:
            empty = ManifestState(stream=state.stream, incarnation=state.incarnation)
            state, found = refreshed(store, empty, requests_max=requests_max)
            if found is None:
                raise NotFound(f"stream {state.stream} was deleted")
            continue
        written = write_checkpoint(store, state, stored, entropy)
        if written is not None:
            return written
    raise StoreUnavailable(f"stream {state.stream}: its boundary changed during {ATTEMPTS_MAX} checkpoints")


def write_checkpoint(
    store: ObjectStore, state: ManifestState, stored: StoredBoundary, entropy: Callable[[int], bytes]
) -> LoadedManifest | None:
    """Writes a checkpoint of ``state`` and raises the boundary to it; ``None`` when the boundary changed meanwhile.

    Args:
        state: built on the checkpoint that ``stored`` names.
        stored: the boundary as it was read.
        entropy: random bytes, for the names of runs.

    Raises:
        LimitReached: nobody could read it.
    """
    assert state.checkpoint_id == stored.boundary.checkpoint_id, "built on another checkpoint"
    try:
        plan = plan_checkpoint(
            state, lambda: int.from_bytes(entropy(8), "big"), base_crc32c=stored.boundary.checkpoint_crc32c
        )
    except FormatError as error:
        raise LimitReached(f"stream {state.stream}: no checkpoint can hold all of it: {error}") from error
    prefix = manifest_prefix(state.stream, state.incarnation)
    for name, body in plan.runs:
        store.put(f"{prefix}{name}", body, mode=CREATE)
    checksum = _put_checkpoint(store, state, plan)
    named = naming(stored.boundary, state.record_id, state.nonce)
    wanted = replace(named, checkpoint_id=state.record_id, checkpoint_crc32c=checksum)
    raised = raise_boundary(store, state.stream, state.incarnation, stored, wanted)
    if raised is None:
        return None
    # Another checkpointer's object says the same with other runs: then this view's own runs are nobody's.
    return LoadedManifest(plan.state if checksum == plan.crc32c else state, raised)


def _put_checkpoint(store: ObjectStore, state: ManifestState, plan: CheckpointPlan) -> int:
    """Creates the checkpoint object, or takes the one that is there; its CRC-32C."""
    key = checkpoint_key(state.stream, state.incarnation, state.record_id)
    try:
        store.put(key, plan.body, mode=CREATE)
    except PreconditionFailed:
        found, info = store.get(key)
        if _is_sound(found, key, state):
            return crc32c(found)
        # Left by a checkpointer that stalled while the boundary moved on: nobody can name it any more.
        try:
            store.put(key, plan.body, mode=IfMatch(info.etag))
        except PreconditionFailed as error:
            raise StoreUnavailable(f"{key} was replaced meanwhile by another checkpointer") from error
    return plan.crc32c


def _is_sound(data: bytes, key: str, state: ManifestState) -> bool:
    """Whether every run of a checkpoint found in our place is sure to be there as long as it is named.

    Runs sealed after the boundary's checkpoint are: nothing of them is deleted before the boundary passes them.
    """
    try:
        header, _ = decode_checkpoint(data, object_name=key)
    except FormatError as error:
        raise unreadable(f"the checkpoint {key}", error, hint="delete it: no boundary names it") from error
    runs = [part.run for part in state.segments.sealed] + [facts.run for facts in state.ledgers.sealed]
    kept = {run.name for run in runs if run is not None}
    if header.record_id != state.record_id or header.incarnation != state.incarnation:
        return False
    names = [run.name for run in (*header.runs, *header.ledger_runs)]
    return all(name in kept or (run_record_id(name) or 0) > state.checkpoint_id for name in names)
