"""Recover a predecessor's segments, and continue with another hot tier at the operator's request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from uuid import UUID

import numpy as np

from formats.checksum import crc32c
from formats.entries import Position
from formats.errors import FormatError
from formats.index import BlockTable
from formats.keys import data_key, index_key, object_metadata
from formats.manifest import Edit, Failed, Gap, LedgerClosed, Offloaded, SetAside
from formats.recover import SegmentRecovery
from formats.segment import Layout, LedgerFacts, SegmentSummary
from formats.segment_map import SegmentMap
from offloader.errors import InvalidCall, NotFound, PreconditionFailed
from offloader.ledgers.base import IdentifiedSource, LedgerInfo, LedgerSource, identified
from offloader.manifest.log import ManifestLog
from offloader.manifest.segment_table import SegmentStatus
from offloader.manifest.source_identity import (
    contradictions,
    facts_now,
    first_free_ledger,
    newest_known,
    source_mismatch,
)
from offloader.manifest.state import ManifestState, SegmentRecord, follows
from offloader.runtime.clock import Clock
from offloader.settings import OffloadSettings
from offloader.store.base import CREATE, ByteRange, ObjectStore
from offloader.write.gaps import find_holes
from offloader.write.quota import part_bytes_for
from offloader.write.upload import abort_uploads

__all__ = ["REPLACED", "Acceptance", "accept_loss", "accept_source", "plan_acceptance", "settle_leftover"]

#: Bytes of one GET while a leftover data object is checked: with one block, the memory of the check.
CHECK_READ_BYTES = 8 * 1024 * 1024
#: Largest block that is adopted: the maximum of its length field.
_BLOCK_BYTES_MAX = 2**31 - 1


def settle_leftover(
    log: ManifestLog,
    segment: SegmentRecord,
    facts: Mapping[int, LedgerFacts],
    *,
    part_bytes: int,
    now_ms: int,
) -> Offloaded | Failed:
    """End a segment that an earlier epoch assigned: adopt it when its data object is complete, else give it up.

    Call it after ``log.open_epoch()``: from then on its owner can't commit. Safe to call again after an error.

    Args:
        log: the stream's manifest, its epoch open.
        segment: assigned, of an earlier epoch.
        facts: the source's facts about the ledgers, for a new index.
        part_bytes: recorded in a new index.
        now_ms: ms since 1970 UTC.

    Returns:
        The edit that records it. ``Failed`` belongs into one record with the segment that takes over the range.

    Raises:
        StoreUnavailable, OutcomeUnknown, AccessDenied: the object's state is unknown. Nothing is decided.
    """
    assert segment.epoch != log.epoch, "only an earlier epoch leaves something"
    key = data_key(log.stream, segment.uuid, segment.v1_ledger_id)
    if not _is_there(log.store, key):
        abort_uploads(log.store, key)
    # Check again: its owner's last request may have completed the object just before the abort.
    if not _is_there(log.store, key):
        return Failed(segment.uuid, "its owner was replaced")
    try:
        index, summary = _recovered(log.store, key, segment, facts, part_bytes)
        summary = _with_index(log, segment, index, summary)
    except FormatError as error:
        return Failed(segment.uuid, f"its owner was replaced, and its objects aren't whole: {error}")
    if summary.begin != segment.begin or segment.end not in (None, summary.end):
        return Failed(segment.uuid, f"its owner was replaced, and its object holds {summary.begin}..{summary.end}")
    return Offloaded(segment.uuid, summary, now_ms)


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except NotFound:
        return False
    return True


def _recovered(
    store: ObjectStore, key: str, segment: SegmentRecord, facts: Mapping[int, LedgerFacts], part_bytes: int
) -> tuple[bytes, SegmentSummary]:
    """Index and summary of the data object, with every block verified."""
    recovery = SegmentRecovery(
        layout=Layout(segment.layout),
        part_bytes=part_bytes,
        object_name=key,
        block_bytes_max=_BLOCK_BYTES_MAX,
        decompressed_bytes_max=_BLOCK_BYTES_MAX,
        ledger_id=segment.v1_ledger_id,
    )
    start, size_bytes = 0, 1
    while start < size_bytes:
        body, info = store.get(key, ByteRange(start, start + CHECK_READ_BYTES))
        recovery.feed(body)
        start += CHECK_READ_BYTES
        size_bytes = info.size_bytes
    return recovery.finish(facts)


def _with_index(log: ManifestLog, segment: SegmentRecord, index: bytes, summary: SegmentSummary) -> SegmentSummary:
    """The summary with the index object in the store: an existing one, verified against the data, or ours."""
    from offloader import __version__

    key = index_key(log.stream, segment.uuid, segment.v1_ledger_id)
    metadata = object_metadata(
        role="index",
        stream=log.stream,
        format_version=2 if summary.compressed else 1,
        software_version=__version__,
        incarnation=log.state.incarnation,
        epoch=log.epoch or 0,
    )
    try:
        log.store.put(key, index, mode=CREATE, metadata=metadata, crc32c=summary.index_crc32c)
    except PreconditionFailed:
        existing = log.store.get(key)[0]
        _require_same_blocks(existing, index, key, segment.v1_ledger_id)
        # It may have other facts about the ledgers' ends than ours; it only has to describe this data.
        return replace(summary, index_bytes=len(existing), index_crc32c=crc32c(existing))
    return summary


def _require_same_blocks(existing: bytes, index: bytes, key: str, ledger_id: int | None) -> None:
    found = SegmentMap.parse(existing, object_name=key, ledger_id=ledger_id)
    wanted = SegmentMap.parse(index, object_name=key, ledger_id=ledger_id)
    same = all(
        np.array_equal(getattr(found.blocks, column.name), getattr(wanted.blocks, column.name))
        for column in fields(BlockTable)
    )
    if not same or found.data_bytes != wanted.data_bytes or found.encode() != existing:
        raise FormatError("the index doesn't describe the data object", object_name=key)


#: Reason of the gap that accepting a source leaves.
REPLACED = "the ledger database was replaced, and these entries aren't in the one that was accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Changes of accepting a source, planned or done.

    Attributes:
        why: what the source contradicts; empty: nothing, and nothing is changed.
        source: uuid of the database.
        aside: its ledgers that are never offloaded, released or deleted, ascending.
        gaps: entries that are missing from now on.
        adopted, failed: assigned segments: complete ones are adopted, the rest is part of the gap. In a plan all of
            them are in ``failed``.
        ledgers_from: new ledgers get ids from here on.
        record_id: its record; ``None``: none was written.
    """

    stream: str
    why: str
    source: UUID
    aside: tuple[int, ...] = ()
    gaps: tuple[Gap, ...] = ()
    adopted: tuple[UUID, ...] = ()
    failed: tuple[UUID, ...] = ()
    ledgers_from: int = 0
    record_id: int | None = None


def plan_acceptance(
    state: ManifestState, source: UUID, ledgers: Sequence[LedgerInfo], first_ledger: int, *, why: str = ""
) -> Acceptance:
    """Plan the manifest's changes. Pure. Assigned segments count as failed.

    Args:
        state: the manifest.
        source: uuid of the database that is accepted.
        ledgers: all it has, ascending, listed after ``state`` was read.
        first_ledger: a ledger id above all known ones; new ledgers get later ones.
        why: what the source contradicts.
    """
    aside = set(contradictions(state, ledgers))
    if state.source is not None and state.source.uuid != source:
        # A ledger of another database differs from the manifest's of the same id, even if equally long.
        newest = first_free_ledger(state) - 1
        aside |= {info.ledger_id for info in ledgers if info.ledger_id <= newest}
    aside = {each for each in aside if each not in state.aside_ledgers}
    kept = [
        info
        for info in ledgers
        if info.entries and info.ledger_id not in aside and info.ledger_id not in state.aside_ledgers
    ]
    return Acceptance(
        stream=state.stream,
        why=why,
        source=source,
        aside=tuple(sorted(aside)),
        gaps=tuple(_missing(state, kept, first_ledger)),
        failed=(*(each.uuid for each in state.assigned()), *(each.uuid for each in state.rewrites)),
        ledgers_from=first_ledger + 1,
    )


def _missing(state: ManifestState, kept: Sequence[LedgerInfo], first_ledger: int) -> list[Gap]:
    """Entries after the committed end that are in no segment, no gap and not in the accepted source."""
    reached = state.committed_end()
    if reached is None:
        begins = [segment.begin for segment in state.assigned()]
        newest = newest_known(state)
        begins += [Position(newest.ledger_id, 0)] if newest is not None else []
        if not begins:
            return []
        reached = min(begins).previous()
    ends = {**state.closed_ledgers, **{info.ledger_id: info.last_entry_id for info in kept if info.closed}}
    # Where the stream continues: an id that no ledger ever has ends there, so that any later ledger follows it.
    ends[first_ledger] = -1
    held = [(s.begin, s.end) for s in state.segments.in_order(reached) if s.status is not SegmentStatus.ASSIGNED]
    held += [(gap.first, gap.last) for gap in state.gaps if gap.last > reached]
    held += [each for info in kept for each in _there(info) if each[1] > reached]
    found: list[Gap] = []
    goes_on = any(info.ledger_id >= first_ledger for info in kept)
    for begin, end in [*sorted((b, e or b) for b, e in held), *(() if goes_on else [(Position(first_ledger, 0),) * 2])]:
        if begin > reached and not follows(reached, begin, ends):
            last = begin.previous()
            found.append(Gap(reached.next(), last, REPLACED))
        reached = max(reached, end)
    return found


def _there(info: LedgerInfo) -> Iterator[tuple[Position, Position]]:
    """Runs of a ledger's entries that its source hasn't lost."""
    at = 0
    for first, last in (*info.lost, (info.entries, info.entries)):
        if at < first:
            yield Position(info.ledger_id, at), Position(info.ledger_id, first - 1)
        at = last + 1


def accept_source(
    log: ManifestLog,
    source: LedgerSource,
    *,
    settings: OffloadSettings,
    clock: Clock,
    reserve: bool = False,
    dry_run: bool = False,
) -> Acceptance:
    """Make ``source`` the stream's hot tier in place of the previous one.

    The stream's writer is fenced first. Complete assigned segments are adopted; then one record has the gap and the new
    source. Safe to call again after any failure: before that record everything is as it was.

    Args:
        log: of the stream, for exclusive use.
        source: with an identity.
        reserve: new ledgers take their ids from a range of this start's own: for appending processes.
        dry_run: only plan.

    Raises:
        InvalidCall: the source has no identity.
        NotFound: no such stream.
        StoreUnavailable, OutcomeUnknown: call it again.
    """
    identity = identified(source)
    if identity is None:
        raise InvalidCall(f"stream {log.stream}: this hot tier has no identity that could be accepted")
    state = log.load()
    why = _mismatch(state, identity, source)
    plan = plan_acceptance(state, identity.source_id(), source.ledgers(), _first_ledger(state, identity), why=why)
    if dry_run or not why:
        return plan if why else replace(plan, aside=(), gaps=(), failed=())
    log.open_epoch()
    adopted = _adopt(log, settings, clock)
    done = plan

    def accepted(state: ManifestState, first: int) -> Sequence[Edit]:
        nonlocal done
        done = plan_acceptance(state, identity.source_id(), source.ledgers(), first, why=why)
        edits: list[Edit] = [Failed(uuid, REPLACED) for uuid in done.failed]
        edits += [SetAside(done.aside)] if done.aside else []
        return [*edits, LedgerClosed(first, -1), *done.gaps]

    log.open_epoch(identity, reserve=reserve, accept=accepted)
    return replace(done, adopted=tuple(adopted), record_id=log.state.record_id)


def accept_loss(log: ManifestLog, source: LedgerSource, *, settings: OffloadSettings, clock: Clock) -> Acceptance:
    """Record entries that a ledger database has lost of a stream, once the database itself continues without them.

    Raises: as ``accept_source``.
    """
    identity = identified(source)
    if identity is None:
        raise InvalidCall(f"stream {log.stream}: this hot tier has no identity that could be accepted")
    state = log.load()
    if _mismatch(state, identity, source):
        return accept_source(log, source, settings=settings, clock=clock)
    infos = [info for info in source.ledgers() if info.ledger_id not in state.aside_ledgers]
    holes = find_holes(state, infos)
    done = Acceptance(stream=log.stream, why="", source=identity.source_id(), gaps=tuple(holes.gaps))
    return (
        replace(done, record_id=log.commit_as_maintainer([*holes.ends, *holes.gaps]).record_id) if holes.gaps else done
    )


def _mismatch(state: ManifestState, identity: IdentifiedSource, source: LedgerSource) -> str:
    why = source_mismatch(state.source, facts_now(state, identity))
    return why or "; ".join(contradictions(state, source.ledgers()).values())


def _first_ledger(state: ManifestState, identity: IdentifiedSource) -> int:
    return max(first_free_ledger(state), identity.next_ledger())


def _adopt(log: ManifestLog, settings: OffloadSettings, clock: Clock) -> list[UUID]:
    """Adopt the complete assigned segments and return them."""
    adopted = []
    for segment in log.state.assigned():
        part_bytes = part_bytes_for(settings)
        edit = settle_leftover(log, segment, {}, part_bytes=part_bytes, now_ms=clock.now_ms())
        if isinstance(edit, Offloaded):
            log.commit([edit])
            adopted.append(segment.uuid)
    return adopted
