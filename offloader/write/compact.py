"""Compaction: merge small neighbouring segments of a stream into larger ones.

The planner is a pure function of the manifest's view. It decides which segments are merged:

* Only neighbours: no entry can lie between the end of one and the begin of the next, as far as the manifest knows. So a
  gap, a segment in flight, and a ledger whose end isn't known all end a run of neighbours.
* Only V2 segments of the stream that are wholly after its start, without a ledger marked as deleted and without gaps
  inside. V1 objects are kept: Pulsar's own offloader and readers from before the streaming method read them. Adopted
  objects belong to Pulsar and can't be replaced; they are named.
* Never into more than the configured segment size, by the rule of the writer: bytes of entries with their headers.
* Only if the result is at least twice the largest segment in it. So each rewrite of an entry at least doubles its
  segment: however often compaction runs, an entry is written at most log2(configured size / first size) times more, and
  the remaining segments are few: their sizes fall like a geometric series.

``replacement`` executes the plan: see there for the order of durable steps and their guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from formats.entries import ENTRY_HEADER_BYTES, Position
from formats.manifest import Rewritten
from formats.summary import Layout, SegmentSummary
from offloader.coverage import Range, follows
from offloader.errors import OffloaderError
from offloader.manifest.log import ManifestLog
from offloader.manifest.segment_table import is_at_root
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.settings import OffloadSettings, ReadSettings
from offloader.write.backfill import HistoryTools, PlannedSegment
from offloader.write.quota import segment_bytes_max
from offloader.write.replacement import GROUP_SEGMENTS, RewriteGroup, SegmentReplacement

#: Segments that one is made of, at most: bounds the manifest record and the index of the result.
MERGED_SEGMENTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Merge:
    """Neighbouring segments that become one. A single one is only recoded.

    Attributes:
        old: in the stream's order.
    """

    old: tuple[SegmentRecord, ...]

    @property
    def begin(self) -> Position:
        return self.old[0].begin

    @property
    def end(self) -> Position:
        return self.old[-1].content.end

    @property
    def entries(self) -> int:
        return sum(each.content.entries for each in self.old)

    @property
    def payload_bytes(self) -> int:
        return sum(each.content.payload_bytes for each in self.old)

    @property
    def object_bytes(self) -> int:
        """Bytes of the objects that are replaced."""
        return sum(each.object_bytes for each in self.old)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The merges that a compaction would do now.

    Attributes:
        merges: in the stream's order; no segment is in two of them.
        adopted: segments that would be merged if they weren't adopted: adopted objects can't be replaced.
    """

    merges: tuple[Merge, ...]
    adopted: tuple[SegmentRecord, ...] = ()


def plan_compaction(
    state: ManifestState, settings: OffloadSettings, *, recode: bool = False, within: Range | None = None
) -> CompactionPlan:
    """Plan the merges of a stream. Pure.

    Args:
        settings: the segment size; with ``recode`` the codec.
        recode: rewrite segments alone, too, whose compression isn't the codec's.
        within: consider only segments that lie between these positions, both included; ``None``: all.
    """
    segments: Sequence[SegmentRecord] = state.offloaded()
    if within is not None:
        first, last = within
        segments = [each for each in state.offloaded(first, last) if first <= each.begin and each.content.end <= last]
    merges = tuple(_merges(state, segments, settings, recode=recode, adopted=False))
    if not any(map(_is_foreign, segments)):
        return CompactionPlan(merges)
    with_adopted = _merges(state, segments, settings, recode=False, adopted=True)
    return CompactionPlan(merges, tuple(each for merge in with_adopted for each in merge.old if _is_foreign(each)))


def _merges(
    state: ManifestState,
    segments: Sequence[SegmentRecord],
    settings: OffloadSettings,
    *,
    recode: bool,
    adopted: bool,
) -> Iterator[Merge]:
    bytes_max = segment_bytes_max(settings)
    for run in _runs(state, segments, adopted=adopted):
        for packed in _packed(run, bytes_max):
            yield from map(Merge, _worthwhile(packed, settings, recode=recode))


def _runs(state: ManifestState, segments: Sequence[SegmentRecord], *, adopted: bool) -> Iterator[list[SegmentRecord]]:
    """Runs of neighbours that may be merged, whatever their sizes."""
    closed = state.closed_ledgers
    run: list[SegmentRecord] = []
    for segment in segments:
        if run and not follows(run[-1].content.end, segment.begin, closed):
            yield run
            run = []
        if _is_mergeable(state, segment, adopted=adopted):
            run.append(segment)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _is_foreign(segment: SegmentRecord) -> bool:
    return not segment.owned or is_at_root(segment.driver)


def _is_mergeable(state: ManifestState, segment: SegmentRecord, *, adopted: bool) -> bool:
    if segment.layout != int(Layout.V2) or (_is_foreign(segment) and not adopted):
        return False
    if state.head is not None and segment.begin < state.head:
        return False
    return all(
        span.entries == span.last_entry_id - span.first_entry_id + 1 and span.ledger_id not in state.deleted_ledgers
        for span in segment.spans
    )


def _size(segment: SegmentRecord) -> int:
    """Bytes of its entries with their headers."""
    return segment.content.payload_bytes + ENTRY_HEADER_BYTES * segment.content.entries


def _packed(run: Sequence[SegmentRecord], bytes_max: int) -> Iterator[list[SegmentRecord]]:
    """Parts of a run that fit into one segment each; one that is larger than half of that is a part alone."""
    packed, packed_bytes = list[SegmentRecord](), 0
    for segment in run:
        size = _size(segment)
        is_large = 2 * size > bytes_max
        if packed and (is_large or packed_bytes + size > bytes_max or len(packed) == MERGED_SEGMENTS_MAX):
            yield packed
            packed, packed_bytes = [], 0
        if is_large:
            yield [segment]
        else:
            packed.append(segment)
            packed_bytes += size
    if packed:
        yield packed


def _worthwhile(
    packed: Sequence[SegmentRecord], settings: OffloadSettings, *, recode: bool
) -> Iterator[tuple[SegmentRecord, ...]]:
    """The segments to merge of neighbours that fit into one segment: all, or those on each side of the largest."""
    sizes = [_size(each) for each in packed]
    if len(packed) > 1 and 2 * max(sizes) <= sum(sizes):
        yield tuple(packed)
    elif packed:
        at = sizes.index(max(sizes))
        yield from _worthwhile(packed[:at], settings, recode=recode)
        if recode and packed[at].content.compressed != (settings.codec != "none"):
            yield (packed[at],)
        yield from _worthwhile(packed[at + 1 :], settings, recode=recode)


@dataclass(slots=True)
class CompactionResult:
    """Result of a run.

    Attributes:
        merged: name and summary of each new segment, in the stream's order.
        replaced: segments whose objects are deleted after the grace period.
        replaced_bytes: of their objects.
        adopted: segments that would have been merged, but are adopted.
        errors: why segments couldn't be merged.
    """

    merged: list[tuple[UUID, SegmentSummary]] = field(default_factory=list)
    replaced: int = 0
    replaced_bytes: int = 0
    adopted: tuple[SegmentRecord, ...] = ()
    errors: list[OffloaderError] = field(default_factory=list)


class Compaction:
    """One run over one stream. Single use.

    Args:
        log: the stream's manifest; the owner of its epoch continues.
        tools: of the process; their settings determine how the new segments are written.
        read: of the stream's reader.
        recode, within: see ``plan_compaction``.
        beside_owner: also if the stream's owner was active recently.
        is_stopped: called at intervals; when True the run ends with an error.
        on_plan: called with the plan.
        on_progress: called with each new segment.
    """

    def __init__(
        self,
        log: ManifestLog,
        tools: HistoryTools,
        read: ReadSettings,
        *,
        recode: bool,
        within: Range | None,
        beside_owner: bool,
        is_stopped: Callable[[], bool],
        on_plan: Callable[[CompactionPlan], None],
        on_progress: Callable[[SegmentSummary], None],
    ) -> None:
        self._log = log
        self._replacement = SegmentReplacement(log, tools, is_stopped, read=read)
        self._plan_of = partial(plan_compaction, settings=tools.settings, recode=recode, within=within)
        self._beside_owner = beside_owner
        self._on_plan, self._on_progress = on_plan, on_progress
        self._left: list[Merge] = []
        self._per_group = GROUP_SEGMENTS
        self._damaged = set[UUID]()
        self._result = CompactionResult()

    def run(self) -> CompactionResult:
        """Merge the segments of one plan.

        Merged segments aren't merged again: each entry is written at most once, unless another writer changes the
        stream during the run.

        Raises: as ``BackfillService.compact``.
        """
        plan = self._plan_of(self._log.load())
        self._on_plan(plan)
        self._result.adopted = plan.adopted
        if plan.merges:
            self._replacement.join(beside_owner=self._beside_owner)
            self._plan_again(self._log.state)
            self._replacement.run(
                self._next_group,
                on_replaced=self._replaced,
                on_failed=self._failed,
                on_changed=self._plan_again,
            )
        return self._result

    def _plan_again(self, state: ManifestState) -> None:
        merges = self._plan_of(state).merges
        self._left = [each for each in merges if self._damaged.isdisjoint(old.uuid for old in each.old)]

    def _next_group(self, _state: ManifestState) -> RewriteGroup | None:
        """A few merges, so that a run over many small segments doesn't write two records for each result."""
        chosen, segments = list[Merge](), 0
        for merge in self._left:
            segments += len(merge.old)
            if chosen and (segments > MERGED_SEGMENTS_MAX or len(chosen) == self._per_group):
                break
            chosen.append(merge)
        if not chosen:
            return None
        return RewriteGroup(
            tuple(old for merge in chosen for old in merge.old),
            tuple(PlannedSegment(Layout.V2, merge.begin, merge.end) for merge in chosen),
        )

    def _replaced(self, group: RewriteGroup, by: Sequence[Rewritten]) -> None:
        self._result.merged += [(each.uuid, each.summary) for each in by]
        self._result.replaced += len(group.old)
        self._result.replaced_bytes += sum(each.object_bytes for each in group.old)
        self._left = self._left[len(group.new) :]
        for each in by:
            self._on_progress(each.summary)

    def _failed(self, group: RewriteGroup, error: OffloaderError) -> None:
        """Leave the damaged segments out; the others are merged."""
        if len(group.new) > 1:  # which of them is damaged?
            self._per_group = 1
            return
        self._result.errors.append(error)
        self._damaged |= {each.uuid for each in group.old}
        self._left = self._left[len(group.new) :]
