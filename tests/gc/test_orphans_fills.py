"""Fills go with the last segment of their ledger, orphaned ones when they are old, and nothing else ever does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from uuid import UUID

import pytest

from formats.entries import EntryBatch, Position
from formats.frames import encode_fill
from formats.keys import boundary_key, fill_key, manifest_prefix, new_segment_uuid, record_key
from formats.manifest import Gap, LedgerClosed
from offloader.coverage import GapReason
from offloader.errors import CorruptError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.orphans import Outcome, Reason
from offloader.gc.reconcile import Reconciliation
from offloader.gc.sweep import cleanup_all, cleanup_stream, read_batches, undo_retirements
from offloader.inspect.verify import check_fills, describe_damage, find_unexpected
from offloader.manifest.boundary import LostRecordsError, listed
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.protection import TIME_KEY
from offloader.manifest.rebuild import Rebuild, rebuild_manifest
from offloader.manifest.state import ManifestState, newest_of
from offloader.read.cold import read_fill
from offloader.retention.truncate import truncate_stream
from offloader.settings import ManifestSettings, Settings
from offloader.store.base import OVERWRITE, DeleteFailure
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.backfill_service import fill_gaps, missing_runs
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"
HOUR_S, DAY_S = 3600.0, 24 * 3600.0
SETTINGS = Settings.of({"cleanup": {"allow_large_delete": True}})
_names = count()


class Bench:
    """Ledgers 1 to 3, each with entries 0..9, a gap 10..11, 12..19 and a gap 20; each filled by one object."""

    def __init__(self, ledgers: int = 3, *, fills: bool = True) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(f"cleanup-fills-{next(_names)}", "", self.clock)
        self.writer = StreamWriter(self.store, STREAM, clock=self.clock)
        for ledger_id in range(1, ledgers + 1):
            self.writer.add([batch_of(ledger_id, 0, 10)])
            self.writer.log.commit([self.gap(ledger_id, 10, 11)])
            self.writer.add([batch_of(ledger_id, 12, 8)])
            self.writer.log.commit([self.gap(ledger_id, 20, 20), LedgerClosed(ledger_id, 20)])
        for ledger_id in range(1, ledgers + 1) if fills else ():
            fill_gaps(self.writer.log, given(ledger_id), 0, 20)

    @staticmethod
    def gap(ledger_id: int, first: int, last: int) -> Gap:
        return Gap(Position(ledger_id, first), Position(ledger_id, last), GapReason.UNDELIVERED)

    @property
    def state(self) -> ManifestState:
        return load_manifest(self.store, STREAM)

    def fills(self) -> set[str]:
        """The fills in the store."""
        return {info.key for info in listed(self.store, STREAM) if info.key.endswith("-fill")}

    def named(self) -> set[str]:
        return {fill_key(STREAM, fill.uuid) for fill in self.state.fills}

    def truncate(self, ledger_id: int, entry_id: int = 0) -> None:
        log = ManifestLog(self.store, STREAM, clock=self.clock)
        log.load()
        truncate_stream(log, Position(ledger_id, entry_id), clock=self.clock)

    def clean(self) -> None:
        cleanup_stream(self.store, STREAM, clock=self.clock, settings=SETTINGS)

    def orphans(self, *, delete: bool = True) -> dict[str, tuple[Reason, Outcome]]:
        run = Reconciliation(self.store, STREAM, clock=self.clock, settings=ManifestSettings(), delete=delete)
        return {each.key: (each.reason, each.outcome) for each in run.leftovers()}

    def left_over(self, **more: object) -> str:
        """An object whose record was never written."""
        state = self.writer.log.load()
        key = fill_key(STREAM, new_segment_uuid(state.incarnation, next(_names)))
        told = newest_of(state.assigning, state.owner.nonce)
        assert told is not None
        self.store.put(key, encode_fill(given(1)), metadata={**told.as_metadata(), **more})  # type: ignore[dict-item]
        return key


def given(ledger_id: int) -> EntryBatch:
    """What a ledger's gaps have."""
    return EntryBatch.concat([batch_of(ledger_id, 10, 2), batch_of(ledger_id, 20, 1)])


def test_fills_are_deleted_with_the_last_segment_of_their_ledger_and_recorded() -> None:
    bench = Bench()
    keys = [fill_key(STREAM, fill.uuid) for fill in bench.state.fills]
    assert bench.fills() == set(keys)
    bench.truncate(2, 5)
    bench.clean()
    assert bench.fills() == set(keys), "retired segments may come back"
    bench.clock.advance(100 * HOUR_S)
    bench.clean()
    assert bench.fills() == bench.named() == set(keys[1:])
    done = [each for batch in read_batches(bench.store, STREAM, done=True) for each in batch.segments]
    assert [each.keys for each in done if each.keys[0].endswith("-fill")] == [(keys[0],)]
    assert read_fill(bench.store, STREAM, bench.state.fills[0]).payload_bytes == given(2).payload_bytes


def test_a_restored_truncation_has_its_fills_again() -> None:
    bench = Bench()
    bench.truncate(3)
    bench.clean()
    log = ManifestLog(bench.store, STREAM, clock=bench.clock)
    undo_retirements(log)
    bench.clock.advance(100 * HOUR_S)
    bench.clean()
    assert len(bench.fills()) == len(bench.named()) == 3
    assert missing_runs(bench.state, 1, 20) == []


def test_an_interrupted_purge_is_finished_by_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.truncate(2)
    bench.clean()
    bench.clock.advance(100 * HOUR_S)

    def killed(keys: Sequence[str]) -> Sequence[DeleteFailure]:
        if any(key.endswith("-fill") for key in keys):
            raise RuntimeError("killed")
        return ()

    with monkeypatch.context() as broken:
        broken.setattr(bench.store, "_delete", killed)
        with pytest.raises(RuntimeError):
            bench.clean()
    assert len(bench.fills()) == 3
    assert len(bench.named()) == 2
    bench.clean()
    assert bench.fills() == bench.named()


def test_an_orphaned_fill_goes_when_it_is_old_and_one_that_is_named_never_does() -> None:
    bench = Bench()
    orphan = bench.left_over()
    foreign = fill_key(STREAM, UUID(int=5))
    bench.store.put(foreign, b"somebody else's")
    bench.clock.advance(HOUR_S)
    bench.writer.log.commit([LedgerClosed(99, -1)])
    assert bench.orphans() == {
        orphan: (Reason.YOUNG, Outcome.KEPT),
        foreign: (Reason.FOREIGN, Outcome.KEPT),
    }
    bench.clock.advance(DAY_S)
    bench.writer.log.checkpoint()
    assert bench.orphans(delete=False)[orphan] == (Reason.UNNAMED, Outcome.DELETABLE)
    assert bench.orphans()[orphan] == (Reason.UNNAMED, Outcome.DELETED)
    assert bench.fills() == {*bench.named(), foreign}
    assert len(bench.named()) == 3


def test_an_orphaned_fill_that_is_younger_than_the_newest_record_stays() -> None:
    """The record after it may be lost, and that one alone would name it."""
    bench = Bench()
    orphan = bench.left_over()
    bench.clock.advance(2 * DAY_S)
    bench.store.put(orphan, encode_fill(given(1)), mode=OVERWRITE)
    bench.clock.advance(2 * DAY_S)
    assert bench.orphans() == {orphan: (Reason.UNTOLD, Outcome.KEPT)}


def test_a_fill_that_tells_of_a_lost_record_stops_every_deletion() -> None:
    bench = Bench()
    bench.left_over(offloaderrecord="9999")
    bench.clock.advance(HOUR_S)
    bench.writer.log.commit([LedgerClosed(99, -1)])
    bench.clock.advance(2 * DAY_S)
    before = bench.fills()
    with pytest.raises(LostRecordsError, match="refers to record 9999"):
        bench.orphans()
    assert bench.fills() == before
    assert "lost records" in {each.problem.value for each in find_unexpected(bench.store, bench.state)}


def test_a_dropped_fill_that_comes_back_is_an_orphan() -> None:
    bench = Bench()
    (first, *_) = bench.state.fills
    body = bench.store.get(fill_key(STREAM, first.uuid))[0]
    bench.truncate(2)
    bench.clean()
    bench.clock.advance(100 * HOUR_S)
    bench.clean()
    bench.store.put(fill_key(STREAM, first.uuid), body)  # as if its deletion had failed for good
    bench.clock.advance(2 * DAY_S)
    assert bench.orphans() == {fill_key(STREAM, first.uuid): (Reason.UNNAMED, Outcome.DELETED)}


def test_nothing_of_a_deleted_stream_stays() -> None:
    bench = Bench()
    bench.left_over()
    remove_stream(bench.store, STREAM, clock=bench.clock)
    bench.clock.advance(2 * DAY_S)
    list(cleanup_all(bench.store, clock=bench.clock))
    list(cleanup_all(bench.store, clock=bench.clock))
    assert [info.key for info in listed(bench.store, "") if info.key != TIME_KEY] == []


def test_verify_finds_a_flip_in_every_byte_of_a_fill() -> None:
    bench = Bench(1)
    state = bench.state
    (fill,) = state.fills
    assert list(check_fills(bench.store, state, deep=False)) == []
    assert list(check_fills(bench.store, state, deep=True)) == []
    assert list(find_unexpected(bench.store, state)) == []
    key = fill_key(STREAM, fill.uuid)
    whole = bytes(bench.store.get(key)[0])
    for at in range(len(whole)):
        bench.store.put(key, whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        (found,) = check_fills(bench.store, state, deep=True)
        assert (found.problem.value, found.key, found.segment, found.is_damage) == ("corrupt", key, fill.uuid, True)
    assert [each.problem.value for each in check_fills(bench.store, state, deep=False)] == ["changed"]
    bench.store.put(key, whole[:-1])
    assert [each.problem.value for each in check_fills(bench.store, state, deep=False)] == ["changed"]
    bench.store.delete([key])
    for deep in (False, True):
        assert [each.problem.value for each in check_fills(bench.store, state, deep=deep)] == ["missing"]


def test_verify_tells_orphaned_and_foreign_fills_apart() -> None:
    bench = Bench(1)
    orphan, foreign = bench.left_over(), fill_key(STREAM, UUID(int=5))
    bench.store.put(foreign, b"x")
    bench.clock.advance(1.0)
    bench.writer.log.commit([LedgerClosed(99, -1)])
    found = {each.key: each.problem.value for each in find_unexpected(bench.store, bench.state)}
    assert found == {orphan: "orphan", foreign: "foreign"}


def break_manifest(bench: Bench, *, records: bool) -> None:
    """A flipped bit in the first record; with ``records`` all of them are gone."""
    incarnation = bench.writer.log.state.incarnation
    if records:
        prefix = manifest_prefix(STREAM, incarnation)
        keys = [info.key for info in bench.store.list(prefix).objects]
        bench.store.delete([key for key in keys if key != boundary_key(STREAM, incarnation)])
    else:
        key = record_key(STREAM, incarnation, 1)
        body = bytearray(bench.store.get(key)[0])
        body[20] ^= 1
        bench.store.put(key, body, mode=OVERWRITE)
    with pytest.raises(CorruptError):
        load_manifest(bench.store, STREAM)


def rebuilt(bench: Bench, head: Position | None = None) -> Rebuild:
    return rebuild_manifest(
        bench.store, STREAM, head=head, clock=bench.clock, closed_ledgers=dict.fromkeys((1, 2, 3), 20)
    )


def test_a_rebuilt_manifest_has_its_fills_and_gaps_again() -> None:
    bench = Bench()
    before = bench.state
    orphan = bench.left_over()
    break_manifest(bench, records=False)
    damage = list(describe_damage(bench.store, STREAM, CorruptError("damaged")))
    assert {each.key for each in damage if each.problem.value == "orphan"} == {orphan}
    done = rebuilt(bench)
    after = bench.state
    assert after.fills == before.fills
    assert [gap.reason for gap in after.gaps] == [GapReason.UNDELIVERED] * 6
    assert list(done.missing) == []
    assert after.committed == before.committed
    assert [each.edit for each in done.fills] == list(before.fills)


def test_fills_alone_tell_a_rebuild_of_their_gaps() -> None:
    bench = Bench()
    before = bench.state
    break_manifest(bench, records=True)
    done = rebuilt(bench)
    after = bench.state
    assert after.fills == before.fills
    assert {gap.reason for gap in after.gaps} == {GapReason.FILLED}
    assert [(gap.first, gap.last) for gap in after.gaps] == [(gap.first, gap.last) for gap in before.gaps]
    assert (list(done.missing), after.committed) == ([], before.committed)


def test_a_rebuild_from_a_later_head_leaves_earlier_fills_alone() -> None:
    bench = Bench()
    break_manifest(bench, records=True)
    rebuilt(bench, Position(2, 0))
    assert [fill.first.ledger_id for fill in bench.state.fills] == [2, 3]
    assert len(bench.fills()) == 3


def test_a_damaged_fill_is_named_by_a_rebuild_and_its_entries_are_lost() -> None:
    bench = Bench(1)
    (fill,) = bench.state.fills
    key = fill_key(STREAM, fill.uuid)
    whole = bytes(bench.store.get(key)[0])
    bench.store.put(key, whole[:-1] + bytes([whole[-1] ^ 1]))
    break_manifest(bench, records=True)
    done = rebuilt(bench)
    assert [problem[0] for problem in done.problems] == [key]
    assert list(done.missing) == [(Position(1, 10), Position(1, 11))]
    assert bench.state.fills == ()


def test_a_fill_among_lost_entries_is_named_and_stays() -> None:
    bench = Bench(1)
    bench.store.delete(list(bench.state.segments.in_order()[1].object_keys(STREAM)))
    break_manifest(bench, records=False)
    done = rebuilt(bench)
    assert [problem[1] for problem in done.problems] == ["a fill among lost entries, kept"]
    assert list(done.missing) == [(Position(1, 12), Position(1, 19))]
    assert len(bench.fills()) == 1


def test_a_rebuilt_streams_fills_go_with_their_ledgers_and_with_the_stream() -> None:
    bench = Bench()
    break_manifest(bench, records=True)
    rebuilt(bench)
    bench.truncate(2)
    bench.clean()
    bench.clock.advance(100 * HOUR_S)
    bench.clean()
    assert len(bench.fills()) == len(bench.named()) == 2
    remove_stream(bench.store, STREAM, clock=bench.clock)
    assert bench.fills() == set()
