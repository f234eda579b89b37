"""What watching costs: memory of a measured idle stream, a scrape and a look at all of them, counting one event.

    python benchmarks/bench_metrics.py [--streams 10000] [--labels namespace|topic] [--json]

One offloader over a store and hot tiers in memory. Times are of the processor, which others don't disturb.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import time
from pathlib import Path

from offloader.clock import SystemClock
from offloader.metrics import Metrics
from offloader.settings import Settings, TelemetrySettings
from offloader.store.base import open_store
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.offloader import LedgerOffloader

KIB = 1024
EVENTS = 100_000


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(count: int, labels: str) -> dict[str, float]:
    clock = SystemClock()
    metrics = Metrics(TelemetrySettings(labels=labels))
    store = open_store("memory://bench-metrics", recorder=metrics)
    offloader = LedgerOffloader(store, Settings.of({"telemetry": {"status_interval_s": 3600.0}}))
    names = [f"bench/n{number % 10}/persistent/s{number}" for number in range(count)]
    sources = [MemoryLedgers(name, clock) for name in names]
    gc.collect()
    before_bytes = rss_bytes()
    streams = [offloader.offload_stream(source, name) for source, name in zip(sources, names, strict=True)]
    gc.collect()
    idle_bytes = rss_bytes() - before_bytes
    started_s = time.process_time()
    text = metrics.exposition()
    scrape_s = time.process_time() - started_s
    gc.collect()
    scraped_bytes = rss_bytes() - before_bytes
    started_s = time.process_time()
    offloader.status()
    look_s = time.process_time() - started_s
    started_s = time.process_time()
    for _ in range(EVENTS):
        metrics.add("read_used_bytes_total", 10, stream=names[0])
    event_s = (time.process_time() - started_s) / EVENTS
    for stream in streams:
        stream.stop()
    offloader.close()
    return {
        "streams": count,
        "idle_kib_each": idle_bytes / count / KIB,
        "scraped_kib_each": scraped_bytes / count / KIB,
        "scrape_cpu_s": scrape_s,
        "scrape_kb": len(text) / 1000,
        "look_cpu_s": look_s,
        "event_cpu_us": event_s * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--labels", choices=["namespace", "topic"], default="namespace")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    row = measure(options.streams, options.labels)
    if options.json:
        print(json.dumps(row))
    else:
        for name, value in row.items():
            print(f"{name:20} {value:,.2f}" if value < 100 else f"{name:20} {value:,.0f}")


if __name__ == "__main__":
    main()
