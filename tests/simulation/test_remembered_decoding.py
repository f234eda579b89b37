"""What simulated worlds share is taken back at its end, and changes no trace."""

from __future__ import annotations

from uuid import UUID

import pytest

from formats.checked_json import CheckedDocument
from formats.entries import Position
from formats.manifest import Boundary
from offloader.manifest import load
from offloader.manifest.segment_table import SegmentDraft, SegmentRecord, SegmentSlice, SegmentStatus, SegmentTable
from tests.simulation import maintained_world, simulation_checks
from tests.simulation.maintained_simulation import simulate_maintained
from tests.simulation.remembered_decoding import decoding_remembered
from tests.simulation.simulation import simulate
from tests.simulation.topic_simulation import simulate_topic


@pytest.fixture(scope="module", autouse=True)
def _decoding_remembered() -> None:
    """These tests begin without it."""


def places() -> list[object]:
    return [
        vars(load)["decode_record"],
        vars(load)["fold"],
        simulation_checks.entries_in,
        CheckedDocument.__dict__["decode"],
        SegmentTable.in_order,
        SegmentTable.offloaded,
        SegmentTable.retired,
        SegmentSlice.__iter__,
        vars(maintained_world)["named_keys"],
    ]


def test_everything_is_as_before_at_the_end_also_after_an_error() -> None:
    before = places()
    changed = []

    def nested() -> None:
        with decoding_remembered():
            changed.append(places())
            with decoding_remembered():
                changed.append(places())
            changed.append(places())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        nested()
    assert all(was is not now for was, now in zip(before, changed[0], strict=True))
    assert changed[0] == changed[1] == changed[2], "the inner one changes nothing"
    assert all(was is now for was, now in zip(before, places(), strict=True))


def test_equal_bytes_are_decoded_once_and_other_bytes_are_not_mistaken_for_them() -> None:
    one, other = Boundary(1, 0, 0), Boundary(2, 0, 0)
    with decoding_remembered():
        first = Boundary.decode(one.encode(), object_name="b")
        assert Boundary.decode(bytes(bytearray(one.encode())), object_name="b") is first
        assert Boundary.decode(other.encode(), object_name="b") == other


def test_a_table_is_looked_through_once_for_each_bounds_and_one_under_construction_each_time() -> None:
    records = [
        SegmentRecord(
            uuid=UUID(int=number),
            status=SegmentStatus.ASSIGNED,
            epoch=1,
            layout=2,
            begin=Position(1, 10 * number),
            end=Position(1, 10 * number + 9),
            assigned_ms=0,
            driver={},
        )
        for number in range(3)
    ]
    table = SegmentTable((), {each.uuid: each for each in records})
    with decoding_remembered():
        assert list(table.in_order()) == records == list(table.in_order())
        assert table.in_order() is table.in_order()
        assert table.in_order(Position(1, 15)) is table.in_order(Position(1, 15))
        assert list(table.in_order(Position(1, 15))) == records[1:]
        assert list(table.in_order(None, Position(1, 15))) == records[:2]
        draft = SegmentDraft(table)
        assert list(draft.in_order()) == records
        draft.drop(records[0].uuid)
        assert list(draft.in_order()) == records[1:]
        assert list(table.in_order()) == records
        assert list(draft.table().in_order()) == records[1:]


@pytest.mark.slow
def test_remembered_decoding_changes_no_trace() -> None:
    plain = [simulate(3), simulate_maintained(3), simulate_topic(3)]
    with decoding_remembered():
        assert [simulate(3), simulate_maintained(3), simulate_topic(3)] == plain
        assert [simulate(3), simulate_maintained(3), simulate_topic(3)] == plain
