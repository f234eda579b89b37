"""Whether entries that the hot tier doesn't give any more are provably gone, and whether to go on without them.

Owns the proof. Must never take a source that didn't answer for one that has nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from formats.entries import Position
from formats.manifest import Gap
from offloader.errors import Corrupt
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.write.hot.holes import HARMLESS, UNCONFIRMED, why_not_given
from offloader.write.hot.reading import HotRead

__all__ = ["allowed_gaps", "blocked_at", "gap_before", "proven_gap", "require_recording"]

_log = logging.getLogger("offloader.stream")


def proven_gap(after: Position, begin: Position, ledgers: Iterable[LedgerInfo]) -> Gap | None:
    """The gap between the last entry that was offered and the next one that there is, ``None`` when it isn't proven.

    Entries are gone for good when the source's own list, read *after* the hole was seen, has no ledger that could hold
    them, or says that it never gives them. What else it lists and doesn't give is a fault of the source, not a gap.

    Args:
        after: the newest entry offered.
        begin: the entry that the source gives next.
        ledgers: all that exist, read after ``begin`` was seen.
    """
    known = {info.ledger_id: info for info in ledgers}
    own, missed = known.get(after.ledger_id), _first_listed_between(after, begin, known)
    if missed is not None:
        gap = _not_given(known[missed.ledger_id], missed)
        if gap is None or (own is not None and not own.closed and missed.ledger_id > after.ledger_id):
            return None
        if own is not None:
            return gap
        begin = missed  # what isn't given there is a gap of its own
    if begin.ledger_id <= after.ledger_id or begin.entry_id != 0 or not _reaches(known, begin.ledger_id):
        return None
    if own is not None and not own.closed:
        return None
    # Nobody knows any more how long the ledgers were: so the gap reaches up to the beginning of the next one.
    first = Position(after.ledger_id, after.entry_id + 1)
    reason = (
        f"the hot tier has nothing between {after} and {begin}: its ledgers were deleted before they were offloaded"
    )
    return Gap(first, Position(begin.ledger_id, -1), reason)


def _reaches(known: Mapping[int, LedgerInfo], ledger_id: int) -> bool:
    """Whether a list tells of everything up to a ledger that the source gave entries of. One that begins behind it does
    too: a stream is cut off at its front, meanwhile up to there. An empty one tells nothing."""
    return ledger_id in known or (bool(known) and ledger_id < min(known))


def _first_listed_between(after: Position, begin: Position, known: Mapping[int, LedgerInfo]) -> Position | None:
    """The first entry that a source lists between two positions."""
    for ledger_id in sorted(each for each in known if after.ledger_id <= each <= begin.ledger_id):
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        end = begin.entry_id if ledger_id == begin.ledger_id else known[ledger_id].entries
        if first < end:
            return Position(ledger_id, first)
    return None


def _not_given(info: LedgerInfo, position: Position) -> Gap | None:
    """From ``position`` to the end of the run that the source never gives and that holds it."""
    for first, last in info.not_given:
        if first <= position.entry_id <= last:
            return Gap(position, Position(info.ledger_id, last), why_not_given(info, (first, last)))
    return None


def gap_before(
    stream: str,
    read: HotRead,
    offered: Position | None,
    state: ManifestState,
    seen: Mapping[int, int],
    *,
    is_next: bool,
) -> Gap | None:
    """The proven gap before what was read, ``None`` when it begins with the entry that has to come next.

    It ends where the manifest has entries, or the hot tier.

    Args:
        stream: its name, for the error.
        read: what the source gives next.
        offered: the newest entry offered, ``None``: none yet. Then the first entry that anybody saw is the stream's
            first.
        state: the manifest. What is assigned in it is still promised: somebody saw the entry that it begins with, so
            that a stream can't go on behind it without a word, whatever else is known of its ledger.
        seen: closed ledgers that this stream saw: id -> last entry id (-1: empty).
        is_next: whether it comes right after ``offered``, as far as ledgers are known.

    Raises:
        Corrupt: the gap isn't proven; the source doesn't give what it lists.
    """
    begin, after = read.batch.first, offered
    if offered is None or is_next:
        awaited = [segment.begin for segment in state.assigned() if offered is None or segment.begin > offered]
        if offered is None:
            awaited += [Position(ledger_id, 0) for ledger_id, last in seen.items() if last >= 0]
        first = min(awaited, default=begin)
        if begin <= first:
            return None
        after = Position(first.ledger_id, first.entry_id - 1)
    assert after is not None
    gap = proven_gap(after, begin, read.ledgers)
    if gap is None:
        raise Corrupt(
            f"stream {stream}: the hot tier goes on at {begin} after {after}: entries are gone that it still lists",
            hint="nothing was committed beyond the hole: repair the hot tier",
        )
    there = next(iter(state.offloaded(gap.first, gap.last)), None)
    return gap if there is None else replace(gap, last=Position(there.begin.ledger_id, there.begin.entry_id - 1))


def allowed_gaps(lost: Sequence[Gap], policy: str) -> tuple[list[Gap], Gap | None]:
    """The leading gaps that may be recorded, and the first one that the policy blocks at.

    Args:
        lost: proven, in the stream's order.
        policy: the setting ``on_gap``.
    """
    for number, gap in enumerate(lost):
        if policy == "block" and gap.reason not in HARMLESS:
            return list(lost[:number]), gap
    return list(lost), None


def blocked_at(stream: str, gap: Gap) -> Corrupt:
    """What a stream stops with at a gap that isn't to be recorded."""
    remedy = "restore the hot tier"
    if gap.reason == UNCONFIRMED:
        remedy = "let the source confirm them (doctor names the missing permission) and start again"
    return Corrupt(
        f"stream {stream}: entries {gap.first} up to {_end_of(gap)} are gone: {gap.reason}",
        hint=f"nothing was committed beyond them: {remedy}, or set on_gap = record to go on without",
    )


def require_recording(stream: str, gap: Gap, policy: str) -> None:
    """Logs that a gap is about to be recorded: an error where something was lost, a warning where it may be.

    Args:
        policy: the setting ``on_gap``.

    Raises:
        Corrupt: the policy is to block.
    """
    if policy == "block" and gap.reason not in HARMLESS:
        raise blocked_at(stream, gap)
    level = logging.INFO if gap.reason in HARMLESS else logging.ERROR
    if gap.reason == UNCONFIRMED:
        level = logging.WARNING
    _log.log(level, "stream %s: recording a gap from %s up to %s: %s", stream, gap.first, _end_of(gap), gap.reason)


def _end_of(gap: Gap) -> str:
    return f"{gap.last.ledger_id}:0" if gap.last.entry_id < 0 else str(gap.last)
