"""The view of a stream that its manifest's records add up to; pure.

Owns the view's shape and every question asked of it. Must never do I/O, read a clock or change: a view is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from formats.entries import Position
from formats.manifest import Gap, Totals, Writer
from formats.segment import SegmentSummary
from offloader.errors import ErrorKind, OffloaderError

__all__ = [
    "EditRefused",
    "ManifestState",
    "Requirement",
    "SegmentRecord",
    "SegmentStatus",
    "follows",
]

#: Writer of no record.
_NOBODY = Writer("", "", "")
#: Method of a stream that no ``set_method`` edit named.
METHOD_DEFAULT = "streaming"


class EditRefused(OffloaderError):
    """An edit or a requirement doesn't fit the manifest as it is now. Nothing was written."""

    kind = ErrorKind.FIX_CALL


class SegmentStatus(Enum):
    """Where a segment is in its life. Failed and purged segments leave the manifest."""

    ASSIGNED = "assigned"
    OFFLOADED = "offloaded"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """One offload segment as the manifest knows it.

    Attributes:
        uuid: its name, and its objects' key.
        status: assigned, offloaded or retired.
        epoch: the writer generation that assigned it; nobody else ever writes under this uuid.
        layout: 1 (one ledger per object) or 2.
        begin: first position, never changed.
        end: last position; ``None`` while a live segment is being filled.
        assigned_ms, offloaded_ms: ms since 1970 UTC.
        driver: where the objects are (``managedLedgerOffloadDriver``, ``bucket``, ``region``, ``serviceEndpoint``).
        summary: lengths, checksums, counts; from ``offloaded`` on.
        owned: whether we may delete its objects (adopted ones: only when ownership was taken).
        retire_record: the record that retired it.
    """

    uuid: UUID
    status: SegmentStatus
    epoch: int
    layout: int
    begin: Position
    end: Position | None
    assigned_ms: int
    offloaded_ms: int | None
    driver: Mapping[str, str]
    summary: SegmentSummary | None
    owned: bool = True
    retire_record: int | None = None

    @property
    def v1_ledger_id(self) -> int | None:
        """The ledger id in the keys of a V1 segment; ``None`` for V2."""
        return self.begin.ledger_id if self.layout == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What must be true of the manifest for a commit to count.

    Attributes:
        incarnation: the stream's; another one means the stream was deleted and made again.
        epoch: the owner's own epoch for owner's edits; ``None`` for edits by others (retention, cleanup).
    """

    incarnation: UUID
    epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestState:
    """Everything a manifest says, at one record. A value: sharing it is safe, it never changes.

    Attributes:
        record_id: the newest record in it; 0: none yet.
        epoch: the writer generation that owns the stream.
        time_ms: when that record was written; never goes back.
        closed_ledgers: ledger id -> last entry id (-1: empty), as the source said.
        newest_end: the highest position any range ever claimed; a live segment begins right after it.
        head: what lies before it is truncated.
    """

    stream: str
    incarnation: UUID
    record_id: int = 0
    epoch: int = 0
    writer: Writer = _NOBODY
    time_ms: int = 0
    segments: Mapping[UUID, SegmentRecord] = field(default_factory=dict)
    closed_ledgers: Mapping[int, int] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    newest_end: Position | None = None
    head: Position | None = None
    deleted_ledgers: frozenset[int] = frozenset()
    hot_released_ledgers: frozenset[int] = frozenset()
    method: str = METHOD_DEFAULT
    paused: bool = False
    held: bool = False
    stream_deleted: bool = False

    def check(self, requirement: Requirement) -> None:
        """Raises ``EditRefused`` unless ``requirement`` holds here."""
        if requirement.incarnation != self.incarnation:
            raise EditRefused(f"stream {self.stream} was deleted and created again", hint="open it anew")
        if self.stream_deleted:
            raise EditRefused(f"stream {self.stream} was deleted")
        if requirement.epoch is not None and requirement.epoch != self.epoch:
            raise EditRefused(
                f"stream {self.stream} is owned by epoch {self.epoch} (writer {self.writer.name}), "
                f"not by epoch {requirement.epoch}"
            )

    def offloaded(self) -> list[SegmentRecord]:
        """Readable segments, in the stream's order."""
        found = [s for s in self.segments.values() if s.status is SegmentStatus.OFFLOADED]
        return sorted(found, key=lambda segment: segment.begin)

    def assigned(self) -> list[SegmentRecord]:
        """Segments that are promised and not there yet, in the stream's order."""
        found = [s for s in self.segments.values() if s.status is SegmentStatus.ASSIGNED]
        return sorted(found, key=lambda segment: segment.begin)

    def follows(self, end: Position, begin: Position) -> bool:
        """Whether no entry can lie between ``end`` and ``begin``: see the function of that name."""
        return follows(end, begin, self.closed_ledgers)

    def committed_end(self) -> Position | None:
        """End of the longest prefix of offloaded ranges and recorded gaps; what a source may be told is safe."""
        ranges: list[tuple[Position, Position | None]] = [
            (s.begin, s.end if s.status is not SegmentStatus.ASSIGNED else None) for s in self.segments.values()
        ]
        ranges += [(gap.first, gap.last) for gap in self.gaps]
        reached: Position | None = None
        for begin, end in sorted(ranges, key=lambda item: item[0]):
            if end is None or (reached is not None and not self.follows(reached, begin)):
                break
            reached = end
        return reached

    def first_position(self) -> Position | None:
        """First readable position: the head, or the first offloaded segment's begin."""
        end = self.committed_end()
        begins = [s.begin for s in self.offloaded()]
        if end is None or not begins:
            return None
        first = begins[0]
        return first if self.head is None else max(first, self.head)

    def totals(self) -> Totals:
        """Sums over the offloaded segments."""
        found = [(s, s.summary) for s in self.offloaded() if s.summary is not None]
        return Totals(
            segments=len(found),
            entries=sum(summary.entries for _, summary in found),
            payload_bytes=sum(summary.payload_bytes for _, summary in found),
            object_bytes=sum(summary.data_bytes + summary.index_bytes for _, summary in found),
            first=found[0][0].begin if found else None,
            last=self.committed_end(),
        )


def follows(end: Position, begin: Position, closed_ledgers: Mapping[int, int]) -> bool:
    """Whether no entry can lie between ``end`` and ``begin``.

    True for the next entry of a ledger, and for the first entry of a later ledger when the source said that the earlier
    one ends at ``end`` and that all between are empty (else an entry lost at a rollover could never be noticed).

    Args:
        end, begin: the two positions.
        closed_ledgers: ledger id -> last entry id (-1: empty), as the source said.
    """
    if begin.ledger_id == end.ledger_id:
        return begin.entry_id == end.entry_id + 1
    if begin.ledger_id < end.ledger_id or begin.entry_id != 0:
        return False
    if closed_ledgers.get(end.ledger_id) != end.entry_id:
        return False
    # Ledger ids aren't dense (BookKeeper hands them out over all topics): only known ledgers can lie between.
    return all(last == -1 for ledger, last in closed_ledgers.items() if end.ledger_id < ledger < begin.ledger_id)
