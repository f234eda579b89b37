"""A second look at entries that a broker lists and didn't give: markers, lost entries, or entries without explanation.

Owns that question to the broker. Must never call an entry undelivered unless the broker says so of that entry, nor lost
because something didn't answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from formats.entries import Position
from offloader.clock import Clock
from offloader.errors import StoreUnavailable
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.entry_fate import EntryFate

__all__ = ["NotGiven", "PassedOver", "SecondLook"]

#: Longest wait for the first entry of the reading that is repeated.
READ_S_MAX = 15.0


class PassedOver(StoreUnavailable):
    """A reader was not given what another one gets: what it brought can't be believed, read again."""


class NotGiven(NamedTuple):
    """Entries ``first`` to ``last`` of a ledger that no reader gets: ``UNDELIVERED``, ``LOST`` or ``UNKNOWN``."""

    fate: EntryFate
    first: int
    last: int


class SecondLook:
    """Of one topic. Thread-safe.

    The broker is asked about each entry of a run. Unless it calls all of them undelivered, a second reader begins with
    the run's first entry. Entries that it isn't given either count as the broker said of each. Behind a lost entry a
    broker also passes over entries that it has: a reader that begins with them gets them.

    Args:
        topic: its name, for errors.
        fate_of: the broker's admin interface, of one entry.
        asked_max: entries of a run that are asked about, its first ones; the others are unknown.
        open_reader: a reader of the topic that begins at a position.
        clock: of waits.
    """

    def __init__(
        self,
        topic: str,
        *,
        fate_of: Callable[[Position], EntryFate],
        asked_max: int,
        open_reader: Callable[[Position], Consumer],
        clock: Clock,
    ) -> None:
        self._topic, self._fate_of, self._open_reader, self._clock = topic, fate_of, open_reader, clock
        self._asked_max = asked_max

    def look(self, ledger_id: int, first: int, last: int, following: Position) -> list[NotGiven]:
        """The beginning of a run, as far as no reader gets it, in pieces of one fate each, ascending.

        The rest of the run, if there is one, is to be read from its first entry on.

        Args:
            ledger_id, first, last: entries that the broker lists and didn't give.
            following: what it gave next.

        Raises:
            PassedOver: it gives the first of them to a second reader.
            StoreUnavailable: it didn't answer, or it has the first of them and gives it to nobody: nothing was decided.
        """
        asked = range(first, min(last + 1, first + self._asked_max))
        fates = [self._fate_of(Position(ledger_id, each)) for each in asked]
        if set(fates) == {EntryFate.UNDELIVERED} and asked[-1] == last:
            return [NotGiven(EntryFate.UNDELIVERED, first, last)]
        came = self._read_again(Position(ledger_id, first), following)
        if fates[0] is EntryFate.READABLE:
            raise StoreUnavailable(
                f"{self._topic}: the broker has {ledger_id}:{first}, which is neither a marker nor part of an aborted "
                f"transaction, and goes on at {following} without giving it",
                hint="nothing is given up meanwhile; has the namespace an entry filter that works on readers?",
            )
        if came.ledger_id == ledger_id:
            last = min(last, came.entry_id - 1)
        if EntryFate.READABLE in fates:
            last = min(last, first + fates.index(EntryFate.READABLE) - 1)
        return _pieces(first, last, fates)

    def _read_again(self, first: Position, following: Position) -> Position:
        """What a second reader gets first, behind ``first``."""
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
        position = came[0].position
        if not first < position <= following:
            raise PassedOver(
                f"{self._topic}: the broker went on at {following} after it was asked for {first}, and the second time "
                f"at {position}",
                hint="it is read again from there",
            )
        return position


def _pieces(first: int, last: int, fates: Sequence[EntryFate]) -> list[NotGiven]:
    """Of ``first`` to ``last``; those that weren't asked about are unknown."""
    unasked = last + 1 - first - len(fates)
    known = [EntryFate.UNKNOWN if each is EntryFate.DENIED else each for each in fates[: last + 1 - first]]
    found: list[NotGiven] = []
    for fate, run in groupby([*known, *[EntryFate.UNKNOWN] * unasked]):
        count = len(list(run))
        found.append(NotGiven(fate, first, first + count - 1))
        first += count
    return found
