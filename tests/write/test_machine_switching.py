"""Switching methods in both directions, off and on: nothing is re-sent or lost, and no ledger is mixed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest

from formats.entries import Position
from formats.keys import parse_object_key
from offloader.errors import CorruptError, InvalidCallError, OffloaderError, StoreUnavailableError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.log import list_streams, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import OVERWRITE, Body, ObjectInfo, PutMode
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.support.readback import stored_entries
from tests.support.waiting import PATIENCE_S, eventually

STREAM = "public/default/persistent/orders"
_names = count()


class WatchedStore(FaultyStore):
    """... that says what is about to be put."""

    before_put: Callable[[str], None] = staticmethod(lambda _: None)

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        self.before_put(key)
        return super().put(key, body, mode=mode, metadata=metadata, crc32c=crc32c)


class Bench:
    def __init__(self, directory: Path) -> None:
        self.memory = MemoryStore(f"switching-{next(_names)}", "", SystemClock())
        self.store = WatchedStore(self.memory)
        self.ledgers = f"sqlite:///{directory}/ledgers-{next(_names)}.db"
        self.expected: list[tuple[Position, bytes]] = []
        self.opened: list[ManagedLedger] = []
        self.drain_seconds_max = 300.0

    def open(self, method: str) -> ManagedLedger:
        offload = {"block_size": 1024, "segment_size_max": "16KiB", "method": method}
        # A test says itself when closed ledgers go.
        offload |= {"offload_threshold_size": "never", "drain_timeout": self.drain_seconds_max}
        made = Settings.of({"offload": offload, "ledgers": {"ledger_size_max": 10_000}})
        topic = open_managed_ledger(STREAM, ledgers=self.ledgers, store=self.store, settings=made)
        self.opened.append(topic)
        return topic

    def append(self, topic: ManagedLedger, entries: int) -> None:
        for batch in topic.append_batch([f"{len(self.expected) + n} ".encode() * 20 for n in range(entries)]):
            self.expected += [(entry.position, entry.payload) for entry in batch.entries()]

    def layouts(self) -> dict[int, set[int]]:
        """Ledger -> layouts of the segments that hold entries of it."""
        found: dict[int, set[int]] = {}
        for segment in load_manifest(self.memory, STREAM).offloaded():
            assert segment.summary is not None
            for span in segment.summary.ledgers:
                found.setdefault(span.ledger_id, set()).add(segment.layout)
        return found

    def require_whole(self) -> None:
        """Everything that is offloaded is there once, in order, and each ledger in one layout."""
        if STREAM not in list_streams(self.memory):
            return  # nothing was offloaded so far
        stored = stored_entries(self.memory, STREAM)
        # Another thread may be about to note what it appended.
        eventually(lambda: len(self.expected) >= len(stored))
        assert stored == self.expected[: len(stored)]
        assert all(len(layouts) == 1 for layouts in self.layouts().values())

    def sent(self) -> list[str]:
        """Keys of the segments' objects, as often as they were written."""
        return [key for verb, key in self.store.calls if verb == "put" and parse_object_key(key, STREAM) is not None]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for topic in made.opened:
        topic.close(drain=False)


@pytest.mark.slow
def test_switching_between_streaming_and_ledger_method_keeps_every_entry(bench: Bench) -> None:
    topic = bench.open("streaming")
    bench.append(topic, 150)
    topic.set_method("ledger")
    assert load_manifest(bench.memory, STREAM).method == topic.method == "ledger"
    streamed = topic.ledgers()[-1].ledger_id
    bench.append(topic, 250)
    topic.close_ledger()
    topic.offload()
    by_ledger = topic.ledgers()[-1].ledger_id
    topic.set_method("streaming")
    bench.append(topic, 150)
    topic.offload(timeout_s=PATIENCE_S)

    assert load_manifest(bench.memory, STREAM).method == "streaming"
    assert stored_entries(bench.memory, STREAM) == bench.expected
    layouts = bench.layouts()
    assert {ledger for ledger, found in layouts.items() if found == {1}} == set(range(streamed + 1, by_ledger + 1))
    assert all(found == {2} for ledger, found in layouts.items() if ledger <= streamed or ledger > by_ledger)
    entries = topic.read(bench.expected[0][0], bench.expected[-1][0])
    assert [(entry.position, entry.payload) for entry in entries] == bench.expected


@pytest.mark.slow
def test_switching_off_and_on_sends_nothing_twice_and_loses_nothing(bench: Bench) -> None:
    topic = bench.open("streaming")
    bench.append(topic, 100)
    topic.set_method("none")
    sent = bench.sent()
    assert stored_entries(bench.memory, STREAM) == bench.expected
    bench.append(topic, 100)
    with pytest.raises(InvalidCallError, match="its method is none"):
        topic.offload()
    assert bench.sent() == sent

    topic.set_method("streaming")
    topic.offload(timeout_s=PATIENCE_S)

    assert stored_entries(bench.memory, STREAM) == bench.expected
    assert len(bench.sent()) == 2 * len(load_manifest(bench.memory, STREAM).offloaded())


@pytest.mark.slow
def test_a_ledger_that_streaming_began_is_completed_as_it_began(bench: Bench) -> None:
    """The method changes at a restart, in the middle of a ledger."""
    topic = bench.open("streaming")
    bench.append(topic, 20)
    topic.offload(timeout_s=PATIENCE_S)
    bench.append(topic, 20)
    topic.close(drain=False)

    topic = bench.open("ledger")
    bench.append(topic, 200)
    topic.close_ledger()
    topic.offload()

    assert stored_entries(bench.memory, STREAM) == bench.expected
    bench.require_whole()
    assert bench.layouts()[bench.expected[0][0].ledger_id] == {2}
    assert {1} in bench.layouts().values()


@pytest.mark.slow
def test_streaming_first_offloads_what_a_failing_ledger_left_open(bench: Bench) -> None:
    topic = bench.open("ledger")
    bench.append(topic, 300)
    topic.close_ledger()
    first = topic.ledgers()[0].ledger_id
    bench.store.set_faults([Fault(call=1, verb="put", key_part=f"-ledger-{first}", error=StoreUnavailableError)])
    with pytest.raises(StoreUnavailableError):
        topic.offload()
    assert load_manifest(bench.memory, STREAM).committed_end() is None
    bench.append(topic, 30)

    topic.set_method("streaming")
    topic.offload(timeout_s=PATIENCE_S)

    assert stored_entries(bench.memory, STREAM) == bench.expected
    bench.require_whole()


@pytest.mark.slow
def test_streaming_first_offloads_what_an_interrupted_backfill_left_open(bench: Bench) -> None:
    topic = bench.open("none")
    bench.append(topic, 1500)
    bench.store.set_faults([Fault(call=2, verb="put", key_part="-index", error=CorruptError)])
    result = topic._parts.offloader.history.backfill(topic._parts.source, STREAM)
    assert result.errors
    bench.store.set_faults([])
    bench.append(topic, 30)

    topic.set_method("streaming")
    topic.offload(timeout_s=PATIENCE_S)

    assert stored_entries(bench.memory, STREAM) == bench.expected


@pytest.mark.slow
def test_stream_is_offloaded_although_the_hot_tier_fails_once_at_the_switch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bench.open("none")
    bench.append(topic, 5)
    list_ledgers, errors = EmbeddedStream.ledgers, [StoreUnavailableError("too many open files")]

    def failing(stream: EmbeddedStream) -> list[LedgerInfo]:
        if errors:
            raise errors.pop()
        return list_ledgers(stream)

    monkeypatch.setattr(EmbeddedStream, "ledgers", failing)
    with contextlib.suppress(StoreUnavailableError):
        topic.set_method("streaming")
    assert (topic.method, errors) == ("streaming", [])

    def is_offloaded() -> bool:
        with contextlib.suppress(StoreUnavailableError):
            return topic.offload(timeout_s=PATIENCE_S) == bench.expected[-1][0]
        return False

    eventually(is_offloaded)
    bench.require_whole()


def test_offload_that_is_asked_for_during_a_truncation_can_be_asked_for_again(bench: Bench) -> None:
    topic = bench.open("streaming")
    bench.append(topic, 5)
    topic.offload(timeout_s=PATIENCE_S)
    asked: list[OffloaderError] = []

    def ask(key: str) -> None:
        if key.endswith(".json") and not asked:
            try:
                topic.offload(timeout_s=0.0)
            except OffloaderError as error:
                asked.append(error)

    bench.store.before_put = ask
    topic.truncate(bench.expected[2][0], force=True)
    assert [type(error) for error in asked] == [StoreUnavailableError], "its method isn't none"


def test_switch_during_which_the_ledger_is_closed_begins_nothing(bench: Bench) -> None:
    with contextlib.closing(EmbeddedLedgers(bench.ledgers)) as database:
        topic = open_managed_ledger(
            STREAM, ledgers=database, store=bench.store, settings=Settings.of({"offload": {"method": "none"}})
        )
        bench.append(topic, 5)
        bench.store.before_put = lambda key: topic.close() if key.endswith("/boundary") else None
        topic.set_method("streaming")
        assert topic.status() is None
        assert not topic._parts.source._listeners.want_entries


@pytest.mark.slow
def test_streaming_begins_after_the_running_ledger_offload(bench: Bench) -> None:
    topic = bench.open("ledger")
    bench.append(topic, 30)
    topic.close_ledger()
    uploading, go_on = threading.Event(), threading.Event()

    def held(key: str) -> None:
        if parse_object_key(key, STREAM) is not None and not go_on.is_set():
            uploading.set()
            assert go_on.wait(PATIENCE_S)

    bench.store.before_put = held
    run = threading.Thread(target=topic.offload)
    run.start()
    assert uploading.wait(PATIENCE_S)
    epoch = load_manifest(bench.memory, STREAM).epoch
    switch = threading.Thread(target=topic.set_method, args=("streaming",))
    switch.start()
    bench.append(topic, 5)
    assert load_manifest(bench.memory, STREAM).epoch == epoch, "the run's owner is still the owner"
    assert topic.method == "ledger"
    go_on.set()
    run.join(PATIENCE_S)
    switch.join(PATIENCE_S)
    assert topic.method == "streaming"
    topic.offload(timeout_s=PATIENCE_S)
    assert bench.layouts() == {bench.expected[0][0].ledger_id: {1}, bench.expected[-1][0].ledger_id: {2}}
    bench.require_whole()


@pytest.mark.slow
def test_switching_while_others_append_keeps_every_entry(bench: Bench) -> None:
    topic = bench.open("streaming")
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            bench.append(topic, 3)

    appender = threading.Thread(target=append)
    appender.start()
    try:
        for method in ("ledger", "streaming", "none", "ledger", "none", "streaming"):
            topic.set_method(method)
            bench.require_whole()
    finally:
        stop.set()
        appender.join(PATIENCE_S)
    topic.offload(timeout_s=PATIENCE_S)
    assert stored_entries(bench.memory, STREAM) == bench.expected
    bench.require_whole()


def test_a_method_that_does_not_exist_changes_nothing(bench: Bench) -> None:
    topic = bench.open("none")
    with pytest.raises(InvalidCallError, match="no method 'teleport'"):
        topic.set_method("teleport")
    assert topic.method == "none"
