"""Cuts of a stream: which part of each of its parallel stream segments lies before a point, and their order.

Owns the value, its text and its JSON, and the algebra of what cuts consumed (order, meet, join). Must never know which
segment follows which (``offloader.retention.lineage``), how many bytes an offset stands for, or any storage.

A *stream segment* is one of the parallel, ordered parts of a stream: a partition, or a key range between two scalings.
It isn't a segment of offloaded data. Rules: the retention specification, section 1.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from formats.entries import Position
from offloader.errors import InvalidCall

__all__ = ["FUTURE", "UNBOUNDED", "Consumed", "Cut", "Offset", "Order", "SegmentId", "join", "meet", "order"]

#: Of one stream all of one kind: bytes from the segment's beginning on an entry's boundary, or the position of the
#: first entry that isn't before the cut.
Offset: TypeAlias = int | Position
#: Offset of a segment that is listed for the keys it takes over, of which nothing was read yet.
FUTURE = -1
#: Text of the cut that says nothing: from the beginning, or to the end.
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
        """Sorts segments by their creation."""
        return self.epoch, self.number

    @classmethod
    def parse(cls, text: str) -> SegmentId:
        """``"3.1"`` -> ``SegmentId(3, 1)``; raises ``InvalidCall`` for anything else."""
        match = _SEGMENT.fullmatch(text)
        if match is None:
            raise InvalidCall(f"a stream segment is written NUMBER.EPOCH, for example 3.1, not {text!r}")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Cut:
    """A consistent point of a stream.

    Attributes:
        offsets: segment -> offset, or ``FUTURE``. Not to be changed. Empty: ``UNBOUNDED``.

    Raises:
        InvalidCall: an offset below ``FUTURE``.
    """

    offsets: Mapping[SegmentId, Offset] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for segment, offset in self.offsets.items():
            if isinstance(offset, int) and offset < FUTURE:
                raise InvalidCall(f"offset {offset} of stream segment {segment}: only {FUTURE} may be negative")

    def __hash__(self) -> int:
        return hash(frozenset(self.offsets.items()))

    def __str__(self) -> str:
        pairs = (f"{segment}={self.offsets[segment]}" for segment in self.segments)
        return ",".join(pairs) or _UNBOUNDED_TEXT

    @property
    def segments(self) -> list[SegmentId]:
        """What it lists, oldest first."""
        return sorted(self.offsets, key=lambda segment: segment.age_order)

    @classmethod
    def of(cls, offsets: Mapping[str, int | str]) -> Cut:
        """``{"0.0": 10, "1.0": 7}``, or with positions ``{"0.0": "7:12"}``, as in JSON.

        Raises:
            InvalidCall: a name or an offset that isn't one.
        """
        if not isinstance(offsets, Mapping):
            raise InvalidCall(f"a cut is a table of stream segments and offsets, not {offsets!r:.80}")
        return cls({SegmentId.parse(str(name)): _offset(name, offset) for name, offset in offsets.items()})

    def as_json(self) -> dict[str, int | str]:
        """The form for machines; ``of`` reads it."""
        return {
            str(segment): str(offset) if isinstance(offset, Position) else offset
            for segment, offset in ((segment, self.offsets[segment]) for segment in self.segments)
        }

    def text(self, stream: str) -> str:
        """``stream:0.0=10,1.0=7``, the form for people; ``parse`` reads it."""
        return f"{stream}:{self}" if self.offsets else _UNBOUNDED_TEXT

    @classmethod
    def parse(cls, text: str) -> tuple[str, Cut]:
        """The stream and the cut of a text; of ``UNBOUNDED`` the stream is empty.

        Raises:
            InvalidCall: the text isn't a cut's, or names a segment twice.
        """
        if text.strip() == _UNBOUNDED_TEXT:
            return "", UNBOUNDED
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InvalidCall(
                f"not a cut: {text!r:.120}", hint="write STREAM:NUMBER.EPOCH=OFFSET,..., for example a/b:0.0=10,1.0=7"
            )
        pairs = [pair.split("=") for pair in match["pairs"].split(",")]
        if len({name for name, _ in pairs}) < len(pairs):
            raise InvalidCall(f"the cut {text!r:.120} names a stream segment twice")
        return match["stream"], cls.of(dict(pairs))

    def to_bytes(self, stream: str) -> bytes:
        """For storing and sending; no bytes at all for ``UNBOUNDED``."""
        if not self.offsets:
            return b""
        return json.dumps({"stream": stream, "cut": self.as_json()}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[str, Cut]:
        """The stream and the cut of ``to_bytes``.

        Raises:
            InvalidCall: other bytes.
        """
        if not data:
            return "", UNBOUNDED
        try:
            value = json.loads(data)
            stream, offsets = value["stream"], value["cut"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidCall(f"not the bytes of a cut: {data!r:.80}") from error
        return str(stream), cls.of(offsets)


#: A cut that says nothing: where a start is asked for the beginning, where an end is asked for the end.
UNBOUNDED = Cut()


def _offset(name: str, value: int | str) -> Offset:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return Position.parse(value) if ":" in value else int(value)
        except ValueError as error:
            raise InvalidCall(f"offset of stream segment {name}: {error}") from error
    raise InvalidCall(f"offset {value!r} of stream segment {name}: bytes, or a position like 7:12")


class Order(enum.Enum):
    """How a cut lies to another one."""

    EQUAL_OR_AFTER = "EqualOrAfter"
    BEFORE = "Before"
    OVERLAPS = "Overlaps"


@dataclass(frozen=True, slots=True)
class Consumed:
    """What lies before a cut, segment by segment: the componentwise values that order, meet and join work on.

    Attributes:
        full: segments that lie before the cut entirely, known by what took over their keys. That is more than any
            offset says, also more than an offset at the segment's end.
        at: of the others, the offset, where it isn't 0.
    """

    full: frozenset[SegmentId]
    at: Mapping[SegmentId, Offset]


def order(one: Consumed, other: Consumed) -> Order:
    """How ``one`` lies to ``other``: after or equal everywhere, before or equal everywhere, or neither."""
    if _reaches(one, other):
        return Order.EQUAL_OR_AFTER
    return Order.BEFORE if _reaches(other, one) else Order.OVERLAPS


def _reaches(one: Consumed, other: Consumed) -> bool:
    if not other.full <= one.full:
        return False
    # Of one kind within a stream, which the type can't say
    mine: Mapping[SegmentId, Any] = one.at
    for segment, offset in other.at.items():
        if segment not in one.full and (segment not in mine or mine[segment] < offset):
            return False
    return True


def meet(one: Consumed, other: Consumed) -> Consumed:
    """The latest that isn't after either: componentwise the minimum."""
    at: dict[SegmentId, Offset] = {}
    for mine, theirs in ((one, other), (other, one)):
        limits: Mapping[SegmentId, Any] = theirs.at
        for segment, offset in mine.at.items():
            if segment in theirs.full:
                at[segment] = offset
            elif segment in limits:
                at[segment] = min(offset, limits[segment])
    return Consumed(one.full & other.full, at)


def join(one: Consumed, other: Consumed) -> Consumed:
    """The earliest that isn't before either: componentwise the maximum."""
    full = one.full | other.full
    at: dict[SegmentId, Any] = {}
    for mine in (one, other):
        for segment, offset in mine.at.items():
            if segment not in full and (segment not in at or at[segment] < offset):
                at[segment] = offset
    return Consumed(full, at)
