"""Plan of a stream's deletions: deletable segments with the reason, and the condition that each segment waits for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint import ReplacedSegment
from formats.documents import AwaitedReaders, awaited_key, awaited_number, awaited_prefix
from formats.entries import Position
from formats.keys import record_key
from offloader.coverage import ENTRY_ID_MAX
from offloader.errors import NotFoundError
from offloader.manifest.boundary import decoded, delete_keys, list_manifest, listed, read_record
from offloader.manifest.protection import live_readers
from offloader.manifest.segment_table import SegmentRecord, SegmentSlice
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectStore


class Action(StrEnum):
    """Action on a segment."""

    RETIRE = "retire"
    RELEASE = "release"
    PURGE = "purge"


@dataclass(frozen=True, slots=True)
class Deletable:
    """Segments that are no longer needed, with the reason."""

    action: Action
    segments: SegmentSlice
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """Segments that one record retired.

    Attributes:
        replaced: segments whose entries are in others by now; they have no range any more.
    """

    record_id: int
    segments: SegmentSlice
    replaced: tuple[ReplacedSegment, ...]


@dataclass(frozen=True, slots=True)
class RetiredFacts:
    """Facts in the store about one retirement.

    Attributes:
        retired_ms: its latest possible time, by the later clock; ``None``: unknown, so the segment is kept.
        readers: holders of leases that are waited for.
    """

    retired_ms: int | None
    readers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeletion:
    """One line of a plan.

    Attributes:
        first, last: ``None``: the segment has no range any more.
        entries: 0: unknown.
        waits_for: why it is kept for now; empty: no reason.
        until_ms: when the wait ends; ``None``: unknown.
    """

    action: Action
    uuid: UUID
    object_bytes: int
    rule: str
    first: Position | None = None
    last: Position | None = None
    entries: int = 0
    waits_for: str = ""
    until_ms: int | None = None

    def as_json(self) -> dict[str, object]:
        """JSON form; positions as text."""
        return {
            "action": self.action.value,
            "segment": str(self.uuid),
            "first": None if self.first is None else str(self.first),
            "last": None if self.last is None else str(self.last),
            "entries": self.entries,
            "object_bytes": self.object_bytes,
            "rule": self.rule,
            "waits_for": self.waits_for or None,
            "until_ms": self.until_ms,
        }


@dataclass(frozen=True, slots=True)
class AwaitedApproval:
    """A cleanup of more than half of a stream, which needs an operator's approval.

    Attributes:
        segments, bytes: segments that would be retired or released, and the size of their objects.
        bytes_stored: of all objects of the stream.
        since_ms: when retention moved the start position so far; ``None``: unknown, for example after a manual
            truncation.
    """

    stream: str
    segments: int
    bytes: int
    bytes_stored: int
    since_ms: int | None


class Beside(NamedTuple):
    """The other segments of a scalable topic, which is one stream for the limit of large deletions.

    Attributes:
        doomed_bytes: of objects that rounds on them would retire or release.
        stored_bytes: of all their objects.
    """

    doomed_bytes: int
    stored_bytes: int


NOTHING_BESIDE = Beside(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """Actions of one cycle on one stream.

    Attributes:
        beside: of a segment of a scalable topic.
        waiting: retired and kept for now, why, and until when.
    """

    state: ManifestState
    doomed: Sequence[Deletable]
    due: Sequence[Retired]
    waiting: Sequence[tuple[Retired, str, int | None]]
    beside: Beside = NOTHING_BESIDE

    def doomed_bytes(self) -> int:
        """Bytes of the objects that would be retired or released."""
        return sum(each.segments.sums().object_bytes for each in self.doomed)

    def doomed_segments(self) -> int:
        """Segments that would be retired or released."""
        return sum(len(each.segments) for each in self.doomed)

    @property
    def large(self) -> bool:
        """Whether these are more than half of the stream's bytes: needs the operator's approval."""
        return self._is_large(self.doomed_bytes())

    @property
    def identity(self) -> str:
        """Of the segments that would be retired or released: an approval holds for these and no others."""
        digest = hashlib.sha256(f"{self.state.incarnation}".encode())
        for each in self.doomed:
            digest.update(each.action.value.encode())
            for segment in each.segments:
                digest.update(segment.uuid.bytes)
        return digest.hexdigest()[:32]

    def awaited_approval(self, moves: Sequence[tuple[int, Position]]) -> AwaitedApproval | None:
        """The segments that a round doesn't retire without approval, and since when; ``None``: at most half.

        Args:
            moves: time and new start position of past retention decisions, in any order.
        """
        if not self.large:
            return None
        before = sorted((at_ms, head) for at_ms, head in moves if self.state.head is None or head <= self.state.head)
        since_ms = next((at_ms for at_ms, head in before if self._is_over_half(head)), None)
        return AwaitedApproval(
            self.state.stream, self.doomed_segments(), self.doomed_bytes(), self.state.sums.object_bytes, since_ms
        )

    def _is_over_half(self, head: Position) -> bool:
        return self._is_large(self.state.offloaded_before(head).sums().object_bytes)

    def _is_large(self, doomed_bytes: int) -> bool:
        stored_bytes = self.state.sums.object_bytes + self.beside.stored_bytes
        return 2 * (doomed_bytes + self.beside.doomed_bytes) > stored_bytes

    def size(self) -> tuple[int, int]:
        """Number of segments that a round retires, releases or purges now, and the bytes of their objects."""
        sums = [each.segments.sums() for each in self.doomed] + [each.segments.sums() for each in self.due]
        replaced = [each.object_bytes for group in self.due for each in group.replaced]
        return (
            len(replaced) + sum(each.segments for each in sums),
            sum(replaced) + sum(each.object_bytes for each in sums),
        )

    def lines(self) -> Iterator[PlannedDeletion]:
        """Lines by segment; computed on access."""
        for each in self.doomed:
            yield from (_line(each.action, segment, each.rule) for segment in each.segments)
        for group, why, until_ms in [*((group, "", None) for group in self.due), *self.waiting]:
            yield from (_line(Action.PURGE, each, rule_of(self.state, each), why, until_ms) for each in group.segments)
            yield from (
                PlannedDeletion(
                    action=Action.PURGE,
                    uuid=each.uuid,
                    object_bytes=each.object_bytes,
                    rule=replaced_rule(each),
                    waits_for=why,
                    until_ms=until_ms,
                )
                for each in group.replaced
            )


def plan_cleanup(state: ManifestState, facts: Mapping[int, RetiredFacts], *, now_ms: int, grace_ms: int) -> CleanupPlan:
    """Plan the deletions of one stream.

    Args:
        facts: retire record -> facts in the store; a record without facts waits.
        now_ms: by the earlier clock, ms since 1970 UTC.
        grace_ms: time that a retired segment is kept.
    """
    doomed = [each for each in _doomed(state) if len(each.segments)]
    due: list[Retired] = []
    waiting: list[tuple[Retired, str, int | None]] = []
    for group in retired_groups(state):
        known = facts.get(group.record_id, RetiredFacts(None))
        until_ms = None if known.retired_ms is None else known.retired_ms + grace_ms
        if until_ms is None or now_ms < until_ms:
            waiting.append((group, "the grace period", until_ms))
        elif known.readers:
            waiting.append((group, f"readers: {', '.join(known.readers)}", None))
        else:
            due.append(group)
    return CleanupPlan(state=state, doomed=doomed, due=due, waiting=waiting)


def retired_groups(state: ManifestState) -> list[Retired]:
    """Retired segments by the record that retired them, the oldest first."""
    segments = state.segments.retired()
    rows = _rows_by_record(segments)
    replaced: dict[int, list[ReplacedSegment]] = {}
    for each in state.replaced:
        replaced.setdefault(each.retire_record, []).append(each)
    return [
        Retired(
            record_id=number,
            segments=segments.where(rows.get(number, np.empty(0, np.int32))),
            replaced=tuple(replaced.get(number, ())),
        )
        for number in sorted({*rows, *replaced})
    ]


def _rows_by_record(segments: SegmentSlice) -> dict[int, NDArray[np.int32]]:
    """Row numbers of the segments that each record retired. Not by NumPy: its grouping takes twice the memory."""
    if not len(segments):
        return {}
    records = segments.retire_records()
    order = np.argsort(records, kind="stable").astype(np.int32)
    records = records[order]
    starts = np.flatnonzero(records[1:] != records[:-1]) + 1
    return dict(zip([int(records[0]), *records[starts].tolist()], np.split(order, starts), strict=True))


def rule_of(state: ManifestState, segment: SegmentRecord) -> str:
    """Why a segment may be deleted."""
    if state.head is not None and segment.end is not None and segment.end < state.head:
        return _before(state.head)
    return _LEDGERS_GONE


def replaced_rule(replaced: ReplacedSegment) -> str:
    """Why a replaced segment may be deleted."""
    return f"its entries are in other segments since record {replaced.retire_record}"


_LEDGERS_GONE = "all its ledgers are gone from the stream"


def _before(head: Position) -> str:
    return f"it lies before the stream's head {head}"


def doomed_bytes_of(state: ManifestState) -> int:
    """Bytes of the objects that a round would retire or release."""
    return sum(each.segments.sums().object_bytes for each in _doomed(state))


def _doomed(state: ManifestState) -> Iterator[Deletable]:
    if state.head is not None:
        yield from _by_ownership(state.offloaded_before(state.head), _before(state.head))
    if gone := _in_gone_ledgers(state):
        around = state.offloaded(min(gone.values()), max(gone.values()))
        keep = np.array([segment.uuid in gone for segment in around], dtype=bool)
        yield from _by_ownership(around.where(keep), _LEDGERS_GONE)


def _by_ownership(segments: SegmentSlice, rule: str) -> Iterator[Deletable]:
    owned = segments.owned()
    yield Deletable(Action.RETIRE, segments.where(owned), rule)
    yield Deletable(Action.RELEASE, segments.where(~owned), rule)


def _in_gone_ledgers(state: ManifestState) -> dict[UUID, Position]:
    """Segments at or after the start position with only deleted ledgers, and where they begin."""
    deleted = state.deleted_ledgers
    head = state.head or Position(0, 0)
    return {
        segment.uuid: segment.begin
        for ledger_id in deleted
        if ledger_id >= head.ledger_id
        for segment in state.offloaded(Position(ledger_id, 0), Position(ledger_id, ENTRY_ID_MAX))
        if (segment.end is None or segment.end >= head) and all(span.ledger_id in deleted for span in segment.spans)
    }


def _line(
    action: Action, segment: SegmentRecord, rule: str, waits_for: str = "", until_ms: int | None = None
) -> PlannedDeletion:
    return PlannedDeletion(
        action=action,
        uuid=segment.uuid,
        first=segment.begin,
        last=segment.end,
        entries=segment.content.entries,
        object_bytes=segment.object_bytes,
        rule=rule,
        waits_for=waits_for,
        until_ms=until_ms,
    )


def retired_facts(
    store: ObjectStore, state: ManifestState, groups: Sequence[Retired], *, now_ms: int, grace_ms: int, notes: bool
) -> Mapping[int, RetiredFacts]:
    """Facts about retirements; none for those younger than the first one in its grace period.

    Args:
        groups: the oldest first, from a view that is durable.
        now_ms: by the earlier clock.
        notes: record which readers are waited for from now on; False: write nothing.
    """
    found: dict[int, RetiredFacts] = {}
    live: Mapping[UUID, str] | None = None
    for group in groups:
        retired_ms = _retired_ms(store, state, group.record_id)
        if retired_ms is None or now_ms < retired_ms + grace_ms:
            found[group.record_id] = RetiredFacts(retired_ms)
            break
        # One listing suffices: all these records were durable before it.
        live = live_readers(store, state.stream, now_ms) if live is None else live
        found[group.record_id] = RetiredFacts(retired_ms, _awaited(store, state, group.record_id, live, notes=notes))
    return found


def note_readers(store: ObjectStore, state: ManifestState, retire_records: Sequence[int], *, now_ms: int) -> None:
    """Record the stream's current readers for retirements that have just become durable.

    Without this list, all readers at the end of the grace period are waited for, including later ones.
    """
    if retire_records and (live := live_readers(store, state.stream, now_ms)):
        for number in retire_records:
            _write(store, state, number, live)


def forget_readers(store: ObjectStore, state: ManifestState, groups: Sequence[Retired]) -> None:
    """Delete the reader lists of finished retirements."""
    kept = {group.record_id for group in groups}
    names = [(info.key, awaited_number(info.key, state.stream)) for info in listed(store, awaited_prefix(state.stream))]
    # A record newer than this view may have retired a segment.
    delete_keys(
        store, [key for key, number in names if number is not None and number <= state.record_id and number not in kept]
    )


def _retired_ms(store: ObjectStore, state: ManifestState, record_id: int) -> int | None:
    """Latest possible time of a record: the later of its writer's clock and the store's."""
    key = record_key(state.stream, state.incarnation, record_id)
    with suppress(NotFoundError):
        record, info = read_record(store, state.stream, key, record_id)
        return max(record.time_ms, info.modified_ms)
    # Folded into a checkpoint that was written later and is kept.
    checkpoints = list_manifest(store, state.stream, state.incarnation).checkpoints
    later = [number for number in checkpoints if number >= record_id]
    return checkpoints[min(later)].modified_ms if later else None


def _awaited(
    store: ObjectStore, state: ManifestState, record_id: int, live: Mapping[UUID, str], *, notes: bool
) -> Sequence[str]:
    """Readers to wait for: those listed after the record whose leases are still live."""
    if not live:
        return ()
    key = awaited_key(state.stream, record_id)
    with suppress(NotFoundError):
        noted = decoded(store.get(key)[0], key, AwaitedReaders.decode, f"the list of readers {key}")
        # Those of a deleted stream of that name aren't our readers.
        if (noted.incarnation, noted.retire_record) == (state.incarnation, record_id):
            return sorted(live[uuid] for uuid in noted.leases if uuid in live)
    if notes:
        _write(store, state, record_id, live)
    return sorted(live.values())


def _write(store: ObjectStore, state: ManifestState, record_id: int, live: Mapping[UUID, str]) -> None:
    awaited = AwaitedReaders(state.incarnation, record_id, tuple(sorted(live)))
    # Every writer of this list took it after the record was durable: each such list is right.
    store.put(awaited_key(state.stream, record_id), awaited.encode())
