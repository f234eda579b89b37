"""The topic that a replay goes to, as it is: what of the replay is in it already.

Owns looking. Must never write to it, nor take for absent what it couldn't read.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from formats.entries import Position
from formats.pulsar.frame import decode_frame
from offloader.clock import Clock
from offloader.errors import StoreUnavailable
from offloader.ledgers.pulsar.client import PulsarClient
from offloader.ledgers.pulsar.consumer import Consumer

__all__ = ["Found", "Target"]

_READER = "offloader-replay-looks"
_EARLIEST = Position(-1, -1)
#: How long a broker may send nothing of what it says it has.
SILENCE_S_MAX = 30.0
_TAKE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look at the target found.

    Attributes:
        number: the highest sequence id of the producer's entries; -1: there is none of its.
        repeated: how many of its entries have a sequence id at or below one that is before them.
        end: the target's newest entry; ``None``: there is none.
        is_whole: whether everything from where the look began is still there: else some of it may have been the
            replay's.
    """

    number: int
    repeated: int
    end: Position | None
    is_whole: bool


class Target:
    """One topic, or one partition of one.

    Args:
        client: of the cluster.
        topic: its name.
        clock: of waits.
    """

    def __init__(self, client: PulsarClient, topic: str, clock: Clock) -> None:
        self.topic = topic
        self._client = client
        self._clock = clock

    def end(self) -> Position | None:
        """The newest entry; ``None``: there is none."""
        with closing(self._reader(_EARLIEST)) as reader:
            return reader.last_position()

    def look(self, producer_name: str, start: Position | None) -> Found:
        """What a producer has stored from ``start`` on, until the target's end as it is now.

        Args:
            producer_name: of the entries that count.
            start: an entry of the target; ``None``: its beginning.

        Raises:
            StoreUnavailable: it can't be read to its end; nothing is known then.
            FormatError: an entry is damaged.
        """
        begin = start or _EARLIEST
        with closing(self._reader(begin)) as reader:
            end = reader.last_position()
            if end is None or (start is not None and end < start):
                return Found(number=-1, repeated=0, end=end, is_whole=start is None)
            number, repeated, first, at, silent_s = -1, 0, None, _EARLIEST, 0.0
            while at < end:
                before_s = self._clock.monotonic_s()
                taken = reader.take(_TAKE_S)
                silent_s = 0.0 if taken else silent_s + max(self._clock.monotonic_s() - before_s, _TAKE_S)
                if silent_s > SILENCE_S_MAX:
                    raise StoreUnavailable(
                        f"{self.topic}: its broker says it has {end}, and sends nothing behind {at}",
                        hint="try again; nothing was sent",
                    )
                for delivery in taken:
                    first = first or delivery.position
                    at = delivery.position
                    metadata = decode_frame(delivery.entry).metadata
                    if metadata.producer_name == producer_name:
                        repeated += metadata.sequence_id <= number
                        number = max(number, metadata.sequence_id)
            return Found(number=number, repeated=repeated, end=end, is_whole=start is None or first == start)

    def _reader(self, start: Position) -> Consumer:
        return Consumer(self._client, self.topic, _READER, start=start, clock=self._clock)
