"""What many streams of one process cost: adding one, memory and CPU while idle, memory while their budget is full.

    python benchmarks/bench_streams.py [--streams 10000] [--memory-mb 512] [--entry-bytes 1024] [--json]

One offloader over a store in memory that forgets the bodies of segments, and hot tiers that hold nothing. And single
entries offered one by one.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parent.parent))

os.environ["MIMALLOC_PURGE_DELAY"] = "0"  # as commands do, before Arrow is loaded

from benchmarks.endless_ledger import EndlessLedger
from formats.entries import ENTRY_HEADER_BYTES, Entry
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectInfo
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import FaultyStore
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader

KIB, MIB = 1024, 1024 * 1024
IDLE_S = 5.0
#: Appends in which each stream gets its share, and the longest wait for all of it to be taken.
APPENDS = 4
FILL_S_MAX = 240.0


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class ForgetfulStore(MemoryStore):
    """Keeps manifests, and of segments only how long they were."""

    def _write(self, full_key: str, body: bytes, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        info = super()._write(full_key, body, metadata, crc)
        if "/manifest/" not in full_key and not full_key.startswith("_catalog/"):
            self._bucket.objects[full_key] = (info, b"")
        return info


def streams(count: int, memory_mb: int, entry_bytes: int) -> dict[str, float]:
    clock = SystemClock()
    store = FaultyStore(ForgetfulStore("bench-streams", "", clock))
    settings = Settings.of({"offload": {"offload_memory_size_max": memory_mb * MIB, "offload_buffer_size_max": MIB}})
    offloader = LedgerOffloader(store, settings)
    pool = EndlessLedger(entry_bytes, 0, pool_bytes=4 * MIB)
    sources = [pool.another() for _ in range(count)]
    gc.collect()
    before_bytes, started = rss_bytes(), time.perf_counter()
    made = [offloader.offload_stream(source, f"bench/s{number}") for number, source in enumerate(sources)]
    add_s = time.perf_counter() - started
    gc.collect()
    idle_bytes, requests = rss_bytes() - before_bytes, len(store.calls)
    cpu = time.process_time()
    time.sleep(IDLE_S)
    idle_cpu = (time.process_time() - cpu) / IDLE_S
    fill(offloader, sources, made, memory_mb * MIB)
    filled = {
        "budget_used_mib": offloader.memory_bytes / MIB,
        "rss_mib_with_the_budget_full": rss_bytes() / MIB,
        "rss_mib_before_the_streams": before_bytes / MIB,
    }
    for stream in made:
        stream.stop()
    offloader.close()
    return {
        "streams": count,
        "add_ms_each": add_s / count * 1000,
        "requests_to_add": requests,
        "idle_kib_each": idle_bytes / count / KIB,
        "idle_cpu_of_a_core": idle_cpu,
        **filled,
    }


def fill(
    offloader: LedgerOffloader, sources: list[EndlessLedger], made: list[StreamOffload], budget_bytes: int
) -> None:
    """Every stream gets its share of the budget, in a few appends, and has taken it before this returns."""
    entries = max(1, budget_bytes // len(sources) // (sources[0].entry_bytes + ENTRY_HEADER_BYTES))
    for source in sources:
        source.append(1)
    until = time.perf_counter() + FILL_S_MAX
    while any(stream.status().offered is None for stream in made) and time.perf_counter() < until:
        time.sleep(0.1)
    for _ in range(APPENDS):
        for source in sources:
            source.append(max(1, entries // APPENDS))
    while offloader.memory_bytes < 0.98 * budget_bytes and time.perf_counter() < until:
        for source in sources:
            source.append(1)


def single_entries(count: int = 400_000, size: int = 100) -> float:
    """Entries through ``offer_entry`` per second of the offering thread's processor; the entries are made before."""
    offloader = LedgerOffloader(
        MemoryStore("bench-single", "", SystemClock()),
        Settings.of({"offload": {"offload_buffer_size_max": 1024 * MIB, "workers_max": 1}}),
    )
    handle = offloader.streaming_offload(UUID(int=1), {}, stream="bench/single")
    payload = os.urandom(size)
    entries = [Entry(1, number, payload, 1_700_000_000_000) for number in range(count)]
    started = time.thread_time()
    for entry in entries:
        handle.offer_entry(entry)
    seconds = time.thread_time() - started
    handle.close()
    handle.get_offload_result_async().result()
    offloader.close()
    return count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--memory-mb", type=int, default=512)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    row = streams(options.streams, options.memory_mb, options.entry_bytes)
    row["single_entries_per_cpu_s"] = single_entries()
    if options.json:
        print(json.dumps(row))
    else:
        for name, value in row.items():
            print(f"{name:28} {value:,.3f}" if value < 100 else f"{name:28} {value:,.0f}")


if __name__ == "__main__":
    main()
