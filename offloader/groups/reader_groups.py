"""Reader groups over several streams: configuration, checkpoints and obligations. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from formats.documents import CheckpointRow, GroupState, PartitionRow, StreamCutRow, ToDoRow
from offloader.errors import InvalidCallError, LimitReachedError, NotFoundError, UnsupportedError
from offloader.manifest.names import stream_name
from offloader.retention.cuts import (
    FUTURE,
    StreamCut,
    both_rows,
    cut_of_rows,
    partition_segment,
    rows_alive,
    stream_rows,
)
from offloader.retention.subscribers import PublishStatus

#: Most streams of one group.
GROUP_STREAMS_MAX = 1000
#: The current partitions of streams, by the stream's name.
Homes: TypeAlias = Mapping[str, tuple[PartitionRow, ...]]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,254}")


class RetentionType(enum.Enum):
    """Effect of a group on the retention of its streams."""

    NONE = "none"
    MANUAL = "manual"
    AUTOMATIC = "automatic"


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Configuration of a group.

    Attributes:
        streams: names of streams, or of topics with or without partitions: ``persistent://tenant/ns/topic``.
        retention: whether it holds data back, and how its progress is reported.
        starts, ends: where it begins and ends, by stream; else at the stream's beginning, never.
        automatic_checkpoint_ms: time between two automatic checkpoints; 0: none.
        outstanding_checkpoints_max: checkpoints that may wait for readers at the same time.
        refresh_ms: maximum age of a view of the group.
        heartbeat_ms: time between two writes of a reader that has nothing to report.
        expiry_ms: silence after which a reader loses its partitions, at least twice ``heartbeat_ms``.
        renew_ms: age at which an automatic group publishes its cuts again, at most a third of the streams' shortest
            subscriber timeout.

    Raises:
        InvalidCallError: no stream, a start or end of another stream, an end before its start, a time or number too
            small.
        LimitReachedError: more streams than ``GROUP_STREAMS_MAX``.
    """

    streams: Sequence[str]
    retention: RetentionType = RetentionType.NONE
    starts: Mapping[str, StreamCut] = field(default_factory=dict)
    ends: Mapping[str, StreamCut] = field(default_factory=dict)
    automatic_checkpoint_ms: int = 30_000
    outstanding_checkpoints_max: int = 3
    refresh_ms: int = 3_000
    heartbeat_ms: int = 10_000
    expiry_ms: int = 30_000
    renew_ms: int = 60_000

    def __post_init__(self) -> None:
        if not self.streams:
            raise InvalidCallError("a reader group needs a stream to read")
        if len(self.streams) > GROUP_STREAMS_MAX:
            raise LimitReachedError(f"a reader group of {len(self.streams)} streams: at most {GROUP_STREAMS_MAX}")
        object.__setattr__(self, "streams", tuple(map(stream_name, self.streams)))
        for name in ("starts", "ends"):
            object.__setattr__(self, name, {stream_name(of): cut for of, cut in getattr(self, name).items()})
        if strangers := sorted({*self.starts, *self.ends} - set(self.streams)):
            raise InvalidCallError(f"a cut is of stream {strangers[0]}, which the reader group doesn't read")
        for stream in self.streams:
            if problem := bounds_problem(self.starts.get(stream, StreamCut()), self.ends.get(stream, StreamCut())):
                raise InvalidCallError(f"stream {stream} of a reader group: {problem}")
        least = dict.fromkeys(("outstanding_checkpoints_max", "refresh_ms", "heartbeat_ms", "renew_ms"), 1)
        for name, low in {**least, "automatic_checkpoint_ms": 0, "expiry_ms": 2 * self.heartbeat_ms}.items():
            if getattr(self, name) < low:
                raise InvalidCallError(f"{name} of a reader group is {getattr(self, name)}, at least {low}")


def bounds_problem(start: StreamCut, end: StreamCut) -> str:
    """Why a group can't read from ``start`` to ``end``, as far as can be checked without the stream's history.

    Of segments in both the end's offset isn't smaller, and a segment unread at the end (future) isn't begun at the
    start; neither the oldest nor the youngest segment of the end is older than the start's.
    """
    if not start.offsets or not end.offsets:
        return ""
    for segment in start.segments:
        begin, stop = start.offsets[segment], end.offsets.get(segment)
        if begin == FUTURE or stop is None:
            continue
        if stop == FUTURE:
            return f"it starts inside {segment} and ends before it"
        if begin > stop:  # type: ignore[operator]  # of one kind within a stream, which the type can't say
            return f"it ends at {stop} in {segment}, before it starts at {begin}"
    ages = [sorted(segment.age_order for segment in cut.offsets) for cut in (start, end)]
    if ages[0][0] > ages[1][0] or ages[0][-1] > ages[1][-1]:
        return f"the start {start} doesn't precede the end {end}"
    return ""


def absent_group(name: str) -> GroupState:
    """Placeholder of a group that doesn't exist; raises ``InvalidCallError`` if it isn't a name of a group."""
    if _NAME.fullmatch(name) is None:
        raise InvalidCallError(
            f"{name!r:.80} is not a valid reader group name",
            hint="use at most 255 letters, digits, dots and hyphens, beginning with a letter or digit",
        )
    return GroupState(
        name=name,
        generation=-1,
        retention=RetentionType.NONE.value,
        streams=(),
        automatic_checkpoint_ms=1,
        outstanding_checkpoints_max=1,
        refresh_ms=1,
        deleted=True,
    )


def created(group: GroupState, config: GroupConfig, homes: Homes) -> GroupState:
    """The group, created with ``config``; an existing one is unchanged."""
    if not group.deleted:
        return group
    made = _configured(replace(absent_group(group.name), version=group.version), config, group.generation + 1, homes)
    # Obligations of the previous group come first.
    return replace(made, to_do=(*group.to_do, *_added(made)))


def updated(group: GroupState, from_generation: int, config: GroupConfig, homes: Homes) -> GroupState:
    """The group with another configuration: registered with new streams, removed from dropped ones.

    Raises:
        NotFoundError: there is no such group.
        InvalidCallError: the group's generation isn't ``from_generation``.
    """
    require_group(group)
    if group.generation != from_generation:
        raise InvalidCallError(
            f"reader group {group.name} was changed: its generation is {group.generation}, not {from_generation}",
            hint="read the group again",
        )
    made = _configured(group, config, group.generation + 1, homes)
    stays = set(made.streams) if made.retention != RetentionType.NONE.value else set()
    leaves = [_removal(made, stream) for stream in subscribed(group) if stream not in stays]
    # A registration is owed no longer than its removal isn't: see ``StreamRetention.add_if``.
    earlier = tuple(
        row for row in group.to_do if row.action == "remove" or (row.action == "add" and row.stream in stays)
    )
    # Register the new generation before publishing with it.
    publishes = [row for row in group.to_do if row.action == "publish" and row.stream in stays]
    later = [replace(row, generation=made.generation) for row in publishes]
    return replace(
        made,
        to_do=(*earlier, *leaves, *_added(made), *later),
        published=tuple(row for row in made.published if row.stream in stays),
    )


def deleted(group: GroupState) -> GroupState:
    """The deleted group, unchanged if it still owes removals; raises ``NotFoundError`` when there is none."""
    if group.deleted and group.to_do:
        return group
    require_group(group)
    removals = tuple(_removal(group, stream) for stream in subscribed(group))
    kept = tuple(row for row in group.to_do if row.action == "remove")
    return replace(
        group,
        to_do=(*kept, *removals),
        deleted=True,
        checkpoints=(),
        readers=(),
        published=(),
        streams=(),
        members=(),
        assignments=(),
    )


def owing_publish(group: GroupState, cuts: tuple[StreamCutRow, ...]) -> GroupState:
    """Publish cuts of a group, once for each stream.

    Raises ``UnsupportedError`` unless its retention is manual, ``InvalidCallError`` for a stream that it doesn't read.
    """
    require_group(group)
    if group.retention != RetentionType.MANUAL.value:
        raise UnsupportedError(
            f"reader group {group.name} has retention type {group.retention}: only manual groups accept "
            "truncation cuts",
            hint="change its retention type, or leave it to the checkpoints",
        )
    _require_read(group, cuts)
    return owing(group, cuts)


def _require_read(group: GroupState, cuts: tuple[StreamCutRow, ...]) -> None:
    if strangers := sorted({each.stream for each in cuts} - set(group.streams)):
        raise InvalidCallError(f"reader group {group.name} doesn't read stream {strangers[0]}")


def renewed(group: GroupState, *, now_ms: int, renew_ms: int) -> GroupState:
    """Republish the last cuts, if ``renew_ms`` old, as a sign of life: only of an automatic group.

    Those of a stream where a publication is due already aren't: a stream that fails doesn't silence the others.
    """
    waits = {row.stream for row in group.to_do if row.action == "publish"}
    old = tuple(row for row in group.published if row.stream not in waits)
    # A time as far ahead is of a process whose clock is wrong.
    is_due = old and abs(now_ms - group.published_ms) >= renew_ms
    is_renewed = is_due and not group.deleted and group.retention == RetentionType.AUTOMATIC.value
    return owing(group, old) if is_renewed else group


def settled(group: GroupState, row: ToDoRow, status: PublishStatus, *, now_ms: int) -> GroupState:
    """The group after an obligation was performed or refused, which a stream does permanently.

    But a subscriber that is missing, because its stream was recreated or the operator removed it, is registered again,
    and the earlier stream's cuts are dropped.
    """
    left = tuple(each for each in group.to_do if each != row)
    if row.action != "publish" or row.cut is None:
        return replace(group, to_do=left)
    others = tuple(each for each in group.published if each.stream != row.stream)
    if status is PublishStatus.SUBSCRIBER_NOT_FOUND and row.stream in subscribed(group):
        again = tuple(each for each in _added(group) if each.stream == row.stream)
        return replace(group, to_do=(*left, *again, row), published=others)
    if status is not PublishStatus.SUCCESS:
        return replace(group, to_do=left)
    published = sorted((*others, StreamCutRow(row.stream, row.cut, row.partitions)), key=lambda each: each.stream)
    return replace(group, to_do=left, published=tuple(published), published_ms=now_ms)


def config_of(group: GroupState) -> GroupConfig:
    """The configuration of a group."""
    return GroupConfig(
        group.streams,
        RetentionType(group.retention),
        {row.stream: cut_of_rows(row.cut) for row in group.starts},
        {row.stream: cut_of_rows(row.cut) for row in group.ends},
        group.automatic_checkpoint_ms,
        group.outstanding_checkpoints_max,
        group.refresh_ms,
        group.heartbeat_ms,
        group.expiry_ms,
        group.renew_ms,
    )


def require_group(group: GroupState) -> None:
    """Raise ``NotFoundError`` for a group that is deleted or never existed."""
    if group.deleted:
        raise NotFoundError(
            f"reader group {group.name} doesn't exist",
            hint="create it: `offloader group set GROUP --stream STREAM`, or `group join` with --stream",
        )


def _configured(group: GroupState, config: GroupConfig, generation: int, homes: Homes) -> GroupState:
    return replace(
        group,
        generation=generation,
        retention=config.retention.value,
        streams=tuple(sorted(set(config.streams))),
        starts=stream_rows(config.starts, homes),
        ends=stream_rows(config.ends),
        automatic_checkpoint_ms=config.automatic_checkpoint_ms,
        outstanding_checkpoints_max=config.outstanding_checkpoints_max,
        refresh_ms=config.refresh_ms,
        heartbeat_ms=config.heartbeat_ms,
        expiry_ms=config.expiry_ms,
        renew_ms=config.renew_ms,
        deleted=False,
    )


def subscribed(group: GroupState) -> tuple[str, ...]:
    """Streams whose registries have the group."""
    return () if group.retention == RetentionType.NONE.value else group.streams


def _added(group: GroupState) -> tuple[ToDoRow, ...]:
    starts = {row.stream: row for row in group.starts}
    added = partial(ToDoRow, action="add", generation=group.generation)
    return tuple(
        added(stream=stream)
        if (start := starts.get(stream)) is None
        else added(stream=stream, cut=start.cut, partitions=start.partitions)
        for stream in subscribed(group)
    )


def _removal(group: GroupState, stream: str) -> ToDoRow:
    return ToDoRow(action="remove", stream=stream, generation=group.generation)


def owing(group: GroupState, cuts: tuple[StreamCutRow, ...]) -> GroupState:
    """The group with these cuts to publish; they replace cuts that still wait."""
    before = {row.stream: row for row in group.published}
    waiting = {
        row.stream: StreamCutRow(row.stream, row.cut, row.partitions)
        for row in group.to_do
        if row.action == "publish" and row.cut is not None
    }
    rows = {}
    for each in cuts:
        # Partitions without a reader at this checkpoint keep their last published position.
        own = both_rows(each.stream, before.get(each.stream), each, lambda _, new: new)
        own = both_rows(each.stream, waiting.get(each.stream), own, max)
        rows[own.stream] = ToDoRow(
            action="publish", stream=own.stream, generation=group.generation, cut=own.cut, partitions=own.partitions
        )
    left = tuple(row for row in group.to_do if row.action != "publish" or row.stream not in rows)
    return replace(group, to_do=(*left, *rows.values()))


#: Most readers of one group.
READERS_MAX = 1000
#: Most checkpoints of one group.
CHECKPOINTS_MAX = 100
CHECKPOINT_NAME_CHARS_MAX = 255


def reader_added(group: GroupState, reader: str) -> GroupState:
    """Add a reader, which takes part in checkpoints from now on; ``LimitReachedError`` above ``READERS_MAX``."""
    require_group(group)
    if reader in group.readers:
        return group
    if len(group.readers) >= READERS_MAX:
        raise LimitReachedError(f"reader group {group.name} has {len(group.readers)} readers already")
    return replace(group, readers=tuple(sorted((*group.readers, reader))))


def reader_removed(group: GroupState, reader: str, cuts: tuple[StreamCutRow, ...]) -> GroupState:
    """Remove a reader; ``cuts`` are its processed positions, from which others continue.

    They count for checkpoints that it hasn't passed, even where it reported a later position, which it had only read.
    """
    require_group(group)
    rows = tuple(
        replace(
            row,
            waiting=_without(row.waiting, reader),
            behind=_without(row.behind, reader),
            cuts=_merged(row.cuts, cuts) if reader in row.behind else row.cuts,
        )
        for row in group.checkpoints
    )
    return _publishing_passed(replace(group, readers=_without(group.readers, reader), checkpoints=rows))


def started_checkpoint(group: GroupState, name: str, *, kept: bool, now_ms: int, automatic: bool = False) -> GroupState:
    """Start a checkpoint, which every reader has to reach.

    Args:
        name: unique in the group.
        kept: keep it for ``truncated_at_checkpoint`` until it expires.
        automatic: whether the group's own period started it.

    Raises:
        InvalidCallError: the name is taken, or the group has no readers.
        LimitReachedError: too many wait already, or too many are kept.
    """
    require_group(group)
    if not name or len(name) > CHECKPOINT_NAME_CHARS_MAX or not name.isprintable():
        raise InvalidCallError(f"{name!r:.80} is not a valid checkpoint name")
    if any(row.name == name for row in group.checkpoints):
        raise InvalidCallError(f"reader group {group.name} has a checkpoint {name} already")
    if not group.readers:
        raise InvalidCallError(
            f"reader group {group.name} has no readers, so a checkpoint would have no positions",
            hint="start it once a reader has joined",
        )
    # Automatic ones wait until all readers have passed them: one slow reader would accumulate them.
    outstanding = sum(1 for row in group.checkpoints if row.waiting or (automatic and row.behind and not row.kept))
    if outstanding >= group.outstanding_checkpoints_max:
        raise LimitReachedError(
            f"reader group {group.name}: {outstanding} checkpoints wait for readers already",
            hint="outstanding_checkpoints_max is the limit; let the readers reach them",
        )
    if len(group.checkpoints) >= CHECKPOINTS_MAX:
        raise LimitReachedError(f"reader group {group.name} keeps {len(group.checkpoints)} checkpoints already")
    row = CheckpointRow(name=name, kept=kept, created_ms=now_ms, waiting=group.readers, behind=group.readers, cuts=())
    begun_ms = now_ms if automatic else group.checkpoint_ms
    return replace(group, checkpoints=(*group.checkpoints, row), checkpoint_ms=begun_ms)


def reached(group: GroupState, name: str, reader: str, cuts: tuple[StreamCutRow, ...]) -> GroupState:
    """Record a reader's positions at a checkpoint; if two readers name a partition, the earlier position counts.

    Raises ``NotFoundError`` without such a checkpoint, ``InvalidCallError`` for a stream that the group doesn't read.
    """
    row = _checkpoint(group, name)
    _require_read(group, cuts)
    if reader not in row.waiting:
        return group
    after = replace(row, waiting=_without(row.waiting, reader), cuts=_merged(row.cuts, cuts))
    rows = tuple(after if each is row else each for each in group.checkpoints)
    if not after.waiting:
        # A later checkpoint is complete: drop earlier ones that aren't kept.
        at = rows.index(after)
        rows = tuple(each for number, each in enumerate(rows) if number >= at or each.kept or each.behind)
    return replace(group, checkpoints=rows)


def passed(group: GroupState, name: str, reader: str) -> GroupState:
    """Record that a reader has read past a checkpoint: it has consumed everything before it, and before earlier ones.

    Raises ``NotFoundError`` without such a checkpoint, ``InvalidCallError`` if its position there isn't recorded.
    """
    row = _checkpoint(group, name)
    if reader in row.waiting:
        raise InvalidCallError(
            f"reader {reader} hasn't reported its position at checkpoint {name} of group {group.name}"
        )
    at = group.checkpoints.index(row)
    rows = tuple(
        replace(each, behind=_without(each.behind, reader)) if number <= at and reader not in each.waiting else each
        for number, each in enumerate(group.checkpoints)
    )
    return _publishing_passed(replace(group, checkpoints=rows))


def truncated_at_checkpoint(group: GroupState, name: str) -> GroupState:
    """Publish a checkpoint of a group; raises as ``owing_publish``.

    Raises ``NotFoundError`` without such a checkpoint, ``InvalidCallError`` if readers haven't passed it or it wasn't
    kept.
    """
    row = _checkpoint(group, name)
    owing = owing_publish(group, row.cuts)
    if row.behind:
        raise InvalidCallError(
            f"checkpoint {name} of reader group {group.name} waits for {', '.join(row.behind[:5])}",
            hint="publish it once all readers have passed it",
        )
    if not row.kept:
        raise InvalidCallError(
            f"checkpoint {name} of reader group {group.name} was not kept, so it can't be published",
            hint="start one that is kept: initiate_checkpoint(name, keep=True)",
        )
    return owing


def expired(group: GroupState, heads: Mapping[str, StreamCut], homes: Homes) -> GroupState:
    """Drop complete checkpoints before the start positions of all their streams.

    Args:
        heads: those positions; a checkpoint in a stream without one is kept.
        homes: the partitions of these streams; positions in others, which were deleted, are behind.
    """
    rows = tuple(row for row in group.checkpoints if row.waiting or not _is_before(row, heads, homes))
    return group if len(rows) == len(group.checkpoints) else replace(group, checkpoints=rows)


def _publishing_passed(group: GroupState) -> GroupState:
    """Automatic retention: publish the newest checkpoint passed by every reader, drop unkept ones up to it."""
    done = [row for row in group.checkpoints if not (row.waiting or row.behind or row.released)]
    if not done or group.retention != RetentionType.AUTOMATIC.value:
        return group
    rows = tuple(replace(row, released=True) if row in done else row for row in group.checkpoints)
    rows = tuple(row for row in rows if row.kept or not row.released)
    cuts, named = done[-1].cuts, {each.stream for each in done[-1].cuts}
    # In a stream that no reader has read up to it, its publication is a sign of life.
    unread = tuple(each for each in group.published if each.stream not in named)
    return owing(replace(group, checkpoints=rows), (*cuts, *unread))


def _checkpoint(group: GroupState, name: str) -> CheckpointRow:
    require_group(group)
    if (found := next((row for row in group.checkpoints if row.name == name), None)) is None:
        known = ", ".join(row.name for row in group.checkpoints[:5]) or "none"
        raise NotFoundError(
            f"reader group {group.name} has no checkpoint {name}",
            hint=f"existing checkpoints: {known}; expired ones are dropped",
        )
    return found


def _is_before(row: CheckpointRow, heads: Mapping[str, StreamCut], homes: Homes) -> bool:
    alive = [
        (at.position, heads.get(each.stream, StreamCut()).offsets.get(partition_segment(at.partition)))
        for each in row.cuts
        for at in (rows_alive(each.cut, each.partitions, homes[each.stream]) if each.stream in homes else each.cut)
    ]
    if any(begin is None or at > begin for at, begin in alive):  # type: ignore[operator]  # heads are positions as well
        return False
    return any(at != begin for at, begin in alive) or (not alive and any(each.cut for each in row.cuts))


def _merged(one: tuple[StreamCutRow, ...], other: tuple[StreamCutRow, ...]) -> tuple[StreamCutRow, ...]:
    first, second = ({each.stream: each for each in rows} for rows in (one, other))
    return tuple(both_rows(stream, first.get(stream), second.get(stream), min) for stream in sorted({*first, *second}))


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(each for each in names if each != name)
