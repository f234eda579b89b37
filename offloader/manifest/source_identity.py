"""Compares a hot tier with the one that the manifest knows: rules M17 to M24 of docs/explanation/manifest.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from formats.checkpoint import DELETED, LAST_UNKNOWN, KnownSource
from formats.entries import EntryBatch, Position
from formats.manifest import FACT_UNKNOWN, Edit, LedgerClosed
from offloader.coverage import ENTRY_ID_MAX, first_missing
from offloader.errors import SourceMismatchError
from offloader.ledgers.base import (
    ClosedListener,
    ComparedSource,
    IdentifiedSource,
    KnownLedger,
    KnownLedgers,
    LedgerInfo,
    LedgerSource,
    Listener,
    ReadableLedgers,
    Subscription,
    WrappedSource,
    identified,
)
from offloader.manifest.ledger_table import settled_ranges
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState, SegmentRecord

#: Contradicting ledgers that an error names.
NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Identity of a hot tier.

    Attributes:
        has_token: whether it has the newest token that the manifest knows.
        reached: the newest position ever appended to it.
    """

    uuid: UUID
    has_token: bool
    reached: Position | None


def facts_now(state: ManifestState, source: IdentifiedSource) -> SourceFacts:
    """Queries a source after ``state`` was read: it must still have everything recorded by then."""
    has_token = state.source is not None and source.has_start(state.source.token)
    return SourceFacts(source.source_id(), has_token, source.reached())


def source_mismatch(known: KnownSource | None, facts: SourceFacts) -> str | None:
    """Why a source isn't the known one; ``None`` if it is, or none is known yet. Does no I/O."""
    if known is None:
        return None
    if facts.uuid != known.uuid:
        return f"it is another database, {facts.uuid} instead of {known.uuid}"
    if not facts.has_token:
        return "it lacks the start that the manifest recorded last: it is an older copy"
    if known.reach is not None and (facts.reached is None or facts.reached < known.reach):
        return f"it ends at {facts.reached or 'its beginning'}, but it had entries up to {known.reach}"
    return None


def contradictions(state: ManifestState, ledgers: Iterable[LedgerInfo]) -> dict[int, str]:
    """Ledgers whose facts in the manifest and the source differ, ascending, and how. Does no I/O.

    Skips ledgers that were set aside, and those that the source knows only in part.

    Args:
        ledgers: of the source, ascending, listed after ``state`` was read.
    """
    aside = state.aside_ledgers
    exact = (info for info in ledgers if info.is_exact and info.ledger_id not in aside)
    return {info.ledger_id: why for info in exact if (why := _contradiction(state, info))}


def _contradiction(state: ManifestState, info: LedgerInfo) -> str:
    fact = state.ledgers.get(info.ledger_id)
    if fact.last_entry_id != LAST_UNKNOWN:
        if not info.closed:
            return f"ledger {info.ledger_id} is open, but it was closed at entry {fact.last_entry_id}"
        if info.last_entry_id != fact.last_entry_id:
            return f"ledger {info.ledger_id} ends at entry {info.last_entry_id}, but it ended at {fact.last_entry_id}"
        for name, now in (("payload_bytes", info.size_bytes), ("created_ms", info.created_ms)):
            before = getattr(fact, name)
            if before not in (FACT_UNKNOWN, now):
                return f"ledger {info.ledger_id} has {name} {now}, but it had {before}"
        return ""
    if fact.flags & DELETED:
        return ""
    past = Position(info.ledger_id, info.entries), Position(info.ledger_id, ENTRY_ID_MAX)
    for held in state.offloaded(*past):
        last = max((span.last_entry_id for span in held.spans if span.ledger_id == info.ledger_id), default=-1)
        if last >= info.entries:
            return f"ledger {info.ledger_id} has {info.entries} entries, but segment {held.uuid} holds its entry {last}"
    return ""


def require_same_source(state: ManifestState, source: IdentifiedSource) -> SourceFacts:
    """The source's identity, compared with the manifest.

    Raises:
        SourceMismatchError: it isn't the one that ``state`` knows.
    """
    facts = facts_now(state, source)
    if (why := source_mismatch(state.source, facts)) is not None:
        raise mismatch_error(state, why)
    return facts


def require_same_ledgers(state: ManifestState, ledgers: Iterable[LedgerInfo]) -> None:
    """Compares a source's listed ledgers with the recorded facts.

    Raises:
        SourceMismatchError: there are ``contradictions``.
    """
    if found := contradictions(state, ledgers):
        more = f", and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        raise mismatch_error(state, "; ".join(list(found.values())[:NAMED_MAX]) + more)


def mismatch_error(state: ManifestState, why: str) -> SourceMismatchError:
    """The error with the manifest's source, the actual source and possible remedies."""
    known, newest = state.source, newest_known(state)
    when = datetime.fromtimestamp(state.time_ms / 1000, UTC).isoformat(timespec="seconds")
    database = f"ledger database {known.uuid}, " if known else ""
    return SourceMismatchError(
        f"stream {state.stream}: this hot tier isn't the one recorded in its manifest: {why}; the manifest has "
        f"{database}entries up to {newest or 'none'}, and its newest record is of {when}. Nothing was deleted",
        hint=f"restore that database; or continue with this one and record the missing entries: "
        f"`offloader stream set-source {state.stream}` or open_managed_ledger(..., new_source=True); or use another "
        "stream",
    )


def newest_known(state: ManifestState) -> Position | None:
    """The newest position in the manifest."""
    reach = None if state.source is None else state.source.reach
    return max((each for each in (state.newest_end, reach) if each is not None), default=None)


def first_free_ledger(state: ManifestState) -> int:
    """The first ledger id above all that any start was granted, and that any range or fact names."""
    known = [each.ledger_id for each in (newest_known(state), state.head) if each is not None]
    known += [segment.begin.ledger_id for segment in state.assigned()]
    reserved = -1 if state.source is None else state.source.reserved
    return max(*known, state.ledgers.newest_id(), reserved) + 1


def first_not_held(state: ManifestState, info: LedgerInfo) -> Position | None:
    """The first deliverable entry of a listed ledger that neither a segment nor a gap has. Does no I/O."""
    wanted, last = Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)
    if state.head is not None and wanted < state.head <= last:
        wanted = state.head  # earlier entries of this ledger may have been in deleted segments
    held = settled_ranges(state.segments, state.gaps, wanted, last)
    held += [(Position(info.ledger_id, first), Position(info.ledger_id, end)) for first, end in info.not_given]
    return first_missing(held, wanted, last)


def closed_edit(info: LedgerInfo, source: LedgerSource | None) -> LedgerClosed:
    """The fact that a ledger of ``source`` is closed; with its exact size and times if the source has an identity."""
    if source is None or not info.is_exact or identified(source) is None:
        return LedgerClosed(info.ledger_id, info.last_entry_id)
    return LedgerClosed(info.ledger_id, info.last_entry_id, info.size_bytes, info.created_ms)


def with_facts(edits: Sequence[Edit], source: LedgerSource) -> list[Edit]:
    """``edits``, with the source's other facts added to those about closed ledgers."""
    bare = {edit.ledger_id for edit in edits if isinstance(edit, LedgerClosed) and edit.created_ms == FACT_UNKNOWN}
    if not bare or identified(source) is None:
        return list(edits)
    closed = [info for info in source.ledgers() if info.closed]
    told = {(info.ledger_id, info.last_entry_id): closed_edit(info, source) for info in closed}
    return [
        told.get((edit.ledger_id, edit.last_entry_id), edit) if isinstance(edit, LedgerClosed) else edit
        for edit in edits
    ]


def known_ledgers(state: ManifestState, ledger_ids: Sequence[int] | None) -> KnownLedgers:
    """Facts, segments and gaps of some ledgers in ``state``; see ``AskKnown``."""
    if ledger_ids is None:
        end, gone = state.prefix_end(), (state.hot_released_ledgers, state.deleted_ledgers)
        ledger_ids = [
            each
            for each in state.closed_ledgers
            if end is not None and each <= end.ledger_id and not any(each in ids for ids in gone)
        ]
    found = {each: known for each in ledger_ids if (known := _known(state, each)) is not None}
    first, last = state.segments.in_order()[:1], state.prefix_end()
    begins = [segment.begin for segment in first] + [gap.first for gap in state.gaps[:1]]
    whole = None
    if begins and last is not None:
        # A gap up to a ledger's begin says nothing of that ledger.
        whole = (min(begins).ledger_id, last.ledger_id if last.entry_id >= 0 else last.ledger_id - 1)
    return KnownLedgers(newest=state.newest_end, settled=last, whole=whole, ledgers=found)


def compare_source(source: LedgerSource, state: ManifestState) -> None:
    """Makes a comparable source compare itself with ``state``; call before listing its ledgers.

    Raises: as ``ComparedSource.require_same``.
    """
    while isinstance(source, WrappedSource) and not isinstance(source, ComparedSource):
        source = source.inner
    if isinstance(source, ComparedSource):
        source.require_same(partial(known_ledgers, state))


def _known(state: ManifestState, ledger_id: int) -> KnownLedger | None:
    fact = state.ledgers.get(ledger_id)
    last = None if fact.last_entry_id == LAST_UNKNOWN else fact.last_entry_id
    begin, end = Position(ledger_id, 0), Position(ledger_id, ENTRY_ID_MAX)
    reached = max((_reached(segment, ledger_id) for segment in state.segments.in_order(begin, end)), default=-1)
    is_known = last is not None or fact.flags or reached >= 0
    if is_known or any(gap.first <= end and gap.last >= begin for gap in state.gaps):
        return KnownLedger(last, reached)
    return None


def _reached(segment: SegmentRecord, ledger_id: int) -> int:
    """The newest entry of a ledger that a segment is known to hold; -1: none is known."""
    held = [span.last_entry_id for span in segment.spans if span.ledger_id == ledger_id]
    ends = [each for each in (segment.begin, segment.end) if each is not None]
    return max([*held, *(each.entry_id for each in ends if each.ledger_id == ledger_id)], default=-1)


class CheckedLedgers:
    """``ReadableLedgers`` whose ``ledgers`` raises ``SourceMismatchError`` if they aren't those that the manifest
    knows.

    List them before reading: ``read`` compares nothing. Ledgers that were set aside are left out. Thread-safe.

    Args:
        view: the last loaded manifest, ``None`` before that: then nothing is compared.
    """

    def __init__(self, inner: ReadableLedgers, view: Callable[[], ManifestState | None]) -> None:
        self._ledgers, self._view = inner, view
        self._identity = identified(inner)

    def ledgers(self) -> list[LedgerInfo]:
        # The view first: an entry that is recorded after the listing isn't missing in it.
        state = self._view()
        infos = self._ledgers.ledgers()
        if state is None:
            return infos
        self._compare(state, infos)
        aside = state.aside_ledgers
        return [info for info in infos if info.ledger_id not in aside]

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        state = self._view()
        batch = self._ledgers.read(start, max_bytes)
        while batch is not None and state is not None and batch.ledger_id in state.aside_ledgers:
            batch = self._ledgers.read(Position(batch.ledger_id + 1, 0), max_bytes)
        return batch

    def _compare(self, state: ManifestState, infos: Sequence[LedgerInfo]) -> None:
        if self._identity is not None:
            require_same_source(state, self._identity)
            require_same_ledgers(state, infos)


class CheckedSource(CheckedLedgers):
    """A ``LedgerSource`` of an owner, checked as ``CheckedLedgers``.

    Skipping, releasing, truncating and acknowledging entries all list the ledgers first, so none of it happens to a
    wrong source. A source without an identity compares itself if it can: a Pulsar topic. Thread-safe.
    """

    def __init__(self, inner: LedgerSource, view: Callable[[], ManifestState | None]) -> None:
        super().__init__(inner, view)
        self.inner = inner

    def _compare(self, state: ManifestState, infos: Sequence[LedgerInfo]) -> None:
        super()._compare(state, infos)
        if self._identity is None:
            compare_source(self.inner, state)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        return self.inner.subscribe(listener, closed)

    def release(self, position: Position) -> None:
        self.inner.release(position)

    def delete(self, ledger_id: int) -> None:
        self.inner.delete(ledger_id)


def checked(source: LedgerSource, log: ManifestLog) -> CheckedSource:
    """A stream's source, compared with the view of ``log``."""
    return CheckedSource(source, lambda: log.state if log.is_loaded else None)
