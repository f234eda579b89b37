"""Recorded layouts of scalable topics: which segments there were, and which one continues which.

**The problem.** A broker deletes a sealed segment after its retention, and removes the segment from the layout and from
its children's parents. A reader of the object store needs both: parents are read before their children. So the union of
all layouts ever seen is recorded, before the first entry of a new segment is read.

**Rules of the record**, besides L1 to L4 of ``formats.topic_layout``:

* L6: a recorded segment remains. Its range, stream, time of creation and recorded parents never change.
* L7: a segment of an answer that is recorded already has no parents beyond the recorded ones.
* L8: a sealed segment isn't active again, and its end, once recorded, doesn't change.
* L9: the epoch doesn't decrease. An older answer changes nothing.
* L10: a recorded segment that an answer lacks was sealed, and nothing more of it will come (``NOTHING_MORE``). A new
  segment continues all segments of some of its hashes that were sealed before it was created, whether the broker still
  names them or not: the ranges of segments that are active at the same time don't overlap.
* L11: a recorded schema remains. A broker of 5.0.0-M1 deletes the schemas of a topic together with the first segment
  that it deletes, and numbers later ones from 0 on. So a version may have several definitions, in the order in which
  they were seen, and which of them a message was written with is not known.

An answer that contradicts L6 to L8 is about another topic of the same name (deleted and created again, or a restored
cluster): the topic stops. One that is only older (L9) is asked for again.

**Durability.** One object, replaced on the condition that it is unchanged. A process that dies before the replacement
has read nothing of the new segments; after it, the next process finds them recorded. Of two processes that record at
the same time, one is refused, reads the other's record, and adds to it: the union doesn't depend on the order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from formats.entries import Position
from formats.topic_layout import SCHEMAS_CHARS_MAX, RangeSegment, TopicLayout, TopicSchema, layout_key
from offloader.errors import LimitReachedError, SourceMismatchError, StoreUnavailableError
from offloader.manifest.boundary import decoded
from offloader.manifest.catalog import mode_of_new, read_shared
from offloader.store.base import ObjectStore, put_if

#: End of a segment that the broker deleted, or that has no entries.
NOTHING_MORE = Position(-1, -1)
#: Attempts to record a layout that other processes change at the same time.
ATTEMPTS_MAX = 8


def merged(recorded: TopicLayout, seen: TopicLayout) -> TopicLayout:
    """The record after an answer of the broker.

    Raises:
        SourceMismatchError: they are about different topics of one name (L6 to L8).
        StoreUnavailableError: the answer is older than the record (L9): ask again.
    """
    is_older = seen.epoch < recorded.epoch
    known, now = recorded.by_id, seen.by_id
    for row in seen.segments:
        if why := _contradiction(known.get(row.id), row, is_older=is_older):
            raise SourceMismatchError(
                f"{seen.topic}: segment {row.id} isn't the one that is recorded: {why}; the topic was created again, "
                "or its cluster was restored from an older copy. Nothing was deleted",
                hint="offload it into another store or prefix, which keeps the existing entries readable; or delete "
                f"them with `offloader stream delete {seen.topic}`",
            )
    if is_older:
        raise StoreUnavailableError(
            f"{seen.topic}: the broker's layout has epoch {seen.epoch}, and epoch {recorded.epoch} is recorded",
            hint="the broker is asked again; nothing is decided until then",
        )
    kept = [_kept(row, now.get(row.id), seen.epoch) for row in recorded.segments]
    unseen = {row.id for row in recorded.segments if row.id not in now and not row.is_sealed}
    new = [row for row in seen.segments if row.id not in known]
    rows = _linked({row.id: row for row in (*kept, *new)}, {row.id for row in new}, unseen)
    return replace(recorded, epoch=seen.epoch, segments=rows)


def _contradiction(old: RangeSegment | None, row: RangeSegment, *, is_older: bool) -> str:
    """How a segment of an answer contradicts its record, ``None`` if there is no record; empty if it doesn't."""
    if old is None:
        return "an older layout has it, and the record doesn't" if is_older else ""
    for name in ("stream", "hash_start", "hash_stop", "created_epoch", "created_ms"):
        ours, theirs = getattr(old, name), getattr(row, name)
        if ours != theirs:
            return f"{name} is {theirs}, and was {ours}"
    if more := set(row.parents) - set(old.parents):
        return f"it has a further parent, {min(more)}"
    return "it is active, and was sealed" if old.is_sealed and not row.is_sealed and not is_older else ""


def _kept(old: RangeSegment, row: RangeSegment | None, epoch: int) -> RangeSegment:
    """A recorded segment after an answer with ``row``; ``None``: the answer lacks it."""
    if row is None:
        sealed_epoch = epoch if old.sealed_epoch is None else old.sealed_epoch
        return replace(old, sealed_epoch=sealed_epoch, end=NOTHING_MORE if old.end is None else old.end)
    if old.is_sealed or not row.is_sealed:
        return old
    return replace(old, sealed_epoch=row.sealed_epoch, sealed_ms=row.sealed_ms)


def _linked(
    rows: Mapping[int, RangeSegment], new: Collection[int], unseen: Collection[int]
) -> tuple[RangeSegment, ...]:
    """The segments by id, with the predecessors of ``new`` ones that the broker doesn't name any more (L10).

    Args:
        unseen: those that were sealed and deleted since the record: before all new ones.
    """
    ancestors: dict[int, set[int]] = {}
    found: dict[int, RangeSegment] = {}
    for row in _by_creation(rows):
        parents = set(row.parents)
        before = parents.union(*(ancestors[each] for each in parents))
        if row.id in new:
            for each in reversed(found.values()):
                if each.id not in before and (each.id in unseen or _precedes(each, row)) and _share_hashes(each, row):
                    parents.add(each.id)
                    before |= {each.id} | ancestors[each.id]
        ancestors[row.id], found[row.id] = before, replace(row, parents=tuple(sorted(parents)))
    return tuple(sorted(found.values(), key=lambda row: row.id))


def _by_creation(rows: Mapping[int, RangeSegment]) -> Iterator[RangeSegment]:
    """The segments by epoch, those of migrated partitions first; parents before children also if epochs are wrong."""
    sorter = TopologicalSorter({row.id: row.parents for row in rows.values()})
    sorter.prepare()
    ready: list[tuple[int, bool, int]] = []
    while sorter.is_active():
        for row in map(rows.__getitem__, sorter.get_ready()):
            heappush(ready, (row.created_epoch, not row.is_legacy, row.id))
        *_, number = heappop(ready)
        yield rows[number]
        sorter.done(number)


def _precedes(one: RangeSegment, other: RangeSegment) -> bool:
    """Whether ``one`` was sealed before ``other`` was created, or at that moment."""
    return not other.is_legacy and one.sealed_epoch is not None and one.sealed_epoch <= other.created_epoch


def _share_hashes(one: RangeSegment, other: RangeSegment) -> bool:
    return one.hash_start < other.hash_stop and other.hash_start < one.hash_stop


def pruned(recorded: TopicLayout, seen: TopicLayout) -> frozenset[int]:
    """The recorded segments that the broker has deleted; of an answer that is older than the record, none: it may lack
    new ones."""
    if seen.epoch < recorded.epoch:
        return frozenset()
    return frozenset(row.id for row in recorded.segments if row.is_sealed and row.id not in seen.by_id)


def in_order(layout: TopicLayout) -> Iterator[tuple[RangeSegment, ...]]:
    """All segments, parents before children: groups that can be read in parallel, each ascending by hash and id."""
    by_id = layout.by_id
    sorter = TopologicalSorter({row.id: row.parents for row in layout.segments})
    sorter.prepare()
    while ready := sorter.get_ready():
        yield tuple(sorted((by_id[each] for each in ready), key=lambda row: (row.hash_start, row.id)))
        sorter.done(*ready)


def without_overlap(group: Iterable[RangeSegment]) -> list[list[RangeSegment]]:
    """The lines of a picture: segments side by side. The partitions of a migrated topic have the same hashes."""
    lines: list[list[RangeSegment]] = []
    for row in group:
        fitting = (line for line in lines if line[-1].hash_stop <= row.hash_start)
        if (line := next(fitting, None)) is None:
            lines.append([row])
        else:
            line.append(row)
    return lines


def read_layout(store: ObjectStore, place: str) -> TopicLayout | None:
    """The recorded layout of the topic whose documents are under ``place``; ``None``: there is none.

    Raises:
        CorruptError, UnsupportedError: it can't be read.
    """
    data, _ = read_shared(store, layout_key(place))
    return _decoded(store, place, data) if data else None


def record_layout(store: ObjectStore, place: str, seen: TopicLayout) -> TopicLayout:
    """Adds an answer of the broker to the record; returns the record, which is durable. Writes nothing if it has all.

    Raises:
        SourceMismatchError, StoreUnavailableError: as ``merged``.
        StoreUnavailableError: other processes changed it at the same time, ``ATTEMPTS_MAX`` times: try again.
        CorruptError, UnsupportedError: the record can't be read.
    """
    first = TopicLayout(topic=seen.topic, epoch=0, segments=())
    return _changed(store, place, lambda recorded: merged(recorded or first, seen))


def record_end(store: ObjectStore, place: str, segment_id: int, end: Position) -> TopicLayout:
    """Notes the last entry of a sealed segment. Raises as ``record_layout``; ``SourceMismatchError``: another end is
    recorded (L8)."""

    def ended(recorded: TopicLayout | None) -> TopicLayout:
        row = None if recorded is None else recorded.by_id.get(segment_id)
        if recorded is None or row is None or not row.is_sealed:
            raise StoreUnavailableError(f"{place}: segment {segment_id} isn't recorded as sealed yet")
        if row.end not in (None, end):
            raise SourceMismatchError(f"{recorded.topic}: segment {segment_id} ends at {end}, and ended at {row.end}")
        rows = (replace(row, end=end) if each is row else each for each in recorded.segments)
        return replace(recorded, segments=tuple(rows))

    return _changed(store, place, ended)


def record_schemas(store: ObjectStore, place: str, told: Sequence[TopicSchema]) -> TopicLayout:
    """Adds the schemas that aren't recorded; raises as ``record_layout``.

    Raises:
        LimitReachedError: all together are too large; the smallest versions are added, as many as fit.
    """
    unfit: list[int] = []

    def added(recorded: TopicLayout | None) -> TopicLayout:
        if recorded is None:
            raise StoreUnavailableError(f"{place}: its layout isn't recorded yet")
        unfit.clear()
        kept = list(recorded.schemas)
        room = SCHEMAS_CHARS_MAX - sum(each.chars for each in kept)
        for each in sorted((each for each in told if each not in kept), key=lambda each: each.version):
            room -= each.chars
            if room < 0:
                unfit.append(each.version)
            else:
                kept.append(each)
        return replace(recorded, schemas=tuple(sorted(kept, key=lambda each: each.version)))

    recorded = _changed(store, place, added)
    if unfit:
        raise LimitReachedError(
            f"{recorded.topic}: version {unfit[0]} of its schema isn't recorded: all of them have more than "
            f"{SCHEMAS_CHARS_MAX:,} characters",
            hint="keep a copy of `pulsar-admin schemas get`, and decode messages with --schema VERSION=FILE",
        )
    return recorded


def _changed(store: ObjectStore, place: str, change: Callable[[TopicLayout | None], TopicLayout]) -> TopicLayout:
    key = layout_key(place)
    for _ in range(ATTEMPTS_MAX):
        data, info = read_shared(store, key)
        recorded = _decoded(store, place, data) if data else None
        wanted = change(recorded)
        if wanted == recorded or put_if(store, key, wanted.encode(), mode_of_new(store, key, info)):
            return wanted
    raise StoreUnavailableError(f"{key} in {store.url} was changed by others {ATTEMPTS_MAX} times: try again")


def _decoded(store: ObjectStore, place: str, data: bytes) -> TopicLayout:
    key = layout_key(place)
    return decoded(
        data, key, TopicLayout.decode, f"{key} in {store.url}", hint="restore an earlier version of this object"
    )
