"""Make brokers with the offloader plugin offload ledgers that are committed to the store.

A broker starts an offload when a ledger is closed, and forgets it when the topic is unloaded before the offload ends.
So this module requests the offload of ledgers that the broker lists as closed and not offloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from formats.entries import Position
from offloader.errors import NotFoundError, OffloaderError, StoreUnavailableError
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.topic_facts import SINCE_PROPERTY
from offloader.ledgers.pulsar.topics import TopicInternals, stream_of_topic
from offloader.runtime.clock import Clock

_log = logging.getLogger("offloader.ledgers.pulsar")

#: Topics queried in one poll; the next poll continues with the others.
TOPICS_MAX = 200
#: Offloads started in one poll.
TRIGGERS_MAX = 50
#: Attempts to note the first ledger while a broker is trimming.
NOTES_MAX = 3
#: First and longest wait before a topic is queried again, after an error or without progress.
WAIT_S_MIN, WAIT_S_MAX = 10.0, 600.0

#: Time without progress on a ledger after which the broker is queried for the reason; and the longest wait while it
#: fails, so that the problem ends soon after its cause.
FAILING_WAIT_S = 40.0


class OffloadTarget(NamedTuple):
    """The ledgers that a broker must offload: the closed ledgers before ``before``, beginning with ``first``."""

    first: int
    before: Position


def due_offload(internals: TopicInternals, committed: Position | None) -> OffloadTarget | None:
    """The ledgers that a broker lists as closed and not offloaded, and that are committed to the store; ``None``: none.

    None of these, and no ledger listed before them, is uncommitted. Pure.
    """
    listed = internals.ledgers.ledgers
    if committed is None or not listed:
        return None
    filled = [each for each in listed[:-1] if each.entries]
    left = (each for each in filled if Position(each.ledger_id, each.entries - 1) > committed)
    before = Position(next(left, listed[-1]).ledger_id, 0)
    due = (each.ledger_id for each in filled if each.ledger_id < before.ledger_id and not each.offloaded)
    return next((OffloadTarget(first, before) for first in due), None)


class ServedTopic(NamedTuple):
    """A topic that this process leads, and the position up to which it is committed."""

    topic: str
    committed: Position | None


@dataclass(slots=True)
class _Asked:
    """State of the queries about one topic.

    Attributes:
        first: the first ledger to be offloaded.
        wait_s: before the topic is queried again, if nothing changes; 0: at the next poll.
        not_before_s: by the monotonic clock.
        error: why the query failed.
        failure: why the broker did not offload that ledger, although it was requested for some time.
        is_noted: whether the subscription records since when the list is followed.
    """

    first: int | None = None
    wait_s: float = 0.0
    not_before_s: float = 0.0
    error: OffloaderError | None = None
    failure: OffloaderError | None = None
    is_noted: bool = False

    def back_off(self, now_s: float) -> None:
        longest_s = WAIT_S_MAX if self.failure is None else FAILING_WAIT_S
        self.wait_s = min(max(2 * self.wait_s, WAIT_S_MIN), longest_s)
        self.not_before_s = now_s + self.wait_s


_NEVER_ASKED = _Asked()


class OffloadTriggers:
    """Requests offloads from brokers. One ``look`` at a time.

    Args:
        subscription: of the offloader.
        follows: whether to record in it since when the broker's list is followed.
    """

    def __init__(self, admin: AdminClient, subscription: str, clock: Clock, *, follows: bool) -> None:
        self._admin, self._subscription, self._clock, self._follows = admin, subscription, clock, follows
        self._topics: dict[str, _Asked] = {}
        self._next = ""

    def changed(self, topic: str) -> None:
        """Query a topic at the next poll: it was unloaded, or this process became its leader."""
        self._topics.pop(topic, None)

    def problems(self) -> list[tuple[str, OffloaderError]]:
        """Topics that can't be queried or triggered, and those whose brokers fail to offload, with the error."""
        found = ((topic, each.error or each.failure) for topic, each in sorted(self._topics.copy().items()))
        return [(topic, error) for topic, error in found if error is not None]

    def failing(self) -> list[str]:
        """Topics whose brokers fail to offload."""
        return [topic for topic, each in self._topics.copy().items() if each.failure is not None]

    def look(self, topics: Sequence[ServedTopic], *, is_stopped: Callable[[], bool] = lambda: False) -> int:
        """Query the due topics once; returns the number of offloads that brokers started.

        An error of one topic is kept for ``problems``; the topic is queried again later.
        """
        for gone in self._topics.copy().keys() - {each.topic for each in topics}:
            self._topics.pop(gone, None)
        now_s = self._clock.monotonic_s()
        ordered = sorted(topics, key=lambda each: (each.topic < self._next, each.topic))
        due = [each for each in ordered if now_s >= self._topics.get(each.topic, _NEVER_ASKED).not_before_s]
        started, failed = 0, list[tuple[str, OffloaderError]]()
        for each in due[:TOPICS_MAX]:
            if is_stopped() or started >= TRIGGERS_MAX:
                break
            self._next = each.topic + "\0"
            asked = self._topics.setdefault(each.topic, _Asked())
            try:
                with suppress(NotFoundError):  # deleted since, or an unused partition
                    started += self._look_at(each, asked)
                asked.error = None
            except OffloaderError as error:
                if str(asked.error) != str(error):
                    failed.append((each.topic, error))
                asked.error = error
                asked.back_off(now_s)
        _report([each for each in failed if isinstance(each[1], StoreUnavailableError)], {"event": "retry"})
        _report([each for each in failed if not isinstance(each[1], StoreUnavailableError)], {})
        return started

    def _look_at(self, served: ServedTopic, asked: _Asked) -> bool:
        """Whether the broker started to offload."""
        internals = self._admin.internals(served.topic)
        if self._follows and not asked.is_noted:
            asked.is_noted = self._note(served.topic)
        if (target := due_offload(internals, served.committed)) is None:
            asked.first, asked.wait_s, asked.failure = None, 0.0, None
            return False
        if target.first == asked.first:
            # Requested before: the broker is offloading, or fails at this ledger.
            if asked.wait_s >= FAILING_WAIT_S:
                self._see_failure(served.topic, asked)
            asked.back_off(self._clock.monotonic_s())
        else:
            asked.first, asked.wait_s, asked.failure = target.first, 0.0, None
        return self._admin.offload(served.topic, target.before)

    def _see_failure(self, topic: str, asked: _Asked) -> None:
        """Record why the broker failed to offload the requested ledger."""
        with suppress(OffloaderError):  # the next query of this topic records its error
            why, before = self._admin.offload_error(topic), asked.failure
            if not why:
                asked.failure = None
                return
            asked.failure = StoreUnavailableError(
                f"the broker does not offload ledger {asked.first}, which is committed to the store, and keeps its "
                f"copy: {why}",
                hint="check the broker's log; `offloader doctor` checks the plugin's settings and its connection "
                "to this process",
            )
            if str(before) != str(asked.failure):
                extra = {
                    "event": "broker_offload_failed",
                    "stream": stream_of_topic(topic),
                    "ledger": asked.first,
                    "reason": why,
                }
                _log.error("%s: %s", topic, asked.failure.message, extra=extra)

    def _note(self, topic: str) -> bool:
        """Record the first listed ledger, once per subscription; returns whether it is recorded.

        The recorded ledger is compared with the list once more: the topic may have been recreated in between.
        """
        if (found := self._admin.stats(topic).subscriptions.get(self._subscription)) is None:
            return False
        noted = found.properties.get(SINCE_PROPERTY)
        for _ in range(NOTES_MAX):
            if noted is not None:
                return True
            if (first := _first_listed(self._admin.internals(topic))) is None:
                return False
            self._admin.note(topic, self._subscription, {SINCE_PROPERTY: first})
            noted = first if _first_listed(self._admin.internals(topic)) == first else None
        return False


def _report(failed: Sequence[tuple[str, OffloaderError]], extra: Mapping[str, str]) -> None:
    """Log one line, however many topics a broker had."""
    if failed:
        (topic, first), more = failed[0], len(failed) - 1
        others = f" (and for {more} more topics)" if more else ""
        _log.warning("%s: no offload is requested from the broker: %s%s", topic, first, others, extra=extra)


def _first_listed(internals: TopicInternals) -> str | None:
    listed = internals.ledgers.ledgers
    return str(listed[0].ledger_id) if listed else None
