"""How fast embedded ledgers take and give entries, beside a bare file of the same bytes that is synced as often.

    python benchmarks/bench_ledgers.py [--dir DIR] [--mb 100]

Prints one line per case: MB/s of payload, calls per second, and the ratio to the bare file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from formats.entries import Position
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream

BATCH_BYTES = 1_000_000
READ_BYTES = 4 * 1024 * 1024
ROUNDS = 3


def entries(entry_bytes: int, count: int) -> pa.BinaryArray:
    offsets = np.arange(0, entry_bytes * count + 1, entry_bytes, dtype=np.int32)
    data = os.urandom(entry_bytes * count)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def append(directory: Path, name: str, batch: pa.BinaryArray, calls: int) -> float:
    ledgers = EmbeddedLedgers(str(directory / f"{name}.db"))
    stream = ledgers.open_stream("bench")
    times = np.arange(len(batch))
    started = time.perf_counter()
    for _ in range(calls):
        stream.append(batch, times)
    seconds = time.perf_counter() - started
    ledgers.close()
    return seconds


def write_file(directory: Path, name: str, body: bytes, calls: int) -> float:
    with (directory / f"{name}.raw").open("wb", buffering=0) as file:
        started = time.perf_counter()
        for _ in range(calls):
            file.write(body)
            os.fsync(file.fileno())
        return time.perf_counter() - started


def read_stream(stream: EmbeddedStream) -> tuple[float, int]:
    started, position, total = time.perf_counter(), Position(0, 0), 0
    while (batch := stream.read(position, READ_BYTES)) is not None:
        total += batch.payload_bytes
        position = batch.last.next()
    return time.perf_counter() - started, total


def read_file(path: Path) -> float:
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(READ_BYTES):
            pass
    return time.perf_counter() - started


def measure(directory: Path, entry_bytes: int, per_call: int, calls: int) -> None:
    name = f"{entry_bytes}-{per_call}"
    batch = entries(entry_bytes, per_call)
    body = batch.buffers()[2].to_pybytes()
    total = entry_bytes * per_call * calls
    appended, written, read, read_raw = [], [], [], []
    for number in range(ROUNDS):
        case = f"{name}-{number}"
        appended.append(append(directory, case, batch, calls))
        written.append(write_file(directory, case, body, calls))
        ledgers = EmbeddedLedgers(str(directory / f"{case}.db"))
        seconds, found = read_stream(ledgers.view_stream("bench"))
        assert found == total, (found, total)
        read.append(seconds)
        read_raw.append(read_file(directory / f"{case}.raw"))
        ledgers.close()
        for path in directory.iterdir():
            path.unlink()
    for verb, ours, bare in (("append", appended, written), ("read", read, read_raw)):
        seconds, bare_seconds = statistics.median(ours), statistics.median(bare)
        print(
            f"{verb:6} {entry_bytes:>5} B x {per_call:>6}/call: {total / seconds / 1e6:8.1f} MB/s "
            f"{calls / seconds:9.0f} calls/s   bare file {total / bare_seconds / 1e6:8.1f} MB/s   "
            f"ratio {bare_seconds / seconds:5.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="where to write; a temporary directory by default")
    parser.add_argument("--mb", type=int, default=100, help="megabytes per batch case")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        for entry_bytes in (100, 1024):
            measure(Path(directory), entry_bytes, BATCH_BYTES // entry_bytes, given.mb)
            measure(Path(directory), entry_bytes, 1, 2_000)


if __name__ == "__main__":
    main()
