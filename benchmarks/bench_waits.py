"""What people wait for, beside bare boto3 in the same run: whole commands, first entries, appends, listings.

    python benchmarks/bench_waits.py [--only NAME ...] [--mib 1024] [--rounds 3] [--delay-ms 0 30] [--json]

``offload``: ``offloader stream offload`` of a ledger database, from start to exit, beside bare multipart uploads of as
many bytes (parts of 16 MiB, eight at once). ``append``: 4,096 entries of 1 KiB a call, durable, with streaming offload
on and off. ``scan``: from opening a stream to its last batch, beside bare GETs (4 MiB, four at once). ``requests``:
the longest chain of requests that wait for each other, in a new process, each 30 ms away. ``commands``: ``ls`` and
``--help`` beside a Python that imports NumPy and Arrow.

Medians of rounds in turns, after one that doesn't count. The server shares the cores: compare the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import pyarrow as pa

from benchmarks.s3_rig import BUCKET, MIB, Rig, bare_uploads, rig, through
from formats.checksum import crc32c
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.read.reader import open_stream_reader
from offloader.runtime.system import THREAD_SWITCH_S
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import Request, StoreWrapper
from services.servers import Endpoint

ROOT = Path(__file__).parent.parent
PARTS = ("offload", "append", "scan", "requests", "commands")
STREAM = "bench/waits"
ENTRY_BYTES = 1024
CALL_ENTRIES = 4096
PART_BYTES, PARTS_IN_FLIGHT = 16 * MIB, 8
GET_BYTES, GETS_IN_FLIGHT = 4 * MIB, 4
#: Added to each request while chains are counted: much more than anything else takes.
CHAIN_DELAY_MS = 30.0

_Answer = TypeVar("_Answer")


def entries(count: int, seed: int) -> pa.BinaryArray:
    """Random payloads, so that nothing can be compressed."""
    data = np.random.default_rng(seed).bytes(count * ENTRY_BYTES)
    offsets = np.arange(count + 1, dtype=np.int32) * ENTRY_BYTES
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


@dataclass(frozen=True, slots=True)
class Place:
    """A running server, and the URL under which it is asked."""

    rig: Rig
    url: str

    def environment(self) -> dict[str, str]:
        endpoint = self.rig.endpoint
        return os.environ | {
            "AWS_ACCESS_KEY_ID": endpoint.access_key,
            "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
            "AWS_REGION": "us-east-1",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "",
        }

    def store(self, root: str = "waits", **options: Any) -> ObjectStore:
        endpoint = self.rig.endpoint
        keys: dict[str, Any] = {"access_key": endpoint.access_key, "secret_key": endpoint.secret_key}
        return open_store(f"s3://{BUCKET}/{root}", endpoint_url=self.url, **keys, **options)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(rounds: int, works: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Seconds of each work in each round; the first round doesn't count, and they take turns in being first."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name in list(works)[:: 1 if number % 2 else -1]:
            taken = works[name]()
            if number:
                found[name].append(taken)
    return found


def forget_stores(database: Path) -> None:
    """Lets the ledgers go into another store: each round has one of its own."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM manifests")
        connection.execute("UPDATE streams SET store_id = NULL")


def offload(place: Place, database: Path, mib: int, rounds: int) -> Mapping[str, object]:
    """Whole command against bare uploads of the same payload.

    ``limit``: a bare program that reads the database too; ``format_limit``: one that also makes Pulsar's entries.
    """
    body = np.random.default_rng(1).bytes(4 * PART_BYTES)
    parts = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]
    client = place.rig.client(place.url)

    def command() -> float:
        root = uuid4().hex
        given = ["--store", f"s3://{BUCKET}/{root}", "--endpoint-url", place.url, "--ledgers", f"sqlite:///{database}"]
        line = [sys.executable, "-m", "offloader", "stream", "offload", STREAM, *given]
        taken = seconds(lambda: subprocess.run(line, env=place.environment(), check=True, stdout=subprocess.DEVNULL))
        place.rig.clean()
        forget_stores(database)
        return taken

    def bare() -> float:
        taken = seconds(lambda: bare_uploads(client, parts, [mib * MIB], PART_BYTES, PARTS_IN_FLIGHT))
        place.rig.clean()
        return taken

    def limit(*entry_bytes: str) -> float:
        line = [
            sys.executable,
            str(ROOT / "benchmarks/bare_offload.py"),
            str(database),
            place.url,
            BUCKET,
            *entry_bytes,
        ]
        taken = seconds(lambda: subprocess.run(line, env=place.environment(), check=True))
        place.rig.clean()
        return taken

    with contextlib.closing(client):
        format_limit = partial(limit, str(ENTRY_BYTES))
        found = in_turns(rounds, {"ours": command, "bare": bare, "limit": limit, "format_limit": format_limit})
    return rates(found, mib)


def rates(found: Mapping[str, list[float]], mib: int) -> dict[str, object]:
    """MB/s of payload, and what part of the bare rate ours is."""
    middle = {name: statistics.median(taken) for name, taken in found.items()}
    return {
        "ours_mb_s": round(mib * MIB / 1e6 / middle["ours"]),
        "bare_mb_s": round(mib * MIB / 1e6 / middle["bare"]),
        "ratio": round(middle["bare"] / middle["ours"], 2),
        "ratios": [round(b / o, 2) for o, b in zip(found["ours"], found["bare"], strict=True)],
    } | {f"{name}_ratio": round(middle["bare"] / taken, 2) for name, taken in middle.items() if "limit" in name}


def append(place: Place, mib: int, rounds: int) -> Mapping[str, object]:
    """Durable appends with offloading on, beside the same with it off.

    ``limit``: off, while bare boto3 uploads as many bytes from another process: what the machine has left for appends
    when nothing but the upload itself is paid for.
    """
    chunk = entries(CALL_ENTRIES, 2)
    calls = mib * MIB // (CALL_ENTRIES * ENTRY_BYTES)

    def run(method: str, *, clean: bool = True) -> float:
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(place.store(uuid4().hex)) as store:
            settings = Settings.of({"offload": {"method": method}})
            ledgers = f"sqlite:///{folder}/ledgers.db"
            ledger = open_managed_ledger(STREAM, ledgers=ledgers, store=store, settings=settings)

            def work() -> None:
                for _ in range(calls):
                    ledger.append_batch(chunk)

            taken = seconds(work)
            ledger.close(drain=False)
        if clean:
            place.rig.clean()
        return taken

    def beside_bare() -> float:
        line = [sys.executable, __file__, "--count", "upload", "--url", place.url, "--mib", str(mib)]
        with subprocess.Popen(line, env=place.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as uploader:
            assert uploader.stdout is not None
            assert uploader.stdin is not None
            uploader.stdout.readline()  # it is ready
            uploader.stdin.write(b"go\n")
            uploader.stdin.flush()
            taken = run("none", clean=False)
            uploader.stdin.close()
        place.rig.clean()
        return taken

    works: dict[str, Callable[[], float]] = {
        "ours": partial(run, "streaming"),
        "bare": partial(run, "none"),
        "limit": beside_bare,
    }
    found = in_turns(rounds, works)
    return {name.replace("bare", "off"): value for name, value in rates(found, mib).items()}


def scan(place: Place, mib: int, rounds: int) -> Mapping[str, object]:
    """From opening to the last batch, against bare GETs of the data objects; ``limit``: with a CRC-32C and a copy."""
    client = place.rig.client(place.url)
    with contextlib.closing(place.store()) as store:
        sizes = [
            (f"waits/{STREAM}/{segment.uuid}", segment.summary.data_bytes)
            for segment in load_manifest(store, STREAM).segments.in_order()
            if segment.summary is not None
        ]
        ranges = [(key, at, min(at + GET_BYTES, size)) for key, size in sizes for at in range(0, size, GET_BYTES)]

        def ours() -> float:
            def work() -> None:
                with open_stream_reader(store, STREAM) as reader:
                    found = sum(len(batch) for batch in reader.scan())
                assert found == mib * MIB // ENTRY_BYTES, found

            return seconds(work)

        def get(wanted: tuple[str, int, int]) -> int:
            key, start, stop = wanted
            answer = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={start}-{stop - 1}")
            return len(answer["Body"].read())

        def bare() -> float:
            with ThreadPoolExecutor(GETS_IN_FLIGHT) as threads:
                return seconds(lambda: sum(threads.map(get, ranges)))

        def get_and_copy(wanted: tuple[str, int, int]) -> int:
            key, start, stop = wanted
            answer = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={start}-{stop - 1}")
            data = answer["Body"].read()
            return crc32c(data) + len(np.frombuffer(data, dtype=np.uint8).copy())

        def limit() -> float:
            with ThreadPoolExecutor(GETS_IN_FLIGHT) as threads:
                return seconds(lambda: sum(threads.map(get_and_copy, ranges)))

        with contextlib.closing(client):
            return rates(in_turns(rounds, {"ours": ours, "bare": bare, "limit": limit}), mib)


class ChainStore(StoreWrapper):
    """Notes when each request begins and ends, for the longest chain of those that wait for each other."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.calls: list[tuple[float, float, str, str]] = []

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        begun = time.monotonic()
        try:
            return call()
        finally:
            with self._lock:
                self.calls.append((begun, time.monotonic(), request.verb, request.key))

    def chain(self, until: Callable[[str, str], bool] = lambda _verb, _key: False) -> int:
        """Requests of the longest chain, up to the first for which ``until`` holds; those of the probe don't count."""
        lengths: list[tuple[float, int]] = []
        for begun, ended, verb, key in sorted(self.calls):
            if key.startswith("_probe/"):
                continue
            lengths.append((ended, 1 + max((length for end, length in lengths if end <= begun), default=0)))
            if until(verb, key):
                break
        return max((length for _, length in lengths), default=0)


def upload_beside(rig: Rig, url: str, mib: int) -> None:
    """Uploads as many bytes with bare boto3 after a line on standard input; runs in its own process."""
    body = np.random.default_rng(1).bytes(4 * PART_BYTES)
    client = rig.client(url)
    print("ready", flush=True)
    sys.stdin.readline()
    parts = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]
    bare_uploads(client, parts, [mib * MIB], PART_BYTES, PARTS_IN_FLIGHT)


def count_requests(url: str, part: str, mib: int) -> None:
    """Prints the longest chain: runs in a process of its own, which has opened nothing yet."""
    named = {"access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY"}
    keys: dict[str, Any] = {option: os.environ[name] for option, name in named.items()}
    if part == "upload":
        upload_beside(Rig(Endpoint("s3", url, *keys.values()), 0, ROOT), url, mib)
        return
    if part == "reader":
        store = ChainStore(open_store(f"s3://{BUCKET}/waits", endpoint_url=url, **keys))
        with open_stream_reader(store, STREAM) as reader:
            assert reader.first_position is not None
            next(reader.scan())
        print(store.chain())
        return
    store = ChainStore(open_store(f"s3://{BUCKET}/{uuid4().hex}", endpoint_url=url, **keys))
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.of({"offload": {"segment_size_max": "1MiB"}})
        with open_managed_ledger(
            "new/one", ledgers=f"sqlite:///{folder}/l.db", store=store, settings=settings
        ) as ledger:
            ledger.append_batch(entries(2048, 3))
            ledger.offload()
        print(store.chain(lambda verb, key: verb == "put" and key.endswith("2.json")))


def requests(place: Place) -> Mapping[str, object]:
    found = {}
    for part in ("reader", "writer"):
        line = [sys.executable, __file__, "--count", part, "--url", place.url]
        done = subprocess.run(line, env=place.environment(), check=True, capture_output=True, text=True)
        found[part] = int(done.stdout.split()[-1])
    return found


def commands(rounds: int) -> Mapping[str, object]:
    """Listing an empty local store, and the help, beside what their imports cost at least."""
    with tempfile.TemporaryDirectory() as folder:
        lines = {
            "ls": ["-m", "offloader", "ls", "--store", f"file://{folder}"],
            "help": ["-m", "offloader", "--help"],
            "numpy_and_arrow": ["-c", "import numpy, pyarrow"],
            "python": ["-c", "pass"],
        }

        def run(line: list[str]) -> float:
            # An installed package has its bytecode; the first round, which doesn't count, writes it here.
            environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
            given = {"check": True, "stdout": subprocess.DEVNULL, "env": environment}
            return seconds(lambda: subprocess.run([sys.executable, *line], **given))  # type: ignore[call-overload]

        found = in_turns(3 * rounds, {name: partial(run, line) for name, line in lines.items()})
    return {f"{name}_s": round(statistics.median(taken), 3) for name, taken in found.items()}


@contextlib.contextmanager
def filled(running: Rig, mib: int) -> Iterator[Path]:
    """A ledger database with that much payload."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "ledgers.db"
        place = Place(running, running.endpoint.url)
        with contextlib.closing(place.store("unused")) as store:
            settings = Settings.of({"offload": {"method": "none"}})
            ledgers = f"sqlite:///{database}"
            with open_managed_ledger(STREAM, ledgers=ledgers, store=store, settings=settings) as ledger:
                chunk = entries(CALL_ENTRIES, 4)
                for _ in range(mib * MIB // (CALL_ENTRIES * ENTRY_BYTES)):
                    ledger.append_batch(chunk)
        yield database


def fill_store(place: Place, database: Path) -> None:
    line = [sys.executable, "-m", "offloader", "stream", "offload", STREAM, "--store", f"s3://{BUCKET}/waits"]
    line += ["--endpoint-url", place.url, "--ledgers", f"sqlite:///{database}"]
    subprocess.run(line, env=place.environment(), check=True, stdout=subprocess.DEVNULL)
    forget_stores(database)


def measure(given: argparse.Namespace, note: Callable[[str, object], None]) -> None:
    if "commands" in given.only:
        note("commands", commands(given.rounds))
    with rig(given.server) as running, filled(running, given.mib) as database:
        for delay_ms in given.delay_ms:
            with through(running, delay_ms) as url:
                place = Place(running, url)
                if "offload" in given.only:
                    note(f"offload +{delay_ms:g} ms", offload(place, database, given.mib, given.rounds))
                if "append" in given.only and not delay_ms:
                    note("append", append(place, given.mib, given.rounds))
                if "scan" in given.only:
                    fill_store(place, database)
                    note(f"scan +{delay_ms:g} ms", scan(place, given.mib, given.rounds))
                    running.clean()
        if "requests" in given.only:
            with through(running, CHAIN_DELAY_MS) as url:
                fill_store(Place(running, url), database)
                note("requests", requests(Place(running, url)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--server", default="minio")
    parser.add_argument("--mib", type=int, default=1024, help="payload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", nargs="*", type=float, default=[0.0, 30.0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--count", choices=("reader", "writer", "upload"), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.setswitchinterval(THREAD_SWITCH_S)  # as commands do
    if given.count:
        count_requests(given.url, given.count, given.mib)
        return
    rows: dict[str, object] = {}

    def note(name: str, row: object) -> None:
        rows[name] = row
        if not given.json:
            print(f"{name:16} {row}", flush=True)

    measure(given, note)
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
