"""Which position a broker with the plugin may forget: the committed end, and nothing that may be recoverable there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from formats.entries import Position
from formats.manifest import Gap, LedgerClosed, LedgersDeleted, Truncate
from offloader.coverage import GapReason
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.boundary import read_boundary
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState
from offloader.runtime.workers import Workers
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.hot_release import CommitAck, acknowledgeable
from tests.support.streams import StreamWriter, batch_of


def ledger(ledger_id: int, *, closed: bool = True) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, closed=closed, entries=10, size_bytes=100, created_ms=0)


LEDGERS = [ledger(1), ledger(2), ledger(3, closed=False)]


def state_of(name: str, *gap: object) -> tuple[ManifestLog, ManifestState]:
    """Ledger 1 and the first entries of 2 are committed; with a gap behind them, and ledger 3."""
    clock = ManualClock()
    store = MemoryStore(f"commit-ack-{name}", "", clock)
    writer = StreamWriter(store, "a/b", clock=clock)
    writer.add([batch_of(1, 0, 10)], closes=[1])
    writer.add([batch_of(2, 0, 4)])
    log = ManifestLog(store, "a/b", clock=clock)
    log.load()
    return log, log.state


def test_nothing_is_acknowledged_before_a_commit() -> None:
    empty = ManifestState(stream="a/b", incarnation=UUID(int=0))
    assert acknowledgeable(empty, LEDGERS) == (None, None)


def test_committed_end_is_acknowledged_inside_an_open_ledger_too() -> None:
    _, state = state_of("end")
    assert acknowledgeable(state, LEDGERS) == (Position(2, 3), None)


def test_history_that_is_not_offloaded_holds_the_acknowledgement() -> None:
    _, state = state_of("history")
    assert acknowledgeable(state, [ledger(0), *LEDGERS]) == (None, None)


@pytest.mark.parametrize("reason", [GapReason.LOST, GapReason.UNCONFIRMED])
@pytest.mark.parametrize(
    ("first", "last", "position"),
    [
        (Position(2, 4), Position(2, 5), Position(2, 3)),
        (Position(2, 4), Position(3, -1), Position(2, 3)),
    ],
)
def test_entries_that_may_be_lost_hold_the_acknowledgement(
    reason: str, first: Position, last: Position, position: Position
) -> None:
    log, _ = state_of(f"gap-{reason[:4]}-{last.ledger_id}")
    log.open_epoch()
    state = log.commit([Gap(first, last, reason)])
    found, why = acknowledgeable(state, LEDGERS)
    assert found == position
    assert why is not None
    assert "offload.release_with_gaps" in why.hint
    assert acknowledgeable(state, LEDGERS, with_gaps=True) == (state.committed_end(), None)


def test_gap_at_the_beginning_of_a_ledger_leaves_the_ledger_before_it_acknowledged() -> None:
    log, _ = state_of("begin")
    log.open_epoch()
    not_delivered, lost = (
        Gap(Position(2, 4), Position(2, 9), GapReason.UNDELIVERED),
        Gap(Position(3, 0), Position(3, 1), GapReason.LOST),
    )
    state = log.commit([LedgerClosed(2, 9), not_delivered, lost])
    position, why = acknowledgeable(state, [*LEDGERS[:2], ledger(3)])
    assert state.committed_end() == Position(3, 1)
    assert (position, why is not None) == (Position(2, 9), True)


def test_gap_before_the_start_position_holds_nothing() -> None:
    log, _ = state_of("head")
    log.open_epoch()
    log.commit([Gap(Position(2, 4), Position(2, 5), GapReason.LOST)])
    state = log.commit_as_maintainer([LedgersDeleted((1,)), Truncate(Position(2, 6))])
    assert acknowledgeable(state, LEDGERS) == (Position(2, 5), None)


class Broker:
    """A source that lists ``LEDGERS``, and remembers what was acknowledged and what the boundary named by then."""

    acknowledges_commits = True

    def __init__(self, log: ManifestLog) -> None:
        self._log = log
        self.acknowledged: list[tuple[Position, int]] = []
        self.noted: list[tuple[UUID, int]] = []
        self.store_id: UUID | None = None

    def ledgers(self) -> list[LedgerInfo]:
        return LEDGERS

    def note_manifest(self, incarnation: UUID, record_id: int) -> None:
        assert not self.acknowledged
        self.noted.append((incarnation, record_id))

    def noted_manifests(self) -> list[tuple[UUID, int]]:
        return self.noted

    def note_store(self, store_id: UUID) -> None:
        assert not self.acknowledged
        self.store_id = store_id

    def noted_store(self) -> UUID | None:
        return self.store_id

    def noted_remedy(self) -> str:
        return ""

    def acknowledge(self, position: Position) -> None:
        state = self._log.load()
        named = read_boundary(self._log.store, state.stream, state.incarnation).boundary.newest_id
        self.acknowledged.append((position, named))

    def watch_releases(self, released: Callable[[], object]) -> None:
        pass


def test_a_lost_record_would_be_noticed_before_the_broker_may_delete() -> None:
    log, state = state_of("named")
    broker: Any = Broker(log)
    workers = Workers(1, ManualClock())
    try:
        ack = CommitAck(broker, broker, log, with_gaps=False, workers=workers)
        assert ack.look() is None
        assert broker.acknowledged == [(Position(2, 3), state.record_id)]
        assert broker.noted == [(state.incarnation, state.record_id)], "before the acknowledgement"
    finally:
        workers.close()
