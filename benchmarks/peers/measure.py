"""One peer, one distance to the store: what it reaches, what it costs, what it takes.

It doesn't mix one peer's requests or objects with another's: the bucket is empty before each.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.answering import Place
from benchmarks.peers.bill import Bill, requests_counted
from benchmarks.peers.kinds import Kind, started
from benchmarks.peers.process import ProcessTree
from benchmarks.s3_rig import BUCKET, MIB, Rig, through
from services.answering import AnsweringProcess

__all__ = ["Size", "cell"]

_ANSWER_S = 300.0
_GIB = 1024 * MIB
#: Single entries lie in different pieces of this length, so that none comes with another one's.
_APART_BYTES = MIB
#: What a peer sends after it has answered: a boundary, a lease.
_AFTERWARDS_S = 0.3


@dataclass(frozen=True, slots=True)
class Size:
    """What all peers are offered, and how often; ``warm_mib`` of it before anything counts."""

    mib: int
    entry_bytes: int
    rounds: int
    singles: int
    warm_mib: int

    @property
    def count(self) -> int:
        return self.mib * MIB // self.entry_bytes

    @property
    def size_bytes(self) -> int:
        return self.count * self.entry_bytes

    def numbers(self, at_most: int) -> list[int]:
        """Entries to read one by one, the same ones for all; the first doesn't count."""
        apart = _APART_BYTES // self.entry_bytes
        blocks = list(range(self.count // apart))
        random.Random(8).shuffle(blocks)
        wanted = min(self.singles, at_most or self.singles, len(blocks) - 1)
        return [block * apart + random.Random(block).randrange(apart) for block in blocks[: wanted + 1]]


@dataclass(frozen=True, slots=True)
class _Done:
    """One piece of work: seconds by the peer's own clock, what was requested, and what the process took."""

    seconds: float
    bill: Bill
    memory_mib: float
    own_cpu_s: float
    server_cpu_s: float
    answer: Mapping[str, Any]


class _Watched:
    """A peer whose work is looked at from outside."""

    def __init__(self, rig: Rig, peer: AnsweringProcess) -> None:
        self.rig, self.peer = rig, peer
        self.tree = ProcessTree(peer.process.pid)
        self.idle_mib = self.tree.memory_mib()

    def do(self, question: str) -> _Done:
        before, cpu_s, server_s = requests_counted(self.rig.endpoint.url), self.tree.cpu_s(), self.rig.cpu_s()
        with self.tree.watched() as most:
            answer = self.peer.ask(question, _ANSWER_S)
        cpu_s, server_s = self.tree.cpu_s() - cpu_s, self.rig.cpu_s() - server_s
        time.sleep(_AFTERWARDS_S)
        bill = requests_counted(self.rig.endpoint.url).since(before)
        return _Done(answer.get("seconds", 0.0), bill, most[0] - self.idle_mib, cpu_s, server_s, answer)


def cell(rig: Rig, kind: Kind, delay_ms: float, size: Size, entries_file: Path) -> dict[str, Any]:
    """All that is measured of one peer at one distance.

    Raises:
        Unavailable: it can't be had here.
        ValueError: it read something else than it was offered.
    """
    rig.clean()
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(through(rig, delay_ms))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="offloader-peer-"))
        place = Place(
            url=url,
            access_key=rig.endpoint.access_key,
            secret_key=rig.endpoint.secret_key,
            bucket=BUCKET,
            entries_file=str(entries_file),
            entry_bytes=size.entry_bytes,
            folder=folder,
        )
        peer = started(kind, place, Path(folder) / "peer.log")
        stack.callback(peer.close)
        watched = _Watched(rig, peer)
        warm = size.warm_mib * MIB // size.entry_bytes
        for question in (f"prepare {warm}", "offload", "read"):
            peer.ask(question, _ANSWER_S)

        def offload() -> _Done:
            rig.clean()
            peer.ask(f"prepare {size.count}", _ANSWER_S)
            return watched.do("offload")

        def read() -> _Done:
            return _checked(watched.do("read"), size)

        offloads = _rounds(offload, size.rounds if "offload" not in kind.lacks else 1)
        stored = stored_bytes(rig)
        found: dict[str, Any] = {
            "idle_memory_mib": round(watched.idle_mib),
            "stored_per_byte": stored / size.size_bytes,
        }
        if "offload" not in kind.lacks:
            found["offload"] = _summary(offloads, size)
        if "single" not in kind.lacks:  # before anything is read of which a peer could remember where it lies
            numbers = size.numbers(kind.singles)
            singles = watched.do("single " + " ".join(map(str, numbers)))
            found["single"] = _latencies(singles, len(numbers))
        found["read"] = _summary(_rounds(read, size.rounds), size)
    return found


def _rounds(work: Callable[[], _Done], rounds: int) -> list[_Done]:
    return [work() for _ in range(rounds)]


def _checked(done: _Done, size: Size) -> _Done:
    entries, size_bytes = done.answer["entries"], done.answer["bytes"]
    if size_bytes != size.size_bytes or entries not in (0, size.count):
        raise ValueError(f"read {entries} entries and {size_bytes} bytes instead of {size.count} and {size.size_bytes}")
    return done


def stored_bytes(rig: Rig) -> int:
    """All objects of the bucket together."""
    client = rig.client()
    with contextlib.closing(client):
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return sum(each["Size"] for page in pages for each in page.get("Contents", []))


def _summary(rounds: list[_Done], size: Size) -> dict[str, Any]:
    """Medians, for a GiB of payload where it is an amount."""
    gib, gb = size.size_bytes / _GIB, size.size_bytes / 1e9

    def median(of: Callable[[_Done], float]) -> float:
        return statistics.median(map(of, rounds))

    return {
        "mb_s": median(lambda done: gb * 1000 / done.seconds),
        "mb_s_of_each_round": [round(gb * 1000 / done.seconds, 1) for done in rounds],
        "puts_per_gib": median(lambda done: done.bill.puts / gib),
        "gets_per_gib": median(lambda done: done.bill.gets / gib),
        "usd_per_gib": median(lambda done: done.bill.usd / gib),
        "requests": dict(sorted(rounds[-1].bill.items())),
        "memory_mib": max(done.memory_mib for done in rounds),
        "cpu_s_per_gb": median(lambda done: done.own_cpu_s / gb),
        "server_cpu_s_per_gb": median(lambda done: done.server_cpu_s / gb),
    }


def _latencies(done: _Done, asked: int) -> dict[str, Any]:
    found = sorted(done.answer["ms"])
    return {
        "median_ms": statistics.median(found),
        "p99_ms": found[math.ceil(len(found) * 0.99) - 1],
        "count": len(found),
        "gets_each": done.bill.gets / asked,
    }
