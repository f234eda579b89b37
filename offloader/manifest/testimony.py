"""What a data object says of the record that assigned it, compared with what the manifest knows; pure.

A data object's user metadata names the nonce of its epoch's ``open_epoch`` and a record of that epoch that assigned
segments. A manifest keeps, for each epoch that assigned any, that nonce and the newest such record. So an object that
no record names tells whether records are lost: a number alone wouldn't do, the next record takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from formats.checkpoint import AssigningEpoch
from formats.manifest import Assign, Edit, Rewrite
from formats.object_metadata import Testimony

__all__ = ["assigning_after", "newest_of", "tells_of_loss"]


def assigning_after(
    assigning: Sequence[AssigningEpoch], edits: Iterable[Edit], *, epoch_nonce: str, record_id: int
) -> tuple[AssigningEpoch, ...]:
    """The epochs that assigned segments, after a record of the epoch that ``epoch_nonce`` opened.

    Args:
        assigning: before it, from the oldest on.
        edits: the record's.
        epoch_nonce: of the current epoch; empty: an earlier release's manifest doesn't say.
        record_id: the record's.
    """
    kept = tuple(assigning)
    if not epoch_nonce or not any(isinstance(edit, (Assign, Rewrite)) for edit in edits):
        return kept
    if kept and kept[-1].nonce == epoch_nonce:
        kept = kept[:-1]
    return (*kept, AssigningEpoch(nonce=epoch_nonce, record_id=record_id))


def newest_of(assigning: Sequence[AssigningEpoch], epoch_nonce: str) -> Testimony | None:
    """What an object says that is written now under a uuid of that epoch; ``None``: it assigned nothing."""
    known = _known(assigning, epoch_nonce)
    return None if known is None else Testimony(epoch_nonce=epoch_nonce, record_id=known.record_id)


def tells_of_loss(assigning: Sequence[AssigningEpoch], testimony: Testimony) -> bool:
    """Whether an object was assigned by a record that the manifest hasn't."""
    known = _known(assigning, testimony.epoch_nonce)
    return known is None or testimony.record_id > known.record_id


def _known(assigning: Sequence[AssigningEpoch], epoch_nonce: str) -> AssigningEpoch | None:
    return next((each for each in reversed(assigning) if each.nonce == epoch_nonce), None)
