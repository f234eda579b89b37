"""A scalable topic in a store, offloaded as the service does it: layout, entries, ends of segments."""

from __future__ import annotations

import random
from dataclasses import replace

from formats.entries import Position
from formats.topic_layout import HASHES, RangeSegment, TopicLayout
from offloader.manifest.topic_layouts import NOTHING_MORE, record_end, record_layout
from offloader.store.base import ObjectStore
from tests.support.streams import StreamWriter, batch_of

PLACE = "public/default/topic/orders"


class SegmentedTopic:
    """Segment ``n`` has the entries ``n:0``, ``n:1`` and so on.

    Args:
        former: stream of the regular topic that was migrated.

    Attributes:
        rows: id -> its part of the layout, as the broker tells it; without ends.
        sent: id -> number of entries that the broker has.
        stored: id -> those of them that are offloaded.
        writers: id -> its stream in the store, if it has one.
    """

    topic = "topic://public/default/orders"

    def __init__(self, store: ObjectStore, *, former: str = "") -> None:
        self.store = store
        self.rows: dict[int, RangeSegment] = {}
        self.sent: dict[int, int] = {}
        self.stored: dict[int, int] = {}
        self.writers: dict[int, StreamWriter] = {}
        self._epoch = 0
        self._create(0, HASHES)
        if former:
            self.rows[0] = replace(self.rows[0], stream=former, is_legacy=True)
        self._record()

    @property
    def active(self) -> list[int]:
        """The active segments, by their ranges."""
        rows = sorted(self.rows.values(), key=lambda row: row.hash_start)
        return [row.id for row in rows if not row.is_sealed]

    @property
    def entries(self) -> set[tuple[int, int]]:
        """All entries that the broker has: segment and number."""
        return {(number, entry_id) for number, count in self.sent.items() for entry_id in range(count)}

    def send(self, number: int, count: int) -> None:
        assert not self.rows[number].is_sealed
        self.sent[number] += count

    def offload(self, number: int, count: int | None = None) -> None:
        """The next ``count`` entries, or all: a segment of the object store."""
        begin, sent = self.stored[number], self.sent[number]
        stop = sent if count is None else min(begin + count, sent)
        if stop > begin:
            if number not in self.writers:
                self.writers[number] = StreamWriter(self.store, self.rows[number].stream)
            self.writers[number].add([batch_of(number, begin, stop - begin)])
            self.stored[number] = stop

    def split(self, number: int) -> tuple[int, int]:
        """Returns the children of a segment that is sealed by this."""
        row = self._seal(number)
        middle = (row.hash_start + row.hash_stop) // 2
        children = self._create(row.hash_start, middle, number), self._create(middle, row.hash_stop, number)
        self._record()
        return children

    def merge(self, one: int, other: int) -> int:
        """Returns the child of two neighbours."""
        low, high = self._seal(one), self._seal(other)
        child = self._create(low.hash_start, high.hash_stop, one, other)
        self._record()
        return child

    def end(self, number: int) -> None:
        """Records the end of a sealed segment, as the broker tells it: it may not be offloaded yet."""
        count = self.sent[number]
        record_end(self.store, PLACE, number, Position(number, count - 1) if count else NOTHING_MORE)

    def finish(self) -> None:
        """Offloads all entries, and records the ends of all sealed segments."""
        for number, row in self.rows.items():
            self.offload(number)
            if row.is_sealed:
                self.end(number)

    def parents_of(self, number: int) -> set[int]:
        """All ancestors."""
        parents = set(self.rows[number].parents)
        return parents.union(*(self.parents_of(each) for each in parents))

    def step(self, rng: random.Random, *, segments_max: int = 10) -> None:
        """Something that happens to the topic, or to its copy in the store."""
        active, number = self.active, rng.choice([*self.rows])
        match rng.choice(("send", "send", "offload", "offload", "offload", "split", "merge", "end")):
            case "send":
                self.send(rng.choice(active), rng.randint(1, 5))
            case "offload":
                self.offload(number, rng.randint(1, 8))
            case "split" if len(self.rows) < segments_max:
                self.split(rng.choice(active))
            case "merge" if len(active) > 1:
                place = rng.randrange(len(active) - 1)
                self.merge(active[place], active[place + 1])
            case "end" if self.rows[number].is_sealed:
                self.end(number)

    def _seal(self, number: int) -> RangeSegment:
        row = self.rows[number]
        self.rows[number] = replace(row, sealed_epoch=self._epoch + 1)
        return row

    def _create(self, start: int, stop: int, *parents: int) -> int:
        number = len(self.rows)
        stream = f"public/default/segment/orders/{start:04x}-{stop - 1:04x}-{number}"
        self.rows[number] = RangeSegment(
            id=number,
            stream=stream,
            hash_start=start,
            hash_stop=stop,
            parents=tuple(sorted(parents)),
            created_epoch=self._epoch + 1 if parents else 0,
        )
        self.sent[number] = self.stored[number] = 0
        return number

    def _record(self) -> None:
        self._epoch = max(row.created_epoch for row in self.rows.values())
        rows = tuple(self.rows.values())
        record_layout(self.store, PLACE, TopicLayout(topic=self.topic, epoch=self._epoch, segments=rows))
