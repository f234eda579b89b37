"""Messages of every kind that Pulsar's clients send, and what a reader of their topic must receive."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

import pulsar
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from services.pulsar.broker import Broker
from tests.support.waiting import PATIENCE_S

__all__ = ["KINDS", "Message", "TopicHistory", "checksum", "client_of", "receive"]

RECEIVE_MS = int(PATIENCE_S * 1000)
#: How long a reader waits for a message that must not come.
NOTHING_MS = 700
KEY_NAME = "test"


class Message(NamedTuple):
    """What was sent, or received."""

    value: bytes
    key: str
    properties: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """How messages are sent: options of the producer, bytes of a value, and what each message has beside it."""

    options: dict[str, Any]
    size_bytes: int = 60
    has_key: bool = False
    has_properties: bool = False
    delay: timedelta | None = None


def _batches(count: int, **more: Any) -> dict[str, Any]:
    return {
        "batching_enabled": True,
        "batching_max_messages": count,
        "batching_max_publish_delay_ms": 60_000,
        **more,
    }


KINDS = {
    "plain": Kind({"batching_enabled": False}),
    "batched": Kind(_batches(10, compression_type=pulsar.CompressionType.LZ4), 300),
    "zlib": Kind(_batches(25, compression_type=pulsar.CompressionType.ZLib), 1000, has_properties=True),
    "keyed": Kind({"batching_enabled": False, "compression_type": pulsar.CompressionType.ZSTD}, 500, has_key=True),
    "rich": Kind({"batching_enabled": False}, 100, has_key=True, has_properties=True),
    "delayed": Kind({"batching_enabled": False}, delay=timedelta(milliseconds=1)),
    "chunked": Kind({"batching_enabled": False, "chunking_enabled": True}, 2_500_000),
    "encrypted": Kind({"batching_enabled": False, "encryption_key": KEY_NAME}),
}


class TopicHistory:
    """A topic's messages; a context that closes its client.

    Args:
        broker: where it is.
        topic: its name.
        folder: for keys; those that are there are used.

    Attributes:
        sent: what a reader of the whole topic receives.
    """

    def __init__(self, broker: Broker, topic: str, folder: Path) -> None:
        self.broker, self.topic, self.folder = broker, topic, folder
        self.sent: list[Message] = []
        self._client = client_of(broker.service_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, kind: str, count: int) -> None:
        """Messages of one kind; they are stored when this returns."""
        how = KINDS[kind]
        options = dict(how.options)
        if "encryption_key" in options:
            options["crypto_key_reader"] = keys_in(self.folder)
        producer = self._client.create_producer(
            self.topic, block_if_queue_full=True, send_timeout_millis=120_000, **options
        )
        failed: list[object] = []
        for number in range(len(self.sent), len(self.sent) + count):
            message = message_of(kind, number)
            producer.send_async(
                message.value,
                lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None,
                partition_key=message.key or None,
                properties=dict(message.properties) or None,
                deliver_after=how.delay,
            )
            self.sent.append(message)
        producer.flush()
        producer.close()
        assert failed == []

    def transaction(self, count: int, end: str) -> None:
        """A transaction of a Java client; ``end`` as ``Broker.transaction`` has it."""
        self.broker.transaction(self.topic, count, end)
        if end == "commit":
            self.sent += [Message(b"commit %d" % number, "", ()) for number in range(count)]

    def send_all(self, count: int, *, chunks: int = 1) -> None:
        """About ``count`` messages of all kinds that any client can read, kind after kind and mixed."""
        self.send("plain", count // 10)
        self.transaction(20, "commit")
        for kind in ("batched", "keyed", "zlib", "rich"):
            self.send(kind, count // 8)
            self.transaction(5, "abort")
        self.send("delayed", count // 50)
        self.send("chunked", chunks)
        self.transaction(2, "abort")
        self.send("plain", count - len(self.sent))


def message_of(kind: str, number: int) -> Message:
    """The same for the same arguments; its value begins with its kind and number."""
    how = KINDS[kind]
    dice = random.Random(number)
    head = f"{kind} {number} ".encode()
    if kind == "chunked":
        value = head + dice.randbytes(how.size_bytes)
    else:  # which can be compressed
        value = head + b"".join(dice.choice((b"some ", b"words ", b"again ")) for _ in range(how.size_bytes // 6))
    properties = (("number", str(number)), ("odd", str(number % 2))) if how.has_properties else ()
    return Message(value, f"key {number % 7}" if how.has_key else "", properties)


def client_of(service_url: str, *, is_quiet: bool = False) -> pulsar.Client:
    """A client that says what goes wrong with its connections, or nothing."""
    level = pulsar.LoggerLevel.Error
    logger = pulsar.FileLogger(level, "/dev/null") if is_quiet else pulsar.ConsoleLogger(level)
    return pulsar.Client(service_url, logger=logger, operation_timeout_seconds=60)


def keys_in(folder: Path) -> pulsar.CryptoKeyReader:
    """A pair of keys for messages that clients encrypt, made when there is none."""
    public, private = folder / "public.pem", folder / "private.pem"
    if not public.exists():
        key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
        kind = serialization.PrivateFormat.TraditionalOpenSSL
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))
    return pulsar.CryptoKeyReader(str(public), str(private))


def receive(consumer: pulsar.Consumer | pulsar.Reader, count: int, *, and_no_more: bool = True) -> list[pulsar.Message]:
    """The next ``count`` messages; acknowledged where it is a consumer.

    Args:
        and_no_more: fails when another one comes after them.
    """
    found = []
    is_reader = isinstance(consumer, pulsar.Reader)
    for _ in range(count):
        message = consumer.read_next(RECEIVE_MS) if is_reader else consumer.receive(RECEIVE_MS)
        found.append(message)
        if not is_reader:
            consumer.acknowledge(message)
    if and_no_more:
        with contextlib.suppress(pulsar.Timeout):
            more = consumer.read_next(NOTHING_MS) if is_reader else consumer.receive(NOTHING_MS)
            raise AssertionError(f"one more than {count}: {more.message_id()} {more.data()[:40]!r}")
    return found


def plain(messages: Sequence[pulsar.Message]) -> list[Message]:
    """What was received, as it was sent."""
    return [Message(each.data(), each.partition_key(), tuple(sorted(each.properties().items()))) for each in messages]


def checksum(messages: Sequence[Message]) -> int:
    """As ``Drained.crc32``."""
    found = 0
    for each in messages:
        found = zlib.crc32(each.value, found)
    return found
