"""The load of a long run, in a process of its own: producers at full speed, and readers that check what they get.

It doesn't let a producer run ahead of what is durable by more than its window: the hot tier would grow for want of a
reader, and that would say nothing.

    python -m tests.proof.soak.soak_load ORDER        # until standard input ends; one line of totals at the end
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from formats.entries import Position
from offloader.errors import NotFoundError, StoreUnavailableError, TrimmedError
from offloader.read.reader import open_stream_reader
from offloader.runtime.system import set_up
from offloader.store.open import open_store
from tests.support.flight_door import APPEND_SCHEMA, Producer

__all__ = ["ENTRY_BYTES", "Order", "Totals", "checked", "payloads_of"]

ENTRY_BYTES = 1024
BATCH_ENTRIES = 1024
#: Batches that have no answer yet.
BATCHES_OPEN_MAX = 4
#: Entries of one read; the rest is left.
READ_ENTRIES_MAX = 32 * 1024
LEASE_S = 60
_FILLER = np.frombuffer(random.Random(8).randbytes(ENTRY_BYTES - 16), np.uint8)


@dataclass(frozen=True, slots=True)
class Order:
    """What the load is.

    Attributes:
        flight: where Arrow Flight listens.
        store: URL and options of the store.
        streams: their names.
        window_bytes: appended and not durable in the cold tier, of one stream.
        readers: of each kind: with the library, and through Flight.
    """

    flight: str
    store: tuple[str, dict[str, Any]]
    streams: tuple[str, ...]
    window_bytes: int
    readers: int


@dataclass(slots=True)
class Totals:
    """What was done. ``last``: stream -> the newest entry's position and number of entries."""

    appended_entries: int = 0
    read_entries: int = 0
    reads: int = 0
    tried_again: int = 0
    last: dict[str, tuple[str, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def payloads_of(stream: int, first: int, count: int) -> pa.BinaryArray:
    """Entries ``first`` and on: each begins with its number and its stream's."""
    body = np.empty((count, ENTRY_BYTES), np.uint8)
    body[:, :8] = np.arange(first, first + count, dtype=">u8").view(np.uint8).reshape(count, 8)
    body[:, 8:16] = np.full(count, stream, dtype=">u8").view(np.uint8).reshape(count, 8)
    body[:, 16:] = _FILLER
    offsets = np.arange(0, count * ENTRY_BYTES + 1, ENTRY_BYTES, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(body.tobytes())])


def checked(payloads: pa.BinaryArray, stream: int, expected: int | None) -> int:
    """The number of the entry that comes after ``payloads``.

    Args:
        expected: the number of the first; ``None``: whichever it is.

    Raises:
        ValueError: an entry is missing, comes twice, is another stream's, or isn't what was sent.
    """
    count = len(payloads)
    if not count:
        return expected or 0
    _, offsets, data = payloads.buffers()
    ends = np.frombuffer(offsets, np.int32)[payloads.offset : payloads.offset + count + 1]
    if np.any(np.diff(ends) != ENTRY_BYTES):
        raise ValueError(f"stream {stream}: an entry after {expected} has another length")
    body = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].reshape(count, ENTRY_BYTES)
    heads = np.ascontiguousarray(body[:, :16]).view(">u8")
    first = int(heads[0, 0]) if expected is None else expected
    wrong = np.flatnonzero(heads[:, 0] != np.arange(first, first + count, dtype=np.uint64))
    if len(wrong):
        raise ValueError(f"stream {stream}: entry {first + wrong[0]} expected, {heads[wrong[0], 0]} found")
    if np.any(heads[:, 1] != stream) or np.any(body[:, 16:] != _FILLER):
        raise ValueError(f"stream {stream}: entries from {first} on aren't what was sent")
    return first + count


class Load:
    """Runs an order until ``ended`` is set."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.ended = threading.Event()
        self.totals = Totals()
        self._lock = threading.Lock()
        self._store = open_store(order.store[0], **order.store[1])

    def run(self, wait: Callable[[], object]) -> None:
        """Starts everybody, waits, and ends them."""
        threads = [
            threading.Thread(target=self._guarded, args=(self._produce, number))
            for number in range(len(self._order.streams))
        ]
        threads += [
            threading.Thread(target=self._guarded, args=(self._read, read, seed))
            for seed in range(self._order.readers)
            for read in (self._by_library, self._by_flight)
        ]
        for thread in threads:
            thread.start()
        wait()
        self.ended.set()
        for thread in threads:
            thread.join()

    def _guarded(self, run: Callable[..., None], *arguments: object) -> None:
        try:
            run(*arguments)
        except Exception as error:  # whatever it is: the run says it at its end
            with self._lock:
                self.totals.errors.append(f"{run.__name__}: {type(error).__name__}: {error}"[:2000])
            print(self.totals.errors[-1], file=sys.stderr, flush=True)

    # --- producers -----------------------------------------------------------------------------------------------

    def _produce(self, stream: int) -> None:
        name = self._order.streams[stream]
        client = fl.FlightClient(self._order.flight)
        producer = Producer(client, {"stream": name, "mode": "append", "producer": "soak"}, APPEND_SCHEMA)
        producer.news()
        number, open_batches = 0, 0
        # Where each batch ended, oldest first, of those that aren't durable.
        waiting = collections.deque[Position]()
        end: Position | None = None

        def hear() -> None:
            nonlocal open_batches, end
            said = producer.news()
            if said.get("batch") is not None and said["positions"]:
                open_batches -= 1
                end = Position.parse(said["positions"][-1][1])
                waiting.append(end)
            durable = Position.parse(said["durable"]) if said.get("durable") else None
            while durable is not None and waiting and waiting[0] <= durable:
                waiting.popleft()

        window = max(self._order.window_bytes // (BATCH_ENTRIES * ENTRY_BYTES), 1)
        while not self.ended.is_set():
            payloads = payloads_of(stream, number, BATCH_ENTRIES)
            producer.write(pa.record_batch([payloads], schema=APPEND_SCHEMA), {"sequence": number})
            number += BATCH_ENTRIES
            open_batches += 1
            while open_batches >= BATCHES_OPEN_MAX or len(waiting) + open_batches > window:
                hear()
        while open_batches:
            hear()
        with self._lock:
            self.totals.appended_entries += number
            self.totals.last[name] = (str(end), number)
        producer.end()
        client.close()

    # --- readers -------------------------------------------------------------------------------------------------

    def _read(self, read: Callable[[random.Random, int], Generator[pa.BinaryArray]], seed: int) -> None:
        choices = random.Random(seed)
        while not self.ended.is_set():
            stream = choices.randrange(len(self._order.streams))
            expected: int | None = None
            entries = 0
            again = 0
            try:
                # What retention took while it was chosen isn't an error; nor is a stream that nothing is offloaded of.
                with (
                    contextlib.suppress(NotFoundError, TrimmedError, _Trimmed),
                    contextlib.closing(read(choices, stream)) as found,
                ):
                    for payloads in found:
                        expected = checked(payloads, stream, expected)
                        entries += len(payloads)
                        if entries >= READ_ENTRIES_MAX or self.ended.is_set():
                            break
            except (StoreUnavailableError, fl.FlightUnavailableError):
                again = 1  # it was told to try again
            with self._lock:
                self.totals.tried_again += again
                self.totals.reads += bool(entries)
                self.totals.read_entries += entries
            if not entries:
                self.ended.wait(0.2)

    def _by_library(self, choices: random.Random, stream: int) -> Generator[pa.BinaryArray]:
        with open_stream_reader(self._store, self._order.streams[stream], lease_seconds=LEASE_S) as reader:
            segments = reader.segments()
            if segments:
                scan = reader.scan(max(choices.choice(segments).begin, reader.first_position or segments[0].begin))
                with contextlib.closing(scan):
                    yield from (batch.payloads for batch in scan)

    def _by_flight(self, choices: random.Random, stream: int) -> Generator[pa.BinaryArray]:
        client = fl.FlightClient(self._order.flight)
        try:
            since_ms = int(time.time() * 1000) - choices.randrange(1, 20_000)
            ticket = json.dumps({"stream": self._order.streams[stream], "since_ms": since_ms}).encode()
            reader = client.do_get(fl.Ticket(ticket))
            try:
                for chunk in reader:
                    yield chunk.data.column("payload")
            finally:
                reader.cancel()
        except (fl.FlightError, pa.ArrowException) as error:
            if any(kind in str(error) for kind in ("NotFound", "TrimmedError", "BeyondEndError")):
                raise _Trimmed from error
            raise
        finally:
            client.close()


class _Trimmed(Exception):
    """Likewise, over Flight."""


def main() -> None:
    set_up(has_budget=True)
    values = json.loads(sys.argv[1])
    order = Order(**{**values, "store": tuple(values["store"]), "streams": tuple(values["streams"])})
    load = Load(order)
    load.run(sys.stdin.read)
    print(json.dumps(asdict(load.totals)), flush=True)
    os._exit(1 if load.totals.errors else 0)  # a Flight client that was cancelled may keep a thread of gRPC's


if __name__ == "__main__":
    main()
