"""The store's clients without anything of ours: they move the bytes, and know nothing of entries.

It doesn't go through the code that is measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.peers.answering import Place, bucket_client
from benchmarks.peers.entries import Entries
from benchmarks.s3_rig import bare_uploads

__all__ = ["IN_FLIGHT", "BotoPeer", "ObstorePeer", "TransferPeer"]

#: What our settings have where nobody changes them.
IN_FLIGHT = 4
PART_BYTES = 16 * 1024 * 1024
REQUEST_BYTES = 16 * 1024 * 1024


class _Bare(ABC):
    """One object of bytes, read in ranged GETs of equal length."""

    def __init__(self, place: Place, entries: Entries) -> None:
        self.place, self.entries = place, entries
        self.parts = [bytes(piece) for piece in entries.pieces(PART_BYTES)]
        self.key = ""
        self.size_bytes = 0

    def prepare(self, count: int) -> None:
        self.size_bytes = count * self.entries.entry_bytes

    def read(self) -> tuple[int, int]:
        starts = range(0, self.size_bytes, REQUEST_BYTES)
        stops = [min(start + REQUEST_BYTES, self.size_bytes) for start in starts]
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return 0, sum(pool.map(lambda start, stop: len(self.get(start, stop)), starts, stops))

    def open(self) -> None:  # noqa: B027 - of none of them
        """There is nothing to open."""

    def single(self, number: int) -> bytes:
        """The entry's own bytes: where they are is known without looking."""
        start = number * self.entries.entry_bytes
        return bytes(self.get(start, start + self.entries.entry_bytes))

    @abstractmethod
    def get(self, start: int, stop: int) -> Any:
        """The object's bytes from ``start`` to before ``stop``."""


class BotoPeer(_Bare):
    """``create_multipart_upload``, ``upload_part`` and ``get_object``, called by our own threads."""

    def __init__(self, place: Place, entries: Entries) -> None:
        super().__init__(place, entries)
        self.client = bucket_client(place)

    def offload(self) -> None:
        [self.key] = bare_uploads(self.client, self.parts, [self.size_bytes], PART_BYTES, IN_FLIGHT)

    def get(self, start: int, stop: int) -> Any:
        answer = self.client.get_object(Bucket=self.place.bucket, Key=self.key, Range=f"bytes={start}-{stop - 1}")
        return answer["Body"].read()

    def close(self) -> None:
        self.client.close()


class TransferPeer(BotoPeer):
    """``upload_file`` and ``download_file`` with their own settings: 8 MiB, ten threads."""

    @property
    def file(self) -> Path:
        return Path(self.place.folder) / "whole"

    def prepare(self, count: int) -> None:
        super().prepare(count)
        self.file.write_bytes(self.entries.bytes[: self.size_bytes])

    def offload(self) -> None:
        self.key = "transferred"
        self.client.upload_file(str(self.file), self.place.bucket, self.key)

    def read(self) -> tuple[int, int]:
        self.client.download_file(self.place.bucket, self.key, str(self.file))
        return 0, self.file.stat().st_size


class ObstorePeer(_Bare):
    """The client that Rust programs use, from Python."""

    def __init__(self, place: Place, entries: Entries) -> None:
        from obstore.store import S3Store

        super().__init__(place, entries)
        self.store = S3Store(
            place.bucket,
            endpoint=place.url,
            region="us-east-1",
            access_key_id=place.access_key,
            secret_access_key=place.secret_key,
            client_options={"allow_http": True},
        )

    def offload(self) -> None:
        import obstore

        self.key = "obstore"
        body = self.entries.bytes[: self.size_bytes]
        obstore.put(self.store, self.key, body, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=IN_FLIGHT)

    def get(self, start: int, stop: int) -> Any:
        import obstore

        return obstore.get_range(self.store, self.key, start=start, end=stop)

    def close(self) -> None:
        """It holds nothing that has to be ended."""
