"""How fast entries become segments in a store, beside bare puts of objects as large to the same store, in the same run.

    python benchmarks/bench_offload.py [--store URL ...] [--mb 512] [--entry-bytes 1024] [--json]

Without --store: memory, a local directory, and MinIO when its binary is there (`./dev services up`). Entries come
from memory in batches of 1 MiB through an OffloadHandle and the manifest, so no hot tier is measured. The bare
reference puts the same number of bytes as multipart uploads of the same part size, as many parts at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import numpy as np
import pyarrow as pa

from formats.checksum import crc32c
from formats.entries import EntryBatch, Position
from formats.keys import new_segment_uuid
from formats.manifest import Assign, Offloaded
from formats.manifest_edits import Edit
from offloader.clock import SystemClock
from offloader.manifest.log import ManifestLog
from offloader.settings import Settings
from offloader.store.base import ObjectStore, open_store
from offloader.store.metered import requests_of
from offloader.write.offloader import LedgerOffloader
from services.binaries import find_binary
from services.servers import Unavailable, make_bucket, running

MIB = 1024 * 1024
BATCH_BYTES = MIB
SEGMENT_BYTES = 128 * MIB
PART_BYTES = 16 * MIB
IN_FLIGHT = 4


def batches(total_bytes: int, entry_bytes: int) -> list[EntryBatch]:
    count = max(1, BATCH_BYTES // entry_bytes)
    offsets = np.arange(0, entry_bytes * count + 1, entry_bytes, dtype=np.int32)
    body = pa.py_buffer(os.urandom(entry_bytes * count))
    payloads = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), body])
    made = []
    for number in range(max(1, total_bytes // (entry_bytes * count))):
        ids = np.arange(number * count, (number + 1) * count, dtype=np.int64)
        made.append(EntryBatch(1, ids, payloads, np.full(count, 1_700_000_000_000, dtype=np.int64)))
    return made


def offload(store: ObjectStore, given: list[EntryBatch]) -> tuple[float, int, int]:
    """Seconds, object bytes and PUT-class requests of offloading everything given."""
    settings = Settings.of({"offload": {"part_bytes": PART_BYTES, "parts_in_flight_max": IN_FLIGHT}})
    offloader = LedgerOffloader(store, settings)
    log = ManifestLog(store, f"bench/{uuid4()}", clock=SystemClock())
    before, started = writes(store), time.perf_counter()
    log.open_epoch()
    object_bytes, position = 0, 0
    after: Position | None = None
    while position < len(given):
        uuid = new_segment_uuid(log.state.incarnation, int.from_bytes(os.urandom(8), "big"))
        edits: list[Edit] = [Assign(uuid, 2, given[position].first, None, 0, dict(store.driver_metadata))]
        log.commit(edits)
        handle = offloader.streaming_offload(
            uuid, {}, stream=log.stream, incarnation=log.state.incarnation, epoch=log.epoch or 0, after=after
        )
        while position < len(given) and handle.wire_bytes < SEGMENT_BYTES:
            batch = given[position]
            taken = handle.offer_batch(batch)
            if taken == len(batch):
                position += 1
            else:
                given[position] = batch.slice(taken, len(batch))
                time.sleep(0.001)  # the buffer is full: the source's own pace
        handle.close()
        summary = handle.get_offload_result_async().result().summary
        assert summary is not None
        log.commit([Offloaded(uuid, summary, 0)])
        object_bytes += summary.data_bytes + summary.index_bytes
        after = summary.end
    seconds = time.perf_counter() - started
    offloader.close()
    return seconds, object_bytes, writes(store) - before


def bare_puts(store: ObjectStore, total_bytes: int) -> float:
    """Seconds that the same bytes take as bare multipart uploads."""
    body = bytearray(os.urandom(PART_BYTES))
    checksum = crc32c(body)
    started = time.perf_counter()
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        left = total_bytes
        while left > 0:
            key = f"bench/bare-{uuid4()}"
            upload = store.begin_upload(key)
            sizes = [min(PART_BYTES, left - at) for at in range(0, min(SEGMENT_BYTES, left), PART_BYTES)]

            def send(job: tuple[int, int], key: str = key, upload: str = upload) -> object:
                number, size = job
                whole = size == PART_BYTES
                return store.upload_part(
                    key, upload, number, body if whole else body[:size], crc32c=checksum if whole else None
                )

            parts = list(pool.map(send, enumerate(sizes, 1)))
            store.complete_upload(key, upload, parts)  # type: ignore[arg-type]
            left -= sum(sizes)
    return time.perf_counter() - started


def writes(store: ObjectStore) -> int:
    counts = requests_of(store)
    verbs = ("put", "begin_upload", "upload_part", "complete_upload")
    return sum(counts[verb].requests for verb in verbs if verb in counts)


@contextlib.contextmanager
def places(urls: list[str]) -> Iterator[list[tuple[str, ObjectStore]]]:
    with contextlib.ExitStack() as stack:
        if urls:
            yield [(url, open_store(url)) for url in urls]
            return
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        found = [("memory", open_store("memory://bench")), ("directory", open_store(f"file://{directory}/store"))]
        with contextlib.suppress(Unavailable):
            find_binary("minio", build=False)
            endpoint = stack.enter_context(running("minio"))
            make_bucket(endpoint, "bench")
            keys = {"access_key": endpoint.access_key, "secret_key": endpoint.secret_key}
            found.append(("MinIO", open_store("s3://bench", endpoint_url=endpoint.url, **keys)))
        yield found


def described(row: dict[str, object]) -> str:
    return (
        "{store:10} {payload_mb_s:7.0f} MB/s offloaded, bare {bare_mb_s:7.0f} MB/s, ratio {ratio:.2f}, "
        "{bytes_stored_per_byte:.3f} bytes stored per byte, {writes_per_gib:.0f} write requests per GiB"
    ).format(**row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="append", default=[], metavar="URL")
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with places(options.store) as found:
        for name, store in found:
            given = batches(options.mb * MIB, options.entry_bytes)
            payload_bytes = sum(batch.payload_bytes for batch in given)
            seconds, object_bytes, requests = offload(store, given)
            bare_s = bare_puts(store, object_bytes)
            rows.append(
                {
                    "store": name,
                    "payload_mb_s": payload_bytes / seconds / 1e6,
                    "bare_mb_s": object_bytes / bare_s / 1e6,
                    "ratio": (object_bytes / seconds) / (object_bytes / bare_s),
                    "bytes_stored_per_byte": object_bytes / payload_bytes,
                    "writes_per_gib": requests / (payload_bytes / 2**30),
                }
            )
            if not options.json:
                print(described(rows[-1]))
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
