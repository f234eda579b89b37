"""This project: a stream that is open gets its entries, and a reader reads them back.

It doesn't do what a user couldn't.
"""

from __future__ import annotations

import sys
import time
from uuid import uuid4

from benchmarks.endless_ledger import BATCH_BYTES, EndlessLedger
from benchmarks.peers.answering import Place
from benchmarks.peers.entries import Entries
from formats.entries import Position
from offloader.manifest.log import load_manifest
from offloader.read.reader import Reader, open_stream_reader
from offloader.runtime.system import THREAD_SWITCH_S
from offloader.store.open import open_store
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader

__all__ = ["OurPeer"]

_OPEN_S_MAX = 60.0


class OurPeer:
    """See ``Peer``."""

    def __init__(self, place: Place, entries: Entries) -> None:
        sys.setswitchinterval(THREAD_SWITCH_S)  # as commands do
        self.store = open_store(
            f"s3://{place.bucket}/ours",
            endpoint_url=place.url,
            region="us-east-1",
            access_key=place.access_key,
            secret_key=place.secret_key,
        )
        self.offloader = LedgerOffloader(self.store)
        self.source = EndlessLedger(entries.entry_bytes, 1, bodies=entries.pieces(BATCH_BYTES))
        self.entry_bytes = entries.entry_bytes
        self.count = 0
        self.stream = ""
        self.reader: Reader | None = None
        self.offloading: StreamOffload | None = None

    def prepare(self, count: int) -> None:
        """A stream of its own, open, with its first entry: the other ones come."""
        self.stop()
        self.stream, self.count = f"peers/{uuid4()}", count
        self.source.entries = 1
        self.offloading = self.offloader.offload_stream(self.source, self.stream)
        until = time.monotonic() + _OPEN_S_MAX
        while self.offloading.status().offered is None or not self.is_assigned():
            if time.monotonic() > until:
                raise TimeoutError(f"stream {self.stream} isn't open within {_OPEN_S_MAX:g} s")
            time.sleep(0.01)

    def is_assigned(self) -> bool:
        """Whether the record is there that assigns the stream's first segment."""
        return len(load_manifest(self.store, self.stream).segments.in_order()) > 0

    def offload(self) -> None:
        assert self.offloading is not None
        self.source.entries = self.count - 1
        self.source.append(1)
        committed = self.offloading.offload(timeout_s=600)
        assert committed == self.source.last, f"{committed} instead of {self.source.last}"

    def read(self) -> tuple[int, int]:
        count = size_bytes = 0
        with open_stream_reader(self.store, self.stream) as reader:
            for batch in reader.scan():
                count += len(batch)
                size_bytes += batch.payload_bytes
        return count, size_bytes

    def open(self) -> None:
        self.reader = open_stream_reader(self.store, self.stream)

    def single(self, number: int) -> bytes:
        assert self.reader is not None
        position = Position(1, number)
        [entry] = self.reader.read(position, position)
        return bytes(entry.payload)

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        if self.offloading is not None:
            self.offloading.stop()
            self.offloading = None

    def close(self) -> None:
        self.stop()
        self.offloader.close()
        self.store.close()
