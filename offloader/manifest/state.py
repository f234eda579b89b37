"""The view of a stream that its manifest's records add up to; pure.

Owns the view's shape and every question asked of it. Must never do I/O, read a clock or change: a view is a value.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from uuid import UUID

from formats.checkpoint import AssignedSegment, AssigningEpoch, KnownSource, ReplacedSegment
from formats.entries import Position
from formats.manifest import Gap, Totals, Writer
from offloader.errors import ErrorKind, OffloaderError
from offloader.manifest.committed import committed_end_from
from offloader.manifest.ledger_table import ClosedLedgers, LedgerTable, follows
from offloader.manifest.segment_record import SegmentRecord, SegmentStatus, SegmentSums
from offloader.manifest.segment_slice import SegmentSlice
from offloader.manifest.segment_table import SegmentTable

__all__ = [
    "EditRefused",
    "ManifestState",
    "Requirement",
    "SegmentRecord",
    "SegmentStatus",
    "SegmentSums",
    "StreamPaused",
    "follows",
]

#: Writer of no record.
NOBODY = Writer("", "", "")
#: Method of a stream that no ``set_method`` edit named.
METHOD_DEFAULT = "streaming"


class EditRefused(OffloaderError):
    """An edit or a requirement doesn't fit the manifest as it is now. Nothing was written."""

    kind = ErrorKind.FIX_CALL


class StreamPaused(EditRefused):
    """No segment may be assigned while the stream is paused. Nothing was written.

    Args:
        stream: its name.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream} is paused: no segment of it is assigned",
            hint=f"`offloader resume {stream}` lets it go on",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What must be true of the manifest for a commit to count.

    Attributes:
        incarnation: the stream's; another one means the stream was deleted and made again.
        epoch: the owner's own epoch for owner's edits; ``None`` for edits by others (retention, cleanup).
    """

    incarnation: UUID
    epoch: int | None


NOTHING = SegmentSums()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestState:
    """Everything a manifest says, at one record. A value: sharing it is safe, it never changes.

    Attributes:
        record_id: the newest record in it; 0: none yet.
        epoch: the writer generation that owns the stream.
        owner: who opened that epoch; its nonce is the one of the record that did.
        writer, time_ms: of the newest record; times never go back.
        segments: uuid -> segment.
        ledgers: what the source said of ledgers.
        gaps: entries that were nowhere to be read, in the stream's order.
        rewrites: segments on their way that are to replace others; their ranges aren't claimed, and objects under these
            names are nobody's garbage.
        replaced: segments whose entries are in others; no range is theirs any more, their objects await deletion.
        sums: over the offloaded segments.
        committed: see ``committed_end``.
        committed_from: where the run begins that ends there, while ranges in front of it aren't all there; ``None``:
            with the first range there is.
        newest_end: the highest position any range ever claimed; a live segment begins right after it.
        head: what lies before it is truncated.
        assigning: the epochs that assigned segments, from the oldest on; see ``offloader.manifest.testimony``.
        paused: no segment may be assigned.
        source: the ledger database that the stream's positions belong to; ``None``: none is known.
        checkpoint_id: the checkpoint that the sealed parts' runs belong to, 0 for none; says nothing of the stream.
    """

    stream: str
    incarnation: UUID
    record_id: int = 0
    epoch: int = 0
    owner: Writer = NOBODY
    writer: Writer = NOBODY
    time_ms: int = 0
    segments: SegmentTable = field(default_factory=SegmentTable)
    ledgers: LedgerTable = field(default_factory=LedgerTable)
    gaps: tuple[Gap, ...] = ()
    rewrites: tuple[AssignedSegment, ...] = ()
    replaced: tuple[ReplacedSegment, ...] = ()
    sums: SegmentSums = NOTHING
    committed: Position | None = None
    committed_from: Position | None = None
    newest_end: Position | None = None
    head: Position | None = None
    method: str = METHOD_DEFAULT
    paused: bool = False
    held: bool = False
    stream_deleted: bool = False
    source: KnownSource | None = None
    assigning: tuple[AssigningEpoch, ...] = ()
    checkpoint_id: int = field(default=0, compare=False)

    def check(self, requirement: Requirement) -> None:
        """Raises ``EditRefused`` unless ``requirement`` holds here."""
        if requirement.incarnation != self.incarnation:
            raise EditRefused(f"stream {self.stream} was deleted and created again", hint="open it anew")
        if self.stream_deleted:
            raise EditRefused(f"stream {self.stream} was deleted")
        if requirement.epoch is not None and requirement.epoch != self.epoch:
            raise EditRefused(
                f"stream {self.stream} is owned by epoch {self.epoch} (writer {self.owner.name or self.writer.name}), "
                f"not by epoch {requirement.epoch}"
            )

    @property
    def nonce(self) -> str:
        """Of the newest record; empty: there is none."""
        return self.writer.nonce

    @property
    def closed_ledgers(self) -> ClosedLedgers:
        """Ledger id -> last entry id (-1: empty), as the source said."""
        return self.ledgers.closed

    @property
    def deleted_ledgers(self) -> Set[int]:
        """Ledgers that are gone from the stream."""
        return self.ledgers.deleted

    @property
    def hot_released_ledgers(self) -> Set[int]:
        """Ledgers whose hot copies may go."""
        return self.ledgers.hot_released

    @property
    def aside_ledgers(self) -> Set[int]:
        """Ledgers of the hot tier that are left alone: they contradict what is known of those ids."""
        return self.ledgers.aside

    def offloaded(self, first: Position | None = None, last: Position | None = None) -> SegmentSlice:
        """Readable segments, in the stream's order; with bounds only those with a position in ``first`` .. ``last``.

        Records are made when they are asked for: a stream may have a million.
        """
        return self.segments.offloaded(first, last)

    def assigned(self) -> list[SegmentRecord]:
        """Segments that are promised and not there yet, in the stream's order."""
        return self.segments.assigned()

    def find(self, position: Position) -> SegmentRecord | None:
        """The readable segment that holds a position."""
        return next(iter(self.offloaded(position, position)), None)

    def follows(self, end: Position, begin: Position) -> bool:
        """Whether no entry can lie between ``end`` and ``begin``: see the function of that name."""
        return follows(end, begin, self.closed_ledgers)

    def committed_end(self) -> Position | None:
        """End of the longest run of offloaded ranges and recorded gaps; what readers may be told is there.

        It never goes back: neither what retention removes nor what is added in front of it changes that.
        """
        return self.committed

    def prefix_end(self) -> Position | None:
        """As ``committed_end``, but of the run that begins with the first range there is.

        The two differ only while older entries are added in front of what is committed. Who tells a source what is
        safe, or looks for what is missing, asks for this one.
        """
        if self.committed_from is None:
            return self.committed
        return committed_end_from(None, self.segments, self.gaps, self.ledgers)

    def first_position(self) -> Position | None:
        """First readable position: the head, or the begin of the first offloaded segment that is committed."""
        first = self.segments.first_offloaded()
        if self.committed_from is not None:
            first = next((segment.begin for segment in self.offloaded(self.committed_from)), None)
        if self.committed is None or first is None:
            return None
        return first if self.head is None else max(first, self.head)

    def totals(self) -> Totals:
        """Sums over the offloaded segments."""
        return Totals(*self.sums, first=self.segments.first_offloaded(), last=self.committed)
