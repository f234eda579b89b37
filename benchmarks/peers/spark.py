"""Spark: over Parquet files in the store, and over our segments there.

It doesn't give one of them what the other one hasn't: both run with two cores, read all columns of a stream's entries
and drop the rows.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers.answering import Place
from benchmarks.peers.entries import Entries
from benchmarks.peers.own import OurPeer
from offloader.spark.session import local_session
from services.binaries import cache_directory
from services.maven import build_with_maven

__all__ = ["SparkOverOurs", "SparkOverParquet", "find_s3a"]

CORES = 2
_SOURCES = Path(__file__).parent / "s3a"
_ROWS = 8192
_TIME_MS = 1_700_000_000_000
_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("payload", pa.binary()),
    ]
)


def find_s3a() -> Path:
    """The folder of what Spark needs for ``s3a://`` URLs: cached, or fetched by Maven and cached.

    Raises:
        Unavailable: it can't be had; the text says what to do.
    """
    made_of = (_SOURCES / "pom.xml").read_bytes()
    target = cache_directory() / f"s3a-{hashlib.sha256(made_of).hexdigest()[:12]}"
    return target if target.is_dir() else build_with_maven("Spark's way to S3", _SOURCES, target)


class _Spark(ABC):
    """A session, and a frame of what was offloaded."""

    def __init__(self, place: Place, config: Mapping[str, str]) -> None:
        self.place = place
        self.spark = local_session("peers", cores=CORES, config=config)
        self.spark.range(CORES).write.format("noop").mode("overwrite").save()
        self.count = 0

    @abstractmethod
    def frame(self) -> Any:
        """A row for each entry, with a column ``payload``."""

    def read(self) -> tuple[int, int]:
        """Rows go to the sink that drops them; ``open`` counts them."""
        self.frame().write.format("noop").mode("overwrite").save()
        return self.count, self.count * self.place.entry_bytes

    def open(self) -> None:
        """Counts rows and bytes: the sink that drops them doesn't say."""
        found = self.frame().selectExpr("count(*)", "sum(length(payload))").first()
        if tuple(found) != (self.count, self.count * self.place.entry_bytes):
            raise ValueError(f"Spark read {tuple(found)} rows and bytes instead of {self.count} rows")

    def single(self, number: int) -> bytes:
        [row] = self.frame().where(f"ledger_id = 1 AND entry_id = {number}").select("payload").collect()
        return bytes(row.payload)

    def close(self) -> None:
        self.spark.stop()


class SparkOverParquet(_Spark):
    """Uncompressed Parquet through S3A, written by Spark out of a Parquet file on this machine's disk."""

    def __init__(self, place: Place, entries: Entries) -> None:
        self.entries = entries
        super().__init__(
            place,
            {
                "spark.driver.extraClassPath": f"{find_s3a()}/*",
                "spark.hadoop.fs.s3a.endpoint": place.url,
                "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
                "spark.hadoop.fs.s3a.path.style.access": "true",
                "spark.hadoop.fs.s3a.access.key": place.access_key,
                "spark.hadoop.fs.s3a.secret.key": place.secret_key,
                # The one that Hadoop 3.5 comes with keeps what was read before in memory: the second scan asks nobody.
                "spark.hadoop.fs.s3a.input.stream.type": "classic",
                "spark.sql.parquet.compression.codec": "uncompressed",
            },
        )
        self.number = 0

    @property
    def url(self) -> str:
        return f"s3a://{self.place.bucket}/parquet-{self.number}"

    @property
    def hot(self) -> str:
        return f"{self.place.folder}/hot-{self.count}.parquet"

    def prepare(self, count: int) -> None:
        self.count = count
        self.number += 1
        if Path(self.hot).exists():
            return
        with pq.ParquetWriter(self.hot, _SCHEMA, compression="none", use_dictionary=False) as writer:
            for first in range(0, count, _ROWS):
                ids = range(first, min(first + _ROWS, count))
                payloads = pa.array([bytes(self.entries.entry(number)) for number in ids], pa.binary())
                columns = [
                    pa.repeat(pa.scalar("peers"), len(ids)),
                    pa.repeat(pa.scalar(1, pa.int64()), len(ids)),
                    pa.array(ids, pa.int64()),
                    pa.repeat(pa.scalar(_TIME_MS * 1000, pa.int64()), len(ids)).cast(
                        _SCHEMA.field("publish_time").type
                    ),
                    payloads,
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))

    def offload(self) -> None:
        self.spark.read.parquet(self.hot).write.parquet(self.url)

    def frame(self) -> Any:
        return self.spark.read.parquet(self.url)


class SparkOverOurs(_Spark):
    """Our data source, over a stream that was offloaded by ``OurPeer`` before."""

    def __init__(self, place: Place, entries: Entries) -> None:
        self.writer = OurPeer(place, entries)
        super().__init__(place, {})

    def prepare(self, count: int) -> None:
        self.count = count
        self.writer.prepare(count)

    def offload(self) -> None:
        self.writer.offload()
        self.writer.stop()

    def frame(self) -> Any:
        return self._frame({})

    def single(self, number: int) -> bytes:
        """By the options that bound a scan: filters leave out nothing unless one says that it is safe."""
        bounds = {"start": f"1:{number}", "stop": f"1:{number + 1}"}
        [row] = self._frame(bounds).select("payload").collect()
        return bytes(row.payload)

    def _frame(self, more: dict[str, str]) -> Any:
        reader = self.spark.read.format("offloader").option("store", self.writer.store.url)
        options = {
            "stream": self.writer.stream,
            "endpointUrl": self.place.url,
            "region": "us-east-1",
            "accessKey": self.place.access_key,
            "secretKey": self.place.secret_key,
        }
        return reader.options(**options, **more).load()

    def close(self) -> None:
        super().close()
        self.writer.close()
