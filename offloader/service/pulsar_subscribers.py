"""Subscriptions of Pulsar topics as subscribers of our streams' retention.

Owns reading where they are and telling it. Must never say that more was consumed than the broker says, nor forget a
subscription because a broker didn't answer, or because one look didn't show it.

A subscription's mark-delete position becomes the cut of a subscriber ``pulsar:SUBSCRIPTION``. Durable subscriptions
count; not ours, whose position is the fence of the hot tier, nor what belongs to brokers (compaction, replication,
deduplication), nor readers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from formats.entries import Position
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.topic_stats import TopicInternals, TopicStats
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.retention.cuts import Cut
from offloader.retention.followed import Followed
from offloader.retention.own_cuts import OwnCuts
from offloader.retention.rows import partition_segment
from offloader.retention.stream_retention import StreamRetention
from offloader.retention.subscribers import SUBSCRIBER_NAME_CHARS_MAX, Registry

__all__ = ["PREFIX", "PulsarSubscribers", "subscriber_name"]

_log = logging.getLogger("offloader.service")

#: Of the names of subscribers that follow a subscription.
PREFIX = "pulsar:"
#: Looks in a row that must not show a subscription before it counts as removed.
MISSES_MAX = 2
_BROKERS_OWN = ("__compaction", "pulsar.")
_HASH_CHARS = 16


def subscriber_name(subscription: str) -> str:
    """What the subscriber of a subscription is called; different ones differ."""
    shown = "".join(each if each.isprintable() and each != "%" else f"%{ord(each):02X}" for each in subscription)
    name = PREFIX + (shown if shown == shown.strip() else shown.replace(" ", "%20"))
    if len(name) <= SUBSCRIBER_NAME_CHARS_MAX:
        return name
    digest = hashlib.sha256(subscription.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{name[: SUBSCRIBER_NAME_CHARS_MAX - _HASH_CHARS - 1]}~{digest}"


@dataclass(frozen=True, slots=True)
class _Seen:
    """One partition as its broker says."""

    internals: TopicInternals
    stats: TopicStats


class PulsarSubscribers:
    """Thread-safe, as long as one call at a time is about a topic.

    Args:
        admin: of the cluster.
        own_subscription: the name of ours, which isn't anybody's need.
        retention_of: the retention of a stream or topic, by its name.
    """

    def __init__(
        self, admin: AdminClient, own_subscription: str, retention_of: Callable[[str], StreamRetention]
    ) -> None:
        self._admin = admin
        self._own = own_subscription
        self._retention_of = retention_of
        self._missed: dict[tuple[str, str], int] = {}

    def tell(
        self,
        topic: str,
        *,
        timeout_ms: int | None,
        is_ours: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Looks at one topic's subscriptions, of all its partitions, and tells its retention.

        Args:
            topic: ``persistent://...``; of a partitioned one not the partitions.
            timeout_ms: how long a subscriber may be silent; who is connected gives signs of life often enough.
            is_ours: whether a topic is this process's; it does nothing unless the first partition is.

        Raises:
            NotFound: nothing is offloaded yet, or a partition isn't there any more: nothing was changed.
            OffloaderError: the broker or the store doesn't answer; nothing was changed then.
        """
        place = stream_of_topic(topic)
        retention = self._retention_of(place)
        found = retention.place()
        topics = {number: f"{topic}-partition-{number}" if found.is_topic else topic for number in found.partitions}
        if not is_ours(topics[min(topics)]):
            return
        # The broker first: what it says is consumed by then is known here, or counts up to what is.
        seen = {number: _Seen(self._admin.internals(each), self._admin.stats(each)) for number, each in topics.items()}
        own = retention.cuts(found, ahead=topics)
        wanted: dict[str, Followed] = {}
        for subscription in self._subscriptions(seen):
            cut = _cut_of(subscription, seen, own)
            if cut is not None:
                consumers = sum(_consumers(each, subscription) for each in seen.values())
                wanted[subscriber_name(subscription)] = Followed(cut, consumers > 0)
        present = {subscriber_name(each) for each in self._subscriptions(seen)}
        registry = retention.registry(found)
        gone = self._gone(place, registry, present)
        before = {name: registry.subscribers[name].cut for name in wanted if name in registry.subscribers}
        retention.follow(wanted, gone=gone, renew_ms=None if timeout_ms is None else timeout_ms // 3)
        for name, each in wanted.items():
            if before.get(name) is None:
                _log.info("stream %s: follows subscription %s, at %s", place, name, each.cut, extra={"stream": place})
        for name in gone:
            _log.info("stream %s: subscription %s is gone", place, name, extra={"stream": place})

    def _subscriptions(self, seen: Mapping[int, _Seen]) -> Sequence[str]:
        """Durable ones of any partition that somebody else needs."""
        return sorted(
            {
                each.name
                for one in seen.values()
                for each in one.stats.subscriptions.values()
                if each.is_durable and each.name != self._own and not each.name.startswith(_BROKERS_OWN)
            }
        )

    def _gone(self, place: str, registry: Registry, present: set[str]) -> list[str]:
        followed = [name for name in registry.names() if name.startswith(PREFIX)]
        for name in present:
            self._missed.pop((place, name), None)
        gone = []
        for name in followed:
            if name not in present:
                times = self._missed[place, name] = self._missed.get((place, name), 0) + 1
                if times >= MISSES_MAX:
                    gone.append(name)
                    del self._missed[place, name]
        return gone


def _consumers(seen: _Seen, subscription: str) -> int:
    found = seen.stats.subscriptions.get(subscription)
    return 0 if found is None else found.consumers


def _cut_of(subscription: str, seen: Mapping[int, _Seen], own: OwnCuts) -> Cut | None:
    """What a subscription has consumed of our streams; ``None``: the broker is changing it just now.

    A partition of which there is no entry isn't in it; one where there is no such subscription counts as unread.
    """
    begin = own.begin()
    positions: dict[int, Position] = {}
    for number, each in seen.items():
        segment = partition_segment(number)
        first = begin.offsets.get(segment)
        if not isinstance(first, Position):
            continue
        positions[number] = first
        state = each.stats.subscriptions.get(subscription)
        if state is None or not state.is_durable:
            continue
        cursor = each.internals.cursors.get(subscription)
        if cursor is None:
            return None
        after = Position(cursor.mark_delete.ledger_id, cursor.mark_delete.entry_id + 1)
        reached = own.partitions[number].at_or_before(after)
        if reached is not None:
            positions[number] = max(first, reached)
    if not positions:
        return None
    return own.canonical(Cut({partition_segment(number): position for number, position in positions.items()}))
