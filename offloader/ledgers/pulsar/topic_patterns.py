"""Which topics of a cluster are meant: names and patterns, and what never is; pure.

Owns reading those patterns. Must never ask a broker, nor let a topic in that brokers keep for themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from offloader.errors import InvalidCall

__all__ = ["TopicPatterns", "is_internal", "partition_number"]

_DOMAIN = "persistent://"
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9]\d{0,8})")
_GLOB = re.compile(r"[*?\[]")
#: Of a subscription's transactions: ``TOPIC-SUBSCRIPTION__transaction_pending_ack``.
_PENDING = "__transaction_pending_ack"
#: Brokers' own: system topics and their heartbeats.
_BROKERS_TENANT = "pulsar"
_HOW = "tenant/namespace/topic with * and ? in any of the three, or tenant/namespace for all of its topics"


def partition_number(topic: str) -> tuple[str, int] | None:
    """``persistent://t/n/x-partition-3`` -> ``("persistent://t/n/x", 3)``; ``None``: it is no partition."""
    found = _PARTITION.fullmatch(topic)
    return None if found is None else (found[1], int(found[2]))


def is_internal(topic: str) -> bool:
    """Whether brokers keep a topic for themselves."""
    tenant, _, rest = topic.removeprefix(_DOMAIN).partition("/")
    name = rest.rpartition("/")[2]
    return tenant == _BROKERS_TENANT or name.startswith("__") or _PENDING in name


@dataclass(frozen=True, slots=True)
class _Pattern:
    tenant: str
    namespace: str
    topic: str

    @classmethod
    def of(cls, text: str) -> _Pattern:
        levels = text.removeprefix(_DOMAIN).split("/")
        if "://" in levels[0] or len(levels) not in (2, 3) or not all(levels) or text != text.strip():
            raise ValueError(f"{text!r} is no topic's name or pattern")
        return cls(levels[0], levels[1], levels[2] if len(levels) == 3 else "*")

    def has(self, topic: str) -> bool:
        tenant, namespace, name = topic.removeprefix(_DOMAIN).split("/", 2)
        base = partition_number(name)
        return (
            fnmatchcase(tenant, self.tenant)
            and fnmatchcase(namespace, self.namespace)
            and (fnmatchcase(name, self.topic) or (base is not None and fnmatchcase(base[0], self.topic)))
        )


@dataclass(frozen=True, slots=True)
class TopicPatterns:
    """What ``[pulsar] topics`` and ``exclude`` say. A partitioned topic's name means all its partitions.

    Attributes:
        topics: a topic is meant if one of these has it,
        exclude: and none of these.
    """

    topics: tuple[_Pattern, ...]
    exclude: tuple[_Pattern, ...] = ()

    @classmethod
    def of(cls, topics: Iterable[str], exclude: Iterable[str] = ()) -> TopicPatterns:
        """From texts.

        Raises:
            InvalidCall: some are none; it names all of these.
        """
        problems: list[str] = []
        found: list[tuple[_Pattern, ...]] = []
        for name, texts in (("topics", topics), ("exclude", exclude)):
            patterns = []
            for text in texts:
                try:
                    patterns.append(_Pattern.of(text))
                except ValueError as cause:
                    problems.append(f"pulsar.{name}: {cause}")
            found.append(tuple(patterns))
        if problems:
            raise InvalidCall("; ".join(problems), hint=_HOW)
        return cls(*found)

    def have(self, topic: str) -> bool:
        """Whether ``persistent://tenant/namespace/topic``, or a partition, is meant; what is no such name isn't."""
        levels = topic.removeprefix(_DOMAIN).split("/", 2)
        if not topic.startswith(_DOMAIN) or len(levels) != 3 or not all(levels):
            return False
        if is_internal(topic) or any(each.has(topic) for each in self.exclude):
            return False
        return any(each.has(topic) for each in self.topics)

    @property
    def namespaces(self) -> Sequence[str]:
        """Those that can be asked for by name: ``tenant/namespace``."""
        return sorted({f"{each.tenant}/{each.namespace}" for each in self.topics if each not in self._wide})

    @property
    def tenants(self) -> Sequence[str]:
        """Those whose namespaces have to be looked at."""
        return sorted({each.tenant for each in self._wide if not _GLOB.search(each.tenant)})

    @property
    def is_everywhere(self) -> bool:
        """Whether every tenant has to be looked at."""
        return any(_GLOB.search(each.tenant) for each in self.topics)

    def have_namespace(self, namespace: str) -> bool:
        """Whether there may be topics in ``tenant/namespace`` that are meant."""
        tenant, _, name = namespace.partition("/")
        return tenant != _BROKERS_TENANT and any(
            fnmatchcase(tenant, each.tenant) and fnmatchcase(name, each.namespace) for each in self.topics
        )

    @property
    def _wide(self) -> Sequence[_Pattern]:
        return [each for each in self.topics if _GLOB.search(each.tenant) or _GLOB.search(each.namespace)]
