"""What an append pays for its stream being offloaded while it is written: throughput and latency, on against off.

    python benchmarks/bench_append.py [--seconds 3] [--rounds 3] [--entry-bytes 1024] [--per-call 64] [--dir D ...]
                                      [--server versitygw] [--switch-ms 0.2] [--json]

First the embedded ledgers' highest append rate is measured without offloading, then appends come at half of it, at
fixed times, whether the last one was late or not. On and off take turns; latencies count from the time an append was
due, so that a stall is seen in all that wait behind it.

Twice: with the ledgers on a disk, which an append has to wait for and which is what durable appends are about, and on a
memory file system, where nothing is waited for and what is left is the processor. Beside them stands what the machine
allows: how fast a file in that place is written and synced, a call's bytes at a time, and how many cores were busy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import pyarrow as pa

from benchmarks.s3_rig import BUCKET, MIB, rig
from offloader.managed_ledger import open_managed_ledger
from offloader.runtime.system import THREAD_SWITCH_S
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store

WARM_UP_S = 1.0
#: The aim is for the second; the others show what the tail is made of.
QUANTILES = (0.5, 0.99, 0.999, 1.0)
MEMORY_FILES = "/dev/shm"
SYNCS = 400


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
    """Seconds from the time each append was due until it returned; bytes appended in a second; cores that this process
    and the store's server kept busy."""

    latencies_s: np.ndarray
    mb_s: float
    cpu: float
    server_cpu: float
    mode: str

    def quantile_ms(self, q: float) -> float:
        return float(np.quantile(self.latencies_s, q)) * 1000


@dataclass(frozen=True, slots=True)
class Target:
    """A store, and how much processor time its server took so far."""

    store: ObjectStore
    cpu_s: Callable[[], float]


def settings(method: str, segment_mib: float) -> Settings:
    return Settings.of(
        {
            "offload": {"method": method, "segment_size_max": round(segment_mib * 2**20)},
            "ledgers": {"ledger_size_max": 256 * MIB},
        }
    )


def run(target: Target, load: Load, *, method: str, calls_per_s: float, segment_mib: float) -> Round:
    """Appends for ``load.seconds`` after a warm-up; ``calls_per_s`` 0: as fast as they return."""
    with tempfile.TemporaryDirectory(dir=load.directory) as directory:
        topic = open_managed_ledger(
            f"bench/{uuid4()}",
            ledgers=f"sqlite:///{directory}/ledgers.db",
            store=target.store,
            settings=settings(method, segment_mib),
        )
        step_s = 1 / calls_per_s if calls_per_s else 0.0
        found: list[float] = []
        until = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < until:  # opens the stream in the store, loads what is loaded at first use
            topic.append_batch(load.entries)
            time.sleep(step_s)
        cpu_s, server_cpu_s, started = time.process_time(), target.cpu_s(), time.perf_counter()
        due = started
        while (now := time.perf_counter()) < started + load.seconds:
            if now < due:
                time.sleep(due - now)
            begun = due if step_s else now
            topic.append_batch(load.entries)
            found.append(time.perf_counter() - begun)
            due += step_s
        wall_s = time.perf_counter() - started
        cpu_s, server_cpu_s = time.process_time() - cpu_s, target.cpu_s() - server_cpu_s
        status = topic.status()
        topic.close(drain=False)
    mb_s = len(found) * load.bytes_per_call / 1e6 / wall_s
    mode = "off" if status is None else status.mode.value
    return Round(np.array(found), mb_s, cpu_s / wall_s, server_cpu_s / wall_s, mode)


def compare(target: Target, load: Load, rounds: int, segment_mib: float) -> dict[str, object]:
    highest = [run(target, load, method="none", calls_per_s=0, segment_mib=segment_mib) for _ in range(rounds)]
    calls_per_s = statistics.median(len(one.latencies_s) / load.seconds for one in highest) / 2
    on: list[Round] = []
    off: list[Round] = []
    for _ in range(rounds):
        for found, method in ((on, "streaming"), (off, "none")):
            found.append(run(target, load, method=method, calls_per_s=calls_per_s, segment_mib=segment_mib))
    both = (("on", on), ("off", off))
    ratios = [a.quantile_ms(0.99) / b.quantile_ms(0.99) for a, b in zip(on, off, strict=True)]
    return {
        "highest_mb_s": statistics.median(one.mb_s for one in highest),
        "calls_per_s": calls_per_s,
        **{f"{name}_mb_s": statistics.median(r.mb_s for r in rs) for name, rs in both},
        **{
            f"{name}_{'max' if q == 1 else f'p{q * 100:g}'}_ms": statistics.median(r.quantile_ms(q) for r in rs)
            for q in QUANTILES
            for name, rs in both
        },
        "p99_ratio": statistics.median(ratios),
        "p99_ratio_of_each_round": [round(ratio, 2) for ratio in ratios],
        **{f"{name}_busy_cores": statistics.median(r.cpu for r in rs) for name, rs in both},
        "server_busy_cores": statistics.median(r.server_cpu for r in on),
        "cores": os.cpu_count() or 1,
        "mode_at_the_end": on[-1].mode,
        **synced(load),
    }


def synced(load: Load) -> dict[str, float]:
    """What the place itself takes to make a call's bytes durable, one after the other, without a database."""
    body, found = load.entries.buffers()[2].to_pybytes(), []
    with tempfile.TemporaryFile(dir=load.directory, buffering=0) as file:
        for _ in range(SYNCS):
            begun = time.perf_counter()
            file.write(body)
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - begun)
    ms = np.array(found) * 1000
    return {
        "bare_write_and_sync_p50_ms": float(np.quantile(ms, 0.5)),
        "bare_write_and_sync_p99_ms": float(np.quantile(ms, 0.99)),
        "bare_write_and_sync_mb_s": len(body) / 1e3 / float(ms.mean()),
    }


@contextlib.contextmanager
def target_of(server: str) -> Iterator[Target]:
    if server == "memory":
        yield Target(open_store(f"memory://{uuid4().hex}"), lambda: 0.0)
        return
    with rig(server) as running:
        keys: dict[str, Any] = {"access_key": running.endpoint.access_key, "secret_key": running.endpoint.secret_key}
        store = open_store(f"s3://{BUCKET}/ours", endpoint_url=running.endpoint.url, **keys)
        with contextlib.closing(store):
            yield Target(store, running.cpu_s)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--per-call", type=int, default=64)
    parser.add_argument("--segment-mb", type=float, default=1024.0)
    parser.add_argument("--server", default="versitygw", help="versitygw, minio, or memory")
    parser.add_argument("--switch-ms", type=float, default=THREAD_SWITCH_S * 1000, help="Python's default is 5")
    parser.add_argument("--dir", nargs="+", help="where the ledgers are; default: a disk, and a memory file system")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    sys.setswitchinterval(given.switch_ms / 1000)
    size = given.entry_bytes
    offsets = np.arange(0, size * given.per_call + 1, size, dtype=np.int32)
    body = pa.py_buffer(os.urandom(size * given.per_call))
    entries = pa.BinaryArray.from_buffers(pa.binary(), given.per_call, [None, pa.py_buffer(offsets), body])
    places = given.dir or [tempfile.gettempdir(), *([MEMORY_FILES] if Path(MEMORY_FILES).is_dir() else [])]
    found = {}
    with target_of(given.server) as target:
        for place in places:
            row = found[place] = compare(target, Load(entries, given.seconds, place), given.rounds, given.segment_mb)
            if given.json:
                continue
            print(f"ledgers in {place}, store {given.server}, threads switch after {given.switch_ms:g} ms")
            for name, value in row.items():
                print(f"    {name:28} {value:.3f}" if isinstance(value, float) else f"    {name:28} {value}")
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
