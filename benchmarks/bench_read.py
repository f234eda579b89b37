"""Reading a stream back against bare ranged GETs of the same bytes in the same run.

    python benchmarks/bench_read.py [--store file|memory|minio|versitygw] [--mib 256] [--entry-bytes 100,1024] [--json]

Prints for each entry size, in MB/s of data object: bare parallel ranged GETs; those plus CRC and decoding in as many
threads; ``Reader.scan``; a reader that fetches 1 MiB after the other. Then single reads of a cold block against a bare
GET of that block, and warm ones per second. A server shares this machine's cores: compare the ratios, not the rates.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from formats.entries import EntryBatch, Position
from formats.keys import data_key, index_key, new_segment_uuid
from formats.manifest import Assign, LedgerClosed, Offloaded
from formats.segment import SegmentBuilder
from offloader.clock import SystemClock
from offloader.manifest.log import ManifestLog
from offloader.read.fetch import Fetcher
from offloader.read.plan import BlockRun, SegmentObjects, block_runs
from offloader.read.reader import open_reader
from offloader.settings import ReadSettings
from offloader.store.base import ByteRange, ObjectStore, open_store
from services.servers import make_bucket, server

BUCKET = "offloader-bench"
BATCH_ENTRIES = 10_000
ROUNDS = 5
SINGLE_READS = 200


def write_stream(store: ObjectStore, stream: str, entry_bytes: int, total_bytes: int, segments: int = 2) -> None:
    """A stream of random payloads of one size, a millisecond apart, in segments of equal size."""
    log = ManifestLog(store, stream, clock=SystemClock())
    log.open_epoch()
    entries = total_bytes // (entry_bytes + 12) // segments
    chunk = np.random.default_rng(1).bytes(entry_bytes * BATCH_ENTRIES)
    payloads = [chunk[at : at + entry_bytes] for at in range(0, len(chunk), entry_bytes)]
    for ledger in range(1, segments + 1):
        builder = SegmentBuilder(block_bytes=1 << 20, part_bytes=1 << 24)
        parts = []
        for first in range(0, entries, BATCH_ENTRIES):
            count = min(BATCH_ENTRIES, entries - first)
            times = np.arange(first, first + count, dtype=np.int64) + 1_700_000_000_000
            parts += builder.append(EntryBatch.build(ledger, first, payloads[:count], times))
        finished = builder.finish()
        uuid = new_segment_uuid(log.state.incarnation, random.getrandbits(64))
        store.put(data_key(stream, uuid), b"".join(bytes(part.data) for part in [*parts, *finished.parts]))
        store.put(index_key(stream, uuid), finished.index)
        begin, end = finished.summary.begin, finished.summary.end
        if ledger > 1:
            log.commit([LedgerClosed(ledger - 1, entries - 1)])
        log.commit([Assign(uuid, 2, begin, end, 0, dict(store.driver_metadata)), Offloaded(uuid, finished.summary, 0)])


@contextmanager
def opened_store(kind: str, folder: str) -> Iterator[tuple[ObjectStore, dict[str, str]]]:
    """A store of that kind, empty, and what Spark's data source needs besides its URL."""
    if kind in ("file", "memory"):
        yield open_store(f"file://{folder}/store" if kind == "file" else "memory://bench"), {}
        return
    with server(kind) as endpoint:
        make_bucket(endpoint, BUCKET)
        store = open_store(
            f"s3://{BUCKET}/read",
            endpoint_url=endpoint.url,
            region="us-east-1",
            access_key=endpoint.access_key,
            secret_key=endpoint.secret_key,
        )
        given = {"endpointUrl": endpoint.url, "accessKey": endpoint.access_key, "secretKey": endpoint.secret_key}
        yield store, {**given, "region": "us-east-1"}


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def scans(store: ObjectStore, stream: str) -> dict[str, float]:
    """MB/s of each way to read all of it; medians, taken in turns."""
    settings = ReadSettings()
    fetcher = Fetcher(store, settings)
    reader = open_reader(store, stream, settings=settings)
    runs: list[BlockRun] = []
    for record in reader.segments():
        objects = SegmentObjects.of_record(stream, record)
        found = fetcher.index(objects)
        runs += block_runs(objects, found, np.arange(len(found.blocks)), settings.request_bytes)
    total = sum(run.stop - run.start for run in runs)

    def get(run: BlockRun) -> int:
        return len(store.get(run.objects.data_key, ByteRange(run.start, run.stop))[0])

    def get_and_decode(run: BlockRun) -> int:
        return sum(map(len, fetcher.run(run)))

    def parallel(work: Callable[[BlockRun], int]) -> None:
        with ThreadPoolExecutor(settings.requests_in_flight_max) as pool:
            assert sum(pool.map(work, runs)) > 0

    def scan() -> None:
        assert sum(map(len, reader.scan())) == reader.count()

    def one_after_another() -> None:
        for run in runs:
            for start in range(run.start, run.stop, 1 << 20):
                store.get(run.objects.data_key, ByteRange(start, min(start + (1 << 20), run.stop)))

    ways: dict[str, Callable[[], None]] = {
        "bare_gets": lambda: parallel(get),
        "gets_and_decode": lambda: parallel(get_and_decode),
        "scan": scan,
        "one_after_another": one_after_another,
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            taken[name].append(total / 1e6 / seconds(way))
    return {f"{name}_mb_s": round(statistics.median(rates), 1) for name, rates in taken.items()}


def singles(store: ObjectStore, stream: str) -> dict[str, float]:
    """Single entries: cold block with the index cached, a bare GET of the same block, warm."""
    reader = open_reader(store, stream, settings=ReadSettings(cache_bytes_max=1 << 30))
    record = reader.segments()[0]
    objects = SegmentObjects.of_record(stream, record)
    found = Fetcher(store, ReadSettings()).index(objects)
    reader.count(Position(1, 1), Position(1, 1))
    chosen = random.Random(7).sample(range(len(found.blocks)), min(len(found.blocks), SINGLE_READS))
    cold, bare = [], []
    for number in chosen:
        at, length = int(found.blocks.offset[number]), int(found.blocks.length[number])
        position = Position(1, int(found.blocks.first_entry_id[number]))
        bare.append(seconds(lambda at=at, length=length: store.get(objects.data_key, ByteRange(at, at + length))))
        cold.append(seconds(lambda position=position: reader.read(position, position)))
    positions = [Position(1, int(found.blocks.first_entry_id[number])) for number in chosen]
    warm = seconds(lambda: [reader.read(position, position) for position in positions * 10])
    return {
        "cold_read_ms": round(statistics.median(cold) * 1e3, 3),
        "bare_get_of_the_block_ms": round(statistics.median(bare) * 1e3, 3),
        "warm_reads_per_s": round(len(positions) * 10 / warm),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["file", "memory", "minio", "versitygw"], default="file")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--entry-bytes", default="100,1024")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened_store(arguments.store, folder) as (store, _):
        for entry_bytes in map(int, arguments.entry_bytes.split(",")):
            stream = f"bench-{entry_bytes}"
            write_stream(store, stream, entry_bytes, arguments.mib << 20)
            found = {"store": arguments.store, "entry_bytes": entry_bytes, **scans(store, stream)}
            found |= {
                "scan_to_bare_gets": round(found["scan_mb_s"] / found["bare_gets_mb_s"], 2),
                "scan_to_gets_and_decode": round(found["scan_mb_s"] / found["gets_and_decode_mb_s"], 2),
                "scan_to_one_after_another": round(found["scan_mb_s"] / found["one_after_another_mb_s"], 2),
                **singles(store, stream),
            }
            if arguments.json:
                print(json.dumps(found))
            else:
                print("\n".join(f"{name:28} {value}" for name, value in found.items()) + "\n")


if __name__ == "__main__":
    main()
