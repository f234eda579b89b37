"""Arrow Flight ingest: what a producer pushes to `offloader serve`, against a server that drops what it gets.

    python benchmarks/bench_flight.py [--seconds 4] [--rounds 3] [--entry-bytes 1024] [--batch-entries 1024] [--json]

Three processes' worth of work on one machine: a producer that pushes batches as fast as it is let, over loopback, and a
server. The server is either the serving process over a memory store (entries are checked, cut into blocks with a CRC
each, and committed in segments), or the same Flight library doing nothing but receiving, answering and dropping. Both
take turns. A rate counts from the first batch to the answer to the last one; ``durable`` to the answer that says that
the last one is committed.

Two limits stand beside it: the second server's rate, which is what gRPC's copies in and out of the kernel cost on both
sides, and the rate at which the memory store alone takes the same bytes, in memory that was never used before and that
the system has to clear. Processor seconds are for a gigabyte: producer, gRPC and offloader share the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from offloader.runtime.system import keep_heap_small

if "--serve" in sys.argv:
    keep_heap_small()  # as `offloader serve` does, before Arrow is loaded

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from formats.entries import Position
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import Assembled, assemble
from offloader.service.flight.messages import ENTRY_SCHEMA
from offloader.service.process import RecentErrors
from offloader.service.providers.flight import FlightProvider
from offloader.settings.layered import SettingsFile
from offloader.store.open import open_store

#: Entries of one ledger, so that ledgers end now and then as they do at a broker.
LEDGER_ENTRIES = 1_000_000
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Round:
    """Megabytes of payload a second until all was taken and until all was durable; processor seconds of the producer
    and of the server for a gigabyte."""

    taken_mb_s: float
    durable_mb_s: float
    producer_cpu_s: float
    server_cpu_s: float


class Dropping(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Receives, answers, drops."""

    def do_put(self, _context: object, _: object, reader: fl.MetadataRecordBatchReader, writer: object) -> None:
        number, last = 0, None
        self.answer(writer, None, None)
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            number += 1
            ledger_ids, entry_ids = chunk.data.column(0), chunk.data.column(1)
            last = str(Position(ledger_ids[len(ledger_ids) - 1].as_py(), entry_ids[len(entry_ids) - 1].as_py()))
            self.answer(writer, number, last)

    def answer(self, writer: object, number: int | None, last: str | None) -> None:
        said = {"batch": number, "taken": last, "durable": last}
        writer.write(pa.py_buffer(json.dumps(said).encode()))  # type: ignore[attr-defined]


def serve(kind: str) -> None:
    """One server, until standard input ends. Prints its port, then for each line that comes its processor seconds."""
    if kind == "drop":
        server = Dropping("grpc://127.0.0.1:0")
        port, end = server.port, server.shutdown
    else:
        feeds: list[FlightProvider] = []

        def feed(parts: Assembled) -> list[FlightProvider]:
            feeds.append(
                FlightProvider(
                    parts.settings, parts.store, credentials=parts.credentials, control=parts.control, clock=parts.clock
                )
            )
            return feeds

        values = {
            "flight.listen": "127.0.0.1:0",
            "offload.method": "streaming",
            "offload.segment_size_max": "64.0MiB",
            "serve.maintenance": False,
        }
        process = assemble(
            SettingsFile("bench", {"": values}),
            clock=SystemClock(),
            recent=RecentErrors(),
            store=open_store("memory://bench"),
            feeds=feed,
        ).process
        process.start()
        port, end = feeds[0].address.port, lambda: process.stop(drain=False)
    print(port, flush=True)
    for _ in sys.stdin:
        print(time.process_time(), flush=True)
    end()


def batches(entries: int, entry_bytes: int) -> tuple[pa.BinaryArray, pa.Array]:
    size_bytes = entries * entry_bytes
    offsets = pa.py_buffer(np.arange(0, size_bytes + 1, entry_bytes, dtype=np.int32))
    data = pa.py_buffer(os.urandom(size_bytes))
    payloads = pa.BinaryArray.from_buffers(pa.binary(), entries, [None, offsets, data])
    return payloads, pa.array(np.full(entries, int(time.time() * 1000))).cast(ENTRY_SCHEMA.field(2).type)


class Listening:
    """What the answers of one call said last."""

    def __init__(self, answers: fl.FlightMetadataReader) -> None:
        self._answers = answers
        self.changed = threading.Condition()
        self.latest: dict[str, object] = {}
        self.thread = threading.Thread(target=self._hear, daemon=True)
        self.thread.start()

    def _hear(self) -> None:
        while (said := self._answers.read()) is not None:
            with self.changed:
                self.latest = json.loads(said.to_pybytes())
                self.changed.notify_all()

    def wait(self, name: str, value: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.latest.get(name) == value, 60), self.latest


def run(kind: str, seconds: float, entries: int, entry_bytes: int) -> Round:
    argv = [sys.executable, __file__, "--serve", kind]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        client = fl.FlightClient(f"grpc://127.0.0.1:{server.stdout.readline().strip()}")

        def server_cpu_s() -> float:
            server.stdin.write("\n")  # type: ignore[union-attr]
            server.stdin.flush()  # type: ignore[union-attr]
            return float(server.stdout.readline())  # type: ignore[union-attr]

        payloads, times = batches(entries, entry_bytes)
        writer, answers = client.do_put(fl.FlightDescriptor.for_path("bench/stream"), ENTRY_SCHEMA)
        listening = Listening(answers)
        ledger_id, entry_id, sent = 1, 0, 0
        last, last_entry_id = "", -1
        cpu_s, theirs_s, started = time.process_time(), server_cpu_s(), time.perf_counter()
        while time.perf_counter() < started + seconds:
            ids = np.arange(entry_id, entry_id + entries)
            columns = [pa.array(np.full(entries, ledger_id)), pa.array(ids), times, payloads]
            note = b""
            if entry_id == 0 and ledger_id > 1:
                note = json.dumps({"closed": {str(ledger_id - 1): last_entry_id}}).encode()
            writer.write_with_metadata(pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA), note)
            sent += entries
            last, last_entry_id = str(Position(ledger_id, int(ids[-1]))), int(ids[-1])
            entry_id += entries
            if entry_id >= LEDGER_ENTRIES:
                ledger_id, entry_id = ledger_id + 1, 0
        listening.wait("taken", last)
        taken_s = time.perf_counter() - started
        if kind != "drop":
            body = json.dumps({"stream": "bench/stream", "timeout_s": 60}).encode()
            list(client.do_action(fl.Action("offload", body)))
        listening.wait("durable", last)
        durable_s = time.perf_counter() - started
        cpu_s, theirs_s = time.process_time() - cpu_s, server_cpu_s() - theirs_s
        writer.done_writing()
        listening.thread.join()
        writer.close()
        client.close()
        server.stdin.close()
    mb = sent * entry_bytes / 1e6
    return Round(mb / taken_s, mb / durable_s, cpu_s / mb * 1000, theirs_s / mb * 1000)


def store_mb_s(mib: int = 1024) -> float:
    """The memory store alone: objects of 64 MiB in parts of 16."""
    store, part = open_store("memory://bench-alone"), os.urandom(16 * MIB)
    started = time.perf_counter()
    for number in range(mib // 64):
        key = f"object-{number}"
        upload = store.begin_upload(key)
        parts = [store.upload_part(key, upload, each, part) for each in range(1, 5)]
        store.complete_upload(key, upload, parts)
    return mib * MIB / 1e6 / (time.perf_counter() - started)


def measure(seconds: float, rounds: int, entries: int, entry_bytes: int) -> dict[str, object]:
    found: dict[str, list[Round]] = {"drop": [], "offload": []}
    for _ in range(rounds):
        for kind, each in found.items():
            each.append(run(kind, seconds, entries, entry_bytes))
    middle = {
        kind: {name: round(statistics.median(asdict(one)[name] for one in each), 2) for name in asdict(each[0])}
        for kind, each in found.items()
    }
    ratio = middle["offload"]["durable_mb_s"] / middle["drop"]["durable_mb_s"]
    alone = {"memory_store_mb_s": round(store_mb_s(), 2)}
    return {**middle, **alone, "durable_of_drop": round(ratio, 3), "entry_bytes": entry_bytes, "cores": os.cpu_count()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--batch-entries", type=int, default=1024)
    parser.add_argument("--serve", choices=["drop", "offload"], help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.serve:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            serve(given.serve)
        return
    found = measure(given.seconds, given.rounds, given.batch_entries, given.entry_bytes)
    print(json.dumps(found) if given.json else json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
