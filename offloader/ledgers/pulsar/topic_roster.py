"""Which topics there are, look by look: which are new, and which are gone for sure; pure but for what it remembers.

Owns that memory. Must never take a topic for gone because a look failed, or because one look didn't show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Look", "Roster"]

#: Looks in a row that must not show a topic before it counts as deleted.
MISSES_MAX = 2


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the cluster showed.

    Attributes:
        topics: namespace -> topics that are meant; a namespace that isn't there has none.
        failed: namespaces that couldn't be asked: nothing is known of them.
        is_whole: whether all namespaces that matter are in one of the two; else those that aren't are unknown too.
    """

    topics: Mapping[str, frozenset[str]]
    failed: frozenset[str] = frozenset()
    is_whole: bool = True


@dataclass(slots=True)
class Roster:
    """The topics that are taken for there. One thread's.

    Attributes:
        topics: now.
    """

    topics: set[str] = field(default_factory=set)
    _missed: dict[str, int] = field(default_factory=dict)

    def see(self, look: Look) -> tuple[list[str], list[str]]:
        """The topics that are new, and those that are gone, each ascending; ``topics`` changes accordingly."""
        shown = {topic for topics in look.topics.values() for topic in topics}
        for topic in shown:
            self._missed.pop(topic, None)
        for topic in self.topics - shown:
            if self._is_known(topic, look):
                self._missed[topic] = self._missed.get(topic, 0) + 1
        gone = sorted(topic for topic, times in self._missed.items() if times >= MISSES_MAX)
        new = sorted(shown - self.topics)
        self.topics |= shown
        self.forget(gone)
        return new, gone

    def forget(self, topics: Iterable[str]) -> None:
        """They aren't taken for there any more; if they are, the next look says that they are new."""
        for topic in topics:
            self.topics.discard(topic)
            self._missed.pop(topic, None)

    def _is_known(self, topic: str, look: Look) -> bool:
        namespace = topic.removeprefix("persistent://").rpartition("/")[0]
        return namespace in look.topics or (look.is_whole and namespace not in look.failed)
