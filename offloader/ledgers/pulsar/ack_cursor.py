"""The acknowledged position of a topic's subscription, and whether somebody moved it beyond the committed end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import takewhile

from formats.entries import Position
from offloader.errors import OffloaderError
from offloader.ledgers.base import LedgerInfo, newest, newest_listed
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.topics import TopicInternals

_log = logging.getLogger("offloader.ledgers.pulsar")


class AckCursor:
    """Acknowledges released ledgers of a topic. Thread-safe.

    Args:
        trim: makes the broker trim immediately: ``TopicFacts.trim``.
    """

    def __init__(self, topic: str, consumer: Consumer, subscription: str, *, trim: Callable[[], object]) -> None:
        self._topic, self._consumer, self._subscription, self._trim = topic, consumer, subscription, trim
        self._lock = threading.Lock()
        self._committed: Position | None = None
        #: Under which of the broker's choices the committed end was noted: after another one, another process may have
        #: committed more, and moved the subscription.
        self._choice: int | None = None
        self._acknowledged: Position | None = None
        self._given_up: set[int] = set()
        #: The subscription's position if it is beyond the committed end.
        self._passed: Position | None = None
        #: The one that was logged.
        self._logged: Position | None = None
        #: The internals seen before ``committed`` was called under this choice.
        self._seen: TopicInternals | None = None

    def committed(self, position: Position) -> None:
        """Notes that everything up to ``position`` is in the cold tier."""
        with self._lock:
            self._committed = newest(self._committed, position)
            self._choice = self._consumer.choice
            seen, self._seen = self._seen, None
        if seen is not None:
            self.look(seen)

    def give_up(self, ledger_id: int, infos: Sequence[LedgerInfo]) -> list[int]:
        """Releases a ledger; acknowledges the leading ledgers that are all released.

        Args:
            ledger_id: not needed any more; one that isn't listed is deleted already.
            infos: all ledgers, ascending.

        Returns:
            The ledgers that the broker may have deleted from now on.

        Raises:
            StoreUnavailableError: nothing was acknowledged; retry later.
        """
        with self._lock:
            self._given_up.add(ledger_id)
            leading = list(
                takewhile(lambda info: info.closed and (not info.entries or info.ledger_id in self._given_up), infos)
            )
            self._given_up &= {info.ledger_id for info in infos}
        if (end := newest_listed(leading)) is None:
            return []
        self.acknowledge(end)
        with self._lock:
            self._given_up -= {info.ledger_id for info in leading}
        try:
            self._trim()
        except OffloaderError as error:
            _log.info("%s: the broker deletes up to %s when it likes: %s", self._topic, end, error)
        return [info.ledger_id for info in leading if info.entries]

    def acknowledge(self, position: Position) -> None:
        """Acknowledges everything up to a committed position. Sends nothing if that was done before.

        Raises:
            StoreUnavailableError: nothing was acknowledged; retry later.
        """
        self._consumer.skip(position)
        self._consumer.acknowledge(position)
        with self._lock:
            self._acknowledged = newest(self._acknowledged, position)

    def ended(self, internals: TopicInternals) -> Position | None:
        """The acknowledged position if the broker lists only later ledgers: it trimmed that one after it was consumed.

        ``None`` too if another client acknowledged more: the end of the ledger is then unknown.
        """
        listed = internals.ledgers.ledgers
        with self._lock:
            acknowledged = None if self._passed is not None else self._acknowledged
        if acknowledged is None or not listed or listed[0].ledger_id <= acknowledged.ledger_id:
            return None
        return acknowledged

    def look(self, internals: TopicInternals) -> None:
        """Detects that the subscription was moved by message TTL, a backlog quota or an administrator.

        After a takeover it is logged once ``committed`` was called: the former owner has committed and acknowledged
        more than this process knows of before.
        """
        stands = internals.cursors.get(self._subscription)
        with self._lock:
            ours = newest(self._committed, self._acknowledged)
            is_known = ours is not None and self._choice is not None and self._choice == self._consumer.choice
            if not is_known:
                self._seen = internals
            if stands is None or ours is None:
                return
            passed = stands if stands > ours and _entries_between(internals, ours, stands) else None
            is_new = is_known and passed is not None and passed != self._logged
            self._passed = passed
            if is_known:
                self._logged = passed
        if is_new:
            _log.error(
                "%s: the subscription %s is at %s, but only entries before %s are committed: message TTL, a "
                "backlog quota or another consumer acknowledged for it; the broker may delete entries that "
                "aren't offloaded yet",
                self._topic,
                self._subscription,
                stands,
                ours,
            )


def _entries_between(internals: TopicInternals, after: Position, upto: Position) -> bool:
    """Whether the broker lists an entry after ``after``, up to ``upto``."""
    return any(
        entries and after < Position(ledger_id, entries - 1) and max(after.next(), Position(ledger_id, 0)) <= upto
        for ledger_id, entries in internals.stored()
    )
