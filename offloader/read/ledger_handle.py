"""Read handle on one ledger in the cold tier, for any layout of its segments (the proposal's ``ReadHandle``)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from formats.block import Layout
from formats.entries import Position
from formats.index import LedgerGroup
from formats.metadata.messages import BookKeeperLedger, OffloadContext, PulsarLedger
from formats.segment_map import SegmentMap
from offloader.errors import BeyondEnd, Closed, Corrupt, InvalidCall, NotFound
from offloader.manifest.segment_table import is_at_root
from offloader.read import fetch as plan
from offloader.read.cold import CACHED_READ_CACHE_SHARE, require_same_place
from offloader.read.fetch import Fetcher, SegmentObjects
from offloader.read.reader import Entries
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """The part of the ledger in one segment: entries ``first`` .. ``last``."""

    objects: SegmentObjects
    segment_map: SegmentMap
    first: int
    last: int


def read_offloaded(
    store: ObjectStore,
    ledger_id: int,
    context: OffloadContext,
    driver_metadata: Mapping[str, str],
    *,
    stream: str = "",
    settings: ReadSettings | None = None,
) -> ReadHandle:
    """Open a handle on one offloaded ledger (PIP-76 ``LedgerOffloader.readOffloaded``); reads the indexes it needs.

    Args:
        context: names the ledger's objects: one V1 attempt (``uuid``), or V2 segments, or both.
        driver_metadata: where the objects were written; empty, or this store's.
        stream: decides the keys; empty: Pulsar's own layout, objects at the store's root.

    Raises:
        InvalidCall: the context has no complete segment, or a segment was written to another location than ``store``.
        NotFound: no segment has an entry of the ledger.
        ObjectMissing, ObjectChanged, Corrupt: the indexes are damaged.
    """
    relocate = (settings or ReadSettings()).relocate
    require_same_place(f"ledger {ledger_id}", driver_metadata, store, relocate)
    segments = [segment for segment in context.segments if segment.complete]
    for segment in segments:
        require_same_place(f"ledger {ledger_id}, segment {segment.uuid}", segment.driver_metadata, store, relocate)
    objects = [
        SegmentObjects(stream=stream, uuid=segment.uuid, at_root=is_at_root(segment.driver_metadata))
        for segment in segments
    ]
    # A context with segments has its own uuid only if the ledger was offloaded by V1 as well.
    if context.complete and context.uuid is not None and not objects:
        at_root = is_at_root(context.driver_metadata)
        objects.append(SegmentObjects(stream=stream, uuid=context.uuid, ledger_id=ledger_id, at_root=at_root))
    if not objects:
        raise InvalidCall(f"ledger {ledger_id}: nothing of it is offloaded completely")
    return ReadHandle(Fetcher(store, settings or ReadSettings()), ledger_id, objects)


class ReadHandle:
    """Reader of one ledger. Thread-safe.

    Attributes:
        length: payload bytes of the ledger in the newest metadata.
        closed_ledger: whether the metadata marks the ledger as closed.
    """

    def __init__(self, fetcher: Fetcher, ledger_id: int, objects: Sequence[SegmentObjects]) -> None:
        """Read the indexes of ``objects``; raises as ``read_offloaded``."""
        self.ledger_id = ledger_id
        self._fetcher = fetcher
        self._closed = False
        maps = [(each, fetcher.index(each)) for each in objects]
        groups = [
            (each, segment_map, group)
            for each, segment_map in maps
            for group in segment_map.ledgers
            if group.ledger_id == ledger_id and group.first_entry_id >= 0
        ]
        if not groups:
            raise NotFound(f"ledger {ledger_id} isn't in segment {' or '.join(str(each.uuid) for each in objects)}")
        self._pieces = sorted(
            (self._piece(each, segment_map, group) for each, segment_map, group in groups),
            key=lambda piece: piece.first,
        )
        for before, after in itertools.pairwise(self._pieces):
            if after.first <= before.last:
                raise Corrupt(
                    f"ledger {ledger_id}: segments {before.objects.uuid} and {after.objects.uuid} "
                    f"both hold entry {after.first}"
                )
        self.last_entry_id = self._pieces[-1].last
        newest = self._pieces[-1]
        group = next(group for each, _, group in groups if each is newest.objects)
        self.closed_ledger = group.closed
        if newest.segment_map.layout is Layout.V1:
            self.length = BookKeeperLedger.decode(group.metadata).length_bytes
        else:
            self.length = PulsarLedger.decode(group.metadata).size_bytes or 0

    @property
    def first_entry_id(self) -> int:
        """The first entry that the segments hold."""
        return self._pieces[0].first

    def read(self, first_entry: int, last_entry: int) -> Entries:
        """Exactly the entries from ``first_entry`` to ``last_entry``, in order, across segments.

        Raises:
            InvalidCall: the range is none.
            BeyondEnd: after the last entry.
            NotFound: before the first entry that is offloaded, or in a gap between segments.
            Closed: the handle was closed.
            Corrupt, ObjectMissing, ObjectChanged, StoreUnavailable.
        """
        self._require_held(first_entry, last_entry)
        first, last = Position(self.ledger_id, first_entry), Position(self.ledger_id, last_entry)
        batches = []
        for piece in self._pieces:
            if piece.first > last_entry or piece.last < first_entry:
                continue
            numbers = piece.segment_map.find(first, last)
            stored_bytes = int(piece.segment_map.blocks.length[numbers].sum())
            if stored_bytes <= self._fetcher.settings.cache_bytes_max // CACHED_READ_CACHE_SHARE:
                found = self._fetcher.kept_blocks(piece.objects, piece.segment_map, numbers)
            else:
                request_bytes = self._fetcher.settings.request_bytes
                runs = plan.block_runs(piece.objects, piece.segment_map, numbers, request_bytes)
                found = list(itertools.chain.from_iterable(self._fetcher.runs(runs)))
            for batch in found:
                part = batch.between(first, last)
                if len(part):
                    self._fetcher.count_used(piece.objects.stream, part)
                    batches.append(part)
        return Entries(tuple(batches))

    def close(self) -> None:
        """Close the handle: later reads raise ``Closed``. Idempotent."""
        self._closed = True

    def _require_held(self, first_entry: int, last_entry: int) -> None:
        if self._closed:
            raise Closed(f"the handle on ledger {self.ledger_id} was closed", hint="open another one")
        if not 0 <= first_entry <= last_entry:
            raise InvalidCall(f"ledger {self.ledger_id}: entries {first_entry}..{last_entry} are no range")
        if last_entry > self.last_entry_id:
            raise BeyondEnd(
                f"ledger {self.ledger_id}: entry index: {last_entry} beyond last entry id: {self.last_entry_id}",
                last_available=Position(self.ledger_id, self.last_entry_id),
            )
        expected = first_entry
        for piece in self._pieces:
            if expected > last_entry:
                return
            if piece.first > expected:
                raise NotFound(f"ledger {self.ledger_id}: entries {expected}..{piece.first - 1} aren't offloaded here")
            expected = max(expected, piece.last + 1)

    def _piece(self, objects: SegmentObjects, segment_map: SegmentMap, group: LedgerGroup) -> _Piece:
        blocks = segment_map.blocks
        own = blocks.ledger_id == self.ledger_id
        first = int(blocks.first_entry_id[own].min())
        if segment_map.has_extension:
            return _Piece(objects, segment_map, first, int(blocks.last_entry_id[own].max()))
        # A plain index only has the blocks' starts. The metadata gives the ledger's end in this segment, which may be
        # too early (the ledger was open) or too late (it continues in the next segment).
        numbers = segment_map.find(
            Position(self.ledger_id, int(blocks.first_entry_id[own].max())), Position(self.ledger_id, 2**63 - 1)
        )
        [batch] = self._fetcher.kept_blocks(objects, segment_map, numbers[-1:])
        last = int(batch.entry_ids[-1]) if len(batch) else group.last_entry_id
        return _Piece(objects, segment_map, first, last)
