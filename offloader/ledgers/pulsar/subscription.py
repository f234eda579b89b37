"""The durable subscription of a topic: it elects the leader, retains uncommitted entries, and acknowledges others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from formats.entries import Position
from offloader.errors import Closed, OffloaderError
from offloader.ledgers.base import LedgerInfo, newest, newest_listed
from offloader.ledgers.pulsar.client import PulsarClient
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.topics import TopicInternals
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Backoff, SerialTask, Workers

_log = logging.getLogger("offloader.ledgers.pulsar")


class FailoverSubscription:
    """A topic's failover subscription. Thread-safe. Contacts no broker before ``step_back``.

    Args:
        topic: its name; a partition's where there are partitions.
        subscription: name of the failover subscription; created at the topic's beginning if it is missing.
        workers: subscribe, and resubscribe when the broker or the connection is lost.
        retry_s_max: longest back-off between attempts.
        changed: called on a worker when ``active`` or ``problem`` may have changed; return quickly.

    Attributes:
        consumer: of the subscription.
        is_aside: whether it has stepped aside.
        problem: why there is no subscription now.
    """

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        subscription: str,
        *,
        workers: Workers,
        clock: Clock,
        retry_s_max: float,
        changed: Callable[[], object],
    ) -> None:
        self._topic, self._changed = topic, changed
        self._task = SerialTask(workers, self._attend)
        self._backoff = Backoff(workers, retry_s_max, self._task.schedule)
        self.consumer = Consumer(client, topic, subscription, clock=clock, ready=self._task.schedule)
        self._told: tuple[bool | None, str] = None, ""
        self.problem: OffloaderError | None = None
        self.is_aside = self._is_closed = False

    @property
    def active(self) -> bool | None:
        """Whether the broker chose this process; ``None``: not reported yet, or no connection."""
        return False if self.is_aside else self.consumer.is_active

    def step_aside(self) -> None:
        """Hands leadership to another process soon; until ``step_back`` this one isn't a candidate.

        The subscription keeps what it retains.
        """
        self.is_aside = True
        self._task.schedule()

    def step_back(self) -> None:
        """Becomes a candidate soon, and stays subscribed: at the beginning, and after ``step_aside``."""
        self.is_aside = False
        self._task.schedule()

    def close(self) -> None:
        """Closes the subscription: another process becomes the leader. Idempotent."""
        self._is_closed = True
        self.consumer.close()

    def _attend(self) -> None:
        if self._is_closed or self._backoff.waiting:
            return
        try:
            if self.is_aside:
                self.consumer.leave()
            else:
                self.consumer.attend()
        except Closed:
            return
        except OffloaderError as error:
            # Whatever the error: a token may be renewed, a topic may come back.
            delay_s = self._backoff.wait()
            if self.problem is None:
                text = "%s: not subscribed: %s; again in %.1f s"
                _log.warning(text, self._topic, error, delay_s, extra={"event": "retry"})
            self.problem = error
        else:
            self._backoff.reset()
            self.problem = None
        now = self.active, str(self.problem or "")
        if now != self._told:
            self._told = now
            self._changed()


class AckCursor:
    """Acknowledges released ledgers of a topic. Thread-safe.

    Args:
        trim: makes the broker trim at once; ``None``: it trims periodically.
    """

    def __init__(self, topic: str, consumer: Consumer, subscription: str, *, trim: Callable[[], object] | None) -> None:
        self._topic, self._consumer, self._subscription, self._trim = topic, consumer, subscription, trim
        self._lock = threading.Lock()
        self._committed: Position | None = None
        self._acknowledged: Position | None = None
        self._given_up: set[int] = set()
        #: The subscription's position if it is beyond the committed end.
        self._passed: Position | None = None
        #: The internals seen before ``committed`` was first called.
        self._seen: TopicInternals | None = None

    def committed(self, position: Position) -> None:
        """Notes that everything up to ``position`` is in the cold tier."""
        with self._lock:
            self._committed = newest(self._committed, position)
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
            self._given_up &= {info.ledger_id for info in infos}
        end = newest_listed(leading)
        if end is None:
            return []
        self._consumer.skip(end)
        self._consumer.acknowledge(end)
        with self._lock:
            self._acknowledged = newest(self._acknowledged, end)
            self._given_up -= {info.ledger_id for info in leading}
        if self._trim is not None:
            try:
                self._trim()
            except OffloaderError as error:
                _log.info("%s: the broker deletes up to %s when it likes: %s", self._topic, end, error)
        return [info.ledger_id for info in leading if info.entries]

    def acknowledge(self, position: Position) -> None:
        """Acknowledges everything up to a committed position. Sends nothing if that was done before.

        Raises:
            StoreUnavailable: nothing was acknowledged; retry later.
        """
        self._consumer.skip(position)
        self._consumer.acknowledge(position)
        with self._lock:
            self._acknowledged = newest(self._acknowledged, position)

    def ended(self, internals: TopicInternals) -> Position | None:
        """The acknowledged position if the broker lists only later ledgers: it trimmed that one after it was consumed.

        ``None`` too if another client acknowledged more: then nobody knows where the ledger ended.
        """
        listed = internals.ledgers.ledgers
        with self._lock:
            acknowledged = None if self._passed is not None else self._acknowledged
        if acknowledged is None or not listed or listed[0].ledger_id <= acknowledged.ledger_id:
            return None
        return acknowledged

    def look(self, internals: TopicInternals) -> None:
        """Detects that the subscription was moved by message TTL, a backlog quota or an administrator."""
        stands = internals.cursors.get(self._subscription)
        with self._lock:
            ours = newest(self._committed, self._acknowledged)
            if ours is None:
                self._seen = internals
            if stands is None or ours is None:
                return
            passed = stands if stands > ours and _entries_between(internals, ours, stands) else None
            is_new, self._passed = passed is not None and passed != self._passed, passed
        if is_new:
            _log.error(
                "%s: the subscription %s stands at %s, and only what comes before %s is committed: message TTL, a "
                "backlog quota or another consumer acknowledged for it; the broker may delete what isn't offloaded yet",
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
