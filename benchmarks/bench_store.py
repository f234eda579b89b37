"""Bytes through a store against bare boto3 in the same run.

    python benchmarks/bench_store.py [--server minio] [--threads 4] [--parts 24] [--json]

The server runs on this machine and shares its cores with the client: compare the ratios, not the rates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import boto3
from botocore.config import Config

from offloader.settings import StoreSettings
from offloader.store.base import CREATE, ByteRange, ObjectStore
from offloader.store.open import open_store
from services.servers import Endpoint, make_bucket, server

PART_BYTES = 16 * 1024 * 1024
BUCKET = "offloader-bench"


def rate(threads: int, count: int, work: Callable[[int], object]) -> float:
    """MiB/s of ``count`` calls of ``work`` on 16 MiB each, by ``threads`` threads."""
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        list(pool.map(work, range(count)))
        return count * PART_BYTES / 2**20 / (time.perf_counter() - started)


def bare_client(endpoint: Endpoint) -> Any:
    config = Config(s3={"payload_signing_enabled": False}, max_pool_connections=32)
    return boto3.client(
        "s3",
        endpoint_url=endpoint.url,
        region_name="us-east-1",
        aws_access_key_id=endpoint.access_key,
        aws_secret_access_key=endpoint.secret_key,
        config=config,
    )


def against_bare_boto3(name: str, threads: int, parts: int, rounds: int) -> dict[str, float]:
    """Ours and boto3's rates, in turns; the medians."""
    body = bytearray(b"0123456789abcdef" * (PART_BYTES // 16))
    found: dict[str, list[float]] = {"put": [], "put_boto3": [], "get": [], "get_boto3": []}
    with server(name) as endpoint:
        make_bucket(endpoint, BUCKET)
        keys: dict[str, Any] = {"access_key": endpoint.access_key, "secret_key": endpoint.secret_key}
        store = open_store(f"s3://{BUCKET}/ours", endpoint_url=endpoint.url, settings=StoreSettings(), **keys)
        client = bare_client(endpoint)
        whole = ByteRange(0, PART_BYTES)
        works: dict[str, Callable[[int], object]] = {
            "put": lambda number: store.put(f"part-{number}", body),
            "put_boto3": lambda number: client.put_object(Bucket=BUCKET, Key=f"bare/part-{number}", Body=body),
            "get": lambda number: store.get(f"part-{number}", whole),
            "get_boto3": lambda number: client.get_object(Bucket=BUCKET, Key=f"bare/part-{number}")["Body"].read(),
        }
        for _ in range(rounds):
            for kind, work in works.items():
                found[kind].append(rate(threads, parts, work))
        store.close()
        client.close()
    return {kind: statistics.median(rates) for kind, rates in found.items()}


def creates_per_s(store: ObjectStore, count: int) -> float:
    """Small conditional creates, one after the other: what a manifest commit waits for."""
    started = time.perf_counter()
    for number in range(count):
        store.put(f"record/{number:020d}", b"x" * 500, mode=CREATE)
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="minio")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates = against_bare_boto3(options.server, options.threads, options.parts, options.rounds)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        rates["local_creates_per_s"] = creates_per_s(open_store(f"file://{directory}"), 200)
    rates["put_ratio"] = rates["put"] / rates["put_boto3"]
    rates["get_ratio"] = rates["get"] / rates["get_boto3"]
    if options.json:
        print(json.dumps({"server": options.server, "threads": options.threads, **rates}))
        return
    print(f"{options.server}, {options.threads} threads, {options.parts} x 16 MiB, median of {options.rounds}, MiB/s")
    for verb in ("put", "get"):
        bare = rates[f"{verb}_boto3"]
        print(f"  {verb}: {rates[verb]:6.0f}   bare boto3: {bare:6.0f}   ratio {rates[f'{verb}_ratio']:.2f}")
    print(f"local directory: {rates['local_creates_per_s']:.0f} creates of 500 B per second, each on the disk")


if __name__ == "__main__":
    main()
