"""The retention set stays small and keeps what later decisions need."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloader.retention.cuts import Record
from offloader.retention.policy import Limits, Unit
from offloader.retention.state import RECORDS_MAX, RetentionSet
from tests.retention.test_state_recorded_set import HALF_HOUR_MS, YEAR_MS, grown, place


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
