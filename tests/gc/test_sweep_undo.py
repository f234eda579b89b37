"""Undo of a mistaken truncation, until its segments are purged."""

from __future__ import annotations

import os
from typing import Any

import pytest

from formats.entries import Position
from formats.keys import record_number
from formats.manifest import Gap, LedgersDeleted
from offloader.errors import InvalidCallError, OutcomeUnknownError
from offloader.gc.sweep import Undone, undo_retirements
from offloader.manifest.checkpoint import checkpoint_now
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import expire_records
from offloader.manifest.state import EditRefusedError
from offloader.read.reader import open_stream_reader
from offloader.settings import ManifestSettings
from offloader.store.base import Body, ObjectInfo
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.gc.cleaning import STREAM, Bench
from tests.support.schedule import Schedule
from tests.support.streams import batch_of


def undo(bench: Bench, **how: object) -> Undone:
    return undo_retirements(bench.log(), **how)  # type: ignore[arg-type]


def test_undo_makes_all_segments_readable_and_keeps_them() -> None:
    bench = Bench()
    before = bench.state
    bench.truncate(3, 5)
    bench.run()
    undone = undo(bench)
    assert (undone.head_before, undone.head, undone.ledgers) == (Position(3, 5), Position(1, 0), (1, 2))
    assert bench.state.totals() == before.totals()
    assert len(open_stream_reader(bench.memory, STREAM).read(Position(1, 0), Position(4, 9))) == 40
    bench.hours(100)
    done = bench.run()
    assert (done.swept.retired, done.swept.purged) == (0, 0)
    bench.truncate(3, 5)  # and it can be truncated again
    assert bench.run().swept.retired == 2


@pytest.mark.parametrize("entry_id", [4, 9])
def test_undo_restores_the_previous_head_and_no_earlier_one(entry_id: int) -> None:
    """9: the last entry of its segment."""
    bench = Bench()
    bench.truncate(2, entry_id)
    bench.run()
    bench.truncate(4)
    bench.run()
    undone = undo(bench, segments=bench.writer.uuids[1:3])
    assert undone.head == Position(2, entry_id), "what was truncated on purpose earlier stays so"
    assert undo(bench).head == Position(1, 0)


def test_partial_undo_must_leave_no_gap_up_to_the_head() -> None:
    bench = Bench()
    bench.truncate(4)
    bench.run()
    with pytest.raises(InvalidCallError, match="can't be restored"):
        undo(bench, segments=[bench.writer.uuids[0]])
    assert undo(bench, segments=[bench.writer.uuids[2]]).head == Position(3, 0)
    assert bench.state.first_position() == Position(3, 0)


def test_the_position_can_be_chosen_and_is_checked() -> None:
    bench = Bench()
    bench.truncate(3)
    bench.run()
    for wrong in (Position(3, 1), Position(0, 0)):
        with pytest.raises((EditRefusedError, InvalidCallError)):
            undo(bench, head=wrong)
    assert undo(bench, head=Position(1, 7)).head == Position(1, 7)
    assert open_stream_reader(bench.memory, STREAM).first_position == Position(1, 7)


def test_purged_segment_cannot_be_undone() -> None:
    bench = Bench()
    bench.truncate(2)
    bench.run()
    bench.hours(25)
    bench.truncate(3)
    bench.run()
    with pytest.raises(InvalidCallError, match="it was purged, or never retired"):
        undo(bench, segments=[bench.writer.uuids[0]])
    assert undo(bench).head == Position(2, 0)
    with pytest.raises(InvalidCallError, match="nothing is retired"):
        undo(bench)


def test_undo_restores_a_ledger_deleted_in_the_middle() -> None:
    bench = Bench()
    bench.log().commit_as_maintainer([LedgersDeleted((2,))])
    bench.run()
    assert len(bench.state.offloaded()) == 3
    undone = undo(bench)
    assert (undone.head, undone.ledgers) == (None, (2,))
    assert len(open_stream_reader(bench.memory, STREAM).read(Position(1, 0), Position(4, 9))) == 40


def test_dry_run_of_undo_reports_the_same_and_changes_nothing() -> None:
    bench = Bench()
    bench.truncate(3)
    bench.run()
    before = bench.state
    said = undo(bench, dry_run=True)
    assert bench.state == before
    done = undo(bench)
    assert (said.segments, said.head, said.ledgers) == (done.segments, done.head, done.ledgers)
    assert (said.record_id, done.record_id) == (None, bench.state.record_id)


def test_truncation_during_an_undo_leaves_no_gap_behind_the_head() -> None:
    """Its ledgers would stay marked: the next round would retire them again, and the stream begin before them."""
    bench = Bench()
    bench.truncate(3)
    bench.run()
    schedule = Schedule(bench.memory)
    one_by_one = ManifestSettings(record_requests_max=1)
    schedule.start(
        "undo",
        lambda store: undo_retirements(ManifestLog(store, STREAM, clock=bench.clock, settings=one_by_one)),
    )
    schedule.until("undo", "put", "manifest/")
    bench.truncate(4, 5)
    with pytest.raises(EditRefusedError, match="ledger 3 is still marked as deleted"):
        schedule.finish("undo")
    assert bench.state.head == Position(4, 5)
    assert undo(bench).head == Position(1, 0), "planned anew, the newer truncation is taken back as well"
    assert len(open_stream_reader(bench.memory, STREAM).read(Position(1, 0), Position(4, 9))) == 40


def test_undo_of_later_segments_sets_head_to_the_first_restored() -> None:
    bench = Bench()
    for position in ((1, 5), (4, 0)):
        bench.truncate(*position)
        bench.run()
    assert undo(bench, segments=bench.writer.uuids[1:3]).head == Position(2, 0)


def test_undo_to_a_position_restores_no_segment_before_it() -> None:
    bench = Bench()
    bench.truncate(4)
    bench.run()
    undone = undo(bench, head=Position(2, 5))
    assert (undone.head, [each.uuid for each in undone.segments]) == (Position(2, 5), bench.writer.uuids[1:3])
    assert len(open_stream_reader(bench.memory, STREAM).read(Position(2, 5), Position(4, 9))) == 25


def test_gap_after_the_head_does_not_limit_undo() -> None:
    bench = Bench()
    bench.log().commit_as_maintainer([Gap(Position(5, 0), Position(5, 4), "for a test")])
    bench.truncate(3)
    bench.run()
    assert undo(bench).head == Position(1, 0)


def test_ledger_before_the_chosen_position_stays_deleted() -> None:
    bench = Bench(ledgers=0)
    bench.writer.add([batch_of(1, 0, 5), batch_of(2, 0, 5)], closes=[1, 2])
    bench.writer.add([batch_of(3, 0, 10)], closes=[3])
    bench.truncate(3)
    bench.run()
    assert undo(bench, head=Position(2, 0)).ledgers == (2,)
    assert bench.state.deleted_ledgers == {1}


def test_deletion_mark_of_an_empty_ledger_does_not_block_undo() -> None:
    bench = Bench(ledgers=0)
    for ledger_id in (1, 3, 4):
        bench.writer.add([batch_of(ledger_id, 0, 10)], closes=[ledger_id])
    bench.log().commit_as_maintainer([LedgersDeleted((2,))])  # was empty and still open in the hot tier
    bench.truncate(4)
    bench.run()
    undone = undo(bench)
    assert (undone.head, undone.ledgers) == (Position(1, 0), (1, 3))
    assert bench.state.deleted_ledgers == {2}
    assert len(open_stream_reader(bench.memory, STREAM).read(Position(1, 0), Position(4, 9))) == 30


def test_an_undo_is_reported_although_its_record_was_folded_and_deleted_before_the_read_back() -> None:
    bench = Bench()
    before = bench.state
    bench.truncate(3, 5)
    bench.run()
    number = bench.state.record_id + 1

    class Stalls(FaultyStore):
        def put(self, key: str, body: Body, **more: Any) -> ObjectInfo:
            if record_number(key) == number and [k for v, k in self.calls if v == "put" and k == key]:
                # The first answer was lost; before the repeat the record is folded and deleted.
                checkpoint_now(bench.memory, load_manifest(bench.memory, STREAM), os.urandom)
                bench.hours(25)
                expire_records(bench.memory, bench.state, clock=bench.clock, settings=ManifestSettings())
            return super().put(key, body, **more)

    lost_answer = Fault(call=1, verb="put", key_part=".json", after=True, error=OutcomeUnknownError)
    log = ManifestLog(Stalls(bench.memory, [lost_answer]), STREAM, clock=bench.clock)
    result: Undone | Exception
    try:
        result = undo_retirements(log)
    except Exception as error:
        result = error

    assert isinstance(result, Undone), result
    assert (result.record_id, result.head, result.ledgers) == (number, Position(1, 0), (1, 2))
    assert (bench.state.record_id, bench.state.totals()) == (number, before.totals())
