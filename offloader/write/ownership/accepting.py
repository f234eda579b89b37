"""Going on with another hot tier because an operator said so: what of it counts, and what is missing from now on.

The rules are those of docs/MANIFEST.md, "Which hot tier". Deletes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from formats.entries import Position
from formats.manifest import Edit, Failed, Gap, LedgerClosed, Offloaded, SetAside
from offloader.clock import Clock
from offloader.errors import InvalidCall
from offloader.ledgers.base import IdentifiedSource, LedgerInfo, LedgerSource, identified
from offloader.manifest.log import ManifestLog
from offloader.manifest.segment_record import SegmentStatus
from offloader.manifest.source_check import (
    contradictions,
    facts_now,
    first_free_ledger,
    newest_known,
    source_mismatch,
)
from offloader.manifest.state import ManifestState, follows
from offloader.settings import OffloadSettings
from offloader.write.hot.holes import find_holes
from offloader.write.ownership.takeover import settle_leftover
from offloader.write.segment.assignment import part_bytes_for

__all__ = ["REPLACED", "Acceptance", "accept_loss", "accept_source", "plan_acceptance"]

#: Reason of the gap that an accepted source leaves.
REPLACED = "the ledger database was replaced, and these entries aren't in the one that was accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What accepting a source changes, or has changed.

    Attributes:
        why: what the source contradicts; empty: nothing, and nothing is changed.
        source: uuid of the database.
        aside: its ledgers that are never offloaded, released or deleted, ascending.
        gaps: entries that are missing from now on.
        adopted, failed: segments that were on their way: complete ones count, the rest is part of what is missing. Of
            a plan all of them are in ``failed``.
        ledgers_from: new ledgers get ids from here on.
        record_id: the record that says so; ``None``: none was written.
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
    """What the manifest says from now on; pure. Segments on their way count as failed.

    Args:
        state: the manifest.
        source: uuid of the database that is accepted.
        ledgers: all it has, ascending, listed after ``state`` was read.
        first_ledger: a ledger id above all that anybody knows of; new ledgers get later ones.
        why: what the source contradicts.
    """
    aside = set(contradictions(state, ledgers))
    if state.source is not None and state.source.uuid != source:
        # No ledger of another database is one that the manifest has, whatever their lengths.
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
    """What lies behind the committed end and neither a segment, nor a gap, nor the accepted source has."""
    reached = state.committed_end()
    if reached is None:
        begins = [segment.begin for segment in state.assigned()]
        newest = newest_known(state)
        begins += [Position(newest.ledger_id, 0)] if newest is not None else []
        if not begins:
            return []
        reached = Position(min(begins).ledger_id, min(begins).entry_id - 1)
    ends = {**state.closed_ledgers, **{info.ledger_id: info.last_entry_id for info in kept if info.closed}}
    # Where the stream goes on: an id that no ledger ever has ends there, so that any later ledger follows it.
    ends[first_ledger] = -1
    held = [(s.begin, s.end) for s in state.segments.in_order(reached) if s.status is not SegmentStatus.ASSIGNED]
    held += [(gap.first, gap.last) for gap in state.gaps if gap.last > reached]
    held += [each for info in kept for each in _there(info) if each[1] > reached]
    found: list[Gap] = []
    goes_on = any(info.ledger_id >= first_ledger for info in kept)
    for begin, end in [*sorted((b, e or b) for b, e in held), *(() if goes_on else [(Position(first_ledger, 0),) * 2])]:
        if begin > reached and not follows(reached, begin, ends):
            last = Position(begin.ledger_id, begin.entry_id - 1)
            found.append(Gap(Position(reached.ledger_id, reached.entry_id + 1), last, REPLACED))
        reached = max(reached, end)
    return found


def _there(info: LedgerInfo) -> Iterator[tuple[Position, Position]]:
    """The runs of a ledger's entries that its source hasn't lost."""
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
    """Makes ``source`` the stream's hot tier, whatever the manifest knows of the one before.

    The stream's writer is fenced first. Complete segments on their way are adopted; what is missing then is one record,
    with the new source. Safe to call again after any failure: before that record everything is as it was.

    Args:
        log: of the stream; nobody else uses it.
        source: with an identity.
        reserve: new ledgers take their ids from a range of this start's own: for who appends.
        dry_run: only say what would be changed.

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
    """Records what a ledger database has lost of a stream, once the database itself goes on without it.

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
    return replace(done, record_id=log.amend([*holes.ends, *holes.gaps]).record_id) if holes.gaps else done


def _mismatch(state: ManifestState, identity: IdentifiedSource, source: LedgerSource) -> str:
    why = source_mismatch(state.source, facts_now(state, identity))
    return why or "; ".join(contradictions(state, source.ledgers()).values())


def _first_ledger(state: ManifestState, identity: IdentifiedSource) -> int:
    return max(first_free_ledger(state), identity.next_ledger())


def _adopt(log: ManifestLog, settings: OffloadSettings, clock: Clock) -> list[UUID]:
    """Ends the segments on their way that are whole; those."""
    adopted = []
    for segment in log.state.assigned():
        part_bytes = part_bytes_for(settings)
        edit = settle_leftover(log, segment, {}, part_bytes=part_bytes, now_ms=clock.now_ms())
        if isinstance(edit, Offloaded):
            log.commit([edit])
            adopted.append(segment.uuid)
    return adopted
