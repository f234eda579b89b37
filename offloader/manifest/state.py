"""Immutable view of a stream's manifest at one record, and changes to it. Does no I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, field
from operator import attrgetter
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint import (
    ASIDE,
    DELETED,
    HOT_RELEASED,
    AssignedSegment,
    AssigningEpoch,
    KnownSource,
    ReplacedSegment,
)
from formats.entries import Position
from formats.keys import Testimony
from formats.manifest import Gap, GapFilled, Totals, Writer
from formats.metadata.messages import OffloadContext, OffloadSegment
from offloader.coverage import ENTRY_ID_MAX, OpenRange, RangeSequence, SortedRanges, contiguous_end, follows
from offloader.errors import ErrorKind, FencedError, OffloaderError
from offloader.manifest.ledger_table import ClosedLedgers, FlaggedLedgers, LedgerTable
from offloader.manifest.segment_table import (
    SealedSegments,
    SegmentRecord,
    SegmentSlice,
    SegmentStatus,
    SegmentSums,
    SegmentTable,
    Words,
    rows_not_after,
)

__all__ = ["EditRefusedError", "ManifestState", "SegmentRecord", "SegmentStatus", "SegmentSums", "StreamPaused"]

#: Compacted rows processed together, at first and at most.
_STRIDE_ROWS = 64
_STRIDE_ROWS_MAX = 65_536


class _Sealed(RangeSequence):
    """The ranges of a run of compacted segments."""

    def __init__(self, part: SealedSegments, ledgers: LedgerTable) -> None:
        self._part, self._ledgers = part, ledgers

    def after(self, reached: Position | None) -> OpenRange | None:
        part = self._part
        row = 0 if reached is None else rows_not_after(part.columns, reached)
        while row < len(part.columns) and part.is_dead(row):
            row += 1
        return (part.begin(row), part.end(row)) if row < len(part.columns) else None

    def end_of_run(self, begin: Position, end: Position, until: Position | None) -> Position:  # noqa: ARG002
        part, columns, stride = self._part, self._part.columns, _STRIDE_ROWS
        start = rows_not_after(columns, begin) - 1
        limit = len(columns) if until is None else rows_not_after(columns, until)
        while True:
            rows = part.live_rows(start, min(start + stride, limit))
            ledger, entry, last_ledger, last_entry = (
                getattr(columns, f"{end}_id")[rows].astype(np.int64)
                for end in ("begin_ledger", "begin_entry", "end_ledger", "end_entry")
            )
            follow = self._ledgers.follow((last_ledger[:-1], last_entry[:-1]), (ledger[1:], entry[1:]))
            breaks = np.flatnonzero(~follow)
            if len(breaks):
                return part.end(int(rows[breaks[0]]))
            if start + stride >= limit:
                return part.end(int(rows[-1]))
            start, stride = int(rows[-1]), min(stride * 4, _STRIDE_ROWS_MAX)


class _Tail(RangeSequence):
    """The ranges of segments that aren't compacted yet; an assigned one has no end."""

    def __init__(self, segments: SegmentTable) -> None:
        self._segments = segments

    def after(self, reached: Position | None) -> OpenRange | None:
        order = self._segments.order
        at = 0 if reached is None else bisect_right(order, reached, key=lambda item: item[0])
        if at == len(order):
            return None
        begin, uuid = order[at]
        record = self._segments.tail[uuid]
        return begin, None if record.status is SegmentStatus.ASSIGNED else record.end


def ranges_of(segments: SegmentTable, gaps: Sequence[Gap], ledgers: LedgerTable) -> list[RangeSequence]:
    """The ranges that the committed end passes: of offloaded and retired segments, and of gaps."""
    return [*(_Sealed(part, ledgers) for part in segments.sealed), _Tail(segments), SortedRanges(gaps)]


#: Writer of the empty manifest.
NOBODY = Writer("", "", "")
#: Method of a stream without a ``set_method`` edit.
METHOD_DEFAULT = "streaming"


class EditRefusedError(OffloaderError):
    """An edit or a requirement doesn't fit the current manifest. Nothing was written."""

    kind = ErrorKind.INVALID_REQUEST


class StreamPaused(EditRefusedError):
    """The stream is paused: no segment may be assigned. Nothing was written."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream} is paused: no segments are assigned",
            hint=f"`offloader stream resume {stream}` resumes it",
        )


NOTHING = SegmentSums()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestState:
    """The whole manifest at one record. Immutable, so safe to share.

    Attributes:
        record_id: the newest record in it; 0: none yet.
        epoch: the writer generation that owns the stream.
        owner: the writer that opened that epoch; its nonce is that record's.
        writer, time_ms: of the newest record; times never go back.
        gaps: entries that no tier had, in the stream's order.
        fills: objects with entries of gaps, in the stream's order; readers aren't given them.
        rewrites: segments in flight that are to replace others; they claim no range, and objects under these names
            aren't garbage.
        replaced: segments whose entries are in others; they claim no range, and their objects await deletion.
        sums: over the offloaded segments.
        committed_from: where the committed run begins, while ranges in front of it are incomplete; ``None``: with the
            first range.
        newest_end: the highest position any range ever claimed; a live segment begins right after it.
        head: entries before it are truncated.
        assigning: the epochs that assigned segments, oldest first; see ``offloader.manifest.state``.
        source: the ledger database that the stream's positions belong to; ``None`` if unknown.
        checkpoint_id: the checkpoint that the compacted parts' runs belong to, 0 for none; not a property of the
            stream.
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
    fills: tuple[GapFilled, ...] = ()
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

    def check(self, incarnation: UUID, epoch: int | None) -> None:
        """Checks the preconditions of a commit.

        Args:
            incarnation: the stream's; another one means that it was deleted and recreated.
            epoch: the owner's own epoch for owner's edits; ``None`` for edits by others (retention, cleanup).

        Raises:
            EditRefusedError: it doesn't hold here.
        """
        if incarnation != self.incarnation:
            raise EditRefusedError(f"stream {self.stream} was deleted and created again", hint="open it again")
        if self.stream_deleted:
            raise EditRefusedError(f"stream {self.stream} was deleted")
        if epoch is not None and epoch != self.epoch:
            raise EditRefusedError(
                f"stream {self.stream} is owned by epoch {self.epoch} (writer {self.owner.name or self.writer.name}), "
                f"not by epoch {epoch}"
            )

    @property
    def nonce(self) -> str:
        """Of the newest record; empty if there is none."""
        return self.writer.nonce

    @property
    def closed_ledgers(self) -> ClosedLedgers:
        """Ledger id -> last entry id (-1: empty), as reported by the source."""
        return self.ledgers.closed

    @property
    def deleted_ledgers(self) -> Set[int]:
        """Ledgers that are deleted from the stream."""
        return FlaggedLedgers(self.ledgers, DELETED)

    @property
    def hot_released_ledgers(self) -> Set[int]:
        """Ledgers whose hot copies may be deleted."""
        return FlaggedLedgers(self.ledgers, HOT_RELEASED)

    @property
    def aside_ledgers(self) -> Set[int]:
        """Ledgers of the hot tier that are ignored: they contradict the recorded facts of those ids."""
        return FlaggedLedgers(self.ledgers, ASIDE)

    def offloaded(self, first: Position | None = None, last: Position | None = None) -> SegmentSlice:
        """Readable segments, in the stream's order; with bounds only those with a position in ``first`` .. ``last``.

        Records are built on access: a stream may have a million.
        """
        return self.segments.offloaded(first, last)

    def offloaded_before(self, head: Position) -> SegmentSlice:
        """Readable segments that end before ``head``: ranges are disjoint, so only the last one can span it."""
        found = self.offloaded(None, head.previous())
        return found[:-1] if len(found) and (found[-1].end or head) >= head else found

    def assigned(self) -> list[SegmentRecord]:
        """Segments that are assigned and not offloaded yet, in the stream's order."""
        return self.segments.assigned()

    def uuids_aside(self) -> set[UUID]:
        """The uuids of objects that claim no range: those that replace others or are replaced, and fills."""
        return {each.uuid for some in (self.rewrites, self.replaced, self.fills) for each in some}

    def named(self, high: Words, low: Words) -> NDArray[np.bool_]:
        """Which of many uuids the manifest names: segments of any status, and ``uuids_aside``.

        Args:
            high, low: the halves of each uuid, shape (n,).
        """
        found = self.segments.sealed_uuids(high, low)
        aside = self.uuids_aside()
        for row in np.flatnonzero(~found).tolist():
            uuid = UUID(int=int(high[row]) << 64 | int(low[row]))
            found[row] = uuid in self.segments.tail or uuid in aside
        return found

    def is_promised(self, uuid: UUID) -> bool:
        """Whether a writer may still upload objects of this uuid: it is assigned, and neither offloaded nor failed."""
        record = self.segments.tail.get(uuid)
        is_assigned = record is not None and record.status is SegmentStatus.ASSIGNED
        return is_assigned or any(each.uuid == uuid for each in self.rewrites)

    def find(self, position: Position) -> SegmentRecord | None:
        """The readable segment that holds a position."""
        return next(iter(self.offloaded(position, position)), None)

    def follows(self, end: Position, begin: Position) -> bool:
        """Whether no entry can lie between ``end`` and ``begin``: see the function of that name."""
        return follows(end, begin, self.closed_ledgers)

    def committed_end(self) -> Position | None:
        """End of the longest run of offloaded ranges and recorded gaps: the end of what readers see.

        It never moves back: neither retention nor ranges added in front change it.
        """
        return self.committed

    def prefix_end(self) -> Position | None:
        """As ``committed_end``, but of the run that begins with the first range.

        The two differ only while older entries are added in front of the committed ones. Use this one to release
        entries of a source, or to find missing ones.
        """
        if self.committed_from is None:
            return self.committed
        return contiguous_end(None, self.ranges(), self.ledgers.closed)

    def ranges(self) -> list[RangeSequence]:
        """The ranges of segments and gaps."""
        return ranges_of(self.segments, self.gaps, self.ledgers)

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


#: Sort key of gaps.
first_of: Callable[[Gap], Position] = attrgetter("first")


#: Name of the driver in recorded driver metadata.
DRIVER_KEY = "managedLedgerOffloadDriver"


def offload_context(state: ManifestState, ledger_id: int, *, hot: Collection[int] | None = None) -> OffloadContext:
    """Where the entries of a ledger are, in Pulsar's terms (PIP-76, metadata changes).

    A ledger in one V1 object has the attempt's uuid and ``complete``. A ledger in V2 segments lists them in order, each
    with the ledger's last entry in it; ``uuid`` is the first one's, and ``complete`` remains false, as in the proposal.

    Args:
        ledger_id: the ledger; an unknown one has an empty context.
        hot: the ledgers that the hot tier, or the broker, lists now: any other is deleted there. ``None``: it wasn't
            asked, and a ledger counts as deleted once the manifest has released or deleted it.
    """
    ends = Position(ledger_id, 0), Position(ledger_id, ENTRY_ID_MAX)
    found = [s for s in state.segments.in_order(*ends) if s.status is not SegmentStatus.RETIRED]
    pieces = [(segment, end) for segment in found if (end := _end_in(segment, ledger_id)) is not None]
    if not pieces:
        return OffloadContext()
    first, _ = pieces[0]
    is_v1 = first.layout == 1
    is_released = ledger_id in state.hot_released_ledgers or ledger_id in state.deleted_ledgers
    is_deleted = is_released if hot is None else ledger_id not in hot
    segments = tuple(
        OffloadSegment(
            uuid=segment.uuid,
            complete=segment.status is SegmentStatus.OFFLOADED,
            bookkeeper_deleted=is_deleted and segment.status is SegmentStatus.OFFLOADED,
            assigned_ms=segment.assigned_ms,
            offloaded_ms=segment.offloaded_ms,
            end_entry_id=end if end >= 0 else None,
            driver_name=segment.driver.get(DRIVER_KEY, ""),
            driver_metadata=segment.driver,
        )
        for segment, end in pieces
    )
    return OffloadContext(
        uuid=first.uuid,
        complete=is_v1 and first.status is SegmentStatus.OFFLOADED,
        bookkeeper_deleted=is_deleted,
        timestamp_ms=(is_v1 and first.offloaded_ms) or first.assigned_ms,
        driver_name=first.driver.get(DRIVER_KEY, ""),
        driver_metadata=first.driver,
        segments=() if is_v1 else segments,
    )


def _end_in(segment: SegmentRecord, ledger_id: int) -> int | None:
    """The ledger's last entry in the segment, -1 while that is open; ``None`` when it has none."""
    if segment.summary is not None:
        return next((span.last_entry_id for span in segment.spans if span.ledger_id == ledger_id), None)
    return -1 if segment.begin.ledger_id <= ledger_id <= (segment.end or segment.begin).ledger_id else None


def require_takeable(
    state: ManifestState, now_ms: int, takeover_after_s: float, *, take_over: bool, option: str = "--take-over"
) -> None:
    """Refuses to take over a stream whose owner was active less than ``takeover_after_s`` ago.

    Args:
        now_ms: ms since 1970 UTC. Fencing doesn't depend on clocks; they only decide whether to wait.
        option: sets ``take_over``, for the error's hint.

    Raises:
        FencedError: there is such an owner; names it, and its URL if known.
    """
    age_s = (now_ms - state.time_ms) / 1000
    if take_over or state.epoch == 0 or age_s >= takeover_after_s:
        return
    where = f" at {state.writer.url}" if state.writer.url else ""
    raise FencedError(
        f"stream {state.stream} is owned by {state.writer.name}{where}, which wrote its last record {age_s:.0f} s ago",
        hint=f"ask that owner, wait until it is inactive for takeover_after ({takeover_after_s:g} s), or use {option}",
    )


def newest_of(assigning: Sequence[AssigningEpoch], epoch_nonce: str) -> Testimony | None:
    """The assignment evidence for objects written now under a uuid of that epoch; ``None`` if it assigned nothing."""
    known = _known(assigning, epoch_nonce)
    return None if known is None else Testimony(epoch_nonce=epoch_nonce, record_id=known.record_id)


def tells_of_loss(assigning: Sequence[AssigningEpoch], testimony: Testimony) -> bool:
    """Whether an object was assigned by a record that the manifest lacks."""
    known = _known(assigning, testimony.epoch_nonce)
    return known is None or testimony.record_id > known.record_id


def _known(assigning: Sequence[AssigningEpoch], epoch_nonce: str) -> AssigningEpoch | None:
    return next((each for each in reversed(assigning) if each.nonce == epoch_nonce), None)
