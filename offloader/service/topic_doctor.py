"""Doctor's findings about topics that are no longer offloaded: terminated, deleted, and scalable ones without us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from formats.entries import Position
from offloader.doctor import TOPICS_LOOKED_AT_MAX, CheckResult, check_identity, warning
from offloader.errors import NotFoundError
from offloader.ledgers.pulsar.discovery import Look, TopicPatterns, survey
from offloader.ledgers.pulsar.scalable import place_of_topic
from offloader.ledgers.pulsar.source import PulsarCluster, noted_store
from offloader.ledgers.pulsar.topics import TopicInternals, topic_of_stream
from offloader.manifest.catalog import list_streams
from offloader.manifest.store_identity import read_identity
from offloader.manifest.topic_layouts import read_layout
from offloader.runtime.clock import Clock
from offloader.settings import Duration, PulsarSettings
from offloader.store.base import ObjectStore

_TERMINATED, _DELETED, _UNREGISTERED = "terminated topics", "deleted topics", "scalable topics"
#: Maximum number of names in one finding; further ones are only counted.
NAMES_MAX = 5


def check_topics(store: ObjectStore, settings: PulsarSettings, clock: Clock) -> Iterator[CheckResult]:
    """Checks the selected topics, and the streams of deleted topics; yields nothing if there are none.

    A namespace that can't be listed is skipped: ``check_pulsar`` reports it.
    """
    settings = replace(settings, retry_delay_max=Duration(min(settings.retry_delay_max, 1.0)))
    patterns = TopicPatterns.of(settings.topics, settings.exclude)
    with PulsarCluster(settings, clock=clock) as cluster:
        # List streams before topics: the topic of every listed stream is then listed, unless it was deleted.
        streams = list(list_streams(store))
        look, _ = survey(cluster.admin, patterns)
        if settings.broker_plugin:
            yield from _terminated(cluster, look)
        topics = sorted(topic for each in look.topics.values() for topic in each)[:TOPICS_LOOKED_AT_MAX]
        yield from check_identity(read_identity(store), {topic: noted_store(cluster, topic) for topic in topics})
        yield from _unregistered(cluster, store, patterns, look)
    yield from _deleted(streams, look, patterns)


def _terminated(cluster: PulsarCluster, look: Look) -> Iterator[CheckResult]:
    kept: list[str] = []
    for topic in sorted(topic for each in look.topics.values() for topic in each)[:TOPICS_LOOKED_AT_MAX]:
        try:
            ledger_id = kept_ledger(cluster.admin.internals(topic))
        except NotFoundError:
            continue  # deleted since, or an unused partition
        if ledger_id is not None:
            kept.append(f"{topic} (ledger {ledger_id})")
    if kept:
        yield warning(
            _TERMINATED,
            f"the last ledger of {_named(kept)} is not offloaded by the broker: Pulsar never offloads the last ledger "
            f"of a terminated topic, and BookKeeper keeps it",
            "its entries are in the cold tier as soon as they are committed; BookKeeper's copy is deleted with the "
            "topic",
        )


def _unregistered(
    cluster: PulsarCluster, store: ObjectStore, patterns: TopicPatterns, look: Look
) -> Iterator[CheckResult]:
    """Scalable topics that are offloaded, and that the broker doesn't keep for it any more."""
    name = cluster.settings.subscription
    if cluster.settings.scalable_topics == "off" or not cluster.client.has_scalable_topics():
        return
    lost: list[str] = []
    for topic in _scalable(cluster, patterns, look)[:TOPICS_LOOKED_AT_MAX]:
        with suppress(NotFoundError):  # a deleted topic may remain listed
            is_registered = name in cluster.admin.scalable_subscriptions(topic)
            if not is_registered and read_layout(store, place_of_topic(topic)) is not None:
                lost.append(topic)
    if lost:
        yield warning(
            _UNREGISTERED,
            f"the subscription {name} of {_named(lost)} was removed: the broker deletes sealed segments after its "
            "retention, offloaded or not",
            "a running `offloader serve` registers it again; find out who removes it, and see the gaps of the topic's "
            "segments",
        )


def _scalable(cluster: PulsarCluster, patterns: TopicPatterns, look: Look) -> list[str]:
    found: list[str] = []
    for namespace in sorted(look.topics):
        with suppress(NotFoundError):
            found += filter(patterns.have_scalable, cluster.admin.scalable_topics(namespace))
    return found


def kept_ledger(internals: TopicInternals) -> int | None:
    """The last ledger of a terminated topic, if it has entries that the broker hasn't offloaded; else ``None``."""
    listed, last = internals.stored(), internals.last_confirmed
    if not internals.is_terminated or not listed or internals.ledgers.ledgers[-1].offloaded:
        return None
    ledger_id, entries = listed[-1]
    # Until the topic is unloaded, the broker lists a terminated topic's last ledger without its entries.
    has_entries = entries or (last is not None and last >= Position(ledger_id, 0))
    return ledger_id if has_entries else None


def _deleted(streams: list[str], look: Look, patterns: TopicPatterns) -> Iterator[CheckResult]:
    gone = sorted(stream for stream in streams if _has_lost_its_topic(stream, look, patterns))
    if gone:
        yield warning(
            _DELETED,
            f"the cluster has no topic of {_named(gone)}: no further entries are offloaded, and the store keeps its "
            f"objects",
            "if the topic was deleted on purpose and the stream has no readers: "
            f"`offloader stream delete {gone[0]} --apply` deletes its objects, and `offloader cleanup run --apply` "
            "its tombstone after manifest.orphan_age_min; otherwise check that pulsar.admin_url names the right "
            "cluster",
        )


def _has_lost_its_topic(stream: str, look: Look, patterns: TopicPatterns) -> bool:
    topic = topic_of_stream(stream)
    if topic is None or not patterns.have(topic):
        return False
    listed = look.topics.get(topic.removeprefix("persistent://").rpartition("/")[0])
    return listed is not None and topic not in listed


def _named(names: list[str]) -> str:
    rest = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return f"{', '.join(names[:NAMES_MAX])}{rest}"
