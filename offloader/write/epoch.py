"""Ownership of a stream: open an epoch, settle unfinished segments, accept another hot tier, reacquire.

**The problem.** The former owner may have ended, or be slow and still sending. Its assigned segments may be complete in
the store, in part or not at all, and a request in flight may still change that. An adopted segment replaces the hot
copy of its entries, so it is adopted only after every byte was read.

**Order of durable steps** of ``Ownership.take``:

1. The manifest is loaded and compared with the hot tier. A contradiction, or an owner that was active recently, is
   refused.
2. The next epoch is opened (``offloader.write.ownership``). From here on the former owner can't commit anything.
3. Each assigned segment of an earlier epoch is settled:

   a. If its data object is missing, its uploads are aborted, and the object is looked for again: the last request of
      the former owner may have completed it before the abort. If it is still missing, the segment has failed.
   b. The whole data object is read and checked block by block. Its index is computed and created; an existing index has
      to describe the same blocks. If the bytes, the index or the range don't match, the segment has failed.
   c. A complete segment is recorded as offloaded. A failed one remains in ``given_up`` until a record takes over its
      range: its assignment may be the only trace of entries that the hot tier has lost. A ``rewrite`` of an earlier
      epoch has failed, too; the segments that it was to replace still exist.

4. If this process acknowledges entries, the hot tier is told the committed end, or the position before the first
   missing entry.

**After a crash.** Before step 2 nothing has changed. Afterwards the epoch is open without an owner: the next start
opens another one and settles all segments that are still assigned. An index without its record is found in step 3b and
compared. If the store doesn't answer, nothing is decided, and ``take`` continues later where it stopped. An object that
the former owner completes after its segment failed is in no record, and the orphan search deletes it. A uuid is never
assigned again (M4).

**Another hot tier.** ``accept_source`` opens an epoch to fence the writer, adopts complete segments, and commits one
record. This record opens a further epoch with the new source, fails the other segments, sets contradicting ledgers
aside, and has the missing entries as gaps. Until then the manifest knows the old source only. ``accept_loss`` records
gaps of the same source; it opens an epoch only if there are some and segments are assigned.

**Reacquiring.** A fenced stream may be taken back if it has a backlog, isn't paused, and the manifest got no record for
``offload.takeover_after``, plus the longest age of a segment if one is assigned. A source that knows its owner is
asked, too. Clocks only decide how long to wait: fencing doesn't depend on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from uuid import UUID

import numpy as np

from formats.checksum import crc32c
from formats.entries import Position
from formats.errors import FormatError
from formats.index import BlockTable, decode_index_header
from formats.keys import data_key
from formats.manifest import Edit, Failed, Gap, LedgerClosed, Offloaded, SetAside
from formats.segment import LedgerFacts, SegmentRecovery
from formats.segment_map import SegmentMap
from formats.summary import Layout, SegmentSummary
from offloader.coverage import GapReason, KnownEnds, holes, missing
from offloader.errors import ClosedError, InvalidCallError, NotFoundError, PreconditionFailedError, SourceMismatchError
from offloader.ledgers.base import IdentifiedSource, LedgerInfo, LedgerSource, LostRange, identified
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.catalog import read_entry
from offloader.manifest.log import ManifestLog
from offloader.manifest.noted import load_noted, replaced_by, store_mismatch
from offloader.manifest.segment_table import SegmentStatus
from offloader.manifest.source_identity import (
    checked,
    compare_source,
    contradictions,
    facts_now,
    first_free_ledger,
    newest_known,
    source_mismatch,
)
from offloader.manifest.state import ManifestState, SegmentRecord, require_takeable
from offloader.manifest.store_identity import other_identity, read_identity
from offloader.runtime.clock import Clock
from offloader.settings import OffloadSettings
from offloader.store.base import CREATE, ByteRange, ObjectStore
from offloader.write.hot_tier import (
    FoundGaps,
    acknowledged_end,
    facts_of,
    find_gaps,
    listed_ranges,
)
from offloader.write.ownership import open_owned
from offloader.write.quota import part_bytes_for, segment_age_s_max
from offloader.write.stream_state import OWNER_REPLACED, Commits
from offloader.write.upload import abort_uploads, upload_of

#: Bytes of one GET while a leftover data object is checked: with one block, the memory of the check.
CHECK_READ_BYTES = 8 * 1024 * 1024
#: Largest block that is adopted: the maximum of its length field.
_BLOCK_BYTES_MAX = 2**31 - 1


def settle_leftover(
    log: ManifestLog, segment: SegmentRecord, facts: Mapping[int, LedgerFacts], *, part_bytes: int, now_ms: int
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
        StoreUnavailableError, OutcomeUnknownError, AccessDeniedError: the object's state is unknown. Nothing is
            decided.
    """
    assert segment.epoch != log.epoch, "only an earlier epoch leaves unfinished segments"
    key = data_key(log.stream, segment.uuid, segment.v1_ledger_id)
    if not _is_there(log.store, key):
        abort_uploads(log.store, key)
    # Check again: its owner's last request may have completed the object just before the abort.
    if not _is_there(log.store, key):
        return Failed(segment.uuid, OWNER_REPLACED)
    recovery = SegmentRecovery(
        layout=Layout(segment.layout),
        part_bytes=part_bytes,
        object_name=key,
        block_bytes_max=_BLOCK_BYTES_MAX,
        decompressed_bytes_max=_BLOCK_BYTES_MAX,
        ledger_id=segment.v1_ledger_id,
    )
    start, size_bytes = 0, 1
    try:
        while start < size_bytes:
            body, info = log.store.get(key, ByteRange(start, start + CHECK_READ_BYTES))
            recovery.feed(body)
            start, size_bytes = start + CHECK_READ_BYTES, info.size_bytes
        index, summary = recovery.finish(facts)
        summary = _with_index(log, segment, index, summary)
    except FormatError as error:
        return Failed(segment.uuid, f"{OWNER_REPLACED}, and its objects aren't whole: {error}")
    if summary.begin != segment.begin or segment.end not in (None, summary.end):
        return Failed(segment.uuid, f"{OWNER_REPLACED}, and its object holds {summary.begin}..{summary.end}")
    return Offloaded(segment.uuid, summary, now_ms)


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except NotFoundError:
        return False
    return True


def _with_index(log: ManifestLog, segment: SegmentRecord, index: bytes, summary: SegmentSummary) -> SegmentSummary:
    """The summary with the index object in the store: an existing one, verified against the data, or ours."""
    upload = upload_of(
        log.store,
        log.stream,
        segment.uuid,
        segment.v1_ledger_id,
        incarnation=log.state.incarnation,
        epoch=log.epoch or 0,
        codec="zstd" if summary.compressed else "none",
    )
    key = upload.index_key
    try:
        log.store.put(key, index, mode=CREATE, metadata=upload.index_metadata, crc32c=summary.index_crc32c)
    except PreconditionFailedError:
        existing = log.store.get(key)[0]
        found = SegmentMap.parse(existing, object_name=key, ledger_id=segment.v1_ledger_id)
        wanted = SegmentMap.parse(index, object_name=key, ledger_id=segment.v1_ledger_id)
        same_blocks = all(
            np.array_equal(getattr(found.blocks, column.name), getattr(wanted.blocks, column.name))
            for column in fields(BlockTable)
        )
        if (
            not (same_blocks and found.data_bytes == wanted.data_bytes)
            or decode_index_header(existing).index_bytes != len(existing)
            or found.index_crc32c != crc32c(existing)
        ):
            raise FormatError("the index doesn't describe the data object", object_name=key) from None
        # It may have other facts about the ledgers' ends than ours; it only has to describe this data.
        return replace(summary, index_bytes=len(existing), index_crc32c=crc32c(existing))
    return summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Changes of accepting a source, planned or done.

    Attributes:
        why: contradictions between the source and the manifest; empty: none, and nothing is changed.
        source: uuid of the database.
        aside: its ledgers that are never offloaded, released or deleted, ascending.
        gaps: entries that are missing from now on.
        adopted, failed: assigned segments: complete ones are adopted, the rest is part of the gap. In a plan all of
            them are in ``failed``.
        record_id: its record; ``None``: none was written.
    """

    stream: str
    why: str
    source: UUID
    aside: tuple[int, ...] = ()
    gaps: tuple[Gap, ...] = ()
    adopted: tuple[UUID, ...] = ()
    failed: tuple[UUID, ...] = ()
    record_id: int | None = None


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Entries that a ledger database lacks of a stream, accepted as lost or only listed.

    Attributes:
        lost: ascending.
        recorded: changes of the manifest; ``None``: only listed, or the stream isn't offloaded.
    """

    lost: Sequence[LostRange]
    recorded: Acceptance | None


def plan_acceptance(
    state: ManifestState, source: UUID, ledgers: Sequence[LedgerInfo], first_ledger: int, *, why: str = ""
) -> Acceptance:
    """Plan the manifest's changes. Pure. Assigned segments count as failed.

    Args:
        source: uuid of the database that is accepted.
        ledgers: all its ledgers, ascending, listed after ``state`` was read.
        first_ledger: a ledger id above all known ones; new ledgers get later ones.
        why: contradictions between the source and the manifest.
    """
    aside = set(contradictions(state, ledgers))
    if state.source is not None and state.source.uuid != source:
        # A ledger of another database differs from the manifest's of the same id, even if equally long.
        newest = first_free_ledger(state) - 1
        aside |= {info.ledger_id for info in ledgers if info.ledger_id <= newest}
    kept = [
        info
        for info in ledgers
        if info.entries and info.ledger_id not in aside and info.ledger_id not in state.aside_ledgers
    ]
    return Acceptance(
        stream=state.stream,
        why=why,
        source=source,
        aside=tuple(sorted(each for each in aside if each not in state.aside_ledgers)),
        gaps=tuple(_missing(state, kept, first_ledger)),
        failed=_unfinished(state),
    )


def _unfinished(state: ManifestState) -> tuple[UUID, ...]:
    """Segments in flight, including those that are to replace others."""
    return (*(each.uuid for each in state.assigned()), *(each.uuid for each in state.rewrites))


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
    ends = KnownEnds({**state.closed_ledgers, **{info.ledger_id: info.last_entry_id for info in kept if info.closed}})
    # Where the stream continues: an id that no ledger ever has ends there, so that any later ledger follows it.
    ends[first_ledger] = -1
    held = [(s.begin, s.end) for s in state.segments.in_order(reached) if s.status is not SegmentStatus.ASSIGNED]
    held += [(gap.first, gap.last) for gap in state.gaps if gap.last > reached]
    lost = [
        (Position(info.ledger_id, first), Position(info.ledger_id, last)) for info in kept for first, last in info.lost
    ]
    held += missing(listed_ranges(kept), lost, by_ledger=True)
    goes_on = any(info.ledger_id >= first_ledger for info in kept)
    until = None if goes_on else Position(first_ledger, 0)
    return [Gap(first, last, GapReason.SOURCE_REPLACED) for first, last in holes(reached, held, ends, until=until)]


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
    source. Safe to call again after any failure: before that record nothing has changed.

    Args:
        log: of the stream, for exclusive use.
        source: with an identity.
        reserve: new ledgers take their ids from a range of this start: for appending processes.
        dry_run: only plan.

    Raises:
        InvalidCallError: the source has no identity.
        NotFoundError: no such stream.
        StoreUnavailableError, OutcomeUnknownError: call it again.
    """
    identity, state, why = _compared(log, source, create=not dry_run)
    first_ledger = max(first_free_ledger(state), identity.next_ledger())
    plan = plan_acceptance(state, identity.source_id(), source.ledgers(), first_ledger, why=why)
    if dry_run or not why:
        return plan if why else replace(plan, aside=(), gaps=(), failed=())
    log.open_epoch()
    adopted, _ = _settle_leftovers(log, lambda: (), settings, clock, log.commit)
    done = plan

    def accepted(state: ManifestState, first: int) -> Sequence[Edit]:
        nonlocal done
        done = plan_acceptance(state, identity.source_id(), source.ledgers(), first, why=why)
        edits: list[Edit] = [Failed(uuid, GapReason.SOURCE_REPLACED) for uuid in done.failed]
        edits += [SetAside(done.aside)] if done.aside else []
        return [*edits, LedgerClosed(first, -1), *done.gaps]

    open_owned(log, identity, reserve=reserve, accept=accepted)
    return replace(done, adopted=adopted, record_id=log.state.record_id)


def _settle_leftovers(
    log: ManifestLog,
    ledgers: Callable[[], Sequence[LedgerInfo]],
    settings: OffloadSettings,
    clock: Clock,
    commit: Callable[[Sequence[Edit]], object],
) -> tuple[tuple[UUID, ...], list[Failed]]:
    """Commit the segments of earlier epochs whose data objects are complete; returns them, and edits about the others.

    Call it after ``log.open_epoch()``. ``ledgers`` lists those of the source, and is called only if there is a segment.
    """
    adopted, failed = list[UUID](), list[Failed]()
    leftovers = [segment for segment in log.state.assigned() if segment.epoch != log.epoch]
    facts = {info.ledger_id: facts_of(info) for info in ledgers()} if leftovers else {}
    for segment in leftovers:
        edit = settle_leftover(log, segment, facts, part_bytes=part_bytes_for(settings), now_ms=clock.now_ms())
        if isinstance(edit, Failed):
            failed.append(edit)
            continue
        commit([edit])
        adopted.append(segment.uuid)
    return tuple(adopted), failed


def accept_loss(
    log: ManifestLog, source: LedgerSource, *, settings: OffloadSettings, clock: Clock, take_over: bool = False
) -> Acceptance:
    """Record entries that a ledger database has lost of a stream, once the database itself continues without them.

    If segments are assigned, this opens an epoch: complete ones are adopted, the rest fails in the record of the gaps.

    Args:
        take_over: open the epoch although the owner was active recently.

    Raises:
        FencedError: an active owner has assigned segments, and ``take_over`` is off.
        others: as ``accept_source``.
    """
    identity, state, why = _compared(log, source, create=False)
    if why:
        return accept_source(log, source, settings=settings, clock=clock)
    found = _lost(state, source)
    commit: Callable[[Sequence[Edit]], ManifestState] = log.commit_as_maintainer
    adopted, failed = tuple[UUID, ...](), tuple[UUID, ...]()
    if found.gaps and state.assigned():
        require_takeable(state, clock.now_ms(), settings.takeover_after, take_over=take_over)
        open_owned(log, identity)
        adopted, _ = _settle_leftovers(log, source.ledgers, settings, clock, log.commit)
        found, commit = _lost(log.state, source), log.commit
        failed = _unfinished(log.state)
    done = Acceptance(stream=log.stream, why="", source=identity.source_id(), gaps=tuple(found.gaps), adopted=adopted)
    if not found.gaps:
        return replace(done, record_id=log.state.record_id if adopted else None)
    edits = [*(Failed(uuid, OWNER_REPLACED) for uuid in failed), *found.ends, *found.gaps]
    return replace(done, failed=failed, record_id=commit(edits).record_id)


def _lost(state: ManifestState, source: LedgerSource) -> FoundGaps:
    """Entries that neither the source nor the manifest has; assigned segments don't count."""
    infos = [info for info in source.ledgers() if info.ledger_id not in state.aside_ledgers]
    return find_gaps(state, infos, given_up=_unfinished(state))


def _compared(log: ManifestLog, source: LedgerSource, *, create: bool) -> tuple[IdentifiedSource, ManifestState, str]:
    """The source's identity, the manifest, and the contradiction between the two; empty: none.

    A store without a manifest of a stream that the source has committed contradicts the source.

    Args:
        create: create the stream then.
    """
    if (identity := identified(source)) is None:
        raise InvalidCallError(f"stream {log.stream}: this hot tier has no identity, so it can't be accepted")
    noted = identity.noted_manifests()
    try:
        state = log.load(create=create and bool(noted))
    except NotFoundError:
        if not (absent := store_mismatch(None, noted)):
            raise
        return identity, ManifestState(stream=log.stream, incarnation=noted[-1][0]), absent
    why = source_mismatch(state.source, facts_now(state, identity))
    why = why or store_mismatch(state if state.record_id else None, noted, replaced_by(log.store, state))
    why = why or other_identity(read_identity(log.store), identity.noted_store())
    return identity, state, why or "; ".join(contradictions(state, source.ledgers()).values())


class Ownership:
    """Ownership of one stream. Used by its steps only, one at a time.

    Args:
        take_over: take the stream from any owner (the source made this writer active, or the operator requested it).
        acknowledges: acknowledge offloaded entries to the source; a view can't do that.
        is_fresh: ``log`` was loaded just before, so that ``take`` needn't load it.

    Attributes:
        take_over: as given; on after ``lose`` only when set again.
        held: the epoch is ours and leftovers are settled.
        given_up: edits about failed segments, for the record that assigns the next segment.
    """

    def __init__(
        self,
        log: ManifestLog,
        source: LedgerSource,
        settings: OffloadSettings,
        clock: Clock,
        *,
        take_over: bool,
        acknowledges: bool = True,
        is_fresh: bool = False,
    ) -> None:
        self._log, self._source, self._settings, self._clock = log, source, settings, clock
        self.take_over, self._acknowledges = take_over, acknowledges
        # A start that waits for its epoch opens it before any append.
        self._epoch_open = log.epoch is not None
        self._is_fresh = is_fresh
        self._loaded = self.held = self._is_stopped = False
        self.given_up: list[Failed] = []
        self._seen_record, self._silent_since_s = -1, 0.0

    def load(self) -> ManifestState:
        """Load the manifest, creating a missing one, and verify the source against it.

        Raises:
            SourceMismatchError: the source isn't the one that the manifest knows.
        """
        self._is_fresh = not self._loaded
        if not self._loaded:
            if not self._epoch_open:  # else its record was the newest just now
                load_noted(self._log, self._source, create=True)
            compare_source(self._source, self._log.state)
            self._loaded = True
        if identified(self._source) is not None:
            self._source.ledgers()
        return self._log.state

    def take(self, commits: Commits) -> None:
        """Open an epoch, which fences the previous owner, and settle its unfinished segments.

        Safe to call again after an error: it continues where it stopped.

        Raises:
            FencedError: an active owner has the stream, and ``take_over`` is off; or the source reports that this
                writer isn't the active one.
            SourceMismatchError: as ``load``.
        """
        if not self._epoch_open:
            # The view just loaded shows the owner's activity as well as another load.
            state = self._log.state if self._is_fresh else load_noted(self._log, self._source, create=True)
            self._is_fresh = False
            compare_source(self._source, state)
            open_owned(self._log, identified(self._source), check=self._require_takeable)
            self._epoch_open = True
        # An earlier epoch's rewrite can't be finished any more; the segments it was to replace still exist.
        rewrites = [Failed(each.uuid, OWNER_REPLACED) for each in self._log.state.rewrites]
        _, failed = _settle_leftovers(self._log, self._source.ledgers, self._settings, self._clock, commits.commit)
        end = acknowledged_end(self._log.state, self._source.ledgers()) if self._acknowledges else None
        if end is not None:
            # Shows a newly opened source which entries another writer took from it meanwhile.
            self._source.release(end)
        self.given_up = [*rewrites, *failed]
        self.held = True

    def _require_takeable(self, state: ManifestState) -> None:
        """Also of a view that shows an owner who came while this one was about to take the stream."""
        if self._is_stopped:
            raise ClosedError(f"stream {self._log.stream} was stopped")
        require_takeable(state, self._clock.now_ms(), self._settings.takeover_after, take_over=self.take_over)

    def stop(self) -> None:
        """Open no further epoch after those of other writers; thread-safe."""
        self._is_stopped = True

    def lose(self) -> None:
        """Record that another writer took the stream."""
        self.held = self._epoch_open = False
        self.take_over = False
        self._seen_record, self._silent_since_s = self._log.state.record_id, self._clock.monotonic_s()

    def is_abandoned(self, tail: Position | None) -> bool:
        """Whether a lost stream may be taken back: it has a backlog, and no record was written for long enough.

        An owner that gathers a segment is silent for as long as a segment may take; one without a segment is idle or
        dead. The source is queried too (a source that knows its owner refuses an acknowledgement).

        Raises:
            FencedError: the source reports that this writer isn't the active one.
        """
        # Measure silence up to the request: the owner may have written while the response was in flight.
        asked_s = self._clock.monotonic_s()
        state = self._log.load(create=True)
        committed = state.committed_end()
        if state.record_id != self._seen_record or state.paused:
            self._seen_record, self._silent_since_s = state.record_id, self._clock.monotonic_s()
            return False
        patience_s: float = self._settings.takeover_after
        if state.assigned():
            patience_s += segment_age_s_max(self._settings)
        if tail is None or (committed is not None and tail <= committed) or asked_s - self._silent_since_s < patience_s:
            return False
        if committed is not None:
            self._source.release(committed)
        return True


_log = logging.getLogger("offloader.stream")


def _view_of(database: EmbeddedLedgers, stream: str) -> EmbeddedStream | None:
    with suppress(NotFoundError):
        return database.view_stream(stream)
    return None


def open_source(
    database: EmbeddedLedgers, log: ManifestLog, *, settings: OffloadSettings, clock: Clock, new_source: bool = False
) -> EmbeddedStream:
    """Open the stream for appending and fence its previous owner.

    An offloaded stream then has an open epoch, ``log``'s. A stream that was never offloaded costs one request.

    Args:
        log: of the stream, not loaded yet.
        new_source: accept this database although the manifest knows another one.

    Raises:
        SourceMismatchError: the database isn't the one that the manifest knows; appends are refused.
        StoreUnavailableError, OutcomeUnknownError: the store is unreachable; call again.
    """
    is_offloaded = settings.method != "none"
    state: ManifestState | None = None
    if is_offloaded:
        database.require_name(log.stream)
        state = load_noted(log, None if new_source else _view_of(database, log.stream), create=True)
    else:
        with suppress(NotFoundError):  # it was never offloaded
            state = log.load() if read_entry(log.store, log.stream) is not None else None
    # Without a new epoch, this process's ledgers have to come after those in the manifest.
    above = 0 if is_offloaded or state is None else max(first_free_ledger(state) - 1, 0)
    try:
        source = database.open_stream(log.stream, held=is_offloaded, above=above)
    except SourceMismatchError:
        if not new_source:
            raise
        database.accept_loss(log.stream)
        source = database.open_stream(log.stream, held=is_offloaded, above=above)
    if state is None:
        return source
    try:
        checked(source, log).ledgers()
        if is_offloaded:  # otherwise the epoch is left to a separate offloader beside this process
            open_owned(log, identified(source), reserve=True)
    except SourceMismatchError:
        if not new_source:
            raise
        done = accept_source(log, source, settings=settings, clock=clock, reserve=True)
        _log.error(
            "stream %s continues with the accepted hot tier: %s; missing: %s; left aside: %s",
            *(log.stream, done.why),
            ", ".join(f"{gap.first} up to {gap.last}" for gap in done.gaps) or "no known entries",
            ", ".join(map(str, done.aside)) or "no ledger",
        )
    return source
