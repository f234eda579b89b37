"""State of retention between cycles: sizes that never decrease, the retention set, decisions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from formats.documents import Decisions
from formats.entries import Position
from formats.manifest import Edit, Purged, Retire, Truncate
from offloader.manifest.log import ManifestLog
from offloader.manifest.maintenance import delete_stream
from offloader.retention import state as recorded_state
from offloader.retention.cuts import StreamCut
from offloader.retention.decide import Situation, Subscription, decide
from offloader.retention.entries import StreamEntries
from offloader.retention.lineage import Lineage
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.scope import Scope
from offloader.retention.state import (
    DECISIONS_MAX,
    RecordedState,
    Rule,
    decision_change,
    read_decisions,
    read_records,
    records_change,
)
from offloader.retention.subscribers import StreamRetention, open_retention
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from tests.support.manifests import segment_edits

STREAM = "a/orders"
PERIOD_S = 1800.0
_names = itertools.count()


class Bench:
    """A stream that grows by a segment of 10 entries, 100 bytes, in each period."""

    def __init__(self, *streams: str) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(f"recorded-{next(_names)}", "", self.clock)
        self.logs = {name: ManifestLog(self.store, name, clock=self.clock) for name in streams or (STREAM,)}
        for log in self.logs.values():
            log.open_epoch()
        self.sources: dict[str, MemoryLedgers] = {}
        self.grown = 0

    def retention(self, name: str = STREAM) -> StreamRetention:
        return open_retention(self.store, name, source_of=self.sources.get, clock=self.clock)

    def grow(self, name: str = STREAM) -> None:
        self.logs[name].commit(segment_edits(self.grown))
        self.grown += 1

    def look(self, name: str = STREAM) -> tuple[StreamRetention, Scope, RecordedState, StreamEntries]:
        retention = self.retention(name)
        place = retention.scope(create=True)
        state = read_records(retention, place)
        return retention, place, state, retention.cuts(place, state.known)

    def record(self, name: str = STREAM) -> RecordedState:
        self.clock.advance(PERIOD_S)
        retention, place, _, own = self.look(name)
        retention.documents.change(*records_change(place, lambda state: state.with_tail(own, self.clock.now_ms())))
        return read_records(retention, place)

    def truncate(self, position: Position, *, purge: bool = True) -> RecordedState:
        """As a cycle does it, and with ``purge`` as cleanup does much later."""
        retention, place, _, own = self.look()
        cut = StreamCut.of({"0.0": str(position)})
        retention.documents.change(*records_change(place, lambda state: state.before_truncation(own, cut)))
        log = self.logs[STREAM]
        state = log.commit_as_maintainer([Truncate(position)])
        gone = tuple(each.uuid for each in state.offloaded() if each.end is not None and each.end < position)
        if purge and gone:
            state = log.commit_as_maintainer([Retire(gone)])
            log.commit_as_maintainer([Purged(gone, state.record_id)])
        lineage = Lineage.of_partitions(place.partitions)
        retention.documents.change(*records_change(place, lambda state: state.truncated(cut, lineage, None)))
        return read_records(retention, place)


@pytest.mark.slow
def test_sizes_grow_from_creation_although_segments_left_the_manifest() -> None:
    bench = Bench()
    sizes = []
    for number in range(12):
        bench.grow()
        state = bench.record()
        assert state.records.newest is not None
        sizes.append(state.records.newest.size_bytes)
        if number % 3 == 2:
            left = bench.truncate(Position(1, 10 * number - 5))
            assert left.head_ms == state.records.records[-3].time_ms
    assert sizes == [100 * (number + 1) for number in range(12)]
    retention, place, state, own = bench.look()
    assert len(list(bench.logs[STREAM].load().segments)) == 2
    measure = state.measure(own)
    newest = state.records.records[-1]
    assert measure.bytes_before(newest.cut) == 1200
    # 5 entries of the block at 100..109 are read: it counts from its start, and nothing before it is unread.
    assert measure.bytes_before(StreamCut.of({"0.0": "1:105"})) == 1000
    assert measure.bytes_before(own.head()) == 1000
    assert retention.registry(place).names() == []


def test_cut_inside_a_block_keeps_its_recorded_size_after_offloading() -> None:
    bench = Bench()
    ledgers = MemoryLedgers(STREAM, bench.clock)
    bench.sources[STREAM] = ledgers
    ledgers.append([b"x" * 10] * 4)
    bench.record()
    ledgers.append([b"x" * 10] * 6)
    bench.grow()
    _, _, state, own = bench.look()
    recorded = state.records.records[0]
    assert (str(recorded.cut), recorded.size_bytes) == ("0.0=1:4", 40)
    assert own.bytes_before(recorded.cut) == 0
    measure = state.measure(own)
    assert measure.bytes_before(recorded.cut) == 40
    assert measure.bytes_before(StreamCut.of({"0.0": "1:7"})) == 40
    assert measure.bytes_before(StreamCut.of({"0.0": "1:3"})) == 0
    assert measure.bytes_before(own.tail()) == 100
    assert measure.entries_before(StreamCut.of({"0.0": "1:7"})) == 7


def test_truncated_hot_stream_continues_its_sizes() -> None:
    bench = Bench()
    ledgers = MemoryLedgers(STREAM, bench.clock)
    bench.sources[STREAM] = ledgers
    for _ in range(3):
        ledgers.append([b"x" * 10] * 10)
        ledgers.close_ledger()
    bench.record()
    retention, place, _, own = bench.look()
    cut = StreamCut.of({"0.0": "3:0"})
    retention.documents.change(*records_change(place, lambda state: state.before_truncation(own, cut)))
    for ledger_id in (1, 2):
        ledgers.delete(ledger_id)
    ledgers.append([b"x" * 10] * 5)
    state = bench.record()
    assert [record.size_bytes for record in state.records.records] == [300, 350]


def test_unrecorded_truncation_never_decreases_a_size() -> None:
    """A truncation that retention doesn't know of, so long ago that what it removed isn't in the manifest."""
    bench = Bench()
    for _ in range(5):
        bench.grow()
    bench.record()
    log = bench.logs[STREAM]
    edits: list[Edit] = [Truncate(Position(1, 30))]
    state = log.commit_as_maintainer(edits)
    gone = tuple(each.uuid for each in list(state.offloaded())[:3])
    state = log.commit_as_maintainer([Retire(gone)])
    log.commit_as_maintainer([Purged(gone, state.record_id)])
    again = bench.record()
    assert [record.size_bytes for record in again.records.records] == [None, 500]
    bench.grow()
    assert bench.record().records.records[-1].size_bytes == 600


@pytest.mark.parametrize("is_recorded_again", [False, True])
def test_recorded_cut_in_a_segment_keeps_min_surely_after_a_partition_was_deleted(is_recorded_again: bool) -> None:
    """The recorded size counts the deleted partition, so it doesn't tell how much of the segment is before the cut."""
    kept, deleted = names = [f"a/topic-partition-{number}" for number in (0, 2)]
    bench = Bench(*names)
    ledgers = bench.sources[kept] = MemoryLedgers(kept, bench.clock)
    ledgers.append([b"x" * 10] * 4)
    bench.grow(deleted)
    bench.record("a/topic")
    ledgers.append([b"x" * 10] * 6)
    bench.grow(deleted)
    bench.record("a/topic")
    bench.grown = 0
    bench.grow(kept)
    for _ in range(2):
        delete_stream(bench.store, deleted, clock=bench.clock, delete_objects=lambda _: None)
        bench.clock.advance(86_401)
    if is_recorded_again:
        bench.record("a/topic")
    _, place, state, own = bench.look("a/topic")
    situation = Situation(
        policy=Policy(kind=PolicyKind.SIZE, limits=Limits(Unit.SIZE, 80)),
        lineage=Lineage.of_partitions(place.partitions),
        measure=state.measure(own),
        records=state.records,
        head=StreamCut(),
        now_ms=bench.clock.now_ms(),
        subscriptions=(),
    )
    assert str(state.records.records[0].cut) == "0.0=1:4"  # 60 of 100 bytes are behind it
    assert decide(situation).rule is Rule.NO_CUT_KEEPS_MIN


def test_topic_size_is_summed_and_recreated_partition_starts_at_zero() -> None:
    names = [f"a/topic-partition-{number}" for number in (0, 2)]
    bench = Bench(*names)
    for name in names:
        bench.grow(name)
        bench.grown = 0
    first = bench.record("a/topic")
    assert first.records.records[0].size_bytes == 200
    delete_stream(bench.store, names[1], clock=bench.clock, delete_objects=lambda _: None)
    bench.clock.advance(86_401)
    delete_stream(bench.store, names[1], clock=bench.clock, delete_objects=lambda _: None)
    bench.logs[names[1]] = ManifestLog(bench.store, names[1], clock=bench.clock)
    bench.logs[names[1]].open_epoch()
    second = bench.record("a/topic")
    assert [str(record.cut) for record in second.records.records] == ["0.0=1:10", "0.0=1:10"]
    assert [record.size_bytes for record in second.records.records] == [None, 200]
    bench.grow(names[1])
    third = bench.record("a/topic").records.records[-1]
    assert (str(third.cut), third.size_bytes) == ("0.0=1:10,2.0=1:10", 300)


def test_a_stream_without_an_entry_records_nothing() -> None:
    bench = Bench()
    assert bench.record() == RecordedState()


@pytest.mark.slow
@pytest.mark.parametrize("positions_max", [7, 8])
def test_many_partitions_keep_fewer_cuts(monkeypatch: pytest.MonkeyPatch, positions_max: int) -> None:
    """The newest stays, whether the one too many makes their number odd or even."""
    monkeypatch.setattr(recorded_state, "POSITIONS_MAX", positions_max)
    bench = Bench()
    for _ in range(12):
        bench.grow()
        state = bench.record()
    records = state.records.records
    assert len(records) <= positions_max
    assert records[-1].size_bytes == 1200
    assert records[0].size_bytes == 100


@pytest.mark.slow
def test_decision_from_stored_state_is_recorded() -> None:
    bench = Bench()
    for _ in range(6):
        bench.grow()
        bench.record()
    retention, place, state, own = bench.look()
    situation = Situation(
        policy=Policy(kind=PolicyKind.SIZE, limits=Limits(Unit.SIZE, 150, 400)),
        lineage=Lineage.of_partitions(place.partitions),
        measure=state.measure(own),
        records=state.records,
        head=own.head(),
        now_ms=bench.clock.now_ms(),
        subscriptions=(Subscription(name="audit", cut=StreamCut.of({"0.0": "1:35"})),),
        tail=own.tail(),
    )
    decision = decide(situation)
    assert str(decision.cut) == "0.0=1:35"
    (lag,) = decision.lags
    assert (lag.unread_bytes, lag.unread_entries) == (300, 25)
    for number in range(DECISIONS_MAX + 5):
        retention.documents.change(*decision_change(place, decide(situation) if number else decision))
    kept = read_decisions(retention, place)
    assert len(kept) == DECISIONS_MAX
    assert kept[0]["cut"] == {"0.0": "1:35"}


@pytest.mark.slow
def test_large_decisions_are_kept_as_far_as_they_fit() -> None:
    bench = Bench()
    bench.grow()
    bench.record()
    retention, place, state, own = bench.look()
    cut = StreamCut.of({f"{partition}.0": "1:35" for partition in range(1000)})
    decision = decide(
        Situation(
            policy=Policy(kind=PolicyKind.CONSUMPTION),
            lineage=Lineage.of_partitions(place.partitions),
            measure=state.measure(own),
            records=state.records,
            head=own.head(),
            now_ms=bench.clock.now_ms(),
            subscriptions=(Subscription(name="audit"),),
        )
    )
    large = replace(decision, lags=tuple(replace(decision.lags[0], name=f"reader {n}", cut=cut) for n in range(100)))
    for number in range(6):
        retention.documents.change(*decision_change(place, replace(large, at_ms=number)))
    assert bench.store.head(place.key(Decisions)).size_bytes < 10 * 1024**2
    assert [each["at_ms"] for each in read_decisions(retention, place)] == [5, 4, 3]
