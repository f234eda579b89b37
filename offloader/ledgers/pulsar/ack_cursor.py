"""The acknowledgement cursor of a topic: limits what its broker may delete."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from formats.entries import Position
from offloader.errors import OffloaderError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.pulsar.failover_subscription import FailoverSubscription
from offloader.ledgers.pulsar.topics import TopicInternals

__all__ = ["AckCursor"]

_log = logging.getLogger("offloader.ledgers.pulsar")


class AckCursor:
    """Acknowledges released ledgers of a topic. Thread-safe.

    Args:
        standing: our subscription.
        subscription: its name.
        trim: makes the broker trim at once; ``None``: it trims periodically.
    """

    def __init__(self, standing: FailoverSubscription, subscription: str, *, trim: Callable[[], object] | None) -> None:
        self._standing, self._subscription, self._trim = standing, subscription, trim
        self._lock = threading.Lock()
        self._committed: Position | None = None
        self._acknowledged: Position | None = None
        self._given_up: set[int] = set()
        self._passed: Position | None = None
        #: The internals seen before ``committed`` was first called.
        self._seen: TopicInternals | None = None

    @property
    def passed(self) -> Position | None:
        """The subscription's position if it is beyond the committed end; ``None`` if it isn't."""
        return self._passed

    def committed(self, position: Position) -> None:
        """Notes that everything up to ``position`` is in the cold tier."""
        with self._lock:
            self._committed = position if self._committed is None else max(self._committed, position)
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
            StoreUnavailable: nothing was acknowledged; retry later.
        """
        with self._lock:
            self._given_up.add(ledger_id)
            leading: list[LedgerInfo] = []
            for info in infos:
                if not info.closed or (info.entries and info.ledger_id not in self._given_up):
                    break
                leading.append(info)
            filled = [info for info in leading if info.entries]
            self._given_up &= {info.ledger_id for info in infos}
        if not filled:
            return []
        end = Position(filled[-1].ledger_id, filled[-1].last_entry_id)
        self._standing.acknowledge(end)
        with self._lock:
            self._acknowledged = end if self._acknowledged is None else max(self._acknowledged, end)
            self._given_up -= {info.ledger_id for info in leading}
        if self._trim is not None:
            try:
                self._trim()
            except OffloaderError as error:
                _log.info("%s: the broker deletes up to %s when it likes: %s", self._standing.topic, end, error)
        return [info.ledger_id for info in filled]

    def look(self, internals: TopicInternals) -> None:
        """Detects that the subscription was moved by message TTL, a backlog quota or an administrator."""
        cursor = internals.cursors.get(self._subscription)
        with self._lock:
            known = [each for each in (self._committed, self._acknowledged) if each is not None]
            if not known:
                self._seen = internals
            if cursor is None or not known:
                return
            ours, stands = max(known), cursor.mark_delete
            passed = stands if stands > ours and _entries_between(internals, ours, stands) else None
            is_new, self._passed = passed is not None and passed != self._passed, passed
        if is_new:
            _log.error(
                "%s: the subscription %s stands at %s, and only what comes before %s is committed: message TTL, a "
                "backlog quota or somebody acknowledged for it; the broker may delete what isn't offloaded yet",
                self._standing.topic,
                self._subscription,
                stands,
                ours,
            )


def _entries_between(internals: TopicInternals, after: Position, upto: Position) -> bool:
    """Whether the broker lists an entry after ``after``, up to ``upto``."""
    for ledger_id, entries in internals.stored():
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        last = min(entries - 1, upto.entry_id) if ledger_id == upto.ledger_id else entries - 1
        if after.ledger_id <= ledger_id <= upto.ledger_id and first <= last:
            return True
    return False
