"""Checkpoints of a reader group: begun, reached and passed by its readers, published, expired; pure.

Owns when a checkpoint counts. Must never take one for passed while a reader hasn't read beyond it, nor say of a
partition that more was consumed than each of its readers said.

A checkpoint is complete when every reader said where it was at it. A reader that reads something behind it has
consumed all before it. With automatic retention what all have passed is published; with manual retention a complete
one is published when the application says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from formats.retention_state import CheckpointRow, GroupState, StreamCutRow
from offloader.errors import InvalidCall, LimitReached, NotFound
from offloader.retention.cuts import Cut
from offloader.retention.reader_groups import RetentionType, owing, owing_publish, require_group
from offloader.retention.rows import both_rows

__all__ = [
    "CHECKPOINTS_MAX",
    "READERS_MAX",
    "expired",
    "is_complete",
    "passed",
    "reached",
    "reader_added",
    "reader_removed",
    "started_checkpoint",
    "truncated_at_checkpoint",
]

#: Readers of one group.
READERS_MAX = 1000
#: Checkpoints that one group keeps.
CHECKPOINTS_MAX = 100
CHECKPOINT_NAME_CHARS_MAX = 255


def reader_added(group: GroupState, reader: str) -> GroupState:
    """A reader that takes part in checkpoints from now on.

    Raises:
        LimitReached: the group has ``READERS_MAX`` others.
    """
    require_group(group)
    if reader in group.readers:
        return group
    if len(group.readers) >= READERS_MAX:
        raise LimitReached(f"reader group {group.name} has {len(group.readers)} readers already")
    return replace(group, readers=tuple(sorted((*group.readers, reader))))


def reader_removed(group: GroupState, reader: str, cuts: tuple[StreamCutRow, ...]) -> GroupState:
    """A reader that stops; ``cuts`` say what it has processed, and count where a checkpoint waits for it."""
    require_group(group)
    rows = tuple(
        replace(
            row,
            waiting=_without(row.waiting, reader),
            behind=_without(row.behind, reader),
            cuts=_merged(row.cuts, cuts) if reader in row.waiting else row.cuts,
        )
        for row in group.checkpoints
    )
    return _publishing_passed(replace(group, readers=_without(group.readers, reader), checkpoints=rows))


def started_checkpoint(group: GroupState, name: str, *, kept: bool, now_ms: int, automatic: bool = False) -> GroupState:
    """Begins a checkpoint, which every reader has to reach.

    Args:
        name: unique in the group.
        kept: keep it for ``truncated_at_checkpoint`` until it expires.
        automatic: whether the group's own period asked for it.

    Raises:
        InvalidCall: the name is taken, or nobody reads.
        LimitReached: too many wait already, or too many are kept.
    """
    require_group(group)
    if not name or len(name) > CHECKPOINT_NAME_CHARS_MAX or not name.isprintable():
        raise InvalidCall(f"{name!r:.80} is no name of a checkpoint")
    if any(row.name == name for row in group.checkpoints):
        raise InvalidCall(f"reader group {group.name} has a checkpoint {name} already")
    if not group.readers:
        raise InvalidCall(f"nobody reads in reader group {group.name}: a checkpoint would say nothing")
    # The group's own ones wait until all have read beyond them: one slow reader would heap them up.
    outstanding = sum(1 for row in group.checkpoints if row.waiting or (automatic and row.behind and not row.kept))
    if outstanding >= group.outstanding_checkpoints_max:
        raise LimitReached(
            f"reader group {group.name}: {outstanding} checkpoints wait for readers already",
            hint="outstanding_checkpoints_max is the limit; let the readers reach them",
        )
    if len(group.checkpoints) >= CHECKPOINTS_MAX:
        raise LimitReached(f"reader group {group.name} keeps {len(group.checkpoints)} checkpoints already")
    row = CheckpointRow(name=name, kept=kept, created_ms=now_ms, waiting=group.readers, behind=group.readers, cuts=())
    begun_ms = now_ms if automatic else group.checkpoint_ms
    return replace(group, checkpoints=(*group.checkpoints, row), checkpoint_ms=begun_ms)


def reached(group: GroupState, name: str, reader: str, cuts: tuple[StreamCutRow, ...]) -> GroupState:
    """A reader says where it was at a checkpoint, for the partitions that it reads.

    Of a partition that two readers name the earlier position counts.

    Raises:
        NotFound: no such checkpoint.
        InvalidCall: a stream that the group doesn't read.
    """
    row = _checkpoint(group, name)
    strangers = sorted({each.stream for each in cuts} - set(group.streams))
    if strangers:
        raise InvalidCall(f"reader group {group.name} doesn't read stream {strangers[0]}")
    if reader not in row.waiting:
        return group
    after = replace(row, waiting=_without(row.waiting, reader), cuts=_merged(row.cuts, cuts))
    rows = tuple(after if each is row else each for each in group.checkpoints)
    if not after.waiting:
        # A later checkpoint is complete: earlier ones that nobody wanted to keep have served.
        at = rows.index(after)
        rows = tuple(each for number, each in enumerate(rows) if number >= at or each.kept or each.behind)
    return replace(group, checkpoints=rows)


def passed(group: GroupState, name: str, reader: str) -> GroupState:
    """A reader has read something behind a checkpoint: it has consumed all before it, and before earlier ones.

    Raises:
        NotFound: no such checkpoint.
        InvalidCall: the reader hasn't said where it was at it.
    """
    row = _checkpoint(group, name)
    if reader in row.waiting:
        raise InvalidCall(f"reader {reader} hasn't said where it was at checkpoint {name} of group {group.name}")
    at = group.checkpoints.index(row)
    rows = tuple(
        replace(each, behind=_without(each.behind, reader)) if number <= at and reader not in each.waiting else each
        for number, each in enumerate(group.checkpoints)
    )
    return _publishing_passed(replace(group, checkpoints=rows))


def truncated_at_checkpoint(group: GroupState, name: str) -> GroupState:
    """Publishes a checkpoint of a group with manual retention.

    Raises:
        NotFound: no such checkpoint.
        InvalidCall: readers haven't reached it.
        Unsupported: the group's retention type isn't manual.
    """
    row = _checkpoint(group, name)
    if row.waiting:
        raise InvalidCall(f"checkpoint {name} of reader group {group.name} waits for {', '.join(row.waiting[:5])}")
    return owing_publish(group, row.cuts)


def expired(group: GroupState, heads: Mapping[str, Cut]) -> GroupState:
    """Drops complete checkpoints that lie before the heads of all streams they speak of."""
    rows = tuple(row for row in group.checkpoints if row.waiting or not _is_before(row, heads))
    return group if len(rows) == len(group.checkpoints) else replace(group, checkpoints=rows)


def is_complete(row: CheckpointRow) -> bool:
    """Whether every reader has said where it was at a checkpoint."""
    return not row.waiting


def _publishing_passed(group: GroupState) -> GroupState:
    """Automatic: the newest checkpoint that every reader has passed is owed, and those that nobody kept go with it."""
    done = [row for row in group.checkpoints if not (row.waiting or row.behind or row.released)]
    if not done or group.retention != RetentionType.AUTOMATIC.value:
        return group
    rows = tuple(replace(row, released=True) if row in done else row for row in group.checkpoints)
    rows = tuple(row for row in rows if row.kept or not row.released)
    return owing(replace(group, checkpoints=rows), done[-1].cuts)


def _checkpoint(group: GroupState, name: str) -> CheckpointRow:
    require_group(group)
    found = next((row for row in group.checkpoints if row.name == name), None)
    if found is None:
        known = ", ".join(row.name for row in group.checkpoints[:5]) or "none"
        raise NotFound(
            f"reader group {group.name} has no checkpoint {name}", hint=f"there are {known}; expired ones are dropped"
        )
    return found


def _is_before(row: CheckpointRow, heads: Mapping[str, Cut]) -> bool:
    behind = False
    for each in row.cuts:
        head = {segment.number: offset for segment, offset in heads.get(each.stream, Cut()).offsets.items()}
        for at in each.cut:
            begin = head.get(at.partition)
            if begin is None or at.position > begin:  # type: ignore[operator]  # heads are positions as well
                return False
            behind = behind or at.position != begin
    return behind


def _merged(one: tuple[StreamCutRow, ...], other: tuple[StreamCutRow, ...]) -> tuple[StreamCutRow, ...]:
    first, second = ({each.stream: each for each in rows} for rows in (one, other))
    return tuple(both_rows(stream, first.get(stream), second.get(stream), min) for stream in sorted({*first, *second}))


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(each for each in names if each != name)
