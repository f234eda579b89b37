"""Entries that can't be kept as given are refused at the interface, with their whole batch."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import offloader
from formats.entries import TIME_UNKNOWN_MS, Position
from offloader.errors import CorruptError, InvalidCallError, LimitReachedError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.read.partitions import open_reader
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.flight_door import flight_door
from tests.support.pulsar_cluster import Cluster, S, fake_cluster
from tests.support.waiting import PATIENCE_S, eventually

TIMES = (-(2**63), 2**63, 2**64 - 1)
_names = itertools.count()


@pytest.fixture
def store() -> ObjectStore:
    return MemoryStore(f"values-{next(_names)}", "", SystemClock())


@pytest.fixture
def topic(store: ObjectStore) -> Iterator[ManagedLedger]:
    settings = offloader.Settings.of({"offload": {"drain_timeout": 1}})
    made = open_managed_ledger("orders", ledgers="sqlite://:memory:", store=store, settings=settings)
    yield made
    made.close(drain=False)


def answer(call: Any, *arguments: Any) -> object:
    """What the caller gets: the positions, or the kind of error."""
    try:
        return call(*arguments)
    except Exception as error:
        return type(error)


PAYLOADS: list[Any] = [
    [None], [1], b"abc", "abc", ["text"], [b"good", "text"], [b"good", None], [[b"nested"]], None, 7, {b"a": 1}, {b"a"},
    iter([b"x"]), pa.array([1, 2]), pa.nulls(2), pa.array([b"x", None]), bytearray(b"abc"), np.array([1, 2]),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("payloads", PAYLOADS, ids=lambda each: type(each).__name__)
def test_payloads_other_than_byte_strings_are_refused(topic: ManagedLedger, payloads: Any) -> None:
    assert answer(topic.append_batch, payloads) is InvalidCallError
    with closing(EmbeddedLedgers("sqlite://:memory:")) as database:
        assert answer(database.open_stream("orders").append, payloads) is InvalidCallError
    assert topic.append(b"the first") == Position(1, 0), "nothing of the batch was appended"


def test_a_view_of_larger_items_does_not_pass_the_limit_of_an_entry(topic: ManagedLedger) -> None:
    limit = offloader.Settings().offload.entry_size_max
    wide = memoryview(bytes(limit + 8)).cast("q")
    assert answer(topic.append, wide) is InvalidCallError
    assert topic.ledgers()[-1].entries == 0


def test_chunks_of_more_bytes_than_a_batch_takes_are_refused(topic: ManagedLedger) -> None:
    chunk = pa.array([bytes(1024 * 1024)])
    assert answer(topic.append_batch, pa.chunked_array([chunk] * 2048)) is LimitReachedError


@pytest.mark.parametrize("payload", [None, 1, "text", [b"x"]], ids=repr)
def test_payload_other_than_a_byte_string_is_refused(topic: ManagedLedger, payload: Any) -> None:
    assert answer(topic.append, payload) is InvalidCallError


@pytest.mark.slow
@pytest.mark.parametrize(
    "payloads",
    [[b"x"], (b"x",), [bytearray(b"x")], [memoryview(b"x")], pa.array([b"x"]), pa.chunked_array([[b"x"]]),
     pa.array([b"x"], pa.binary(1)), np.array([b"x"])],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_byte_strings_may_be_any_sequence(topic: ManagedLedger, payloads: Any) -> None:
    assert answer(lambda: topic.append_batch(payloads)[0].payloads.to_pylist()) == [b"x"]


def test_a_position_may_have_numpy_integers(topic: ManagedLedger, store: ObjectStore) -> None:
    """Callers have them from columns of entries."""
    with closing(EmbeddedLedgers("sqlite://:memory:")) as database:
        stream = database.open_stream("orders")
        batch = stream.append([b"a", b"b", b"c"])[0]
        second = Position(np.int64(batch.ledger_id), batch.entry_ids[1])  # type: ignore[arg-type]
        found = stream.read(second, 100)
        assert found is not None
        assert found.payloads.to_pylist() == [b"b", b"c"]
    topic.append_batch([b"a", b"b", b"c"], publish_times_ms=1)
    topic.offload()
    assert answer(lambda: topic.truncate(second).head) == Position(1, 1)
    with closing(open_reader(store, "orders")) as reader:
        assert answer(reader.position_at, np.int64(1)) == Position(1, 1)


def test_a_note_whose_name_is_no_utf8_is_refused_with_its_entries(topic: ManagedLedger) -> None:
    assert answer(lambda: topic.append_batch([b"x"], notes={"\ud800": b""})) is InvalidCallError
    assert topic.append(b"the first") == Position(1, 0)


@pytest.mark.parametrize("time_ms", TIMES)
def test_a_publish_time_that_can_not_be_kept_is_refused(topic: ManagedLedger, time_ms: int, store: ObjectStore) -> None:
    kind = np.uint64 if time_ms > 0 else np.int64
    for given in (time_ms, [time_ms], np.array([time_ms], dtype=kind)):
        assert answer(topic.append_batch, [b"x"], given) is InvalidCallError
    with pytest.raises(InvalidCallError, match=f"outside {1 - 2**63} to {2**63 - 1}"):
        topic.append(b"x", time_ms)
    assert topic.append(b"the first") == Position(1, 0)
    topic.offload()
    assert sum(map(len, open_stream_reader(store, "orders").scan())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["push", "append"])
def test_flight_refuses_a_publish_time_that_can_not_be_kept(mode: str, store: ObjectStore, tmp_path: Path) -> None:
    time_ms = pa.array([-(2**63)], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    columns: dict[str, Any] = {"publish_time": time_ms, "payload": pa.array([b"x"])}
    if mode == "push":
        columns = {"ledger_id": pa.array([1], pa.int64()), "entry_id": pa.array([0], pa.int64()), **columns}
    batch = pa.record_batch(columns)
    with flight_door(store, flight__ledgers=f"sqlite:///{tmp_path}/ledgers.db") as door:
        producer = door.put({"stream": "orders", "mode": mode}, schema=batch.schema)
        producer.news()
        said: object = None
        try:
            said = producer.send(batch)
        except fl.FlightServerError as error:
            said = str(error)
        assert isinstance(said, str), f"taken: {said}"
        assert f"outside {1 - 2**63} to {2**63 - 1}" in said


def state_of(cluster: Cluster) -> str:
    try:
        return "offloaded" if cluster.is_offloaded("one") else "on its way"
    except CorruptError:
        return "unreadable"


@pytest.mark.slow
def test_pulsar_entry_with_an_impossible_time_is_kept_with_unknown_time() -> None:
    with fake_cluster() as cluster:
        topic = cluster.make("one", entries=1)
        topic.append(single_entry(Sent(value=b"from a producer with a broken clock"), publish_time=2**63))
        cluster.fill("one", 1)
        with cluster.serve():
            eventually(lambda: state_of(cluster) in ("offloaded", "unreadable"))
        assert state_of(cluster) == "offloaded"
        times = [
            each
            for batch in open_stream_reader(cluster.store, S + "one").scan()
            for each in batch.publish_times_ms.tolist()
        ]
        assert [each == TIME_UNKNOWN_MS for each in times] == [False, True, False]


class HangingStore(StoreWrapper):
    """Requests wait from ``hang`` to ``release``."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._open = threading.Event()
        self._open.set()
        #: Set once a request waits.
        self.is_waiting = threading.Event()
        self.hang, self.release = self._open.clear, self._open.set

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        if not self._open.is_set():
            self.is_waiting.set()
            assert self._open.wait(PATIENCE_S)
        return call()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_first_append_does_not_wait_for_the_store(store: ObjectStore, method: str) -> None:
    """Appends return while every request hangs; the entries are offloaded when the store answers again."""
    hanging = HangingStore(store)
    settings = offloader.Settings.of({"offload": {"method": method}, "ledgers": {"ledger_entries_max": 2}})
    made = open_managed_ledger("orders", ledgers="sqlite://:memory:", store=hanging, settings=settings)
    try:
        hanging.hang()
        positions = [made.append(b"one"), made.append(b"two"), made.append(b"three")]
        assert hanging.is_waiting.wait(PATIENCE_S) or method == "ledger"
        hanging.release()
        made.offload(timeout_s=PATIENCE_S)
        assert [entry.payload for entry in made.read(positions[0], positions[-1])] == [b"one", b"two", b"three"]
    finally:
        hanging.release()
        made.close(drain=False)


@pytest.mark.process
def test_first_append_does_not_import_pandas() -> None:
    """Where pandas is installed, ``pyarrow.array`` of a list imports it: seconds on a busy machine."""
    code = """
import sys
from offloader.managed_ledger import open_managed_ledger
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.runtime.clock import SystemClock

made = open_managed_ledger("a", ledgers="sqlite://:memory:", store=MemoryStore("a", "", SystemClock()))
made.append_batch([b"one", b"two"])
made.offload()
made.close()
print([name for name in ("pandas",) if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
