"""The least that brings a ledger database into a bucket: rows out of SQLite, parts of them, as many small requests.

    python benchmarks/bare_offload.py DATABASE ENDPOINT_URL BUCKET [ENTRY_BYTES]

No entries, no blocks, no index and no manifest, only requests where those would be written: the limit that
``bench_waits.py`` measures whole commands against. It imports what an offload needs, reads the same rows, hashes each
part as the store does, and has eight in flight.

With ENTRY_BYTES, the length of every entry, it also does what no offload into Pulsar's format can leave out: checks
each row, puts the twelve bytes of a header before each entry, and takes the checksum of each block. That is the limit
of the format, still without block headers, tables, index and records.
"""

from __future__ import annotations

import base64
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import boto3
import numpy as np
import pyarrow as pa  # noqa: F401 - likewise
from botocore.config import Config
from google_crc32c import value as crc32c

PART_BYTES, IN_FLIGHT = 16 * 1024 * 1024, 8
#: Small requests of an offload into a new stream that wait for each other. Before the first part: five of the probe,
#: then catalogue entry, what is left of the name, the entry, boundary, entry again, and two records, each with the
#: boundary behind it. After the last part: index, two records likewise, and the look at what is stored.
BEFORE, AFTER = 14, 6


def parts_of(database: str, entry_bytes: int) -> Iterator[bytes]:
    """The payloads of all rows, or the entries made of them, joined and cut into parts."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    rows = connection.execute("SELECT first_entry_id, payload FROM chunks ORDER BY ledger_id, first_entry_id")
    held: list[bytes | memoryview] = []
    for stretch in encoded(rows, entry_bytes) if entry_bytes else (payload for _, payload in rows):
        held.append(stretch)
        if sum(map(len, held)) >= PART_BYTES:
            joined = b"".join(held)
            yield joined[:PART_BYTES]
            held = [joined[PART_BYTES:]]
    if any(held):
        yield b"".join(held)


def encoded(rows: Iterator[tuple[int, bytes]], entry_bytes: int) -> Iterator[memoryview]:
    """Each row as a block's entries: a header of twelve bytes, which has length and entry id, before each payload."""
    for first_entry_id, payload in rows:
        crc32c(payload)
        count = len(payload) // entry_bytes
        headers = np.empty(count, dtype=[("length", ">i4"), ("entry_id", ">i8")])
        headers["length"], headers["entry_id"] = entry_bytes, np.arange(first_entry_id, first_entry_id + count)
        block = np.empty((count, 12 + entry_bytes), dtype=np.uint8)
        block[:, :12] = headers.view(np.uint8).reshape(count, 12)
        block[:, 12:] = np.frombuffer(payload, dtype=np.uint8).reshape(count, entry_bytes)
        stretch = block.reshape(-1)
        crc32c(stretch)
        yield stretch.data


def main(database: str, url: str, bucket: str, entry_bytes: str = "0") -> None:
    config = Config(
        s3={"payload_signing_enabled": False}, max_pool_connections=IN_FLIGHT, retries={"total_max_attempts": 1}
    )
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=config)
    key = f"bare-{uuid4()}"
    for number in range(BEFORE):
        client.put_object(Bucket=bucket, Key=f"{key}-before-{number}", Body=b"x" * 200)
    upload = client.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="CRC32C")["UploadId"]
    room = threading.Semaphore(IN_FLIGHT)

    def send(number: int, body: bytes) -> dict[str, object]:
        try:
            checksum = base64.b64encode(crc32c(body).to_bytes(4, "big")).decode()
            answer = client.upload_part(
                Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=body, ChecksumCRC32C=checksum
            )
            return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32C": checksum}
        finally:
            room.release()

    sent = []
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        for number, body in enumerate(parts_of(database, int(entry_bytes)), 1):
            room.acquire()
            sent.append(threads.submit(send, number, body))
        parts = [each.result() for each in sent]
    client.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
    for number in range(AFTER):
        client.put_object(Bucket=bucket, Key=f"{key}-after-{number}", Body=b"x" * 200)


if __name__ == "__main__":
    main(*sys.argv[1:])
