"""Pulsar's V5 client in a process of its own, which produces to scalable topics and consumes them.

with running_scalable_client(folder, broker.service_url) as client:
    client.produce("topic://public/default/orders", count=1_000, keys=10, prefix="a")["k0"]
    client.checkpoint("topic://public/default/orders", count=1_000)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from services.pulsar.asked import AskedProcess
from services.pulsar.build import SCALABLE, find_place

__all__ = ["ScalableClient", "SegmentMessage", "running_scalable_client"]

#: One question about many messages.
LONG_S = 900.0
#: A consumer has all messages if none comes for so long.
QUIET_S = 10


class SegmentMessage(NamedTuple):
    """One message as a consumer received it; ``segment`` is the id of the segment that has it."""

    segment: int
    key: str
    value: str


class ScalableClient(AskedProcess):
    """The process. Questions are answered one after the other: use two processes to consume while producing."""

    def produce(
        self, topic: str, *, count: int, keys: int, prefix: str, rate: int = 0, timeout_s: float = LONG_S
    ) -> Mapping[str, Sequence[str]]:
        """Sends ``prefix-0`` and on with the keys ``k0`` to ``k(keys-1)`` in turn.

        Returns key -> the values that the broker acknowledged, in the order of sending.

        Args:
            rate: messages a second; 0: as fast as possible.
        """
        found: Mapping[str, Sequence[str]] = self.ask(f"produce {topic} {count} {keys} {prefix} {rate}", timeout_s)
        return found

    def stream(self, topic: str, subscription: str, *, count: int, quiet_s: int = QUIET_S) -> list[SegmentMessage]:
        """What a StreamConsumer receives and acknowledges, until it has ``count`` messages or none comes."""
        return self._received(f"stream {topic} {count} {quiet_s} {subscription}")

    def queue(self, topic: str, subscription: str, *, count: int, quiet_s: int = QUIET_S) -> list[SegmentMessage]:
        """The same of a QueueConsumer."""
        return self._received(f"queue {topic} {count} {quiet_s} {subscription}")

    def checkpoint(self, topic: str, *, count: int, quiet_s: int = QUIET_S) -> list[SegmentMessage]:
        """The same of a CheckpointConsumer, which has no subscription and follows no order between segments."""
        return self._received(f"checkpoint {topic} {count} {quiet_s}")

    def _received(self, question: str) -> list[SegmentMessage]:
        return [SegmentMessage(*each) for each in self.ask(question, LONG_S)]


@contextlib.contextmanager
def running_scalable_client(folder: Path, service_url: str) -> Iterator[ScalableClient]:
    """The client for the length of a block.

    Args:
        folder: for its log; made when it isn't there.
        service_url: of a broker with scalable topics.

    Raises:
        Unavailable: it can't be had, or didn't start in time.
    """
    started = ScalableClient.started("RealScalable", find_place(SCALABLE, build=True), folder, [service_url], {})
    try:
        started.await_ready()
        yield started
    finally:
        started.close()
