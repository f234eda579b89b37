"""What many streams of one process cost: adding one, memory and CPU while idle, memory while all are busy.

    python benchmarks/bench_streams.py [--streams 10000] [--busy 1000] [--memory-mb 512] [--json]

One offloader over a store and hot tiers in memory. And single entries offered one by one.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import time
from pathlib import Path
from uuid import UUID

from formats.entries import Entry
from offloader.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.offloader import LedgerOffloader

KIB, MIB = 1024, 1024 * 1024
IDLE_S = 5.0


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def streams(count: int, busy: int, memory_mb: int) -> dict[str, float]:
    clock = SystemClock()
    store = FaultyStore(MemoryStore("bench-streams", "", clock))
    settings = Settings.of({"offload": {"offload_memory_bytes_max": memory_mb * MIB, "offload_buffer_bytes_max": MIB}})
    offloader = LedgerOffloader(store, settings)
    sources = [MemoryLedgers(f"bench/s{number}", clock) for number in range(count)]
    gc.collect()
    before_bytes, started = rss_bytes(), time.perf_counter()
    made = [offloader.offload_stream(source, f"bench/s{number}") for number, source in enumerate(sources)]
    add_s = time.perf_counter() - started
    gc.collect()
    idle_bytes, requests = rss_bytes() - before_bytes, len(store.calls)
    cpu = time.process_time()
    time.sleep(IDLE_S)
    idle_cpu = (time.process_time() - cpu) / IDLE_S
    payload = os.urandom(KIB)
    for source in sources[:busy]:
        source.append([payload] * 64)
    deadline = time.perf_counter() + 60
    while time.perf_counter() < deadline and any(s.status().offered is None for s in made[:busy]):
        time.sleep(0.05)
    busy_bytes = rss_bytes()
    for stream in made:
        stream.stop()
    offloader.close()
    return {
        "streams": count,
        "add_ms_each": add_s / count * 1000,
        "requests_to_add": requests,
        "idle_kib_each": idle_bytes / count / KIB,
        "idle_cpu_of_a_core": idle_cpu,
        "rss_mib_with_busy_streams": busy_bytes / MIB,
    }


def single_entries(count: int = 400_000, size: int = 100) -> float:
    """Entries per second through ``offer_entry``; the entries are made before."""
    offloader = LedgerOffloader(
        MemoryStore("bench-single", "", SystemClock()),
        Settings.of({"offload": {"offload_buffer_bytes_max": 1024 * MIB, "workers_max": 1}}),
    )
    handle = offloader.streaming_offload(UUID(int=1), {}, stream="bench/single")
    payload = os.urandom(size)
    entries = [Entry(1, number, payload, 1_700_000_000_000) for number in range(count)]
    started = time.perf_counter()
    for entry in entries:
        handle.offer_entry(entry)
    seconds = time.perf_counter() - started
    handle.close()
    handle.get_offload_result_async().result()
    offloader.close()
    return count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--busy", type=int, default=1_000)
    parser.add_argument("--memory-mb", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    row = streams(options.streams, options.busy, options.memory_mb)
    row["single_entries_per_s"] = single_entries()
    if options.json:
        print(json.dumps(row))
    else:
        for name, value in row.items():
            print(f"{name:28} {value:,.3f}" if value < 100 else f"{name:28} {value:,.0f}")


if __name__ == "__main__":
    main()
