"""The source suite on sources that need no server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.ledgers.tail_buffer import TailingSource
from offloader.runtime.clock import SystemClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.testing.source_suite import SourceSuite


class TestMemory(SourceSuite):
    @pytest.fixture
    def source(self) -> MemoryLedgers:
        return MemoryLedgers("s", SystemClock())

    def append(self, source: Any, payloads: Sequence[bytes]) -> None:
        source.append(payloads)

    def close_ledger(self, source: Any) -> None:
        source.close_ledger()


class TestEmbedded(TestMemory):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Iterator[LedgerSource]:
        ledgers = EmbeddedLedgers(str(tmp_path / "l.db"))
        yield ledgers.open_stream("s")
        ledgers.close()


class _WithAppender:
    """A source in front of one that somebody appends to."""

    def __init__(self, tail: TailingSource, inner: Any) -> None:
        self.append, self.close_ledger = inner.append, inner.close_ledger
        self.ledgers, self.read, self.subscribe = tail.ledgers, tail.read, tail.subscribe
        self.release, self.delete = tail.release, tail.delete


class TestTailing(TestMemory):
    """Small enough that old entries come from behind it."""

    @pytest.fixture(params=[0, 64, 1 << 20])
    def source(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerSource]:
        ledgers = EmbeddedLedgers(str(tmp_path / "l.db"))
        inner = ledgers.open_stream("s")
        tail = TailingSource(inner, request.param)
        yield _WithAppender(tail, inner)
        tail.close()
        ledgers.close()


class _Uncancelled:
    def cancel(self) -> None:
        """Nothing."""


class _Broken(MemoryLedgers):
    """Keeps all promises but those that are named."""

    def __init__(self, *broken: str) -> None:
        super().__init__("s", SystemClock())
        self._broken = broken

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        if "size" in self._broken:
            max_bytes = 1 << 30
        if "gap" in self._broken and start.entry_id == 2:
            start = Position(start.ledger_id, 3)
        batch = super().read(start, max_bytes)
        if "start" in self._broken and batch is not None and batch.first.entry_id:
            return super().read(Position(batch.first.ledger_id, 0), max_bytes)
        return batch

    def ledgers(self) -> list[LedgerInfo]:
        found = super().ledgers()
        return found[::-1] if "order" in self._broken else found

    def subscribe(self, listener: Any, closed: Any = None) -> Any:
        if "twice" in self._broken:
            super().subscribe(listener)
        subscription = super().subscribe(listener, None if "end" in self._broken else closed)
        return _Uncancelled() if "cancel" in self._broken else subscription

    def release(self, position: Position) -> None:
        super().release(position)
        if "release" in self._broken:
            super().delete(position.ledger_id)

    def delete(self, ledger_id: int) -> None:
        if "delete" not in self._broken:
            super().delete(ledger_id)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        ("size", SourceSuite.test_a_batch_is_of_one_ledger_and_no_larger_than_asked),
        ("gap", partial(SourceSuite.test_everything_is_read_back_in_order, max_bytes=25)),
        ("start", SourceSuite.test_a_read_begins_at_the_first_entry_at_or_after_its_start),
        ("order", SourceSuite.test_ledgers_are_named_in_order_with_what_they_hold),
        ("twice", SourceSuite.test_a_listener_hears_of_each_entry_once_in_order),
        ("end", SourceSuite.test_the_end_of_a_ledger_is_told_before_the_next_one_begins),
        ("cancel", SourceSuite.test_who_cancelled_hears_nothing_more),
        ("release", SourceSuite.test_an_acknowledgement_deletes_nothing),
        ("delete", SourceSuite.test_a_deleted_ledger_is_gone_and_the_rest_stays),
    ],
)
def test_the_suite_finds_a_broken_promise(broken: str, test: Any) -> None:
    test(TestMemory(), source=_Broken())
    with pytest.raises(AssertionError):
        test(TestMemory(), source=_Broken(broken))
