"""Data and index objects: any bytes decode, or raise FormatError and nothing else; bytes after the end change nothing.

Seeds are real objects (Pulsar's and ours). Where a checksum would end the story at once, it is sealed again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from formats.block import decode_block, decode_block_header, decode_run
from formats.checksum import crc32c
from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from formats.extension import Codec, compress, decode_entry_table, decode_index_rows, decompress, encode_entry_table
from formats.index import decode_index, encode_index, seal_index
from formats.metadata.messages import BookKeeperLedger, PulsarLedger
from formats.segment import SegmentMap
from tests.proof.fuzz.fuzz_engine import Outcome, Target, attempt
from tests.proof.fuzz.fuzz_mutation import mutate

FOLDER = Path(__file__).resolve().parents[2] / "formats"
SEED_BYTES_MAX = 8192
LIMITS: dict[str, Any] = {"block_bytes_max": 1 << 20, "decompressed_bytes_max": 1 << 20}


def seeds() -> list[bytes]:
    """Data and index objects, small ones whole, of large ones the beginning."""
    paths = [path for folder in ("golden", "golden_own") for path in (FOLDER / folder).rglob("*") if path.is_file()]
    kept = [path.read_bytes()[:SEED_BYTES_MAX] for path in sorted(paths) if path.suffix not in (".json", ".gz")]
    table = encode_entry_table(np.arange(20, dtype=np.int64), np.arange(20, dtype=np.int64) * 1000)
    return [*kept, table, compress(Codec.ZSTD, bytes(5000))]


def change(rng: random.Random, pool: list[bytes]) -> bytes:
    """A changed object; in half of them the checksums are made to fit again."""
    data = mutate(rng, pool)
    return bytes(seal_index_bytes(seal_block(bytearray(data)))) if rng.random() < 0.5 else data


def seal_block(data: bytearray) -> bytearray:
    """A block header's checksums made to fit whatever it says, so that the checks behind them are reached."""
    if len(data) >= 128 and data[36:40] == b"OFFL":
        stored, table = int.from_bytes(data[56:60], "big"), int.from_bytes(data[68:72], "big")
        data[64:68] = crc32c(data[128 : 128 + stored]).to_bytes(4, "big")
        data[72:76] = crc32c(data[132 + stored : 132 + stored + table]).to_bytes(4, "big")
        data[124:128] = crc32c(bytes(data[:124])).to_bytes(4, "big")
    return data


def seal_index_bytes(data: bytearray) -> bytearray:
    """The same for an index: its checksum stands behind a tag (V2) or a key (V1)."""
    if data[:4] in (bytes.fromhex("de47de47"), bytes.fromhex("3d1fb0bc")):
        whole = data[: int.from_bytes(data[4:8], "big")]
        ends = [match.end() for match in re.finditer(rb"\xcd\x3e|offloader\.index-crc32c\x12\x04", whole)]
        for fill in (bytes(4), None):
            fill = crc32c(bytes(whole)).to_bytes(4, "little") if fill is None else fill
            for end in ends:
                if end + 4 <= len(whole):
                    whole[end : end + 4] = fill
        data[: len(whole)] = whole
    return data


def whole_object(data: bytes) -> list[tuple[int, int]]:
    """Takes ``data`` for an index, and also for the object that it describes."""
    found = SegmentMap.parse(data, object_name="fuzzed", ledger_id=7)
    again = encode_index(decode_index(data, ledger_id=7))
    assert encode_index(decode_index(again, ledger_id=7)) == again
    if found.has_extension:
        seal_index(decode_index(data, ledger_id=7))
    result = []
    for number in found.find(Position(0, 0), Position(2**62, 2**62)).tolist()[:8]:
        start, size = int(found.blocks.offset[number]), int(found.blocks.read_bytes[number])
        block = data[start : start + min(size, len(data))]
        batch, _ = attempt(partial(found.decode, number, block, **LIMITS), FormatError)
        result.append((number, -1 if batch is None else len(batch)))
    return result


def checked(batch: EntryBatch) -> list[object]:
    """A decoded batch must be sound, not just there."""
    batch.payloads.validate(full=True)
    assert len(batch.payloads) == len(batch.entry_ids) == len(batch.publish_times_ms)
    assert (batch.entry_ids[1:] > batch.entry_ids[:-1]).all()
    return [batch.ledger_id, batch.entry_ids.tolist(), batch.payloads.to_pylist(), batch.publish_times_ms.tolist()]


def check(data: bytes) -> Outcome:
    """The invariant for one input."""
    run: dict[str, Any] = {
        "header_bytes": 128,
        "length": len(data),
        "first_entry_id": 0,
        "ledger_id": 7,
        "run_bytes_max": 1 << 20,
    }
    ends_by_itself: list[Callable[[bytes], object]] = [
        lambda b: checked(decode_block(b, **LIMITS)),
        lambda b: decode_block_header(b),
        lambda b: [group.metadata for group in decode_index(b).groups],
        lambda b: SegmentMap.parse(b).blocks.offset.tolist(),
    ]
    others: list[Callable[[bytes], object]] = [
        whole_object,
        lambda b: checked(decode_run(b, **run)),
        lambda b: decode_entry_table(b, entries=20, table_crc32c=crc32c(b)),
        lambda b: decode_index_rows(b, ledger_id=None, rows=3),
        lambda b: PulsarLedger.decode(b).encode(),
        lambda b: BookKeeperLedger.decode(b).encode(),
        lambda b: decompress(Codec.ZSTD, b, 5000, 1 << 20),
    ]
    outcome: list[object] = []
    for decode in ends_by_itself:
        found, place = attempt(lambda: decode(data), FormatError)  # noqa: B023
        outcome.append(place)
        if found is not None:
            longer, _ = attempt(lambda: decode(data + b"\x00trailing"), FormatError)  # noqa: B023
            assert longer == found, "trailing bytes changed the answer"
    return (*outcome, *(attempt(partial(decode, data), FormatError)[1] for decode in others))


TARGETS = [Target("objects", seeds, check, change, per_s=5000)]
