"""A manifest of many segments: opening it, committing to it, asking it.

    python benchmarks/bench_manifest.py [--segments 1000000] [--tail 50] [--server file|minio] [--json]

The manifest is written once. Opening, committing and asking happen in a fresh process, which has opened a manifest of
one segment before, so that what loading the libraries costs is told apart (``libraries_mb``). Growth of its memory is
that of the resident set, as the system counts it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from formats.checkpoint_parquet import SegmentColumns
from formats.entries import Position
from formats.manifest import Assign, Edit, Offloaded
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.manifest.checkpoint import checkpoint_now
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.segment_table import SealedSegments, SegmentTable
from offloader.manifest.state import ManifestState, SegmentSums
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import FaultyStore

BIG, ASIDE, SMALL = "bench/big", "bench/aside", "bench/small"
#: Segments of a ledger, entries of a segment, segments of a run.
OF_LEDGER, ENTRIES, RUN = 10, 1000, 262_144
#: The last parts of a manifest whose next run is merged with seven larger ones: the dearest checkpoint there is.
DUE = [32_768] * 7 + [4000]
COMMITS = 150
BASE_MS = 1_700_000_000_000
MIB = 2**20


def columns(first: int, count: int) -> SegmentColumns:
    """Segments a minute apart, of about 64 MiB; one in ten lies in two ledgers."""
    noise = np.random.default_rng(first)
    number = np.arange(first, first + count)
    ledger, in_ledger = number // OF_LEDGER, number % OF_LEDGER
    span_rows = np.flatnonzero(in_ledger == 0)
    begin, size = in_ledger * ENTRIES, noise.integers(60 * MIB, 64 * MIB, count)
    span = np.stack([ledger, begin, begin + ENTRIES // 2, begin * 0 + ENTRIES // 2, size // 2], axis=1)[span_rows]
    return SegmentColumns(
        uuid_high=noise.integers(0, 2**63, count).astype(np.uint64),
        uuid_low=noise.integers(0, 2**63, count).astype(np.uint64),
        status=np.ones(count, np.uint8),
        layout=np.full(count, 2, np.uint8),
        owned=np.ones(count, np.uint8),
        compressed=np.zeros(count, np.uint8),
        driver=np.zeros(count, np.int32),
        epoch=number // 100_000,
        retire_record=np.full(count, -1),
        begin_ledger_id=ledger,
        begin_entry_id=begin,
        end_ledger_id=ledger,
        end_entry_id=begin + ENTRIES - 1,
        assigned_ms=BASE_MS + 60_000 * number,
        offloaded_ms=BASE_MS + 60_000 * number + noise.integers(0, 5000, count),
        data_bytes=size + 20_000,
        index_bytes=noise.integers(3000, 4000, count),
        data_crc32c=noise.integers(0, 2**32, count).astype(np.uint32),
        index_crc32c=noise.integers(0, 2**32, count).astype(np.uint32),
        entries=np.full(count, ENTRIES),
        payload_bytes=size,
        publish_time_min_ms=BASE_MS + 60_000 * number - noise.integers(0, 500, count),
        publish_time_max_ms=BASE_MS + 60_000 * number + 59_000,
        blocks=noise.integers(60, 65, count),
        span_rows=span_rows,
        span_offsets=np.arange(len(span_rows) + 1) * 2,
        spans=np.repeat(span, 2, axis=0),
        drivers=({"managedLedgerOffloadDriver": "aws-s3", "bucket": "cold", "region": "", "serviceEndpoint": ""},),
    )


def build(store: ObjectStore, stream: str, segments: int, tail: int, driver: Mapping[str, str] | None = None) -> None:
    """A stream with a checkpoint of ``segments`` segments and ``tail`` records after it; ``driver``: where they are."""
    log = ManifestLog(store, stream, clock=SystemClock())
    log.open_epoch()
    due = DUE if segments > 2 * sum(DUE) else []
    plain = segments - sum(due)
    sizes = [plain % RUN] * bool(plain % RUN) + [RUN] * (plain // RUN) + due
    parts = [columns(sum(sizes[:number]), size) for number, size in enumerate(sizes)]
    if driver is not None:
        parts = [replace(part, drivers=(driver,)) for part in parts]
    last = segments - 1
    end = Position(last // OF_LEDGER, last % OF_LEDGER * ENTRIES + ENTRIES - 1)
    state = ManifestState(
        stream=stream,
        incarnation=log.state.incarnation,
        record_id=log.state.record_id,
        epoch=1,
        segments=SegmentTable(tuple(map(SealedSegments, parts))),
        sums=SegmentSums(
            segments,
            segments * ENTRIES,
            sum(int(part.payload_bytes.sum()) for part in parts),
            sum(int(part.data_bytes.sum() + part.index_bytes.sum()) for part in parts),
        ),
        committed=end,
        newest_end=end,
        owner=log.state.owner,
        writer=log.state.writer,
        time_ms=log.state.time_ms,
    )
    checkpoint_now(store, state, os.urandom)
    again = ManifestLog(store, stream, clock=SystemClock())
    again.open_epoch()
    for number in range(tail):
        again.commit(next_segment(again.state.newest_end or end, number))


def next_segment(end: Position, number: int) -> list[Edit]:
    """The edits of the segment after ``end``."""
    begin, last = end.next(), Position(end.ledger_id, end.entry_id + ENTRIES)
    uuid = UUID(bytes=os.urandom(16), version=4)
    size = 64 * MIB
    span = LedgerSpan(begin.ledger_id, begin.entry_id, last.entry_id, ENTRIES, size)
    summary = SegmentSummary(
        layout=Layout.V2,
        begin=begin,
        end=last,
        data_bytes=size,
        index_bytes=3000,
        data_crc32c=number,
        index_crc32c=number,
        entries=ENTRIES,
        payload_bytes=size,
        publish_time_min_ms=BASE_MS,
        publish_time_max_ms=BASE_MS,
        blocks=64,
        compressed=False,
        ledgers=(span,),
    )
    return [Assign(uuid, 2, begin, None, BASE_MS, {"bucket": "cold"}), Offloaded(uuid, summary, BASE_MS)]


def resident_mb() -> float:
    """Resident set of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def timed_ms(call: Callable[[], Any], rounds: int = 1) -> float:
    """Median time of a call."""
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken)


def asked(state: ManifestState) -> dict[str, float]:
    """Times of queries."""
    middle = state.offloaded()[len(state.segments) // 2]
    stop = Position(middle.begin.ledger_id + 10, 0)
    return {
        "find_position_ms": timed_ms(lambda: state.find(middle.begin), 100),
        "slice_of_100_ms": timed_ms(lambda: state.offloaded(middle.begin, stop), 100),
        "all_offloaded_ms": timed_ms(state.offloaded, 3),
        "find_time_ms": timed_ms(lambda: state.offloaded().published_from(middle.offloaded_ms or 0)[0], 3),
    }


def committed(store: FaultyStore, log: ManifestLog) -> tuple[list[float], list[int]]:
    """Time in ms and requests of each of ``COMMITS`` commits, after a first one."""
    log.open_epoch()
    end = log.state.newest_end
    assert end is not None
    log.commit(next_segment(end, 0))
    times, requests = [], []
    for number in range(COMMITS):
        edits = next_segment(log.state.newest_end or end, number)
        calls = len(store.calls)
        times.append(timed_ms(lambda edits=edits: log.commit(edits)))  # type: ignore[misc]
        requests.append(len(store.calls) - calls)
    return times, requests


def measure(options: dict[str, Any]) -> dict[str, float]:
    """In a process of its own: opens, commits, asks."""
    opened = open_store(**options)
    store = FaultyStore(opened)
    found: dict[str, float] = {}
    before = resident_mb()
    load_manifest(store, SMALL)
    found["libraries_mb"] = resident_mb() - before
    before, calls = resident_mb(), len(store.calls)
    started = time.perf_counter()
    state = load_manifest(store, BIG)
    found["open_s"] = time.perf_counter() - started
    found["open_rss_growth_mb"] = resident_mb() - before
    found["open_requests"] = len(store.calls) - calls
    found["segments"] = len(state.segments)
    found |= asked(state)
    found["rss_growth_after_queries_mb"] = resident_mb() - before
    del state
    times, requests = committed(store, ManifestLog(store, BIG, clock=SystemClock()))
    with ThreadPoolExecutor(1) as threads:
        aside = ManifestLog(store, ASIDE, clock=SystemClock(), checkpoint_aside=threads.submit)
        times_aside, _ = committed(store, aside)
    store_ms = timed_ms(lambda: store.put(f"{BIG}/bare/{os.urandom(8).hex()}", b"x" * 1000), 20)
    store_ms += timed_ms(lambda: store.get("_catalog/" + BIG), 20)
    found["commit_ms"] = statistics.median(times)
    found["bare_put_and_get_ms"] = store_ms
    found["commit_requests"] = statistics.median(requests)
    found["commit_with_checkpoint_ms"] = max(times)
    found["commit_with_checkpoint_requests"] = max(requests)
    found["commit_beside_checkpoint_ms"] = max(times_aside)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=1_000_000)
    parser.add_argument("--tail", type=int, default=50)
    parser.add_argument("--server", default="file", choices=("file", "minio", "versitygw", "moto"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(json.loads(options.measure))))
        return
    with ExitStack() as stack:
        if options.server == "file":
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd()))
            place: dict[str, Any] = {"url": f"file://{directory}"}
        else:
            from services.servers import make_bucket, server

            endpoint = stack.enter_context(server(options.server))
            make_bucket(endpoint, "offloader-bench")
            place = {
                "url": "s3://offloader-bench/manifest",
                "endpoint_url": endpoint.url,
                "access_key": endpoint.access_key,
                "secret_key": endpoint.secret_key,
            }
        store = open_store(**place)
        build(store, SMALL, 1, 1)
        build(store, BIG, options.segments, options.tail)
        build(store, ASIDE, options.segments, options.tail)
        store.close()
        done = subprocess.run(
            [sys.executable, __file__, "--measure", json.dumps(place)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)
    if options.json:
        print(json.dumps({"server": options.server, "tail": options.tail, **found}))
        return
    print(f"{found['segments']:,.0f} segments, {options.tail} records after the checkpoint, {options.server}")
    print(
        f"  open: {found['open_s']:.2f} s, {found['open_requests']:.0f} requests, "
        f"resident set +{found['open_rss_growth_mb']:.0f} MB (libraries before: +{found['libraries_mb']:.0f} MB)"
    )
    print(
        f"  commit: {found['commit_ms']:.2f} ms, {found['commit_requests']:.0f} requests "
        f"(a bare put and get: {found['bare_put_and_get_ms']:.2f} ms); "
        f"with a checkpoint: {found['commit_with_checkpoint_ms']:.0f} ms, "
        f"{found['commit_with_checkpoint_requests']:.0f} requests, "
        f"beside one: {found['commit_beside_checkpoint_ms']:.0f} ms"
    )
    print(
        f"  find a position: {found['find_position_ms']:.3f} ms, 100 segments from there: "
        f"{found['slice_of_100_ms']:.3f} ms, all in order: {found['all_offloaded_ms']:.0f} ms, "
        f"find a time: {found['find_time_ms']:.0f} ms; resident set then "
        f"+{found['rss_growth_after_queries_mb']:.0f} MB"
    )


if __name__ == "__main__":
    main()
