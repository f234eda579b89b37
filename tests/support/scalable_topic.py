"""A scalable topic of the fake Pulsar cluster: segments that split and merge, as Pulsar 5 describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from formats.entries import Position
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_topics import FakeTopic, Switchboard

HASHES = 65536


class FakeScalable:
    """One scalable topic.

    Attributes:
        segments: id -> the topic that holds its entries.
        rows: id -> its part of the layout, as the admin interface shows it; may be damaged by a test.
        epoch: of the layout.
        subscriptions: registered at the topic.
        sent: key -> the values sent with it, in order.
    """

    def __init__(self, broker: FakeBroker, name: str, *, first_ledger: Callable[[], int]) -> None:
        self.name, self.epoch = name, 0
        self._broker, self._first_ledger = broker, first_ledger
        self.segments: dict[int, FakeTopic] = {}
        self.rows: dict[str, Any] = {}
        self.subscriptions: set[str] = set()
        self.sent: dict[int, list[str]] = {}
        self.create(0, HASHES)
        self._tell()

    def create(self, start: int, stop: int, *parents: int) -> int:
        """A new active segment; its id."""
        number = max(self.segments, default=-1) + 1
        descriptor = f"{start:04x}-{stop - 1:04x}-{number}"
        topic = FakeTopic(self._broker, f"segment://{self.name.removeprefix('topic://')}/{descriptor}")
        topic.begin_at(self._first_ledger())
        for subscription in self.subscriptions:
            topic.subscribe(subscription)
        self.segments[number] = topic
        self.rows[str(number)] = {
            "segmentId": number,
            "hashRange": {"start": start, "end": stop - 1},
            "state": "ACTIVE",
            "parentIds": list(parents),
            "childIds": [],
            "createdAtEpoch": self.epoch,
            "sealedAtEpoch": -1,
            "createdAtMs": 1_700_000_000_000 + number,
            "sealedAtMs": -1,
        }
        return number

    def split(self, number: int) -> tuple[int, int]:
        """Seals a segment, and creates two with its keys."""
        bounds = self.rows[str(number)]["hashRange"]
        middle = (bounds["start"] + bounds["end"] + 1) // 2
        self._seal(number)
        children = self.create(bounds["start"], middle, number), self.create(middle, bounds["end"] + 1, number)
        self._tell()
        return children

    def merge(self, one: int, other: int) -> int:
        """Seals two neighbours, and creates one with the keys of both."""
        first, last = (self.rows[str(number)]["hashRange"] for number in (one, other))
        self._seal(one, other)
        merged = self.create(first["start"], last["end"] + 1, one, other)
        self._tell()
        return merged

    def _tell(self) -> None:
        Switchboard.of(self._broker).change_layout(self.name, self.epoch)

    def _seal(self, *numbers: int) -> None:
        self.epoch += 1
        for number in numbers:
            self.segments[number].state = "Terminated"
            self.rows[str(number)] |= {
                "state": "SEALED",
                "sealedAtEpoch": self.epoch,
                "sealedAtMs": 1_700_000_100_000 + self.epoch,
            }

    def prune(self, number: int) -> None:
        """The broker deletes a sealed segment and forgets it."""
        self.epoch += 1
        del self.rows[str(number)]
        for row in self.rows.values():
            row["parentIds"] = [each for each in row["parentIds"] if each != number]
        self.segments[number].entries.clear()
        self._tell()

    def send(self, key: int, count: int = 1) -> None:
        """Messages of a key, which is a hash value here, to the active segment that has it."""
        for row in self.rows.values():
            if row["state"] == "ACTIVE" and row["hashRange"]["start"] <= key <= row["hashRange"]["end"]:
                for _ in range(count):
                    values = self.sent.setdefault(key, [])
                    values.append(f"{key}:{len(values)}")
                    self.segments[row["segmentId"]].append(single_entry(Sent(value=values[-1].encode())))

    def newest(self, number: int) -> Position:
        return self.segments[number].entries[-1][0]

    def layout(self) -> dict[str, Any]:
        """The document of the admin interface."""
        return {"epoch": self.epoch, "nextSegmentId": max(self.segments) + 1, "segments": self.rows, "properties": {}}

    def stats(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "subscriptions": {name: {"consumerCount": 0} for name in self.subscriptions}}

    def backlog(self, descriptor: str, subscription: str) -> int | None:
        number = int(descriptor.rpartition("-")[2])
        if str(number) not in self.rows:
            return None
        topic = self.segments[number]
        try:
            mark = topic.mark_delete(subscription)
        except KeyError:
            return None
        return sum(mark is None or position > mark for position, _, _ in list(topic.entries))

    def register(self, subscription: str) -> None:
        """As the broker does it: at the beginning of all active segments, and of those that come."""
        self.subscriptions.add(subscription)
        for number, topic in self.segments.items():
            if self.rows.get(str(number), {}).get("state") == "ACTIVE":
                topic.subscribe(subscription)
