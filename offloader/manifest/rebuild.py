"""Rebuilds an unreadable manifest from a stream's objects."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from formats.block import BLOCK_HEADER_BYTES, decode_block_header
from formats.checksum import crc32c
from formats.documents import Subscribers, document_key
from formats.entries import Position
from formats.errors import FormatError, InconsistentError, require_equal
from formats.frames import FILL_BYTES_MAX, decode_fill
from formats.keys import (
    RESERVED_LEVELS,
    boundary_key,
    check_object_version,
    data_key,
    fill_key,
    index_key,
    is_segment_uuid_of,
    object_metadata,
    object_owner,
    parse_object_key,
    stream_prefix,
)
from formats.manifest import Adopt, CatalogEntry, Edit, Gap, GapFilled, LedgerClosed, Truncate
from formats.metadata.messages import PulsarLedger
from formats.segment import SegmentRecovery
from formats.segment_map import SegmentMap, SegmentOutline
from formats.summary import Layout, SegmentSummary
from offloader.coverage import (
    ENTRY_ID_MAX,
    GapReason,
    KnownEnds,
    Range,
    Run,
    gap_runs,
    holes,
    joined,
    runs_of,
    unheld,
    without,
)
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.boundary import (
    FIRST_BOUNDARY,
    GIVEN_UP_ID,
    change_boundary,
    create_boundary,
    incarnations_in,
    listed,
)
from offloader.manifest.catalog import read_entry, replace_entry
from offloader.manifest.load import load_manifest_view
from offloader.manifest.log import ManifestLog
from offloader.manifest.lost_records import AtRoot, Survivors, survivors_of, unnamed_objects
from offloader.manifest.segment_table import AT_ROOT
from offloader.manifest.state import ManifestState
from offloader.parallel_map import at_once
from offloader.runtime.clock import Clock
from offloader.settings import ManifestSettings, OffloadSettings
from offloader.store.base import CREATE, ByteRange, ObjectInfo, ObjectStore, put_if

#: Bytes of one GET of a data object.
READ_BYTES = 8 * 1024 * 1024
#: Largest accepted block: the maximum of its length field.
_BLOCK_BYTES_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSegment:
    """A segment whose objects are whole.

    Attributes:
        uuid, ledger_id: as in its keys.
        epoch: of its writer, 0 if not recorded.
        owned: whether its metadata and its uuid prove that this project wrote it for a stream of this name.
        closed_bytes: payload bytes of each whole ledger that its index marks as closed.
        index: an index object to write if there is none.
        at_root: whether its objects lie at the store's root: they were adopted.
    """

    uuid: UUID
    ledger_id: int | None
    epoch: int
    owned: bool
    summary: SegmentSummary
    closed_bytes: Mapping[int, int]
    index: bytes | None = field(default=None, repr=False)
    at_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFill:
    """A whole object with entries that readers aren't given.

    Attributes:
        edit: names it in a manifest.
        runs: the entries that it has.
    """

    edit: GapFilled
    runs: Sequence[Run]

    @property
    def ranges(self) -> list[Range]:
        """The runs as positions."""
        ledger_id = self.edit.first.ledger_id
        return [(Position(ledger_id, low), Position(ledger_id, high)) for low, high in self.runs]


def read_found_fill(store: ObjectStore, stream: str, uuid: UUID) -> FoundFill:
    """Reads a fill without a record of it; raises ``FormatError`` if it isn't whole."""
    key = fill_key(stream, uuid)
    body = store.get(key, ByteRange(0, FILL_BYTES_MAX + 1))[0]
    batch = decode_fill(body, object_name=key)
    edit = GapFilled(
        uuid=uuid,
        first=batch.first,
        last=batch.last,
        entries=len(batch),
        payload_bytes=batch.payload_bytes,
        object_bytes=len(body),
        crc32c=crc32c(body),
    )
    return FoundFill(edit=edit, runs=runs_of(batch.entry_ids))


def read_segment(
    store: ObjectStore, stream: str, uuid: UUID, ledger_id: int | None, *, has_index: bool, part_bytes: int
) -> FoundSegment:
    """Reads the facts of one segment.

    Reads the whole data object, unless its index describes every block and the store has its checksum.

    Args:
        has_index: whether an index object exists; else one is built from the blocks.
        part_bytes: part size for a built index.

    Raises:
        FormatError: its objects are damaged, contradict each other, or aren't of a segment.
        NotFoundError: the data object is missing.
    """
    key = data_key(stream, uuid, ledger_id)
    info = store.head(key)
    if info.metadata:  # not every store keeps user metadata
        check_object_version(info.metadata, key)
    owner = object_owner(info.metadata)
    segment_map, index = None, b""
    if has_index:
        own_key = index_key(stream, uuid, ledger_id)
        index = store.get(own_key)[0]
        segment_map = SegmentMap.parse(index, object_name=own_key, ledger_id=ledger_id)
        require_equal("data object", info.size_bytes, segment_map.data_bytes, object_name=key)
    made, summary = _facts(store, key, info, segment_map, ledger_id, part_bytes)
    if segment_map is not None:
        summary = replace(summary, index_bytes=len(index), index_crc32c=crc32c(index))
    return FoundSegment(
        uuid=uuid,
        ledger_id=ledger_id,
        epoch=0 if owner is None else owner.epoch,
        owned=owner is not None and is_segment_uuid_of(uuid, owner.incarnation),
        summary=summary,
        closed_bytes={} if segment_map is None else _closed_bytes(segment_map, summary),
        index=made if segment_map is None else None,
    )


def _facts(
    store: ObjectStore,
    key: str,
    info: ObjectInfo,
    segment_map: SegmentMap | None,
    ledger_id: int | None,
    part_bytes: int,
) -> tuple[bytes, SegmentSummary]:
    header = decode_block_header(store.get(key, ByteRange(0, BLOCK_HEADER_BYTES))[0], object_name=key)
    layout = Layout.V2 if ledger_id is None else Layout.V1
    require_equal("layout", header.layout.name, layout.name, object_name=key)
    if segment_map is not None and not segment_map.has_extension:
        return b"", _of_plain(store, key, info, segment_map)
    if segment_map is not None and info.crc32c is not None:
        return b"", segment_map.summary(info.crc32c)
    recovery = SegmentRecovery(
        layout=layout,
        part_bytes=part_bytes,
        object_name=key,
        block_bytes_max=_BLOCK_BYTES_MAX,
        decompressed_bytes_max=_BLOCK_BYTES_MAX,
        ledger_id=ledger_id,
    )
    for start in range(0, info.size_bytes, READ_BYTES):
        recovery.feed(store.get(key, ByteRange(start, min(start + READ_BYTES, info.size_bytes)))[0])
    index, summary = recovery.finish()
    if segment_map is not None and segment_map.summary(summary.data_crc32c) != replace(
        summary, index_bytes=0, index_crc32c=0
    ):
        raise InconsistentError("index", object_name=segment_map.object_name, expected="the content of its data object")
    return index, summary


def _of_plain(store: ObjectStore, key: str, info: ObjectInfo, segment_map: SegmentMap) -> SegmentSummary:
    """The summary of an object in Pulsar's own layout: decodes its blocks, the only source of its content."""
    outline = SegmentOutline(segment_map.layout, info.size_bytes, extension=False)
    blocks, checksum = segment_map.blocks, 0
    for number in range(len(blocks)):
        offset = int(blocks.offset[number])
        body = store.get(key, ByteRange(offset, offset + int(blocks.read_bytes[number])))[0]
        # A block reaches to the next one's offset, the last one to the end: together they are the object.
        checksum = crc32c(memoryview(body)[: int(blocks.length[number])], checksum)
        batch = segment_map.decode(
            number, body, block_bytes_max=_BLOCK_BYTES_MAX, decompressed_bytes_max=_BLOCK_BYTES_MAX
        )
        if len(batch):
            outline.add_entries(batch)
    found = sorted(outline.spans.values(), key=lambda span: span.ledger_id)
    if not found or blocks.offset[0] != 0:
        raise InconsistentError("data object", object_name=key, expected="entries from its beginning on", found="none")
    return SegmentSummary.of_spans(
        found,
        layout=segment_map.layout,
        data_bytes=info.size_bytes,
        data_crc32c=checksum if info.crc32c is None else info.crc32c,
        blocks=len(blocks),
        compressed=False,
    )


def _closed_bytes(segment_map: SegmentMap, summary: SegmentSummary) -> dict[int, int]:
    """Payload bytes of each whole ledger that the index marks as closed."""
    if segment_map.layout is Layout.V1:
        return {span.ledger_id: span.payload_bytes for span in summary.ledgers}
    found = {}
    for group in segment_map.ledgers:
        if group.closed:
            with suppress(FormatError):
                found[group.ledger_id] = PulsarLedger.decode(group.metadata).size_bytes or 0
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSegments:
    """Segments for a rebuilt manifest.

    Attributes:
        recorded: disjoint, in the stream's order.
        overlapping: other attempts at the same entries, which are kept.
        before_head: segments before the head, which are kept as well.
        closed_ledgers: ledger id -> last entry id, of ledgers whose end is proven.
        unproven: last position found of ledgers that others follow, whose end nothing proves.
    """

    recorded: Sequence[FoundSegment]
    overlapping: Sequence[FoundSegment]
    before_head: Sequence[FoundSegment]
    closed_ledgers: Mapping[int, int]
    unproven: Sequence[Position]

    @property
    def ranges(self) -> list[Range]:
        """The ranges of the recorded segments."""
        return [(each.summary.begin, each.summary.end) for each in self.recorded]


def choose_segments(
    found: Sequence[FoundSegment], head: Position | None, closed_ledgers: Mapping[int, int]
) -> ChosenSegments:
    """Chooses the non-overlapping segments with the most entries; of equals the later epochs'.

    Args:
        head: segments before it are left out; ``None``: none are.
        closed_ledgers: ledgers' ends known from elsewhere.
    """
    before = [s for s in found if head is not None and s.summary.end < head]
    rest = [s for s in found if head is None or s.summary.end >= head]
    recorded = _most_entries(rest)
    taken = {(s.uuid, s.ledger_id) for s in recorded}
    overlapping = sorted(
        (s for s in rest if (s.uuid, s.ledger_id) not in taken), key=lambda s: (s.summary.begin, s.uuid)
    )
    ends = {**_proven_ends(recorded), **closed_ledgers}
    last = recorded[-1].summary.end.ledger_id if recorded else 0
    seen = {span.ledger_id: span.last_entry_id for s in recorded for span in s.summary.ledgers}
    return ChosenSegments(
        recorded=recorded,
        overlapping=overlapping,
        before_head=before,
        closed_ledgers=dict(sorted(ends.items())),
        unproven=[Position(i, seen[i]) for i in sorted(seen) if i != last and ends.get(i) != seen[i]],
    )


def _most_entries(found: Sequence[FoundSegment]) -> list[FoundSegment]:
    """Weighted interval scheduling: the best choice among the first n, by their ends.

    Of equal ones that of the later epochs, by entry and not by segment: a segment that replaced many counts as much as
    they did. Of these the one of fewer segments: compaction replaces within an epoch.
    """
    ordered = sorted(found, key=lambda s: (s.summary.end, s.summary.begin, s.uuid))
    ends = [s.summary.end for s in ordered]
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    before: list[int] = []
    for segment in ordered:
        before.append(bisect_left(ends, segment.summary.begin))
        entries, epochs, fewer = best[before[-1]]
        own = segment.summary.entries
        best.append(max(best[-1], (entries + own, epochs + own * segment.epoch, fewer - 1)))
    chosen, at = [], len(ordered)
    while at:
        if best[at] == best[at - 1]:
            at -= 1
        else:
            chosen.append(ordered[at - 1])
            at = before[at - 1]
    return chosen[::-1]


def _proven_ends(recorded: Sequence[FoundSegment]) -> dict[int, int]:
    ends: dict[int, int] = {}
    held: dict[int, tuple[int, int, int]] = {}
    whole: dict[int, int] = {}
    for segment in recorded:
        spans = segment.summary.ledgers
        # Its writer continued with the next ledger because the source reported this end.
        ended = spans if segment.summary.layout is Layout.V1 else spans[:-1]
        ends |= {span.ledger_id: span.last_entry_id for span in ended}
        for span in spans:
            first, last, size = held.get(span.ledger_id, (span.first_entry_id, -1, 0))
            held[span.ledger_id] = first, max(last, span.last_entry_id), size + span.payload_bytes
        whole |= segment.closed_bytes
    for ledger_id, size in whole.items():
        # All bytes that the ledger had when it was closed are here, from its first entry on.
        if ledger_id in held and held[ledger_id][0] == 0 and 0 < size == held[ledger_id][2]:
            ends.setdefault(ledger_id, held[ledger_id][1])
    return ends


#: Owner of a manifest that a rebuild is still writing; afterwards another one has opened an epoch.
REBUILDING = "offloader manifest rebuild, unfinished"
#: Earlier incarnations that a rebuilt stream's catalogue entry names.
REPLACED_MAX = 1000
#: Segments of one record.
RECORD_SEGMENTS_MAX = 500
#: Attempts to replace the old boundary while others raise it.
ATTEMPTS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """Result of a rebuild or its dry run.

    Attributes:
        state: the new manifest's view; ``None`` in a dry run.
        problems: key and reason of each object that isn't part of a whole segment.
        unknown: unrecognised keys under the stream's prefix, which are kept.
        missing: ranges that no segment holds and that a record, a checkpoint or an index names, or that lie between two
            segments of one ledger: recorded as gaps.
        fills: objects with entries of gaps, recorded again.
        attached: a readable manifest without a catalogue entry, which got a new one; nothing else was done.
    """

    state: ManifestState | None
    chosen: ChosenSegments
    problems: Sequence[tuple[str, str]]
    unknown: Sequence[str] = ()
    missing: Sequence[tuple[Position, Position]] = ()
    fills: Sequence[FoundFill] = ()
    attached: UUID | None = None


def rebuild_manifest(
    store: ObjectStore,
    stream: str,
    *,
    head: Position | None,
    clock: Clock,
    closed_ledgers: Mapping[int, int] | None = None,
    hot: Sequence[LedgerInfo] = (),
    dry_run: bool = False,
    entropy: Callable[[int], bytes] = os.urandom,
    settings: ManifestSettings = ManifestSettings(),
) -> Rebuild:
    """Records the objects in the store under a new incarnation of the stream.

    Args:
        head: start position of the stream, because no object records truncations. ``None``: the first entry found.
        closed_ledgers: ledger id -> last entry id, of ledgers whose end the objects don't prove.
        hot: ledgers of the stream's hot tier: their entries aren't missing, as the writer offloads them again.
        dry_run: write nothing.

    Raises:
        InvalidCallError: the manifest is readable and no object proves a lost record; or the stream is deleted: nothing
            was changed.
        NotFoundError: there is no such stream: neither a manifest nor objects.
        EditRefusedError: the head lies past the end of the gapless range.
    """
    entry, lost = _require_unreadable(store, stream)
    if lost is not None:
        return _attached(store, stream, lost, clock, dry_run=dry_run)
    old = sorted({*incarnations_in(store, stream), *([] if entry is None else [entry.incarnation])})
    for incarnation in () if dry_run else old:
        _give_up(store, stream, incarnation)
    found, problems, unknown, indexed, fills = _segments(store, stream)
    if entry is None and not old and not found and not fills and not problems:
        raise NotFoundError(f"stream {stream} isn't in {store.url}", hint="run `offloader ls` to list the streams")
    closed_ledgers = {**{info.ledger_id: info.last_entry_id for info in hot if info.closed}, **(closed_ledgers or {})}
    known = survivors_of(store, stream, old)
    found += filter(None, at_once(partial(_adopted, store), known.at_root.items(), sequential_max=1))
    chosen = choose_segments(found, head, {**known.closed, **closed_ledgers})
    fills = _chosen_fills(fills, chosen, known, head)
    gaps = _kept_gaps(chosen, known, head)
    gaps += _gaps_of_fills(fills, chosen, gaps, head)
    missing = _without_hot(_missing(chosen, known, indexed, gaps, head), hot)
    gaps += [Gap(first, last, GapReason.UNRECOVERED) for first, last in missing]
    fills, left = _fitting(fills, gaps, chosen.closed_ledgers)
    problems += [(fill_key(stream, each.edit.uuid), "a fill among lost entries, kept") for each in left]
    chosen = replace(chosen, unproven=_unproven(chosen, gaps))
    looked = Rebuild(state=None, chosen=chosen, problems=problems, unknown=unknown, missing=missing, fills=fills)
    if dry_run:
        return looked
    incarnation = UUID(bytes=entropy(16), version=4)
    _create_boundary(store, stream, incarnation, old)
    open_log = partial(
        ManifestLog, store, stream, clock=clock, entropy=entropy, settings=settings, incarnation=incarnation
    )
    log = open_log(writer_name=REBUILDING)
    epoch = log.open_epoch()
    _put_indexes(store, stream, chosen.recorded, incarnation, epoch)
    _record(log, looked, gaps, head)
    log = open_log()
    log.open_epoch()
    state = log.checkpoint()
    # Last step: until here the old entry is valid, and no entry names the new incarnation.
    replaces = (*(entry.replaces if entry is not None else ()), *old)[-REPLACED_MAX:]
    if not replace_entry(store, CatalogEntry(stream, incarnation, clock.now_ms(), replaces), expected=entry):
        raise StoreUnavailableError(
            f"stream {stream}: its catalogue entry changed during the rebuild",
            hint="another process may be rebuilding it: check the stream and try again",
        )
    return replace(looked, state=state)


def _create_boundary(store: ObjectStore, stream: str, incarnation: UUID, old: Sequence[UUID]) -> None:
    create_boundary(store, stream, incarnation)
    if any(store.list(document_key(Subscribers, stream, each), limit=1).objects for each in old):
        # Subscribers are registered in an old incarnation: until its loss is accepted, no entry counts as consumed.
        change_boundary(store, stream, incarnation, lambda found: replace(found, subscribers_revision=1))


def _record(log: ManifestLog, looked: Rebuild, gaps: Sequence[Gap], head: Position | None) -> None:
    """Commits the found segments, gaps and facts."""
    chosen, driver = looked.chosen, dict(log.store.driver_metadata)
    closed = [LedgerClosed(ledger_id, last) for ledger_id, last in chosen.closed_ledgers.items()]
    adopted = [Adopt(s.uuid, s.summary, {**driver, **(AT_ROOT if s.at_root else {})}, s.owned) for s in chosen.recorded]
    edits: Sequence[Edit]
    for edits in (closed, adopted, gaps, [each.edit for each in looked.fills]):
        for start in range(0, len(edits), RECORD_SEGMENTS_MAX):
            log.commit(edits[start : start + RECORD_SEGMENTS_MAX])
    if head is not None:
        log.commit([Truncate(head)])


def _missing(
    chosen: ChosenSegments,
    known: Survivors,
    indexed: Mapping[UUID, Range],
    kept_gaps: Sequence[Gap],
    head: Position | None,
) -> list[tuple[Position, Position]]:
    """Ranges that are named somewhere, or lie between two segments of a ledger, and aren't in the chosen ones."""
    held = chosen.ranges
    first = min((begin for begin, _ in held), default=None)
    unknown = () if first is None else holes(first.previous(), held, KnownEnds())
    between = [each for each in unknown if each[0].ledger_id == each[1].ledger_id]
    # Truncated entries aren't missing, wherever the stream begins now.
    begins = [each for each in (head, min(known.head, first) if known.head and first else known.head) if each]
    gaps = [(gap.first, gap.last) for gap in (*known.gaps, *kept_gaps)]
    lone = [each for uuid, each in indexed.items() if uuid not in known.gone]
    return unheld([*known.ranges.values(), *lone, *between], [*held, *gaps], max(begins, default=None))


def _without_hot(missing: Sequence[Range], hot: Sequence[LedgerInfo]) -> list[Range]:
    """The parts of missing ranges that a hot tier lacks: its entries will be offloaded again."""
    has: list[Range] = []
    for info in hot:
        # Nothing is after the end of a closed ledger.
        runs = [(0, ENTRY_ID_MAX if info.closed else info.last_entry_id)]
        found = without(runs, joined(info.not_given))
        has += [(Position(info.ledger_id, low), Position(info.ledger_id, high)) for low, high in found if low <= high]
    rest = without(missing, sorted(has))
    after = {Position(info.ledger_id, ENTRY_ID_MAX).next() for info in hot}
    before = {Position(info.ledger_id, 0).previous() for info in hot}
    return [(first, last) for first, last in rest if not (first in after and last in before)]


def _kept_gaps(chosen: ChosenSegments, known: Survivors, head: Position | None) -> list[Gap]:
    """The recorded gaps that no segment fills."""
    return [
        Gap(first, last, gap.reason)
        for gap in known.gaps
        for first, last in unheld([(gap.first, gap.last)], chosen.ranges, head)
    ]


def _chosen_fills(
    found: Sequence[FoundFill], chosen: ChosenSegments, known: Survivors, head: Position | None
) -> list[FoundFill]:
    """Fills whose entries are in no segment, not before the head and in no other fill, those with a record first.

    The other fills are from failed attempts and deleted ledgers; they are kept.
    """
    held = chosen.ranges
    ledgers = {span.ledger_id for s in chosen.recorded for span in s.summary.ledgers}
    gaps = [(gap.first, gap.last) for gap in known.gaps]
    taken: list[FoundFill] = []
    for fill in sorted(found, key=lambda each: (each.edit.uuid not in known.fills, -each.edit.entries, each.edit.uuid)):
        edit = fill.edit
        is_free = all(each.edit.last < edit.first or edit.last < each.edit.first for each in taken)
        # Alone, one of a ledger that nothing else names would make a stream begin there.
        is_known = edit.first.ledger_id in ledgers or not unheld(fill.ranges, gaps, None)
        if is_free and is_known and unheld(fill.ranges, held, head) == fill.ranges:
            taken.append(fill)
    return sorted(taken, key=lambda each: each.edit.first)


def _gaps_of_fills(
    fills: Sequence[FoundFill], chosen: ChosenSegments, gaps: Sequence[Gap], head: Position | None
) -> list[Gap]:
    """Gaps for the entries of fills that no surviving record names as gaps."""
    held = chosen.ranges + [(gap.first, gap.last) for gap in gaps]
    named = (each for fill in fills for each in fill.ranges)
    return [Gap(first, last, GapReason.FILLED) for first, last in unheld(named, held, head)]


def _fitting(
    fills: Sequence[FoundFill], gaps: Sequence[Gap], closed_ledgers: Mapping[int, int]
) -> tuple[list[FoundFill], list[FoundFill]]:
    """Fills with every entry of the gaps in their range and none after their ledger's end, and the others."""
    ordered = sorted(gaps, key=lambda gap: gap.first)
    fits, others = list[FoundFill](), list[FoundFill]()
    for fill in fills:
        first, last = fill.edit.first, fill.edit.last
        runs = gap_runs(ordered, first.ledger_id, first.entry_id, last.entry_id)
        is_within = last.entry_id <= closed_ledgers.get(last.ledger_id, last.entry_id)
        (fits if is_within and runs == list(fill.runs) else others).append(fill)
    return fits, others


def _unproven(chosen: ChosenSegments, gaps: Sequence[Gap]) -> list[Position]:
    """The last known position of ledgers that others follow, and whose end nothing proves."""
    ends = {position.ledger_id: position for position in chosen.unproven}
    last = max([s.summary.end for s in chosen.recorded] + [gap.last for gap in gaps], default=None)
    for gap in gaps:
        ledger_id = gap.last.ledger_id
        if last is not None and ledger_id != last.ledger_id and chosen.closed_ledgers.get(ledger_id) is None:
            ends[ledger_id] = max(ends.get(ledger_id, gap.last), gap.last)
    return [ends[ledger_id] for ledger_id in sorted(ends)]


def _require_unreadable(store: ObjectStore, stream: str) -> tuple[CatalogEntry | None, UUID | None]:
    """The catalogue's entry, and the readable manifest that has no entry.

    Raises:
        InvalidCallError: the entry's manifest is readable, or more than one manifest without an entry is.
    """
    entry: CatalogEntry | None = None
    with suppress(CorruptError):
        entry = read_entry(store, stream)
    if entry is not None:
        state = _readable(store, stream, entry.incarnation)
        if state is None or (
            not state.stream_deleted and any(each.tells_of_loss for each in unnamed_objects(store, state))
        ):
            return entry, None
        what = "is being deleted" if state.stream_deleted else "can be read"
        raise InvalidCallError(
            f"the manifest of stream {stream} {what}: no rebuild is needed", hint="nothing was changed"
        )
    states = (_readable(store, stream, incarnation) for incarnation in incarnations_in(store, stream))
    whole = (each for each in states if each is not None and each.record_id and each.owner.name != REBUILDING)
    alive = [each.incarnation for each in whole if not each.stream_deleted]
    if len(alive) > 1:
        raise InvalidCallError(
            f"stream {stream} has no catalogue entry and {len(alive)} readable manifests: {', '.join(map(str, alive))}",
            hint="move all but the valid one to another place, then rebuild",
        )
    return None, alive[0] if alive else None


def _attached(store: ObjectStore, stream: str, incarnation: UUID, clock: Clock, *, dry_run: bool) -> Rebuild:
    """Creates a new catalogue entry for a readable manifest that lost its own."""
    entry = CatalogEntry(stream, incarnation, clock.now_ms())
    if not dry_run and not replace_entry(store, entry, expected=None):
        raise StoreUnavailableError(
            f"stream {stream}: another process created its catalogue entry", hint="check the stream and try again"
        )
    return Rebuild(
        state=None if dry_run else _readable(store, stream, incarnation),
        chosen=choose_segments([], None, {}),
        problems=(),
        attached=incarnation,
    )


def _readable(store: ObjectStore, stream: str, incarnation: UUID) -> ManifestState | None:
    with suppress(CorruptError):
        return load_manifest_view(store, stream, incarnation).state
    return None


def _give_up(store: ObjectStore, stream: str, incarnation: UUID) -> None:
    """Invalidates every number of an old incarnation, which stops a writer that still runs there."""
    for _ in range(ATTEMPTS_MAX):
        with suppress(CorruptError):  # an unreadable boundary stops every writer
            try:
                change_boundary(
                    *(store, stream, incarnation),
                    lambda found: replace(found, first_kept_id=max(found.first_kept_id, GIVEN_UP_ID)),
                )
            except NotFoundError:
                # Otherwise a returning writer that finds neither boundary nor record would create a new manifest.
                given_up = replace(FIRST_BOUNDARY, first_kept_id=GIVEN_UP_ID).encode()
                if not put_if(store, boundary_key(stream, incarnation), given_up, CREATE):
                    continue
        return
    raise StoreUnavailableError(f"stream {stream}: other processes changed its boundary {ATTEMPTS_MAX} times")


def _segments(
    store: ObjectStore, stream: str
) -> tuple[list[FoundSegment], list[tuple[str, str]], list[str], Mapping[UUID, Range], list[FoundFill]]:
    """Under the stream's prefix: whole segments, others' problems, unknown keys, ranges without whole data, fills."""
    data: dict[tuple[UUID, int | None], str] = {}
    indexes: dict[tuple[UUID, int | None], str] = {}
    unknown, fill_uuids = [], []
    prefix = stream_prefix(stream)
    for info in listed(store, prefix):
        parsed = parse_object_key(info.key, stream)
        if parsed is not None and parsed.is_fill:
            fill_uuids.append(parsed.uuid)
        elif parsed is not None:
            (indexes if parsed.is_index else data)[parsed.uuid, parsed.ledger_id] = info.key
        elif info.key[len(prefix) :].partition("/")[0] not in RESERVED_LEVELS:
            unknown.append(info.key)
    found, lone = [], [which for which in indexes if which not in data]
    problems = [(indexes[which], "an index without a data object") for which in lone]
    part_bytes = OffloadSettings().part_size
    for (uuid, ledger_id), key in data.items():
        has_index = (uuid, ledger_id) in indexes
        try:
            found.append(read_segment(store, stream, uuid, ledger_id, has_index=has_index, part_bytes=part_bytes))
        except FormatError as error:
            problems.append((key, str(error)))
            lone += [(uuid, ledger_id)] if has_index else []
    named = ((which[0], _range_of(store, indexes[which], which[1])) for which in lone)
    ranges = {uuid: each for uuid, each in named if each is not None}
    fills = []
    for uuid in fill_uuids:
        try:
            fills.append(read_found_fill(store, stream, uuid))
        except FormatError as error:
            problems.append((fill_key(stream, uuid), str(error)))
    return found, problems, unknown, ranges, fills


def _adopted(store: ObjectStore, named: tuple[UUID, AtRoot]) -> FoundSegment | None:
    """A segment with objects at the store's root, as its record describes it; ``None`` if they aren't there."""
    uuid, (summary, owned) = named
    ledger_id = summary.begin.ledger_id if summary.layout is Layout.V1 else None
    keys, sizes = (data_key, index_key), (summary.data_bytes, summary.index_bytes)
    with suppress(NotFoundError):
        if all(store.head(key("", uuid, ledger_id)).size_bytes == size for key, size in zip(keys, sizes, strict=True)):
            return FoundSegment(
                uuid=uuid, ledger_id=ledger_id, epoch=0, owned=owned, summary=summary, closed_bytes={}, at_root=True
            )
    return None


def _range_of(store: ObjectStore, key: str, ledger_id: int | None) -> Range | None:
    """The range in an index; ``None`` if it is unreadable, or in Pulsar's own layout, which has none."""
    with suppress(FormatError, NotFoundError):
        segment_map = SegmentMap.parse(store.get(key)[0], object_name=key, ledger_id=ledger_id)
        if segment_map.has_extension:
            summary = segment_map.summary(0)
            return summary.begin, summary.end
    return None


def _put_indexes(
    store: ObjectStore, stream: str, recorded: Sequence[FoundSegment], incarnation: UUID, epoch: int
) -> None:
    from offloader import __version__

    for segment in recorded:
        if segment.index is None:
            continue
        metadata = object_metadata(
            role="index",
            stream=stream,
            format_version=2 if segment.summary.compressed else 1,
            software_version=__version__,
            incarnation=incarnation,
            epoch=epoch,
        )
        key = index_key(stream, segment.uuid, segment.ledger_id)
        try:
            store.put(key, segment.index, mode=CREATE, metadata=metadata, crc32c=segment.summary.index_crc32c)
        except PreconditionFailedError as error:
            raise StoreUnavailableError(
                f"{key} appeared during the rebuild", hint="a writer is still active: run the rebuild again"
            ) from error
