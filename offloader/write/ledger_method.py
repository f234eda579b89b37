"""The ledger method: closed ledgers go into the store one after another, an object pair each (PIP-17).

Owns which ledgers are due and the two commits around each. Must never record a ledger as offloaded before its
objects are proven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from uuid import UUID

from formats.entries import Position
from formats.keys import new_segment_uuid
from formats.manifest import Assign, Failed, LedgerClosed, Offloaded
from formats.segment import Layout
from offloader.clock import Clock
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.write.by_ledger import LedgerHandle, SourceLedger
from offloader.write.handle import OffloadResult
from offloader.write.leftovers import give_up_leftovers

__all__ = ["ledgers_due", "offload_closed_ledgers"]


def ledgers_due(ledgers: list[LedgerInfo], committed_end: Position | None) -> list[LedgerInfo]:
    """Closed ledgers with entries that lie wholly after the committed end."""
    return [
        info
        for info in ledgers
        if info.closed and info.entries and (committed_end is None or info.ledger_id > committed_end.ledger_id)
    ]


def offload_closed_ledgers(
    source: LedgerSource,
    log: ManifestLog,
    *,
    offload: Callable[[LedgerHandle, UUID], Future[OffloadResult]],
    driver: Mapping[str, str],
    clock: Clock,
    entropy: Callable[[int], bytes],
) -> Position | None:
    """Offloads every closed ledger that isn't yet; the committed end afterwards.

    Raises:
        What the first failing ledger raised; those before it are committed, its own attempt is recorded as failed.
    """
    due = ledgers_due(source.ledgers(), log.load(create=True).committed_end())
    if not due:
        return log.state.committed_end()
    if log.epoch is None:
        log.open_epoch()
    failed = give_up_leftovers(log)
    for info in due:
        uuid = new_segment_uuid(log.state.incarnation, int.from_bytes(entropy(8), "big"))
        begin, end = Position(info.ledger_id, 0), Position(info.ledger_id, info.last_entry_id)
        log.commit([*failed, Assign(uuid, int(Layout.V1), begin, end, clock.now_ms(), driver)])
        failed = []
        try:
            summary = offload(SourceLedger(source, info), uuid).result().summary
        except Exception as error:
            log.commit([Failed(uuid, str(error))])
            raise
        assert summary is not None, "a ledger with entries gives a segment with entries"
        log.commit([LedgerClosed(info.ledger_id, info.last_entry_id), Offloaded(uuid, summary, clock.now_ms())])
        source.release(end)
    return log.state.committed_end()
