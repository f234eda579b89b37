"""How fast blocks are encoded and decoded, on one core, beside ``memcpy`` of the same bytes in the same run; and the
checksums and zstd of several libraries.

python benchmarks/bench_formats.py [--mebibytes 64] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import google_crc32c.python
import numpy as np
import pyarrow as pa
import zstandard

from formats.checksum import crc32c, portable_extend
from formats.entries import EntryBatch
from formats.extension import ZSTD_LEVEL, Codec
from formats.segment import SegmentBuilder, SegmentMap
from formats.summary import Layout

MIB = 1 << 20
BLOCK_BYTES = MIB
PART_BYTES = 16 * MIB
LIMITS = {"block_bytes_max": 256 * MIB, "decompressed_bytes_max": 256 * MIB}

#: MB/s that the project promises, by case.
TARGETS = {
    "encode, 100 B": 600,
    "encode, 1 KiB": 1500,
    "decode, 100 B": 1200,
    "decode, 1 KiB": 2500,
    "decode plain Pulsar, 100 B": 250,
    "decode plain Pulsar, 50..150 B": 250,
}


def entries(total_bytes: int, smallest: int, largest: int) -> list[EntryBatch]:
    """Batches of about 4 MiB of random payload, lengths spread evenly."""
    rng = np.random.default_rng(7)
    batches = []
    first = 0
    for _ in range(max(1, total_bytes // (4 * MIB))):
        count = 4 * MIB // ((smallest + largest) // 2)
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(rng.integers(smallest, largest + 1, count), out=offsets[1:])
        data = rng.bytes(int(offsets[-1]))
        payloads = pa.BinaryArray.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0
        )
        batches.append(EntryBatch.build(7, first, payloads, 1_700_000_000_000))
        first += count
    return batches


def encode(batches: Sequence[EntryBatch], *, extension: bool = True, codec: Codec = Codec.NONE) -> tuple[bytes, bytes]:
    builder = SegmentBuilder(
        layout=Layout.V2, block_bytes=BLOCK_BYTES, part_bytes=PART_BYTES, extension=extension, codec=codec
    )
    parts = [part for batch in batches for part in builder.append(batch)]
    finished = builder.finish()
    return b"".join(bytes(part.body) for part in [*parts, *finished.parts]), finished.index


def encode_only(batches: Sequence[EntryBatch], *, extension: bool = True, codec: Codec = Codec.NONE) -> None:
    """Drops each part as soon as it is full, as an upload would."""
    builder = SegmentBuilder(
        layout=Layout.V2, block_bytes=BLOCK_BYTES, part_bytes=PART_BYTES, extension=extension, codec=codec
    )
    for batch in batches:
        builder.append(batch)
    builder.finish()


def decode(data: memoryview, index: bytes) -> int:
    segment_map = SegmentMap.parse(index)
    blocks = segment_map.blocks
    count = 0
    for number in range(len(blocks)):
        start = int(blocks.offset[number])
        count += len(segment_map.decode(number, data[start : start + int(blocks.read_bytes[number])], **LIMITS))
    return count


def fastest_s(work: Callable[[], Any], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def run(total_bytes: int, rounds: int) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for name, smallest, largest in (("100 B", 100, 100), ("50..150 B", 50, 150), ("1 KiB", 1024, 1024)):
        batches = entries(total_bytes, smallest, largest)
        wire_bytes = sum(batch.wire_bytes for batch in batches)
        data, index = encode(batches)
        plain, plain_index = encode(batches, extension=False)
        source, target = np.frombuffer(data, dtype=np.uint8), np.empty(len(data), dtype=np.uint8)
        memcpy_s = fastest_s(partial(np.copyto, target, source), rounds)
        count = sum(map(len, batches))
        assert decode(memoryview(data), index) == decode(memoryview(plain), plain_index) == count
        cases: list[tuple[str, Callable[[], Any]]] = [
            ("encode", partial(encode_only, batches)),
            ("encode zstd", partial(encode_only, batches, codec=Codec.ZSTD)),
            ("decode", partial(decode, memoryview(data), index)),
            ("decode plain Pulsar", partial(decode, memoryview(plain), plain_index)),
            ("crc32c", partial(crc32c, source)),
        ]
        for what, work in cases:
            seconds = fastest_s(work, rounds)
            case = f"{what}, {name}"
            results.append(
                {
                    "case": case,
                    "megabytes_per_s": round(wire_bytes / seconds / 1e6),
                    "share_of_memcpy": round(memcpy_s / seconds, 3),
                    "target_megabytes_per_s": TARGETS.get(case),
                    "entries": count,
                    "wire_bytes": wire_bytes,
                }
            )
        memcpy_rate = round(len(data) / memcpy_s / 1e6)
        results.append({"case": f"memcpy, {name}", "megabytes_per_s": memcpy_rate, "share_of_memcpy": 1.0})
    return results


def libraries(rounds: int) -> list[dict[str, Any]]:
    """Libraries that do the same: the checksum of a block, and zstd of a block of JSON, at the product's level."""
    rng = np.random.default_rng(7)
    rows = [
        f'{{"id":{number},"user":"user-{rng.integers(50_000)}","amount":{rng.integers(100_000) / 100},'
        f'"at":{1_700_000_000_000 + 37 * number}}}'
        for number in range(BLOCK_BYTES // 60)
    ]
    block = "\n".join(rows).encode()[:BLOCK_BYTES]
    arrow, theirs = pa.Codec("zstd", compression_level=ZSTD_LEVEL), zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    ours_packed, packed = arrow.compress(block, asbytes=True), theirs.compress(block)
    unpack = zstandard.ZstdDecompressor().decompress
    assert unpack(ours_packed) == arrow.decompress(packed, len(block), asbytes=True) == block
    cases: list[tuple[str, Callable[[], Any]]] = [
        (f"crc32c, google-crc32c ({google_crc32c.implementation})", partial(crc32c, block)),
        ("crc32c, crcmod", partial(portable_extend(), 0, block)),
        ("crc32c, google-crc32c (python)", partial(google_crc32c.python.value, block)),
        (f"zstd, pyarrow, to {len(ours_packed) / len(block):.3f}", partial(arrow.compress, block, asbytes=True)),
        (f"zstd, zstandard, to {len(packed) / len(block):.3f}", partial(theirs.compress, block)),
        ("unzstd, pyarrow", partial(arrow.decompress, packed, len(block), asbytes=True)),
        ("unzstd, zstandard", partial(unpack, packed)),
    ]
    copy_s = fastest_s(partial(bytearray, block), 10 * rounds)
    results: list[dict[str, Any]] = []
    for case, work in cases:
        seconds = fastest_s(work, rounds if "python" in case else 10 * rounds)
        rate = len(block) / seconds / 1e6
        results.append(
            {
                "case": case,
                "megabytes_per_s": round(rate, 1 if rate < 10 else None),
                "share_of_memcpy": round(copy_s / seconds, 4),
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=64, help="payload of each case")
    parser.add_argument("--rounds", type=int, default=5, help="the fastest of so many counts")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    results = run(arguments.mebibytes * MIB, arguments.rounds) + libraries(arguments.rounds)
    if arguments.json:
        print(json.dumps({"crc32c": f"google-crc32c ({google_crc32c.implementation})", "results": results}, indent=2))
        return
    print(
        f"one core, CRC-32C by google-crc32c ({google_crc32c.implementation}); "
        "MB/s of entries with their 12-byte headers"
    )
    for each in results:
        target = each.get("target_megabytes_per_s")
        promise = f"  (promised {target})" if target else ""
        print(f"{each['case']:36} {each['megabytes_per_s']:>8} MB/s  {each['share_of_memcpy']:>6.3f} x memcpy{promise}")


if __name__ == "__main__":
    main()
