"""The durable subscription of a topic: it retains uncommitted entries and elects the leader."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from formats.entries import Position
from offloader.errors import Closed, OffloaderError
from offloader.ledgers.pulsar.client import PulsarClient
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.runtime.clock import Clock
from offloader.runtime.workers import Backoff, SerialTask, Workers

__all__ = ["FailoverSubscription"]

_log = logging.getLogger("offloader.ledgers.pulsar")


class FailoverSubscription:
    """A topic's failover subscription. Thread-safe. Contacts no broker before ``start``.

    Args:
        client: of the cluster.
        topic: its name; a partition's where there are partitions.
        subscription: name of the failover subscription; created at the topic's beginning if it is missing.
        workers: subscribe, and resubscribe when the broker or the connection is lost.
        clock: of waits.
        retry_s_max: longest back-off between attempts.
        changed: called on a worker when ``active`` or ``problem`` may have changed; return quickly.
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
        self.topic = topic
        self._changed = changed
        self._task = SerialTask(workers, self._attend)
        self._backoff = Backoff(workers, retry_s_max, self._task.schedule)
        self._consumer = Consumer(client, topic, subscription, clock=clock, ready=self._task.schedule)
        self._lock = threading.Lock()
        self._told: tuple[bool | None, str] = None, ""
        self._problem: OffloaderError | None = None
        self._is_closed = False
        self._is_aside = False

    @property
    def active(self) -> bool | None:
        """Whether the broker chose this process; ``None``: not reported yet, or no connection."""
        return False if self._is_aside else self._consumer.is_active

    @property
    def is_aside(self) -> bool:
        """Whether it has stepped aside."""
        return self._is_aside

    def is_chosen_since(self, since_s: float) -> bool:
        """As ``Consumer.is_chosen_since``."""
        return self._consumer.is_chosen_since(since_s)

    @property
    def problem(self) -> OffloaderError | None:
        """Why there is no subscription now."""
        return self._problem

    def start(self) -> None:
        """Subscribes soon, and stays subscribed."""
        self._task.schedule()

    def step_aside(self) -> None:
        """Hands leadership to another process soon; until ``step_back`` this one isn't a candidate."""
        with self._lock:
            self._is_aside = True
        self._task.schedule()

    def step_back(self) -> None:
        """Becomes a candidate again soon. Does nothing if it hasn't stepped aside."""
        with self._lock:
            self._is_aside = False
        self._task.schedule()

    def last_position(self) -> Position | None:
        """As ``Consumer.last_position``."""
        return self._consumer.last_position()

    def acknowledge(self, position: Position) -> None:
        """Acknowledges everything up to ``position``, so that the broker may delete it.

        Raises:
            StoreUnavailable: retry later.
        """
        self._consumer.skip(position)
        self._consumer.acknowledge(position)

    def close(self) -> None:
        """Closes the subscription: another process becomes the leader. Idempotent."""
        with self._lock:
            self._is_closed = True
        self._consumer.close()

    def _attend(self) -> None:
        if self._is_closed or self._backoff.waiting:
            return
        try:
            if self._is_aside:
                self._consumer.leave()
            else:
                self._consumer.attend()
        except Closed:
            return
        except OffloaderError as error:
            # Whatever the error: a token may be renewed, a topic may come back.
            delay_s = self._backoff.wait()
            if self._problem is None or str(self._problem) != str(error):
                _log.warning("%s: not subscribed: %s; again in %.1f s", self.topic, error, delay_s)
            self._problem = error
        else:
            self._backoff.reset()
            self._problem = None
        now = self.active, str(self._problem or "")
        if now != self._told:
            self._told = now
            self._changed()
