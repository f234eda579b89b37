"""What the benchmarks against S3 servers share: a server whose processor time is known, and bare boto3 beside it.

It doesn't go through the code that is measured.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
from botocore.config import Config
from google_crc32c import value as crc32c

from offloader.store.s3_responses import encoded_crc32c
from services.servers import Endpoint, make_bucket, start
from services.slow_proxy import slowed

__all__ = ["BUCKET", "MIB", "Cost", "Rig", "bare_uploads", "measured", "medians", "rig"]

MIB = 1024 * 1024
BUCKET = "bench"


@dataclass(frozen=True, slots=True)
class Cost:
    """What something took: wall time, processor time of this process, processor time of the server."""

    wall_s: float
    own_cpu_s: float
    server_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.own_cpu_s + self.server_cpu_s


@dataclass(frozen=True, slots=True)
class Rig:
    """A running server. ``pid``: 0 where it isn't ours."""

    endpoint: Endpoint
    pid: int
    data: Path

    def client(self, url: str = "") -> Any:
        """Bare boto3: no retries hide anything, and nothing is hashed for the signature, as in the store."""
        config = Config(
            s3={"payload_signing_enabled": False}, max_pool_connections=64, retries={"total_max_attempts": 1}
        )
        return boto3.client(
            "s3",
            endpoint_url=url or self.endpoint.url,
            region_name="us-east-1",
            aws_access_key_id=self.endpoint.access_key,
            aws_secret_access_key=self.endpoint.secret_key,
            config=config,
        )

    def clean(self) -> None:
        """Removes all objects, so that the disk and its cache are as they were."""
        client = self.client()
        with contextlib.closing(client):
            while found := client.list_objects_v2(Bucket=BUCKET).get("Contents"):
                client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": one["Key"]} for one in found]})
        os.sync()

    def cpu_s(self) -> float:
        """Processor time of the server so far."""
        return cpu_s(self.pid) if self.pid else 0.0


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def rig(name: str) -> Iterator[Rig]:
    """Server ``name`` on this machine with an empty bucket."""
    data = Path(tempfile.mkdtemp(prefix=f"offloader-bench-{name}-"))
    try:
        server = start(name, data)
        try:
            make_bucket(server.endpoint, BUCKET)
            yield Rig(server.endpoint, server.process.pid, data)
        finally:
            server.stop()
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextlib.contextmanager
def through(rig: Rig, delay_ms: float) -> Iterator[str]:
    """The server's URL, or that of a proxy that adds ``delay_ms`` to each request."""
    if not delay_ms:
        yield rig.endpoint.url
        return
    with slowed(rig.endpoint.url, delay_ms=delay_ms) as url:
        yield url


def measured(rig: Rig, work: Callable[[], object]) -> Cost:
    own, server, started = time.process_time(), rig.cpu_s(), time.perf_counter()
    work()
    wall_s = time.perf_counter() - started
    return Cost(wall_s, time.process_time() - own, rig.cpu_s() - server)


def medians(costs: Sequence[Cost]) -> Cost:
    """Each of the three figures' median, by itself."""
    return Cost(*(statistics.median(getattr(cost, name) for cost in costs) for name in Cost.__slots__))


def bare_uploads(client: Any, parts: Sequence[bytes], sizes: Sequence[int], part_bytes: int, threads: int) -> list[str]:
    """Keys of objects of ``sizes`` bytes: multipart uploads one after another, ``threads`` parts of each at once.

    Every part is hashed (CRC-32C, by the same library), and the server checks it: the checksum our store uses.
    """

    def send(key: str, upload: str, at: int, size: int) -> dict[str, object]:
        piece = parts[(at - 1) % len(parts)]
        body = piece if size == len(piece) else piece[:size]
        checksum = encoded_crc32c(crc32c(body))
        answer = client.upload_part(
            Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=at, Body=body, ChecksumCRC32C=checksum
        )
        return {"PartNumber": at, "ETag": answer["ETag"], "ChecksumCRC32C": checksum}

    keys = []
    with ThreadPoolExecutor(threads) as pool:
        for size in sizes:
            key = f"bare-{uuid4()}"
            upload = client.create_multipart_upload(Bucket=BUCKET, Key=key, ChecksumAlgorithm="CRC32C")["UploadId"]
            lengths = [min(part_bytes, size - start) for start in range(0, size, part_bytes)]
            count = len(lengths)
            made = list(pool.map(send, [key] * count, [upload] * count, range(1, count + 1), lengths))
            client.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload={"Parts": made})
            keys.append(key)
    return keys
