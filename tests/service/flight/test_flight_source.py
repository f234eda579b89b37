"""Identity of a pushed log: a reset log or an older copy gets no durable position that it doesn't hold."""

from __future__ import annotations

import itertools
import logging
import zlib
from typing import Any
from uuid import UUID

import pyarrow.flight as fl
import pytest

from offloader.runtime.clock import SystemClock
from offloader.store.memory import MemoryStore
from tests.ledgers.pushing_broker import Broker
from tests.support.flight_door import Door, Producer, flight_door
from tests.support.readback import stored_entries
from tests.support.waiting import eventually

ORDERS = "shop/eu/persistent/orders"
LOG, OTHER = UUID(int=0x1234), UUID(int=0x5678)
_names = itertools.count()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"flight-source-{next(_names)}", "", SystemClock())


def begun(door: Door, **more: Any) -> Producer:
    producer = door.put({"stream": ORDERS, "producer": "broker-1", **more})
    producer.news()
    return producer


def made(count: int, seed: int = 1, at: int = 1) -> Broker:
    """A broker whose ledger ``at`` has so many entries; with another seed they have other bytes."""
    broker = Broker(seed)
    broker.ledgers[at] = []
    broker.append(count)
    return broker


def pushed(door: Door, broker: Broker, **more: Any) -> None:
    """All of it, until it is durable."""
    producer = begun(door, **more)
    producer.push_all(broker)
    producer.until(lambda said: said["durable"] == str(broker.end))
    producer.end()
    eventually(lambda: door.act("status", stream=ORDERS)["producer"] is None)


def last_of(broker: Broker, count: int) -> dict[str, Any]:
    """The newest durable entry, as a broker remembers it."""
    position, payload = broker.entries[count - 1]
    return {"last": str(position), "crc32": zlib.crc32(payload)}


@pytest.mark.slow
@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_producer_that_starts_again_with_other_bytes_is_refused(store: MemoryStore, is_new_process: bool) -> None:
    """At the same positions and without naming its log: repeated entries are compared."""
    broker, other = made(40), made(40, seed=2)
    heard: list[dict[str, Any]] = []

    def starts_again(door: Door) -> None:
        again = begun(door)
        again.latest = {"taken": None}
        with pytest.raises(fl.FlightServerError, match=r"SourceMismatch.*1:0 was pushed again with other bytes"):
            heard.append(again.push(other, 20))

    with flight_door(store) as door:
        pushed(door, broker)
        if not is_new_process:
            starts_again(door)
    if is_new_process:
        with flight_door(store) as door:
            starts_again(door)
    assert heard == []
    assert stored_entries(store, ORDERS) == broker.entries


@pytest.mark.slow
def test_producer_with_another_log_is_refused_at_once(store: MemoryStore) -> None:
    broker = made(20)
    with flight_door(store) as door:
        pushed(door, broker, source=str(LOG))
        with pytest.raises(fl.FlightServerError, match=f"SourceMismatch.*stored log {LOG}.*it sends log {OTHER}"):
            begun(door, source=str(OTHER))
        begun(door, source=str(LOG)).end()


@pytest.mark.slow
def test_producer_of_a_reset_log_gets_no_durable_position(store: MemoryStore) -> None:
    """The same ``source``, as where an operator configured it instead of creating it with the log."""
    with flight_door(store) as door:
        pushed(door, made(20), source=str(LOG))
        again, other = begun(door, source=str(LOG)), made(25, seed=2)
        assert again.latest == {"taken": None, "durable": None}
        with pytest.raises(fl.FlightServerError, match="1:0 was pushed again with other bytes"):
            again.push(other, 10)


@pytest.mark.slow
def test_producer_skipping_durable_entries_must_prove_its_log(store: MemoryStore) -> None:
    with flight_door(store) as door:
        broker = made(20)
        pushed(door, broker, source=str(LOG))
        broker.append(5)
        again = begun(door, source=str(LOG))
        again.latest = {"taken": "1:19"}
        with pytest.raises(
            fl.FlightServerError, match="it isn't verified that this log has the durable entries up to 1:19"
        ):
            again.push(broker, 5)


@pytest.mark.slow
def test_producer_without_its_durable_position_may_push_the_same_entries_again(store: MemoryStore) -> None:
    broker = made(40)
    with flight_door(store) as door:
        pushed(door, broker, source=str(LOG))
    with flight_door(store) as door:
        broker.append(10)
        again = begun(door, source=str(LOG))
        assert again.latest["durable"] is None
        assert again.push(broker, 30)["durable"] == "1:29"
        again.push_all(broker)
        again.until(lambda said: said["durable"] == str(broker.end))
        again.end()
    assert stored_entries(store, ORDERS) == broker.entries


@pytest.mark.slow
def test_older_copy_of_a_log_that_is_refused_ends_no_call_of_the_real_one(store: MemoryStore) -> None:
    """Both have the producer's name; else the copy, which comes again and again, keeps the real one from sending."""
    broker = made(40)
    with flight_door(store) as door:
        real = begun(door, source=str(LOG))
        real.push(broker, 20)
        real.until(lambda said: said["durable"] == "1:19")
        wrong = last_of(broker, 20)
        wrong["crc32"] ^= 1
        with pytest.raises(fl.FlightServerError, match=r"SourceMismatch.*1:19 has CRC-32"):
            begun(door, source=str(LOG), **wrong)
        assert door.act("status", stream=ORDERS)["producer"] == "broker-1"
        real.push_all(broker)
        real.until(lambda said: said["durable"] == str(broker.end))
        real.end()
    assert stored_entries(store, ORDERS) == broker.entries


@pytest.mark.slow
def test_reconnect_with_checksum_of_the_last_durable_entry_continues_there(store: MemoryStore) -> None:
    broker = made(40)
    with flight_door(store) as door:
        pushed(door, broker, source=str(LOG))
        broker.append(10)
        again = begun(door, source=str(LOG), **last_of(broker, 40))
        assert again.latest == {"taken": "1:39", "durable": "1:39"}
        again.push_all(broker)
        again.until(lambda said: said["durable"] == str(broker.end))
        again.end()
    assert stored_entries(store, ORDERS) == broker.entries


@pytest.mark.slow
@pytest.mark.parametrize("source", [{}, {"source": str(LOG)}])
def test_mismatching_durable_entry_is_detected_by_its_checksum(store: MemoryStore, source: dict[str, str]) -> None:
    with flight_door(store) as door:
        pushed(door, made(20), **source)
        with pytest.raises(fl.FlightServerError, match=r"SourceMismatch.*entry 1:19 has CRC-32"):
            begun(door, **source, **last_of(made(20, seed=2), 20))
        with pytest.raises(fl.FlightServerError, match="knows 1:29 as durable, and 1:19 is"):
            begun(door, **source, **last_of(made(30), 30))


@pytest.mark.slow
def test_older_copy_of_a_log_is_detected_where_it_diverges(store: MemoryStore) -> None:
    """Restored from a backup at 1:19, it gives 1:20 to another entry."""
    broker, copy = made(40), made(20)
    with flight_door(store) as door:
        pushed(door, broker, source=str(LOG))
        again = begun(door, source=str(LOG), **last_of(copy, 20))
        assert again.latest == {"taken": "1:19", "durable": "1:19"}
        copy.ledgers[1] += [b"new"] * 5
        with pytest.raises(fl.FlightServerError, match="1:20 was pushed again with other bytes"):
            again.push(copy, 10)
    assert stored_entries(store, ORDERS) == broker.entries


@pytest.mark.slow
def test_a_producer_that_doesnt_name_its_log_is_warned_about_once(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    broker = made(20)
    with flight_door(store) as door, caplog.at_level(logging.WARNING):
        pushed(door, broker)
        again = begun(door)
        assert again.latest == {"taken": "1:19", "durable": "1:19"}
        again.end()
        eventually(lambda: door.act("status", stream=ORDERS)["producer"] is None)
        assert [each.message for each in caplog.records if "doesn't name its log" in each.message][1:] == []
        begun(door, source=str(LOG)).end()  # and names it later
        eventually(lambda: door.act("status", stream=ORDERS)["producer"] is None)
        with pytest.raises(fl.FlightServerError, match=f"it sends log {OTHER}"):
            begun(door, source=str(OTHER))
    assert "doesn't name its log" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "orders"}, "source = 'orders' is not a uuid"),
        ({"source": 7}, "source = 7 is not a uuid"),
        ({"last": "1:3"}, "must be given together"),
        ({"crc32": 3}, "must be given together"),
        ({"last": "1:3", "crc32": 2**32}, "must be given together"),
        ({"mode": "append", "source": str(LOG)}, "only valid in mode push"),
    ],
)
def test_invalid_source_is_refused(store: MemoryStore, fields: dict[str, Any], message: str) -> None:
    with flight_door(store) as door, pytest.raises(fl.FlightServerError, match=message):
        begun(door, **fields)


@pytest.mark.slow
def test_named_log_with_closed_ledgers_continues_in_another_process(store: MemoryStore) -> None:
    """What one process has seen of a ledger's size and age isn't the ledger's, and contradicts nothing."""
    broker = made(40)
    broker.close_ledger()
    broker.append(30)
    broker.close_ledger()
    with flight_door(store) as door:
        pushed(door, broker, source=str(LOG))
    for _ in range(2):
        broker.append(10)
        broker.close_ledger()
        with flight_door(store) as door:
            pushed(door, broker, source=str(LOG), **last_of(broker, len(broker.entries) - 10))
    with flight_door(store) as door:
        again = begun(door, source=str(LOG), **last_of(broker, len(broker.entries)))
        assert again.latest == {"taken": str(broker.end), "durable": str(broker.end)}
    assert stored_entries(store, ORDERS) == broker.entries
