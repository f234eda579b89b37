"""The retention set stays small and keeps what later decisions need."""

from __future__ import annotations

from itertools import pairwise

import pytest

from offloader.retention.cuts import Record, SegmentId, StreamCut
from offloader.retention.decide import window
from offloader.retention.policy import Limits, Unit
from offloader.retention.state import RECORDS_MAX, RetentionSet
from tests.retention.lineages import ScalableLineage
from tests.retention.plain_stream import at, by_size, stream

MINUTE_MS = 60_000
HALF_HOUR_MS = 30 * MINUTE_MS
YEAR_MS = 365 * 24 * 60 * MINUTE_MS


def place(offset: int) -> StreamCut:
    return StreamCut({SegmentId(0, 0): offset})


def grown(count: int, limits: list[Limits], *, step_bytes: int = 2**20, every: int = 100) -> RetentionSet:
    """A set that a record was added to every half hour, thinned now and then."""
    records = RetentionSet()
    for number in range(1, count + 1):
        size = number * step_bytes
        records = records.add(Record(number * HALF_HOUR_MS, place(size), size))
        if number % every == 0:
            records = records.thinned(number * HALF_HOUR_MS, limits)
    return records


@pytest.mark.slow
def test_thinning_removes_all_the_rule_allows() -> None:
    """No three neighbours are left of which the rule would do without the middle one."""
    count = 1200
    records = grown(count, [], every=1).records
    for older, younger in zip(records[:-2], records[2:], strict=True):
        kept = count - younger.time_ms // HALF_HOUR_MS
        # Of time and of size alike: each half hour has a MiB
        assert (younger.time_ms - older.time_ms) // HALF_HOUR_MS * 16 > kept


@pytest.mark.slow
@pytest.mark.parametrize("unit", Unit)
def test_a_quarter_of_the_room_between_min_and_max_is_the_widest_gap(unit: Unit) -> None:
    """For records of any age: some of them are in that range."""
    count, step = 2000, {Unit.TIME: HALF_HOUR_MS, Unit.SIZE: 2**20}[unit]
    records = grown(count, [Limits(unit, 1000 * step, 1040 * step)], every=2 * count)
    thinned = records.thinned(count * HALF_HOUR_MS, [Limits(unit, 1000 * step, 1040 * step)]).records
    assert max(b.time_ms - a.time_ms for a, b in pairwise(thinned)) == 10 * HALF_HOUR_MS


@pytest.mark.slow
def test_backward_clocks_thin_only_above_the_bound() -> None:
    records = grown(50, [], every=99)
    assert records.thinned(-YEAR_MS, [Limits(Unit.TIME, 0)]) is records
    many = grown(RECORDS_MAX + 9, [], every=2 * RECORDS_MAX)
    assert len(many.thinned(-YEAR_MS, [Limits(Unit.TIME, 0)]).records) <= RECORDS_MAX


@pytest.mark.slow
def test_thinned_sets_answer_nearly_as_whole_ones() -> None:
    """For any min, a thinned set keeps at most a sixteenth more than the whole one."""
    count = 3000
    whole, thin = grown(count, [], every=2 * count), grown(count, [Limits(Unit.SIZE, 0)], every=10)
    assert len(thin.records) < len(whole.records) / 6
    newest = count * 2**20
    for min_bytes in range(0, newest, 2**20 * 37 + 11):
        found = []
        for records in (whole, thin):
            kept = [newest - (one.size_bytes or 0) for one in records.records]
            least, _ = window(len(kept), kept.__getitem__, Limits(Unit.SIZE, min_bytes))
            assert least is not None
            found.append(kept[least])
        assert found[0] <= found[1] <= found[0] + max(min_bytes // 16, 2**20) + 2**20


def test_truncation_removes_used_and_older_records() -> None:
    records = stream(by_size(1), {1: (1, 1), 2: (5, 1), 3: (5, 5), 4: (9, 9)}).records
    topic = ScalableLineage.of_partitions(range(2))
    for head, left in [((5, 1), [3, 4]), ((5, 4), [3, 4]), ((0, 9), [1, 2, 3, 4]), ((5, 5), [4]), ((99, 99), [])]:
        cut = at(head)
        assert cut is not None
        assert left == [one.time_ms for one in records.truncated(cut, topic).records]
    assert records.up_to_time(0) == ()


def test_a_tail_is_due_when_more_than_the_period_has_passed() -> None:
    records = RetentionSet().add(Record(100, place(1)))
    assert RetentionSet().is_due(0, 10)
    assert not records.is_due(110, 10)
    assert records.is_due(111, 10)
    assert not records.is_due(50, 10)
    assert records.add(Record(100, place(2))) is records
    assert records.add(Record(99, place(2))) is records
