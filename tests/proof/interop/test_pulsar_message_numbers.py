"""Messages of batches are counted by the numbers that a real broker adds to entries."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from formats.entries import Position
from offloader.ledgers.pulsar.source import PulsarCluster
from offloader.read.message_counts import messages_from
from offloader.runtime.clock import SystemClock
from offloader.settings import PulsarSettings, Settings
from offloader.store.memory import MemoryStore
from offloader.write.offloader import LedgerOffloader
from services.pulsar.broker import running_broker
from tests.support.readback import stored_entries
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

TOPIC = "persistent://public/default/numbered"
INTERCEPTOR = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
MESSAGES, BATCH = 95, 10


@pytest.mark.parametrize("interceptors", [INTERCEPTOR, ""])
def test_messages_are_counted_if_the_broker_numbers_them(tmp_path: Path, interceptors: str) -> None:
    settings = {
        "brokerEntryMetadataInterceptors": interceptors,
        "exposingBrokerEntryMetadataToClientEnabled": "true",
    }
    store = MemoryStore(f"numbered-{bool(interceptors)}", "", SystemClock())
    with running_broker(tmp_path, settings) as broker:
        with closing(pulsar.Client(broker.service_url)) as client:
            producer = client.create_producer(
                TOPIC, batching_enabled=True, batching_max_messages=BATCH, batching_max_publish_delay_ms=60_000
            )
            for number in range(MESSAGES):
                producer.send_async(b"message %d" % number, lambda *_: None)
            producer.flush()
        cluster = PulsarCluster(PulsarSettings(service_url=broker.service_url, admin_url=broker.admin_url))
        with closing(cluster), closing(LedgerOffloader(store, Settings())) as offloader:
            source = cluster.open_topic(TOPIC)
            eventually(lambda: source.active)
            stream = offloader.offload_stream(source, source.stream)
            eventually(lambda: source.ledgers())
            stream.offload(timeout_s=60)
    positions = [position for position, _ in stored_entries(store, source.stream)]
    assert len(positions) == 10
    counts = [messages_from(store, source.stream, at) for at in (Position(0, 0), positions[3], positions[-1].next())]
    assert counts == ([MESSAGES, MESSAGES - 3 * BATCH, 0] if interceptors else [None, None, 0])
