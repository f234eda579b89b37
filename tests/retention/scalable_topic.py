"""A scalable topic in a store in memory whose segments grow, split and merge, and cycles of retention over it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from formats.entries import Position
from formats.topic_layout import HASHES, RangeSegment, TopicLayout
from offloader.manifest.log import load_manifest
from offloader.manifest.topic_layouts import NOTHING_MORE, record_end, record_layout
from offloader.retention.cuts import SegmentId, StreamCut
from offloader.retention.lineage import END, Lineage, StreamSegment
from tests.retention.retained_streams import ENTRIES, KIB, Bench
from tests.support.streams import StreamWriter, batch_of

NAME, PLACE = "topic://public/default/orders", "public/default/topic/orders"


class ScalableBench(Bench):
    """Ledgers of 10 KiB, one segment of ours each, a minute apart; no ledger id occurs twice in the topic.

    Attributes:
        rows: id -> the range segment.
    """

    def __init__(self, **retention: object) -> None:
        super().__init__(**retention)
        self.rows: dict[int, RangeSegment] = {}
        self.epoch = 0
        self.newest: dict[int, Position] = {}
        self._ledger = 0
        self.create(0, HASHES)

    def create(self, start: int, stop: int, parents: Collection[int] = (), *, legacy: str = "") -> int:
        number = len(self.rows)
        stream = legacy or f"public/default/segment/orders/{start:04x}-{stop - 1:04x}-{number}"
        self.rows[number] = RangeSegment(
            id=number,
            stream=stream,
            hash_start=start,
            hash_stop=stop,
            parents=tuple(sorted(parents)),
            created_epoch=self.epoch,
            is_legacy=bool(legacy),
            sealed_epoch=0 if legacy else None,
        )
        return number

    def active(self) -> list[int]:
        return [number for number, row in self.rows.items() if not row.is_sealed]

    def _seal(self, *numbers: int) -> None:
        self.epoch += 1
        for number in numbers:
            self.rows[number] = replace(self.rows[number], sealed_epoch=self.epoch)

    def split(self, number: int) -> tuple[int, int]:
        row = self.rows[number]
        middle = (row.hash_start + row.hash_stop) // 2
        self._seal(number)
        return self.create(row.hash_start, middle, [number]), self.create(middle, row.hash_stop, [number])

    def merge(self, one: int, other: int) -> int:
        low, high = sorted((self.rows[one], self.rows[other]), key=lambda row: row.hash_start)
        self._seal(one, other)
        return self.create(low.hash_start, high.hash_stop, [one, other])

    def layout(self, *without: int) -> TopicLayout:
        """What the broker tells after it has deleted some segments."""
        rows = [row for row in self.rows.values() if row.id not in without]
        kept = (replace(row, parents=tuple(each for each in row.parents if each not in without)) for row in rows)
        return TopicLayout(topic=NAME, epoch=self.epoch + len(without), segments=tuple(kept))

    def record(self, *, ends: bool = True) -> None:
        """Record the layout, and the ends of sealed segments."""
        record_layout(self.memory, PLACE, self.layout())
        for row in self.rows.values() if ends else ():
            if row.is_sealed:
                record_end(self.memory, PLACE, row.id, self.newest.get(row.id, NOTHING_MORE))

    def fill(self, number: int, ledgers: int = 1) -> None:
        """Offload ledgers of a segment."""
        stream = self.stream(number)
        if stream not in self.writers:
            self.writers[stream] = StreamWriter(self.memory, stream, clock=self.clock)
        for _ in range(ledgers):
            self._ledger += 1
            self.writers[stream].add([batch_of(self._ledger, 0, ENTRIES, size=KIB)], closes=[self._ledger])
            self.newest[number] = Position(self._ledger, ENTRIES - 1)
            self.clock.advance(60)

    def stream(self, number: int) -> str:
        return self.rows[number].stream

    def heads(self) -> dict[int, Position | None]:
        found = {number: row.stream for number, row in self.rows.items() if row.stream in self.writers}
        return {number: load_manifest(self.memory, stream).head for number, stream in found.items()}

    def is_at_end(self, number: int) -> bool:
        """Whether no entry of a segment is left; of a sealed one, or nothing more comes."""
        newest, head = self.newest.get(number), self.heads().get(number)
        return self.rows[number].is_sealed and (newest is None or (head is not None and head > newest))

    def lineage(self) -> Lineage:
        rows = self.rows.values()
        return Lineage(
            tuple(
                StreamSegment(SegmentId(row.id, 0), tuple(SegmentId(each, 0) for each in row.parents)) for row in rows
            )
        )

    def cut(self) -> StreamCut:
        """The start of the topic as a cut of its lineage."""
        heads = self.heads()
        consumed: dict[SegmentId, object] = {}
        for number, row in self.rows.items():
            follows = all(consumed.get(SegmentId(each, 0)) is END for each in row.parents)
            if self.is_at_end(number) and (follows or number in self.newest):
                consumed[SegmentId(number, 0)] = END
            elif (head := heads.get(number)) is not None:
                consumed[SegmentId(number, 0)] = head
        return self.lineage().cut_of(consumed)

    def require_in_order(self) -> None:
        """Nothing of a segment is deleted before all of its parents, and nothing after the committed end."""
        for number, head in self.heads().items():
            if head is None:
                continue
            assert head <= self.newest[number].next()
            unread = [each for each in self.rows[number].parents if not self.is_at_end(each)]
            assert not unread, f"segment {number} begins at {head}, and its parents {unread} have entries"
