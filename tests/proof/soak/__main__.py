"""``./dev soak --real``: append, offload, read, retain and clean up at full speed over a real server; what grows?

    ./dev soak --real                                  # an hour
    ./dev soak --real --minutes 15 --server versitygw

`offloader serve` is a process of its own: it keeps the ledgers of several streams, which producers append to over Arrow
Flight as fast as it lets them; retention by size and cleanup run all the time, while readers, with the library and over
Flight, check every entry they get. Once a second memory, descriptors, threads, requests and bytes are taken down. At
the end the slope of each after the warm-up decides: 0, all flat; 1, something grows, and which. The samples and a
picture are kept under artifacts/.
"""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import boto3

from formats.entries import Position
from offloader.read.reader import open_stream_reader
from offloader.runtime.system import ALLOCATOR
from offloader.store.open import open_store
from services.servers import Endpoint, free_port, make_bucket, running
from tests.proof.soak.soak_flatness import SPREADS, Limit, Series, Verdict, ratio, verdict_of
from tests.proof.soak.soak_load import Order
from tests.proof.soak.soak_picture import draw
from tests.proof.soak.soak_sampling import Sampler
from tests.support.serving_processes import Serving

ROOT = Path(__file__).resolve().parents[3]
BUCKET = "soak"
MIB = 1024 * 1024
#: Part of the run that isn't judged: caches fill, streams reach the size that retention keeps.
WARM_UP_PART = 0.25
LOAD_END_S_MAX = 120.0
#: Shorter runs have fewer samples than slopes are made of.
MINUTES_MIN = 1.0
METRICS = (
    "bytes_offloaded_total",
    "requests_total",
    "uploaded_bytes_total",
    "read_used_bytes_total",
    "deleted_objects_total",
    "retention_truncated_bytes_total",
    "cleanup_deleted_bytes_total",
    "request_errors_total",
    "segments_total",
    "buffer_bytes",
)
#: What is judged beside the bucket and the disk, of each process.
PROCESS_LIMITS = {
    "memory": ("MiB", Limit(0.05, 24.0)),
    "descriptors": ("open", Limit(0.05, 4.0)),
    "threads": ("running", Limit(0.10, 4.0, SPREADS)),
}


def settings(folder: Path, endpoint: Endpoint, http_port: int, *, keep_mib: float) -> str:
    """A settings file in which everything that is periodic comes round many times in minutes, and what is kept for
    reads is full before the warm-up ends."""
    return f"""
        [serve]
        store = "s3://{BUCKET}/root"
        endpoint_url = "{endpoint.url}"
        region = "us-east-1"
        [store]
        connections_max = 16
        [http]
        listen = "127.0.0.1:{http_port}"
        [flight]
        listen = "127.0.0.1:0"
        ledgers = "sqlite:///{folder}/ledgers.db"
        [offload]
        method = "streaming"
        segment_size_max = "16MiB"
        segment_age_max = "6s"
        offload_buffer_size_max = "32MiB"
        offload_memory_size_max = "128MiB"
        deletion_lag = "1200ms"
        [ledgers]
        ledger_size_max = "16MiB"
        [retention]
        policy = "size"
        min_size = "{keep_mib}MiB"
        record_interval = "1200ms"
        cycle_interval = "6s"
        [read]
        cache_size_max = "16MiB"
        [cleanup]
        delete = true
        grace_period = "3600ms"
        cycle_interval = "6s"
        orphans_interval = "30s"
        allow_large_delete = true
        audit_records_max = 20
        [manifest]
        orphan_age_min = "72s"
        history_age_min = "0s"
        """


@contextmanager
def sidecar(folder: Path, endpoint: Endpoint, http_port: int, *, keep_mib: float) -> Iterator[Serving]:
    config = folder / "offloader.toml"
    config.write_text(settings(folder, endpoint, http_port, keep_mib=keep_mib))
    keys = {"AWS_ACCESS_KEY_ID": endpoint.access_key, "AWS_SECRET_ACCESS_KEY": endpoint.secret_key}
    with Serving(config, {**ALLOCATOR, **keys}) as serving:
        yield serving


class Bucket:
    """What the bucket and the ledger database hold; asked of the server and of the system, not of the product."""

    def __init__(self, endpoint: Endpoint, folder: Path) -> None:
        self._folder = folder
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint.url,
            region_name="us-east-1",
            aws_access_key_id=endpoint.access_key,
            aws_secret_access_key=endpoint.secret_key,
        )

    def sizes(self) -> Mapping[str, float]:
        found = [
            each["Size"]
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
            for each in page.get("Contents", ())
        ]
        return {"objects": float(len(found)), "stored": sum(found) / MIB, "ledgers": self._used_bytes() / MIB}

    def _used_bytes(self) -> int:
        """The database's pages in use, and its write-ahead log. The file keeps the size of the largest backlog."""
        database = self._folder / "ledgers.db"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            pages, unused, page_bytes = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
        log = database.with_name("ledgers.db-wal")
        return (pages - unused) * page_bytes + (log.stat().st_size if log.exists() else 0)


def judged(sampler: Sampler) -> list[tuple[Series, Limit | None]]:
    """Every series that is shown, and what it may grow by; ``None``: it isn't judged."""
    found: list[tuple[Series, Limit | None]] = []
    for process in ("sidecar", "readers"):
        for what, (unit, limit) in PROCESS_LIMITS.items():
            found.append((sampler.series(f"{process} {what}", f"{process}: {what}", unit), limit))
    offloaded = sampler.series("bytes_offloaded_total", "offloaded", "GiB", factor=2**-30)
    requests = sampler.series("requests_total", "requests", "")
    sent = sampler.series("uploaded_bytes_total", "sent", "GiB", factor=2**-30)
    found += [
        (ratio("requests", "a GiB offloaded", requests, offloaded), Limit(0.10)),
        (ratio("bytes sent", "a byte offloaded", sent, offloaded), Limit(0.02)),
        (sampler.series("objects", "objects in the bucket", "objects"), Limit(0.25)),
        (sampler.series("stored", "bytes in the bucket", "MiB"), Limit(0.25)),
        (sampler.series("ledgers", "ledger database", "MiB"), Limit(0.10, spreads=SPREADS)),
    ]
    seconds = sampler.series("time_s", "", "s")
    found.append((ratio("offloaded", "MiB a second", _scaled(offloaded, 1024), seconds), None))
    return found


def _scaled(series: Series, factor: float) -> Series:
    return Series(series.name, series.unit, series.times_s, series.values * factor)


def report(title: str, sampler: Sampler, folder: Path, *, warm_up_s: float) -> list[Verdict]:
    """Decides, keeps samples and picture, and says what came of it."""
    folder.mkdir(parents=True, exist_ok=True)
    sampler.save(folder / "samples.csv")
    found = [
        (series, None if limit is None else verdict_of(series, limit, warm_up_s=warm_up_s))
        for series, limit in judged(sampler)
    ]
    draw(title, found, warm_up_s, folder / "soak.png")
    verdicts = [verdict for _, verdict in found if verdict is not None]
    for verdict in verdicts:
        print(verdict)
    return verdicts


def run(options: argparse.Namespace) -> list[str]:
    """One run; what was wrong, empty: nothing."""
    streams = tuple(f"soak/run/persistent/stream-{number}" for number in range(options.streams))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offloader-soak-")))
        endpoint = stack.enter_context(running(options.server))
        make_bucket(endpoint, BUCKET)
        http_port = free_port()
        serving = stack.enter_context(sidecar(folder, endpoint, http_port, keep_mib=options.keep_mib))
        store = {
            "endpoint_url": endpoint.url,
            "access_key": endpoint.access_key,
            "secret_key": endpoint.secret_key,
            "region": "us-east-1",
        }
        order = Order(
            flight=f"grpc://{serving.logged('flight_listens')['address']}",
            store=(f"s3://{BUCKET}/root", store),
            streams=streams,
            window_bytes=options.window_mib * MIB,
            readers=options.readers,
        )
        command = [sys.executable, "-m", "tests.proof.soak.soak_load", json.dumps(asdict(order))]
        load = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(load.kill)
        sampler = Sampler(
            {"sidecar": serving.process.pid, "readers": load.pid},
            f"http://127.0.0.1:{http_port}/metrics",
            METRICS,
            Bucket(endpoint, folder).sizes,
            sizes_every_s=min(15.0, options.minutes),
        )
        wrong = _watch(sampler, serving, load, options.minutes * 60)
        title = f"{options.minutes:g} minutes, {options.server}, {len(streams)} streams"
        verdicts = report(title, sampler, options.artifacts, warm_up_s=WARM_UP_PART * options.minutes * 60)
        wrong += [str(each) for each in verdicts if not each.is_flat]
        return wrong + _end(serving, load, order)


def _watch(sampler: Sampler, serving: Serving, load: subprocess.Popen[str], seconds: float) -> list[str]:
    """Samples once a second until the time is over or a process is."""
    until_s, told_s = time.monotonic() + seconds, time.monotonic()
    while (now_s := time.monotonic()) < until_s:
        if load.poll() is not None or serving.process.poll() is not None:
            return [f"a process ended: load {load.poll()}, sidecar {serving.process.poll()}"]
        try:
            row = sampler.sample()
        except OSError:
            continue  # it ended meanwhile
        if now_s - told_s >= 60 and "bytes_offloaded_total" in row:
            told_s = now_s
            print(
                f"{row['time_s'] / 60:5.1f} min: {row['bytes_offloaded_total'] / 2**30:.1f} GiB offloaded, "
                f"{row['cleanup_deleted_bytes_total'] / 2**30:.1f} GiB deleted, "
                f"sidecar {row['sidecar memory']:.0f} MiB, {row['sidecar descriptors']:.0f} descriptors, "
                f"{row['sidecar threads']:.0f} threads",
                flush=True,
            )
        time.sleep(max(1.0 - (time.monotonic() - now_s), 0.0))  # a sample a second
    return []


def _end(serving: Serving, load: subprocess.Popen[str], order: Order) -> list[str]:
    """Ends both in order, and looks whether everything that was appended is there."""
    try:
        said, _ = load.communicate(timeout=LOAD_END_S_MAX)
    except subprocess.TimeoutExpired:
        return [f"producers and readers don't end within {LOAD_END_S_MAX:g} s"]
    if not said:
        return [f"producers and readers ended with {load.returncode}"]
    totals = json.loads(said)
    print(
        f"{totals['appended_entries']:,} entries appended; {totals['reads']:,} reads of {totals['read_entries']:,} "
        f"entries, each of them checked; {totals['tried_again']} times the store wasn't there, and it was tried again"
    )
    wrong = list(totals["errors"])
    serving.signal(signal.SIGTERM)
    code = serving.ended(LOAD_END_S_MAX)
    if code:
        wrong.append(f"the sidecar ended with {code}")
    wrong += [
        f"sidecar: {line}" for line in map(str, serving.lines) if "'level': 'error'" in line or "Traceback" in line
    ]
    store = open_store(order.store[0], **order.store[1])
    for stream, (last, _) in totals["last"].items():
        with open_stream_reader(store, stream) as reader:
            if reader.last_position != Position.parse(last):
                wrong.append(f"{stream}: appended up to {last}, offloaded up to {reader.last_position}")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev soak --real", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--server", default="minio", help="minio, versitygw or moto")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--readers", type=int, default=1, help="with the library, and as many over Flight")
    parser.add_argument("--keep-mib", type=float, default=128.0, help="what retention keeps of each stream")
    parser.add_argument("--window-mib", type=int, default=64, help="appended and not offloaded, of each stream")
    parser.add_argument("--artifacts", type=Path, default=ROOT / "artifacts" / "soak")
    options: Any = parser.parse_args(arguments)
    if options.minutes < MINUTES_MIN or min(options.streams, options.readers) < 1:
        parser.error(
            f"--minutes: at least {MINUTES_MIN:g}, or nothing can be said; --streams and --readers: at least 1"
        )
    wrong = run(options)
    for each in wrong:
        print(f"wrong: {each}", file=sys.stderr)
    print(f"samples and picture: {options.artifacts}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
