"""What retention remembers of a stream: recorded cuts, the head's time, where sizes are counted from, last decisions.

Owns the two documents of it and how sizes stay comparable over the years. Must never let a size go back, nor forget
where counting goes on before something leaves the stream.

The order around a truncation: ``before_truncation`` is saved, the stream is truncated, ``truncated`` is saved. A crash
between them leaves the old head's time and records that lie before the head, which later decisions join with it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from formats.entries import Position
from formats.retention_state import DecisionRow, Decisions, RecordRow, Records, SizeRow, document_key
from offloader.retention.cuts import Cut
from offloader.retention.decision import Decision
from offloader.retention.documents import Stored
from offloader.retention.lineage import Lineage
from offloader.retention.own_cuts import Known, OwnCuts, Size
from offloader.retention.place import Place
from offloader.retention.recorded import Record, RetentionSet
from offloader.retention.rows import cut_of_rows, rows_of_cut
from offloader.retention.stream_retention import StreamRetention

__all__ = [
    "DECISIONS_MAX",
    "POSITIONS_MAX",
    "RecordedCuts",
    "RecordedState",
    "change_records",
    "lineage_of",
    "read_decisions",
    "read_records",
    "remember_decision",
]

#: Positions in all recorded cuts of one stream: the document is read and written in each cycle.
POSITIONS_MAX = 100_000
#: Decisions of one stream that are kept.
DECISIONS_MAX = 50


@dataclass(frozen=True, slots=True)
class RecordedState:
    """What is remembered of a stream. A value.

    Attributes:
        records: the retention set.
        head_ms: the ``cut_time_ms`` of the decision that made the head; ``None``: nothing was truncated yet.
        known: partition -> where its sizes are counted from; not all have it.
    """

    records: RetentionSet = field(default_factory=RetentionSet)
    head_ms: int | None = None
    known: Mapping[int, Known] = field(default_factory=dict)

    def with_tail(self, own: OwnCuts, now_ms: int) -> RecordedState:
        """With the tail as it is now in the retention set; without an entry there is none.

        Args:
            own: the stream, counted from ``known`` as it is or as it was: another cycle may have changed it since. When
                another one has recorded a later tail, there is nothing to record.
            now_ms: the time.
        """
        tail, newest = own.tail(), self.records.newest
        if not tail.offsets or (newest is not None and not own.reaches(tail, newest.cut)):
            return self
        total = own.total().payload_bytes
        total += sum(_uncounted(own, n, at).payload_bytes for n, at in self.known.items() if n in own.partitions)
        known = {**self.known, **_moved(own, self.known, own.head())}
        missing = (newest.size_bytes or 0) - total if newest is not None else 0
        if missing > 0:
            # Something left the stream uncounted, for example a partition that was deleted: sizes don't go back.
            known |= _raised(own, known, missing)
        record = Record(time_ms=now_ms, cut=tail, size_bytes=total + max(missing, 0))
        return replace(self, records=self.records.add(record), known=known)

    def before_truncation(self, own: OwnCuts, cut: Cut) -> RecordedState:
        """To be saved before the stream is truncated at ``cut``."""
        return replace(self, known={**self.known, **_moved(own, self.known, cut)})

    def truncated(self, head: Cut, lineage: Lineage, cut_time_ms: int | None) -> RecordedState:
        """To be saved when ``head`` has become the stream's head.

        Args:
            cut_time_ms: of the decision; ``None``: of the newest record that leaves the set, if one does.
        """
        gone = self.records.up_to(head, lineage)
        head_ms = cut_time_ms if cut_time_ms is not None else gone[-1].time_ms if gone else self.head_ms
        return replace(self, records=self.records.truncated(head, lineage), head_ms=head_ms)


class RecordedCuts:
    """Measures cuts as ``OwnCuts`` does, and never below what was measured when a cut was recorded.

    A position inside a block counts as the block's start; a recorded cut at or before it is a better bound where it has
    one. Neither overstates what lies before.

    Args:
        own: the stream as it is now.
        records: its retention set.
        known: where the sizes of ``records`` are counted from, which may have been raised since ``own`` was counted.
    """

    def __init__(self, own: OwnCuts, records: RetentionSet, known: Mapping[int, Known] = MappingProxyType({})) -> None:
        self._own = own
        self._more = {n: _uncounted(own, n, at).payload_bytes for n, at in known.items() if n in own.partitions}
        self._records = [record for record in records.records if record.size_bytes is not None]

    def bytes_before(self, cut: Cut) -> int:
        """Payload bytes before a cut since the stream was created."""
        count = bisect_right(self._records, False, key=lambda record: not self._own.reaches(cut, record.cut))
        recorded = self._records[count - 1].size_bytes if count else 0
        more = sum(self._more.get(segment.number, 0) for segment in cut.offsets)
        return max(self._own.bytes_before(cut) + more, recorded or 0)

    def entries_before(self, cut: Cut) -> int:
        """Entries likewise."""
        return self._own.entries_before(cut)


def lineage_of(place: Place) -> Lineage:
    """The partitions as the stream segments of one epoch."""
    return Lineage.of_partitions(max(place.partitions) + 1)


def read_records(retention: StreamRetention, place: Place) -> RecordedState:
    """What is remembered of a stream.

    Raises:
        Corrupt, Unsupported: it can't be read.
    """
    if place.incarnation is None:
        return RecordedState()
    return _state(retention.documents.read(*_records_document(place)).document, place)


def change_records(
    retention: StreamRetention, place: Place, change: Callable[[RecordedState], RecordedState]
) -> RecordedState:
    """Changes what is remembered; see ``DocumentStore.change``.

    Args:
        place: with an incarnation, so found with ``create``.
        change: pure; called again when others came first.
    """

    def alter(stored: Stored[Records]) -> Records | None:
        before = _state(stored.document, place)
        after = change(before)
        return None if after == before else _document(place, stored.document, after)

    return _state(retention.documents.change(*_records_document(place), alter).document, place)


def remember_decision(retention: StreamRetention, place: Place, decision: Decision) -> None:
    """Adds a decision to those that are kept, of which the oldest goes."""
    row = DecisionRow(decision.at_ms, json.dumps(decision.as_json(), separators=(",", ":"), ensure_ascii=False))

    def alter(stored: Stored[Decisions]) -> Decisions:
        return replace(stored.document, decisions=(*stored.document.decisions, row)[-DECISIONS_MAX:])

    retention.documents.change(*_decisions_document(place), alter)


def read_decisions(retention: StreamRetention, place: Place) -> Sequence[Mapping[str, Any]]:
    """The decisions that are kept, as ``Decision.as_json``, the newest first."""
    if place.incarnation is None:
        return []
    document = retention.documents.read(*_decisions_document(place)).document
    return [json.loads(row.record) for row in reversed(document.decisions)]


def _records_document(place: Place) -> tuple[str, Records]:
    assert place.incarnation is not None, "made before something is written"
    return document_key(Records, place.name, place.incarnation), Records(name=place.name, partitions=place.rows)


def _decisions_document(place: Place) -> tuple[str, Decisions]:
    assert place.incarnation is not None, "made before something is written"
    return document_key(Decisions, place.name, place.incarnation), Decisions(name=place.name)


def _known_at(own: OwnCuts, cut: Cut) -> dict[int, Known]:
    positions = {row.partition: row.position for row in rows_of_cut(cut) if row.partition in own.partitions}
    return {number: own.partitions[number].known(position) for number, position in positions.items()}


def _moved(own: OwnCuts, known: Mapping[int, Known], cut: Cut) -> dict[int, Known]:
    """Where counting goes on from ``cut``. ``own`` may have been counted before ``known`` was raised: sizes stay so."""
    found = _known_at(own, cut)
    for number, at in found.items():
        if (before := known.get(number)) is not None:
            more = _uncounted(own, number, before)
            found[number] = Known(at.position, at.before.plus(more), at.before_ledger.plus(more))
    return found


def _uncounted(own: OwnCuts, number: int, known: Known) -> Size:
    """What ``known`` counts and ``own`` doesn't, because it was counted before ``known`` was raised."""
    # Compared at a ledger's beginning, which is never inside a piece.
    more = known.before_ledger.minus(own.partitions[number].before(Position(known.position.ledger_id, 0)))
    return more if more.payload_bytes > 0 else Size(0, 0)


def _raised(own: OwnCuts, known: Mapping[int, Known], missing: int) -> dict[int, Known]:
    """More lies before the first partition that has entries: all sizes after it are so much larger."""
    for number, each in own.partitions.items():
        if each.first is not None:
            found = known.get(number) or each.known(each.first)
            more = Size(missing, 0)
            return {number: Known(found.position, found.before.plus(more), found.before_ledger.plus(more))}
    return {}


def _state(document: Records, place: Place) -> RecordedState:
    alive = {row.number for row in document.partitions if place.is_alive(row)}
    records = [
        Record(time_ms=row.time_ms, cut=cut_of_rows(row.cut, alive), size_bytes=row.payload_bytes)
        for row in document.records
    ]
    known = {
        row.partition: Known(
            row.position, Size(row.payload_bytes, row.entries), Size(row.ledger_payload_bytes, row.ledger_entries)
        )
        for row in document.sizes
        if row.partition in alive
    }
    return RecordedState(RetentionSet(tuple(records)), document.head_ms, known)


def _document(place: Place, document: Records, state: RecordedState) -> Records:
    sizes = tuple(
        SizeRow(number, at.position, *at.before, *at.before_ledger) for number, at in sorted(state.known.items())
    )
    rows = tuple(
        RecordRow(record.time_ms, record.size_bytes, rows_of_cut(record.cut)) for record in state.records.records
    )
    return replace(document, partitions=place.rows, records=_few(rows), head_ms=state.head_ms, sizes=sizes)


def _few(rows: tuple[RecordRow, ...]) -> tuple[RecordRow, ...]:
    """With ``POSITIONS_MAX`` positions at most: of a topic with very many partitions every second record goes."""
    while len(rows) > 2 and sum(len(row.cut) for row in rows) > POSITIONS_MAX:
        rows = (*rows[:-1:2], rows[-1])
    return rows
