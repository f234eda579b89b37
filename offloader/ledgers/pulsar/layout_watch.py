"""Brokers tell when a namespace gets scalable topics, and when the segments of one change (Pulsar 5).

Any broker answers for all topics, and sends an update at once. An update only brings the next survey forward, which
asks the admin interface for the layouts. So a watch that is refused, lost, late or repeated delays the first entries of
a new segment by at most ``pulsar.discovery_interval``; the broker keeps them meanwhile.

A survey calls ``LayoutWatch.follow`` with its result. Updates that say the same, or an earlier epoch, are ignored; the
first update of each watch describes the present state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from formats.pulsar.commands import Command, CommandType
from offloader.errors import OffloaderError
from offloader.ledgers.pulsar.protocol import Connection, PulsarClient
from offloader.ledgers.pulsar.scalable import TOPIC_SCHEME
from offloader.runtime.clock import Clock

#: Namespaces and topics that are watched at once; others are seen at the next survey.
WATCHES_MAX = 10_000
#: How long nothing is watched after a broker or proxy closed the connection instead of answering.
REFUSED_S = 600.0

_log = logging.getLogger("offloader.ledgers.pulsar")

#: Result of a survey: namespace -> its scalable topics; topic -> the epoch of its layout.
Seen = Mapping[str, frozenset[str] | int]


class LayoutWatch:
    """Watches namespaces and scalable topics. ``follow`` is called by one thread at a time.

    Args:
        changed: called on a receiving thread when a survey would see something new; return quickly.
    """

    def __init__(self, client: PulsarClient, clock: Clock, changed: Callable[[], object]) -> None:
        self._client, self._clock, self._changed = client, clock, changed
        self._watches: dict[str, _Watch] = {}
        self._not_before_s = 0.0

    def follow(self, seen: Seen) -> None:
        """Watches exactly these, as far as brokers permit it; the next call retries the others."""
        is_refused = any(watch.is_refused for watch in self._watches.values())
        for name in self._watches.keys() - (set() if is_refused else seen.keys()):
            self._watches.pop(name).end()
        if is_refused:
            self._not_before_s = self._clock.monotonic_s() + REFUSED_S
            _log.warning(
                "brokers or proxies close connections that watch scalable topics: new segments are found at intervals "
                "of pulsar.discovery_interval; watching is tried again in %.0f s",
                REFUSED_S,
            )
        if self._clock.monotonic_s() < self._not_before_s:
            return
        with suppress(OffloaderError):
            for name in sorted(seen)[:WATCHES_MAX]:
                watch = self._watches.get(name)
                if watch is None or watch.is_ended:
                    self._watches[name] = _Watch(self._client.any_connection(), name, seen[name], self._changed)
                else:
                    watch.seen = seen[name]


class _Watch:
    """One watch of a namespace or topic: a ``ConsumerListener``.

    Attributes:
        seen: the result of the last survey.
        is_ended: the broker refused it, or the connection is lost.
        is_refused: the connection was lost before anything was answered.
    """

    def __init__(
        self, connection: Connection, name: str, seen: frozenset[str] | int, changed: Callable[[], object]
    ) -> None:
        self.seen = seen
        self._connection, self._changed = connection, changed
        self._is_answered = self.is_ended = self.is_refused = False
        self._is_topic = name.startswith(TOPIC_SCHEME)
        self._id = connection.attach(self)
        if self._is_topic:
            connection.send(CommandType.SCALABLE_TOPIC_LOOKUP, session_id=self._id, topic=name, create_if_missing=False)
        else:
            connection.send(CommandType.SCALABLE_TOPICS_WATCH, watch_id=self._id, namespace=name)

    def end(self) -> None:
        """Ends the watch."""
        with suppress(OffloaderError):
            if self._is_topic:
                self._connection.send(CommandType.SCALABLE_TOPIC_CLOSE, session_id=self._id)
            else:
                self._connection.send(CommandType.SCALABLE_TOPICS_CLOSE, watch_id=self._id)
        self._connection.detach(self._id)

    def received(self, command: Command) -> None:
        self._is_answered = True
        if command.body.HasField("error"):
            self.is_ended = True
            self._connection.detach(self._id)
        elif _is_new(command.body, self.seen):
            self._changed()

    def lost(self, error: OffloaderError) -> None:  # noqa: ARG002  the next survey meets it, too
        self.is_ended, self.is_refused = True, not self._is_answered


def _is_new(body: Any, seen: frozenset[str] | int) -> bool:
    if isinstance(seen, int):
        return bool(body.dag.epoch > seen)
    added, removed = {*body.snapshot.topics, *body.diff.added}, {*body.diff.removed}
    return bool(added - seen or removed & seen)
