"""Filling what an interrupted backfill or a failing ledger left open, before a stream goes on live.

Owns that: a live segment follows the newest range that was ever promised, so whatever is missing before it comes first.
Must never fill what the hot tier doesn't have: that is a gap, and not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from formats.keys import new_segment_uuid
from formats.manifest import Assign, Edit, Failed, LedgerClosed, Offloaded, SetMethod
from offloader.ledgers.base import LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.write.backfill import HistoryTools, plan_of_history
from offloader.write.commits import Commits

__all__ = ["fill_holes"]


def fill_holes(
    source: LedgerSource, log: ManifestLog, tools: HistoryTools, commits: Commits, given_up: Sequence[Failed]
) -> list[Failed]:
    """Offloads what is missing before the newest promised position, one segment after another, in this thread.

    Safe to call again after an error. Holes are rare: this needs no workers, and leaves them to others.

    Args:
        log: the stream's manifest, its epoch just opened: no segment of this epoch is on its way.
        commits: of that log.
        given_up: what the next record has to say of failed segments.

    Returns:
        What the next record still has to say.

    Raises:
        StoreUnavailable and what else the store or the source raise; nothing is lost.
    """
    state = log.state
    if state.method != "streaming":
        commits.commit([SetMethod("streaming")], lambda _: None)
    newest, committed = state.newest_end, state.committed_end()
    own = [Failed(each.uuid, "interrupted") for each in state.assigned() if each.epoch == log.epoch]
    said: list[Failed] = [*given_up, *own]
    if newest is None or (committed is not None and committed >= newest):
        return said
    ledgers = source.ledgers()
    plan = plan_of_history(state, ledgers, tools.settings, last=newest, given_up={edit.uuid for edit in said})
    while (planned := plan.next()) is not None:
        uuid = new_segment_uuid(state.incarnation, int.from_bytes(tools.entropy(8), "big"))
        known = log.state.closed_ledgers
        closed = [info for info in ledgers if info.closed and info.ledger_id <= planned.end.ledger_id]
        facts: list[Edit] = [LedgerClosed(i.ledger_id, i.last_entry_id) for i in closed if i.ledger_id not in known]
        now_ms = tools.clock.now_ms()
        assign = Assign(uuid, int(planned.layout), planned.begin, planned.end, now_ms, tools.driver)
        commits.commit([*said, *facts, assign], lambda _: None)
        said = []
        summary = tools.upload_segment(source, log, uuid, planned, lambda: False)
        commits.commit([Offloaded(uuid, summary, tools.clock.now_ms())], lambda _: None)
        plan.uploaded(summary)
    return said
