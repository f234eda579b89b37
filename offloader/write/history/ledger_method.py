"""The ledger method: closed ledgers go into the store, an object pair each (PIP-17).

Owns which ledgers are due. Must never make a V1 object of a ledger that has entries in a V2 segment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from formats.entries import Position
from formats.segment import Layout
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.write.history.planned import PlannedSegment
from offloader.write.hot.coverage import partly_offloaded, uncovered
from offloader.write.hot.holes import NOT_GIVEN
from offloader.write.hot.split import HistoryRange

__all__ = ["OFF", "LedgerMethodPlan", "due_ledgers", "ledgers_of_method"]

#: A threshold that never triggers.
OFF = -1


def due_ledgers(
    ledgers: Sequence[LedgerInfo], *, now_ms: int, threshold_bytes: int, threshold_seconds: int
) -> list[LedgerInfo]:
    """Which ledgers go now, the oldest first.

    A ledger is due when it and everything newer hold more than ``threshold_bytes`` bytes (walking from the newest to
    the oldest), or when it was closed ``threshold_seconds`` ago or earlier. 0: as soon as it is closed; negative: off.
    Whatever is older than a due ledger is due too: clocks that go back leave no hole in front of what is offloaded.

    Args:
        ledgers: what isn't offloaded yet, ascending, the open one too: its bytes count.
        now_ms: ms since 1970 UTC.
    """
    due: list[LedgerInfo] = []
    tail_bytes = 0
    for info in reversed(ledgers):
        tail_bytes += info.size_bytes
        if not info.closed or not info.entries:
            continue
        large = threshold_bytes == 0 or 0 < threshold_bytes < tail_bytes
        age_s = (now_ms - (info.closed_ms or 0)) / 1000
        old = threshold_seconds == 0 or 0 < threshold_seconds <= age_s
        if large or old or due:
            due.append(info)
    return due[::-1]


@dataclass(frozen=True, slots=True)
class LedgerMethodPlan:
    """What the ledger method does now.

    Attributes:
        segments: the oldest first.
        refused: due ledgers with a recorded gap, which no V1 object can express.
    """

    segments: list[PlannedSegment]
    refused: list[LedgerInfo]


def ledgers_of_method(
    state: ManifestState,
    ledgers: Sequence[LedgerInfo],
    *,
    now_ms: int,
    threshold_bytes: int = 0,
    threshold_seconds: int = OFF,
    given_up: Collection[UUID] = (),
) -> LedgerMethodPlan:
    """What the ledger method uploads now.

    A ledger that streaming began stays in V2: its rest goes as a V2 segment once it is closed, whatever the thresholds.
    One with entries that its source never gives to anybody goes as V2 segments too, around them.

    Args:
        state: the manifest.
        ledgers: the hot tier's, ascending.
        now_ms: ms since 1970 UTC.
        threshold_bytes, threshold_seconds: as for ``due_ledgers``; the defaults make every closed ledger due.
        given_up: segments that don't count.
    """
    missing = _by_ledger(uncovered(state, ledgers, given_up=given_up), ledgers)
    infos = {info.ledger_id: info for info in ledgers}
    begun = {ledger_id for ledger_id in missing if partly_offloaded(state, infos[ledger_id], given_up)}
    untouched = [infos[ledger_id] for ledger_id in missing if ledger_id not in begun]
    due = due_ledgers(untouched, now_ms=now_ms, threshold_bytes=threshold_bytes, threshold_seconds=threshold_seconds)
    gapped = {info.ledger_id for info in due if missing[info.ledger_id] != [_whole(info)]}
    planned = [PlannedSegment(Layout.V1, *_ends(info)) for info in due if info.ledger_id not in gapped]
    not_given = {gap.first.ledger_id for gap in state.gaps if gap.reason in NOT_GIVEN}
    in_pieces = {each for each in gapped if infos[each].not_given or each in not_given}
    refused = [info for info in due if info.ledger_id in gapped - in_pieces]
    planned += [PlannedSegment(Layout.V2, p.begin, p.end) for each in in_pieces for p in missing[each]]
    rests = [each for ledger_id in begun if infos[ledger_id].closed for each in missing[ledger_id]]
    planned += [PlannedSegment(Layout.V2, each.begin, each.end) for each in rests]
    return LedgerMethodPlan(sorted(planned, key=lambda each: each.begin), refused)


def _by_ledger(ranges: Sequence[HistoryRange], ledgers: Sequence[LedgerInfo]) -> dict[int, list[HistoryRange]]:
    """The ranges, cut where ledgers end; ascending."""
    found: dict[int, list[HistoryRange]] = {}
    filled = [info for info in ledgers if info.entries]
    at = 0
    for each in ranges:
        while filled[at].ledger_id < each.begin.ledger_id:
            at += 1
        for number in range(at, len(filled)):
            info = filled[number]
            if info.ledger_id > each.end.ledger_id:
                break
            begin, end = _ends(info)
            piece = HistoryRange(max(each.begin, begin), min(each.end, end))
            found.setdefault(info.ledger_id, []).append(piece)
    return found


def _ends(info: LedgerInfo) -> tuple[Position, Position]:
    return Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)


def _whole(info: LedgerInfo) -> HistoryRange:
    return HistoryRange(*_ends(info))
