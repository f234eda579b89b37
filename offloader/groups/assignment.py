"""Assignment of partitions to the readers of a group, expiry of readers, and persisted positions. Pure.

A group is one document. Every change replaces it on the condition that it still is the version that was read, so all
processes see the same sequence of versions, and a decision never needs a second request to be safe. This module decides
creates the next version; ``group_service`` writes it, and ``group_reader`` reads entries.

**State.** ``members`` are the readers that joined, each with a random session. ``assignments`` has one row for each
partition of each stream: its reader, the epoch in which that reader got it, and a position before which everything is
consumed. ``checkpoints`` are those of ``reader_groups``: each waits for the readers that existed when it was started.

**Steps.** A reader makes three kinds of change:

* ``joined``: adds its member row. A name that exists gets a new session, and the earlier session is fenced.
* ``stepped``: shows that the reader is alive. If it gives positions, they are persisted, every waiting checkpoint is
  passed with them, and partitions above its share are released.
* ``left``: releases everything.

**Segments of a scalable topic** succeed each other. One is assigned when all segments that it continues are finished: a
reader persisted that it consumed everything up to the recorded end. A finished segment has no reader, doesn't count as
a share, and its position remains in the cuts of checkpoints.

Each step then removes members that were silent for too long and assigns free partitions to the members with the
fewest. Other changes (a new checkpoint, another configuration) may come between any two steps.

**When a reader may give positions.** Only for entries that the application has consumed. The application shows that by
asking for more after a ``Checkpoint`` event: everything delivered before the event is consumed. A reader that delivered
nothing since then may give the same positions again. That is why a partition changes hands only together with
positions: the holder emits an event, waits for the application, and releases with one write.

**Invariants**, which ``tests/proof/models`` checks for every interleaving of a small group:

* G1. A partition has at most one reader in an epoch. A holder loses it by its own step, by leaving, by a new session of
  its name, or by expiry, and each of these raises the epoch.
* G2. A partition's position never moves back, unless its stream was created again.
* G3. A position is never after an entry that was not consumed. A checkpoint's cut consists of such positions.
* G4. A new holder starts at the persisted position. Therefore no entry is skipped, and entries are delivered twice only
  after a crash, an expiry or an interrupted session.
* G5. A checkpoint waits for live readers only: a reader that leaves or expires is taken out of it, with the positions
  that it had persisted.
* G6. An entry of a segment is delivered only after all entries of the segments that it continues are consumed.

**Time** is the store's, because readers' clocks may differ by hours. A version's time is the time of the version before
it plus the difference of the store's modification times, at most half the expiry time (``group_time``). So a period in
which no process could write, such as an outage of the store, expires no reader. A member row names the revision that
its reader wrote last; the next writer replaces that by the version's time (``timed``). Live readers write a version at
each heartbeat, so time passes as long as one of them lives.

**Fencing.** A reader whose session isn't in the document gets ``ReaderExpiredError`` and must not deliver any further
entry of this session. A reader that can't write for ``expiry_ms`` stops delivering by itself until it has written
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from formats.documents import AssignmentRow, CutRow, GroupState, MemberRow, PartitionRow, StreamCutRow
from formats.entries import Position
from offloader.errors import InvalidCallError, LimitReachedError, NotFoundError, ReaderExpiredError
from offloader.groups.reader_groups import (
    GroupConfig,
    Homes,
    passed,
    reached,
    reader_added,
    reader_removed,
    renewed,
    require_group,
    started_checkpoint,
    updated,
)
from offloader.retention.cuts import rows_alive

#: Longest name of a reader.
READER_NAME_CHARS_MAX = 255


class Held(NamedTuple):
    """A partition as its reader got it; another epoch is another assignment."""

    stream: str
    partition: int
    epoch: int


#: Positions of a reader: everything before them is consumed.
Positions: TypeAlias = Mapping[Held, Position]
#: Scalable topic -> segment -> the segments that must be finished before it is assigned; of other streams nothing.
Parents: TypeAlias = Mapping[str, Mapping[int, frozenset[int]]]


def require_reader_name(name: str) -> None:
    """Raise ``InvalidCallError`` unless it is a reader's name."""
    if not 1 <= len(name) <= READER_NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        raise InvalidCallError(
            f"{name!r:.80} is not a valid reader name",
            hint=f"1 to {READER_NAME_CHARS_MAX} printable characters without spaces at the ends",
        )


def held(group: GroupState, reader: str) -> dict[Held, AssignmentRow]:
    """The partitions of a reader, in the group's order."""
    return {Held(row.stream, row.partition, row.epoch): row for row in group.assignments if row.reader == reader}


def waiting(group: GroupState, reader: str) -> tuple[str, ...]:
    """Checkpoints that wait for a reader, oldest first."""
    return tuple(row.name for row in group.checkpoints if reader in row.behind)


def has_surplus(group: GroupState, reader: str) -> bool:
    """Whether a reader has more partitions than its share."""
    counts = _counts(group)
    return counts.get(reader, 0) > _quotas(counts, group).get(reader, 0)


def group_time(group: GroupState, modified_ms: int) -> int:
    """Time of a version of a group that the store wrote at ``modified_ms``."""
    if not group.store_ms:
        return modified_ms
    return group.clock_ms + min(max(modified_ms - group.store_ms, 0), group.expiry_ms // 2)


def timed(group: GroupState, modified_ms: int) -> GroupState:
    """The group with the time of this version, also in the row of the member that wrote it."""
    now_ms = group_time(group, modified_ms)
    rows = tuple(replace(row, seen_ms=now_ms) if row.beat == group.version.revision else row for row in group.members)
    return replace(group, members=rows, clock_ms=now_ms, store_ms=modified_ms)


def partitioned(group: GroupState, homes: Homes, parents: Parents) -> GroupState:
    """The group with one row for each partition of its streams, and for each segment that may be read.

    A partition of a stream that was created again starts at its beginning, in a new epoch. A new partition starts where
    the group published last, else at the group's start, else at the beginning.

    Args:
        homes: the current partitions of some or all of the group's streams.
        parents: of the segments among them.
    """
    epoch = group.epoch + 1
    finished = {(row.stream, row.partition) for row in group.assignments if row.is_finished}
    before = {(row.stream, row.partition): row for row in group.assignments}
    rows = [row for row in group.assignments if row.stream in group.streams and row.stream not in homes]
    for stream in homes.keys() & set(group.streams):
        first = _first_positions(group, stream, homes[stream])
        for number, incarnation in ((row.number, row.incarnation) for row in homes[stream]):
            row = before.get((stream, number))
            if row is None:
                if any((stream, each) not in finished for each in parents.get(stream, {}).get(number, ())):
                    continue
                row = AssignmentRow(
                    stream=stream,
                    partition=number,
                    incarnation=incarnation,
                    reader="",
                    epoch=epoch,
                    position=first.get(number),
                )
            elif row.incarnation != incarnation:
                row = replace(row, incarnation=incarnation, epoch=epoch, position=None, is_finished=False)
            rows.append(row)
    found = tuple(sorted(rows, key=lambda row: (row.stream, row.partition)))
    return group if found == group.assignments else replace(group, assignments=found, epoch=epoch)


def repartitioned(group: GroupState, homes: Homes, parents: Parents) -> GroupState:
    """The group with the current partitions, each new one assigned; see ``partitioned``."""
    return _assigned(partitioned(group, homes, parents))


def reconfigured(
    group: GroupState, from_generation: int, config: GroupConfig, homes: Homes, parents: Parents
) -> GroupState:
    """The group with another configuration, which also changes the assignments of one that is read; as ``updated``."""
    made = updated(group, from_generation, config, homes)
    return repartitioned(made, homes, parents) if made.members or made.assignments else made


def joined(group: GroupState, reader: str, session: str, homes: Homes, parents: Parents) -> GroupState:
    """The group with a new session of a reader. Here and below the group is a ``timed`` one.

    Raises:
        NotFoundError: there is no such group.
        InvalidCallError: not a reader's name.
        LimitReachedError: the group has ``READERS_MAX`` readers.
    """
    require_group(group)
    require_reader_name(reader)
    group = reader_added(_expired(_gone(group, [reader]), reader), reader)
    own = MemberRow(name=reader, session=session, beat=group.version.revision + 1, seen_ms=group.clock_ms)
    members = tuple(sorted((*group.members, own), key=lambda row: row.name))
    return _assigned(partitioned(replace(group, members=members), homes, parents))


def stepped(
    group: GroupState,
    reader: str,
    session: str,
    positions: Positions | None,
    finished: Collection[Held] = (),
    *,
    has_news: bool = False,
) -> GroupState:
    """The group after a sign of life.

    Args:
        positions: of everything that was delivered, all of it consumed; ``None``: some of it may not be.
        finished: sealed segments among them of which nothing more will come; used only with ``positions``.
        has_news: the reader delivered entries since it persisted positions: an automatic checkpoint may be due.

    Raises:
        NotFoundError: there is no such group.
        ReaderExpiredError: the session ended.
    """
    require_session(group, reader, session)
    beat = group.version.revision + 1
    members = tuple(replace(row, beat=beat) if row.name == reader else row for row in group.members)
    group = _expired(replace(group, members=members), reader)
    if has_news and is_checkpoint_due(group):
        with suppress(LimitReachedError):  # the readers lag: a later checkpoint covers this one
            group = started_checkpoint(group, f"automatic-{beat}", kept=False, now_ms=group.store_ms, automatic=True)
    if positions is not None:
        group = _released(_passed(_persisted(group, reader, positions, finished), reader), reader)
    return _assigned(renewed(group, now_ms=group.store_ms, renew_ms=group.renew_ms))


def left(group: GroupState, reader: str, session: str, positions: Positions | None) -> GroupState:
    """The group without a reader, as ``stepped``; a session that ended already changes nothing."""
    try:
        require_session(group, reader, session)
    except (NotFoundError, ReaderExpiredError):
        return group
    kept = group if positions is None else _passed(_persisted(group, reader, positions), reader)
    return _assigned(_expired(_gone(kept, [reader]), ""))


def require_session(group: GroupState, reader: str, session: str) -> None:
    """Raise ``ReaderExpiredError`` unless a session is the reader's current one, ``NotFoundError`` without such a
    group."""
    require_group(group)
    own = next((row for row in group.members if row.name == reader), None)
    if own is None:
        raise ReaderExpiredError(
            f"reader {reader} of group {group.name} was silent for more than {group.expiry_ms / 1000:g} s, and its "
            "partitions were assigned to other readers",
            hint="join again: the reader continues at the positions of its last checkpoint",
        )
    if own.session != session:
        raise ReaderExpiredError(
            f"reader {reader} of group {group.name} was joined again by another process, which now has its partitions",
            hint="give each process a unique reader name",
        )


def is_checkpoint_due(group: GroupState) -> bool:
    """Whether the group's period for automatic checkpoints is over; never with a period of 0."""
    period_ms = group.automatic_checkpoint_ms
    return period_ms > 0 and abs(group.store_ms - group.checkpoint_ms) >= period_ms


def _persisted(group: GroupState, reader: str, positions: Positions, finished: Collection[Held] = ()) -> GroupState:
    rows = []
    for row in group.assignments:
        key = Held(row.stream, row.partition, row.epoch)
        given = positions.get(key) if row.reader == reader else None
        if given is not None and (row.position is None or given > row.position):
            row = replace(row, position=given)
        if row.reader == reader and key in finished:
            row = replace(row, reader="", is_finished=True)
        rows.append(row)
    return replace(group, assignments=tuple(rows))


def _passed(group: GroupState, reader: str) -> GroupState:
    """Pass everything that waits for a reader, at its persisted positions."""
    names = waiting(group, reader)
    if not names:
        return group
    cuts = _cuts(group, reader)
    for name in names:
        group = reached(group, name, reader, cuts)
    return passed(group, names[-1], reader)


def _cuts(group: GroupState, reader: str) -> tuple[StreamCutRow, ...]:
    """Positions of a reader and of finished segments in the form of a checkpoint, by stream."""
    found: dict[str, list[AssignmentRow]] = {}
    for row in group.assignments:
        if row.position is not None and (row.reader == reader or row.is_finished):
            found.setdefault(row.stream, []).append(row)
    return tuple(
        StreamCutRow(
            stream,
            tuple(CutRow(row.partition, row.position) for row in own if row.position is not None),
            tuple(PartitionRow(row.partition, row.incarnation) for row in own),
        )
        for stream, own in sorted(found.items())
    )


def _expired(group: GroupState, but: str) -> GroupState:
    """The group without the readers that were silent for too long, or have no row of a member."""
    alive = {row.name for row in group.members if group.clock_ms - row.seen_ms <= group.expiry_ms}
    return _gone(group, [name for name in group.readers if name != but and name not in alive])


def _gone(group: GroupState, readers: Iterable[str]) -> GroupState:
    """The group without some readers; their persisted positions count for the checkpoints that waited for them."""
    for reader in readers:
        group = reader_removed(group, reader, _cuts(group, reader))
        group = replace(group, members=tuple(row for row in group.members if row.name != reader))
        group = _freed(group, lambda row, reader=reader: row.reader == reader)  # type: ignore[misc]
    return group


def _freed(group: GroupState, is_freed: Callable[[AssignmentRow], bool]) -> GroupState:
    rows = tuple(replace(row, reader="") if row.reader and is_freed(row) else row for row in group.assignments)
    return group if rows == group.assignments else replace(group, assignments=rows)


def _released(group: GroupState, reader: str) -> GroupState:
    """The group in which a reader has no more than its share; its last partitions go."""
    counts = _counts(group)
    surplus = counts.get(reader, 0) - _quotas(counts, group).get(reader, 0)
    if surplus <= 0:
        return group
    going = {(row.stream, row.partition) for row in list(held(group, reader).values())[-surplus:]}
    return _freed(group, lambda row: (row.stream, row.partition) in going)


def _assigned(group: GroupState) -> GroupState:
    """The group with each free partition given to the member that misses most."""
    counts = _counts(group)
    if not counts or all(row.reader in counts or row.is_finished for row in group.assignments):
        return group
    epoch = group.epoch + 1
    quotas = _quotas(counts, group)
    takers = (name for name in sorted(counts) for _ in range(quotas[name] - counts[name]))
    rows = tuple(
        row if row.reader in counts or row.is_finished else replace(row, reader=next(takers), epoch=epoch)
        for row in group.assignments
    )
    return replace(group, assignments=rows, epoch=epoch)


def _counts(group: GroupState) -> dict[str, int]:
    """Partitions of each member."""
    counts = Counter(row.reader for row in group.assignments)
    return {row.name: counts[row.name] for row in group.members}


def _quotas(counts: Mapping[str, int], group: GroupState) -> dict[str, int]:
    """Share of each member: the numbers differ by one at most, and those that have more keep more."""
    if not counts:
        return {}
    each, more = divmod(sum(not row.is_finished for row in group.assignments), len(counts))
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    return {name: each + (rank < more) for rank, name in enumerate(ranked)}


def _first_positions(group: GroupState, stream: str, now: tuple[PartitionRow, ...]) -> dict[int, Position]:
    """Where partitions without a row begin."""
    found = dict[int, Position]()
    for rows in (group.starts, group.published):
        for each in rows:
            if each.stream == stream:
                found |= {row.partition: row.position for row in rows_alive(each.cut, each.partitions, now)}
    return found
