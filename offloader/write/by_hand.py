"""A stream's history offloaded because somebody said so, not because entries are being written.

Owns by which method, and what is recorded of the stream afterwards. Must never offload a stream whose method is none.
"""

from __future__ import annotations

from collections.abc import Callable

from formats.entries import Position
from formats.segment import SegmentSummary
from offloader.effective_settings import SettingsFile
from offloader.errors import InvalidCall
from offloader.ledgers.base import LedgerSource
from offloader.manifest.state import ManifestState
from offloader.write.history.backfill import BackfillPlan
from offloader.write.history.ledger_method import LedgerMethodPlan
from offloader.write.history.planned import HistoryResult
from offloader.write.runs import HistoryRuns

__all__ = ["method_by_hand", "offload_by_hand"]


def method_by_hand(state: ManifestState, file: SettingsFile | None) -> str:
    """How the stream is offloaded, as a settings file or else its manifest says: ``streaming`` or ``ledger``.

    Raises:
        InvalidCall: it isn't.
    """
    found = None if file is None else file.values_of(state.stream)["offload.method"]
    method, source = (state.method, "its manifest") if found is None else (str(found.value), found.source)
    if method == "none":
        raise InvalidCall(
            f"stream {state.stream} isn't offloaded: its method is none ({source})", hint="set another method first"
        )
    return method


def offload_by_hand(
    runs: HistoryRuns,
    source: LedgerSource,
    stream: str,
    method: str,
    *,
    last: Position | None = None,
    threshold_bytes: int = 0,
    take_over: bool = False,
    on_plan: Callable[[BackfillPlan | LedgerMethodPlan], None] = lambda _: None,
    on_progress: Callable[[SegmentSummary], None] = lambda _: None,
) -> HistoryResult:
    """Offloads what isn't yet, records the method, and which ledgers were closed meanwhile.

    Args:
        source: a view opened with ``may_delete`` will do: it isn't told what is safe.
        method: ``streaming`` or ``ledger``.
        threshold_bytes: method ledger: newest bytes that stay behind.
        others: as for ``HistoryRuns.backfill``.

    Raises: as ``HistoryRuns.backfill``.
    """
    if method == "ledger":
        result = runs.ledgers(
            source,
            stream,
            last=last,
            threshold_bytes=threshold_bytes,
            take_over=take_over,
            acknowledges=False,
            on_plan=on_plan,
            on_progress=on_progress,
        )
    else:
        result = runs.backfill(
            source,
            stream,
            last=last,
            take_over=take_over,
            acknowledges=False,
            on_plan=on_plan,
            on_progress=on_progress,
        )
    if result.offloaded:
        runs.switch(stream, method)
    if result.committed is not None:
        runs.note_ends(source, stream)
    return result
