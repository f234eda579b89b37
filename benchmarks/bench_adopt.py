"""Finding what a Pulsar offloaded in a bucket of many ledgers: processor time and memory per ledger.

    python benchmarks/bench_adopt.py [--ledgers 200000] [--streams 2000] [--json]

The bucket answers from arithmetic and costs nothing to speak of, so what is measured is ours alone: the listing, two
GETs per ledger, the choice per stream. A real store adds its latency, ``--parallel`` requests at once. The limit to
compare with: the same index objects, made and parsed in one loop.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast
from uuid import UUID

from formats.metadata.messages import BookKeeperLedger
from formats.segment_map import SegmentMap
from offloader.adopt import adopt
from offloader.errors import NotFoundError
from offloader.runtime.clock import SystemClock
from offloader.store.base import ByteRange, ListPage, ObjectInfo, ObjectStore, PartInfo, UploadInfo
from offloader.store.wrappers import ReadOnlyStore

ENTRIES = 10
PAYLOAD = b"x" * 100
DATA_BYTES = 128 + ENTRIES * (12 + len(PAYLOAD))
PAGE = 1000


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Bucket:
    """``ledgers`` object pairs of ``streams`` topics, made when they are asked for."""

    url = "bench://bucket"
    driver_metadata: Mapping[str, str] = {}

    def __init__(self, ledgers: int, streams: int) -> None:
        self.ledgers = ledgers
        self.streams = streams
        self.data = struct.pack(">Iqqq", 0xFBDBABCB, 128, DATA_BYTES, 0).ljust(128, b"\0") + b"".join(
            struct.pack(">iq", len(PAYLOAD), entry) + PAYLOAD for entry in range(ENTRIES)
        )
        ledger = BookKeeperLedger(length_bytes=ENTRIES * len(PAYLOAD), last_entry_id=ENTRIES - 1, closed=True)
        metadata = ledger.encode()
        self.index = struct.pack(">IiqqII", 0xDE47DE47, 52 + len(metadata), DATA_BYTES, 128, 1, len(metadata))
        self.index += metadata + struct.pack(">qiq", 0, 1, 0)

    def key(self, number: int) -> str:
        return f"{UUID(int=number << 64)}-ledger-{number}"

    def head(self, key: str) -> ObjectInfo:
        return self.get(key)[1]

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:  # noqa: ARG002
        return ()

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        raise NotFoundError(f"{key}: no upload {upload_id}")

    def close(self) -> None:
        pass

    def list(self, prefix: str, *, after: str = "", limit: int = PAGE) -> ListPage:  # noqa: ARG002
        start = int(after) if after else 0
        stop = min(start + limit // 2, self.ledgers)
        found = []
        for number in range(start, stop):
            key = self.key(number)
            found.append(ObjectInfo(key, DATA_BYTES, "", 0))
            found.append(ObjectInfo(f"{key}-index", len(self.index), "", 0))
        return ListPage(tuple(found), str(stop) if stop < self.ledgers else None)

    def get(self, key: str, byte_range: ByteRange | None = None, **_: object) -> tuple[bytes, ObjectInfo]:
        if "-ledger-" not in key:
            raise NotFoundError(key)
        body = self.index if key.endswith("-index") else self.data
        number = int(key.removesuffix("-index").rpartition("-")[2])
        metadata = {
            "s3managedledgeroffloaderformatversion": "1",
            "managedledgername": f"public/default/persistent/topic-{number % self.streams}",
            "pulsarclustername": "bench",
        }
        part = body if byte_range is None else body[byte_range.start : byte_range.stop]
        return part, ObjectInfo(key, len(body), "", 0, metadata)


def _read_only(bucket: Bucket) -> ReadOnlyStore:
    return ReadOnlyStore(cast(ObjectStore, bucket))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=200_000)
    parser.add_argument("--streams", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bucket = Bucket(options.ledgers, options.streams)
    small = Bucket(2_000, 20)
    adopt(_read_only(small), clock=SystemClock(), dry_run=True)  # what is loaded only once

    peak = 0

    def watch(_: object) -> None:
        nonlocal peak
        peak = max(peak, rss_bytes())

    before, started = rss_bytes(), time.process_time()
    done = adopt(_read_only(bucket), clock=SystemClock(), dry_run=True, on_progress=watch)
    spent = time.process_time() - started
    assert sum(len(each.adopted) for each in done.streams) == options.ledgers
    started = time.process_time()
    for number in range(10_000):
        SegmentMap.parse(bucket.get(f"{bucket.key(number)}-index")[0], ledger_id=number)
    bare = (time.process_time() - started) / 10_000
    rows = {
        "ledgers": options.ledgers,
        "processor us per ledger": 1e6 * spent / options.ledgers,
        "of those parsing the index": 1e6 * bare,
        "peak memory, bytes per ledger": (peak - before) / options.ledgers,
    }
    if options.json:
        print(json.dumps(rows))
        return
    for name, value in rows.items():
        print(f"{name:32} {value:10,.0f}")


if __name__ == "__main__":
    main()
