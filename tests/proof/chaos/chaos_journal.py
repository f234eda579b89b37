"""What an appender did, as it wrote it down, and what it appended: the truth that everything else is compared with.

It imports nothing of this project.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SIZES", "Journal", "JournalWriter", "number_of", "payload_of", "read_journal"]

#: Streams of a run, and the bytes of each of their payloads.
SIZES: Mapping[str, int] = {"chaos/live": 300, "chaos/short": 500, "chaos/history": 32 * 1024}

Position = tuple[int, int]


def payload_of(stream: str, number: int) -> bytes:
    """The payload that has ``number``: all of it follows from stream and number."""
    text = b"%s %012d " % (stream.encode(), number)
    size = SIZES[stream]
    return (text * (size // len(text) + 1))[:size]


def number_of(stream: str, payload: bytes) -> int | None:
    """The number of a payload; ``None``: nobody appended these bytes."""
    try:
        number = int(payload.split(b" ", 2)[1])
    except (IndexError, ValueError):
        return None
    return number if payload == payload_of(stream, number) else None


@dataclass(slots=True)
class Journal:
    """What was done to one stream.

    Attributes:
        tried: numbers that were about to be appended.
        acked: number -> where it is, as the call said that returned.
        refused: numbers of calls that promised that nothing was written.
    """

    tried: set[int] = field(default_factory=set)
    acked: dict[int, Position] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)

    @property
    def next_number(self) -> int:
        """The first one that was never tried."""
        return max(self.tried, default=-1) + 1


class JournalWriter:
    """Appends to a journal; each line is with the system, and so survives the process, when a call returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def tried(self, stream: str, first: int, count: int) -> None:
        self._line(f"tried {stream} {first} {count}")

    def refused(self, stream: str, first: int, count: int) -> None:
        self._line(f"refused {stream} {first} {count}")

    def acked(self, stream: str, first: int, positions: list[Position]) -> None:
        self._line(f"acked {stream} {first} {' '.join(f'{ledger}:{entry}' for ledger, entry in positions)}")

    def _line(self, text: str) -> None:
        os.write(self._file, f"{text}\n".encode())


def read_journal(path: Path) -> dict[str, Journal]:
    """What all appenders so far wrote, by stream; a last line without its end is none."""
    found = {stream: Journal() for stream in SIZES}
    if not path.exists():
        return found
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            continue
        what, stream, first, *rest = line.split()
        journal, start = found[stream], int(first)
        if what == "acked":
            for number, place in enumerate(rest, start):
                ledger, _, entry = place.partition(":")
                journal.acked[number] = (int(ledger), int(entry))
        else:
            numbers = range(start, start + int(rest[0]))
            (journal.tried if what == "tried" else journal.refused).update(numbers)
    return found
