"""Subscribers in a simulated world: what each was told about what it published, and so what must be kept for it.

Owns that memory and the invariants of retention that follow from it. Must never look at the registry: what a subscriber
was told is what it may rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from formats.entries import Position
from offloader.retention.policy import Policy, Unit
from offloader.retention.stream_retention import CutLike, StreamRetention
from offloader.retention.subscribers import PublishStatus, Registry

__all__ = ["AppendedAt", "SimulatedSubscribers", "Subscriber"]

#: Position, payload bytes and time (ms) of an appended entry.
AppendedAt = tuple[Position, int, int]


@dataclass(slots=True)
class Subscriber:
    """What one of them knows.

    Attributes:
        told: the newest position that it was told to count.
        newest: the newest position that may count.
        since: when the first one was told, as a number of the trace's line; ``None``: none was.
        active_ms: when it began to publish what it was told to count last.
    """

    told: Position | None = None
    newest: Position = field(default_factory=lambda: Position(0, 0))
    since: int | None = None
    active_ms: int = 0


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

    def add(self, retention: StreamRetention, name: str) -> None:
        """Registers; may fail halfway."""
        retention.add(name)

    def remove(self, retention: StreamRetention, name: str) -> None:
        """Nobody may rely on it from now on, whether that succeeds or not."""
        self.known.pop(name, None)
        retention.remove(name)

    def publish(self, retention: StreamRetention, name: str, position: Position, cut: CutLike) -> None:
        """Publishes, and remembers the answer.

        Args:
            cut: the position as the stream's or topic's cut.

        Raises:
            OffloaderError: there is none.
        """
        who = self.known.setdefault(name, Subscriber())
        told, began_ms = who.told, self._now_ms()
        who.newest = max(who.newest, position)
        published = retention.try_publish(name, cut)
        if published.status is not PublishStatus.SUCCESS or self.known.get(name) is not who:
            return
        if told is not None and position < told:
            self.wrong = f"{name} published {position} behind {told}, and was told that it counts"
        who.told = position if who.told is None else max(who.told, position)
        who.since = self._line() if who.since is None else who.since
        who.active_ms = max(who.active_ms, began_ms)

    def what_a_head_breaks(self, policy: Policy, head: Position, since: int, appended: Sequence[AppendedAt]) -> str:
        """Whether a decision may move the head there.

        Args:
            head: the new one.
            since: when whoever decided began, as a number of the trace's line.
            appended: all entries of the stream.
        """
        now_ms, limits, timeout_ms = self._now_ms(), policy.limits, policy.subscriber_timeout_ms
        if limits is not None and limits.min:
            if limits.unit is Unit.SIZE:
                kept = sum(size for position, size, _ in appended if position >= head)
                if kept < limits.min:
                    return f"{kept} bytes are kept from {head} on, min is {limits.min}"
            else:
                young = [position for position, _, at_ms in appended if now_ms - at_ms < limits.min and position < head]
                if young:
                    return f"{young[0]} is before the head {head}, and younger than min"
        for name, who in self.known.items():
            counts = who.since is not None and who.since < since
            counts &= timeout_ms is None or now_ms - who.active_ms <= timeout_ms
            if counts and any(who.newest <= position < head for position, _, _ in appended):
                if limits is None or limits.max is None:
                    return f"{name} has read up to {who.newest}, and the stream begins at {head}"
                self.forced.append(name)
        return ""

    def what_all_have_read(self, registry: Registry) -> Position | None:
        """Before what all who ever published have read; ``None``: nobody has, or somebody isn't sure of it."""
        cuts = {name: each.cut for name, each in registry.subscribers.items() if each.cut is not None}
        known = [self.known[name] for name in cuts if name in self.known]
        sure = [who.told for who in known if who.told is not None and who.told == who.newest]
        return min(sure) if cuts and len(sure) == len(cuts) else None

    def what_is_unreported(self, decisions: Sequence[Mapping[str, Any]]) -> str:
        """Whether a record of a decision names everybody who lost something."""
        named = {each["name"] for decision in decisions for each in decision["overridden"]}
        missing = [name for name in self.forced if name not in named]
        return f"{missing[0]} lost what it hadn't read, and no record says so" if missing else ""
