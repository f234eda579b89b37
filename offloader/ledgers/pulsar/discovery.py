"""Discover the topics of a cluster that names and patterns select."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from offloader.errors import InvalidCallError, NotFoundError, OffloaderError
from offloader.ledgers.pulsar.scalable import TOPIC_SCHEME
from offloader.ledgers.pulsar.topics import topic_of_stream
from offloader.stream_names import is_pattern, matches, partition_of

if TYPE_CHECKING:
    from offloader.ledgers.pulsar.admin import AdminClient  # Spark's executors have no HTTP client

_DOMAIN = "persistent://"
#: The brokers' own tenant: system topics and heartbeats.
_BROKERS_TENANT = "pulsar"


def is_internal(topic: str) -> bool:
    """Whether a topic is internal to brokers."""
    tenant, _, rest = topic.partition("://")[2].partition("/")
    name = rest.rpartition("/")[2]
    # TOPIC-SUBSCRIPTION__transaction_pending_ack: a subscription's transactions.
    return tenant == _BROKERS_TENANT or name.startswith("__") or "__transaction_pending_ack" in name


def namespace_of(topic: str) -> str:
    """``persistent://tenant/namespace/name`` -> ``tenant/namespace``; of any kind of topic."""
    return "/".join(topic.partition("://")[2].split("/", 2)[:2])


class _Pattern(NamedTuple):
    tenant: str
    namespace: str
    topic: str

    @classmethod
    def of(cls, text: str) -> _Pattern:
        levels = text.removeprefix(_DOMAIN).removeprefix(TOPIC_SCHEME).split("/")
        if "://" in levels[0] or len(levels) not in (2, 3) or not all(levels) or text != text.strip():
            raise ValueError(f"{text!r} is not a topic name or pattern")
        return cls(levels[0], levels[1], levels[2] if len(levels) == 3 else "*")

    def has(self, topic: str) -> bool:
        tenant, namespace, name = topic.partition("://")[2].split("/", 2)
        base = partition_of(name)
        return (
            matches(tenant, self.tenant)
            and matches(namespace, self.namespace)
            and (matches(name, self.topic) or (base is not None and matches(base[0], self.topic)))
        )


class TopicPatterns(NamedTuple):
    """Patterns of ``[pulsar] topics`` and ``exclude``. A partitioned topic's name selects all its partitions.

    Attributes:
        topics: at least one of these patterns must match,
        exclude: and none of these.
    """

    topics: tuple[_Pattern, ...]
    exclude: tuple[_Pattern, ...] = ()

    @classmethod
    def of(cls, topics: Iterable[str], exclude: Iterable[str] = ()) -> TopicPatterns:
        """Parse patterns. Raises ``InvalidCallError``, which names all invalid patterns."""
        problems: list[str] = []
        found: dict[str, list[_Pattern]] = {"topics": [], "exclude": []}
        for name, text in [*(("topics", each) for each in topics), *(("exclude", each) for each in exclude)]:
            try:
                found[name].append(_Pattern.of(text))
            except ValueError as cause:
                problems.append(f"pulsar.{name}: {cause}")
        if problems:
            raise InvalidCallError(
                "; ".join(problems),
                hint="use tenant/namespace/topic with * and ? in any part, or tenant/namespace for all its topics",
            )
        return cls(tuple(found["topics"]), tuple(found["exclude"]))

    def have(self, topic: str) -> bool:
        """Whether ``persistent://tenant/namespace/topic``, or a partition, is selected; False for any other name."""
        return topic.startswith(_DOMAIN) and self._select(topic)

    def have_scalable(self, topic: str) -> bool:
        """Whether ``topic://tenant/namespace/topic`` is selected; False for any other name."""
        return topic.startswith(TOPIC_SCHEME) and self._select(topic)

    def _select(self, topic: str) -> bool:
        levels = topic.partition("://")[2].split("/", 2)
        if len(levels) != 3 or not all(levels) or is_internal(topic):
            return False
        return any(each.has(topic) for each in self.topics) and not any(each.has(topic) for each in self.exclude)

    @property
    def namespaces(self) -> Sequence[str]:
        """Namespaces without wildcards: ``tenant/namespace``."""
        return sorted({f"{each.tenant}/{each.namespace}" for each in self.topics if each not in self._wide})

    @property
    def tenants(self) -> Sequence[str]:
        """Tenants whose namespaces must be listed."""
        return sorted({each.tenant for each in self._wide if not is_pattern(each.tenant)})

    @property
    def is_everywhere(self) -> bool:
        """Whether the namespaces of every tenant must be listed."""
        return any(is_pattern(each.tenant) for each in self.topics)

    def have_namespace(self, namespace: str) -> bool:
        """Whether topics in ``tenant/namespace`` can be selected."""
        tenant, _, name = namespace.partition("/")
        return tenant != _BROKERS_TENANT and any(
            matches(tenant, each.tenant) and matches(name, each.namespace) for each in self.topics
        )

    @property
    def _wide(self) -> Sequence[_Pattern]:
        return [each for each in self.topics if is_pattern(each.tenant) or is_pattern(each.namespace)]


#: Consecutive surveys that miss a topic before it counts as deleted.
MISSES_MAX = 2


class Look(NamedTuple):
    """Result of one survey of the cluster.

    Attributes:
        topics: namespace -> selected topics; a missing namespace has none.
        failed: namespaces whose query failed: their topics are unknown.
        is_whole: whether all selected namespaces are in one of the two; otherwise missing ones are unknown too.
    """

    topics: Mapping[str, frozenset[str]]
    failed: frozenset[str] = frozenset()
    is_whole: bool = True


@dataclass(slots=True)
class Roster:
    """The topics that count as existing now. Not thread-safe."""

    topics: set[str] = field(default_factory=set)
    _missed: dict[str, int] = field(default_factory=dict)

    def see(self, look: Look) -> tuple[list[str], list[str]]:
        """Apply a survey to ``topics``; returns the new and the deleted topics, each ascending."""
        shown = {topic for topics in look.topics.values() for topic in topics}
        new, missing = sorted(shown - self.topics), self.topics - shown
        self._missed = {topic: self._missed.get(topic, 0) + self._is_known(topic, look) for topic in missing}
        gone = sorted(topic for topic, times in self._missed.items() if times >= MISSES_MAX)
        self.topics = (self.topics | shown).difference(gone)
        return new, gone

    def _is_known(self, topic: str, look: Look) -> bool:
        namespace = namespace_of(topic)
        return namespace in look.topics or (look.is_whole and namespace not in look.failed)


#: Consecutive failures after which no more requests are made: each may take as long as its deadline.
FAILURES_MAX = 3


def survey(
    admin: AdminClient, patterns: TopicPatterns, *, is_stopped: Callable[[], bool] = lambda: False
) -> tuple[Look, OffloaderError | None]:
    """The selected topics, and the first error of the failed queries.

    Args:
        is_stopped: whether to stop early; remaining namespaces count as failed.
    """
    first: OffloaderError | None = None
    is_whole = True
    namespaces = set(patterns.namespaces)
    tenants: Sequence[str | None] = [None] if patterns.is_everywhere else patterns.tenants
    for tenant in tenants:
        try:
            found = admin.namespaces() if tenant is None else admin.namespaces_of(tenant)
            namespaces |= {each for each in found if patterns.have_namespace(each)}
        except OffloaderError as error:
            # A tenant that does not exist has no topics; a list without any tenant does not come from a broker.
            if tenant is None or not isinstance(error, NotFoundError):
                first, is_whole = first or error, False
    topics: dict[str, frozenset[str]] = {}
    in_a_row = 0
    for namespace in sorted(namespaces):
        if is_stopped() or in_a_row >= FAILURES_MAX:
            break
        try:
            listed = admin.topics(namespace)
        except NotFoundError:
            listed = ()
        except OffloaderError as error:
            first = first or error
            in_a_row += 1
            continue
        topics[namespace] = frozenset(filter(patterns.have, listed))
        in_a_row = 0
    return Look(topics, frozenset(namespaces - topics.keys()), is_whole), first


def topic_pattern(wanted: str) -> str:
    """A name or pattern of topics, or of their streams, as a pattern of ``pulsar.topics``."""
    return topic_of_stream(wanted) or wanted


def matching_topics(wanted: str, streams: Collection[str]) -> list[str]:
    """The streams whose topics a name or pattern selects, sorted; ``InvalidCallError``: it is none."""
    patterns = TopicPatterns.of([topic_pattern(wanted)])
    return sorted(each for each in streams if patterns.have(topic_of_stream(each) or ""))
