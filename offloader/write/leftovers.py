"""What an earlier owner of a stream left unfinished.

Owns ending it. Must never write under a uuid of another epoch, nor delete an object: whatever still arrives under a
failed uuid is swept later.
"""

from __future__ import annotations

from formats.keys import data_key
from formats.manifest import Failed
from offloader.manifest.log import ManifestLog
from offloader.write.upload import abort_uploads

__all__ = ["give_up_leftovers"]


def give_up_leftovers(log: ManifestLog) -> list[Failed]:
    """Aborts the unfinished uploads of segments that an earlier epoch assigned.

    Call it after ``log.open_epoch()``: only then can their owner commit nothing any more.

    Returns:
        The edits that say so, to be committed in one record with the segment that takes over their range.
    """
    failed = []
    for segment in log.state.assigned():
        if segment.epoch != log.epoch:
            abort_uploads(log.store, data_key(log.stream, segment.uuid, segment.v1_ledger_id))
            failed.append(Failed(segment.uuid, "its owner was replaced"))
    return failed
