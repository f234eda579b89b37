"""How fast stored Pulsar entries become messages in columns, on one core, beside the least that has to be done.

python benchmarks/bench_messages.py [--messages 200000] [--rounds 5] [--json]

The bare loop checks each entry's CRC, decompresses it, parses every message's metadata with protobuf and slices its
bytes, and makes no columns. Same entries, same process; CPU time counts. Batches of 100 messages, each with a key, an
event time and one property, or an entry per message.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import google_crc32c
import lz4.block
import pyarrow as pa
import zstandard

from formats.checksum import crc32c
from formats.entries import EntryBatch
from formats.metadata import pulsar_message_pb2
from formats.pulsar.entry import PayloadCodec
from formats.pulsar.messages import COLUMNS, ENTRY_COLUMNS, MessageDecoder, MessageOptions

PROTOCOL: Any = pulsar_message_pb2
BATCH_MESSAGES = 100
#: What a query on content=messages usually asks for.
USUAL = ("ledger_id", "entry_id", "batch_index", "publish_time", "key", "value")
TARGET_MESSAGES_PER_S = 300_000


def payload_of(generator: random.Random, size: int) -> bytes:
    """Text of a small vocabulary, so that it compresses as events do."""
    words = [b'"id":', b'"order":', b'"amount":', b'"EUR"', b"true", b"null", b"2026-11-21T"]
    out = bytearray()
    while len(out) < size:
        out += generator.choice(words) + str(generator.randrange(10**6)).encode()
    return bytes(out[:size])


def compressed(codec: PayloadCodec, data: bytes) -> bytes:
    match codec:
        case PayloadCodec.LZ4:
            return bytes(lz4.block.compress(data, store_size=False))
        case PayloadCodec.ZSTD:
            return zstandard.ZstdCompressor().compress(data)
    return data


def entries(count: int, size: int, batch: int, codec: PayloadCodec) -> EntryBatch:
    """``count`` messages of ``size`` bytes, ``batch`` to an entry (1 = no batches)."""
    generator = random.Random(7)
    kinds = [payload_of(generator, size) for _ in range(97)]
    found = []
    for first in range(0, count, batch):
        metadata = PROTOCOL.MessageMetadata(producer_name="bench", sequence_id=first, publish_time=1_700_000_000_000)
        if batch > 1:
            plain = b"".join(in_batch(number, kinds[number % 97]) for number in range(first, min(first + batch, count)))
            metadata.num_messages_in_batch = min(batch, count - first)
        else:
            plain = kinds[first % 97]
            metadata.partition_key = f"key-{first % 1000}"
        metadata.compression, metadata.uncompressed_size = int(codec), len(plain)
        found.append(sealed(metadata.SerializeToString(), compressed(codec, plain)))
    return EntryBatch.build(7, 0, found)


def in_batch(number: int, value: bytes) -> bytes:
    single = PROTOCOL.SingleMessageMetadata(
        partition_key=f"key-{number % 1000}",
        payload_size=len(value),
        event_time=1_700_000_000_000 + number,
        sequence_id=number,
    )
    single.properties.add(key="source", value=f"device-{number % 50}")
    metadata = single.SerializeToString()
    return len(metadata).to_bytes(4, "big") + bytes(metadata) + value


def sealed(metadata: bytes, payload: bytes) -> bytes:
    body = len(metadata).to_bytes(4, "big") + metadata + payload
    return b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body


def bare_loop(batch: EntryBatch) -> int:
    """The least: checksum, decompression, protobuf, slices."""
    outer, single = PROTOCOL.MessageMetadata.FromString, PROTOCOL.SingleMessageMetadata.FromString
    found = 0
    for entry in batch.payloads.to_pylist():
        assert crc32c(entry[6:]) == int.from_bytes(entry[2:6], "big")
        start = 10 + int.from_bytes(entry[6:10], "big")
        metadata, payload = outer(entry[10:start]), entry[start:]
        if metadata.compression == PayloadCodec.LZ4:
            payload = lz4.block.decompress(payload, uncompressed_size=metadata.uncompressed_size)
        elif metadata.compression == PayloadCodec.ZSTD:
            payload = pa.Codec("zstd").decompress(payload, metadata.uncompressed_size, asbytes=True)
        position, values = 0, [payload]
        if metadata.HasField("num_messages_in_batch"):
            values = []
            for _ in range(metadata.num_messages_in_batch):
                stop = position + 4 + int.from_bytes(payload[position : position + 4], "big")
                position = stop + single(payload[position + 4 : stop]).payload_size
                values.append(payload[stop:position])
        found += len(values)
    return found


def decode(batch: EntryBatch, columns: Sequence[str]) -> int:
    return sum(rows.num_rows for rows in MessageDecoder(MessageOptions(columns=tuple(columns))).decode(batch))


def fastest_s(work: Callable[[], Any], rounds: int) -> float:
    """CPU seconds: one thread works, and whatever else runs on the machine is left out."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def run(count: int, rounds: int) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for name, size, batch, codec in (
        ("100 B, batches", 100, BATCH_MESSAGES, PayloadCodec.NONE),
        ("100 B, batches, lz4", 100, BATCH_MESSAGES, PayloadCodec.LZ4),
        ("1 KiB, batches, zstd", 1024, BATCH_MESSAGES, PayloadCodec.ZSTD),
        ("1 KiB, unbatched", 1024, 1, PayloadCodec.NONE),
    ):
        whole = entries(count, size, batch, codec)
        assert bare_loop(whole) == decode(whole, tuple(COLUMNS)) == decode(whole, tuple(ENTRY_COLUMNS)) == count
        bare_s = fastest_s(partial(bare_loop, whole), rounds)
        results.append({"case": name, "what": "bare loop, no columns", "messages_per_s": round(count / bare_s)})
        for what, columns in (
            ("usual columns", USUAL),
            ("all columns", COLUMNS),
            ("columns of entries", ENTRY_COLUMNS),
        ):
            seconds = fastest_s(partial(decode, whole, tuple(columns)), rounds)
            results.append(
                {
                    "case": name,
                    "what": what,
                    "messages_per_s": round(count / seconds),
                    "share_of_bare_loop": round(bare_s / seconds, 2),
                    "megabytes_per_s": round(count * size / seconds / 1e6),
                    "target_messages_per_s": TARGET_MESSAGES_PER_S if batch > 1 and what == "usual columns" else None,
                }
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5, help="the fastest of so many counts")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    results = run(arguments.messages, arguments.rounds)
    if arguments.json:
        print(json.dumps({"crc32c": f"google-crc32c ({google_crc32c.implementation})", "results": results}, indent=2))
        return
    print(f"one core, CRC-32C by google-crc32c ({google_crc32c.implementation})")
    for each in results:
        line = f"{each['case']:22} {each['what']:24} {each['messages_per_s']:>9,} messages/s"
        if "share_of_bare_loop" in each:
            line += f"  {each['share_of_bare_loop']:>6.2f} x bare  {each['megabytes_per_s']:>5} MB/s of values"
        if each.get("target_messages_per_s"):
            line += f"  (promised {each['target_messages_per_s']:,})"
        print(line)


if __name__ == "__main__":
    main()
