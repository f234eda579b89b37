"""Lost manifest records: a rogue lifecycle rule, a restored bucket, an operator's mistake.

Nothing is deleted because of a log that may be short, lost records are never skipped silently, and a rebuild never
joins over a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import TypeVar

import pytest

from formats.entries import Position
from formats.keys import (
    catalog_key,
    data_key,
    manifest_prefix,
    new_segment_uuid,
    parse_object_key,
    record_key,
    record_number,
)
from formats.manifest import LedgerClosed
from offloader.cli import manifest as manifest_verb
from offloader.cli.ledgers import LedgerArguments
from offloader.cli.options import StoreArguments
from offloader.cli.reading import verify
from offloader.errors import CorruptError, OffloaderError
from offloader.gc.plan import retired_groups
from offloader.gc.reconcile import Reconciliation
from offloader.gc.sweep import Sweeper, cleanup_stream, undo_retirements
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import expire_records
from offloader.manifest.protection import set_hold
from offloader.manifest.rebuild import Rebuild, rebuild_manifest
from offloader.read.reader import open_stream_reader
from offloader.retention.truncate import truncate_stream
from offloader.settings import ManifestSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.hot_release import release_hot_ledgers
from offloader.write.offloader import LedgerOffloader
from tests.proof.simulation.simulated_workers import SimulatedWorkers

STREAM = "many/s0"
SEGMENTS, ENTRIES = 6, 40
DAY_S = 24 * 3600.0
_names = count()
_Answer = TypeVar("_Answer")


class World:
    """A stream of six segments of forty entries, a ledger each, written by the product; a store from which records go.

    Args:
        settings: of the process.
    """

    def __init__(self, segments: int = SEGMENTS, settings: Settings | None = None) -> None:
        self.clock = ManualClock()
        self.settings = settings or Settings()
        self.memory = MemoryStore(f"lost-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.hot = MemoryLedgers(STREAM, self.clock)
        self.write(segments)

    def write(self, segments: int) -> None:
        """A process that offloads so many segments more, and ends."""
        workers = SimulatedWorkers(self.clock, Random(1))
        offloader = LedgerOffloader(self.store, self.settings, clock=self.clock, workers=workers)
        stream = offloader.offload_stream(self.hot, STREAM)
        for _ in range(segments):
            self.hot.append([b"entry %d" % number for number in range(ENTRIES)])
            self.hot.close_ledger()
            self.clock.advance(1.0)
            stream.request_offload()
            while workers.run_one():
                pass
        assert stream.status().committed == self.hot.tail
        stream.stop()
        offloader.close()

    @property
    def segment_keys(self) -> set[str]:
        return {i.key for i in self.memory.list("", limit=1000).objects if parse_object_key(i.key, STREAM) is not None}

    @property
    def records(self) -> list[int]:
        found = (record_number(info.key) for info in self.memory.list(f"{STREAM}/manifest/").objects)
        return sorted(number for number in found if number is not None)

    def lose(self, *numbers: int) -> None:
        incarnation = load_manifest(self.memory, STREAM).incarnation
        assert not self.memory.delete([record_key(STREAM, incarnation, number) for number in numbers])

    def lose_manifest(self) -> None:
        prefix = manifest_prefix(STREAM, load_manifest(self.memory, STREAM).incarnation)
        assert not self.memory.delete([info.key for info in self.memory.list(prefix).objects])

    def release_hot_copies(self) -> None:
        log = ManifestLog(self.store, STREAM, clock=self.clock)
        released = release_hot_ledgers(self.hot, log, now_ms=self.clock.now_ms(), lag_ms=0)
        assert len(released.deleted) == SEGMENTS
        assert not released.errors

    def read(self) -> int:
        """How many entries are read; -1: damage is named."""
        try:
            with open_stream_reader(self.memory, STREAM) as reader:
                return sum(len(batch) for batch in reader.scan())
        except CorruptError:
            return -1

    def log(self) -> ManifestLog:
        """Of somebody who isn't the owner, loaded."""
        log = ManifestLog(self.store, STREAM, clock=self.clock)
        log.load()
        return log

    def retire_first(self) -> None:
        """Retires the first segment."""
        truncate_stream(self.log(), Position(self.hot.ledgers()[1].ledger_id, 0), clock=self.clock)
        cleanup_stream(self.store, STREAM, clock=self.clock, settings=Settings())
        assert len(load_manifest(self.memory, STREAM).segments.retired()) == 1

    def clean(self) -> None:
        """Everything that deletes, a day later."""
        self.clock.advance(2 * DAY_S)
        with suppress(OffloaderError):
            list(Reconciliation(self.store, STREAM, clock=self.clock, delete=True).leftovers())
        with suppress(OffloaderError):
            cleanup_stream(self.store, STREAM, clock=self.clock)


def test_nothing_is_deleted_after_the_newest_two_records_were_lost() -> None:
    world = World()
    before = world.segment_keys
    assert len(before) == 2 * SEGMENTS
    world.lose(*world.records[-2:])

    world.clean()

    assert world.segment_keys == before


def test_lost_newest_records_are_reported_once_a_hot_copy_was_deleted() -> None:
    world = World()
    world.release_hot_copies()
    world.lose(*world.records[-2:])
    assert world.read() == -1


def test_records_lost_at_the_beginning_are_named_and_no_empty_stream() -> None:
    world = World(segments=10)
    before = world.segment_keys
    world.lose(1, 2)

    assert world.read() == -1
    world.clean()

    assert world.segment_keys == before


@pytest.mark.slow
@pytest.mark.parametrize("width", range(1, 6))
def test_a_gap_of_any_width_is_named(width: int) -> None:
    world = World()
    middle = world.records[3 : 3 + width]
    assert middle[-1] < world.records[-1]
    world.lose(*middle)
    assert world.read() == -1


def test_writer_refuses_segments_whose_manifest_is_lost() -> None:
    world = World()
    world.release_hot_copies()
    before = world.segment_keys
    world.lose_manifest()

    with pytest.raises(CorruptError):
        ManifestLog(world.store, STREAM, clock=world.clock).open_epoch()
    world.clean()

    assert world.read() == -1
    assert world.segment_keys == before
    assert world.records == []


def test_stream_over_existing_segments_is_created_only_by_setting() -> None:
    world = World()
    world.lose_manifest()
    world.memory.delete([catalog_key(STREAM)])

    with pytest.raises(CorruptError):
        ManifestLog(world.store, STREAM, clock=world.clock).open_epoch()

    told = ManifestSettings(create_over_segments=True)
    assert ManifestLog(world.store, STREAM, clock=world.clock, settings=told).open_epoch() == 1


@pytest.mark.slow
def test_verify_names_lost_records_with_exit_code_6(capsys: pytest.CaptureFixture[str]) -> None:
    newest, middle, everything = World(), World(), World()
    newest.lose(*newest.records[-2:])
    middle.lose(3, 4, 5)
    everything.lose_manifest()
    for world, says in (
        (newest, "the newest records are lost"),
        (middle, "records 3 to 5 are missing"),
        (everything, "but no manifest record"),
    ):
        assert verify([STREAM], StoreArguments(store=world.memory.url), deep=True) == 6
        assert says in capsys.readouterr().out


def test_lost_number_created_again_is_detected_by_the_next_record() -> None:
    world = World()
    stalled, other = world.log(), world.log()
    other.commit_as_maintainer([LedgerClosed(900, 1)])
    other.commit_as_maintainer([LedgerClosed(901, 1)])
    world.lose(world.records[-2])

    with suppress(OffloaderError):
        stalled.commit_as_maintainer([LedgerClosed(902, 1)])

    assert world.read() == -1


def test_a_sweeper_never_deletes_by_the_number_of_a_lost_undo() -> None:
    world = World()
    world.retire_first()
    before = world.segment_keys
    stalled = world.log()
    undo_retirements(world.log())
    world.lose(world.records[-1])

    sweeper = Sweeper(stalled, now_ms=world.clock.now_ms, by="a test")
    with suppress(OffloaderError):
        for group in retired_groups(stalled.state):
            sweeper.purge(group)

    assert world.segment_keys == before
    assert world.read() == -1


@pytest.mark.parametrize("what", ["undo", "hold"])
def test_reported_undo_or_hold_is_never_lost_silently(what: str) -> None:
    world = World()
    world.retire_first()
    if what == "undo":
        undo_retirements(world.log())
    else:
        set_hold(world.store, STREAM, on=True, reason="audit", clock=world.clock)
    world.lose(world.records[-1])
    before = world.segment_keys

    assert world.read() == -1
    world.clean()

    assert world.segment_keys == before


def test_purge_deletes_only_after_the_boundary_names_its_record() -> None:
    world = World()
    world.retire_first()
    world.clock.advance(30 * DAY_S)
    cleanup_stream(world.store, STREAM, clock=world.clock, settings=Settings())
    assert len(world.segment_keys) == 2 * (SEGMENTS - 1)
    world.lose(world.records[-1])
    assert world.read() == -1


def test_objects_of_lost_records_stay_when_a_new_epoch_takes_the_numbers() -> None:
    world = World()
    before = world.segment_keys
    world.lose(*world.records[-2:])
    world.write(2)

    world.clean()

    assert world.segment_keys > before


def test_late_writes_under_forgotten_names_are_still_swept() -> None:
    """The late object's metadata names a record that exists."""
    world = World()
    keep = world.segment_keys
    [last] = [key for key in sorted(keep) if not key.endswith("-index")][-1:]
    metadata = world.memory.head(last).metadata
    late = data_key(STREAM, new_segment_uuid(load_manifest(world.memory, STREAM).incarnation, 5))
    world.memory.put(late, b"late", metadata=metadata)

    world.clean()

    assert world.segment_keys == keep


def test_object_of_unknown_age_is_kept_until_a_newer_record_exists() -> None:
    world = World()
    world.clock.advance(5.0)
    untold = data_key(STREAM, new_segment_uuid(load_manifest(world.memory, STREAM).incarnation, 5))
    world.memory.put(untold, b"of an earlier release")
    world.clean()
    assert untold in world.segment_keys

    world.log().commit_as_maintainer([LedgerClosed(900, 1)])
    world.clean()
    assert untold not in world.segment_keys


class _Meanwhile(StoreWrapper):
    """Does something before the first listing of a manifest."""

    def __init__(self, inner: ObjectStore, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._act: Callable[[], object] | None = act

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        if request.verb == "list" and self._act is not None:
            act, self._act = self._act, None
            act()
        return call()


def test_a_reader_beside_the_deleter_of_old_records_names_no_damage() -> None:
    world = World()

    def expire() -> None:
        log = world.log()
        for number in range(5):
            log.commit_as_maintainer([LedgerClosed(900 + number, 1)])
        log.checkpoint()
        world.clock.advance(3 * DAY_S)
        log.commit_as_maintainer([LedgerClosed(910, 1)])
        log.checkpoint()
        expire_records(world.memory, log.state, clock=world.clock)

    state = load_manifest(_Meanwhile(world.memory, expire), STREAM)

    assert state == load_manifest(world.memory, STREAM)


def test_open_log_refuses_a_store_restored_to_an_earlier_record() -> None:
    """A restored bucket: its log ends below what a process has read, under another record."""
    world = World()
    seen = world.log()
    seen.commit_as_maintainer([LedgerClosed(900, 1)])
    world.lose(world.records[-1])
    other = world.log()
    for number in range(3):
        other.commit_as_maintainer([LedgerClosed(901 + number, 1)])

    with pytest.raises(OffloaderError):
        seen.commit_as_maintainer([LedgerClosed(905, 1)])


def rebuilt(world: World, **more: object) -> Rebuild:
    return rebuild_manifest(world.memory, STREAM, head=None, clock=world.clock, **more)  # type: ignore[arg-type]


def test_rebuild_accepts_a_stream_whose_newest_records_are_lost() -> None:
    world = World()
    world.lose(*world.records[-2:])

    rebuilt(world)

    state = load_manifest(world.memory, STREAM)
    assert state.sums.entries == SEGMENTS * ENTRIES


def test_a_rebuild_never_joins_over_a_segment_that_a_record_names() -> None:
    world = World(segments=3)
    state = load_manifest(world.memory, STREAM)
    [_, second, _] = list(state.offloaded())
    gone = second.begin, second.end
    world.memory.delete(list(second.object_keys(STREAM)))
    world.lose(world.records[0])

    done = rebuilt(world)

    after = load_manifest(world.memory, STREAM)
    assert [(gap.first, gap.last) for gap in after.gaps] == [gone]
    assert list(done.missing) == [gone]
    assert after.committed_end() == world.hot.tail


def test_a_rebuild_never_joins_over_a_segment_that_only_an_index_names() -> None:
    world = World(segments=3)
    [_, second, _] = list(load_manifest(world.memory, STREAM).offloaded())
    world.memory.delete([second.object_keys(STREAM)[0]])
    world.lose_manifest()

    done = rebuilt(world)

    assert list(done.missing) == [(second.begin, second.end)]
    assert [(gap.first, gap.last) for gap in load_manifest(world.memory, STREAM).gaps] == [(second.begin, second.end)]


def test_a_sound_manifest_is_still_never_rebuilt() -> None:
    world = World()
    with pytest.raises(OffloaderError, match="can be read"):
        rebuilt(world)
    assert world.read() == SEGMENTS * ENTRIES


@pytest.mark.slow
def test_rebuild_with_a_loss_exits_with_6_unless_the_loss_is_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for accepted, code in (None, 6), (["2:0..2:38"], 6), (["2:0..2:39"], 0):
        world = World(segments=3)
        [_, second, _] = list(load_manifest(world.memory, STREAM).offloaded())
        assert (second.begin, second.end) == (Position(2, 0), Position(2, 39))
        world.memory.delete(list(second.object_keys(STREAM)))
        world.lose(world.records[0])
        done = manifest_verb.rebuild(
            STREAM, LedgerArguments(store=world.memory.url), head="first", accept_loss=accepted
        )
        assert done == code
        assert "missing: 2:0..2:39" in capsys.readouterr().out
        assert load_manifest(world.memory, STREAM).committed_end() == world.hot.tail
