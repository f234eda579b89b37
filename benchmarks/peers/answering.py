"""A peer in a process of its own: it answers what it is told, line by line, and times itself.

It doesn't time what isn't the peer's work.

    python -m benchmarks.peers.answering NAME JSON

prepare COUNT: everything that comes before the first of COUNT entries is offloaded. offload: those; seconds. read:
all of them; seconds, entries, bytes. single NUMBER...: one entry after the other, compared; milliseconds of each.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers.entries import Entries

__all__ = ["Peer", "Place", "bucket_client"]

#: Name -> the module and the class in it.
_PEERS = {
    "ours": ("own", "OurPeer"),
    "boto3": ("bare", "BotoPeer"),
    "s3transfer": ("bare", "TransferPeer"),
    "obstore": ("bare", "ObstorePeer"),
    "spark-ours": ("spark", "SparkOverOurs"),
    "spark-parquet": ("spark", "SparkOverParquet"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is, and which entries there are."""

    url: str
    access_key: str
    secret_key: str
    bucket: str
    entries_file: str
    entry_bytes: int
    folder: str


class Peer(Protocol):
    """What is compared. Made in the process that measures it."""

    def prepare(self, count: int) -> None:
        """Makes ready to offload the first ``count`` entries."""

    def offload(self) -> None:
        """Returns when they are durable and can be read."""

    def read(self) -> tuple[int, int]:
        """All that was offloaded last, once: entries and bytes of payload (entries 0: it doesn't know any)."""

    def open(self) -> None:
        """Makes ready for ``single``."""

    def single(self, number: int) -> bytes:
        """One entry of it."""

    def close(self) -> None:
        """Ends what it began."""


def bucket_client(place: Place) -> Any:
    """Bare boto3, as ``benchmarks.s3_rig`` has it."""
    from benchmarks.s3_rig import Rig
    from services.servers import Endpoint

    return Rig(Endpoint("peers", place.url, place.access_key, place.secret_key), 0, Path(place.folder)).client()


def _single(peer: Peer, entries: Entries, numbers: list[int]) -> Mapping[str, object]:
    peer.open()
    peer.single(numbers[0])  # what is needed for all of them is fetched by now, an index for example
    taken_ms = []
    for number in numbers[1:]:
        started = time.perf_counter()
        found = peer.single(number)
        taken_ms.append((time.perf_counter() - started) * 1e3)
        if found != entries.entry(number):
            raise ValueError(f"entry {number} isn't what was offloaded")
    return {"ms": taken_ms}


def _timed(work: Callable[[], object]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def _answer(peer: Peer, entries: Entries, words: list[str]) -> Mapping[str, object]:
    match words:
        case ["prepare", count]:
            peer.prepare(int(count))
            return {}
        case ["offload"]:
            seconds, _ = _timed(peer.offload)
            return {"seconds": seconds}
        case ["read"]:
            seconds, (count, size_bytes) = _timed(peer.read)
            return {"seconds": seconds, "entries": count, "bytes": size_bytes}
        case ["single", *numbers]:
            return _single(peer, entries, list(map(int, numbers)))
    raise ValueError(f"no such question: {' '.join(words)}")


def main(name: str, place: Place) -> None:
    """Answers until the end of its input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    module, kind = _PEERS[name]
    entries = Entries.of(Path(place.entries_file), place.entry_bytes)
    peer: Peer = getattr(importlib.import_module(f"benchmarks.peers.{module}"), kind)(place, entries)
    try:
        print("{}", file=answers)
        for line in sys.stdin:
            try:
                answer = _answer(peer, entries, line.split())
            except Exception as error:  # whatever somebody else's code raises is the answer
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers)
    finally:
        peer.close()


if __name__ == "__main__":
    main(sys.argv[1], Place(**json.loads(sys.argv[2])))
