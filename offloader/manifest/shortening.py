"""When one log's checkpoints are due, and writing them beside its commits.

Owns the choice of the moment and the way back: the view that a checkpoint was made of, brought up to date. Must never
let a commit fail or wait because of a checkpoint that is written elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from formats.manifest import Record
from offloader.errors import OffloaderError
from offloader.manifest.apply import fold
from offloader.manifest.boundary import StoredBoundary
from offloader.manifest.checkpointer import checkpoint_now, write_checkpoint
from offloader.manifest.sealing import RUN_ROWS_MIN, compacted
from offloader.manifest.state import ManifestState
from offloader.settings import ManifestSettings
from offloader.store.base import ObjectStore

__all__ = ["Shortening"]

#: Records kept to bring the view of a checkpoint up to date; one that takes longer has its view loaded anew.
RECORDS_MEANWHILE_MAX = 1000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Aside:
    """A checkpoint under way beside the commits.

    Attributes:
        records: committed since it began; ``None``: others' records came in between, which nobody kept.
        view: what it was made of, naming its runs; ``None``: there is none.
        is_over: set last, by the thread that writes.
    """

    records: list[Record] | None = field(default_factory=list)
    view: ManifestState | None = None
    is_over: bool = False


class Shortening:
    """Called by one log, under its lock.

    Args:
        store: where the manifest is.
        entropy: random bytes, for the names of runs.
        settings: after how many records a checkpoint is due, and how many are asked for at once.
        run_aside: runs a call on another thread soon, or never; ``None``: checkpoints are written within the commit.
    """

    def __init__(
        self,
        store: ObjectStore,
        entropy: Callable[[int], bytes],
        settings: ManifestSettings,
        *,
        run_aside: Callable[[Callable[[], object]], object] | None,
    ) -> None:
        self._store = store
        self._entropy = entropy
        self._records = settings.checkpoint_records
        self._requests_max = settings.record_requests_max
        self._run_aside = run_aside
        self._next_from = 0
        self._aside: _Aside | None = None

    def after_commit(self, state: ManifestState, record: Record, stored: StoredBoundary) -> ManifestState:
        """The view to go on with after ``record`` was committed: it says what ``state`` says.

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
            state = compacted(state)  # somebody else writes the checkpoints: keep the copies small all the same
        is_due = state.record_id - stored.boundary.checkpoint_id >= self._records
        if not is_due or state.record_id < self._next_from or self._aside is not None:
            return state
        # Next time after as many records again: a store that refuses one isn't asked with every commit.
        self._next_from = state.record_id + self._records
        if self._run_aside is None:
            return self._written(state, stored) or compacted(state)
        aside = self._aside = _Aside()
        self._run_aside(lambda: self._write_aside(aside, state, stored))
        return state

    def lose_track(self) -> None:
        """The log's view has moved on by records that it didn't commit itself."""
        if self._aside is not None:
            self._aside.records = None

    def _back(self, state: ManifestState) -> ManifestState:
        """``state`` as the checkpoint that is over has it: what was sealed isn't sealed again."""
        aside = self._aside
        if aside is None or not aside.is_over:
            return state
        self._aside = None
        view, records = aside.view, aside.records
        if view is None or records is None:
            return state
        for record in records:
            if record.record_id > view.record_id:
                view = fold(view, record)
        return view if view.record_id == state.record_id else state

    def _write_aside(self, aside: _Aside, state: ManifestState, stored: StoredBoundary) -> None:
        try:
            aside.view = self._written(state, stored)
        finally:
            aside.is_over = True

    def _written(self, state: ManifestState, stored: StoredBoundary) -> ManifestState | None:
        """Writes a checkpoint; the view with its runs' names, ``None`` where nothing came of it."""
        try:
            if state.checkpoint_id != stored.boundary.checkpoint_id:
                return checkpoint_now(self._store, state, self._entropy, requests_max=self._requests_max).state
            written = write_checkpoint(self._store, state, stored, self._entropy)
        except (OffloaderError, MemoryError) as error:
            # The record stands: a commit that fails here would be made again.
            _log.warning("stream %s: no checkpoint of record %d: %s", state.stream, state.record_id, error)
            return None
        return state if written is None else written.state
