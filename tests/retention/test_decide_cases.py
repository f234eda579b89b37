"""Every case of the file of retention cases: order, validity, sizes, bounds, histories and whole scenarios.

The file is ``retention_cases.json`` beside this module, or what ``OFFLOADER_RETENTION_CASES`` names. What comes out is
compared with ``ideal`` or ``better`` where a case has it, else with ``expect``. The suites about the registry of
subscribers and about reader groups are replayed in ``test_registry_cases.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from offloader.errors import InvalidCallError
from offloader.retention import cycle
from offloader.retention.cuts import Order, Record, StreamCut
from offloader.retention.decide import window
from offloader.retention.policy import Limits, Unit
from offloader.retention.state import RetentionSet
from tests.retention import scenario
from tests.retention.case_file import case_file, cut, layout, lineage, segments, suite, target
from tests.retention.lineages import ScalableLineage, scale_problem
from tests.retention.scenario import Scenario

Case = dict[str, Any]


def replay_compare(case: Case) -> None:
    found = layout(case["layout"]).order(cut(case["a"]), cut(case["b"]))
    assert target(case) == found.value


def replay_equal_or_after(case: Case) -> None:
    assert target(case) == layout(case["layout"]).reaches(cut(case["a"]), cut(case["b"]))


def replay_cut_validity(case: Case) -> None:
    valid = target(case) is True
    assert valid == (not layout(case["layout"]).problem(cut(case["cut"])))


def replay_size_till(case: Case) -> None:
    assert target(case) == layout(case["layout"]).bytes_till(cut(case["cut"]))


def replay_size_between(case: Case) -> None:
    stream = layout(case["layout"])
    assert target(case) == stream.bytes_till(cut(case["to"])) - stream.bytes_till(cut(case["from"]))


def replay_segments_between(case: Case) -> None:
    stream, start, end = layout(case["layout"]), cut(case["from"]), cut(case["to"])
    if target(case) == "error":
        with pytest.raises(InvalidCallError, match="isn't at or after"):
            stream.between(start, end)
    else:
        assert segments(target(case)) == stream.between(start, end)


def replay_span(case: Case) -> None:
    found = layout(case["layout"]).span(cut(case["cut"]))
    assert target(case) == {str(segment): epoch for segment, epoch in found.items()}


def replay_lower_bound(case: Case) -> None:
    stream, cuts = layout(case["layout"]), [cut(one) for one in case["cuts"]]
    expected = cut(case["expect_exact"])
    assert expected == stream.meet(cuts)
    assert expected == stream.meet(reversed(cuts))


def replay_scale_input(case: Case) -> None:
    sealed = [tuple(case["epoch_segments"][number]) for number in case["seal_segment_numbers"]]
    assert case["expect_valid"] == (not scale_problem(sealed, [tuple(keys) for keys in case["new_ranges"]]))


def replay_random_exact(case: Case) -> None:
    stream, cuts = lineage(case), [cut(one) for one in case["cuts"]]
    assert case["size_till"] == [stream.bytes_till(one) for one in cuts]
    for one, other, expected in case["relations"]:
        assert expected == relation(stream, cuts[one], cuts[other])
    lower, upper = stream.meet(cuts), stream.join(cuts)
    assert cut(case["lower_bound"]) == lower
    assert cut(case["upper_bound"]) == upper
    assert (case["lower_bound_size"], case["upper_bound_size"]) == (stream.bytes_till(lower), stream.bytes_till(upper))
    assert segments(case["segments_deleted_from_lower_to_upper"]) == stream.deleted_between(lower, upper)
    for one in (*cuts, lower, upper):
        assert stream.problem(one) == ""
        assert stream.equal(one, stream.cut_of(stream.consumed(one)))


def relation(stream: ScalableLineage, one: StreamCut, other: StreamCut) -> str:
    there, back = stream.order(one, other), stream.order(other, one)
    if there is back is Order.EQUAL_OR_AFTER:
        return "Equal"
    return "After" if there is Order.EQUAL_OR_AFTER else there.value


def replay_find_before(case: Case) -> None:
    found = recorded(case["records"]).at_or_before(cut(case["cut"]), layout(case["layout"]))
    assert case["expect_time"] == (found.time_ms if found else None)


def replay_bounds(case: Case) -> None:
    kept = case["kept_if_cut_at_each_record_oldest_first"]
    for unit in Unit:
        found = window(len(kept), kept.__getitem__, Limits(unit, case["min"], case["max"]))
        assert (case["expect_min_index"], case["expect_max_index"]) == found


def recorded(records: list[Case]) -> RetentionSet:
    return RetentionSet(tuple(Record(one["time"], cut(one["cut"]), one["size"]) for one in records))


def at_or_before_size(records: RetentionSet, size_bytes: int) -> Record | None:
    """The newest record with at most ``size_bytes`` before it."""
    sized = [one for one in records.records if one.size_bytes is not None and one.size_bytes <= size_bytes]
    return sized[-1] if sized else None


def replay_retention_set(case: Case) -> None:
    records = RetentionSet()
    for step in case["steps"]:
        match step["op"]:
            case "add":
                records = records.add(Record(step["time"], cut({"0.0": step["time"]}), step["size"]))
            case "remove_up_to":
                records = RetentionSet(records.records[len(records.up_to_time(step["time"])) :])
            case "at_or_before_time":
                assert step["expect_time"] == newest_time(records.up_to_time(step["time"]))
            case "at_or_before_size":
                found = at_or_before_size(records, step["size"])
                assert step["expect_time"] == (found.time_ms if found else None)
            case "records_up_to":
                assert step["expect_times"] == [one.time_ms for one in records.up_to_time(step["time"])]
            case other:
                raise AssertionError(f"no replay of {other}")
        if step["op"] in ("add", "remove_up_to"):
            assert step["expect_times"] == [one.time_ms for one in records.records]


def newest_time(records: tuple[Record, ...]) -> int | None:
    return records[-1].time_ms if records else None


def replay_scenario(case: Case) -> None:
    scenario = Scenario()
    for step in case["steps"]:
        scenario.play(step)


REPLAY: dict[str, Callable[[Case], None]] = {
    "scenarios": replay_scenario,
    "compare": replay_compare,
    "equal_or_after": replay_equal_or_after,
    "find_before": replay_find_before,
    "cut_validity": replay_cut_validity,
    "size_till": replay_size_till,
    "size_between": replay_size_between,
    "segments_between": replay_segments_between,
    "span": replay_span,
    "lower_bound": replay_lower_bound,
    "bounds": replay_bounds,
    "retention_set": replay_retention_set,
    "scale_input": replay_scale_input,
    "random_exact": replay_random_exact,
}
CASES = [(name, title, case) for name in REPLAY for title, case in suite(name)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), [pytest.param(n, c, id=f"{n}-{t}") for n, t, c in CASES])
def test_case(name: str, case: Case) -> None:
    REPLAY[name](case)


def test_no_case_is_left_out() -> None:
    """Each suite of the file is replayed, here or in ``test_registry_cases.py``, and each of its cases."""
    held = {name: len(cases) for name, cases in case_file().items() if isinstance(cases, list)}
    elsewhere = {name: held[name] for name in ("reader_group_config", "subscriber_registry") if name in held}
    here = Counter(name for name, _, _ in CASES)
    assert held == dict(here) | elsewhere
    assert len(CASES) == sum(held.values()) - sum(elsewhere.values())


def test_the_cases_run_against_the_code_that_cycles_run() -> None:
    """What scenarios and registry cases are made of is what production imports, not another of the same name."""
    for name in ("decide", "Situation", "subscriptions_of"):
        assert getattr(scenario, name) is getattr(cycle, name), name
