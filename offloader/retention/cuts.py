"""Stream cuts: a position in each of a stream's parallel segments, as text, JSON and documents' rows. Pure."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from uuid import UUID

from formats.documents import CutRow, PartitionRow, StreamCutRow
from formats.entries import Position
from offloader.errors import InvalidCallError

#: All of one kind within a stream: bytes from the segment's beginning, at an entry's boundary, or the position of the
#: first entry not before the cut.
Offset: TypeAlias = int | Position
#: Offset of a segment listed for its key range, of which nothing was read yet.
FUTURE = -1
#: Text of the unbounded cut: from the beginning, or to the end.
_UNBOUNDED_TEXT = "UNBOUNDED"

_SEGMENT = re.compile(r"(\d{1,10})\.(\d{1,10})")
_PAIR = r"\d{1,10}\.\d{1,10}=-?\d{1,19}(?::-?\d{1,19})?"
_TEXT = re.compile(rf"(?P<stream>.+):(?P<pairs>{_PAIR}(?:,{_PAIR})*)", re.DOTALL)


class SegmentId(NamedTuple):
    """A stream segment: its number and the epoch that created it. Partition 3 of a topic is ``3.0``."""

    number: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.number}.{self.epoch}"

    @property
    def age_order(self) -> tuple[int, int]:
        """Sort key by creation."""
        return self.epoch, self.number

    @classmethod
    def parse(cls, text: str) -> SegmentId:
        """Parse ``"3.1"`` as ``SegmentId(3, 1)``; raises ``InvalidCallError`` for anything else."""
        if (match := _SEGMENT.fullmatch(text)) is None:
            raise InvalidCallError(f"a stream segment is written NUMBER.EPOCH, for example 3.1, not {text!r}")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class StreamCut:
    """A consistent point of a stream.

    Attributes:
        offsets: segment -> offset, or ``FUTURE``. Not to be changed. Empty: ``UNBOUNDED``.

    Raises:
        InvalidCallError: an offset below ``FUTURE``.
    """

    offsets: Mapping[SegmentId, Offset] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for segment, offset in self.offsets.items():
            if isinstance(offset, int) and offset < FUTURE:
                raise InvalidCallError(f"offset {offset} of stream segment {segment}: only {FUTURE} may be negative")

    def __hash__(self) -> int:
        return hash(frozenset(self.offsets.items()))

    def __str__(self) -> str:
        return ",".join(f"{segment}={self.offsets[segment]}" for segment in self.segments) or _UNBOUNDED_TEXT

    @property
    def segments(self) -> list[SegmentId]:
        """Listed segments, oldest first."""
        return sorted(self.offsets, key=lambda segment: segment.age_order)

    @classmethod
    def of(cls, offsets: Mapping[str, int | str]) -> StreamCut:
        """Build a cut from ``{"0.0": 10, "1.0": 7}``, or with positions ``{"0.0": "7:12"}``, as in JSON.

        Raises:
            InvalidCallError: an invalid name or offset.
        """
        if not isinstance(offsets, Mapping):
            raise InvalidCallError(f"a cut is a table of stream segments and offsets, not {offsets!r:.80}")
        return cls({SegmentId.parse(str(name)): _offset(name, offset) for name, offset in offsets.items()})

    def as_json(self) -> dict[str, int | str]:
        """JSON form; ``of`` parses it."""
        return {
            str(segment): str(offset) if isinstance(offset, Position) else offset
            for segment, offset in sorted(self.offsets.items(), key=lambda pair: pair[0].age_order)
        }

    def text(self, stream: str) -> str:
        """Text form ``stream:0.0=10,1.0=7``; ``parse`` parses it."""
        return f"{stream}:{self}" if self.offsets else _UNBOUNDED_TEXT

    @classmethod
    def parse(cls, text: str) -> tuple[str, StreamCut]:
        """The stream and the cut of a text; of ``UNBOUNDED`` the stream is empty.

        Raises:
            InvalidCallError: the text isn't a cut's, or names a segment twice.
        """
        if text.strip() == _UNBOUNDED_TEXT:
            return "", UNBOUNDED
        if (match := _TEXT.fullmatch(text.strip())) is None:
            raise InvalidCallError(
                f"not a cut: {text!r:.120}", hint="write STREAM:NUMBER.EPOCH=OFFSET,..., for example a/b:0.0=10,1.0=7"
            )
        pairs = [pair.split("=") for pair in match["pairs"].split(",")]
        if len({name for name, _ in pairs}) < len(pairs):
            raise InvalidCallError(f"the cut {text!r:.120} names a stream segment twice")
        return match["stream"], cls.of(dict(pairs))

    def to_bytes(self, stream: str) -> bytes:
        """Binary form; empty for ``UNBOUNDED``."""
        if not self.offsets:
            return b""
        return json.dumps({"stream": stream, "cut": self.as_json()}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[str, StreamCut]:
        """The stream and the cut of ``to_bytes``; raises ``InvalidCallError`` for other bytes."""
        if not data:
            return "", UNBOUNDED
        try:
            value = json.loads(data)
            stream, offsets = value["stream"], value["cut"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidCallError(f"not the bytes of a cut: {data!r:.80}") from error
        return str(stream), cls.of(offsets)


#: The unbounded cut: as a start the beginning, as an end the end.
UNBOUNDED = StreamCut()


def _offset(name: str, value: int | str) -> Offset:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return Position.parse(value) if ":" in value else int(value)
        except ValueError as error:
            raise InvalidCallError(f"offset of stream segment {name}: {error}") from error
    raise InvalidCallError(f"offset {value!r} of stream segment {name}: bytes, or a position like 7:12")


class Order(enum.Enum):
    """Order of one cut relative to another."""

    EQUAL_OR_AFTER = "EqualOrAfter"
    BEFORE = "Before"
    OVERLAPS = "Overlaps"


@dataclass(frozen=True, slots=True)
class Record:
    """A cut recorded at a stream's tail.

    Attributes:
        time_ms: when, ms since 1970 UTC.
        size_bytes: bytes before it since the stream's creation, ``None`` where unknown.
    """

    time_ms: int
    cut: StreamCut
    size_bytes: int | None = None


def partition_segment(number: int) -> SegmentId:
    """Stream segment of partition ``number``; 0 for a stream without partitions."""
    return SegmentId(number, 0)


def cut_at(positions: Mapping[int, Position | None]) -> StreamCut:
    """The cut at positions by partition, without those that have none."""
    return StreamCut({partition_segment(number): at for number, at in positions.items() if at is not None})


def rows_of_cut(cut: StreamCut) -> tuple[CutRow, ...]:
    """Rows of a cut, ascending by partition; it has positions only."""
    return tuple(
        CutRow(segment.number, position)
        for segment, position in sorted(cut.offsets.items())
        if isinstance(position, Position)
    )


def cut_of_rows(rows: tuple[CutRow, ...], alive: Collection[int] | None = None) -> StreamCut:
    """The cut in a document, with the partitions ``alive`` that are still the same; ``None``: all."""
    return cut_at({row.partition: row.position for row in rows if alive is None or row.partition in alive})


def stream_rows(
    cuts: Mapping[str, StreamCut], homes: Mapping[str, tuple[PartitionRow, ...]] | None = None
) -> tuple[StreamCutRow, ...]:
    """Cuts of several streams, ascending by stream; ``homes``: the current partitions of each, as far as known."""
    found = []
    for stream in sorted(cuts):
        rows = rows_of_cut(cuts[stream])
        named = {row.partition for row in rows}
        home = (homes or {}).get(stream, ())
        found.append(StreamCutRow(stream, rows, tuple(row for row in home if row.number in named)))
    return tuple(found)


def both_rows(
    stream: str, one: StreamCutRow | None, other: StreamCutRow | None, choose: Callable[[Position, Position], Position]
) -> StreamCutRow:
    """Merge two cuts of a stream with ``choose``, which selects between two positions.

    Where a partition has another incarnation in ``other``, which is the newer one, its position wins.
    """
    homes, cuts = dict[int, UUID](), dict[int, Position]()
    for each in (one, other):
        told = {} if each is None else {row.number: row.incarnation for row in each.partitions}
        for row in () if each is None else each.cut:
            number, before = row.partition, cuts.get(row.partition)
            is_same = number not in told or number not in homes or told[number] == homes[number]
            cuts[number] = row.position if before is None or not is_same else choose(before, row.position)
            if number in told:
                homes[number] = told[number]
    cut = tuple(CutRow(number, cuts[number]) for number in sorted(cuts))
    return StreamCutRow(stream, cut, tuple(PartitionRow(number, homes[number]) for number in sorted(homes)))


def rows_alive(
    cut: tuple[CutRow, ...], told: tuple[PartitionRow, ...], now: tuple[PartitionRow, ...]
) -> tuple[CutRow, ...]:
    """Rows of partitions that are still the same, as far as known."""
    incarnations, alive = {row.number: row.incarnation for row in told}, {row.number: row.incarnation for row in now}
    return tuple(
        row
        for row in cut
        if row.partition not in incarnations or incarnations[row.partition] == alive.get(row.partition)
    )
