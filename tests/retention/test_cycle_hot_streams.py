"""Streams that exist only in the hot tier: their policies apply in the process that serves them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from offloader.errors import OffloaderError, StoreUnavailableError, TrimmedError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.maintenance import Maintenance
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.catalog import list_streams
from offloader.manifest.log import load_manifest
from offloader.manifest.maintenance import delete_stream
from offloader.retention.cycle import HotStreams
from offloader.retention.subscribers import open_retention
from offloader.settings import Duration, ManifestSettings, Settings
from offloader.store.base import OVERWRITE, PutMode
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock

STREAM = "a/b/persistent/orders"
QUEUE = {"policy": "consumption", "record_interval": "1m"}
_names = itertools.count()


class Bench:
    """A process with streams in an embedded hot tier, ten entries a ledger, and the upkeep of its store."""

    def __init__(
        self, tmp_path: Path, method: str = "none", names: tuple[str, ...] = (STREAM,), **sections: Any
    ) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"hot-streams-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        ledgers = {"ledger_entries_max": 10}
        self.settings = Settings.of({"offload": {"method": method}, "ledgers": ledgers, **sections})
        self.database = EmbeddedLedgers(str(tmp_path / "ledgers.db"), settings=self.settings.ledgers, clock=self.clock)
        self.topics = {name: self.open(name) for name in names}
        self.upkeep = Maintenance(
            self.store,
            clock=self.clock,
            settings_of=lambda _: self.settings,
            source_of=self.source_of,
            hot_streams=lambda: list(self.topics),
            by="upkeep",
        )

    def open(self, name: str) -> ManagedLedger:
        return open_managed_ledger(
            name, ledgers=self.database, store=self.memory, settings=self.settings, clock=self.clock
        )

    def source_of(self, name: str) -> Any:
        return self.topics[name]._parts.source if name in self.topics else None

    def grow(self, ledgers: int, name: str = STREAM) -> None:
        for _ in range(ledgers * 10):
            self.topics[name].append(b"an order")

    def cycle(self) -> None:
        self.clock.advance(3600)
        self.upkeep.retention.run_due()

    def error(self, name: str = STREAM) -> OffloaderError | None:
        return self.upkeep.retention.latest[name].error

    def close(self) -> None:
        for topic in self.topics.values():
            topic.close()
        self.database.close()


@pytest.fixture
def make(tmp_path: Path) -> Any:
    made: list[Bench] = []

    def build(*args: Any, **sections: Any) -> Bench:
        made.append(Bench(tmp_path, *args, **sections))
        return made[-1]

    yield build
    for each in made:
        each.close()


def test_consumed_ledgers_of_a_stream_without_offloading_are_deleted(make: Any) -> None:
    bench = make(retention=QUEUE)
    bench.grow(4)
    assert list_streams(bench.memory) == []
    bench.cycle()
    assert list_streams(bench.memory) == [STREAM]
    retention = open_retention(bench.memory, STREAM, source_of=bench.source_of, clock=bench.clock)
    retention.add("billing")
    first, second, third = (info.ledger_id for info in bench.topics[STREAM].ledgers()[:3])
    retention.publish("billing", Position(third, 4))

    bench.cycle()
    bench.cycle()

    assert bench.error() is None
    assert load_manifest(bench.memory, STREAM).head == Position(third, 4)
    assert {first, second}.isdisjoint(info.ledger_id for info in bench.topics[STREAM].ledgers())
    found = bench.topics[STREAM].read(Position(third, 4), Position(third, 9))
    assert len(found) == 6
    with pytest.raises(TrimmedError, match=f"{third}:4"):
        bench.topics[STREAM].read(Position(second, 0), Position(third, 9))
    assert list(load_manifest(bench.memory, STREAM).segments) == []


def test_a_policy_by_size_holds_without_any_subscriber(make: Any) -> None:
    bench = make(
        retention={
            "policy": "size",
            "min_size": 100,
            "max_size": 200,
            "record_interval": "1m",
        }
    )
    for _ in range(6):
        bench.grow(1)
        bench.cycle()
    # Eight bytes an entry, ten a ledger: at least 100 bytes are two ledgers.
    left = [info.entries for info in bench.topics[STREAM].ledgers() if info.entries]
    assert 2 <= len(left) <= 3


@pytest.mark.slow
def test_partitions_are_ruled_by_their_topics_policy_as_one_stream(make: Any) -> None:
    names = tuple(f"{STREAM}-partition-{number}" for number in range(2))
    bench = make("none", names, retention=QUEUE)
    for name in names:
        bench.grow(3, name)
    bench.cycle()
    retention = open_retention(bench.memory, STREAM, source_of=bench.source_of, clock=bench.clock)
    retention.add("billing")
    heads = {number: Position(bench.topics[name].ledgers()[1].ledger_id, 0) for number, name in enumerate(names)}
    retention.publish("billing", heads)
    bench.cycle()
    bench.cycle()
    assert {name: load_manifest(bench.memory, name).head for name in names} == dict(
        zip(names, heads.values(), strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name", "policy"),
    [
        ("none", STREAM, "none"),
        ("none", "a/b/persistent/__change_events", "consumption"),
        ("ledger", STREAM, "consumption"),
    ],
)
def test_manifest_is_not_created_where_no_policy_or_another_writer_needs_it(
    make: Any, method: str, name: str, policy: str
) -> None:
    bench = make(method, (name,), retention={"policy": policy})
    bench.grow(2, name)
    before = list_streams(bench.memory)
    bench.cycle()
    assert list_streams(bench.memory) == before


@pytest.mark.slow
def test_deleted_stream_stays_deleted_while_its_process_runs(make: Any) -> None:
    bench = make(retention=QUEUE)
    bench.grow(1)
    bench.cycle()
    for _ in range(2):
        delete_stream(bench.memory, STREAM, clock=bench.clock, delete_objects=lambda _: None)
        bench.clock.advance(25 * 3600)
    bench.cycle()
    assert list_streams(bench.memory) == []


def test_failing_enrolment_is_retried_and_blocks_no_other_stream(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    other = "a/b/persistent/payments"
    bench = make("none", (STREAM, other), retention=QUEUE)
    for name in (STREAM, other):
        bench.grow(1, name)
    bench.store.set_faults([Fault(call=1, verb="put", key_part=f"_catalog/{STREAM}", error=StoreUnavailableError)])
    bench.cycle()
    assert list_streams(bench.memory) == [other]
    assert [
        record.message for record in caplog.records if STREAM in record.message and "isn't offloaded" in record.message
    ]
    bench.cycle()
    assert list_streams(bench.memory) == [STREAM, other]


@pytest.mark.slow
def test_stream_no_longer_offloaded_is_truncated_beyond_its_committed_end(make: Any) -> None:
    bench = make("ledger", retention=QUEUE)
    bench.grow(2)
    bench.topics[STREAM].close_ledger()
    bench.topics[STREAM].offload()
    bench.topics[STREAM].close()
    bench.settings = Settings.of(
        {"offload": {"method": "none"}, "ledgers": {"ledger_entries_max": 10}, "retention": QUEUE}
    )
    bench.topics[STREAM] = bench.open(STREAM)
    bench.grow(3)
    bench.cycle()
    retention = open_retention(bench.memory, STREAM, source_of=bench.source_of, clock=bench.clock)
    retention.add("billing")
    last = bench.topics[STREAM].ledgers()[-2].ledger_id
    retention.publish("billing", Position(last, 0))
    bench.cycle()
    bench.cycle()
    assert load_manifest(bench.memory, STREAM).head == Position(last, 0)


def test_stream_that_reappears_gets_a_new_manifest() -> None:
    clock = ManualClock()
    memory = MemoryStore(f"hot-streams-{next(_names)}", "", clock)
    settings = Settings.of({"offload": {"method": "none"}, "retention": QUEUE})
    names = [STREAM]
    hot = HotStreams(memory, clock=clock, settings_of=lambda _: settings, names=lambda: names)
    assert (hot.enrol(), hot.enrol()) == ([STREAM], [])
    names.clear()
    at_once = ManifestSettings(orphan_age_min=Duration("0h"))
    delete_stream(memory, STREAM, clock=clock, delete_objects=lambda _: None, settings=at_once)
    assert hot.enrol() == []
    names.append(STREAM)
    assert hot.enrol() == [STREAM]
    assert load_manifest(memory, STREAM).method == "none"


class Careless(FaultyStore):
    """Takes no notice of conditions."""

    def put(self, key: str, body: Any, *, mode: PutMode = OVERWRITE, **more: Any) -> Any:
        return super().put(key, body, mode=OVERWRITE, **more)


@pytest.mark.parametrize("single_writer", [False, True])
def test_unsafe_store_gets_a_manifest_only_from_a_single_writer(
    single_writer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    memory = MemoryStore(f"hot-streams-{next(_names)}", "", clock)
    settings = Settings.of(
        {"offload": {"method": "none"}, "retention": QUEUE, "store": {"single_writer": single_writer}}
    )
    hot = HotStreams(Careless(memory), clock=clock, settings_of=lambda _: settings, names=lambda: [STREAM])
    assert (hot.enrol() == [STREAM], hot.enrol()) == (single_writer, [])
    assert list_streams(memory) == ([STREAM] if single_writer else [])
    refused = [record.message for record in caplog.records if "can't be written safely" in record.message]
    assert bool(refused) is not single_writer
    # Nor is anything left of the question.
    assert single_writer or memory.list("").objects == ()
