"""How fast a stream's entries become segments in an S3 server, beside bare boto3 in the same run.

    python benchmarks/bench_offload.py [--server NAME ...] [--segment-mb 1024 64] [--delay-ms 0 30] [--mb 1024] [--json]

An open stream is offloaded out of memory (blocks, parts, proof, commit), segment after segment, and the same bytes go
as bare multipart uploads from as many threads, parts and objects of the same sizes, with the same checksum. The two
take turns; the figures are medians, after a round that doesn't count. The server shares the cores with the client:
compare ratios, and processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks.endless_ledger import EndlessLedger
from benchmarks.s3_rig import BUCKET, MIB, Cost, Rig, bare_uploads, measured, medians, rig, through
from formats.checksum import crc32c
from formats.entries import ENTRY_HEADER_BYTES
from offloader.manifest.log import load_manifest
from offloader.runtime.system import THREAD_SWITCH_S
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import requests_of
from offloader.write.offloader import LedgerOffloader

#: Longest wait for a stream to be open, and the wait for the record that assigns its first segment.
OPEN_S_MAX = 60.0
SETTLE_S = 0.5
PUT_CLASS = ("put", "begin_upload", "upload_part", "complete_upload", "list", "list_parts", "list_uploads")


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: MiB a segment, MiB in all, milliseconds added to each request, and how it is uploaded."""

    segment_mib: float
    total_mib: int
    delay_ms: float
    entry_bytes: int
    part_bytes: int
    in_flight: int
    rounds: int

    @property
    def entries(self) -> int:
        """As many as fill whole segments: the entry that reaches a segment's size is its last one."""
        wire_bytes = self.entry_bytes + ENTRY_HEADER_BYTES
        each = -(-int(self.segment_mib * MIB) // wire_bytes)
        return each * max(1, round(self.total_mib / self.segment_mib))

    def settings(self) -> Settings:
        return Settings.of(
            {
                "offload": {
                    "part_size": self.part_bytes,
                    "parts_in_flight_max": self.in_flight,
                    "workers_max": self.in_flight + 4,
                    "segment_size_max": round((self.segment_mib) * 2**20),
                    "offload_buffer_size_max": 2 * self.in_flight * self.part_bytes,
                    "offload_memory_size_max": 2 * self.in_flight * self.part_bytes,
                },
                "store": {"connections_max": 64},
            }
        )


def offload(
    rig: Rig, offloader: LedgerOffloader, store: ObjectStore, case: Case, source: EndlessLedger, stream: str
) -> tuple[Cost, int]:
    """A stream that is open and has one entry gets all others at once: what it takes until the last is committed, and
    how many PUT-class requests."""
    source.entries = 1
    offloading = offloader.offload_stream(source, stream)
    until = time.monotonic() + OPEN_S_MAX
    while offloading.status().offered is None and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(SETTLE_S)  # its first segment is assigned by now

    def rest() -> None:
        source.entries = case.entries - 1
        source.append(1)
        done = offloading.offload(timeout_s=600)
        assert done == source.last, f"{done} instead of {source.last}"

    before = writes(store)
    cost = measured(rig, rest)
    requests = writes(store) - before
    offloading.stop()
    return cost, requests


def object_sizes(store: ObjectStore, stream: str) -> list[int]:
    """Bytes of each data object, as the manifest has them."""
    segments = load_manifest(store, stream).segments.in_order()
    return [segment.summary.data_bytes for segment in segments if segment.summary is not None]


def compare(rig: Rig, case: Case) -> Mapping[str, object]:
    """One case: ours and bare in turns."""
    source = EndlessLedger(case.entry_bytes, 1)
    pool = b"".join(source.bodies)
    parts = [pool[at : at + case.part_bytes] for at in range(0, len(pool) - case.part_bytes + 1, case.part_bytes)]
    ours: list[Cost] = []
    bare: list[Cost] = []
    keys: dict[str, Any] = {"access_key": rig.endpoint.access_key, "secret_key": rig.endpoint.secret_key}
    with through(rig, case.delay_ms) as url:
        store = open_store(f"s3://{BUCKET}/ours", endpoint_url=url, settings=case.settings().store, **keys)
        offloader = LedgerOffloader(store, case.settings())
        client = rig.client(url)
        sizes: list[int] = []
        requests = 0
        for number in range(case.rounds + 1):
            stream = f"bench/{uuid4()}"

            def send() -> None:
                nonlocal sizes, requests
                cost, requests = offload(rig, offloader, store, case, source, stream)  # noqa: B023 - called here
                ours.append(cost)
                sizes = object_sizes(store, stream)  # noqa: B023
                rig.clean()

            def send_bare() -> None:
                work = partial(bare_uploads, client, parts, sizes, case.part_bytes, case.in_flight)
                bare.append(measured(rig, work))
                rig.clean()

            # Whoever is second has the disk's leftovers to wait for: they take turns in that too.
            for turn in (send, send_bare) if number % 2 == 0 else (send_bare, send):
                turn()
            if number == 0:  # that was for both to be as they are after a while: connected, their memory at hand
                ours.clear()
                bare.clear()
        offloader.close()
        store.close()
        client.close()
    parts_sent = sum(-(-size // case.part_bytes) for size in sizes)
    return figures(case, medians(ours), medians(bare), sum(sizes)) | {
        "wall_ratio_of_each_round": [round(b.wall_s / o.wall_s, 3) for o, b in zip(ours, bare, strict=True)],
        "segments": len(sizes),
        "writes_per_segment_beside_parts": (requests - parts_sent) / len(sizes),
    }


def figures(case: Case, ours: Cost, bare: Cost, object_bytes: int) -> dict[str, object]:
    gigabytes = object_bytes / 1e9
    return {
        "segment_mib": case.segment_mib,
        "delay_ms": case.delay_ms,
        "mb_s": object_bytes / 1e6 / ours.wall_s,
        "bare_mb_s": object_bytes / 1e6 / bare.wall_s,
        "ratio": bare.wall_s / ours.wall_s,
        "own_cpu_s_per_gb": ours.own_cpu_s / gigabytes,
        "bare_cpu_s_per_gb": bare.own_cpu_s / gigabytes,
        "all_cpu_s_per_gb": ours.cpu_s / gigabytes,
        "bare_all_cpu_s_per_gb": bare.cpu_s / gigabytes,
        "cpu_ratio": bare.cpu_s / ours.cpu_s,
        "ours": asdict(ours),
        "bare": asdict(bare),
    }


def writes(store: ObjectStore) -> int:
    """PUT-class requests so far: S3 counts listings with them."""
    counts = requests_of(store)
    return sum(counts[verb].requests for verb in PUT_CLASS if verb in counts)


def limits(directory: Path) -> Mapping[str, float]:
    """What this machine does at best, MB/s: copying memory, CRC-32C, writing and syncing a file."""
    body = np.frombuffer(os.urandom(128 * MIB), dtype=np.uint8)
    target = np.zeros_like(body)

    def rate(work: object) -> float:
        assert callable(work)
        found = []
        for _ in range(3):
            started = time.perf_counter()
            work()
            found.append(len(body) / 1e6 / (time.perf_counter() - started))
        return statistics.median(found)

    def write() -> None:
        with (directory / "limit").open("wb", buffering=0) as file:
            file.write(body.data)
            os.fsync(file.fileno())

    return {
        "memory_copy_mb_s": rate(lambda: np.copyto(target, body)),
        "crc32c_mb_s": rate(lambda: crc32c(body)),
        "disk_write_mb_s": rate(write),
    }


def described(server: str, row: Mapping[str, Any]) -> str:
    return (
        "{server:9} {segment_mib:5g} MiB segments, +{delay_ms:g} ms: {mb_s:5.0f} MB/s, bare {bare_mb_s:5.0f}, ratio "
        "{ratio:.2f} {wall_ratio_of_each_round}; CPU-s/GB own {own_cpu_s_per_gb:.2f} (bare {bare_cpu_s_per_gb:.2f}), "
        "with server {all_cpu_s_per_gb:.2f} ({bare_all_cpu_s_per_gb:.2f}); "
        "{writes_per_segment_beside_parts:.2f} writes a segment beside parts"
    ).format(server=server, **row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", nargs="*", default=["minio", "versitygw"])
    parser.add_argument("--segment-mb", nargs="*", type=float, default=[1024.0, 64.0])
    parser.add_argument("--delay-ms", nargs="*", type=float, default=[0.0, 30.0])
    parser.add_argument("--mb", type=int, default=1024, help="MiB of payload offloaded in each round")
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--part-mb", type=int, default=16)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sys.setswitchinterval(THREAD_SWITCH_S)  # as commands do
    rows: dict[str, object] = {}
    for server in given.server:
        with rig(server) as running:
            rows["limits"] = found = limits(running.data)
            if not given.json:
                print(f"this machine: {', '.join(f'{name} {value:.0f}' for name, value in found.items())}")
            for segment_mib in given.segment_mb:
                for delay_ms in given.delay_ms:
                    case = Case(
                        segment_mib,
                        given.mb,
                        delay_ms,
                        given.entry_bytes,
                        given.part_mb * MIB,
                        given.in_flight,
                        given.rounds,
                    )
                    row = rows[f"{server} {segment_mib:g} MiB +{delay_ms:g} ms"] = compare(running, case)
                    if not given.json:
                        print(described(server, row), flush=True)
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
