"""Stored Pulsar entries for tests, built byte by byte from the protocol's facts.

Field numbers and wire types are written out here, and nothing of the decoder is used: protobuf by hand, CRC-32C by
its definition, codecs by other libraries than the decoder's where there is one.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lz4.block
import pyarrow as pa
import zstandard

RECORDED = Path(__file__).resolve().parent / "golden_messages"
NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)


def varint(number: int) -> bytes:
    number %= 2**64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def number(tag: int, value: int | None) -> bytes:
    """A field of wire type 0; nothing for ``None``."""
    return b"" if value is None else varint(tag << 3) + varint(value)


def blob(tag: int, value: bytes | str | None) -> bytes:
    """A field of wire type 2."""
    if value is None:
        return b""
    data = value.encode() if isinstance(value, str) else value
    return varint(tag << 3 | 2) + varint(len(data)) + data


def pairs(tag: int, values: Mapping[Any, Any] | Sequence[tuple[Any, Any]]) -> bytes:
    items = values.items() if isinstance(values, Mapping) else values
    return b"".join(blob(tag, blob(1, key) + blob(2, value)) for key, value in items)


@dataclass(kw_only=True)
class Sent:
    """A message as it goes into an entry of its own or into a batch."""

    value: bytes = b""
    key: str | bytes | None = None
    key_is_base64: bool | None = None
    null_key: bool | None = None
    null_value: bool | None = None
    ordering_key: bytes | None = None
    event_time: int | None = None
    sequence_id: int | None = None
    properties: Mapping[Any, Any] | Sequence[tuple[Any, Any]] = field(default_factory=dict)
    compacted_out: bool | None = None

    def in_batch(self) -> bytes:
        """``[size][SingleMessageMetadata][bytes]``"""
        metadata = (
            pairs(1, self.properties)
            + blob(2, self.key)
            + number(3, len(self.value))
            + number(4, self.compacted_out)
            + number(5, self.event_time)
            + number(6, self.key_is_base64)
            + blob(7, self.ordering_key)
            + number(8, self.sequence_id)
            + number(9, self.null_value)
            + number(10, self.null_key)
        )
        return len(metadata).to_bytes(4, "big") + metadata + self.value


def metadata_of(
    *,
    message: Sent | None = None,
    producer: str | bytes | None = "p",
    sequence_id: int | None = 0,
    publish_time: int | None = 1_700_000_000_000,
    replicated_from: str | None = None,
    compression: int | None = None,
    uncompressed_size: int | None = None,
    batch: int | None = None,
    encryption: Sequence[tuple[str, bytes, Mapping[str, str]]] = (),
    encryption_algorithm: str | None = None,
    encryption_parameter: bytes | None = None,
    schema_version: bytes | None = None,
    deliver_at: int | None = None,
    marker: int | None = None,
    txn: tuple[int, int] | None = None,
    chunk: tuple[str, int, int, int] | None = None,
) -> bytes:
    """``MessageMetadata``; ``txn`` is (most, least) bits, ``chunk`` is (uuid, id, chunks, bytes in all)."""
    m = message or Sent()
    most, least = txn or (None, None)
    uuid, chunk_id, chunks, chunk_bytes = chunk or (None, None, None, None)
    keys = b"".join(blob(13, blob(1, name) + blob(2, value) + pairs(3, more)) for name, value, more in encryption)
    return (
        blob(1, producer)
        + number(2, sequence_id)
        + number(3, publish_time)
        + pairs(4, m.properties)
        + blob(5, replicated_from)
        + blob(6, m.key)
        + number(8, compression)
        + number(9, uncompressed_size)
        + number(11, batch)
        + number(12, m.event_time)
        + keys
        + blob(14, encryption_algorithm)
        + blob(15, encryption_parameter)
        + blob(16, schema_version)
        + number(17, m.key_is_base64)
        + blob(18, m.ordering_key)
        + number(19, deliver_at)
        + number(20, marker)
        + number(22, least)
        + number(23, most)
        + number(25, m.null_value)
        + blob(26, uuid)
        + number(27, chunks)
        + number(28, chunk_bytes)
        + number(29, chunk_id)
        + number(30, m.null_key)
    )


def crc32c_by_definition(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def entry_of(
    metadata: bytes, payload: bytes, *, checksum: bool = True, broker: tuple[int | None, int | None] | None = None
) -> bytes:
    """A whole entry; ``broker`` is (timestamp, index)."""
    body = len(metadata).to_bytes(4, "big") + metadata + payload
    if checksum:
        body = b"\x0e\x01" + crc32c_by_definition(body).to_bytes(4, "big") + body
    if broker is not None:
        added = number(1, broker[0]) + number(2, broker[1])
        body = b"\x0e\x02" + len(added).to_bytes(4, "big") + added + body
    return body


def compressed(codec: int, data: bytes) -> bytes:
    match codec:
        case 1:
            return bytes(lz4.block.compress(data, store_size=False))
        case 2:
            stream = zlib.compressobj()
            return stream.compress(data) + stream.flush()
        case 3:
            return zstandard.ZstdCompressor().compress(data)
        case 4:
            return bytes(pa.Codec("snappy").compress(data, asbytes=True))
    return data


def single_entry(message: Sent, *, codec: int = NONE, **more: Any) -> bytes:
    frame = {name: more.pop(name) for name in ("checksum", "broker") if name in more}
    size: dict[str, Any] = {"compression": codec, "uncompressed_size": len(message.value)} if codec else {}
    return entry_of(metadata_of(message=message, **size, **more), compressed(codec, message.value), **frame)


def batch_entry(messages: Sequence[Sent], *, codec: int = NONE, **more: Any) -> bytes:
    frame = {name: more.pop(name) for name in ("checksum", "broker") if name in more}
    plain = b"".join(message.in_batch() for message in messages)
    fields = {"batch": len(messages), **({"compression": codec, "uncompressed_size": len(plain)} if codec else {})}
    return entry_of(metadata_of(**{**fields, **more}), compressed(codec, plain), **frame)


@dataclass(frozen=True)
class RecordedTopic:
    """A topic of a real broker: what a producer sent, and the entries that the bookie had."""

    topic: str
    producer_name: str
    messages: list[dict[str, Any]]
    entries: list[tuple[int, int, bytes]]


def recorded(name: str) -> dict[str, RecordedTopic]:
    """The topics in one file of ``golden_messages``."""
    topics = {}
    for line in (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        entries = [(ledger, entry, base64.b64decode(data)) for ledger, entry, data in found.pop("entries")]
        topics[found["topic"]] = RecordedTopic(**found, entries=entries)
    return topics
