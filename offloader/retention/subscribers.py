"""Who still needs a stream: the registry of its subscribers, as a value; pure.

Owns registering, publishing and who counts at a time. Must never read a clock or a store, nor decide what is deleted.

Rules: the retention specification, section 3. A subscriber has a generation, which its registration raises: what an
earlier owner of the name still sends changes nothing any more.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from offloader.errors import InvalidCall, LimitReached
from offloader.retention.cuts import Cut

__all__ = [
    "SUBSCRIBERS_MAX",
    "SUBSCRIBER_NAME_CHARS_MAX",
    "Activity",
    "CutRules",
    "PublishStatus",
    "Published",
    "Registry",
    "Subscriber",
    "require_subscriber_name",
]

#: Subscribers of one stream. Each is some hundred bytes of one object, and a comparison in each cycle.
SUBSCRIBERS_MAX = 1000
#: Longest name of a subscriber.
SUBSCRIBER_NAME_CHARS_MAX = 255
#: An equal publish is a sign of life; so soon after the last one it changes nothing.
RENEWED_MS_MIN = 1000
_GENERATION_MAX = 2**63 - 1


class CutRules(Protocol):
    """What a stream's history says of cuts."""

    def problem(self, cut: Cut) -> str:
        """Why ``cut`` is no cut of the stream; empty if it is one."""

    def reaches(self, one: Cut, other: Cut) -> bool:
        """Whether ``one`` is at or after ``other``."""


class PublishStatus(enum.Enum):
    """What became of a published cut. Only ``SUCCESS`` changes anything."""

    SUCCESS = "success"
    STREAM_NOT_FOUND = "stream not found"
    SUBSCRIBER_NOT_FOUND = "subscriber not found"
    GENERATION_MISMATCH = "generation mismatch"
    CUT_NOT_VALID = "cut not valid"


class Activity(enum.Enum):
    """Whether a subscriber holds data back."""

    ACTIVE = "active"
    TIMED_OUT = "timed out"
    UNPUBLISHED = "never published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """One subscriber.

    Attributes:
        name: of the subscriber.
        generation: of its registration.
        updated_ms: when it was registered or published another cut last, ms since 1970 UTC.
        active_ms: when it gave the last sign of life: an equal publish is one.
        cut: what it has consumed; ``None``: it has never published.
        start: where it began; ``None``: at the stream's beginning.
    """

    name: str
    generation: int
    updated_ms: int
    active_ms: int
    cut: Cut | None = None
    start: Cut | None = None

    def activity(
        self, *, now_ms: int, timeout_ms: int | None, is_at_tail: bool = False, is_connected: bool = False
    ) -> Activity:
        """Whether it counts.

        Args:
            now_ms: the time; one before ``active_ms`` makes nobody silent.
            timeout_ms: how long a subscriber may be silent; ``None``: for ever.
            is_at_tail: whether it has consumed everything there is: then there is nothing that it could say.
            is_connected: whether a consumer is connected, of whom that is known (Pulsar's subscriptions).
        """
        if self.cut is None:
            return Activity.UNPUBLISHED
        is_silent = timeout_ms is not None and now_ms - self.active_ms > timeout_ms
        return Activity.TIMED_OUT if is_silent and not is_at_tail and not is_connected else Activity.ACTIVE

    def as_json(self) -> dict[str, object]:
        """For programs; cuts by their segments."""
        return {
            "subscriber": self.name,
            "generation": self.generation,
            "cut": None if self.cut is None else self.cut.as_json(),
            "start": None if self.start is None else self.start.as_json(),
            "updated_ms": self.updated_ms,
            "active_ms": self.active_ms,
        }


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a publish: the registry afterwards, the status, and for people why it was refused."""

    registry: Registry
    status: PublishStatus
    why: str = ""


@dataclass(frozen=True, slots=True)
class Registry:
    """The subscribers of one stream, by name. A value."""

    subscribers: Mapping[str, Subscriber] = field(default_factory=dict)

    def names(self) -> list[str]:
        """All subscribers, sorted."""
        return sorted(self.subscribers)

    def add(self, name: str, generation: int, *, now_ms: int, start: Cut | None = None) -> Registry:
        """Registers a subscriber, or raises the generation of one, which keeps its cut; a lower generation is ignored.

        Args:
            name: any text for people that prints on one line.
            generation: 0 or more.
            now_ms: the time; registering again is a sign of life.
            start: where a new one begins; ``None``: at the stream's beginning.

        Raises:
            InvalidCall: not a name or a generation.
            LimitReached: there are ``SUBSCRIBERS_MAX`` others.
        """
        require_subscriber_name(name)
        if not 0 <= generation <= _GENERATION_MAX:
            raise InvalidCall(f"subscriber {name}: {generation} is no generation", hint="0 or more")
        found = self.subscribers.get(name)
        if found is not None and generation < found.generation:
            return self
        if found is None:
            if len(self.subscribers) >= SUBSCRIBERS_MAX:
                raise LimitReached(
                    f"subscriber {name} can't be registered: there are {len(self.subscribers)} already",
                    hint="remove those that nobody uses",
                )
            return self._with(
                Subscriber(name=name, generation=generation, updated_ms=now_ms, active_ms=now_ms, start=start)
            )
        active_ms = max(found.active_ms, now_ms)
        updated_ms = active_ms if generation > found.generation else found.updated_ms
        return self._with(replace(found, generation=generation, updated_ms=updated_ms, active_ms=active_ms))

    def remove(self, name: str, generation: int) -> Registry:
        """Forgets a subscriber and its cut, unless its generation is higher; one that isn't there is gone already."""
        found = self.subscribers.get(name)
        if found is None or generation < found.generation:
            return self
        return Registry({each: row for each, row in self.subscribers.items() if each != name})

    def publish(self, name: str, generation: int, cut: Cut, rules: CutRules, *, now_ms: int) -> Published:
        """Says that a subscriber has consumed what lies before ``cut``.

        An equal cut is fine and a sign of life. Times don't go back, whatever the clock does.
        """
        found = self.subscribers.get(name)
        if found is None:
            known = ", ".join(self.names()[:5]) or "nobody"
            return Published(self, PublishStatus.SUBSCRIBER_NOT_FOUND, f"{name} isn't registered; {known} is")
        if generation != found.generation:
            return Published(
                self,
                PublishStatus.GENERATION_MISMATCH,
                f"subscriber {name} has generation {found.generation}, not {generation}: it was registered anew",
            )
        problem = rules.problem(cut)
        if not problem and found.cut is not None and not rules.reaches(cut, found.cut):
            problem = f"it isn't at or after {found.cut}, which was published before"
        if problem:
            return Published(self, PublishStatus.CUT_NOT_VALID, f"the cut {cut} of subscriber {name}: {problem}")
        moved = found.cut is None or not rules.reaches(found.cut, cut)
        active_ms = max(found.active_ms, now_ms)
        if not moved and active_ms - found.active_ms < RENEWED_MS_MIN:
            return Published(self, PublishStatus.SUCCESS)
        wanted = replace(
            found,
            cut=cut if moved else found.cut,
            active_ms=active_ms,
            updated_ms=active_ms if moved else found.updated_ms,
        )
        return Published(self._with(wanted), PublishStatus.SUCCESS)

    def active(
        self,
        *,
        now_ms: int,
        timeout_ms: int | None,
        tail: Cut | None,
        rules: CutRules,
        connected: Collection[str] = (),
    ) -> dict[str, Activity]:
        """Whether each subscriber counts; see ``Subscriber.activity``.

        Args:
            tail: the newest cut there is; ``None``: not known, then nobody is known to be there.
            connected: names of subscribers with a connected consumer.
        """
        found = {}
        for name in self.names():
            each = self.subscribers[name]
            found[name] = each.activity(
                now_ms=now_ms,
                timeout_ms=timeout_ms,
                is_at_tail=tail is not None and each.cut is not None and rules.reaches(each.cut, tail),
                is_connected=name in connected,
            )
        return found

    def unpublished(self) -> list[str]:
        """Those that have never published."""
        return [name for name in self.names() if self.subscribers[name].cut is None]

    def bounding(self, first: Cut, *, protect_unpublished: bool = False) -> dict[str, Cut]:
        """The cuts that may hold data back, by name, whether or not their subscribers are silent.

        Args:
            first: the stream's beginning, which a subscriber without a start cut begins at.
            protect_unpublished: count who never published at its start; else it holds nothing back.
        """
        found = {}
        for name in self.names():
            each = self.subscribers[name]
            if each.cut is not None:
                found[name] = each.cut
            elif protect_unpublished:
                found[name] = first if each.start is None else each.start
        return found

    def _with(self, subscriber: Subscriber) -> Registry:
        return Registry({**self.subscribers, subscriber.name: subscriber})


def require_subscriber_name(name: str) -> None:
    """Raises ``InvalidCall`` for what is no subscriber's name."""
    if not 1 <= len(name) <= SUBSCRIBER_NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        raise InvalidCall(
            f"{name!r:.80} is no name of a subscriber",
            hint=f"1 to {SUBSCRIBER_NAME_CHARS_MAX} characters that print, no space at the ends",
        )
