"""Truncation of a stream: in the manifest, in the hot tier, for readers, and for an active writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from formats.entries import Position
from formats.manifest import Assign, Gap, Hold, LedgerClosed, LedgersDeleted, SetMethod, Truncate
from offloader.coverage import GapReason
from offloader.errors import FencedError, InvalidCallError, NotFoundError, StoreUnavailableError, TrimmedError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.load import kept_records
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.protection import DeletionStoppedError, lift_global_hold, set_global_hold, set_hold
from offloader.manifest.state import EditRefusedError
from offloader.read.reader import open_stream_reader
from offloader.retention.truncate import Truncation, truncate_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.stream import Mode
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

STREAM = "public/default/persistent/orders"
_names = count()


class Bench:
    """Ledgers 1 to 3 with ten entries each; 1 and 2 closed, 3 open."""

    def __init__(self, *, offloaded: Sequence[int] = (1, 2)) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"truncation-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.hot = MemoryLedgers(STREAM, self.clock)
        for ledger in (1, 2, 3):
            assert self.hot.append([f"{ledger}:{entry}".encode() for entry in range(10)]).ledger_id == ledger
            if ledger < 3:
                self.hot.close_ledger()
        self.writer = StreamWriter(self.memory, STREAM)
        for ledger in offloaded:
            self.writer.add([batch_of(ledger, 0, 10)], closes=[ledger])

    def truncate(self, ledger_id: int, entry_id: int, *, hot: bool = True, **how: Any) -> Truncation:
        return truncate_stream(
            ManifestLog(self.store, STREAM, clock=self.clock),
            Position(ledger_id, entry_id),
            clock=self.clock,
            source=self.hot if hot else None,
            **how,
        )

    @property
    def hot_ids(self) -> list[int]:
        return [info.ledger_id for info in self.hot.ledgers()]


def test_head_and_ledger_marks_are_one_record_and_whole_hot_ledgers_are_deleted() -> None:
    bench = Bench()
    done = bench.truncate(2, 4)

    state = load_manifest(bench.store, STREAM)
    assert (state.head, set(state.deleted_ledgers)) == (Position(2, 4), {1})
    [newest] = kept_records(bench.memory, state, newest_first=True, count=1)
    assert newest.edits == (LedgersDeleted((1,)), Truncate(Position(2, 4)))
    assert (done.head_before, done.ledgers, done.hot_ledgers, done.record_id) == (None, (1,), (1,), newest.record_id)
    assert (done.segments, done.entries) == (1, 10)
    assert bench.hot_ids == [2, 3]


def test_dry_run_equals_the_truncation_and_changes_nothing() -> None:
    bench = Bench()
    before = load_manifest(bench.store, STREAM)
    said = bench.truncate(3, 0, dry_run=True)
    assert (load_manifest(bench.store, STREAM), bench.hot_ids) == (before, [1, 2, 3])
    done = bench.truncate(3, 0)
    assert (said.head, said.ledgers, said.hot_ledgers, said.entries, said.record_id) == (
        done.head, done.ledgers, done.hot_ledgers, done.entries, None,
    )  # fmt: skip
    assert bench.hot_ids == [3]


def test_a_segment_that_ends_where_the_stream_begins_isn_t_counted_as_going() -> None:
    done = Bench().truncate(2, 9, dry_run=True)
    assert (done.segments, done.entries) == (1, 10)


def test_truncation_before_the_head_moves_nothing() -> None:
    bench = Bench()
    bench.truncate(2, 4)
    again = bench.truncate(1, 3)
    assert (again.head, again.record_id, again.moves) == (Position(2, 4), None, False)
    assert load_manifest(bench.store, STREAM).head == Position(2, 4)


def test_reads_before_the_head_are_trimmed_and_name_it_in_both_tiers() -> None:
    bench = Bench()
    bench.truncate(2, 4)
    for source in (None, bench.hot):
        reader = open_stream_reader(bench.memory, STREAM, source=source)
        assert reader.first_position == Position(2, 4)
        for first in (Position(1, 0), Position(2, 3)):
            with pytest.raises(TrimmedError, match="begins at 2:4") as raised:
                reader.read(first, Position(2, 9))
            assert raised.value.first_available == Position(2, 4)
        assert len(reader.read(Position(2, 4), Position(2, 9))) == 6


def test_nothing_moves_the_head_past_the_committed_end_unless_it_is_forced() -> None:
    bench = Bench(offloaded=[1])
    before = load_manifest(bench.store, STREAM)
    for position in ((2, 1), (3, 0), (3, 5)):
        with pytest.raises(EditRefusedError, match=r"past the committed end 1:9.*--force"):
            bench.truncate(*position)
    assert (load_manifest(bench.store, STREAM), bench.hot_ids) == (before, [1, 2, 3])
    bench.truncate(2, 0)  # right after the committed end: ledger 1 is closed there
    assert load_manifest(bench.store, STREAM).head == Position(2, 0)


def test_forced_truncation_records_a_gap_and_fails_assigned_segments() -> None:
    bench = Bench(offloaded=[1])
    log = bench.writer.log
    log.commit([Assign(UUID(int=77), 2, Position(2, 0), None, 1, {})])

    done = bench.truncate(3, 4, force=True, take_over=True)

    assert done.gaps == (Gap(Position(1, 10), Position(3, 3), GapReason.TRUNCATED),)
    assert done.failed == (UUID(int=77),)
    state = load_manifest(bench.store, STREAM)
    assert (state.head, state.committed_end(), state.assigned()) == (Position(3, 4), Position(3, 3), [])
    assert set(state.deleted_ledgers) == {1, 2}
    assert bench.hot_ids == [3]
    with pytest.raises(FencedError):
        log.commit([LedgerClosed(2, 9)])


def test_forced_truncation_ends_before_a_later_promised_segment() -> None:
    bench = Bench(offloaded=[1])
    before, after = UUID(int=77), UUID(int=78)
    bench.writer.log.commit([LedgerClosed(2, 9), Assign(before, 2, Position(2, 0), Position(2, 9), 1, {})])
    bench.writer.log.commit([Assign(after, 2, Position(3, 0), None, 1, {})])
    # Nobody asks the hot tier: that there is something up to there is known by the promise alone.
    done = bench.truncate(3, 0, hot=False, force=True, take_over=True)
    assert (done.failed, done.gaps) == ((before,), (Gap(Position(1, 10), Position(3, -1), GapReason.TRUNCATED),))
    state = load_manifest(bench.store, STREAM)
    assert (state.head, [each.uuid for each in state.assigned()]) == (Position(3, 0), [after])


def test_living_owner_is_fenced_only_on_request() -> None:
    bench = Bench(offloaded=[1])
    bench.clock.set_now_ms(load_manifest(bench.store, STREAM).time_ms + 1000)
    with pytest.raises(FencedError, match="--take-over"):
        bench.truncate(3, 0, force=True)
    assert bench.truncate(3, 0, force=True, take_over=True).gaps


def test_head_past_the_newest_entry_is_refused() -> None:
    """Entries written later would be before it."""
    bench = Bench()
    for force in (False, True):
        with pytest.raises((InvalidCallError, EditRefusedError)):
            bench.truncate(3, 11, force=force, take_over=True)
    with pytest.raises(InvalidCallError, match="neither the manifest nor the hot tier has entries up to 3:5"):
        bench.truncate(3, 5, force=True, take_over=True, hot=False)
    with pytest.raises(InvalidCallError, match="not a position"):
        bench.truncate(1, -1)
    assert bench.truncate(3, 10, force=True, take_over=True).head == Position(3, 10)


def test_ledger_method_truncates_unoffloaded_ledgers_only_as_a_whole() -> None:
    """The rest of it could never be offloaded: a ledger is offloaded into one object as a whole."""
    bench = Bench(offloaded=[1])
    log = ManifestLog(bench.memory, STREAM, clock=bench.clock)
    log.load()
    log.commit_as_maintainer([SetMethod("ledger")])
    with pytest.raises(InvalidCallError, match="whole ledgers only") as raised:
        bench.truncate(2, 4, force=True, take_over=True)
    assert "2:0" in raised.value.hint
    assert bench.truncate(1, 4).head == Position(1, 4)
    assert bench.truncate(2, 10, force=True, take_over=True).ledgers == (1, 2)
    assert bench.truncate(3, 0).head == Position(3, 0)


def test_without_a_method_only_the_hot_tier_is_truncated() -> None:
    bench = Bench(offloaded=[])
    log = ManifestLog(bench.memory, STREAM, clock=bench.clock)
    log.load()
    log.commit_as_maintainer([SetMethod("none")])
    bench.truncate(3, 2)
    state = load_manifest(bench.store, STREAM)
    assert (state.head, state.gaps, bench.hot_ids) == (Position(3, 2), (), [3])
    reader = open_stream_reader(bench.memory, STREAM, source=bench.hot)
    assert reader.first_position == Position(3, 2)
    with pytest.raises(TrimmedError):
        reader.read(Position(3, 0), Position(3, 9))


def test_stream_without_offloading_loses_whole_hot_ledgers() -> None:
    bench = Bench()
    log = ManifestLog(MemoryStore(f"truncation-{next(_names)}", "", bench.clock), STREAM, clock=bench.clock)
    done = truncate_stream(log, Position(2, 5), clock=bench.clock, source=bench.hot, method="none")
    assert (done.record_id, done.hot_ledgers, bench.hot_ids) == (None, (1,), [2, 3])
    assert (done.ledgers, done.closed) == ((), ()), "there is no manifest to say it in"
    with pytest.raises(NotFoundError):
        truncate_stream(log, Position(2, 5), clock=bench.clock)


def test_stream_not_yet_offloaded_keeps_its_hot_ledgers_unless_forced() -> None:
    bench = Bench()
    store = MemoryStore(f"truncation-{next(_names)}", "", bench.clock)

    def truncate(**how: Any) -> Truncation:
        log = ManifestLog(store, STREAM, clock=bench.clock)
        return truncate_stream(log, Position(2, 5), clock=bench.clock, source=bench.hot, **how)

    with pytest.raises(EditRefusedError, match="nothing is offloaded") as refused:
        truncate()
    assert "--force" in refused.value.hint
    assert (bench.hot_ids, store.list("").objects) == ([1, 2, 3], ())
    planned = truncate(force=True, dry_run=True)
    assert (planned.gaps, planned.ledgers, store.list("").objects) == (
        (Gap(Position(1, 0), Position(2, 4), GapReason.TRUNCATED),),
        (1,),
        (),
    )
    assert truncate(force=True).gaps == planned.gaps
    state = load_manifest(store, STREAM)
    assert (state.head, state.gaps, bench.hot_ids) == (Position(2, 5), planned.gaps, [2, 3])


def test_hold_and_global_hold_refuse_truncation() -> None:
    bench = Bench()
    log = ManifestLog(bench.memory, STREAM, clock=bench.clock)
    log.load()
    log.commit_as_maintainer([Hold(True, "court")])
    with pytest.raises(EditRefusedError, match="on hold"):
        bench.truncate(2, 0)
    log.commit_as_maintainer([Hold(False, "")])
    set_global_hold(bench.memory, by="ops", reason="restore under way", now_ms=1)
    with pytest.raises(DeletionStoppedError, match="ops: restore under way"):
        bench.truncate(2, 0)
    lift_global_hold(bench.memory)
    assert bench.truncate(2, 0).record_id
    assert bench.hot_ids == [2, 3]


def test_open_hot_ledger_before_the_head_is_deleted_once_closed() -> None:
    """The process that appends to it doesn't know of the truncation."""
    bench = Bench()
    ledgers, still_open = bench.hot.ledgers, [1]

    def found() -> list[LedgerInfo]:
        return [replace(info, closed=False) if info.ledger_id in still_open else info for info in ledgers()]

    bench.hot.ledgers = found  # type: ignore[method-assign]
    assert bench.truncate(3, 0, dry_run=True).hot_ledgers == (2,)
    assert [bench.truncate(3, 0).hot_ledgers for _ in range(2)] == [(2,), ()]
    assert bench.hot_ids == [1, 3]
    still_open.clear()
    assert bench.truncate(3, 0).hot_ledgers == (1,)
    assert bench.hot_ids == [3]


def test_hot_ledgers_that_can_t_be_deleted_are_named_and_tried_again() -> None:
    bench = Bench()
    delete, refusing = bench.hot.delete, [True]

    def refuse(ledger_id: int) -> None:
        if refusing and ledger_id == 1:
            raise StoreUnavailableError("the disk is full")
        delete(ledger_id)

    bench.hot.delete = refuse  # type: ignore[method-assign]
    done = bench.truncate(3, 0)
    assert [(ledger_id, str(error)) for ledger_id, error in done.hot_kept] == [(1, "the disk is full")]
    assert bench.hot_ids == [1, 3]
    refusing.clear()
    assert bench.truncate(3, 0).hot_ledgers == (1,)
    assert bench.hot_ids == [3]


@pytest.mark.parametrize("everything", [False, True])
def test_hold_that_is_set_once_a_truncation_is_recorded_keeps_the_hot_ledgers(everything: bool) -> None:
    bench = Bench()
    ledgers, held = bench.hot.ledgers, list[bool]()

    def found() -> list[LedgerInfo]:
        if not held and load_manifest(bench.memory, STREAM).head is not None:
            held.append(True)
            if everything:
                set_global_hold(bench.memory, by="ops", reason="restore under way", now_ms=1)
            else:
                set_hold(bench.memory, STREAM, on=True, reason="court", clock=bench.clock)
        return ledgers()

    bench.hot.ledgers = found  # type: ignore[method-assign]
    done = bench.truncate(3, 0)
    assert held
    assert bench.hot_ids == [1, 2, 3]
    assert [ledger_id for ledger_id, _ in done.hot_kept] == [1, 2]


def test_hot_ledgers_that_a_truncation_left_stay_while_the_stream_is_on_hold() -> None:
    bench = Bench()
    bench.truncate(3, 0, hot=False)
    set_hold(bench.memory, STREAM, on=True, reason="court", clock=bench.clock)
    planned, done = (bench.truncate(3, 0, dry_run=dry_run) for dry_run in (True, False))
    assert bench.hot_ids == [1, 2, 3]
    for each in (planned, done):
        assert [(ledger_id, "on hold" in str(error)) for ledger_id, error in each.hot_kept] == [(1, True), (2, True)]
    set_hold(bench.memory, STREAM, on=False, reason="", clock=bench.clock)
    assert bench.truncate(3, 0).hot_ledgers == (1, 2)
    assert bench.hot_ids == [3]


# -- the embedded managed ledger


def _settings(**changes: object) -> Settings:
    offload = {"block_size": 1024, "segment_size_max": "16KiB", "retry_delay_max": 0.01, **changes}
    return Settings.of({"offload": offload, "ledgers": {"ledger_entries_max": 20}})


Open = Callable[..., ManagedLedger]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"truncation-{next(_names)}", "", SystemClock())


def _topic(tmp_path: Path, store: MemoryStore, **changes: object) -> ManagedLedger:
    return open_managed_ledger(
        STREAM, ledgers=f"sqlite:///{tmp_path}/ledgers.db", store=store, settings=_settings(**changes)
    )


def _append(topic: ManagedLedger, first: int, count: int) -> list[Position]:
    return [topic.append(f"entry {number}".encode()) for number in range(first, first + count)]


def test_managed_ledger_appends_while_its_stream_is_truncated(tmp_path: Path, store: MemoryStore) -> None:
    with _topic(tmp_path, store) as topic:
        positions = _append(topic, 0, 50)
        topic.offload()
        topic.truncate(positions[30])
        positions += _append(topic, 50, 30)
        topic.offload()
        assert [bytes(e.payload) for e in topic.read(positions[30], positions[-1])] == [
            f"entry {number}".encode() for number in range(30, 80)
        ]
        with pytest.raises(TrimmedError):
            topic.read(positions[29], positions[-1])
        assert topic.ledgers()[0].ledger_id == positions[30].ledger_id


def test_database_notes_the_record_before_its_ledgers_are_deleted(tmp_path: Path, store: MemoryStore) -> None:
    with _topic(tmp_path, store) as topic:
        positions = _append(topic, 0, 50)
        topic.offload()
        done = topic.truncate(positions[30])
        assert done.hot_ledgers
        assert done.record_id is not None
        state = load_manifest(store, STREAM)
        database = EmbeddedLedgers(f"sqlite:///{tmp_path}/ledgers.db")
        noted = dict(database.view_stream(STREAM).noted_manifests())
        database.close()
        assert noted[state.incarnation] >= done.record_id


def test_hot_ledgers_whose_database_cannot_note_the_record_are_kept_with_the_reason(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise StoreUnavailableError("the disk is full")

    with _topic(tmp_path, store) as topic:
        positions = _append(topic, 0, 50)
        topic.offload()
        ledgers = [info.ledger_id for info in topic.ledgers()]
        with monkeypatch.context() as patch:
            patch.setattr(EmbeddedStream, "note_manifest", refused)
            done = topic.truncate(positions[30])
        assert done.record_id is not None
        assert dict(done.hot_kept).keys() == set(done.hot_ledgers)
        assert [info.ledger_id for info in topic.ledgers()] == ledgers
        again = topic.truncate(positions[30])
        assert (again.hot_ledgers, again.hot_kept) == (done.hot_ledgers, ())


@pytest.mark.slow
def test_writer_continues_at_the_head_after_its_own_forced_truncation(tmp_path: Path, store: MemoryStore) -> None:
    with _topic(tmp_path, store) as topic:
        positions = _append(topic, 0, 50)
        topic.offload(positions[9])
        positions += _append(topic, 50, 30)
        with pytest.raises(EditRefusedError, match="committed end"):
            topic.truncate(positions[75])
        done = topic.truncate(positions[75], force=True)
        assert done.gaps
        positions += _append(topic, 80, 40)
        topic.offload()
        state = load_manifest(store, STREAM)
        assert (state.head, state.committed_end()) == (positions[75], positions[-1])
        stored = [position for position, _ in stored_entries(store, STREAM) if position >= positions[75]]
        assert stored == positions[75:]
        assert [bytes(e.payload) for e in topic.read(positions[75], positions[-1])] == [
            f"entry {number}".encode() for number in range(75, 120)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("at", [75, 45, 79])
def test_living_writer_elsewhere_is_fenced_and_continues_at_the_head(
    tmp_path: Path, store: MemoryStore, at: int
) -> None:
    with _topic(tmp_path, store, takeover_after=0.05) as topic:
        positions = _append(topic, 0, 30)
        topic.offload()
        positions += _append(topic, 30, 50)  # gathering: neither full nor old
        log = ManifestLog(store, STREAM, clock=SystemClock())
        done = truncate_stream(
            log, positions[at], clock=SystemClock(), source=topic._parts.tail, force=True, take_over=True
        )
        assert done.gaps
        positions += _append(topic, 80, 40)

        # It hears of it with its next record; then it waits until the stream looks abandoned, and takes it back.
        def arrived() -> bool:
            try:
                return topic.offload(timeout_s=1) == positions[-1]
            except (FencedError, StoreUnavailableError):
                return False

        eventually(arrived)
        state = load_manifest(store, STREAM)
        assert (state.head, state.committed_end()) == (positions[at], positions[-1])
        assert [p for p, _ in stored_entries(store, STREAM) if p >= positions[at]] == positions[at:]

        def is_live() -> bool:
            status = topic.status()
            return status is not None and status.mode is Mode.LIVE

        eventually(is_live)  # whoever waits for the commit hears of it before the next step


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 5])
def test_repeated_truncations_of_an_active_stream_keep_later_entries(
    tmp_path: Path, store: MemoryStore, seed: int
) -> None:
    random = Random(seed)
    with _topic(tmp_path, store, segment_size_max=2097) as topic:
        positions: list[Position] = []
        head = Position(0, 0)
        for turn in range(60):
            positions += [topic.append(random.randbytes(100)) for _ in range(random.randint(1, 8))]
            status = topic.status()
            assert status is not None
            if turn % 4 or status.committed is None:
                continue
            end = load_manifest(store, STREAM).committed_end()
            is_forced = random.random() < 0.2
            committed = [position for position in positions if end is not None and position <= end]
            chosen = random.choice(positions[-10:] if is_forced else committed[-40:])
            head = topic.truncate(chosen, force=is_forced).head
        topic.offload()
        assert load_manifest(store, STREAM).committed_end() == positions[-1]
        kept = [position for position in positions if position >= head]
        assert [entry.position for entry in topic.read(kept[0], positions[-1])] == kept
        if kept[0] > positions[0]:
            with pytest.raises(TrimmedError):
                topic.read(positions[0], positions[-1])


def test_truncation_of_a_deleted_stream_keeps_hot_ledgers_of_the_next() -> None:
    bench = Bench()
    old = bench.writer.log.state.incarnation
    store = MemoryStore(f"truncation-{next(_names)}", "", bench.clock)
    log = ManifestLog(store, STREAM, clock=bench.clock, incarnation=old)
    with pytest.raises(NotFoundError):
        truncate_stream(log, Position(3, 0), clock=bench.clock, source=bench.hot)
    assert bench.hot_ids == [1, 2, 3]


@pytest.mark.slow
def test_managed_ledger_keeps_entries_while_its_manifest_cannot_be_created(tmp_path: Path, store: MemoryStore) -> None:
    """No entry is accepted before the manifest records the start; entries accepted later wait for the store."""
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    faulty = FaultyStore(store, [Fault(call=1, calls=10**6, verb="put", key_part="_catalog/")])
    with pytest.raises(StoreUnavailableError, match="_catalog/"):
        open_managed_ledger(STREAM, ledgers=ledgers, store=faulty, settings=_settings())
    with pytest.raises(NotFoundError):
        load_manifest(store, STREAM)
    faulty.set_faults([])
    with open_managed_ledger(STREAM, ledgers=ledgers, store=faulty, settings=_settings()) as topic:
        faulty.set_faults([Fault(call=1, calls=10**6, verb="put", key_part="/manifest/")])
        positions = _append(topic, 0, 50)
        with pytest.raises(EditRefusedError, match="nothing is offloaded"):
            topic.truncate(positions[30])
        assert topic.ledgers()[0].ledger_id == positions[0].ledger_id
        faulty.set_faults([])
        topic.offload()
        assert [position for position, _ in stored_entries(store, STREAM)] == positions


def test_a_managed_ledger_without_a_method_loses_its_hot_ledgers(tmp_path: Path, store: MemoryStore) -> None:
    with _topic(tmp_path, store, method="none") as topic:
        positions = _append(topic, 0, 50)
        topic.truncate(positions[30])
        assert topic.ledgers()[0].ledger_id == positions[30].ledger_id
        assert store.list("").objects == ()


@pytest.mark.slow
def test_stream_with_offloading_switched_off_truncates_beyond_offloaded_entries(
    tmp_path: Path, store: MemoryStore
) -> None:
    with _topic(tmp_path, store) as topic:
        positions = _append(topic, 0, 30)
        topic.offload()
    with _topic(tmp_path, store, method="none") as topic:
        positions += _append(topic, 30, 50)
        topic.truncate(positions[70])
        assert len(topic.read(positions[70], positions[-1])) == 10
        with pytest.raises(TrimmedError):
            topic.read(positions[69], positions[-1])
    with _topic(tmp_path, store) as topic:  # and on again
        positions += _append(topic, 80, 10)
        topic.offload()
        assert load_manifest(store, STREAM).committed_end() == positions[-1]
        assert len(topic.read(positions[70], positions[-1])) == 20
