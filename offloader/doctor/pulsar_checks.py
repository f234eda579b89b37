"""Whether a Pulsar cluster lets us offload its topics: broker, admin interface, topics, subscriptions, policies.

Owns these looks. Must never subscribe to anything, nor make anything in the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from formats.entries import Position
from offloader.clock import Clock
from offloader.doctor.findings import Finding, fine, problem, warning
from offloader.errors import AccessDenied, NotFound, OffloaderError
from offloader.ledgers.pulsar.cluster import PulsarCluster
from offloader.ledgers.pulsar.entry_fate import EntryFate
from offloader.ledgers.pulsar.policies import policy_warnings
from offloader.ledgers.pulsar.topic_patterns import TopicPatterns
from offloader.ledgers.pulsar.topic_stats import TopicInternals
from offloader.ledgers.pulsar.topic_survey import survey
from offloader.settings import PulsarSettings

__all__ = ["PulsarChecks"]

#: Topics whose subscriptions are looked at; of more, the first ones.
TOPICS_LOOKED_AT_MAX = 100


class PulsarChecks:
    """See ``offloader.doctor.findings.Check``.

    Args:
        settings: the section ``[pulsar]``.
        clock: of waits.
    """

    name = "pulsar"

    def __init__(self, settings: PulsarSettings, clock: Clock) -> None:
        # Who looks wants to hear soon.
        self._settings = replace(settings, retry_seconds_max=min(settings.retry_seconds_max, 1.0))
        self._clock = clock

    def run(self) -> Iterator[Finding]:
        patterns = TopicPatterns.of(self._settings.topics, self._settings.exclude)
        with PulsarCluster(self._settings, clock=self._clock) as cluster:
            try:
                yield fine("pulsar broker", f"{cluster.client.greet()} answers and lets us in")
            except OffloaderError as error:
                yield problem("pulsar broker", error)
            look, failure = survey(cluster.admin, patterns)
            if failure is not None:
                yield problem("pulsar admin", failure)
            if look.topics:
                yield fine("pulsar admin", f"{cluster.admin.url} answers")
            topics = sorted(topic for each in look.topics.values() for topic in each)
            if topics:
                yield from self._found(cluster, topics)
                yield from _entries(cluster, topics[:TOPICS_LOOKED_AT_MAX])
            elif failure is None:
                hint = "check names and patterns, or let somebody produce: new topics are looked for while it serves"
                yield warning("pulsar topics", "pulsar.topics means no topic that is there", hint=hint)
            for namespace in sorted(look.topics):
                yield from _policies(cluster, namespace)

    def _found(self, cluster: PulsarCluster, topics: list[str]) -> Iterator[Finding]:
        most = self._settings.topics_max
        if len(topics) > most:
            hint = "raise pulsar.topics_max, or share the topics between several processes"
            yield warning("pulsar topics", f"{len(topics)} topics are meant, {most} are offloaded", hint=hint)
        else:
            yield fine("pulsar topics", f"{len(topics)} topics and partitions are meant")
        looked_at = topics[:TOPICS_LOOKED_AT_MAX]
        without = []
        for topic in looked_at:
            try:
                found = cluster.admin.stats(topic).subscriptions.get(self._settings.subscription)
            except NotFound:
                continue  # deleted since, or a partition that nobody has used yet
            except OffloaderError as error:
                yield problem("pulsar subscriptions", error)
                return
            if found is None or not found.is_durable:
                without.append(topic)
        name = self._settings.subscription
        if without:
            what = f"{len(without)} of {len(looked_at)} topics have no subscription {name}, {without[0]} for example"
            hint = "until a process serves them nothing keeps what isn't offloaded"
            yield warning("pulsar subscriptions", what, hint=hint)
        else:
            yield fine("pulsar subscriptions", f"{len(looked_at)} topics have the subscription {name}")


def _entries(cluster: PulsarCluster, topics: list[str]) -> Iterator[Finding]:
    """Whether the admin interface explains single entries, as it is asked to for those that aren't delivered."""
    check, asked = "pulsar entries", 0
    without = "until then entries that aren't delivered count as unconfirmed (pulsar.on_gap), and their ledgers stay"
    for topic in topics:
        try:
            newest = _newest_entry(cluster.admin.internals(topic))
            if newest is None:
                continue
            fate = cluster.admin.fate(topic, newest)
        except NotFound:
            continue  # deleted since, or a partition that nobody has used yet
        except OffloaderError as error:
            yield problem(check, error)
            return
        asked += 1
        if fate is EntryFate.DENIED:
            namespace = topic.removeprefix("persistent://").rpartition("/")[0]
            what = f"{cluster.admin.url}: the token lacks the permission to look at entries of {topic}"
            hint = f"grant its role the action consume on namespace {namespace}; {without}"
            yield problem(check, AccessDenied(what, hint=hint))
            return
        if fate is EntryFate.UNKNOWN:
            what = f"{cluster.admin.url} doesn't explain entries of {topic}"
            hint = f"let GET .../ledger/L/entry/E and its X-Pulsar headers pass, of a broker 2.11 or later; {without}"
            yield warning(check, what, hint=hint)
            return
    if asked:
        yield fine(check, f"{cluster.admin.url} explains single entries of {asked} topics")


def _newest_entry(internals: TopicInternals) -> Position | None:
    """The newest one that is listed."""
    filled = [Position(ledger_id, entries - 1) for ledger_id, entries in internals.stored() if entries]
    return filled[-1] if filled else None


def _policies(cluster: PulsarCluster, namespace: str) -> Iterator[Finding]:
    check = f"pulsar namespace {namespace}"
    try:
        for each in policy_warnings(cluster.admin.policies(namespace)):
            what, _, hint = each.partition("; ")
            yield warning(check, what, hint=hint)
    except NotFound:
        yield warning(check, "there is no such namespace", hint="check pulsar.topics")
    except OffloaderError as error:
        hint = "the token may not read them: look yourself for a message TTL and for quotas that evict"
        yield warning(check, f"its policies can't be read: {error.message}", hint=hint)
