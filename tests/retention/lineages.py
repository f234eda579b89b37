"""A stream's history with what only tests ask of it: how it came about, and what lies between two of its cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from offloader.errors import InvalidCallError
from offloader.retention.cuts import FUTURE, Consumed, Cut, Order, SegmentId, order
from offloader.retention.lineage import Lineage, StreamSegment


def scale_problem(sealed: Sequence[tuple[float, float]], ranges: Sequence[tuple[float, float]]) -> str:
    """Why segments with the key ranges ``ranges`` can't take over from those with ``sealed``; empty if they can."""
    if any(not low < high for low, high in ranges):
        return "a new stream segment has no keys"
    if not sealed or not covers_once(ranges, sealed):
        return "the new stream segments don't take over each key of the sealed ones once"
    return ""


def covers_once(ranges: Iterable[tuple[float, float]], keys: Iterable[tuple[float, float]]) -> bool:
    """Whether ``ranges`` have exactly the keys of ``keys``, each once; ``keys`` don't overlap."""
    return _merged_ranges(ranges) == _merged_ranges(keys)


def _merged_ranges(ranges: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The ranges in order, adjacent ones merged. Overlapping ones stay separate, unequal to any without overlap."""
    found: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if found and low == found[-1][1]:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


@dataclass(frozen=True)
class ScalableLineage(Lineage):
    """A lineage that tests build, scale and query."""

    @classmethod
    def build(
        cls,
        ranges: Mapping[SegmentId, tuple[float, float]],
        epochs: Sequence[Collection[SegmentId]],
        sealed_bytes: Mapping[SegmentId, int] | None = None,
    ) -> ScalableLineage:
        """Build a stream's history.

        Args:
            ranges: key range [from, to) of each segment.
            epochs: the active segments of each epoch, oldest first.
            sealed_bytes: sizes of those that ended, as far as recorded.

        Raises:
            InvalidCallError: an epoch's segments don't cover each key once.
        """
        lasts = {segment: number for number, epoch in enumerate(epochs) for segment in epoch}
        sizes = sealed_bytes or {}
        for number, epoch in enumerate(epochs):
            if not covers_once([ranges[segment] for segment in epoch], [(0.0, 1.0)]):
                raise InvalidCallError(f"the stream segments of epoch {number} don't cover each key once")
        return cls(
            tuple(
                StreamSegment(
                    segment,
                    *ranges[segment],
                    lasts[segment] + 1 if lasts[segment] + 1 < len(epochs) else None,
                    sizes.get(segment),
                )
                for segment in sorted(lasts, key=lambda segment: segment.age_order)
            )
        )

    def scaled(self, sealed: Mapping[SegmentId, int | None], ranges: Sequence[tuple[float, float]]) -> ScalableLineage:
        """The stream after a scaling.

        Args:
            sealed: segments that end, with their sizes as far as known.
            ranges: key ranges of their successors.

        Raises:
            InvalidCallError: the successors' keys differ from the sealed ones', or a sealed segment isn't active.
        """
        active = {s.segment: s for s in self.segments if s.ended_epoch is None}
        unknown = [str(segment) for segment in sealed if segment not in active]
        if unknown:
            raise InvalidCallError(f"a scaling seals {', '.join(unknown)}: no stream segment that takes entries")
        if problem := scale_problem([(active[s].key_from, active[s].key_to) for s in sealed], ranges):
            raise InvalidCallError(problem)
        epoch = 1 + max(s.segment.epoch for s in self.segments)
        number = 1 + max(s.segment.number for s in self.segments)
        kept = [
            StreamSegment(s.segment, s.key_from, s.key_to, epoch, sealed[s.segment]) if s.segment in sealed else s
            for s in self.segments
        ]
        new = [StreamSegment(SegmentId(number + n, epoch), *keys) for n, keys in enumerate(ranges)]
        return ScalableLineage((*kept, *new))

    @cached_property
    def first_cut(self) -> Cut:
        """The cut before everything."""
        return self.cut_of(Consumed(frozenset(), {}))

    def deleted_between(self, head: Cut, cut: Cut) -> list[SegmentId]:
        """Segments to delete when the start position moves from ``head`` to ``cut``, oldest first."""
        gone = self.consumed(cut).full - self.consumed(head).full
        return sorted(gone, key=lambda segment: segment.age_order)

    def between(self, start: Cut, end: Cut) -> list[SegmentId]:
        """Segments that a reader from ``start`` to ``end`` reads, oldest first.

        Args:
            start: a cut, or ``UNBOUNDED``: the beginning.
            end: a cut, or ``UNBOUNDED``: the tail.

        Raises:
            InvalidCallError: ``end`` isn't at or after ``start``.
        """
        before, after = self.consumed(start), self.consumed(end)
        if end.offsets:
            if order(after, before) is not Order.EQUAL_OR_AFTER:
                raise InvalidCallError(f"the end {end} isn't at or after the start {start}")
            met = after.full | {segment for segment, offset in end.offsets.items() if offset != FUTURE}
        else:
            met = frozenset(self.by_id)
        return [s.segment for s in self.segments if s.segment in met and s.segment not in before.full]

    def span(self, cut: Cut) -> dict[SegmentId, int]:
        """The last epoch of each listed segment, no later than the one that created the cut's youngest segment."""
        youngest = max((segment.epoch for segment in cut.offsets), default=0)
        self._require_known(cut)
        lasts = {segment: self.by_id[segment].ended_epoch for segment in cut.offsets}
        return {segment: youngest if ended is None else min(youngest, ended - 1) for segment, ended in lasts.items()}
