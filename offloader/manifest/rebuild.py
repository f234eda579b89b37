"""A new manifest from the objects alone, where the old one can't be read.

Owns the way from a listing to a new incarnation. Must never touch a manifest that can be read, delete an object, or
let an old writer go on with what is given up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from uuid import UUID

from formats.entries import Position
from formats.errors import FormatError
from formats.keys import index_key, object_metadata, parse_object_key, stream_prefix
from formats.manifest import Adopt, CatalogEntry, Edit, Gap, LedgerClosed, Truncate
from formats.segment_map import SegmentMap
from formats.stream_names import RESERVED_LEVELS
from offloader.clock import Clock
from offloader.errors import Corrupt, InvalidCall, NotFound, PreconditionFailed, StoreUnavailable
from offloader.manifest.attempts import ChosenSegments, choose_segments
from offloader.manifest.boundary import GIVEN_UP_ID, create_boundary, put_given_up, raise_boundary, read_boundary
from offloader.manifest.catalog import read_entry, replace_entry
from offloader.manifest.load import load_manifest_view
from offloader.manifest.log import ManifestLog
from offloader.manifest.objects import incarnations_in, listed
from offloader.manifest.salvage import FoundSegment, read_segment
from offloader.manifest.state import ManifestState
from offloader.manifest.survivors import Range, Survivors, missing_ranges, survivors_of, unnamed_objects
from offloader.settings import ManifestSettings, OffloadSettings
from offloader.store.base import CREATE, ObjectStore

__all__ = ["LOST", "Rebuild", "rebuild_manifest"]

#: Why a gap is one that a rebuild records.
LOST = "lost"
#: Segments of one record.
RECORD_SEGMENTS_MAX = 500
#: How often the old boundary is tried while others raise it.
ATTEMPTS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """What was found and recorded, or in a dry run would be.

    Attributes:
        state: the new manifest's view; ``None`` in a dry run.
        chosen: the segments, by what became of them.
        problems: key and reason of each object that isn't part of a whole segment.
        unknown: keys under the stream that this project doesn't give; nobody touches them.
        missing: ranges that a record, a checkpoint or an index that is there names, or that lie between two segments of
            one ledger, and that no segment holds: recorded as gaps.
        attached: a readable manifest that only lacked its catalogue entry and got one; nothing else was done.
    """

    state: ManifestState | None
    chosen: ChosenSegments
    problems: Sequence[tuple[str, str]]
    unknown: Sequence[str] = ()
    missing: Sequence[tuple[Position, Position]] = ()
    attached: UUID | None = None


def rebuild_manifest(
    store: ObjectStore,
    stream: str,
    *,
    head: Position | None,
    clock: Clock,
    closed_ledgers: Mapping[int, int] | None = None,
    dry_run: bool = False,
    entropy: Callable[[int], bytes] = os.urandom,
    settings: ManifestSettings | None = None,
) -> Rebuild:
    """Records what is in the store under a new incarnation of the stream.

    Args:
        head: where the stream begins; nothing in the store tells what was truncated. ``None``: the first entry found.
        closed_ledgers: ledger id -> last entry id, of ledgers whose end the objects don't prove.
        dry_run: look only; nothing is written.

    Raises:
        InvalidCall: the manifest can be read, and no object tells of records that it lost; or the stream is deleted:
            nothing was changed.
        NotFound: there is no such stream: neither a manifest nor objects.
        EditRefused: the head lies past what is there without a hole.
    """
    entry, lost = _require_unreadable(store, stream)
    if lost is not None:
        return _attached(store, stream, lost, clock, dry_run=dry_run)
    old = sorted({*incarnations_in(store, stream), *([] if entry is None else [entry.incarnation])})
    for incarnation in () if dry_run else old:
        _give_up(store, stream, incarnation)
    found, problems, unknown, indexed = _segments(store, stream)
    if entry is None and not old and not found and not problems:
        raise NotFound(f"stream {stream} isn't in {store.url}", hint="`offloader ls` lists the streams")
    known = survivors_of(store, stream, old)
    chosen = choose_segments(found, head, {**known.closed, **(closed_ledgers or {})})
    missing = _missing(chosen, known, indexed, head)
    gaps = _kept_gaps(chosen, known, head) + [Gap(first, last, LOST) for first, last in missing]
    chosen = replace(chosen, unproven=_unproven(chosen, gaps))
    looked = Rebuild(state=None, chosen=chosen, problems=problems, unknown=unknown, missing=missing)
    if dry_run:
        return looked
    incarnation = UUID(bytes=entropy(16), version=4)
    create_boundary(store, stream, incarnation)
    log = ManifestLog(store, stream, clock=clock, entropy=entropy, settings=settings, incarnation=incarnation)
    epoch = log.open_epoch()
    _put_indexes(store, stream, chosen.recorded, incarnation, epoch)
    edits: list[Edit] = [LedgerClosed(ledger_id, last) for ledger_id, last in chosen.closed_ledgers.items()]
    for start in range(0, len(edits), RECORD_SEGMENTS_MAX):
        log.commit(edits[start : start + RECORD_SEGMENTS_MAX])
    driver = dict(store.driver_metadata)
    for start in range(0, len(chosen.recorded), RECORD_SEGMENTS_MAX):
        some = chosen.recorded[start : start + RECORD_SEGMENTS_MAX]
        log.commit([Adopt(s.uuid, s.summary, driver, s.owned) for s in some])
    for start in range(0, len(gaps), RECORD_SEGMENTS_MAX):
        log.commit(gaps[start : start + RECORD_SEGMENTS_MAX])
    if head is not None:
        log.commit([Truncate(head)])
    state = log.checkpoint()
    # Last of all: until here the old entry stands, and what was written is of an incarnation that nobody names.
    if not replace_entry(store, CatalogEntry(stream, incarnation, clock.now_ms()), expected=entry):
        raise StoreUnavailable(
            f"stream {stream}: its catalogue entry changed meanwhile", hint="somebody else rebuilds it too: look again"
        )
    return replace(looked, state=state)


def _missing(
    chosen: ChosenSegments, known: Survivors, indexed: Mapping[UUID, Range], head: Position | None
) -> list[tuple[Position, Position]]:
    """What is named somewhere, or must have been between two segments of a ledger, and isn't among the chosen."""
    held = [(s.summary.begin, s.summary.end) for s in chosen.recorded]
    between = [
        (Position(before[1].ledger_id, before[1].entry_id + 1), Position(after[0].ledger_id, after[0].entry_id - 1))
        for before, after in pairwise(held)
        if before[1].ledger_id == after[0].ledger_id and before[1].entry_id + 1 < after[0].entry_id
    ]
    # What was truncated is rightly gone, wherever the stream is said to begin now.
    first = min((begin for begin, _ in held), default=None)
    begins = [each for each in (head, min(known.head, first) if known.head and first else known.head) if each]
    gaps = [(gap.first, gap.last) for gap in known.gaps]
    lone = [each for uuid, each in indexed.items() if uuid not in known.gone]
    return missing_ranges([*known.ranges.values(), *lone, *between], _joined([*held, *gaps]), max(begins, default=None))


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """The same positions in ranges that don't overlap."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def _kept_gaps(chosen: ChosenSegments, known: Survivors, head: Position | None) -> list[Gap]:
    """The gaps that records name, where no segment is after all."""
    held = [(s.summary.begin, s.summary.end) for s in chosen.recorded]
    return [
        Gap(first, last, gap.reason)
        for gap in known.gaps
        for first, last in missing_ranges([(gap.first, gap.last)], held, head)
    ]


def _unproven(chosen: ChosenSegments, gaps: Sequence[Gap]) -> list[Position]:
    """Of the ledgers that others follow and whose end nothing proves, the last position that is known."""
    ends = {position.ledger_id: position for position in chosen.unproven}
    last = max([s.summary.end for s in chosen.recorded] + [gap.last for gap in gaps], default=None)
    for gap in gaps:
        ledger_id = gap.last.ledger_id
        if last is not None and ledger_id != last.ledger_id and chosen.closed_ledgers.get(ledger_id) is None:
            ends[ledger_id] = max(ends.get(ledger_id, gap.last), gap.last)
    return [ends[ledger_id] for ledger_id in sorted(ends)]


def _require_unreadable(store: ObjectStore, stream: str) -> tuple[CatalogEntry | None, UUID | None]:
    """The catalogue's entry, and the readable manifest that only lacks one.

    Raises:
        InvalidCall: the entry's manifest can be read, or more than one manifest without an entry can.
    """
    try:
        entry = read_entry(store, stream)
    except Corrupt:
        entry = None
    if entry is not None:
        state = _readable(store, stream, entry.incarnation)
        if state is None:
            return entry, None
        if not state.stream_deleted and any(each.tells_of_loss for each in unnamed_objects(store, state)):
            return entry, None
        what = "is being deleted" if state.stream_deleted else "can be read"
        raise InvalidCall(f"the manifest of stream {stream} {what}: it isn't rebuilt", hint="nothing was changed")
    states = [_readable(store, stream, incarnation) for incarnation in incarnations_in(store, stream)]
    alive = [s.incarnation for s in states if s is not None and s.record_id and not s.stream_deleted]
    if len(alive) > 1:
        raise InvalidCall(
            f"stream {stream} has no catalogue entry and {len(alive)} readable manifests: {', '.join(map(str, alive))}",
            hint="move away all but the one that counts, then rebuild",
        )
    return None, alive[0] if alive else None


def _attached(store: ObjectStore, stream: str, incarnation: UUID, clock: Clock, *, dry_run: bool) -> Rebuild:
    """A readable manifest whose catalogue entry was lost gets a new one; that is all."""
    nothing = choose_segments([], None, {})
    if dry_run:
        return Rebuild(state=None, chosen=nothing, problems=(), attached=incarnation)
    if not replace_entry(store, CatalogEntry(stream, incarnation, clock.now_ms()), expected=None):
        raise StoreUnavailable(f"stream {stream}: its catalogue entry appeared meanwhile", hint="look again")
    state = _readable(store, stream, incarnation)
    return Rebuild(state=state, chosen=nothing, problems=(), attached=incarnation)


def _readable(store: ObjectStore, stream: str, incarnation: UUID) -> ManifestState | None:
    try:
        return load_manifest_view(store, ManifestState(stream=stream, incarnation=incarnation)).state
    except Corrupt:
        return None


def _give_up(store: ObjectStore, stream: str, incarnation: UUID) -> None:
    """Makes every number of an old incarnation worthless, so that a writer that still runs there stops."""
    for _ in range(ATTEMPTS_MAX):
        try:
            stored = read_boundary(store, stream, incarnation)
        except NotFound:
            # Else whoever returns, and finds neither boundary nor record, begins anew.
            if put_given_up(store, stream, incarnation):
                return
            continue
        except Corrupt:
            return  # no writer gets past a boundary that it can't read
        if stored.boundary.first_kept_id >= GIVEN_UP_ID:
            return
        wanted = replace(stored.boundary, first_kept_id=GIVEN_UP_ID)
        if raise_boundary(store, stream, incarnation, stored, wanted) is not None:
            return
    raise StoreUnavailable(f"stream {stream}: its boundary changed {ATTEMPTS_MAX} times meanwhile")


def _segments(
    store: ObjectStore, stream: str
) -> tuple[list[FoundSegment], list[tuple[str, str]], list[str], Mapping[UUID, Range]]:
    """Whole segments directly under the stream's prefix, what is wrong with other objects of segments, unknown keys,
    and the ranges that indexes name without whole data."""
    data: dict[tuple[UUID, int | None], str] = {}
    indexes: dict[tuple[UUID, int | None], str] = {}
    unknown = []
    prefix = stream_prefix(stream)
    for info in listed(store, prefix):
        parsed = parse_object_key(info.key, stream)
        if parsed is not None:
            (indexes if parsed.is_index else data)[parsed.uuid, parsed.ledger_id] = info.key
        elif info.key[len(prefix) :].partition("/")[0] not in RESERVED_LEVELS:
            unknown.append(info.key)
    problems = [(key, "an index without a data object") for which, key in indexes.items() if which not in data]
    found = []
    lone = [which for which in indexes if which not in data]
    part_bytes = OffloadSettings().part_bytes
    for (uuid, ledger_id), key in data.items():
        has_index = (uuid, ledger_id) in indexes
        try:
            found.append(read_segment(store, stream, uuid, ledger_id, has_index=has_index, part_bytes=part_bytes))
        except FormatError as error:
            problems.append((key, str(error)))
            lone += [(uuid, ledger_id)] if has_index else []
    named = ((which[0], _range_of(store, indexes[which], which[1])) for which in lone)
    return found, problems, unknown, {uuid: each for uuid, each in named if each is not None}


def _range_of(store: ObjectStore, key: str, ledger_id: int | None) -> Range | None:
    """The range that an index names; ``None``: it can't be read, or is of Pulsar's own layout, which names none."""
    try:
        segment_map = SegmentMap.parse(store.get(key)[0], object_name=key, ledger_id=ledger_id)
        if not segment_map.has_extension:
            return None
        summary = segment_map.summary(0)
    except (FormatError, NotFound):
        return None
    return summary.begin, summary.end


def _put_indexes(
    store: ObjectStore, stream: str, recorded: Sequence[FoundSegment], incarnation: UUID, epoch: int
) -> None:
    """Writes the indexes that are missing."""
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
        except PreconditionFailed as error:
            raise StoreUnavailable(
                f"{key} appeared meanwhile", hint="a writer is still at work: start again"
            ) from error
