"""A stream's history with what only tests ask of it: how it came about, and what lies between two of its cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from offloader.errors import InvalidCallError
from offloader.retention.cuts import FUTURE, SegmentId, StreamCut
from offloader.retention.lineage import END, Consumed, Lineage, StreamSegment


def full(consumed: Consumed) -> set[SegmentId]:
    """Segments that are read to their end."""
    return {segment for segment, offset in consumed.items() if offset is END}


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


def following(keys: tuple[float, float], sealed: Mapping[SegmentId, tuple[float, float]]) -> tuple[SegmentId, ...]:
    """The sealed segments with some of the keys."""
    return tuple(segment for segment, (low, high) in sealed.items() if keys[0] < high and low < keys[1])


def _merged_ranges(ranges: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The ranges in order, adjacent ones merged. Overlapping ones stay separate, unequal to any without overlap."""
    found: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if found and low == found[-1][1]:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


@dataclass(frozen=True, slots=True)
class KeyedSegment(StreamSegment):
    """A range segment as the proposals describe it.

    Attributes:
        key_from: its first key, in [0, 1).
        key_to: the first key after it.
        ended_epoch: the first epoch without it, ``None``: active.
    """

    key_from: float = 0.0
    key_to: float = 1.0
    ended_epoch: int | None = None


@dataclass(frozen=True)
class ScalableLineage(Lineage):
    """A lineage that tests build from epochs and key ranges, scale and query."""

    @classmethod
    def build(
        cls,
        ranges: Mapping[SegmentId, tuple[float, float]],
        epochs: Sequence[Collection[SegmentId]],
        sealed_bytes: Mapping[SegmentId, int] | None = None,
    ) -> ScalableLineage:
        """Build a stream's history. Segments follow those with some of their keys that the epoch before them has.

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
                KeyedSegment(
                    segment,
                    following(
                        ranges[segment], {s: ranges[s] for s, last in lasts.items() if last + 1 == segment.epoch}
                    ),
                    sizes.get(segment),
                    *ranges[segment],
                    lasts[segment] + 1 if lasts[segment] + 1 < len(epochs) else None,
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
        active = {one.segment: one for one in self.active}
        unknown = [str(segment) for segment in sealed if segment not in active]
        if unknown:
            raise InvalidCallError(f"a scaling seals {', '.join(unknown)}: no stream segment that takes entries")
        keys = {s: (active[s].key_from, active[s].key_to) for s in sealed}
        if problem := scale_problem([*keys.values()], ranges):
            raise InvalidCallError(problem)
        epoch = 1 + max(one.segment.epoch for one in self.keyed)
        number = 1 + max(one.segment.number for one in self.keyed)
        kept = [
            replace(one, ended_epoch=epoch, sealed_bytes=sealed[one.segment]) if one.segment in sealed else one
            for one in self.keyed
        ]
        new = [
            KeyedSegment(SegmentId(number + n, epoch), following(own, keys), None, *own) for n, own in enumerate(ranges)
        ]
        return ScalableLineage((*kept, *new))

    @cached_property
    def keyed(self) -> list[KeyedSegment]:
        """All segments, oldest first."""
        found = [one for one in self.segments if isinstance(one, KeyedSegment)]
        return sorted(found, key=lambda one: one.segment.age_order)

    @cached_property
    def active(self) -> tuple[KeyedSegment, ...]:
        """Active segments, by keys."""
        return tuple(sorted((one for one in self.keyed if one.ended_epoch is None), key=lambda one: one.key_from))

    @cached_property
    def first_cut(self) -> StreamCut:
        """The cut before everything."""
        return self.cut_of({})

    def deleted_between(self, head: StreamCut, cut: StreamCut) -> list[SegmentId]:
        """Segments to delete when the start position moves from ``head`` to ``cut``, oldest first."""
        gone = full(self.consumed(cut)) - full(self.consumed(head))
        return sorted(gone, key=lambda segment: segment.age_order)

    def between(self, start: StreamCut, end: StreamCut) -> list[SegmentId]:
        """Segments that a reader from ``start`` to ``end`` reads, oldest first.

        Args:
            start: a cut, or ``UNBOUNDED``: the beginning.
            end: a cut, or ``UNBOUNDED``: the tail.

        Raises:
            InvalidCallError: ``end`` isn't at or after ``start``.
        """
        if end.offsets:
            if not self.reaches(end, start):
                raise InvalidCallError(f"the end {end} isn't at or after the start {start}")
            met = full(self.consumed(end)) | {segment for segment, offset in end.offsets.items() if offset != FUTURE}
        else:
            met = set(self.by_id)
        return sorted(met - full(self.consumed(start)), key=lambda segment: segment.age_order)

    def span(self, cut: StreamCut) -> dict[SegmentId, int]:
        """The last epoch of each listed segment, no later than the one that created the cut's youngest segment."""
        youngest = max((segment.epoch for segment in cut.offsets), default=0)
        self._require_known(cut)
        lasts = {one.segment: one.ended_epoch for one in self.keyed if one.segment in cut.offsets}
        return {segment: youngest if ended is None else min(youngest, ended - 1) for segment, ended in lasts.items()}
