"""Whether a hot tier is the one that a manifest knows (docs/MANIFEST.md, "Which hot tier").

A position is a place in one hot tier. Another ledger database, or an older copy, gives positions again that the
manifest has already: its entries would be taken for offloaded ones, and deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from formats.checkpoint import KnownSource
from formats.checkpoint_ledgers import DELETED, LAST_UNKNOWN
from formats.entries import Position
from formats.manifest import FACT_UNKNOWN, Edit, LedgerClosed
from offloader.errors import SourceMismatch
from offloader.ledgers.base import IdentifiedSource, LedgerInfo, LedgerSource, identified
from offloader.manifest.ledger_table import LedgerFact
from offloader.manifest.segment_record import SegmentStatus
from offloader.manifest.state import ManifestState
from offloader.manifest.unreadable import REBUILD, LostRecords

__all__ = [
    "SourceFacts",
    "closed_edit",
    "contradictions",
    "facts_now",
    "first_free_ledger",
    "first_not_held",
    "mismatch_error",
    "newest_known",
    "require_noted",
    "require_same_ledgers",
    "require_same_source",
    "source_mismatch",
    "with_facts",
]

_ENTRY_ID_MAX = 2**63 - 1
#: Contradicting ledgers that a message names.
NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What a hot tier says of itself.

    Attributes:
        uuid: of the database.
        has_token: whether it has the newest token that the manifest knows.
        reached: the newest position that was ever appended to it.
    """

    uuid: UUID
    has_token: bool
    reached: Position | None


def facts_now(state: ManifestState, source: IdentifiedSource) -> SourceFacts:
    """Asks a source, after ``state`` was read: what it had when that was recorded, it must have now."""
    has_token = state.source is not None and source.has_start(state.source.token)
    return SourceFacts(source.source_id(), has_token, source.reached())


def source_mismatch(known: KnownSource | None, facts: SourceFacts) -> str | None:
    """Why a source isn't the one that is known; ``None``: it is, or none is known yet. Pure."""
    if known is None:
        return None
    if facts.uuid != known.uuid:
        return f"it is another database, {facts.uuid}"
    if not facts.has_token:
        return "it doesn't have the start that the manifest recorded last: it is an older copy"
    if known.reach is not None and (facts.reached is None or facts.reached < known.reach):
        return f"it ends at {facts.reached or 'its beginning'}, and it had entries up to {known.reach}"
    return None


def contradictions(state: ManifestState, ledgers: Iterable[LedgerInfo]) -> dict[int, str]:
    """Ledgers of which the manifest and the source say different things, ascending, and what; pure.

    Ledgers that were set aside aren't compared, nor those of which the source knows only a part.

    Args:
        ledgers: of the source, ascending, listed after ``state`` was read.
    """
    found: dict[int, str] = {}
    for info in ledgers:
        fact = state.ledgers.get(info.ledger_id)
        if info.ledger_id in state.aside_ledgers or not info.is_exact:
            continue
        why = _contradiction(state, info, fact)
        if why:
            found[info.ledger_id] = why
    return found


def _contradiction(state: ManifestState, info: LedgerInfo, fact: LedgerFact) -> str:
    if fact.last_entry_id != LAST_UNKNOWN:
        if not info.closed:
            return f"ledger {info.ledger_id} is open, and it was closed at entry {fact.last_entry_id}"
        if info.last_entry_id != fact.last_entry_id:
            return f"ledger {info.ledger_id} ends at entry {info.last_entry_id}, and it ended at {fact.last_entry_id}"
        for name, now in (("payload_bytes", info.size_bytes), ("created_ms", info.created_ms)):
            before = getattr(fact, name)
            if before not in (FACT_UNKNOWN, now):
                return f"ledger {info.ledger_id} has {name} {now}, and it had {before}"
        return ""
    if fact.flags & DELETED:
        return ""
    past = Position(info.ledger_id, info.entries), Position(info.ledger_id, _ENTRY_ID_MAX)
    for held in state.offloaded(*past):
        spans = () if held.summary is None else held.summary.ledgers
        last = max((span.last_entry_id for span in spans if span.ledger_id == info.ledger_id), default=-1)
        if last >= info.entries:
            return (
                f"ledger {info.ledger_id} has {info.entries} entries, and segment {held.uuid} holds entry {last} of it"
            )
    return ""


def require_same_source(state: ManifestState, source: IdentifiedSource) -> SourceFacts:
    """What the source says of itself.

    Raises:
        SourceMismatch: it isn't the one that ``state`` knows.
    """
    facts = facts_now(state, source)
    why = source_mismatch(state.source, facts)
    if why is not None:
        raise mismatch_error(state, why)
    return facts


def require_noted(state: ManifestState, source: IdentifiedSource) -> None:
    """Compares the manifest with what the source noted of it at its newest start or hot release.

    A manifest of another incarnation isn't compared: the stream was deleted and made again, or rebuilt.

    Raises:
        LostRecords: the manifest ends before that, as one of a restored bucket does.
    """
    noted = source.noted_manifest()
    if noted is not None and noted[0] == state.incarnation and noted[1] > state.record_id:
        raise LostRecords(
            f"manifest of stream {state.stream}: it ends with record {state.record_id}, and the hot tier saw record "
            f"{noted[1]}: the store was restored from a backup, or records are lost. Nothing was changed",
            hint=f"bring the store's newer objects back; {REBUILD}, with what is left",
        )


def require_same_ledgers(state: ManifestState, ledgers: Iterable[LedgerInfo]) -> None:
    """Compares what a source lists with what is recorded of its ledgers.

    Raises:
        SourceMismatch: there are ``contradictions``.
    """
    found = contradictions(state, ledgers)
    if found:
        more = f", and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        raise mismatch_error(state, "; ".join(list(found.values())[:NAMED_MAX]) + more)


def mismatch_error(state: ManifestState, why: str) -> SourceMismatch:
    """Names what the manifest has, what the source is, and the ways on."""
    known, newest = state.source, newest_known(state)
    when = datetime.fromtimestamp(state.time_ms / 1000, UTC).isoformat(timespec="seconds")
    database = f"ledger database {known.uuid}, " if known else ""
    return SourceMismatch(
        f"stream {state.stream}: this hot tier isn't the one its manifest knows: {why}; the manifest has {database}"
        f"entries up to {newest or 'none'}, and its newest record is of {when}. Nothing was deleted",
        hint=f"restore that database; or go on with this one and name what is missing: "
        f"`offloader accept-source {state.stream}` or open_managed_ledger(..., new_source=True); or use another stream",
    )


def newest_known(state: ManifestState) -> Position | None:
    """The newest position that the manifest knows of."""
    reach = None if state.source is None else state.source.reach
    return max((each for each in (state.newest_end, reach) if each is not None), default=None)


def first_free_ledger(state: ManifestState) -> int:
    """The first ledger id above all that any start may have given, and that any range or fact names."""
    known = [each.ledger_id for each in (newest_known(state), state.head) if each is not None]
    known += [segment.begin.ledger_id for segment in state.assigned()]
    known += [state.ledgers.newest_id()]
    if state.source is not None:
        known.append(state.source.reserved)
    return max(known) + 1


def first_not_held(state: ManifestState, info: LedgerInfo) -> Position | None:
    """The first entry of a listed ledger that somebody may get and that neither a segment nor a gap has; pure."""
    wanted, last = Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)
    if state.head is not None and wanted < state.head <= last:
        wanted = state.head  # what is before it in this ledger may be in segments that are deleted by now
    segments = (each for each in state.segments.in_order(wanted, last) if each.status is not SegmentStatus.ASSIGNED)
    held = [(each.begin, each.end or each.begin) for each in segments]
    held += [(gap.first, gap.last) for gap in state.gaps if gap.first <= last and gap.last >= wanted]
    held += [(Position(info.ledger_id, first), Position(info.ledger_id, end)) for first, end in info.not_given]
    for begin, end in sorted(held):
        if begin <= wanted <= end:
            wanted = Position(end.ledger_id, end.entry_id + 1)
    return wanted if wanted <= last else None


def closed_edit(info: LedgerInfo, source: LedgerSource | None) -> LedgerClosed:
    """The fact that a ledger of ``source`` is closed; with what a source with an identity knows exactly of it."""
    if source is None or not info.is_exact or identified(source) is None:
        return LedgerClosed(info.ledger_id, info.last_entry_id)
    return LedgerClosed(info.ledger_id, info.last_entry_id, info.size_bytes, info.created_ms)


def with_facts(edits: Sequence[Edit], source: LedgerSource) -> list[Edit]:
    """``edits``, those about closed ledgers with what the source knows of them beside their ends."""
    bare = {edit.ledger_id for edit in edits if isinstance(edit, LedgerClosed) and edit.created_ms == FACT_UNKNOWN}
    if not bare or identified(source) is None:
        return list(edits)
    closed = [info for info in source.ledgers() if info.closed]
    told = {(info.ledger_id, info.last_entry_id): closed_edit(info, source) for info in closed}
    return [
        told.get((edit.ledger_id, edit.last_entry_id), edit) if isinstance(edit, LedgerClosed) else edit
        for edit in edits
    ]
