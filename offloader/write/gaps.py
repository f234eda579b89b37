"""Whether entries that the hot tier doesn't give any more are provably gone, and whether to go on without them.

Owns the proof. Must never take a source that didn't answer for one that has nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from formats.entries import Position
from formats.manifest import Gap
from offloader.errors import Corrupt
from offloader.ledgers.base import LedgerInfo

__all__ = ["meet_hole", "proven_gap", "require_recording"]

_log = logging.getLogger("offloader.stream")


def proven_gap(after: Position, begin: Position, ledgers: Iterable[LedgerInfo]) -> Gap | None:
    """The gap between the last entry that was offered and the next one that there is, ``None`` when it isn't proven.

    Entries are gone for good when the source's own list, read *after* the hole was seen, has no ledger that could hold
    them. What it lists and doesn't give is a fault of the source, not a gap.

    Args:
        after: the newest entry offered.
        begin: the entry that the source gives next.
        ledgers: all that exist, read after ``begin`` was seen.
    """
    known = {info.ledger_id: info for info in ledgers}
    if begin.ledger_id <= after.ledger_id or begin.entry_id != 0 or begin.ledger_id not in known:
        return None
    between = [info for info in known.values() if after.ledger_id <= info.ledger_id < begin.ledger_id and info.entries]
    if between:
        return None
    # Nobody knows any more how long the ledgers were: so the gap reaches up to the beginning of the next one.
    first = Position(after.ledger_id, after.entry_id + 1)
    reason = (
        f"the hot tier has nothing between {after} and {begin}: its ledgers were deleted before they were offloaded"
    )
    return Gap(first, Position(begin.ledger_id, -1), reason)


def meet_hole(stream: str, after: Position, begin: Position, ledgers: Iterable[LedgerInfo]) -> Gap:
    """The proven gap, see ``proven_gap``.

    Raises:
        Corrupt: it isn't proven; the source doesn't give what it lists.
    """
    gap = proven_gap(after, begin, ledgers)
    if gap is None:
        raise Corrupt(
            f"stream {stream}: the hot tier goes on at {begin} after {after}: entries are gone that it still lists",
            hint="nothing was committed beyond the hole: repair the hot tier",
        )
    return gap


def require_recording(stream: str, gap: Gap, policy: str) -> None:
    """Says loudly that a gap is about to be recorded.

    Args:
        policy: the setting ``on_gap``.

    Raises:
        Corrupt: the policy is to block.
    """
    if policy == "block":
        raise Corrupt(
            f"stream {stream}: entries {gap.first} up to {gap.last.ledger_id}:0 are gone: {gap.reason}",
            hint="nothing was committed beyond them: restore the hot tier, or set on_gap = record to go on without",
        )
    _log.error("stream %s: recording a gap from %s up to %s:0: %s", stream, gap.first, gap.last.ledger_id, gap.reason)
