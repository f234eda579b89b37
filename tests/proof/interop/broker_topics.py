"""Topics that a real broker was told to write, and what its admin interface says of them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pulsar

from offloader.ledgers.pulsar.topics import TopicLedgers, ledgers_of_topics
from services.pulsar.broker import Broker
from tests.support.waiting import PATIENCE_S, eventually

__all__ = ["KINDS", "NAMESPACE", "Produced", "command", "offloaded", "produce", "topic_of"]

NAMESPACE = "public/default"


@dataclass(frozen=True, slots=True)
class Produced:
    """What was sent to a topic, in order: key, value, properties."""

    topic: str
    messages: list[tuple[str | None, bytes, dict[str, str]]] = field(default_factory=list)

    @property
    def stream(self) -> str:
        return ledgers_of_topics({"ledgers": []}, self.topic)[0].stream


def topic_of(kind: str) -> str:
    return f"persistent://{NAMESPACE}/{kind}"


def _plain(number: int) -> dict[str, Any]:
    return {"content": f"message {number}".encode()}


def _rich(number: int) -> dict[str, Any]:
    text = f"message {number} says the same again and again ".encode() * 20
    return {"content": text, "properties": {"number": str(number), "odd": str(number % 2)}}


def _keyed(number: int) -> dict[str, Any]:
    return {"content": f"keyed {number}".encode(), "partition_key": f"key {number % 7}", "event_timestamp": 1 + number}


def _large(number: int) -> dict[str, Any]:
    return {"content": number.to_bytes(4, "big") * 8_000}


def _batches(**more: Any) -> dict[str, Any]:
    return {
        "batching_enabled": True,
        "batching_max_messages": 10,
        "batching_max_publish_delay_ms": 60_000,
        "block_if_queue_full": True,
        **more,
    }


#: Topic -> messages, what each is, options of the producer. Ledgers end after 300 entries; blocks are 5 MiB.
KINDS: Mapping[str, tuple[int, Callable[[int], dict[str, Any]], dict[str, Any]]] = {
    "unbatched": (700, _plain, {"batching_enabled": False, "block_if_queue_full": True}),
    "batched-lz4": (7_000, _rich, _batches(compression_type=pulsar.CompressionType.LZ4)),
    "unbatched-zstd": (
        350,
        _rich,
        {"batching_enabled": False, "block_if_queue_full": True, "compression_type": pulsar.CompressionType.ZSTD},
    ),
    "keyed blank+sign": (4_000, _keyed, _batches(batching_type=pulsar.BatchingType.KeyBased)),
    "large-blocks": (650, _large, {"batching_enabled": False, "block_if_queue_full": True}),
}


def produce(client: pulsar.Client, kind: str, *, name: str = "") -> Produced:
    """Writes the messages of ``kind`` to a topic; they are durable when this returns."""
    count, message, options = KINDS[kind]
    produced = Produced(topic_of(name or kind))
    failed: list[object] = []
    producer = client.create_producer(produced.topic, **options)
    for number in range(count):
        sent = message(number)
        producer.send_async(
            sent["content"],
            lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None,
            **{name: value for name, value in sent.items() if name != "content"},
        )
        produced.messages.append((sent.get("partition_key"), sent["content"], sent.get("properties", {})))
    producer.flush()
    producer.close()
    assert failed == []
    return produced


def command(broker: Broker, method: str, path: str, body: object = None) -> None:
    """A PUT or POST to the admin interface."""
    request = urllib.request.Request(
        f"{broker.admin_url}/admin/v2/{path}",
        data=json.dumps(body).encode() if body is not None else b"",
        headers={"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status < 300


def offloaded(ledgers: Callable[[str], TopicLedgers], produced: Produced) -> TopicLedgers:
    """The topic's ledgers, as soon as the broker says that the closed ones are offloaded."""
    found: list[TopicLedgers] = []

    def is_done() -> bool:
        found[:] = [ledgers(produced.topic)]
        return all(ledger.offloaded for ledger in found[0].ledgers[:-1])

    eventually(is_done)
    return found[0]
