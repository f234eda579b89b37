"""A paused stream completes its open segment, assigns nothing, and continues exactly where it stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from random import Random

import pytest

from formats.manifest import Assign, Edit, Offloaded, Pause, Resume, decode_record
from offloader.errors import NotFoundError
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.state import StreamPaused
from offloader.monitor import Watchdog, manifest_document, stream_document, with_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.write.machine import LOOK_MAX_S
from offloader.write.stream import Mode
from offloader.write.stream_state import StreamStatus
from tests.proof.simulation.simulated_world import STREAM, World
from tests.support.readback import stored_entries
from tests.support.waiting import PATIENCE_S, eventually

KIB = 1024
_names = count()


def made_settings(**offload: object) -> Settings:
    limits = {"block_size": 512, "segment_size_max": "8KiB", "deletion_lag": "0m", **offload}
    return Settings.of({"offload": limits, "manifest": {"record_requests_max": 1}})


class Bench:
    """One stream in a world without threads, and somebody in another process who pauses and resumes it."""

    def __init__(self, **offload: object) -> None:
        self.world = World(f"pausing-{next(_names)}", Random(5), lambda _: made_settings(**offload))
        self.process = self.world.start()

    def append(self, entries: int = 4, size: int = 500) -> None:
        self.world.ledgers.append([bytes([number]) * size for number in range(entries)])

    def work(self, turns: int = 60) -> None:
        for _ in range(turns):
            if not self.process.workers.ready:
                return
            self.world.work()

    def commit_as_maintainer(self, edit: Edit) -> None:
        log = ManifestLog(self.world.store, STREAM, clock=self.world.clock)
        log.load()
        log.commit_as_maintainer([edit])

    def pass_time(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.work()

    @property
    def status(self) -> StreamStatus:
        assert self.process.stream is not None
        return self.process.stream.status()

    def edits(self) -> list[Edit]:
        keys = sorted(i.key for i in self.world.store.list("").objects if i.key.endswith(".json"))
        return [edit for key in keys for edit in decode_record(self.world.store.get(key)[0]).edits]

    def assigned_while_paused(self) -> int:
        paused, found = False, 0
        for edit in self.edits():
            paused = isinstance(edit, Pause) or (paused and not isinstance(edit, Resume))
            found += paused and isinstance(edit, Assign)
        return found

    def require_all(self) -> None:
        assert stored_entries(self.world.store, STREAM) == self.world.ledgers.appended


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_pause_completes_the_open_segment_and_assigns_no_other(bench: Bench) -> None:
    """The writer notices with the record that ends the segment, and takes no entry from there on."""
    bench.append()
    bench.work()
    assert len(load_manifest(bench.world.store, STREAM).assigned()) == 1
    bench.commit_as_maintainer(Pause("maintenance"))
    bench.append(30)  # completes the segment, and begins another
    bench.work()

    state = load_manifest(bench.world.store, STREAM)
    assert (state.paused, state.assigned(), len(state.offloaded())) == (True, [], 1)
    assert (bench.status.mode, bench.status.buffer_bytes) == (Mode.PAUSED, 0)
    assert bench.world.ledgers.released == bench.status.committed == state.committed_end()
    bench.append(30)
    bench.work()
    assert bench.status.offered == bench.status.committed, "later entries stay in the hot tier"
    assert bench.assigned_while_paused() == 0
    assert "paused" in str(bench.status.mode.value)

    bench.commit_as_maintainer(Resume())
    bench.pass_time(LOOK_MAX_S)
    assert bench.status.mode in (Mode.LIVE, Mode.CATCH_UP)
    bench.world.come_to_rest()
    bench.world.check()
    bench.require_all()
    uuids = [edit.uuid for edit in bench.edits() if isinstance(edit, Assign)]
    done = [edit.uuid for edit in bench.edits() if isinstance(edit, Offloaded)]
    assert uuids == done, "nothing was sent twice"


def test_paused_stream_polls_only_with_entries_waiting_and_ever_more_rarely(bench: Bench) -> None:
    bench.append()
    assert bench.process.stream is not None
    bench.process.stream.request_offload()
    bench.work()
    bench.commit_as_maintainer(Pause(""))
    bench.process.stream.wake()
    bench.work()
    assert bench.status.mode is Mode.PAUSED
    before = bench.process.store.calls
    for _ in range(10):
        bench.pass_time(600)
    assert bench.process.store.calls == before, "everything is offloaded: it needn't know"

    bench.append()
    bench.work()
    looks = []
    for second in range(400):
        calls = bench.process.store.calls
        bench.pass_time(1)
        if bench.process.store.calls > calls:
            looks.append(second)
            assert bench.process.store.calls - calls <= 3
    distances = [later - earlier for earlier, later in pairwise(looks)]
    assert distances == sorted(distances)
    assert distances[-1] == LOOK_MAX_S
    assert bench.assigned_while_paused() == 0


def test_writer_started_over_a_paused_stream_opens_no_epoch(bench: Bench) -> None:
    bench.append()
    bench.work()
    bench.commit_as_maintainer(Pause(""))
    bench.process.store.dead = True
    epoch = load_manifest(bench.world.store, STREAM).epoch
    bench.world.bury()
    bench.process = bench.world.processes[-1]
    bench.work()
    state = load_manifest(bench.world.store, STREAM)
    assert (state.epoch, bench.status.mode) == (epoch, Mode.PAUSED)
    assert len(state.assigned()) == 1, "what the last one left is settled when the stream goes on"
    bench.commit_as_maintainer(Resume())
    bench.world.come_to_rest()
    bench.world.check()
    bench.require_all()


@pytest.mark.slow
def test_paused_backfill_completes_assigned_segments_and_the_next_continues() -> None:
    bench = Bench(backfill_segments_in_flight_max=2)
    bench.process.die()
    bench.append(200)
    bench.world.processes.clear()
    bench.process = bench.world.start()
    while not load_or_none(bench):
        bench.world.work()
    bench.commit_as_maintainer(Pause(""))
    bench.work(2000)
    state = load_manifest(bench.world.store, STREAM)
    assert (state.assigned(), len(state.offloaded())) == ([], 2)
    assert bench.status.mode is Mode.PAUSED
    assert bench.assigned_while_paused() == 0
    bench.commit_as_maintainer(Resume())
    bench.world.come_to_rest()
    bench.world.check()
    bench.require_all()


def load_or_none(bench: Bench) -> bool:
    """Whether something is assigned."""
    try:
        return bool(load_manifest(bench.world.store, STREAM).assigned())
    except NotFoundError:
        return False


def test_manual_offload_of_a_paused_stream_is_refused_unless_nothing_is_due(bench: Bench) -> None:
    runs = bench.process.offloader.history
    with pytest.raises(NotFoundError, match=STREAM):
        runs.pause(STREAM)
    bench.append()
    bench.process.die()
    bench.world.processes.clear()
    bench.process = bench.world.start()
    runs = bench.process.offloader.history
    bench.work()
    assert runs.pause(STREAM, "why") is True
    assert runs.pause(STREAM) is False, "it is paused already"
    for run in (runs.backfill, runs.ledgers):
        bench.world.ledgers.close_ledger()
        with pytest.raises(StreamPaused, match=f"stream {STREAM} is paused.*offloader stream resume {STREAM}"):
            run(bench.world.ledgers, STREAM)
    assert [edit for edit in bench.edits() if isinstance(edit, Pause)] == [Pause("why")]
    assert runs.resume(STREAM) is True
    assert runs.resume(STREAM) is False
    bench.process.switch("none")
    assert runs.backfill(bench.world.ledgers, STREAM).errors == []
    runs.pause(STREAM)
    assert runs.backfill(bench.world.ledgers, STREAM).errors == [], "nothing to offload is nothing to refuse"


def test_owner_pauses_and_resumes_its_stream_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(f"pausing-{next(_names)}", "", SystemClock())
    database = f"sqlite:///{tmp_path}/ledgers.db"
    caplog.set_level(logging.INFO, "offloader.stream")
    with open_managed_ledger(STREAM, ledgers=database, store=store, settings=made_settings()) as topic:
        first = topic.append_batch([b"a" * 100] * 10)[-1].last
        assert topic.offload() == first
        assert topic.pause("maintenance") is True
        eventually(lambda: mode_of(topic) is Mode.PAUSED)
        last = topic.append_batch([b"b" * 100] * 10)[-1].last
        with pytest.raises(StreamPaused):
            topic.offload(timeout_s=PATIENCE_S)
        with pytest.raises(StreamPaused):
            topic.set_method("ledger")
        assert len(topic.read(first, last)) == 11, "reading goes on"
        assert load_manifest(store, STREAM).committed_end() == first
        assert topic.resume() is True
        assert topic.offload() == last
        assert topic.pause() is True
        topic.append(b"c")
    assert [record.getMessage() for record in caplog.records if "is paused" in record.getMessage()]
    assert load_manifest(store, STREAM).committed_end() == last, "closing a paused topic sends nothing"


def mode_of(topic: object) -> Mode:
    return topic.status().mode  # type: ignore[attr-defined,no-any-return]


def test_ledger_method_is_paused_too(tmp_path: Path) -> None:
    store = MemoryStore(f"pausing-{next(_names)}", "", SystemClock())
    database = f"sqlite:///{tmp_path}/ledgers.db"
    with open_managed_ledger(STREAM, ledgers=database, store=store, settings=made_settings(method="ledger")) as topic:
        topic.append(b"a")
        topic.close_ledger()
        eventually(lambda: is_committed(store, 1))
        topic.pause()
        topic.append(b"b")
        topic.close_ledger()
        with pytest.raises(StreamPaused):
            topic.offload()
        assert len(load_manifest(store, STREAM).offloaded()) == 1
        topic.resume()
        eventually(lambda: is_committed(store, 2))


def is_committed(store: MemoryStore, segments: int) -> bool:
    try:
        return len(load_manifest(store, STREAM).offloaded()) == segments
    except NotFoundError:
        return False


def status_of(make: Callable[..., StreamStatus] = StreamStatus, **changes: object) -> StreamStatus:
    from formats.entries import Position

    fields = {
        "mode": Mode.PAUSED,
        "buffer_bytes": 0,
        "buffer_bytes_max": 1,
        "tail": Position(1, 9),
        "offered": None,
        "committed": None,
        "segments_committed": 0,
        "segments_failed": 0,
        "offers_refused": 0,
        "error": "",
    }
    return make(**{**fields, **changes})


def test_paused_stream_is_no_stall_and_restarts_its_time_when_resumed() -> None:
    dog = Watchdog(no_progress_s=60, segment_age_s=600)
    assert dog.look(0, {"s": status_of()}) == {}
    assert dog.look(10_000, {"s": status_of()}) == {}
    assert dog.look(10_030, {"s": status_of(mode=Mode.CATCH_UP)}) == {}
    assert set(dog.look(10_061, {"s": status_of(mode=Mode.CATCH_UP)})) == {"s"}


def test_status_is_paused_as_soon_as_the_manifest_is(bench: Bench) -> None:
    bench.append()
    bench.work()
    bench.commit_as_maintainer(Pause(""))
    own = stream_document(STREAM, bench.status, None, None)
    whole = with_manifest(own, manifest_document(load_manifest(bench.world.store, STREAM)))
    assert (own["mode"], whole["mode"]) == ("live", "paused")
