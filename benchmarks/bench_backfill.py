"""How fast a history of many ledgers goes into a store, beside bare puts of the same objects, in the same run.

    python benchmarks/bench_backfill.py [--store URL ...] [--mb 256] [--ledger-mb 4] [--segment-mb 16] [--json]

Without --store: memory and a local directory. The ledgers are embedded ones (SQLite), filled before. Each case is one
size of entries and one number of segments on their way at once; the bare reference puts objects of the sizes that the
backfill made, as many at once, from memory: as one PUT each below a part, else part by part, like the backfill does.
Reading the ledgers alone is measured too, because it bounds what a backfill can do. Memory is the growth of the
process's peak above what it held before, and the budget is printed beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from formats.checksum import crc32c
from formats.entries import Position
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import load_manifest
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import requests_of
from offloader.write.offloader import LedgerOffloader
from offloader.write.upload import READ_BYTES

MIB = 1024 * 1024
ROUNDS = 3
BATCH_BYTES = MIB


def settings_for(segment_mb: float, ledger_mb: float, segments_in_flight: int) -> Settings:
    return Settings.of(
        {
            "offload": {
                "segment_size_max": round(segment_mb * 2**20),
                "backfill_segments_in_flight_max": segments_in_flight,
                "takeover_after": 0.01,
            },
            "ledgers": {"ledger_size_max": int(ledger_mb * MIB)},
        }
    )


def fill(source: EmbeddedStream, total_bytes: int, entry_bytes: int) -> None:
    """Random payloads, a batch at a time."""
    count = max(1, BATCH_BYTES // entry_bytes)
    for _ in range(total_bytes // (count * entry_bytes)):
        body = os.urandom(count * entry_bytes)
        offsets = pa.array(range(0, count * entry_bytes + 1, entry_bytes), pa.int32()).buffers()[1]
        source.append(pa.BinaryArray.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(body)]), 0)


def read_all(source: EmbeddedStream) -> float:
    """Seconds of reading every ledger once, as a backfill reads."""
    started = time.perf_counter()
    at: Position | None = Position(0, 0)
    while at is not None:
        batch = source.read(at, READ_BYTES)
        at = None if batch is None else Position(batch.ledger_id, batch.last.entry_id + 1)
    return time.perf_counter() - started


class Counting:
    """``inner`` without its notes, as each backfill is of another stream, and how many payload bytes were read."""

    def __init__(self, inner: EmbeddedStream) -> None:
        self.inner = inner
        self.read_bytes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def noted_manifests(self) -> list[object]:
        return []

    def noted_store(self) -> None:
        return None

    def read(self, start: Position, max_bytes: int) -> object:
        batch = self.inner.read(start, max_bytes)
        self.read_bytes += 0 if batch is None else batch.payload_bytes
        return batch


def backfill(store: ObjectStore, source: EmbeddedStream, settings: Settings) -> dict[str, object]:
    """One backfill of everything, under a stream name of its own."""
    stream, counted = f"bench/{uuid4()}", Counting(source)
    before, held_mb = write_requests(store), peak_mb()
    offloader = LedgerOffloader(store, settings)
    started, cpu = time.perf_counter(), time.process_time()
    result = offloader.history.backfill(counted, stream, acknowledges=False)  # type: ignore[arg-type]
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    offloader.close()
    assert not result.errors, result.errors
    sizes = [summary.data_bytes for _, summary in result.offloaded]
    payload = sum(summary.payload_bytes for _, summary in result.offloaded)
    assert load_manifest(store, stream).committed_end() == result.committed
    return {
        "seconds": seconds,
        "cpu_s_per_gb": cpu / (payload / 1e9),
        "mb_s": payload / 1e6 / seconds,
        "segments": len(sizes),
        "object_sizes": sizes,
        "reads_per_byte": counted.read_bytes / payload,
        "write_requests_per_segment": (write_requests(store) - before) / len(sizes),
        "peak_growth_mb": peak_mb() - held_mb,
    }


def bare(store: ObjectStore, sizes: list[int], part_bytes: int, at_once: int) -> float:
    """Seconds of putting objects of these sizes, and nothing else."""
    body = os.urandom(max(sizes))

    def send(size_bytes: int) -> None:
        view, key = memoryview(body)[:size_bytes], f"bare/{uuid4()}"
        if size_bytes <= part_bytes:
            store.put(key, view, crc32c=crc32c(view))
            return
        upload = store.begin_upload(key)
        parts = []
        for number, at in enumerate(range(0, size_bytes, part_bytes), start=1):
            part = view[at : at + part_bytes]
            parts.append(store.upload_part(key, upload, number, part, crc32c=crc32c(part)))
        store.complete_upload(key, upload, parts)

    started = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(send, sizes))
    return time.perf_counter() - started


def write_requests(store: ObjectStore) -> int:
    counts = requests_of(store)
    return sum(
        counts[verb].requests for verb in ("put", "begin_upload", "upload_part", "complete_upload") if verb in counts
    )


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compare(store: ObjectStore, source: EmbeddedStream, given: argparse.Namespace, workers: int) -> dict[str, object]:
    """One number of segments at once: ours and bare in turns, the medians."""
    settings = settings_for(given.segment_mb, given.ledger_mb, workers)
    ours: list[dict[str, object]] = []
    plain: list[float] = []
    for _ in range(ROUNDS):
        ours.append(backfill(store, source, settings))
        plain.append(bare(store, ours[-1]["object_sizes"], settings.offload.part_size, workers))  # type: ignore[arg-type]
    row = sorted(ours, key=lambda each: float(str(each["seconds"])))[ROUNDS // 2]
    bare_s = sorted(plain)[ROUNDS // 2]
    sizes = row.pop("object_sizes")
    assert isinstance(sizes, list)
    row |= {"workers": workers, "bare_mb_s": sum(sizes) / 1e6 / bare_s, "ratio": bare_s / float(str(row["seconds"]))}
    row["peak_growth_mb"] = max(float(str(each["peak_growth_mb"])) for each in ours)
    return row


@contextlib.contextmanager
def history(directory: Path, given: argparse.Namespace, entry_bytes: int) -> Iterator[EmbeddedStream]:
    database = EmbeddedLedgers(
        str(directory / f"{entry_bytes}.db"), settings=settings_for(given.segment_mb, given.ledger_mb, 1).ledgers
    )
    source = database.open_stream("bench/history")
    fill(source, given.mb * MIB, entry_bytes)
    source.close_ledger()
    yield source
    database.close()


def described(url: str, entry_bytes: int, row: Mapping[str, Any]) -> str:
    return (
        "{url:10} {entry_bytes:5} B entries, {workers} at once: {mb_s:5.0f} MB/s, bare {bare_mb_s:5.0f}, "
        "ratio {ratio:.2f}; {cpu_s_per_gb:.1f} CPU-s/GB; {segments} segments, "
        "{write_requests_per_segment:.1f} writes each; hot tier read "
        "{reads_per_byte:.2f} times; peak +{peak_growth_mb:.0f} MB"
    ).format(url=url, entry_bytes=entry_bytes, **row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", nargs="*", default=[])
    parser.add_argument("--mb", type=int, default=256, help="MiB of payload in the history")
    parser.add_argument("--ledger-mb", type=float, default=4.0)
    parser.add_argument("--segment-mb", type=float, default=16.0)
    parser.add_argument("--entry-bytes", nargs="*", type=int, default=[100, 1024])
    parser.add_argument("--workers", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows: list[Mapping[str, object]] = []
    with tempfile.TemporaryDirectory() as directory:
        stores = given.store or ["memory://backfill", f"file://{directory}/store"]
        for entry_bytes in given.entry_bytes:
            with history(Path(directory), given, entry_bytes) as source:
                read_mb_s = given.mb * MIB / 1e6 / read_all(source)
                if not given.json:
                    many = len(source.ledgers())
                    print(f"{many} ledgers of {entry_bytes} B entries; reading them alone: {read_mb_s:.0f} MB/s")
                for url in stores:
                    store = open_store(url)
                    for workers in given.workers:
                        row = compare(store, source, given, workers)
                        rows.append({"store": url, "entry_bytes": entry_bytes, "read_mb_s": read_mb_s, **row})
                        if not given.json:
                            print(described(url.split(":")[0], entry_bytes, row))
                    store.close()
    if given.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
