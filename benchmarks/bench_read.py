"""Reading a stream back against bare ranged GETs of the same bytes in the same run.

    python benchmarks/bench_read.py [--store file|memory|minio|versitygw] [--mib 256] [--entry-bytes 100,1024] [--json]

Prints for each entry size, in MB/s of data object: bare parallel ranged GETs; two such readers at once; those plus
CRC and decoding in as many threads; ``Reader.scan``; two of them at once; a reader that fetches 1 MiB after the
other; and this process's processor seconds per GB. From a server the same once more with ``--delay-ms`` added to each
request. Then the memory that a scan takes above its read-ahead, in a process of its own; single reads of a cold block
against a bare GET of that block, with the requests they made; and warm ones per second. A server shares this machine's
cores: compare the ratios, not the rates. Bare GETs of a server are boto3's, past everything of ours. More about two
readers: ``bench_readers.py``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import boto3
import numpy as np
from botocore.config import Config

from benchmarks.bench_memory import resident_mib
from formats.entries import EntryBatch, Position
from formats.keys import data_key, index_key, new_segment_uuid
from formats.manifest import Assign, LedgerClosed, Offloaded
from formats.segment import SegmentBuilder
from offloader.manifest.log import ManifestLog
from offloader.read.fetch import BlockRun, Cache, Fetcher, SegmentObjects, block_runs
from offloader.read.reader import Reader, open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import Pairs, ReadSettings
from offloader.store.base import ByteRange, ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import requests_of
from services.servers import make_bucket, server
from services.slow_proxy import slowed

#: Key, first byte, the byte after the last one -> how many came.
BareGet = Callable[[str, int, int], int]

BUCKET = "offloader-bench"
ROOT = "read"
S3_URL = f"s3://{BUCKET}/{ROOT}"
BATCH_ENTRIES = 10_000
#: Publish time of a stream's first entry.
FIRST_TIME_MS = 1_700_000_000_000
ROUNDS = 5
FAR_ROUNDS = 3
#: Ways to read that one scan is compared with.
ONE_READER = ("bare_gets", "gets_and_decode", "one_after_another")
SINGLE_READS = 200


def write_stream(
    store: ObjectStore,
    stream: str,
    entry_bytes: int,
    total_bytes: int,
    segments: int = 2,
    *,
    payloads: Sequence[bytes] = (),
    step_us: int = 1000,
) -> None:
    """A stream of random payloads of one size, or of ``payloads`` again and again, in segments of equal size.

    Times ascend over all segments, ``step_us`` microseconds an entry.
    """
    log = ManifestLog(store, stream, clock=SystemClock())
    log.open_epoch()
    entries = total_bytes // (entry_bytes + 12) // segments
    chunk = np.random.default_rng(1).bytes(entry_bytes * BATCH_ENTRIES)
    payloads = payloads or [chunk[at : at + entry_bytes] for at in range(0, len(chunk), entry_bytes)]
    for ledger in range(1, segments + 1):
        builder = SegmentBuilder(block_bytes=1 << 20, part_bytes=1 << 24)
        parts = []
        for first in range(0, entries, BATCH_ENTRIES):
            count = min(BATCH_ENTRIES, entries - first)
            before = (ledger - 1) * entries + first
            times = np.arange(before, before + count, dtype=np.int64) * step_us // 1000 + FIRST_TIME_MS
            parts += builder.append(EntryBatch.build(ledger, first, payloads[:count], times))
        finished = builder.finish()
        uuid = new_segment_uuid(log.state.incarnation, random.getrandbits(64))
        store.put(data_key(stream, uuid), b"".join(bytes(part.body) for part in [*parts, *finished.parts]))
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
        given = {"endpointUrl": endpoint.url, "accessKey": endpoint.access_key, "secretKey": endpoint.secret_key}
        given["region"] = "us-east-1"
        yield store_at(S3_URL, given), given


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def bare_get_of(store: ObjectStore, given: dict[str, str]) -> BareGet:
    """A GET that goes past everything of ours, where that is possible."""
    if not given:
        return lambda key, start, stop: len(store.get(key, ByteRange(start, stop))[0])
    client = boto3.client(
        "s3",
        endpoint_url=given["endpointUrl"],
        region_name=given["region"],
        aws_access_key_id=given["accessKey"],
        aws_secret_access_key=given["secretKey"],
        config=Config(max_pool_connections=32, retries={"total_max_attempts": 1}),
    )

    def get(key: str, start: int, stop: int) -> int:
        answer = client.get_object(Bucket=BUCKET, Key=f"{ROOT}/{key}", Range=f"bytes={start}-{stop - 1}")
        return len(answer["Body"].read())

    return get


def all_runs(store: ObjectStore, stream: str, settings: ReadSettings) -> list[BlockRun]:
    """What a scan fetches, request by request."""
    fetcher = Fetcher(store, settings)
    runs: list[BlockRun] = []
    for record in open_stream_reader(store, stream, settings=settings).segments():
        objects = SegmentObjects.of_record(stream, record)
        found = fetcher.index(objects)
        runs += block_runs(objects, found, np.arange(len(found.blocks)), settings.request_size)
    return runs


def scans(store: ObjectStore, stream: str, settings: ReadSettings, bare: BareGet, rounds: int) -> dict[str, float]:
    """MB/s of each way to read all of it, and its processor seconds per GB; medians, taken in turns."""
    fetcher = Fetcher(store, settings)
    readers = [open_stream_reader(store, stream, settings=settings) for _ in range(2)]
    entries, runs = readers[0].count(), all_runs(store, stream, settings)
    total = sum(run.stop - run.start for run in runs)

    def get(run: BlockRun) -> int:
        return bare(run.objects.data_key, run.start, run.stop)

    def get_and_decode(run: BlockRun) -> int:
        return sum(map(len, fetcher.run(run)))

    def parallel(work: Callable[[BlockRun], int]) -> int:
        with ThreadPoolExecutor(settings.requests_in_flight_max) as pool:
            return sum(pool.map(work, runs))

    def scan(reader: Reader) -> None:
        assert sum(map(len, reader.scan())) == entries

    def two_scans() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(scan, readers))

    def two_bare() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(parallel, [get, get]))

    def one_after_another() -> None:
        for run in runs:
            for start in range(run.start, run.stop, 1 << 20):
                bare(run.objects.data_key, start, min(start + (1 << 20), run.stop))

    ways: dict[str, tuple[Callable[[], object], int]] = {
        "bare_gets": (lambda: parallel(get), total),
        "two_bare_gets": (two_bare, 2 * total),
        "gets_and_decode": (lambda: parallel(get_and_decode), total),
        "scan": (lambda: scan(readers[0]), total),
        "two_scans": (two_scans, 2 * total),
        "one_after_another": (one_after_another, total),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (way, moved) in ways.items():
            before_s = time.process_time()
            rates[name].append(moved / 1e6 / seconds(way))
            costs[name].append((time.process_time() - before_s) / (moved / 1e9))
    median = {name: statistics.median(found) for name, found in rates.items()}
    return {
        **{f"{name}_mb_s": round(rate, 1) for name, rate in median.items()},
        **{f"{name}_cpu_s_per_gb": round(statistics.median(costs[name]), 2) for name in ("bare_gets", "scan")},
        **{f"scan_to_{name}": round(median["scan"] / median[name], 2) for name in ONE_READER},
        "two_scans_to_scan": round(median["two_scans"] / median["scan"], 2),
        "two_bare_gets_to_bare_gets": round(median["two_bare_gets"] / median["bare_gets"], 2),
    }


def far_scans(given: dict[str, str], stream: str, delay_ms: float) -> dict[str, float]:
    """``scans`` of the same objects from a server that is farther away."""
    with slowed(given["endpointUrl"], delay_ms=delay_ms) as url:
        far = {**given, "endpointUrl": url}
        store = store_at(S3_URL, far)
        # The manifest names the server without the way to it.
        settings = ReadSettings(relocate=Pairs({BUCKET: BUCKET}))
        found = scans(store, stream, settings, bare_get_of(store, far), FAR_ROUNDS)
        store.close()
    return {f"far_{name}": value for name, value in found.items()}


def store_at(url: str, given: dict[str, str]) -> ObjectStore:
    """The store again, by its URL and what ``opened_store`` gave."""
    return open_store(
        url,
        endpoint_url=given.get("endpointUrl"),
        region=given.get("region"),
        access_key=given.get("accessKey"),
        secret_key=given.get("secretKey"),
    )


def scan_memory(url: str, given: dict[str, str], stream: str) -> dict[str, float]:
    """How far a scan raises the resident memory of a process, and how much of that isn't its read-ahead."""
    child = json.dumps([url, given, stream])
    answer = subprocess.run([sys.executable, __file__, "--child", child], stdout=subprocess.PIPE, text=True, check=True)
    grown_mib = float(answer.stdout)
    settings = ReadSettings()
    ahead_mib = settings.request_size * (settings.requests_in_flight_max + 1) / (1 << 20)
    return {
        "scan_memory_mib": round(grown_mib, 1),
        "read_ahead_mib": round(ahead_mib, 1),
        "scan_memory_above_read_ahead_mib": round(grown_mib - ahead_mib, 1),
    }


def scan_once(url: str, given: dict[str, str], stream: str) -> None:
    """Prints by how many MiB a scan raised the highest resident memory; runs in a process of its own."""
    reader = open_stream_reader(store_at(url, given), stream)
    before = resident_mib("VmRSS")
    assert sum(map(len, reader.scan())) == reader.count()
    print(resident_mib("VmHWM") - before)


def singles(store: ObjectStore, stream: str, bare_get: BareGet) -> dict[str, float]:
    """Single entries: cold block with the index cached, a bare GET of the same block, warm; requests of the cold."""
    reader = open_stream_reader(store, stream, cache=Cache(1 << 30))
    objects = SegmentObjects.of_record(stream, reader.segments()[0])
    found = Fetcher(store, ReadSettings()).index(objects)
    numbers = random.Random(7).sample(range(len(found.blocks)), min(len(found.blocks), SINGLE_READS))
    positions = [Position(1, int(found.blocks.first_entry_id[number])) for number in numbers]

    def gets_of(work: Callable[[], object]) -> int:
        before = requests_of(store)["get"].requests
        work()
        return requests_of(store)["get"].requests - before

    def note_seconds(taken: list[float], work: Callable[[], object]) -> None:
        taken.append(seconds(work))

    without_index = gets_of(lambda: reader.read(positions[0], positions[0]))
    cold: list[float] = []
    bare: list[float] = []
    with_index: list[int] = []
    for turn, (number, position) in enumerate(zip(numbers[1:], positions[1:], strict=True)):
        at, length = int(found.blocks.offset[number]), int(found.blocks.length[number])
        pair: list[tuple[list[float], Callable[[], object]]] = [
            (bare, partial(bare_get, objects.data_key, at, at + length)),
            (cold, partial(reader.read, position, position)),
        ]
        for taken, work in pair if turn % 2 else reversed(pair):
            counted = gets_of(partial(note_seconds, taken, work))
            if taken is cold:
                with_index.append(counted)
    warm = seconds(lambda: [reader.read(position, position) for position in positions * 10])
    cold_ms, bare_ms = statistics.median(cold) * 1e3, statistics.median(bare) * 1e3
    return {
        "cold_read_ms": round(cold_ms, 3),
        "bare_get_of_the_block_ms": round(bare_ms, 3),
        "cold_read_to_bare_get": round(cold_ms / bare_ms, 2),
        "gets_of_a_cold_read_max": max(with_index),
        "gets_of_a_cold_read_without_index": without_index,
        "warm_reads_per_s": round(len(positions) * 10 / warm),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["file", "memory", "minio", "versitygw"], default="file")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--entry-bytes", default="100,1024")
    parser.add_argument("--delay-ms", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        scan_once(*json.loads(arguments.child))
        return
    with tempfile.TemporaryDirectory() as folder, opened_store(arguments.store, folder) as (store, given):
        for entry_bytes in map(int, arguments.entry_bytes.split(",")):
            stream = f"bench-{entry_bytes}"
            write_stream(store, stream, entry_bytes, arguments.mib << 20)
            bare = bare_get_of(store, given)
            found: dict[str, object] = {"store": arguments.store, "entry_bytes": entry_bytes}
            found |= scans(store, stream, ReadSettings(), bare, ROUNDS)
            if given:
                found |= far_scans(given, stream, arguments.delay_ms)
            if arguments.store != "memory":
                found |= scan_memory(store.url, given, stream)
            found |= singles(store, stream, bare)
            if arguments.json:
                print(json.dumps(found))
            else:
                print("\n".join(f"{name:28} {value}" for name, value in found.items()) + "\n")


if __name__ == "__main__":
    main()
