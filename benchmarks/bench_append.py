"""What an append pays for its stream being offloaded while it is written: throughput and latency, on against off.

    python benchmarks/bench_append.py [--seconds 4] [--rounds 3] [--entry-bytes 1024] [--per-call 64] [--json]

First the embedded ledgers' highest append rate is measured without offloading, then appends come at half of it, at
fixed times, whether the last one was late or not. On and off take turns; latencies count from the time an append was
due, so that a stall is seen in all that wait behind it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import os

import numpy as np
import pyarrow as pa

from benchmarks.s3_rig import BUCKET, MIB, rig
from offloader.managed_ledger import open_managed_ledger
from offloader.settings import Settings
from offloader.store.base import ObjectStore, open_store

WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is appended, for how long, and where the ledgers are: one Arrow array again and again."""

    entries: pa.BinaryArray
    seconds: float
    directory: str | None

    @property
    def bytes_per_call(self) -> int:
        return int(self.entries.buffers()[2].size)


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds from the time each append was due until it returned; bytes appended in a second; CPU of a core."""

    latencies_s: np.ndarray
    mb_s: float
    cpu: float
    mode: str

    def quantile_ms(self, q: float) -> float:
        return float(np.quantile(self.latencies_s, q)) * 1000


def settings(method: str, segment_mib: float) -> Settings:
    return Settings.of(
        {
            "offload": {"method": method, "max_size_per_offload_segment_mbytes": segment_mib},
            "ledgers": {"ledger_bytes_max": 256 * MIB},
        }
    )


def run(store: ObjectStore, load: Load, *, method: str, calls_per_s: float, segment_mib: float) -> Round:
    """Appends for ``load.seconds`` after a warm-up; ``calls_per_s`` 0: as fast as they return."""
    with tempfile.TemporaryDirectory(dir=load.directory) as directory:
        topic = open_managed_ledger(
            f"bench/{uuid4()}",
            ledgers=f"sqlite:///{directory}/ledgers.db",
            store=store,
            settings=settings(method, segment_mib),
        )
        step_s = 1 / calls_per_s if calls_per_s else 0.0
        found: list[float] = []
        until = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < until:  # opens the stream in the store, loads what is loaded at first use
            topic.append_batch(load.entries)
            time.sleep(step_s)
        cpu_s, started = time.process_time(), time.perf_counter()
        due = started
        while (now := time.perf_counter()) < started + load.seconds:
            if now < due:
                time.sleep(due - now)
            begun = due if step_s else now
            topic.append_batch(load.entries)
            found.append(time.perf_counter() - begun)
            due += step_s
        wall_s = time.perf_counter() - started
        cpu_s = time.process_time() - cpu_s
        status = topic.status()
        topic.close(drain=False)
    mb_s = len(found) * load.bytes_per_call / 1e6 / wall_s
    return Round(np.array(found), mb_s, cpu_s / wall_s, "off" if status is None else status.mode.value)


def compare(store: ObjectStore, load: Load, rounds: int, segment_mib: float) -> dict[str, object]:
    highest = [run(store, load, method="none", calls_per_s=0, segment_mib=segment_mib) for _ in range(rounds)]
    calls_per_s = statistics.median(len(one.latencies_s) / load.seconds for one in highest) / 2
    on: list[Round] = []
    off: list[Round] = []
    for _ in range(rounds):
        for found, method in ((on, "streaming"), (off, "none")):
            found.append(run(store, load, method=method, calls_per_s=calls_per_s, segment_mib=segment_mib))
    return {
        "highest_mb_s": statistics.median(one.mb_s for one in highest),
        "calls_per_s": calls_per_s,
        **{f"{name}_mb_s": statistics.median(r.mb_s for r in rs) for name, rs in (("on", on), ("off", off))},
        **{
            f"{name}_p{q * 100:g}_ms": statistics.median(r.quantile_ms(q) for r in rs)
            for name, rs in (("on", on), ("off", off))
            for q in (0.5, 0.99)
        },
        "p99_ratio_of_each_round": [
            round(a.quantile_ms(0.99) / b.quantile_ms(0.99), 2) for a, b in zip(on, off, strict=True)
        ],
        "on_cpu_of_a_core": statistics.median(r.cpu for r in on),
        "off_cpu_of_a_core": statistics.median(r.cpu for r in off),
        "mode_at_the_end": on[-1].mode,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--per-call", type=int, default=64)
    parser.add_argument("--segment-mb", type=float, default=1024.0)
    parser.add_argument("--server", default="versitygw", help="versitygw, minio, or memory")
    parser.add_argument("--dir", help="where the ledgers are; on a memory file system no disk is waited for")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    size = given.entry_bytes
    offsets = np.arange(0, size * given.per_call + 1, size, dtype=np.int32)
    body = pa.py_buffer(os.urandom(size * given.per_call))
    payloads = pa.BinaryArray.from_buffers(pa.binary(), given.per_call, [None, pa.py_buffer(offsets), body])
    load = Load(payloads, given.seconds, given.dir)
    if given.server == "memory":
        row = compare(open_store(f"memory://{uuid4().hex}"), load, given.rounds, given.segment_mb)
    else:
        with rig(given.server) as running:
            keys = {"access_key": running.endpoint.access_key, "secret_key": running.endpoint.secret_key}
            store = open_store(f"s3://{BUCKET}/ours", endpoint_url=running.endpoint.url, **keys)
            row = compare(store, load, given.rounds, given.segment_mb)
            store.close()
    if given.json:
        print(json.dumps(row))
        return
    for name, value in row.items():
        print(f"{name:26} {value:.3f}" if isinstance(value, float) else f"{name:26} {value}")


if __name__ == "__main__":
    main()
