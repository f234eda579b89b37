"""Entries through Arrow Flight, over real sockets: pushed with the broker's ids, or appended to our ledgers."""

from __future__ import annotations

import contextlib
import itertools
import json
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import InvalidCallError, LimitReachedError
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.service.flight.messages import ENTRY_SCHEMA, PutRequest, require_columns
from offloader.service.flight.sessions import ProducerSession
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.ledgers.pushing_broker import Broker
from tests.support.flight_door import APPEND_SCHEMA, Door, Producer, flight_door
from tests.support.readback import stored_entries
from tests.support.served import settings_file
from tests.support.waiting import PATIENCE_S, eventually

ORDERS, BILLS = "shop/eu/persistent/orders", "shop/eu/persistent/bills"
_names = itertools.count()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(f"flight-{next(_names)}", "", SystemClock()))


def begun(door: Door, stream: str = ORDERS, **more: str) -> Producer:
    producer = door.put({"stream": stream, **more})
    producer.news()
    return producer


def payloads(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], schema=APPEND_SCHEMA)


@pytest.mark.slow
def test_broker_is_notified_of_each_batch_and_later_of_its_durability(store: FaultyStore) -> None:
    broker = Broker()
    with flight_door(store) as door:
        producer = begun(door)
        assert producer.latest == {"taken": None, "durable": None}
        broker.append(150)
        broker.close_ledger()
        broker.append(50)
        first = producer.push(broker, 100)
        assert (first["batch"], first["entries"], first["repeated"]) == (1, 100, 0)
        producer.push_all(broker)
        assert producer.latest["taken"] == str(broker.end)
        # Without another batch: segments close by age.
        producer.until(lambda said: said["durable"] == str(broker.end))
        assert stored_entries(store, ORDERS) == broker.entries
        state = load_manifest(store, ORDERS)
        assert all(state.closed_ledgers[each] == len(broker.ledgers[each]) - 1 for each in broker.closed)
        producer.end()


@pytest.mark.slow
def test_reconnected_broker_continues_and_repeated_entries_are_skipped(store: FaultyStore) -> None:
    broker = Broker()
    broker.append(100)
    with flight_door(store) as door:
        producer = begun(door)
        producer.push(broker, 60)
        producer.end()
        again = begun(door)
        assert again.latest["taken"] == str(Position(broker.end.ledger_id, 59))  # type: ignore[union-attr]
        again.latest = {"taken": None}  # it doesn't listen, and begins at its beginning
        assert again.push(broker, 80) | {"durable": ""} == {
            "batch": 1, "entries": 20, "repeated": 60, "taken": f"{broker.end.ledger_id}:79", "durable": "",  # type: ignore[union-attr]
        }  # fmt: skip
        again.push_all(broker)
        again.until(lambda said: said["durable"] == str(broker.end))
        again.end()
    with flight_door(store) as door:  # another process
        assert begun(door).latest == {"taken": str(broker.end), "durable": str(broker.end)}
    assert stored_entries(store, ORDERS) == broker.entries


@pytest.mark.slow
def test_failed_segment_is_requested_again_without_another_batch(store: FaultyStore) -> None:
    broker = Broker()
    broker.append(100)
    with flight_door(store, offload__retry_delay_max=0.05) as door:
        store.set_faults([Fault(call=1, key_part="-index", verb="put")])
        producer = begun(door)
        producer.push_all(broker)
        while producer.latest["durable"] != str(broker.end):
            said = producer.news()
            if said["taken"] != str(broker.end) and "error" not in said:
                assert said["taken"] == said["durable"]
                producer.push_all(broker)
        producer.end()
    assert stored_entries(store, ORDERS) == broker.entries


def test_second_broker_of_a_stream_is_refused_by_name(store: FaultyStore) -> None:
    broker = Broker()
    broker.append(20)
    with flight_door(store) as door:
        one = begun(door, producer="broker-1")
        with pytest.raises(fl.FlightServerError, match=r"broker-1 at ipv4:127\.0\.0\.1:.* is already sending it"):
            begun(door, producer="broker-2")
        with pytest.raises(fl.FlightServerError, match="is already sending it"):
            begun(door)
        begun(door, BILLS).end()
        one.push_all(broker)  # undisturbed
        one.end()
        eventually(lambda: door.act("status", stream=ORDERS)["producer"] is None)
        begun(door, producer="broker-2").end()


@pytest.mark.slow
def test_reconnected_broker_replaces_its_own_earlier_call(store: FaultyStore) -> None:
    broker = Broker()
    broker.append(40)
    with flight_door(store) as door:
        lost = begun(door, producer="broker-1")
        lost.push(broker, 10)
        again = begun(door, producer="broker-1")
        assert again.latest["taken"] == f"{broker.end.ledger_id}:9"  # type: ignore[union-attr]
        lost.until(lambda said: "broker-1 reconnected" in said.get("error", ""))
        with pytest.raises((fl.FlightServerError, EOFError), match="reconnected"):
            lost.push(broker, 10)
        again.push_all(broker)
        again.until(lambda said: said["durable"] == str(broker.end))
        again.end()
    assert stored_entries(store, ORDERS) == broker.entries


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "count", "note", "message"),
    [
        ((7, 3), 2, None, "a ledger begins with entry 0"),
        ((5, 25), 2, None, "5:25 was pushed after 5:19"),
        ((6, 0), 2, None, "the end of ledger 5 wasn't reported"),
        ((6, 0), 2, {"closed": {"5": 30}}, "ledger 5 ends at entry 30"),
        ((5, 20), 2, {"closed": {"5": 19}}, "ledger 5 ends at entry 19"),
        ((5, 20), 2, {"closed": {"x": 19}}, "closed has 'x': 19"),
        ((5, 20), 2, {"closed": [5]}, "closed is not an object"),
        ((5, 20), 2, {"ended": {}}, "no such field: 'ended'"),
        ((-5, 0), 2, None, "not a position"),
    ],
)
def test_invalid_ids_end_one_call_and_affect_no_other(
    first: tuple[int, int], count: int, note: dict[str, object] | None, message: str, store: FaultyStore
) -> None:
    good = Broker()
    good.append(30)
    with flight_door(store) as door:
        other = begun(door, BILLS)
        producer = begun(door)
        producer.send(EntryBatch.build(5, 0, [b"x"] * 20).to_arrow())
        with pytest.raises(fl.FlightServerError, match=message):
            producer.send(EntryBatch.build(*first, [b"y"] * count).to_arrow(), note)
        other.push_all(good)
        other.until(lambda said: said["durable"] == str(good.end))
        # What was right is there, and the stream goes on.
        again = begun(door)
        assert again.latest["taken"] == "5:19"
        again.send(EntryBatch.build(5, 20, [b"z"]).to_arrow())
        again.until(lambda said: said["durable"] == "5:20")
    assert len(stored_entries(store, ORDERS)) == 21


def test_oversized_and_damaged_batches_are_refused_as_a_whole(store: FaultyStore) -> None:
    with flight_door(store, flight__batch_size_max=64 * 1024, offload__entry_size_max=40_000) as door:
        with pytest.raises(fl.FlightServerError, match=r"above 65536 \(flight.batch_size_max\)"):
            begun(door).send(EntryBatch.build(1, 0, [b"x" * 1024] * 100).to_arrow())
        with pytest.raises(fl.FlightServerError, match="an entry of 50000 bytes is above the 40000"):
            begun(door).send(EntryBatch.build(1, 0, [b"x" * 50_000]).to_arrow())
        whole = EntryBatch.build(1, 0, [b"abc", b"def"]).to_arrow()
        offsets = pa.py_buffer(pa.array([0, 900, 6], pa.int32()).buffers()[1])
        lying = pa.BinaryArray.from_buffers(pa.binary(), 2, [None, offsets, whole.column(3).buffers()[2]])
        with pytest.raises(fl.FlightServerError, match="a batch is damaged"):
            begun(door).send(pa.RecordBatch.from_arrays([*whole.columns[:3], lying], schema=whole.schema))
        nulls = pa.RecordBatch.from_arrays(
            [*whole.columns[:3], pa.array([b"a", None], pa.binary())],
            schema=pa.schema([field.with_nullable(True) for field in whole.schema]),
        )
        producer = door.put({"stream": ORDERS}, nulls.schema)
        producer.news()
        with pytest.raises(fl.FlightServerError, match="a payload is null"):
            producer.send(nulls)
        assert begun(door).latest["taken"] is None


IDS = [("ledger_id", pa.int64()), ("entry_id", pa.int64())]
COLUMNS = {
    "entry_id is missing; ledger_id is missing": [("payload", pa.binary())],
    "entry_id is int32": [IDS[0], ("entry_id", pa.int32()), ("payload", pa.binary())],
    "payload is string": [*IDS, ("payload", pa.string())],
    "'x' is unknown": [*IDS, ("payload", pa.binary()), ("x", pa.int8())],
    "ledger_id is repeated": [IDS[0], *IDS, ("payload", pa.binary())],
}


def test_wrong_columns_are_named(store: FaultyStore) -> None:
    with flight_door(store) as door:
        for message, fields in COLUMNS.items():
            producer = door.put({"stream": ORDERS}, pa.schema(fields))
            with pytest.raises(fl.FlightServerError, match=message):
                producer.news()


def test_column_name_other_than_utf8_is_refused_in_one_line() -> None:
    sent = pa.schema([pa.field("surplus", pa.int64())]).serialize().to_pybytes().replace(b"surplus", b"sur\xffplu")
    with pytest.raises(InvalidCallError, match="columns of a push: a name isn't UTF-8"):
        require_columns(pa.ipc.read_schema(pa.py_buffer(sent)), "push")


DESCRIPTORS = {
    b"{": "descriptor is not valid JSON",
    b"[]": "descriptor is not a JSON object",
    b"{}": "stream is missing",
    b'{"stream": 7}': "stream = 7 is not a text",
    b'{"stream": "a/b", "mode": "steal"}': "neither push nor append",
    b'{"stream": "a/b", "token": "x"}': "no such field: 'token'",
    b'{"stream": ""}': "stream",
    b'{"stream": "a\\u0000b"}': "not a text",
    b'{"stream": "a/b", "mode": "append"}': "set flight.ledgers",
    b" " * 70_000: "exceed the limit of 65536",
}


def test_bad_descriptors_are_refused_by_name(store: FaultyStore) -> None:
    with flight_door(store) as door:
        for command, message in DESCRIPTORS.items():
            writer, answers = door.client().do_put(fl.FlightDescriptor.for_command(command), ENTRY_SCHEMA)
            with pytest.raises(fl.FlightServerError, match=message):  # noqa: PT012 - either
                answers.read()
                writer.close()
        assert door.act("status") == {"streams": []}


@pytest.mark.slow
def test_a_stream_cant_leave_its_root(store: FaultyStore) -> None:
    broker = Broker()
    broker.append(5)
    with flight_door(store) as door:
        for name in ("../secret", "a/../../b", "a//b"):
            with contextlib.suppress(fl.FlightServerError):
                producer = begun(door, name)
                producer.push_all(broker)
                producer.until(lambda said: said["durable"] == str(broker.end))
    keys = {key for _, key in store.calls}
    assert any("%2E%2E" in key for key in keys)
    assert not [key for key in keys if ".." in key or "//" in key]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "push"])
def test_entry_above_a_limit_that_a_reload_lowered_is_not_acknowledged(
    store: FaultyStore, tmp_path: Path, mode: str
) -> None:
    """Else it never fits, and nothing after it is offloaded."""
    kept: dict[str, Any] = {"flight__listen": "127.0.0.1:0", "flight__ledgers": str(tmp_path / "ledgers.db")}
    schema = APPEND_SCHEMA if mode == "append" else ENTRY_SCHEMA

    def entry(number: int, size: int) -> pa.RecordBatch:
        batch = EntryBatch.build(1, number, [b"x" * size], 0).to_arrow()
        return payloads(b"x" * size) if mode == "append" else batch

    with flight_door(store, **kept) as door:
        producer = door.put({"stream": ORDERS, "mode": mode}, schema)
        producer.news()
        last = producer.send(entry(0, 2000))["taken"]
        producer.until(lambda said: said["durable"] == last)
        door.process.process.reload(settings_file(**kept, offload__entry_size_max=1000))
        taken = []
        with contextlib.suppress(fl.FlightServerError, EOFError):
            taken.append(producer.send(entry(1, 2000)))
        assert taken == []
        again = door.put({"stream": ORDERS, "mode": mode}, schema)
        again.news()
        last = again.send(entry(1, 1000))["taken"]
        again.until(lambda said: said["durable"] == last)
        again.end()


@pytest.mark.slow
def test_limits_of_streams_and_calls(store: FaultyStore) -> None:
    broker = Broker()
    broker.append(10)
    with flight_door(store, flight__streams_max=2, flight__calls_max=3) as door:
        one, two = begun(door, "a/one"), begun(door, "a/two")
        with pytest.raises(fl.FlightServerError, match=r"2 streams are open \(flight.streams_max\)"):
            begun(door, "a/three")
        two.push_all(broker)
        two.until(lambda said: said["durable"] == str(broker.end))
        two.end()
        eventually(lambda: door.act("status", stream="a/two")["producer"] is None)
        three = begun(door, "a/three", producer="three")  # in place of the one that is done
        assert {each["stream"] for each in door.act("status")["streams"]} == {"a/one", "a/three"}
        assert list(door.client().list_actions())
        with pytest.raises(fl.FlightUnavailableError, match=r"flight\.calls_max = 3"):  # noqa: PT012
            for _ in range(3):
                begun(door, "a/three", producer="three")  # the ones before are still open
        three.end()
        one.end()


@pytest.mark.slow
def test_producer_that_comes_while_its_stream_makes_room_gets_no_closed_stream(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it pushed would be answered, never taken, and without an error."""
    other = next(name for name in map("a/other-{}".format, range(100)) if (hash(name) - hash(ORDERS)) % 64)
    with flight_door(store, flight__streams_max=1) as door, ThreadPoolExecutor(1) as callers:
        begun(door).end()
        eventually(lambda: door.act("status", stream=ORDERS)["producer"] is None)
        seats, streams = door.feed._seats, door.process.process.streams
        assert seats is not None
        remove, coming = streams.remove, list[Future[ProducerSession]]()

        def slow(name: str, *, drain: bool = True) -> bool:
            if name == ORDERS:
                coming.append(callers.submit(seats.take, PutRequest(ORDERS, "push"), "peer"))
                wait(coming, timeout=0.5)
            return bool(remove(name, drain=drain))

        monkeypatch.setattr(streams, "remove", slow)
        begun(door, other)
        assert isinstance(coming[0].exception(PATIENCE_S), LimitReachedError)
        assert [each.name for each in seats.held()] == [other]


def test_streams_that_come_at_the_same_time_stay_within_the_limit(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = next(name for name in map("a/other-{}".format, range(100)) if (hash(name) - hash(ORDERS)) % 64)
    with flight_door(store, flight__streams_max=1) as door, ThreadPoolExecutor(1) as callers:
        seats, streams = door.feed._seats, door.process.process.streams
        assert seats is not None
        add, coming = streams.add, list[Future[ProducerSession]]()

        def slow(name: str, source: Any, **given: Any) -> Any:
            if name == ORDERS:
                coming.append(callers.submit(seats.take, PutRequest(other, "push"), "peer"))
                wait(coming, timeout=10.0)
            return add(name, source, **given)

        monkeypatch.setattr(streams, "add", slow)
        begun(door)
        assert isinstance(coming[0].exception(PATIENCE_S), LimitReachedError)
        assert [each.name for each in seats.held()] == [ORDERS]


@pytest.mark.slow
def test_a_full_window_holds_the_broker_back_until_a_limit(store: FaultyStore) -> None:
    broker = Broker(size_max=4000)
    broker.append(600)
    with flight_door(
        store,
        flight__window_size_max=16 * 1024,
        flight__wait_max=1.0,
        offload__retry_delay_max=0.05,
        offload__offload_buffer_size_max=64 * 1024,
    ) as door:
        producer = begun(door)
        producer.push(broker, 1)
        producer.until(lambda said: said["durable"] is not None)
        store.set_faults([Fault(call=1, calls=10**6)])
        with pytest.raises(fl.FlightUnavailableError, match="no room"):
            producer.push_all(broker, 10)
        store.set_faults([])
        again = begun(door)
        while again.latest["durable"] != str(broker.end):
            if again.latest["taken"] != str(broker.end):
                again.push(broker, 50)
            else:
                again.news()
    assert stored_entries(store, ORDERS) == broker.entries


@pytest.mark.slow
def test_appended_entries_get_positions_and_repeats_are_known_by_sequence(store: FaultyStore, tmp_path: Path) -> None:
    ledgers = f"sqlite:///{tmp_path}/flight.db"
    append = {"stream": ORDERS, "mode": "append", "producer": "p"}
    with flight_door(store, flight__ledgers=ledgers, ledgers__ledger_entries_max=3) as door:
        producer = door.put(append, APPEND_SCHEMA)
        assert producer.news() == {"taken": None, "durable": None}
        said = producer.send(payloads(b"a", b"b"), {"sequence": 1})
        assert (said["positions"], said["sequence"], said["entries"]) == ([["1:0", "1:1"]], 1, 2)
        said = producer.send(payloads(b"c", b"d"), {"sequence": 2})
        assert said["positions"] == [["1:2", "1:2"], ["2:0", "2:0"]]
        said = producer.send(payloads(b"c", b"d"), {"sequence": 2})
        assert (said["entries"], said["repeated"], said["taken"]) == (0, 2, "2:0")
        producer.until(lambda said: said["durable"] == "2:0")
        assert door.act("close-ledger", stream=ORDERS)["closed"] == 2
        with pytest.raises(fl.FlightServerError, match="sequence"):
            producer.send(payloads(b"x"), {"sequence": -1})
    with flight_door(store, flight__ledgers=ledgers) as door:
        again = door.put(append, APPEND_SCHEMA)
        assert again.news()["sequence"] == 2, "what is durable is known after a restart"
        again.send(payloads(b"c", b"d"), {"sequence": 2})
        again.send(payloads(b"e"), {"sequence": 3})
        again.until(lambda said: said["taken"] == said["durable"])
        unnamed = door.put({"stream": BILLS, "mode": "append"}, APPEND_SCHEMA)
        unnamed.news()
        with pytest.raises(fl.FlightServerError, match="a sequence but no producer"):
            unnamed.send(payloads(b"e"), {"sequence": 3})
        with pytest.raises(fl.FlightServerError, match="is already sending it"):
            begun(door)
    assert [payload for _, payload in stored_entries(store, ORDERS)] == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.slow
def test_entries_appended_before_a_crash_are_offloaded_without_a_client(store: FaultyStore, tmp_path: Path) -> None:
    settings = {"flight__ledgers": f"sqlite:///{tmp_path}/flight.db"}
    with flight_door(store, offload__segment_age_max="60.0m", **settings) as door:
        producer = door.put({"stream": ORDERS, "mode": "append"}, APPEND_SCHEMA)
        producer.news()
        assert producer.send(payloads(b"a", b"b"))["durable"] is None
    with flight_door(store, **settings) as door:
        eventually(lambda: door.act("status", stream=ORDERS)["durable"] == "1:1")
    assert [payload for _, payload in stored_entries(store, ORDERS)] == [b"a", b"b"]
    with (
        pytest.raises(InvalidCallError, match="a separate database for Flight"),
        flight_door(store, serve__ledgers=settings["flight__ledgers"], **settings),
    ):
        pass


@pytest.mark.slow
def test_open_call_does_not_keep_the_process_from_stopping(store: FaultyStore) -> None:
    broker = Broker()
    broker.append(10)
    with flight_door(store, offload__segment_age_max="60.0m") as door:
        producer = begun(door)
        producer.push_all(broker)
        assert door.process.process.stop() == 0
        with pytest.raises((fl.FlightError, EOFError, pa.ArrowException)):
            producer.until(lambda said: False)
    assert stored_entries(store, ORDERS) == broker.entries, "drained, though nobody closed the segment"
    assert json.dumps(door.feed.name) == '"flight"'
