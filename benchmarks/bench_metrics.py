"""What watching costs: memory of a measured idle stream, a scrape and a look at all of them, counting one event.

    python benchmarks/bench_metrics.py [--streams 10000] [--labels namespace|topic] [--topics-max 1000] [--counted]
                                       [--json]

One offloader over a store and hot tiers in memory. Times are of the processor, which others don't disturb. With
``--counted`` every stream has counted everything that a stream can count: the most there is to scrape. What an answer
over HTTP costs beyond that is measured too: a gate, a thread, a socket.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import os
import time
import urllib.request
from pathlib import Path
from typing import cast

from offloader.runtime.clock import SystemClock
from offloader.service.auth import Credentials
from offloader.service.broker_ledgers import BrokerLedgers
from offloader.service.http.server import OffloadHttp
from offloader.service.queries import ServiceControl, ServiceView
from offloader.settings import Settings, TelemetrySettings
from offloader.store.open import open_store
from offloader.telemetry.prometheus import Metrics
from offloader.telemetry.recorder import METRICS
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.offloader import LedgerOffloader

KIB = 1024
EVENTS = 100_000


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def count_everything(metrics: Metrics, names: list[str]) -> None:
    """Two values of each further label."""
    for metric in METRICS.values():
        labels = ("a", "b") if metric.labels[-1:] not in ((), ("topic",), ("namespace",)) else ("",)
        for name, label in itertools.product(names, labels):
            if metric.kind == "counter":
                metrics.add(metric.name, 1.0, stream=name, label=label)
            elif metric.kind == "histogram":
                metrics.observe(metric.name, 0.1, stream=name)


def measure(count: int, labels: str, topics_max: int, *, counted: bool) -> dict[str, float]:
    clock = SystemClock()
    metrics = Metrics(TelemetrySettings(labels=labels, topic_labels_max=topics_max))
    store = open_store("memory://bench-metrics", recorder=metrics)
    offloader = LedgerOffloader(store, Settings.of({"telemetry": {"status_interval": 3600.0}}))
    names = [f"bench/n{number % 10}/persistent/s{number}" for number in range(count)]
    sources = [MemoryLedgers(name, clock) for name in names]
    gc.collect()
    before_bytes = rss_bytes()
    streams = [offloader.offload_stream(source, name) for source, name in zip(sources, names, strict=True)]
    gc.collect()
    idle_bytes = rss_bytes() - before_bytes
    if counted:
        count_everything(metrics, names)
    gc.collect()
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
    served_s = scrape_over_http(metrics)
    for stream in streams:
        stream.stop()
    offloader.close()
    return {
        "streams": count,
        "idle_kib_each": idle_bytes / count / KIB,
        "scraped_kib_each": scraped_bytes / count / KIB,
        "scrape_cpu_s": scrape_s,
        "scrape_kb": len(text) / 1000,
        "http_scrape_s": served_s,
        "look_cpu_s": look_s,
        "event_cpu_us": event_s * 1e6,
    }


class _Nothing:
    """Neither shows nor does anything: only metrics are asked for."""


def scrape_over_http(metrics: Metrics) -> float:
    """Seconds for one scrape as Prometheus makes it; wall time."""
    settings, store = Settings.of({"http": {"listen": "127.0.0.1:0"}}), open_store("memory://metrics")
    http = OffloadHttp(
        cast("ServiceView", _Nothing()),
        cast("ServiceControl", _Nothing()),
        ledgers=BrokerLedgers(
            store, settings=settings, clock=SystemClock(), recorder=metrics, control=None, environ={}
        ),
        settings=settings,
        credentials=Credentials(),
        clock=SystemClock(),
        exposition=metrics.exposition,
        recorder=metrics,
    )
    http.start()
    try:
        started_s = time.perf_counter()
        with urllib.request.urlopen(f"{http.url}/metrics") as answer:
            answer.read()
        return time.perf_counter() - started_s
    finally:
        http.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--labels", choices=["namespace", "topic"], default="namespace")
    parser.add_argument("--topics-max", type=int, default=TelemetrySettings().topic_labels_max)
    parser.add_argument("--counted", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    row = measure(options.streams, options.labels, options.topics_max, counted=options.counted)
    if options.json:
        print(json.dumps(row))
    else:
        for name, value in row.items():
            print(f"{name:20} {value:,.2f}" if value < 100 else f"{name:20} {value:,.0f}")


if __name__ == "__main__":
    main()
