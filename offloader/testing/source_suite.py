"""Obligations of every ``LedgerSource``, as tests.

``append`` and ``close_ledger`` bypass the source, like the hot tier's writer.

Needs pytest. A run: ``class TestMine(SourceSuite)`` with a fixture ``source`` (a stream without entries for each test)
and the two hooks. A source may notify its listeners later, and on other threads: the suite waits for the notifications.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from formats.entries import Entry, EntryBatch, Position
from offloader.ledgers.base import LedgerInfo, LedgerSource

#: Maximum wait for a source's notification.
PATIENCE_S = 120.0
_EVERYTHING = 1 << 30


class _Heard:
    """A listener's notifications, in order: batches, and closed ledgers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.told: list[EntryBatch | LedgerInfo] = []

    def hear(self, what: EntryBatch | LedgerInfo) -> None:
        with self._changed:
            self.told.append(what)
            self._changed.notify_all()

    @property
    def payloads(self) -> list[bytes]:
        return [entry.payload for each in self.told if isinstance(each, EntryBatch) for entry in each.entries()]

    def wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(until, PATIENCE_S), f"after {PATIENCE_S:g} s it was told {self.told}"


def _entries(source: LedgerSource, start: Position = Position(0, 0), max_bytes: int = _EVERYTHING) -> Iterator[Entry]:
    while (batch := source.read(start, max_bytes)) is not None:
        yield from batch.entries()
        start = batch.last.next()


class SourceSuite:
    """See the module."""

    #: Whether ``delete`` removes entries at once; False: it only requests that (a broker trims later).
    deletes: ClassVar[bool] = True

    @pytest.fixture
    def source(self) -> Iterator[LedgerSource]:
        """A stream without entries for each test."""
        raise NotImplementedError

    def append(self, source: LedgerSource, payloads: Sequence[bytes]) -> None:
        """Makes entries durable at the end of the stream; opens a ledger when none is open."""
        raise NotImplementedError

    def close_ledger(self, source: LedgerSource) -> None:
        """Closes the open ledger; the next entry begins another one."""
        raise NotImplementedError

    def _fill(self, source: LedgerSource, ledgers: int = 3, entries: int = 4) -> list[bytes]:
        """Fills ledgers and closes all but the last; returns the payloads, in order."""
        payloads = []
        for ledger in range(ledgers):
            batch = [f"{ledger}-{entry}".encode().ljust(10, b".") for entry in range(entries)]
            self.append(source, batch)
            payloads += batch
            if ledger < ledgers - 1:
                self.close_ledger(source)
        return payloads

    def test_a_stream_without_entries_answers_nothing(self, source: LedgerSource) -> None:
        assert source.read(Position(0, 0), _EVERYTHING) is None
        assert sum(each.entries for each in source.ledgers()) == 0

    @pytest.mark.parametrize("max_bytes", [_EVERYTHING, 25, 1])
    def test_everything_is_read_back_in_order(self, source: LedgerSource, max_bytes: int) -> None:
        payloads = self._fill(source)
        found = list(_entries(source, max_bytes=max_bytes))
        assert [entry.payload for entry in found] == payloads
        positions = [entry.position for entry in found]
        assert positions == sorted(positions)
        for info in source.ledgers():
            ids = [each.entry_id for each in positions if each.ledger_id == info.ledger_id]
            assert ids == list(range(len(ids))), "ids count from 0, none is left out"

    def test_a_batch_is_of_one_ledger_and_no_larger_than_asked(self, source: LedgerSource) -> None:
        self._fill(source)
        (first, *_) = (info.ledger_id for info in source.ledgers() if info.entries)
        for max_bytes, count in ((_EVERYTHING, 4), (39, 3), (20, 2), (19, 1), (1, 1)):
            batch = source.read(Position(0, 0), max_bytes)
            assert batch is not None
            assert 1 <= len(batch) <= count, "at least one, then as many as fit"
            assert {entry.position.ledger_id for entry in batch.entries()} == {first}

    def test_a_read_begins_at_the_first_entry_at_or_after_its_start(self, source: LedgerSource) -> None:
        payloads = self._fill(source)
        positions = [entry.position for entry in _entries(source)]
        for number, position in enumerate(positions):
            batch = source.read(position, 1)
            assert batch is not None
            assert (batch.first, next(batch.entries()).payload) == (position, payloads[number])
        beyond_first = positions[3].next()
        batch = source.read(beyond_first, 1)
        assert batch is not None
        assert batch.first == positions[4], "what lies after a ledger's end is in the next one"
        assert source.read(positions[-1].next(), 1) is None
        assert source.read(Position(positions[-1].ledger_id + 1, 0), 1) is None

    def test_what_was_read_stays_as_it_was(self, source: LedgerSource) -> None:
        self.append(source, [b"first", b"second"])
        batch = source.read(Position(0, 0), _EVERYTHING)
        assert batch is not None
        self.append(source, [b"third" * 1000] * 10)
        assert [entry.payload for entry in batch.entries()] == [b"first", b"second"]

    def test_readers_on_other_threads_see_a_beginning_of_what_is_written(self, source: LedgerSource) -> None:
        payloads = [f"{number:05}".encode() for number in range(200)]
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                found = [entry.payload for entry in _entries(source)]
                assert found == payloads[: len(found)], f"{len(found)} entries that aren't the first ones"

        with ThreadPoolExecutor(2) as threads:
            looks = [threads.submit(look) for _ in range(2)]
            try:
                for at in range(0, len(payloads), 10):
                    self.append(source, payloads[at : at + 10])
            finally:
                done.set()
        assert [each.result() for each in looks] == [None, None]
        assert [entry.payload for entry in _entries(source)] == payloads

    def test_ledgers_are_named_in_order_with_what_they_hold(self, source: LedgerSource) -> None:
        self._fill(source)
        infos = [info for info in source.ledgers() if info.entries]
        ids = [info.ledger_id for info in source.ledgers()]
        assert ids == sorted(set(ids))
        found = [(info.entries, info.size_bytes, info.closed) for info in infos]
        assert found == [(4, 40, True), (4, 40, True), (4, 40, False)]
        assert all((info.closed_ms is not None) == info.closed for info in infos)
        self.append(source, [b"one more"])
        assert source.ledgers()[-1].entries == 5

    def test_a_closed_ledger_takes_no_further_entry(self, source: LedgerSource) -> None:
        self.append(source, [b"a"])
        self.close_ledger(source)
        (closed,) = (info for info in source.ledgers() if info.entries)
        self.append(source, [b"b"])
        assert closed in source.ledgers()
        assert [entry.payload for entry in _entries(source)] == [b"a", b"b"]
        first, second = (entry.position.ledger_id for entry in _entries(source))
        assert first < second

    def test_a_listener_hears_of_each_entry_once_in_order(self, source: LedgerSource) -> None:
        self.append(source, [b"before"])
        heard = _Heard()
        source.subscribe(heard.hear)
        payloads = [f"{number}".encode() for number in range(50)]
        for at in range(0, len(payloads), 5):
            self.append(source, payloads[at : at + 5])
        heard.wait(lambda: len(heard.payloads) >= len(payloads))
        assert heard.payloads == payloads

    def test_what_a_listener_hears_can_be_read(self, source: LedgerSource) -> None:
        heard = _Heard()
        source.subscribe(heard.hear)
        self.append(source, [b"a", b"b"])
        heard.wait(lambda: len(heard.payloads) == 2)
        (batch, *_) = (each for each in heard.told if isinstance(each, EntryBatch))
        again = source.read(batch.first, _EVERYTHING)
        assert again is not None
        assert [entry.payload for entry in again.entries()] == [b"a", b"b"]

    def test_the_end_of_a_ledger_is_told_before_the_next_one_begins(self, source: LedgerSource) -> None:
        heard = _Heard()
        source.subscribe(heard.hear, heard.hear)
        self._fill(source)
        heard.wait(lambda: len(heard.payloads) == 12)
        ids = [each.ledger_id for each in heard.told]
        assert ids == sorted(ids)
        closed = [each for each in heard.told if isinstance(each, LedgerInfo)]
        assert [(each.closed, each.entries) for each in closed] == [(True, 4), (True, 4)]
        for info in closed:
            later = heard.told[heard.told.index(info) + 1 :]
            assert all(each.ledger_id > info.ledger_id for each in later)

    def test_who_cancelled_hears_nothing_more(self, source: LedgerSource) -> None:
        early, late = _Heard(), _Heard()
        subscription = source.subscribe(early.hear)
        source.subscribe(late.hear)
        self.append(source, [b"a"])
        early.wait(lambda: early.payloads == [b"a"])
        subscription.cancel()
        subscription.cancel()
        self.append(source, [b"b"])
        late.wait(lambda: late.payloads == [b"a", b"b"])
        assert early.payloads == [b"a"]

    def test_an_acknowledgement_deletes_nothing(self, source: LedgerSource) -> None:
        payloads = self._fill(source)
        source.release([entry.position for entry in _entries(source)][5])
        assert [entry.payload for entry in _entries(source)] == payloads

    def test_a_deleted_ledger_is_gone_and_the_rest_stays(self, source: LedgerSource) -> None:
        payloads = self._fill(source)
        first = next(info.ledger_id for info in source.ledgers() if info.entries)
        source.release([entry.position for entry in _entries(source)][3])
        source.delete(first)
        source.delete(first)
        source.delete(10**12)
        if self.deletes:
            assert first not in [info.ledger_id for info in source.ledgers()]
            assert [entry.payload for entry in _entries(source)] == payloads[4:]
            batch = source.read(Position(first, 2), 1)
            assert batch is not None
            assert batch.first.ledger_id > first
        else:
            assert [entry.payload for entry in _entries(source)][-8:] == payloads[4:]
