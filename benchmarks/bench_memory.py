"""What a process that offloads holds in memory at most, with a store that is fast, slow, and very slow.

    python benchmarks/bench_memory.py [--server versitygw] [--budget-mb 128] [--mb-per-s 0 40 5] [--json]

A stream that is always behind, so that its buffer is full from the first second to the last; each case in a process
of its own, whose highest resident memory the system has counted. The slow stores are the same server behind a proxy
that lets so many megabytes a second through. Its segments are so large that it is never three of them behind: then a
run over its history would take over, which holds less (``--segment-mb 1024``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.endless_ledger import EndlessLedger
from benchmarks.s3_rig import BUCKET, MIB, rig
from offloader.runtime.system import ALLOCATOR
from offloader.settings import Settings
from offloader.store.open import open_store
from offloader.write.offloader import LedgerOffloader
from services.slow_proxy import slowed

POOL_BYTES = 8 * MIB
#: More than any case offloads, and less than three segments of the default size.
BEHIND_BYTES = 256 * 1024 * MIB
SEGMENT_MIB = 140_000.0


def resident_mib(field: str) -> float:
    """``VmRSS`` (now) or ``VmHWM`` (the highest so far) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(field)


def offload(
    url: str, access_key: str, secret_key: str, *, budget_mib: int, segment_mib: float, seconds: float, entry_bytes: int
) -> None:
    """Offloads for so long and prints what it took: runs in a process of its own."""
    settings = Settings.of(
        {
            "offload": {
                "offload_memory_size_max": budget_mib * MIB,
                "offload_buffer_size_max": budget_mib * MIB,
                "parts_in_flight_max": 8,
                "workers_max": 12,
                "segment_size_max": round(segment_mib * 2**20),
            }
        }
    )
    store = open_store(f"s3://{BUCKET}/ours", endpoint_url=url, access_key=access_key, secret_key=secret_key)
    source = EndlessLedger(entry_bytes, BEHIND_BYTES // entry_bytes, pool_bytes=POOL_BYTES, copies=True)
    before = resident_mib("VmRSS")
    offloader = LedgerOffloader(store, settings)
    stream = offloader.offload_stream(source, f"bench/{uuid4()}")
    counted, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        counted = max(counted, offloader.memory_bytes)
        time.sleep(0.01)
    offered = stream.status().offered
    stream.stop()
    offloader.close()
    peak = resident_mib("VmHWM")
    print(
        json.dumps(
            {
                "peak_mib": peak,
                "before_mib": before,
                "counted_mib": counted / MIB,
                "above_budget_mib": peak - budget_mib,
                "offered_mib": (offered.entry_id + 1) * entry_bytes / MIB if offered else 0.0,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="versitygw")
    parser.add_argument("--budget-mb", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--mb-per-s", type=float, nargs="*", default=[0.0, 40.0, 5.0], help="0: as fast as it goes")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--segment-mb", type=float, default=SEGMENT_MIB)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        offload(
            *given.child,
            budget_mib=given.budget_mb[0],
            segment_mib=given.segment_mb,
            seconds=given.seconds,
            entry_bytes=given.entry_bytes,
        )
        return
    rows: dict[str, object] = {}
    with rig(given.server) as running:
        for budget_mib in given.budget_mb:
            for mb_per_s in given.mb_per_s:
                with slowed(running.endpoint.url, mb_per_s=mb_per_s) as url:
                    keys = [running.endpoint.access_key, running.endpoint.secret_key]
                    options = ["--budget-mb", str(budget_mib), "--seconds", str(given.seconds)]
                    options += ["--entry-bytes", str(given.entry_bytes), "--segment-mb", str(given.segment_mb)]
                    options += ["--child", url, *keys]
                    answer = subprocess.run(
                        [sys.executable, __file__, *options],
                        stdout=subprocess.PIPE,
                        text=True,
                        check=True,
                        env={**ALLOCATOR, **os.environ},  # as commands do
                    )
                    row = json.loads(answer.stdout)
                    rows[f"{budget_mib} MiB, {mb_per_s:g} MB/s"] = row
                    if not given.json:
                        store = f"{mb_per_s:g} MB/s" if mb_per_s else "fast"
                        print(
                            f"budget {budget_mib} MiB, store {store:9}: peak {row['peak_mib']:.0f} MiB resident "
                            f"({row['before_mib']:.0f} before the first entry), {row['above_budget_mib']:.0f} above "
                            f"the budget; {row['counted_mib']:.0f} counted, {row['offered_mib']:.0f} offered",
                            flush=True,
                        )
                running.clean()
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
