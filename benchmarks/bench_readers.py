"""Two readers of one ledger beside one, far from the store, and how busy the machine is meanwhile.

    python benchmarks/bench_readers.py [--server versitygw|minio] [--mib 1024] [--delay-ms 30 60 100] [--in-flight 4]
                                       [--rounds 3] [--proxy] [--json]

Readers don't share anything but the store and this machine, so two of them should read twice as much as one until one
of these is the limit. Here client and server are on the same cores: the machine is the limit long before a real store
would be. So each figure stands beside two shares: of all cores' time, how much was taken while it was measured
(``busy``), and of that time, how much of it somebody stood ready and had to wait for a core (``waited``; the kernel's
own account, where it keeps one); and beside two bare readers (boto3's ranged GETs of the same ranges, not checked or
decoded) in the same turns. A request of 16 MiB waits ``--delay-ms`` before it is sent; ``--in-flight`` of them are open
at once in each reader. With ``--proxy`` it waits in a process in between instead, through which all bytes go: that
costs as much processor as the reader. Two readers are two threads of one process (``scan``) or two processes
(``processes``). Medians; 1 KiB entries.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from botocore.httpsession import URLLib3Session

from benchmarks.bench_read import BUCKET, S3_URL, all_runs, bare_get_of, opened_store, seconds, store_at, write_stream
from offloader.read.fetch import BlockRun
from offloader.read.reader import Reader, open_stream_reader
from offloader.settings import Pairs, ReadSettings
from services.slow_proxy import slowed

STREAM = "bench-readers"
ENTRY_BYTES = 1024
#: Fields of the first line of /proc/stat: of what all cores did, which of it was nothing.
_FIELDS = slice(1, 9)
_IDLE = slice(3, 5)
#: How long somebody had to wait for a core, in microseconds: the last field of its first line.
_PRESSURE = Path("/proc/pressure/cpu")


@dataclass(frozen=True, slots=True)
class Ticket:
    """What one measurement found."""

    mb_s: float
    busy: float
    waited: float


def core_ticks() -> tuple[int, int]:
    """All cores' time so far, and how much of it was idle."""
    ticks = list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[_FIELDS]))
    return sum(ticks), sum(ticks[_IDLE])


def waited_s() -> float:
    """How long so far somebody stood ready to compute and no core was free; not a number where nobody counts it."""
    if not _PRESSURE.exists():
        return math.nan
    return int(_PRESSURE.read_text().partition("\n")[0].rpartition("total=")[2]) / 1e6


def measured(work: Callable[[], object], moved_bytes: int) -> Ticket:
    before, waited_before_s = core_ticks(), waited_s()
    taken_s = seconds(work)
    after, waited = core_ticks(), (waited_s() - waited_before_s) / taken_s
    return Ticket(moved_bytes / 1e6 / taken_s, 1 - (after[1] - before[1]) / max(1, after[0] - before[0]), waited)


@contextmanager
def requests_wait(delay_s: float) -> Iterator[float]:
    """Lets every request of this process wait before it is sent, whoever sends it: what the way to a server that is far
    away does, and nothing else."""
    send = URLLib3Session.send

    def later(session: URLLib3Session, request: object) -> object:
        time.sleep(delay_s)  # the way to a server that is far away
        return send(session, request)

    URLLib3Session.send = later
    try:
        yield delay_s
    finally:
        URLLib3Session.send = send


def settings_of(in_flight: int) -> ReadSettings:
    # The manifest names the server without the way to it.
    return ReadSettings(relocate=Pairs({BUCKET: BUCKET}), requests_in_flight_max=in_flight)


def scan(reader: Reader) -> int:
    return sum(map(len, reader.scan()))


def scan_when_told(given: dict[str, str], delay_s: float, in_flight: int, orders: Connection) -> None:
    """A reader in a process of its own: scans each time it is told to, ends when nobody can tell it any more."""
    store = store_at(S3_URL, given)
    reader = open_stream_reader(store, STREAM, settings=settings_of(in_flight))
    with requests_wait(delay_s):
        while True:
            orders.send(scan(reader))
            try:
                orders.recv()
            except EOFError:
                return


@contextmanager
def reading_processes(given: dict[str, str], delay_s: float, in_flight: int) -> Iterator[list[Connection]]:
    """Two processes that scan, each having scanned once."""
    context = multiprocessing.get_context("spawn")
    ends = []
    processes = []
    for _ in range(2):
        own, other = context.Pipe()
        process = context.Process(target=scan_when_told, args=(given, delay_s, in_flight, other))
        process.start()
        other.close()
        ends.append(own)
        processes.append(process)
    try:
        for end in ends:
            end.recv()
        yield ends
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join()


def told(ends: list[Connection]) -> None:
    for end in ends:
        end.send(None)
    for end in ends:
        end.recv()


def both(work: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


def compared(
    given: dict[str, str], delay_s: float, in_flight: int, rounds: int
) -> dict[str, list[tuple[Ticket, Ticket]]]:
    """Of each way to read: one reader and two of them, in turns; a round that doesn't count goes before."""
    store = store_at(S3_URL, given)
    bare = bare_get_of(store, given)
    readers = [open_stream_reader(store, STREAM, settings=settings_of(in_flight)) for _ in range(2)]
    runs = all_runs(store, STREAM, settings_of(in_flight))
    moved = sum(run.stop - run.start for run in runs)

    def get(run: BlockRun) -> int:
        return bare(run.objects.data_key, run.start, run.stop)

    def bare_reader(_: int) -> None:
        with ThreadPoolExecutor(in_flight) as pool:
            assert sum(pool.map(get, runs)) == moved

    with reading_processes(given, delay_s, in_flight) as ends:
        ways: Mapping[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "bare": (lambda: bare_reader(0), lambda: both(bare_reader)),
            "scan": (lambda: scan(readers[0]), lambda: both(lambda number: scan(readers[number]))),
            "processes": (lambda: told(ends[:1]), lambda: told(ends)),
        }
        found: dict[str, list[tuple[Ticket, Ticket]]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, (one, two) in ways.items():
                pair = measured(one, moved), measured(two, 2 * moved)
                if turn:
                    found[name].append(pair)
    store.close()
    return found


def said(name: str, pairs: list[tuple[Ticket, Ticket]]) -> dict[str, object]:
    ones, twos = zip(*pairs, strict=True)
    one_mb_s, two_mb_s = (statistics.median(turn.mb_s for turn in turns) for turns in (ones, twos))
    return {
        "way": name,
        "one_mb_s": round(one_mb_s),
        "one_busy": round(statistics.median(turn.busy for turn in ones), 2),
        "one_waited": round(statistics.median(turn.waited for turn in ones), 2),
        "two_mb_s": round(two_mb_s),
        "two_busy": round(statistics.median(turn.busy for turn in twos), 2),
        "two_waited": round(statistics.median(turn.waited for turn in twos), 2),
        "two_to_one": round(two_mb_s / one_mb_s, 2),
        "of_each_round": " ".join(f"{two.mb_s / one.mb_s:.2f}" for one, two in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=["minio", "versitygw"], default="versitygw")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--delay-ms", type=float, nargs="+", default=[30.0, 60.0, 100.0])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--proxy", action="store_true", help="requests wait in a process in between")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened_store(arguments.server, folder) as (store, given):
        write_stream(store, STREAM, ENTRY_BYTES, arguments.mib << 20)
        for delay_ms, in_flight in itertools.product(arguments.delay_ms, arguments.in_flight):
            way = (
                slowed(given["endpointUrl"], delay_ms=delay_ms)
                if arguments.proxy
                else nullcontext(given["endpointUrl"])
            )
            with way as url, requests_wait(0.0 if arguments.proxy else delay_ms / 1000) as delay_s:
                found = compared({**given, "endpointUrl": url}, delay_s, in_flight, arguments.rounds)
            for name, pairs in found.items():
                row = {"delay_ms": delay_ms, "in_flight": in_flight, **said(name, pairs)}
                text = "  ".join(f"{label} {value}" for label, value in row.items())
                print(json.dumps(row) if arguments.json else text, flush=True)


if __name__ == "__main__":
    main()
