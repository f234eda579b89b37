"""Recovers facts of a stream whose manifest lost records: rules M34 to M40 of docs/explanation/manifest.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from formats.entries import Position
from formats.errors import FormatError
from formats.keys import (
    Testimony,
    checkpoint_key,
    is_segment_uuid_of,
    object_testimony,
    parse_object_key,
    record_key,
    stream_prefix,
)
from formats.manifest import (
    Adopt,
    Assign,
    Edit,
    Failed,
    Gap,
    GapFilled,
    LedgerClosed,
    Offloaded,
    Purged,
    Recover,
    Release,
    Replace,
    Restore,
    Truncate,
    decode_record,
)
from formats.summary import SegmentSummary
from offloader.coverage import Range, without
from offloader.errors import CorruptError, NotFoundError, OffloaderError
from offloader.manifest.boundary import incarnations_in, list_manifest, listed
from offloader.manifest.load import view_in_checkpoint
from offloader.manifest.segment_table import is_at_root
from offloader.manifest.state import ManifestState, tells_of_loss
from offloader.store.base import ObjectInfo, ObjectStore


class AtRoot(NamedTuple):
    """An adopted segment whose objects lie at the store's root, so that a listing of the stream doesn't show them."""

    summary: SegmentSummary
    owned: bool


@dataclass(slots=True)
class Survivors:
    """Facts in the surviving records and checkpoints, each read for itself.

    Attributes:
        ranges: uuid -> range, of segments that were offloaded or assigned with an end, and weren't released.
        at_root: uuid -> segment, of those with objects at the store's root.
        gone: segments that failed, were purged, released or replaced.
        gaps: that were recorded.
        fills: uuid -> range, of objects with entries of gaps; also those that were dropped with their ledger.
        closed: ledger id -> last entry id.
        head: the furthest one.
        unreadable: keys of unreadable records and checkpoints.
        numbers: of the existing records, ascending, of the incarnation read last.
    """

    ranges: dict[UUID, Range] = field(default_factory=dict)
    at_root: dict[UUID, AtRoot] = field(default_factory=dict)
    gone: set[UUID] = field(default_factory=set)
    gaps: list[Gap] = field(default_factory=list)
    fills: dict[UUID, Range] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)
    head: Position | None = None
    unreadable: list[str] = field(default_factory=list)
    numbers: Sequence[int] = ()

    def absent(self, first: int) -> list[tuple[int, int]]:
        """Runs of missing numbers from ``first`` up to the highest existing one."""
        whole = (first, max(self.numbers, default=0))
        return without([whole], [(number, number) for number in self.numbers])

    def add_view(self, state: ManifestState) -> None:
        """Adds a checkpoint's facts; later records change them."""
        for segment in state.segments.in_order():
            if segment.end is not None:
                self.ranges[segment.uuid] = segment.begin, segment.end
            if segment.summary is not None and is_at_root(segment.driver):
                self.at_root[segment.uuid] = AtRoot(segment.summary, segment.owned)
        self.gaps += [gap for gap in state.gaps if gap not in self.gaps]
        self.fills |= {fill.uuid: (fill.first, fill.last) for fill in state.fills}
        self.closed |= state.closed_ledgers
        self.head = _further(self.head, state.head)

    def add(self, edit: Edit) -> None:
        """Adds a record's facts."""
        match edit:
            case Assign() if edit.end is not None:
                self.ranges[edit.uuid] = edit.begin, edit.end
            case Offloaded() | Adopt():
                self.ranges[edit.uuid] = edit.summary.begin, edit.summary.end
                if isinstance(edit, Adopt) and is_at_root(edit.driver):
                    self.at_root[edit.uuid] = AtRoot(edit.summary, edit.owned)
            case Replace():
                self._let_go(*edit.uuids)
                self.ranges |= {each.uuid: (each.summary.begin, each.summary.end) for each in edit.by}
            case Recover():
                self.ranges |= {each.uuid: (each.summary.begin, each.summary.end) for each in edit.by}
            case Failed():
                self._let_go(edit.uuid)
            case Purged() | Release():
                self._let_go(*edit.uuids)
            case Gap() if edit not in self.gaps:
                self.gaps.append(edit)
            case GapFilled():
                self.fills[edit.uuid] = edit.first, edit.last
            case LedgerClosed():
                self.closed[edit.ledger_id] = edit.last_entry_id
            case Truncate():
                self.head = _further(self.head, edit.head)
            case Restore():
                self.head = edit.head or self.head

    def _let_go(self, *uuids: UUID) -> None:
        self.gone |= set(uuids)
        for uuid in uuids:
            self.ranges.pop(uuid, None)
            self.at_root.pop(uuid, None)


def _further(head: Position | None, other: Position | None) -> Position | None:
    return head if other is None or (head is not None and head > other) else other


def survivors_of(store: ObjectStore, stream: str, incarnations: Iterable[UUID] | None = None) -> Survivors:
    """Reads every record and the newest readable checkpoint of the named incarnations; default: of all."""
    found = Survivors()
    for incarnation in incarnations_in(store, stream) if incarnations is None else incarnations:
        objects = list_manifest(store, stream, incarnation)
        base_id = 0
        for number in sorted(objects.checkpoints, reverse=True):
            with suppress(OffloaderError):
                found.add_view(view_in_checkpoint(store, stream, incarnation, number))
                base_id = number
                break
            found.unreadable.append(checkpoint_key(stream, incarnation, number))
        found.numbers = sorted(objects.records)
        for number in found.numbers:
            key = record_key(stream, incarnation, number)
            try:
                record = decode_record(store.get(key)[0], object_name=key)
            except (FormatError, CorruptError, NotFoundError):
                found.unreadable.append(key)
                continue
            for edit in record.edits if number > base_id else ():
                found.add(edit)
    return found


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A data object or a fill of the stream's incarnation that its manifest doesn't name.

    Attributes:
        testimony: its assignment evidence; ``None``: none.
        tells_of_loss: whether the manifest lacks the record that assigned it.
    """

    info: ObjectInfo
    uuid: UUID
    testimony: Testimony | None
    tells_of_loss: bool


def newest_ms(store: ObjectStore, view: ManifestState) -> int:
    """The store's time of a view's newest record, or of its checkpoint; 0 if neither exists.

    From a listing, to be compared with times of listed objects: a HEAD has whole seconds only.
    """
    for key_of in (record_key, checkpoint_key):
        key = key_of(view.stream, view.incarnation, view.record_id)
        for info in store.list(key, limit=1).objects:
            if info.key == key:
                return info.modified_ms
    return 0


def unnamed_objects(
    store: ObjectStore, state: ManifestState, infos: Iterable[ObjectInfo] | None = None
) -> Iterator[Unnamed]:
    """Data objects and fills that prove to be of this incarnation and that the manifest doesn't name; one HEAD each.

    Args:
        infos: of a listing below the stream's name; default: lists it.
    """
    others = state.uuids_aside()
    for info in listed(store, stream_prefix(state.stream)) if infos is None else infos:
        key = parse_object_key(info.key, state.stream)
        if key is None or key.is_index or key.uuid in state.segments or key.uuid in others:
            continue
        if is_segment_uuid_of(key.uuid, state.incarnation):
            with suppress(NotFoundError):
                testimony = object_testimony(store.head(key.witness_key).metadata)
                told = testimony is not None and tells_of_loss(state.assigning, testimony)
                yield Unnamed(info, key.uuid, testimony, told)
