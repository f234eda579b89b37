"""Entries of lost gaps that the hot tier has are offloaded, and its copies are kept until then."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from formats.entries import EntryBatch, Position
from formats.manifest import Gap
from offloader.coverage import GapReason
from offloader.errors import ClosedError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.write.hot_release import acknowledgeable, doubtful_gap
from offloader.write.offloader import LedgerOffloader
from offloader.write.ownership import open_owned
from offloader.write.recovery import recover_lost, recoverable
from tests.support.readback import stored_entries

STREAM = "a/b"
_names = count()


def ledger(ledger_id: int, entries: int, lost: tuple[tuple[int, int], ...] = ()) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, closed=True, entries=entries, size_bytes=entries, created_ms=0, lost=lost)


def state_with(*gaps: Gap, **more: object) -> ManifestState:
    made = {"stream": STREAM, "incarnation": UUID(int=1), "gaps": gaps, **more}
    return ManifestState(**made)  # type: ignore[arg-type]


def found(state: ManifestState, *ledgers: LedgerInfo) -> list[tuple[Position, Position]]:
    return [(each.first, each.last) for each in recoverable(state, ledgers)]


GAP = Gap(Position(1, 5), Position(4, -1), GapReason.UNRECOVERED)


def test_listed_entries_of_lost_gaps_can_be_recovered() -> None:
    ledgers = ledger(1, 9), ledger(2, 0), ledger(3, 4, lost=((1, 1),)), ledger(4, 3)
    parts = [(Position(1, 5), Position(1, 8)), (Position(3, 0), Position(3, 0)), (Position(3, 2), Position(3, 3))]
    assert found(state_with(GAP), *ledgers) == parts
    assert found(state_with(GAP, head=Position(3, 3)), *ledgers) == [(Position(3, 3), Position(3, 3))]
    assert found(state_with(GAP, held=True), *ledgers) == []
    assert found(state_with(Gap(GAP.first, GAP.last, GapReason.UNDELIVERED)), *ledgers) == []


def test_hot_copy_of_entries_in_a_lost_gap_is_not_released() -> None:
    state = state_with(GAP, committed=Position(4, 2))
    assert doubtful_gap(state, ledger(3, 4)) == GAP
    assert doubtful_gap(state, ledger(4, 3)) is None
    position, why = acknowledgeable(state, [ledger(3, 4), ledger(4, 3)])
    assert position == Position(1, 4), "the entry before the gap"
    assert why is not None
    assert acknowledgeable(state, [ledger(4, 3)]) == (Position(4, 2), None), "nothing of the gap is listed any more"


class Bench:
    """A ledger with three entries, of which the manifest has a lost gap, and one with two that are offloaded."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore(f"recovery-{next(_names)}", "", SystemClock())
        self.database = EmbeddedLedgers(str(folder / "ledgers.db"))
        self.source: EmbeddedStream = self.database.open_stream(STREAM)
        self.source.append([b"one", b"two", b"three"])
        self.source.close_ledger()
        self.source.append([b"four", b"five"])
        [self.lost, later] = [info for info in self.source.ledgers() if info.entries]
        self.log = ManifestLog(self.store, STREAM, clock=SystemClock())
        self.log.load(create=True)
        open_owned(self.log, self.source)
        self.gap = Gap(Position(self.lost.ledger_id, 0), Position(later.ledger_id, -1), GapReason.UNRECOVERED)
        self.log.commit([self.gap])
        self.offloader = LedgerOffloader(self.store, Settings())
        self.tools = self.offloader.history._tools

    def recover(self, source: object = None, *, stopped: bool = False) -> int:
        return recover_lost(
            self.log,
            source or self.source,  # type: ignore[arg-type]
            self.tools,
            commit=self.log.commit,
            is_stopped=lambda: stopped,
        )

    def stored(self) -> list[bytes]:
        return [payload for _, payload in stored_entries(self.store, STREAM)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_recovered_entries_are_readable_and_nothing_is_left_to_do(bench: Bench) -> None:
    assert bench.recover() == 3
    assert bench.stored() == [b"one", b"two", b"three"]
    record_id = bench.log.state.record_id
    assert (bench.recover(), bench.log.state.record_id) == (0, record_id)


def test_interrupted_recovery_is_done_again_under_another_name(bench: Bench) -> None:
    with pytest.raises(ClosedError):
        bench.recover(stopped=True)
    [promised] = bench.log.state.rewrites
    assert bench.recover() == 3
    assert bench.log.state.rewrites == ()
    assert promised.uuid not in bench.log.state.segments
    assert bench.stored() == [b"one", b"two", b"three"]


def test_entries_that_the_hot_tier_cannot_give_stay_a_gap(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    class Empty:
        """Lists the ledger, and has nothing of it."""

        def ledgers(self) -> Sequence[LedgerInfo]:
            return bench.source.ledgers()

        def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
            return None

    assert bench.recover(Empty()) == 0
    assert bench.log.state.gaps == (bench.gap,)
    assert bench.log.state.rewrites == ()
    assert "remain a gap" in caplog.text
