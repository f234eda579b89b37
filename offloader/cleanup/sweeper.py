"""Acting on a plan: retire, release, purge, delete, each step recorded before the next.

Owns that order. Must never delete an object that the manifest still names, nor go on after a record whose outcome isn't
known: the next cycle looks again.

Manifest first, objects later: what a crash leaves is a batch that is written down and not done (``offloader.cleanup.
audit``), never a segment without objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from formats.deletion_record import DeletedSegment, DeletionRecord
from formats.keys import data_key, index_key
from formats.manifest import Purged, Release, Retire
from offloader.cleanup.audit import begin_batch, end_batch, void_batch
from offloader.cleanup.plan import Action, Doomed, Retired, replaced_rule, rule_of
from offloader.cleanup.retirement import note_readers
from offloader.errors import OffloaderError
from offloader.manifest.global_hold import require_no_global_hold
from offloader.manifest.log import ManifestLog
from offloader.manifest.segment_record import SegmentRecord
from offloader.manifest.segment_slice import SegmentSlice
from offloader.manifest.state import ManifestState

__all__ = ["SEGMENTS_PER_RECORD_MAX", "Sweeper", "Swept"]

#: Segments that one record retires or purges: their objects are one delete request.
SEGMENTS_PER_RECORD_MAX = 500


@dataclass(slots=True)
class Swept:
    """What was done.

    Attributes:
        retired, released, purged: segments.
        deleted_objects, deleted_bytes: of segments whose objects are all gone.
        failed: batches whose objects couldn't all be deleted; they are tried again.
    """

    retired: int = 0
    released: int = 0
    purged: int = 0
    deleted_objects: int = 0
    deleted_bytes: int = 0
    failed: list[DeletionRecord] = field(default_factory=list)


class Sweeper:
    """Acts on one stream.

    Args:
        log: of the stream, loaded; nobody else uses it.
        now_ms: asks both clocks; raises when they can't be trusted.
        by: who runs this, for the audit.
        batches: those under way, read before the log was loaded.
        swept: what was done before, of the same round.
    """

    def __init__(
        self,
        log: ManifestLog,
        *,
        now_ms: Callable[[], int],
        by: str,
        batches: Sequence[DeletionRecord] = (),
        swept: Swept | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._batches = {_identity(b.action, b.retire_record, b.segments): b for b in batches}
        self._log, self._store = log, log.store
        self._now_ms, self._by, self._entropy = now_ms, by, entropy
        self.swept = Swept() if swept is None else swept

    def retire(self, doomed: Doomed) -> None:
        """Hides segments from readers; they can come back until they are purged.

        Raises:
            EditRefused: the manifest changed meanwhile; what was retired so far stays so.
        """
        records = []
        for segments in _chunks(doomed.segments):
            require_no_global_hold(self._store)
            uuids = tuple(segment.uuid for segment in segments)
            state = self._log.amend([Retire(uuids)])
            retired = state.segments.get(uuids[0])
            if retired is not None and retired.retire_record is not None:
                records.append(retired.retire_record)
            self.swept.retired += len(uuids)
        note_readers(self._store, self._log.state, records, now_ms=self._now_ms())

    def release(self, doomed: Doomed) -> None:
        """Forgets adopted segments that aren't ours; their objects stay."""
        for segments in _chunks(doomed.segments):
            require_no_global_hold(self._store)
            batch = self._begin(Action.RELEASE, doomed.rule, 0, [_entry(segment, ()) for segment in segments])
            self._log.amend([Release(tuple(segment.uuid for segment in segments))])
            end_batch(self._store, batch, now_ms=batch.planned_ms)
            self.swept.released += len(segments)

    def purge(self, group: Retired) -> None:
        """Records that segments are gone, then deletes their objects.

        Raises:
            EditRefused: they aren't retired by that record any more: nothing of the rest was purged.
            OutcomeUnknown: nobody knows whether they are purged: nothing of them was deleted.
        """
        state = self._log.state
        for segments in _chunks(group.segments):
            entries = [_entry(segment, segment.object_keys(state.stream)) for segment in segments]
            self._purge(group.record_id, rule_of(state, segments[0]), entries)
        for start in range(0, len(group.replaced), SEGMENTS_PER_RECORD_MAX):
            replaced = group.replaced[start : start + SEGMENTS_PER_RECORD_MAX]
            entries = [
                DeletedSegment(
                    uuid=each.uuid,
                    keys=(
                        data_key(state.stream, each.uuid, each.ledger_id),
                        index_key(state.stream, each.uuid, each.ledger_id),
                    ),
                    first=None,
                    last=None,
                    entries=0,
                    object_bytes=each.object_bytes,
                )
                for each in replaced
            ]
            self._purge(group.record_id, replaced_rule(replaced[0]), entries)

    def resume(self, batch: DeletionRecord, *, void_before_ms: int) -> None:
        """Goes on with a batch that is written down and not done.

        Args:
            batch: read before the log was loaded.
            void_before_ms: a batch that never came about and was planned earlier is forgotten.
        """
        state = self._log.state
        if _names_any(state, batch):
            # Its record was never written, or was refused; or is still on its way.
            if batch.planned_ms < void_before_ms:
                void_batch(self._store, batch)
            return
        self._delete_purged(batch)

    def _purge(self, record_id: int, rule: str, entries: Sequence[DeletedSegment]) -> None:
        require_no_global_hold(self._store)
        batch = self._begin(Action.PURGE, rule, record_id, entries)
        self._log.amend([Purged(tuple(each.uuid for each in entries), record_id)])
        self.swept.purged += len(entries)
        self._delete_purged(batch)

    def _delete_purged(self, batch: DeletionRecord) -> None:
        """Once the boundary names the record that says so, or one after it: if it is lost then, everybody notices."""
        state = self._log.name_newest()
        if not _names_any(state, batch):
            self._delete(batch)

    def _begin(self, action: Action, rule: str, record_id: int, entries: Sequence[DeletedSegment]) -> DeletionRecord:
        # One that was written down when the last round stopped, before its record, is this one.
        found = self._batches.get(_identity(action.value, record_id, entries))
        if found is not None:
            return found
        state = self._log.state
        return begin_batch(
            *(self._store, state.stream, state.incarnation),
            action=action.value,
            by=self._by,
            rule=rule,
            retire_record=record_id,
            segments=entries,
            now_ms=self._now_ms(),
            entropy=self._entropy,
        )

    def _delete(self, batch: DeletionRecord) -> None:
        """Deletes the objects of a batch that no manifest names any more."""
        keys = [key for each in batch.segments for key in each.keys]
        require_no_global_hold(self._store)
        problem = ""
        try:
            failures = self._store.delete(keys) if keys else ()
        except OffloaderError as error:
            problem = str(error)
        else:
            # The answer to a multi-delete is no success of each key.
            if failures:
                problem = f"{len(failures)} of {len(keys)} objects, first {failures[0].key}: {failures[0].reason}"
        batch = end_batch(self._store, batch, now_ms=self._now_ms(), problem=problem)
        if problem:
            self.swept.failed.append(batch)
            return
        self.swept.deleted_objects += len(keys)
        self.swept.deleted_bytes += sum(each.object_bytes for each in batch.segments if each.keys)


def _names_any(state: ManifestState, batch: DeletionRecord) -> bool:
    """Whether the manifest still names a segment of the batch."""
    others = {each.uuid for each in state.rewrites} | {each.uuid for each in state.replaced}
    return any(each.uuid in state.segments or each.uuid in others for each in batch.segments)


def _identity(action: str, retire_record: int, segments: Sequence[DeletedSegment]) -> tuple[object, ...]:
    return action, retire_record, *(each.uuid for each in segments)


def _chunks(segments: SegmentSlice) -> Iterator[list[SegmentRecord]]:
    for start in range(0, len(segments), SEGMENTS_PER_RECORD_MAX):
        yield list(segments[start : start + SEGMENTS_PER_RECORD_MAX])


def _entry(segment: SegmentRecord, keys: tuple[str, ...]) -> DeletedSegment:
    summary = segment.summary
    assert summary is not None, "only offloaded segments are deleted"
    return DeletedSegment(
        uuid=segment.uuid,
        keys=keys,
        first=segment.begin,
        last=segment.end,
        entries=summary.entries,
        object_bytes=summary.data_bytes + summary.index_bytes,
    )
