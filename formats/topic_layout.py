"""Layout of a scalable topic: its range segments, which split and merge, and their succession.

Rules of a layout:

* L1: an id occurs once, and each parent is a segment of the layout.
* L2: no segment is its own ancestor.
* L3: a parent is sealed.
* L4: the hash ranges of active segments don't overlap. Ranges of migrated partitions do: all are the whole range.

One object per topic, ``TOPIC/layout.json``. It only grows: a segment that the broker has forgotten keeps its row and
its parents, because its entries may still be in the object store. For the same reason it has the schemas of the topic's
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import ClassVar

from formats.checked_json import ABSENT_BY_DEFAULT, CheckedDocument
from formats.entries import Position
from formats.errors import FormatError
from formats.keys import decode_stream, stream_prefix

_NAME = "layout.json"
#: Number of hash values: the range of a key's hash is ``[0, HASHES)``.
HASHES = 65536
#: Segments of one topic. Each has about 250 bytes.
SEGMENTS_MAX = 100_000
#: Definitions and properties of all schemas of one topic, in characters.
SCHEMAS_CHARS_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSegment:
    """One part of a scalable topic: the messages whose keys have their hashes in one range, in order.

    Attributes:
        id: unique in its topic.
        stream: name of the stream with its entries.
        hash_start, hash_stop: its range of hash values, without ``hash_stop``.
        parents: the segments that it continues, ascending.
        created_epoch: epoch of the layout that it appeared in.
        created_ms: when the broker created it, ms since 1970 UTC; 0: unknown.
        sealed_epoch: epoch of the layout that ended it; ``None``: it is active.
        sealed_ms: when the broker ended it; 0: unknown, or active.
        end: its last entry, where it is sealed and this is known; entry -1: it has none in that ledger.
        is_legacy: a regular topic, or a partition of one, that was migrated.
    """

    id: int
    stream: str
    hash_start: int
    hash_stop: int
    parents: tuple[int, ...]
    created_epoch: int
    created_ms: int = 0
    sealed_epoch: int | None = None
    sealed_ms: int = 0
    end: Position | None = None
    is_legacy: bool = False

    @property
    def is_sealed(self) -> bool:
        """Whether it takes no more entries."""
        return self.sealed_epoch is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSchema:
    """One version of the schema of a topic's values, as the broker described it.

    Attributes:
        version: in the metadata of the messages.
        type: ``AVRO``, ``JSON``, ``STRING``, ...
        data: its definition, empty for primitive types.
    """

    version: int
    type: str
    data: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def chars(self) -> int:
        """What counts for ``SCHEMAS_CHARS_MAX``."""
        return len(self.data) + sum(len(name) + len(value) for name, value in self.properties.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLayout(CheckedDocument):
    """The range segments of a scalable topic.

    Attributes:
        topic: ``topic://tenant/namespace/name``.
        epoch: raised by the broker with each change.
        segments: ascending by id.
        schemas: all that the broker ever named, ascending by version. Of several definitions of one version the oldest
            is first.
    """

    bytes_max: ClassVar[int] = 64 * 1024 * 1024

    topic: str
    epoch: int
    segments: tuple[RangeSegment, ...]
    schemas: tuple[TopicSchema, ...] = field(default=(), metadata=ABSENT_BY_DEFAULT)

    @property
    def by_id(self) -> dict[int, RangeSegment]:
        """Id -> segment."""
        return {segment.id: segment for segment in self.segments}


def layout_problem(layout: TopicLayout) -> str:
    """Which of the rules L1 to L4 a layout breaks; empty if it keeps them."""
    by_id = layout.by_id
    if len(by_id) < len(layout.segments):
        return "a segment's id occurs twice"
    for row in layout.segments:
        for parent in row.parents:
            if parent not in by_id:
                return f"segment {row.id} has the parent {parent}, which is missing"
            if not by_id[parent].is_sealed:
                return f"segment {parent} is active and has the child {row.id}"
    try:
        TopologicalSorter({row.id: row.parents for row in layout.segments}).prepare()
    except CycleError as cycle:
        return f"segments are their own ancestors: {', '.join(map(str, cycle.args[1]))}"
    active = sorted((row for row in layout.segments if not row.is_sealed), key=lambda row: row.hash_start)
    for one, other in pairwise(active):
        if one.hash_stop > other.hash_start:
            return f"the hash ranges of the active segments {one.id} and {other.id} overlap"
    return ""


def layout_key(place: str) -> str:
    """Key of the layout of the topic whose documents are under the name ``place``."""
    return f"{stream_prefix(place)}{_NAME}"


def is_layout_key(key: str) -> bool:
    """Whether a key is a layout's."""
    with suppress(FormatError):
        return layout_key(decode_stream(key.removesuffix(f"/{_NAME}"))) == key
    return False
