"""What the tests of embedded ledgers share: a clock they turn, and whole-stream reads."""

from __future__ import annotations

from formats.entries import Position
from offloader.ledgers.sqlite.embedded import EmbeddedStream
from offloader.runtime.clock import SystemClock

START_MS = 1_700_000_000_000


class TurnedClock(SystemClock):
    """A wall clock that moves only when told."""

    def __init__(self) -> None:
        self.time_ms = START_MS

    def now_ms(self) -> int:
        return self.time_ms


def read_all(
    stream: EmbeddedStream, start: Position = Position(0, 0), max_bytes: int = 1 << 20
) -> list[tuple[Position, bytes, int]]:
    """[(position, payload, time)] from ``start`` on."""
    found = []
    while (batch := stream.read(start, max_bytes)) is not None:
        found += [(entry.position, entry.payload, entry.publish_time_ms) for entry in batch.entries()]
        start = batch.last.next()
    return found


def payloads_of(stream: EmbeddedStream) -> list[bytes]:
    return [payload for _, payload, _ in read_all(stream)]
