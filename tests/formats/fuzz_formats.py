"""Invariant: any bytes decode, or raise FormatError and nothing else; never more memory than the limits allow; and
bytes after the end change nothing.

    python tests/formats/fuzz_formats.py [--runs 100000] [--seed 1] [--memory-mebibytes 2048]

Seeds are real objects (Pulsar's and ours). They are cut, spliced, overwritten with extreme numbers, and where a
checksum would end the story at once, sealed again.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from formats.block import decode_block, decode_block_header, decode_run
from formats.checksum import crc32c
from formats.compression import Codec, compress, decompress
from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from formats.extension import decode_entry_table, decode_index_rows, encode_entry_table
from formats.index import decode_index, seal_index
from formats.metadata.messages import BookKeeperLedger, OffloadContext, PulsarLedger
from formats.segment import SegmentMap

FOLDER = Path(__file__).resolve().parent
SEED_BYTES_MAX = 8192
LIMITS = {"block_bytes_max": 1 << 20, "decompressed_bytes_max": 1 << 20}
EXTREMES = [0, 1, 2, 4, 127, 128, 129, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


def seeds() -> list[bytes]:
    """Data and index objects, small ones whole, of large ones the beginning."""
    paths = [path for folder in ("golden", "golden_own") for path in (FOLDER / folder).rglob("*") if path.is_file()]
    kept = [path.read_bytes()[:SEED_BYTES_MAX] for path in sorted(paths) if path.suffix not in (".json", ".gz")]
    table = encode_entry_table(np.arange(20, dtype=np.int64), np.arange(20, dtype=np.int64) * 1000)
    return [*kept, table, compress(Codec.ZSTD, bytes(5000))]


def mutate(rng: random.Random, pool: list[bytes]) -> bytes:
    data = bytearray(rng.choice(pool))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        if not data:
            break
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                size = rng.choice((1, 2, 4, 8))
                data[at : at + size] = (rng.choice(EXTREMES) % 2 ** (8 * size)).to_bytes(size, "big")
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.choice((1, 4, 12, 20, 128))]
            case 4:
                other = rng.choice(pool)
                start = rng.randrange(len(other))
                data[at:at] = other[start : start + rng.choice((1, 12, 128, 500))]
            case 5:
                # Numbers near the head decide most: lengths, counts, offsets.
                at = min(at % 140, len(data) - 1)
                data[at : at + 4] = rng.choice(EXTREMES[:13]).to_bytes(4, "big")
    if rng.random() < 0.5:
        data = seal_index_bytes(seal_block(data))
    return bytes(data)


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
    assert SegmentMap.parse(found.encode(), ledger_id=7).encode() == found.encode()
    if found.has_extension:
        seal_index(decode_index(data, ledger_id=7))
    result = []
    for number in found.find(Position(0, 0), Position(2**62, 2**62)).tolist()[:8]:
        start, size = int(found.blocks.offset[number]), int(found.blocks.read_bytes[number])
        batch = attempt(lambda: found.decode(number, data[start : start + min(size, len(data))], **LIMITS))  # noqa: B023
        result.append((number, -1 if batch is None else len(batch)))
    return result


def checked(batch: EntryBatch) -> list[object]:
    """A decoded batch must be sound, not just there."""
    batch.payloads.validate(full=True)
    assert len(batch.payloads) == len(batch.entry_ids) == len(batch.publish_times_ms)
    assert (batch.entry_ids[1:] > batch.entry_ids[:-1]).all()
    return [batch.ledger_id, batch.entry_ids.tolist(), batch.payloads.to_pylist(), batch.publish_times_ms.tolist()]


def attempt(work: Callable[[], object]) -> object:
    try:
        return work()
    except FormatError as error:
        if not str(error):
            raise AssertionError("an error without a message") from error
        return None


def check(data: bytes) -> int:
    """The invariant for one input; answers how many decoders accepted it."""
    run = {"header_bytes": 128, "length": len(data), "first_entry_id": 0, "ledger_id": 7, "run_bytes_max": 1 << 20}
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
        lambda b: OffloadContext.decode(b).encode(),
        lambda b: BookKeeperLedger.decode(b).encode(),
        lambda b: decompress(Codec.ZSTD, b, 5000, 1 << 20),
    ]
    accepted = 0
    for decode in ends_by_itself:
        found = attempt(lambda: decode(data))  # noqa: B023
        accepted += found is not None
        if found is not None:
            assert attempt(lambda: decode(data + b"\x00trailing")) == found, "trailing bytes changed the answer"  # noqa: B023
    for decode in others:
        accepted += attempt(lambda: decode(data)) is not None  # noqa: B023
    return accepted


def fuzz(runs: int, seed: int) -> tuple[int, int]:
    """How many inputs were tried, and how many times a decoder accepted one."""
    rng = random.Random(seed)
    pool = seeds()
    accepted = 0
    for number in range(runs):
        data = mutate(rng, pool)
        try:
            accepted += check(data)
        except BaseException:
            print(f"seed {seed}, run {number}: {data.hex()}", file=sys.stderr)
            raise
    return runs, accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-mebibytes", type=int, default=2048, help="address space of the process; 0 = no limit")
    arguments = parser.parse_args()
    if arguments.memory_mebibytes:
        limit = arguments.memory_mebibytes << 20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    runs, accepted = fuzz(arguments.runs, arguments.seed)
    print(f"seed {arguments.seed}: {runs} inputs, {accepted} times accepted by one of 12 decoders, no other error")


if __name__ == "__main__":
    main()
