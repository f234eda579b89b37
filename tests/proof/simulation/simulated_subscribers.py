"""Subscribers in a simulated world: what each was told about what it published, and so what must be kept for it.

It doesn't look at the registry: what a subscriber was told is what it may rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from formats.entries import Position
from offloader.retention.policy import Policy, Unit
from offloader.retention.subscribers import CutLike, PublishStatus, Registry, StreamRetention

__all__ = ["AppendedAt", "Places", "SimulatedSubscribers", "Subscriber"]

#: Position, payload bytes and time (ms) of an appended entry.
AppendedAt = tuple[Position, int, int]
#: Positions by partition; of a stream without partitions that of 0. One that isn't named: nothing of it.
Places = Mapping[int, Position]
_FIRST = Position(0, 0)


@dataclass(slots=True)
class Subscriber:
    """What one of them knows.

    Attributes:
        told: the newest positions that it was told to count; ``None``: it never was.
        newest: the newest positions that may count.
        signs: when it was told that something counts, as numbers of the trace's lines, and when it had begun to
            publish that, ms.
    """

    told: dict[int, Position] | None = None
    newest: dict[int, Position] = field(default_factory=dict)
    signs: list[tuple[int, int]] = field(default_factory=list)

    def may_count(self, places: Places) -> None:
        """From now on what lies before these may be taken for read."""
        self.newest = _latest(self.newest, places)

    def is_told(self, places: Places, active_ms: int, line: int) -> None:
        """It counts, they said."""
        self.told = _latest(self.told or {}, places)
        self.signs.append((line, active_ms))

    def active_ms(self, before: int) -> int | None:
        """Its last sign of life before a line of the trace; ``None``: there was none."""
        return max((active_ms for line, active_ms in self.signs if line < before), default=None)


def _latest(one: Places, other: Places) -> dict[int, Position]:
    return {number: max(one.get(number, _FIRST), other.get(number, _FIRST)) for number in {*one, *other}}


class SimulatedSubscribers:
    """All of one stream.

    Args:
        now_ms, line: the time, and the number of the trace's line.
    """

    def __init__(self, now_ms: Callable[[], int], line: Callable[[], int]) -> None:
        self._now_ms, self._line = now_ms, line
        self.known: dict[str, Subscriber] = {}
        #: Who lost what it hadn't read because of max.
        self.forced: list[str] = []
        self.wrong = ""

    def forget(self) -> None:
        """The stream was deleted."""
        self.known.clear()
        self.forced.clear()

    def forget_partition(self, number: int) -> None:
        """Of one partition nobody has read anything: it is another one now."""
        for who in self.known.values():
            who.newest.pop(number, None)
            if who.told is not None:
                who.told.pop(number, None)

    def add(self, retention: StreamRetention, name: str) -> None:
        """Registers; may fail halfway."""
        retention.add(name)

    def remove(self, retention: StreamRetention, name: str) -> None:
        """Nobody may rely on it from now on, whether that succeeds or not, nor on what it publishes meanwhile."""
        self.known.pop(name, None)
        try:
            retention.remove(name)
        finally:
            self.known.pop(name, None)

    def publish(self, retention: StreamRetention, name: str, places: Places, cut: CutLike) -> None:
        """Publishes, and remembers the answer.

        Args:
            cut: the places as the stream's or topic's cut.

        Raises:
            OffloaderError: there is none.
        """
        who = self.known.setdefault(name, Subscriber())
        told, began_ms = dict(who.told or {}), self._now_ms()
        who.may_count(places)
        published = retention.try_publish(name, cut)
        if published.status is not PublishStatus.SUCCESS or self.known.get(name) is not who:
            return
        back = [number for number in places if places[number] < told.get(number, _FIRST)]
        if back:
            self.wrong = f"{name} published {places} behind {told}, and was told that it counts"
        who.is_told(places, began_ms, self._line())

    def what_heads_break(
        self, policy: Policy, heads: Places, before: Places, since: int, appended: Mapping[int, Sequence[AppendedAt]]
    ) -> str:
        """Whether a decision may move the heads there.

        A subscriber can only hold back what is still readable: what an earlier decision took, perhaps before the
        subscriber published at all, isn't held against this one.

        Args:
            heads: the new ones, of all partitions that have one.
            before: the ones before that decision.
            since: when whoever decided began, as a number of the trace's line.
            appended: all entries of each partition.
        """
        now_ms, limits, timeout_ms = self._now_ms(), policy.limits, policy.subscriber_timeout_ms
        # ``keep`` by age and by size has a limit of each, and either may take what nobody has read.
        has_max = any(each is not None and each.max is not None for each in (limits, policy.second))
        gone = [(number, each) for number, head in heads.items() for each in appended[number] if each[0] < head]
        if limits is not None and limits.min:
            if limits.unit is Unit.SIZE:
                kept = sum(each[1] for entries in appended.values() for each in entries)
                kept -= sum(each[1] for _, each in gone)
                if kept < limits.min:
                    return f"{kept} bytes are kept from {heads} on, min is {limits.min}"
            else:
                young = [each[0] for _, each in gone if now_ms - each[2] < limits.min]
                if young:
                    return f"{young[0]} is before the head, and younger than min"
        # Who was silent for too long when the decision began may have come back since: that decision doesn't know.
        counting = [
            (name, who)
            for name, who in self.known.items()
            if (active_ms := who.active_ms(since)) is not None
            if timeout_ms is None or now_ms - active_ms <= timeout_ms
        ]
        for name, who in counting:
            lost = [
                (number, each[0])
                for number, each in gone
                if each[0] >= max(before.get(number, _FIRST), who.newest.get(number, _FIRST))
            ]
            if lost:
                if not has_max:
                    return f"{name} has read up to {who.newest}, and {lost[-1]} is before the head"
                self.forced.append(name)
        return ""

    def what_all_have_read(self, registry: Registry) -> Places | None:
        """Before what all who ever published have read; ``None``: nobody has, or somebody isn't sure of it."""
        cuts = {name: each.cut for name, each in registry.subscribers.items() if each.cut is not None}
        known = [self.known[name] for name in cuts if name in self.known]
        sure = [who.told for who in known if who.told is not None and who.told == who.newest]
        if not cuts or len(sure) < len(cuts):
            return None
        return {number: min(told.get(number, _FIRST) for told in sure) for number in sure[0]}

    def what_is_unreported(self, decisions: Sequence[Mapping[str, Any]]) -> str:
        """Whether a record of a decision names everybody who lost something."""
        named = {each["name"] for decision in decisions for each in decision["overridden"]}
        missing = [name for name in self.forced if name not in named]
        return f"{missing[0]} lost what it hadn't read, and no record says so" if missing else ""
