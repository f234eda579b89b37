"""Fills gaps that `manifest rebuild` recorded as lost, where the hot tier has the entries.

A rebuild without the hot tier has to record them as lost; the writer finds the entries when it starts. The gap may lie
long before the committed end, which never moves back. So the new segment is promised (``rewrite``), which claims no
range, uploaded, and takes its range out of the gap in one record (``recover``): the gap's remaining parts still join
the ranges before and after it. A reader that has passed the gap doesn't receive these entries.

Hot copies of entries in such a gap aren't released meanwhile (``offloader.write.hot_release.doubtful_gap``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from formats.entries import Position
from formats.manifest import Edit, Failed, Recover, Rewrite, Rewritten
from formats.summary import Layout
from offloader.coverage import GapReason, without
from offloader.errors import CorruptError, UnsupportedError
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.ledger_table import fills_in
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState
from offloader.store.rate_limit import Priority, working_at
from offloader.write.backfill import HistoryTools
from offloader.write.quota import sized_for
from offloader.write.stream_state import INTERRUPTED
from offloader.write.upload import LedgerPiece, SourceLedger, upload_of, write_segment

_log = logging.getLogger("offloader.history")


@dataclass(frozen=True, slots=True)
class Recoverable:
    """Entries of one ledger that are in a lost gap and in the hot tier."""

    info: LedgerInfo
    first: Position
    last: Position


def recoverable(state: ManifestState, ledgers: Sequence[LedgerInfo]) -> list[Recoverable]:
    """The entries of lost gaps that the hot tier lists, in the stream's order. Does no I/O.

    Nothing of a stream on hold, where segments can't be promised, and nothing among entries that a fill has.

    Args:
        ledgers: the hot tier's, ascending, without those that were set aside.
    """
    found: list[Recoverable] = []
    for gap in state.gaps if not state.held else ():
        for info in ledgers if GapReason.of(gap).may_be_filled else ():
            begin = max(gap.first, Position(info.ledger_id, 0), state.head or gap.first)
            end = min(gap.last, Position(info.ledger_id, info.last_entry_id))
            if begin > end or info.ledger_id in state.deleted_ledgers:
                continue
            for first, last in without([(begin.entry_id, end.entry_id)], info.not_given):
                if not fills_in(state.fills, info.ledger_id, first, last):
                    found.append(Recoverable(info, Position(info.ledger_id, first), Position(info.ledger_id, last)))
    return found


def recover_lost(
    log: ManifestLog,
    source: LedgerSource,
    tools: HistoryTools,
    *,
    commit: Callable[[Sequence[Edit]], object],
    is_stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Offloads the ``recoverable`` entries; returns their number. Safe to interrupt.

    Args:
        log: its epoch is open.
        source: the owner's source; entries that it can't return remain a gap.
        commit: of the same log.

    Raises:
        ClosedError: ``is_stopped`` returned True.
        StoreUnavailableError, OutcomeUnknownError, FencedError: call again.
    """
    left = [
        Failed(each.uuid, INTERRUPTED)
        for each in log.state.rewrites
        if each.epoch == log.epoch and any(gap.first <= each.begin <= gap.last for gap in log.state.gaps)
    ]
    if left:  # promises of a compaction have no gap in their ranges
        commit(left)
    if not any(GapReason.of(gap).may_be_filled for gap in log.state.gaps):
        return 0  # the source needn't list its ledgers
    entries = 0
    for part in recoverable(log.state, source.ledgers()):
        uuid = tools.new_uuid(log.state)
        commit([Rewrite(uuid, int(Layout.V2), part.first, part.last, tools.clock.now_ms(), tools.driver)])
        upload = upload_of(
            *(log.store, log.stream, uuid, None),
            incarnation=log.state.incarnation,
            epoch=log.epoch or 0,
            codec=tools.settings.codec,
            testimony=log.testimony,
        )
        piece = LedgerPiece(SourceLedger(source, part.info), part.first.entry_id, part.last.entry_id)
        settings = sized_for(tools.settings, part.info.size_bytes)
        try:
            with working_at(Priority.BACKFILL):
                summary = write_segment([piece], Layout.V2, upload, settings, is_stopped=is_stopped)
        except (CorruptError, UnsupportedError) as error:
            _log.warning("stream %s: %s up to %s remain a gap: %s", log.stream, part.first, part.last, error)
            commit([Failed(uuid, str(error))])
            continue
        commit([Recover((Rewritten(uuid, summary),), tools.clock.now_ms())])
        entries += summary.entries
    return entries
