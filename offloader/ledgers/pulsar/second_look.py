"""A second look at entries that a broker lists and didn't give: whether nobody gets them, or they came to grief.

Owns that question to the broker. Must never call an entry undelivered because it was passed over once, nor lost because
something didn't answer.
"""

from __future__ import annotations

from collections.abc import Callable

from formats.entries import Position
from offloader.clock import Clock
from offloader.errors import StoreUnavailable
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.entry_fate import EntryFate

__all__ = ["PassedOver", "SecondLook"]

#: Entries of a run that the broker is asked about one by one; of a longer one so many, its first and last among them.
ENTRIES_ASKED_MAX = 16
#: Longest wait for the first entry of the reading that is repeated.
READ_S_MAX = 15.0


class PassedOver(StoreUnavailable):
    """A reader was not given what another one gets: what it brought can't be believed, read again."""


class SecondLook:
    """Of one topic. Thread-safe.

    A run of entries is undelivered when the broker says so of each of them, or when a second reader, which begins with
    the run's first entry, is given the same next entry as the first one was, and nothing that is known of the run
    speaks against it.

    Args:
        topic: its name, for errors.
        fate_of: the broker's admin interface, of one entry.
        open_reader: a reader of the topic that begins at a position.
        clock: of waits.
    """

    def __init__(
        self,
        topic: str,
        *,
        fate_of: Callable[[Position], EntryFate],
        open_reader: Callable[[Position], Consumer],
        clock: Clock,
    ) -> None:
        self._topic, self._fate_of, self._open_reader, self._clock = topic, fate_of, open_reader, clock

    def is_lost(self, ledger_id: int, first: int, last: int, following: Position) -> bool:
        """Whether a run was lost by the broker; else nobody ever gets it.

        Args:
            ledger_id, first, last: entries that the broker lists and didn't give.
            following: what it gave next.

        Raises:
            PassedOver: it gives some of them to a second reader.
            StoreUnavailable: it didn't answer, or it has them and gives them to nobody: nothing was decided.
        """
        asked = _spread(first, last)
        fates = {each: self._fate_of(Position(ledger_id, each)) for each in asked}
        if len(asked) == last + 1 - first and set(fates.values()) == {EntryFate.UNDELIVERED}:
            return False
        self._read_again(Position(ledger_id, first), following)
        if EntryFate.LOST in fates.values():
            return True
        there = next((each for each, fate in fates.items() if fate is EntryFate.READABLE), None)
        if there is not None:
            raise StoreUnavailable(
                f"{self._topic}: the broker has {ledger_id}:{there}, which is neither a marker nor part of an aborted "
                f"transaction, and goes on at {following} without giving it",
                hint="nothing is given up meanwhile; has the namespace an entry filter that works on readers?",
            )
        return False

    def _read_again(self, first: Position, following: Position) -> None:
        reader = self._open_reader(first)
        try:
            deadline_s = self._clock.monotonic_s() + READ_S_MAX
            came = reader.take(READ_S_MAX)
            while not came and (left_s := deadline_s - self._clock.monotonic_s()) > 0:
                came = reader.take(left_s)
        finally:
            reader.close()
        if not came:
            raise StoreUnavailable(f"{self._topic}: the broker gave nothing from {first} on when it was asked again")
        if came[0].position != following:
            raise PassedOver(
                f"{self._topic}: the broker went on at {following} after it was asked for {first}, and the second time "
                f"at {came[0].position}",
                hint="it is read again from there",
            )


def _spread(first: int, last: int) -> list[int]:
    """Numbers from ``first`` to ``last``, all of them if they are few."""
    steps = min(last - first, ENTRIES_ASKED_MAX - 1)
    return [first + (last - first) * step // steps for step in range(steps + 1)] if steps else [first]
