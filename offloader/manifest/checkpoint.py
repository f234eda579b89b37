"""Writes checkpoints, names them in the boundary, and schedules them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from formats.checkpoint import decode_checkpoint, run_record_id
from formats.checksum import crc32c
from formats.errors import FormatError
from formats.keys import checkpoint_key, manifest_prefix
from formats.manifest import Record
from offloader.errors import (
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from offloader.manifest.apply import fold
from offloader.manifest.boundary import StoredBoundary, decoded, naming, raise_boundary, read_boundary
from offloader.manifest.compaction import RUN_ROWS_MIN, CheckpointPlan, compacted, plan_checkpoint
from offloader.manifest.load import RECORD_REQUESTS_MAX, LoadedManifest, load_manifest_view
from offloader.manifest.state import ManifestState
from offloader.settings import ManifestSettings
from offloader.store.base import CREATE, IfMatch, ObjectStore

#: Attempts to write a checkpoint while others change the boundary.
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
        requests_max: concurrent GETs of records if another process wrote a checkpoint meanwhile.

    Raises:
        NotFoundError: the stream was deleted.
        StoreUnavailableError: others changed the boundary every time.
    """
    for _ in range(ATTEMPTS_MAX):
        stored = read_boundary(store, state.stream, state.incarnation)
        if stored.boundary.checkpoint_id >= state.record_id:
            return LoadedManifest(state, stored)
        if stored.boundary.checkpoint_id != state.checkpoint_id:
            state, found = load_manifest_view(store, state.stream, state.incarnation, requests_max=requests_max)
            if found is None:
                raise NotFoundError(f"stream {state.stream} was deleted")
            continue
        if (written := write_checkpoint(store, state, stored, entropy)) is not None:
            return written
    raise StoreUnavailableError(
        f"stream {state.stream}: other processes changed its boundary during {ATTEMPTS_MAX} checkpoints"
    )


def write_checkpoint(
    store: ObjectStore, state: ManifestState, stored: StoredBoundary, entropy: Callable[[int], bytes]
) -> LoadedManifest | None:
    """Writes a checkpoint of ``state`` and raises the boundary to it; ``None`` if the boundary changed meanwhile.

    Args:
        state: built on the checkpoint that ``stored`` names.

    Raises:
        LimitReachedError: it is too large to be read.
    """
    assert state.checkpoint_id == stored.boundary.checkpoint_id, "built on another checkpoint"
    try:
        plan = plan_checkpoint(
            state, lambda: int.from_bytes(entropy(8), "big"), base_crc32c=stored.boundary.checkpoint_crc32c
        )
    except FormatError as error:
        raise LimitReachedError(
            f"stream {state.stream}: its manifest is too large for a checkpoint: {error}"
        ) from error
    prefix = manifest_prefix(state.stream, state.incarnation)
    for name, body in plan.runs:
        store.put(f"{prefix}{name}", body, mode=CREATE)
    checksum = _put_checkpoint(store, state, plan)
    named = naming(stored.boundary, state.record_id, state.nonce)
    wanted = replace(named, checkpoint_id=state.record_id, checkpoint_crc32c=checksum)
    raised = raise_boundary(store, state.stream, state.incarnation, stored, wanted)
    if raised is None:
        return None
    # Another checkpointer's object holds the same view with other runs: then this view's own runs are garbage.
    return LoadedManifest(plan.state if checksum == plan.crc32c else state, raised)


def _put_checkpoint(store: ObjectStore, state: ManifestState, plan: CheckpointPlan) -> int:
    """Creates the checkpoint object, or uses the existing one; returns its CRC-32C."""
    key = checkpoint_key(state.stream, state.incarnation, state.record_id)
    try:
        store.put(key, plan.body, mode=CREATE)
    except PreconditionFailedError:
        found, info = store.get(key)
        if _is_sound(found, key, state):
            return crc32c(found)
        # Left by a checkpointer that stalled while the boundary advanced: it can't be named any more.
        try:
            store.put(key, plan.body, mode=IfMatch(info.etag))
        except PreconditionFailedError as error:
            raise StoreUnavailableError(f"{key} was replaced by another process in the meantime") from error
    return plan.crc32c


def _is_sound(data: bytes, key: str, state: ManifestState) -> bool:
    """Whether every run of an existing checkpoint of this number is kept as long as the checkpoint is named.

    Runs written after the boundary's checkpoint are: none of them is deleted before the boundary passes them.
    """
    header, _ = decoded(data, key, decode_checkpoint, f"the checkpoint {key}", hint="delete it: no boundary names it")
    runs = [part.run for part in state.segments.sealed] + [facts.run for facts in state.ledgers.sealed]
    kept = {run.name for run in runs if run is not None}
    is_same = header.record_id == state.record_id and header.incarnation == state.incarnation
    names = (run.name for run in (*header.runs, *header.ledger_runs))
    return is_same and all(name in kept or (run_record_id(name) or 0) > state.checkpoint_id for name in names)


#: Records kept to update a checkpoint's view; after more of them, the view is loaded again.
RECORDS_MEANWHILE_MAX = 1000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Aside:
    """A checkpoint written concurrently with commits.

    Attributes:
        records: committed since it began; ``None`` if other writers' records came in between, which aren't kept.
        view: the checkpointed view with its runs' names; ``None`` if there is none.
        is_over: set last, by the writing thread.
    """

    records: list[Record] | None = field(default_factory=list)
    view: ManifestState | None = None
    is_over: bool = False


@dataclass(slots=True)
class Shortening:
    """Schedules checkpoints. Called by one log, under its lock.

    Attributes:
        _run_aside: runs a call on another thread soon, or never; ``None``: checkpoints are written within the commit.
    """

    _store: ObjectStore
    _entropy: Callable[[int], bytes]
    _settings: ManifestSettings
    _run_aside: Callable[[Callable[[], object]], object] | None
    _next_from: int = field(default=0, init=False)
    _aside: _Aside | None = field(default=None, init=False)

    def after_commit(self, state: ManifestState, record: Record, stored: StoredBoundary) -> ManifestState:
        """The view to continue with after ``record`` was committed: equal to ``state``.

        Args:
            state: with ``record`` in it.
            stored: the boundary, read after the record was created.
        """
        if self._aside is not None and self._aside.records is not None:
            self._aside.records.append(record)
            if len(self._aside.records) > RECORDS_MEANWHILE_MAX:
                self._aside.records = None
        state = self._back(state)
        if len(state.segments.tail) > RUN_ROWS_MIN and state.checkpoint_id != stored.boundary.checkpoint_id:
            state = compacted(state)  # another process writes the checkpoints: keep the copies small anyway
        is_due = state.record_id - stored.boundary.checkpoint_id >= self._settings.checkpoint_records
        if not is_due or state.record_id < self._next_from or self._aside is not None:
            return state
        # Retry after as many records again, so that a refusing store isn't called with every commit.
        self._next_from = state.record_id + self._settings.checkpoint_records
        if self._run_aside is None:
            return self._written(state, stored) or compacted(state)
        aside = self._aside = _Aside()
        self._run_aside(lambda: self._write_aside(aside, state, stored))
        return state

    def lose_track(self) -> None:
        """Notes that the log's view includes records of other writers."""
        if self._aside is not None:
            self._aside.records = None

    def _back(self, state: ManifestState) -> ManifestState:
        """``state`` with the runs of the finished checkpoint, so that nothing is compacted twice."""
        aside = self._aside
        if aside is None or not aside.is_over:
            return state
        self._aside = None
        view = aside.view
        if view is None or aside.records is None:
            return state
        for record in aside.records:
            if record.record_id > view.record_id:
                view = fold(view, record)
        return view if view.record_id == state.record_id else state

    def _write_aside(self, aside: _Aside, state: ManifestState, stored: StoredBoundary) -> None:
        try:
            aside.view = self._written(state, stored)
        finally:
            aside.is_over = True

    def _written(self, state: ManifestState, stored: StoredBoundary) -> ManifestState | None:
        """Writes a checkpoint; returns the view with its runs' names, ``None`` if it failed."""
        requests_max = self._settings.record_requests_max
        try:
            if state.checkpoint_id != stored.boundary.checkpoint_id:
                return checkpoint_now(self._store, state, self._entropy, requests_max=requests_max).state
            written = write_checkpoint(self._store, state, stored, self._entropy)
        except (OffloaderError, MemoryError) as error:
            # The record is committed: an error here would make the caller repeat it.
            _log.warning("stream %s: no checkpoint of record %d: %s", state.stream, state.record_id, error)
            return None
        return state if written is None else written.state
