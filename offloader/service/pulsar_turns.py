"""Whose turn it should be for topics whose owner can't reach the store.

Owns leaving such topics to processes that wait for them, and being a candidate again afterwards. Must never leave a
topic that nobody else would take, nor come back while the store is silent: two processes would pass it to and fro.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from offloader.clock import Clock
from offloader.errors import OffloaderError
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.source import PulsarSource
from offloader.retention.at_once import at_once
from offloader.service.feeds import Problem
from offloader.service.store_reach import StoreReach
from offloader.store.base import ObjectStore

__all__ = ["PulsarTurns"]

_log = logging.getLogger("offloader.service")


class PulsarTurns:
    """Thread-safe; one look at a time.

    Args:
        store: of the streams.
        admin: of the cluster: says who waits for a topic.
        subscription: the name of ours.
        clock: of times.
    """

    def __init__(self, store: ObjectStore, admin: AdminClient, subscription: str, clock: Clock) -> None:
        self._admin, self._subscription, self._clock = admin, subscription, clock
        self._url = store.url
        self._reach = StoreReach(store, clock)
        # Guards what is shown.
        self._lock = threading.Lock()
        self._aside = 0
        self._since_ms: int | None = None

    def look(
        self,
        after_s: float,
        *,
        ours: Callable[[], Sequence[PulsarSource]],
        aside: Callable[[], Sequence[PulsarSource]],
    ) -> None:
        """Looks once whether the store answers, and leaves topics or comes back.

        Args:
            after_s: how long it must have been silent before a topic is left, and have answered before one is wanted
                again that somebody else has; 0: nothing is ever left.
            ours: topics that are this process's turn.
            aside: those that it has left.

        Raises:
            OffloaderError: the first of the topics that couldn't be asked about; they stay as they are.
        """
        self._reach.look()
        silent_s = self._reach.silent_s
        errors: list[OffloaderError | None] = []
        if after_s and silent_s >= after_s:
            errors = at_once(lambda source: self._leave(source, silent_s), ours())
        elif not silent_s:
            is_sure = self._reach.answering_s >= after_s
            errors = at_once(lambda source: self._return(source, is_sure=is_sure), aside())
        count = len(aside())
        with self._lock:
            self._aside = count
            self._since_ms = (self._since_ms or self._clock.now_ms()) if self._aside else None
        first = next((error for error in errors if error is not None), None)
        if first is not None:
            raise first

    def problems(self) -> list[Problem]:
        """That topics were left, while they are."""
        with self._lock:
            if not self._aside:
                return []
            return [
                Problem(
                    where=f"store {self._url}",
                    what=f"it doesn't answer here: {self._aside} topics are left to another process",
                    hint="look at the network between this machine and the store; it comes back by itself",
                    since_ms=self._since_ms,
                )
            ]

    def _leave(self, source: PulsarSource, silent_s: float) -> OffloaderError | None:
        try:
            if self._candidates(source) < 2:
                return None
        except OffloaderError as error:
            return error
        source.step_aside()
        _log.warning(
            "topic %s: the store hasn't answered here for %.0f s: left to another process that waits for it",
            source.topic,
            silent_s,
            extra={"event": "topic_left", "stream": source.stream},
        )
        return None

    def _return(self, source: PulsarSource, *, is_sure: bool) -> OffloaderError | None:
        try:
            if not is_sure and self._candidates(source) > 0:
                return None
        except OffloaderError as error:
            return error
        source.step_back()
        _log.info(
            "topic %s: the store answers here: a candidate again",
            source.topic,
            extra={"event": "topic_wanted", "stream": source.stream},
        )
        return None

    def _candidates(self, source: PulsarSource) -> int:
        """How many processes are subscribed."""
        found = self._admin.stats(source.topic).subscriptions.get(self._subscription)
        return 0 if found is None else found.consumers
