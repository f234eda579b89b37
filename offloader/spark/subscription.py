"""A streaming query as a retention subscriber: publishes what the query still needs.

Never fails the query, and publishes only what the query has committed. It has its own thread: a batch may take hours,
and a silent subscriber expires.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from formats.entries import Position
from offloader.errors import InvalidCall, NotFound, OffloaderError
from offloader.retention.cuts import Cut, cut_at
from offloader.retention.scope import home_of
from offloader.retention.subscribers import PublishStatus, StreamRetention, open_retention
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore
from offloader.store.probe import require_conditional_puts

_log = logging.getLogger("offloader.spark")

#: Longest wait of a query for the publication of its progress.
PUBLISH_WAIT_S = 10.0
#: Wait before a retry.
RETRY_S = 5.0


@dataclass(slots=True)
class _Told:
    """Last publication for a stream or topic: ``done`` unless the store failed, repeated at ``again_s``."""

    cut: Cut
    done: bool
    again_s: float


class Subscription:
    """Publishes for one query, every ``renew_s`` seconds at least. The first call of ``needs`` starts its thread."""

    def __init__(self, name: str, open_store: Callable[[], ObjectStore], renew_s: float, clock: Clock) -> None:
        self._name = name
        self._open_store = open_store
        self._renew_s = renew_s
        self._clock = clock
        self._condition = threading.Condition()
        self._wanted: dict[str, Position | None] = {}
        self._asked = self._answered = 0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        # Used by the thread only:
        self._retentions: dict[str, StreamRetention] = {}
        self._told: dict[str, _Told] = {}
        self._homes: dict[str, tuple[str, int]] = {}

    def needs(self, first: Mapping[str, Position | None]) -> None:
        """Sets by stream the first position that the query still needs; ``None``: everything, without an entry yet.

        Returns after it is published or refused, or failed and will be retried, or after ``PUBLISH_WAIT_S``.
        """
        with self._condition:
            if self._thread is not None and first == self._wanted:
                return
            self._wanted = dict(first)
            self._asked += 1
            asked = self._asked
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"subscriber {self._name}", daemon=True)
                self._thread.start()
            self._wake.set()
            self._condition.wait_for(lambda: self._answered >= asked, PUBLISH_WAIT_S)

    def stop(self) -> None:
        """Ends the thread after its current call."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(PUBLISH_WAIT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            with self._condition:
                asked, wanted = self._asked, dict(self._wanted)
            try:
                wait_s = self._publish(wanted)
            except Exception:
                # A publication error must not end the query.
                _log.exception("subscriber %s couldn't publish", self._name)
                wait_s = RETRY_S
            with self._condition:
                self._answered = asked
                self._condition.notify_all()
            self._clock.wait(self._wake, wait_s)

    def _publish(self, wanted: Mapping[str, Position | None]) -> float:
        """Publishes what is new or due; returns the seconds until the next publication."""
        store = self._store
        for stream in wanted.keys() - self._homes.keys():
            self._homes[stream] = home_of(store, stream)
        positions: dict[str, dict[int, Position | None]] = {}
        for stream, position in wanted.items():
            place, number = self._homes[stream]
            positions.setdefault(place, {})[number] = position
        places = {place: cut_at(each) for place, each in positions.items()}
        for place, cut in places.items():
            told, now_s = self._told.get(place), self._clock.monotonic_s()
            # After a failure even a new cut waits: the store needs fewer requests.
            is_new = told is None or (told.done and told.cut != cut)
            if is_new or now_s >= self._told[place].again_s:
                done = self._tell(store, place, cut)
                self._told[place] = _Told(cut, done, now_s + (self._renew_s if done else RETRY_S))
        again_s = min((self._told[place].again_s for place in places), default=0.0)
        return max(again_s - self._clock.monotonic_s(), 0.0) if places else self._renew_s

    def _tell(self, store: ObjectStore, place: str, cut: Cut) -> bool:
        """Publishes a cut; False: retry soon."""
        try:
            if place not in self._retentions:
                self._retentions[place] = open_retention(store, place, clock=self._clock)
            retention = self._retentions[place]
            if not cut.offsets:
                # A stream without entries has nothing to delete and no position to publish.
                retention.add(self._name)
                return True
            outcome = retention.try_publish(self._name, cut)
            if outcome.status is PublishStatus.SUBSCRIBER_NOT_FOUND:
                retention.add(self._name)
                outcome = retention.try_publish(self._name, cut)
            if outcome.status is not PublishStatus.SUCCESS:
                # For example a restarted query that begins before its published position: renew it nevertheless.
                retention.add(self._name)
                _log.warning("subscriber %s of %s: %s", self._name, place, outcome.why)
        except (InvalidCall, NotFound) as error:
            _log.warning("subscriber %s of %s: %s", self._name, place, error)
        except OffloaderError as error:
            _log.warning("subscriber %s of %s: %s; trying again", self._name, place, error)
            return False
        return True

    @cached_property
    def _store(self) -> ObjectStore:
        store = self._open_store()
        require_conditional_puts(store)
        return store
