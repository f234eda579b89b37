"""Retention's own state in the store: recorded cuts, positions, decisions. Computes the documents, and writes none."""

from __future__ import annotations

import enum
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import accumulate, takewhile
from typing import Any

from formats.documents import DecisionRow, Decisions, RecordRow, Records, SizeRow
from formats.entries import Position
from offloader.retention.broker import BrokerRuling
from offloader.retention.cuts import Record, StreamCut, cut_of_rows, rows_of_cut
from offloader.retention.entries import Known, Size, StreamEntries
from offloader.retention.lineage import Lineage
from offloader.retention.policy import Limits, Unit
from offloader.retention.scope import Change, Scope, Stored
from offloader.retention.subscribers import StreamRetention

#: Upper bound of a set. The spacing alone needs 16 ln(oldest / newest) records by age and as many by size, so about
#: 1,000; only limits that lie very close to each other need more.
RECORDS_MAX = 4096
#: Largest gap as a fraction of the amount after it.
_GAP_OF_KEPT = 16
#: Largest gap as a fraction of the range between min and max.
_GAP_OF_ROOM = 4


@dataclass(frozen=True, slots=True)
class RetentionSet:
    """Recorded cuts of one stream.

    Attributes:
        records: oldest first, times strictly increasing, each cut at or after the one before it.
    """

    records: tuple[Record, ...] = ()

    @property
    def newest(self) -> Record | None:
        return self.records[-1] if self.records else None

    def is_due(self, now_ms: int, period_ms: int) -> bool:
        """Whether the tail should be recorded: more than ``period_ms`` after the last record."""
        return not self.records or now_ms - self.records[-1].time_ms > period_ms

    def add(self, record: Record) -> RetentionSet:
        """The set with ``record``, unless that isn't newer than the newest."""
        if self.records and record.time_ms <= self.records[-1].time_ms:
            return self
        return replace(self, records=(*self.records, record))

    def up_to_time(self, time_ms: int) -> tuple[Record, ...]:
        """Records of ``time_ms`` or earlier."""
        return self.records[: bisect_right(self.records, time_ms, key=lambda record: record.time_ms)]

    def up_to(self, cut: StreamCut, lineage: Lineage) -> tuple[Record, ...]:
        """Records at or before ``cut``: those that leave the set when the stream is truncated there."""
        # As each is at or after the previous one, those at or before a cut are the oldest
        return self.records[: bisect_left(self.records, True, key=lambda record: not lineage.reaches(cut, record.cut))]

    def at_or_before(self, cut: StreamCut, lineage: Lineage) -> Record | None:
        """The newest record at or before ``cut``. Data after ``cut`` is at least as young."""
        found = self.up_to(cut, lineage)
        return found[-1] if found else None

    def truncated(self, head: StreamCut, lineage: Lineage) -> RetentionSet:
        """The remaining set once ``head`` is the stream's start position."""
        return replace(self, records=self.records[len(self.up_to(head, lineage)) :])

    def thinned(self, now_ms: int, limits: Sequence[Limits], used_ms: Collection[int] = ()) -> RetentionSet:
        """The set without older records that later decisions don't need.

        The distance of two neighbours is kept to at most a quarter of max - min of each of ``limits``, and at most a
        sixteenth of the age and of the size kept after the younger one. Records are never moved, so larger existing
        distances remain. Above ``RECORDS_MAX`` the spacing is doubled until they fit.

        Args:
            limits: those that later decisions may use: a policy's, and its fallback's.
            used_ms: times of the records that the current decision uses, which are kept.
        """
        records, widening = self._spaced(now_ms, limits, used_ms, 1), 2
        while len(records) > max(RECORDS_MAX, 2 + len(used_ms)):
            records, widening = self._spaced(now_ms, limits, used_ms, widening), 2 * widening
        return self if len(records) == len(self.records) else replace(self, records=tuple(records))

    def _spaced(
        self, now_ms: int, limits: Sequence[Limits], used_ms: Collection[int], widening: int
    ) -> Sequence[Record]:
        if len(self.records) <= 2:
            return self.records
        stay = [self.records[0]]
        for record, following in zip(self.records[1:-1], self.records[2:], strict=True):
            if record.time_ms in used_ms or not self._may_neighbour(stay[-1], following, now_ms, limits, widening):
                stay.append(record)
        return [*stay, self.records[-1]]

    def _may_neighbour(
        self, older: Record, younger: Record, now_ms: int, limits: Sequence[Limits], widening: int
    ) -> bool:
        gaps: dict[Unit, int] = {Unit.TIME: younger.time_ms - older.time_ms}
        kept: dict[Unit, int] = {Unit.TIME: now_ms - younger.time_ms}
        newest = self.records[-1]
        if older.size_bytes is not None and younger.size_bytes is not None and newest.size_bytes is not None:
            gaps[Unit.SIZE] = younger.size_bytes - older.size_bytes
            kept[Unit.SIZE] = newest.size_bytes - younger.size_bytes
        if any(gap * _GAP_OF_KEPT > max(kept[unit], 1) * widening for unit, gap in gaps.items()):
            return False
        rooms = [(one.unit, one.max - one.min) for one in limits if one.max is not None]
        # A limit by size doesn't apply to records of unknown size
        return all(gaps.get(unit, 0) * _GAP_OF_ROOM <= max(room, 1) * widening for unit, room in rooms)


class Rule(enum.Enum):
    """Deciding rule; the value is its wording. Rules R2 to R23 of docs/explanation/retention.md."""

    NOTHING_RECORDED = "no cut of this stream was recorded yet"
    WITHIN_KEEP = "no deletable part of the stream exceeds the limits"
    BEYOND_KEEP = "entries older than keep are deleted"
    BEYOND_KEEP_SIZE = "entries beyond keep_size are deleted"
    KEPT_AT_LEAST = "entries beyond keep or keep_size are deleted, as far as keep_at_least and keep_at_least_size allow"
    BELOW_MIN = "the whole stream is below min"
    NO_CUT_KEEPS_MIN = "every cut would leave less than keep_at_least or min"
    MIN_WITHOUT_BOUND = "no subscriber holds data back: the cut that keeps least, but min"
    MAX_WITHOUT_BOUND = "no subscriber holds data back, and the stream is above max: the cut that keeps most within max"
    BOTH_KEEPING_MIN = "entries beyond the limits by size and by time are deleted, as far as both min allow"
    ALL_READ = "entries that all subscribers have read are deleted"
    BOUND = "entries that all subscribers have read are deleted: that keeps between min and max"
    BOUND_LOWERED_TO_MIN = "entries that all subscribers have read are deleted, except min"
    BOUND_RAISED_TO_MAX = "unread data is above max: the excess is deleted"
    BOUND_RAISED_KEEPING_MIN = "unread data is above max: the excess is deleted, as far as min allows"
    BOUND_ABOVE_MAX = "unread data is above max, but no cut keeps less"
    TIME_BOUND = "entries that all subscribers have read and that are older than min are deleted"
    TIME_RAISED_TO_MAX = "unread data is older than max: it is deleted, up to the oldest cut within max"
    TIME_RAISED_TO_OLD = "unread data is older than max: it is deleted, up to the newest cut that is older"
    NOBODY_PUBLISHED = "only entries that all subscribers have read are deleted, and none has published"
    ALL_SILENT = "all subscribers are silent, and unread entries are kept for them"
    NO_POLICY = "no policy: no automatic deletion"
    FOLLOWS_BROKER = "the broker trimmed all entries before its first ledger, and its trim is followed"


#: Rules without truncation.
_NOTHING = {
    Rule.NOTHING_RECORDED,
    Rule.WITHIN_KEEP,
    Rule.BELOW_MIN,
    Rule.NO_CUT_KEEPS_MIN,
    Rule.NOBODY_PUBLISHED,
    Rule.ALL_SILENT,
    Rule.NO_POLICY,
}


class BoundKind(enum.Enum):
    """Origin of the bound, up to which all have read."""

    SUBSCRIBERS = "the active subscribers' cuts"
    LAST_CUTS = "all subscribers timed out: their last cuts"
    NOBODY_PUBLISHED = "none: no subscriber has published"
    SILENT = "none: all subscribers timed out"
    GIVEN_UP = "none: all subscribers have been silent for longer than the fallback waits"


class Role(enum.Enum):
    """Role of a candidate."""

    MIN = "keeps least, but min"
    MAX = "keeps most within min and max"
    OLD = "newest that is older than max"
    KEEP = "latest that keeps no less than keep or keep_size"
    BOUND = "read by all that count"
    CHOSEN = "chosen"


class OverrideReason(enum.Enum):
    """Why unread data of a subscriber is deleted."""

    ABOVE_MAX = "max doesn't leave room for it"
    TIMED_OUT = "it has been silent for too long"
    NEVER_PUBLISHED = "it never published, so it holds nothing back"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cut considered by a decision.

    Attributes:
        cut: where, not before the head.
        keeps_bytes: bytes between it and the newest recorded cut, ``None`` if unknown.
        time_ms: when it was recorded; of a segment boundary the newest publish time before it. ``None``: it is
            neither, or that time is unknown.
        is_boundary: whether it is the end of a segment and not a recorded cut.
    """

    role: Role
    cut: StreamCut
    keeps_bytes: int | None
    time_ms: int | None = None
    is_boundary: bool = False


@dataclass(frozen=True, slots=True)
class Lag:
    """A subscriber's distance from the tail.

    Attributes:
        cut: where its unread data begins, not before the head.
        has_published: whether the subscriber itself acknowledged it.
        is_active: whether it wasn't silent for too long.
        is_counted: whether it holds data back.
        unread_bytes: bytes from ``cut`` to the tail, ``None`` if unknown.
        unread_entries: entries likewise.
    """

    name: str
    cut: StreamCut
    has_published: bool
    is_active: bool
    is_counted: bool
    unread_bytes: int | None
    unread_entries: int | None


@dataclass(frozen=True, slots=True)
class Overridden:
    """A subscriber that loses unread data: bytes and entries before the chosen cut, ``None`` if unknown."""

    name: str
    reason: OverrideReason
    lost_bytes: int | None
    lost_entries: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A cycle's decision about a stream, with everything needed to explain it.

    Attributes:
        cut: the new head; ``None``: no truncation.
        limits: the applied limits, ``None``: consumption alone.
        second: the limits by the other unit that were applied too.
        ruled: of two limits the one that moved the head furthest; ``None``: there is one, or neither did.
        is_fallback: whether they are those of the fallback.
        is_held: whether less is truncated than the rule allows, because the rest isn't offloaded yet.
        head: the head before.
        newest: the newest recorded cut, from which kept bytes are counted; ``None``: none is recorded.
        bound: what all counted subscribers have read, not before the head; ``None``: no subscriber holds data back.
        candidates: the considered cuts, and what each keeps.
        removed_bytes: bytes between the head and ``cut``, ``None`` if unknown.
        removed_entries: entries likewise.
        cut_time_ms: the time of the newest record, or else boundary, at or before ``cut``: the stream's age is counted
            from it, once it is the head. ``None``: unknown, or no truncation.
        broker: effect of the brokers' lists of ledgers; ``None``: no broker reads the cold tier.
    """

    at_ms: int
    cut: StreamCut | None
    rule: Rule
    limits: Limits | None
    is_fallback: bool
    is_held: bool
    head: StreamCut
    newest: StreamCut | None
    bound: StreamCut | None
    bound_kind: BoundKind
    candidates: tuple[Candidate, ...]
    removed_bytes: int | None
    removed_entries: int | None
    cut_time_ms: int | None
    lags: tuple[Lag, ...]
    overridden: tuple[Overridden, ...]
    broker: BrokerRuling | None = None
    second: Limits | None = None
    ruled: Unit | None = None

    @property
    def used_ms(self) -> frozenset[int]:
        """Times of the recorded cuts among the candidates."""
        return frozenset(one.time_ms for one in self.candidates if one.time_ms is not None)

    @property
    def why(self) -> str:
        """The reason for the decision, in words."""
        if self.broker is not None and self.broker.rules:
            return f"{self.rule.value}; {self.broker.listed}"
        if self.is_held:
            rest = "up to the offloaded end" if self.cut else "but nothing is offloaded yet"
            return f"{self.rule.value}; {rest}"
        if self.cut is not None or self.rule in _NOTHING:
            return self.rule.value
        holding = ", ".join(lag.name for lag in self.lags if lag.is_counted and lag.cut == self.bound == self.head)
        return f"{self.rule.value}; the head is already there{holding and f', and {holding} holds back the rest'}"

    def as_json(self) -> dict[str, Any]:
        """JSON form, stored and for ``--json``: enumerations by lower-case names, cuts by their segments."""
        return {**_plain(self), "why": self.why}


def _plain(value: Any) -> Any:
    if isinstance(value, StreamCut):
        return value.as_json()
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(one) for one in value] if isinstance(value, Iterable) and not isinstance(value, str) else value


#: Most positions in all recorded cuts of one stream: the document is read and written in each cycle.
POSITIONS_MAX = 100_000
#: Most decisions kept of one stream.
DECISIONS_MAX = 50
#: Most bytes of those before the newest: each has the cuts of all subscribers, and they are read in each cycle.
DECISIONS_BYTES_MAX = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class RecordedState:
    """Recorded retention state of a stream, as a value.

    Attributes:
        records: the retention set.
        head_ms: the ``cut_time_ms`` of the decision that made the head; ``None``: never truncated.
        known: partition -> where its sizes are counted from; not all have it.
        counted_bytes: the size of the newest record as it was recorded, also of partitions that are gone.
    """

    records: RetentionSet = field(default_factory=RetentionSet)
    head_ms: int | None = None
    known: Mapping[int, Known] = field(default_factory=dict)
    counted_bytes: int = 0

    def with_tail(self, own: StreamEntries, now_ms: int) -> RecordedState:
        """The state with the current tail in the retention set, unless it has a later one, or there are no entries.

        Args:
            own: the stream, counted from the current or an earlier ``known``: another cycle may have changed it since.
        """
        tail, newest = own.tail(), self.records.newest
        if not tail.offsets or (newest is not None and not own.reaches(tail, newest.cut)):
            return self
        total = own.total().payload_bytes
        total += sum(_uncounted(own, n, at).payload_bytes for n, at in self.known.items() if n in own.partitions)
        known = {**self.known, **_moved(own, self.known, own.head())}
        missing = self.counted_bytes - total
        earlier = self.records
        if missing > 0:
            # Entries left the stream uncounted, for example those of a deleted partition: sizes don't decrease. What
            # was measured before that counts differently, so it doesn't apply to places among the remaining entries.
            known |= _raised(own, known, missing)
            earlier = RetentionSet(tuple(replace(record, size_bytes=None) for record in earlier.records))
        size_bytes = total + max(missing, 0)
        return replace(
            self, records=earlier.add(Record(now_ms, tail, size_bytes)), known=known, counted_bytes=size_bytes
        )

    def before_truncation(self, own: StreamEntries, cut: StreamCut) -> RecordedState:
        """State to save before the stream is truncated at ``cut``."""
        return replace(self, known={**self.known, **_moved(own, self.known, cut)})

    def measure(self, own: StreamEntries) -> StreamEntries:
        """``own``, with sizes that aren't below those of the recorded cuts.

        Args:
            own: counted from the current or an earlier ``known``, which may have been raised since.
        """
        recorded = [(each.cut, each.size_bytes) for each in self.records.records if each.size_bytes is not None]
        more = {n: _uncounted(own, n, at).payload_bytes for n, at in self.known.items() if n in own.partitions}
        return StreamEntries(own.partitions, recorded, more)

    def truncated(self, head: StreamCut, lineage: Lineage, cut_time_ms: int | None) -> RecordedState:
        """State to save once ``head`` is the stream's head.

        Args:
            cut_time_ms: of the decision; ``None``: of the newest record that leaves the set, if one does.
        """
        gone = self.records.up_to(head, lineage)
        head_ms = cut_time_ms if cut_time_ms is not None else gone[-1].time_ms if gone else self.head_ms
        return replace(self, records=self.records.truncated(head, lineage), head_ms=head_ms)


def read_records(retention: StreamRetention, scope: Scope) -> RecordedState:
    """Read a stream's recorded state; raises ``CorruptError`` or ``UnsupportedError`` if that can't be read."""
    if scope.incarnation is None:
        return RecordedState()
    empty = Records(name=scope.name, partitions=scope.rows)
    return _state(retention.documents.read(scope.key(Records), empty).document, scope)


def records_change(scope: Scope, change: Callable[[RecordedState], RecordedState]) -> Change[Records]:
    """Change of the recorded state of a scope found with ``create``."""

    def alter(stored: Stored[Records]) -> Records | None:
        before = _state(stored.document, scope)
        after = change(before)
        return None if after == before else _document(scope, stored.document, after)

    return scope.key(Records), Records(name=scope.name, partitions=scope.rows), alter


def decision_change(scope: Scope, decision: Decision) -> Change[Decisions]:
    """Change that stores a decision and drops the oldest above the limits."""
    row = DecisionRow(decision.at_ms, json.dumps(decision.as_json(), separators=(",", ":"), ensure_ascii=False))

    def alter(stored: Stored[Decisions]) -> Decisions:
        earlier = stored.document.decisions[1 - DECISIONS_MAX :]
        sizes = accumulate(len(each.record.encode()) for each in reversed(earlier))
        kept = sum(1 for _ in takewhile(lambda size_bytes: size_bytes <= DECISIONS_BYTES_MAX, sizes))
        return replace(stored.document, decisions=(*earlier[len(earlier) - kept :], row))

    return scope.key(Decisions), Decisions(name=scope.name), alter


def read_decisions(retention: StreamRetention, scope: Scope) -> Sequence[Mapping[str, Any]]:
    """Stored decisions, as ``Decision.as_json``, the newest first."""
    if scope.incarnation is None:
        return []
    document = retention.documents.read(scope.key(Decisions), Decisions(name=scope.name)).document
    return [json.loads(row.record) for row in reversed(document.decisions)]


def past_moves(rows: Iterable[Mapping[str, Any]], number: int = 0) -> list[tuple[int, Position]]:
    """Time and new start position of a partition in stored decisions, as ``read_decisions`` returns them."""
    found = []
    for row in rows:
        at = (row.get("cut") or {}).get(f"{number}.0")
        if isinstance(at, str):
            found.append((int(row["at_ms"]), Position.parse(at)))
    return found


def _moved(own: StreamEntries, known: Mapping[int, Known], cut: StreamCut) -> dict[int, Known]:
    """Where counting continues from ``cut``, also if ``own`` was counted before ``known`` was raised.

    Without partitions in which ``known`` is as far or further: another cycle may have moved it beyond all of ``own``.
    """
    found = {}
    for row in [each for each in rows_of_cut(cut) if each.partition in own.partitions]:
        before, at = known.get(row.partition), own.partitions[row.partition].known(row.position)
        if before is None or before.position < at.position:
            found[row.partition] = at if before is None else at.raised(_uncounted(own, row.partition, before))
    return found


def _uncounted(own: StreamEntries, number: int, known: Known) -> Size:
    """Size counted in ``known`` and missing in ``own``, which was counted before ``known`` was raised."""
    # Compared at a ledger's beginning, which is never inside a piece.
    more = known.before_ledger.minus(own.partitions[number].before(Position(known.position.ledger_id, 0)))
    return more if more.payload_bytes > 0 else Size(0, 0)


def _raised(own: StreamEntries, known: Mapping[int, Known], missing: int) -> dict[int, Known]:
    """Counts with ``missing`` more bytes before the first partition with entries, which raises all later sizes."""
    for number, each in own.partitions.items():
        if each.first is not None:
            return {number: (known.get(number) or each.known(each.first)).raised(Size(missing, 0))}
    return {}


def _state(document: Records, scope: Scope) -> RecordedState:
    alive = scope.alive(document.partitions)
    records = tuple(
        Record(
            row.time_ms,
            cut_of_rows(row.cut, alive),
            # Unknown once a partition is gone whose entries were counted.
            row.payload_bytes if all(each.partition in alive for each in row.cut) else None,
        )
        for row in document.records
    )
    counted_bytes = (document.records[-1].payload_bytes or 0) if document.records else 0
    known = {
        row.partition: Known(
            row.position, Size(row.payload_bytes, row.entries), Size(row.ledger_payload_bytes, row.ledger_entries)
        )
        for row in document.sizes
        if row.partition in alive
    }
    return RecordedState(RetentionSet(records), document.head_ms, known, counted_bytes)


def _document(scope: Scope, document: Records, state: RecordedState) -> Records:
    sizes = tuple(
        SizeRow(number, at.position, *at.before, *at.before_ledger) for number, at in sorted(state.known.items())
    )
    rows = tuple(
        RecordRow(record.time_ms, record.size_bytes, rows_of_cut(record.cut)) for record in state.records.records
    )
    return replace(document, partitions=scope.rows, records=_few(rows), head_ms=state.head_ms, sizes=sizes)


def _few(rows: tuple[RecordRow, ...]) -> tuple[RecordRow, ...]:
    """At most ``POSITIONS_MAX`` positions: with very many partitions every second record is dropped."""
    while len(rows) > 2 and sum(len(row.cut) for row in rows) > POSITIONS_MAX:
        rows = (*rows[:-1:2], rows[-1])
    return rows
