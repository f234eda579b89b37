"""Segments that failed, from the records of the manifest.

A failed segment leaves the manifest's state: its entries are offloaded again under another uuid, and its objects are
orphans. As long as history is kept (``manifest.history_age_min``), the log has the record that assigned the segment and
the record that marked it as failed. Nothing else is stored for this list.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from formats.keys import record_key
from formats.manifest import Assign, Failed, Record
from offloader.manifest.boundary import read_boundary, read_record
from offloader.manifest.segment_table import SegmentRecord, SegmentStatus
from offloader.manifest.state import ManifestState
from offloader.parallel_map import at_once
from offloader.store.base import ObjectStore

#: Records that are read before the first of them is looked at.
_RECORDS_AT_ONCE = 1000


class FailedSegment(NamedTuple):
    """A segment that was given up.

    Attributes:
        record: as it was assigned; ``status`` is ``FAILED``.
        failed_ms: when, ms since 1970 UTC.
        reason: why, in words.
    """

    record: SegmentRecord
    failed_ms: int
    reason: str


def failed_segments(store: ObjectStore, state: ManifestState) -> list[FailedSegment]:
    """Segments that failed up to the record at which ``state`` ends, oldest first, as far as records are kept.

    Reads every kept record: one request each. Without those whose assigning record was deleted.

    Raises:
        CorruptError: a record is damaged.
    """

    def read(number: int) -> Record:
        return read_record(store, state.stream, record_key(state.stream, state.incarnation, number), number)[0]

    assigned: dict[UUID, SegmentRecord] = {}
    found = []
    first = read_boundary(store, state.stream, state.incarnation).boundary.first_kept_id
    numbers = range(first, state.record_id + 1)
    for start in range(0, len(numbers), _RECORDS_AT_ONCE):
        for record in at_once(read, numbers[start : start + _RECORDS_AT_ONCE]):
            for edit in record.edits:
                if isinstance(edit, Assign):
                    assigned[edit.uuid] = _assigned(edit, record.epoch)
                elif isinstance(edit, Failed) and (segment := assigned.pop(edit.uuid, None)) is not None:
                    found.append(FailedSegment(segment, record.time_ms, edit.reason))
    return found


def _assigned(edit: Assign, epoch: int) -> SegmentRecord:
    return SegmentRecord(
        uuid=edit.uuid,
        status=SegmentStatus.FAILED,
        epoch=epoch,
        layout=edit.layout,
        begin=edit.begin,
        end=edit.end,
        assigned_ms=edit.assigned_ms,
        driver=edit.driver,
    )
