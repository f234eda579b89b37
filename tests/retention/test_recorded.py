"""The retention set stays small and keeps what later decisions need."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloader.retention.cuts import Cut, SegmentId
from offloader.retention.decide import window
from offloader.retention.policy import Limits, Unit
from offloader.retention.state import RECORDS_MAX, Record, RetentionSet
from tests.retention.lineages import ScalableLineage
from tests.retention.plain_stream import at, by_size, stream

MINUTE_MS = 60_000
HALF_HOUR_MS = 30 * MINUTE_MS
YEAR_MS = 365 * 24 * 60 * MINUTE_MS


def place(offset: int) -> Cut:
    return Cut({SegmentId(0, 0): offset})


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
def test_ten_years_of_half_hours_stay_small() -> None:
    """And every later query is as near as the rule allows."""
    count = 10 * YEAR_MS // HALF_HOUR_MS
    records = grown(count, [Limits(Unit.TIME, 0)], every=500).thinned(count * HALF_HOUR_MS, [])
    assert len(records.records) < 2 * 200 + 50
    for older, younger in pairwise(records.records):
        gap, age = younger.time_ms - older.time_ms, count * HALF_HOUR_MS - younger.time_ms
        assert gap == HALF_HOUR_MS or gap * 16 <= age


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_spacing_stays_within_the_rule(data: st.DataObject) -> None:
    """After any history of adding and thinning, two neighbours are close, or were neighbours from the beginning."""
    limits = [Limits(unit, 40, data.draw(st.none() | st.integers(40, 400))) for unit in Unit]
    records, added, now_ms, size = RetentionSet(), [], 0, 0
    has_sizes = data.draw(st.booleans())
    for _ in range(data.draw(st.integers(0, 60))):
        now_ms += data.draw(st.integers(1, 9))
        size += data.draw(st.integers(0, 9))
        added.append(Record(now_ms, place(size), size if has_sizes else None))
        records = records.add(added[-1])
        if data.draw(st.booleans()):
            used = {one.time_ms for one in records.records if data.draw(st.integers(0, 9)) == 0}
            before = records.records
            records = records.thinned(now_ms, limits, used)
            assert used <= {one.time_ms for one in records.records}
            assert records.records[:1] == before[:1]
    assert records.records[-1:] == tuple(added[-1:])
    assert list(records.records) == [one for one in added if one in records.records]
    beginnings = {(one.time_ms, other.time_ms) for one, other in pairwise(added)}
    for one, other in pairwise(records.records):
        if (one.time_ms, other.time_ms) in beginnings:
            continue
        gap_ms, kept_ms = other.time_ms - one.time_ms, now_ms - other.time_ms
        assert gap_ms * 16 <= max(kept_ms, 1)
        assert limits[1].max is None or gap_ms * 4 <= max(limits[1].max - 40, 1)
        if has_sizes:
            gap = (other.size_bytes or 0) - (one.size_bytes or 0)
            assert gap * 16 <= max(size - (other.size_bytes or 0), 1)
            assert limits[0].max is None or gap * 4 <= max(limits[0].max - 40, 1)


@pytest.mark.slow
def test_thinning_removes_all_the_rule_allows() -> None:
    """No three neighbours are left of which the rule would do without the middle one."""
    count = 1200
    records = grown(count, [], every=1).records
    for older, younger in zip(records[:-2], records[2:], strict=True):
        kept = count - younger.time_ms // HALF_HOUR_MS
        # Of time and of size alike: each half hour has a MiB
        assert (younger.time_ms - older.time_ms) // HALF_HOUR_MS * 16 > kept


@pytest.mark.parametrize("unit", Unit)
def test_a_quarter_of_the_room_between_min_and_max_is_the_widest_gap(unit: Unit) -> None:
    """For records of any age: some of them are in that range."""
    count, step = 2000, {Unit.TIME: HALF_HOUR_MS, Unit.SIZE: 2**20}[unit]
    records = grown(count, [Limits(unit, 1000 * step, 1040 * step)], every=2 * count)
    thinned = records.thinned(count * HALF_HOUR_MS, [Limits(unit, 1000 * step, 1040 * step)]).records
    assert max(b.time_ms - a.time_ms for a, b in pairwise(thinned)) == 10 * HALF_HOUR_MS


@pytest.mark.slow
@pytest.mark.parametrize("width", [0, 1, HALF_HOUR_MS])
def test_close_limits_do_not_grow_the_set_without_bound(width: int) -> None:
    """Above the bound the spacing is widened, evenly; what a decision uses stays."""
    count = RECORDS_MAX + 100
    limits = [Limits(Unit.TIME, YEAR_MS, YEAR_MS + width)]
    records = grown(count, limits, every=2 * count)
    used = [7 * HALF_HOUR_MS, 4000 * HALF_HOUR_MS]
    thinned = records.thinned(count * HALF_HOUR_MS, limits, used)
    assert 2 < len(thinned.records) <= RECORDS_MAX
    assert {*used, HALF_HOUR_MS, count * HALF_HOUR_MS} <= {one.time_ms for one in thinned.records}
    gaps = {b.time_ms - a.time_ms for a, b in pairwise(thinned.records)}
    assert max(gaps) <= 64 * HALF_HOUR_MS


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
