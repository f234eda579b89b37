"""`offloader serve` with Arrow Flight, killed while a broker pushes: nothing is lost or repeated."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pyarrow.flight as fl
import pytest

from formats.entries import Position
from offloader.manifest.log import load_manifest
from offloader.store.open import open_store
from tests.ledgers.pushing_broker import Broker
from tests.support.flight_door import Producer
from tests.support.readback import stored_entries
from tests.support.serving_processes import Serving

pytestmark = pytest.mark.process

STREAM = "shop/eu/persistent/orders"
#: Pushes until the process is killed: while the first segment gathers, and when some are committed.
KILLED_AFTER = (1, 6)


def config(folder: Path) -> Path:
    file = folder / "offloader.toml"
    file.write_text(f"""
        streaming_offload = true
        [serve]
        store = "file://{folder}/store"
        maintenance = false
        [flight]
        listen = "127.0.0.1:0"
        [offload]
        block_size = "4KiB"
        segment_size_max = "20KiB"
        segment_age_max = "300ms"
        """)
    return file


def begun(serving: Serving) -> tuple[fl.FlightClient, Producer]:
    client = fl.FlightClient(f"grpc://{serving.logged('flight_listens')['address']}")
    producer = Producer(client, {"stream": STREAM, "producer": "broker"})
    producer.news()
    return client, producer


def test_pushed_entries_survive_repeated_kills_exactly_once(tmp_path: Path) -> None:
    broker, durable = Broker(size_max=400), Position(-1, -1)
    store = open_store(f"file://{tmp_path}/store")
    for pushes in KILLED_AFTER:
        with Serving(config(tmp_path)) as serving:
            client, producer = begun(serving)
            assert producer.latest["taken"] is None or Position.parse(producer.latest["taken"]) >= durable
            for number in itertools.count(1):
                broker.append(60)
                if number % 2 == 0:
                    broker.close_ledger()
                said = producer.push(broker, 100)
                if number >= pushes and (pushes == 1 or said["durable"] is not None):
                    break
            durable = Position.parse(said["durable"]) if said["durable"] else durable
            serving.signal(signal.SIGKILL)
            serving.ended()
            client.close()
    with Serving(config(tmp_path)) as serving:
        client, producer = begun(serving)
        producer.push_all(broker)
        producer.until(lambda said: said["durable"] == str(broker.end))
        producer.end()
        client.close()
        serving.signal(signal.SIGTERM)
        assert serving.ended() == 0
    assert stored_entries(store, STREAM) == broker.entries
    assert load_manifest(store, STREAM).gaps == ()
