"""The suite of ledger sources on a Pulsar topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from formats.entries import EntryBatch, Position
from formats.pulsar.entry import decode_frame
from offloader.ledgers.base import ClosedListener, LedgerInfo, LedgerSource, Listener, Subscription
from offloader.testing.source_suite import SourceSuite
from tests.formats.pulsar_entries import Sent, single_entry
from tests.ledgers.pulsar_bench import PulsarBench
from tests.support.waiting import eventually


class ValueSource:
    """A topic's source, with the messages' values for payloads: what is stored is a frame around each of them."""

    def __init__(self, bench: PulsarBench) -> None:
        self.bench = bench
        self._inner = bench.open()
        self._bytes: dict[int, int] = {}

    def append(self, values: Sequence[bytes]) -> None:
        for value in values:
            ledger_id = self.bench.topic.append(single_entry(Sent(value=value))).ledger_id
            self._bytes[ledger_id] = self._bytes.get(ledger_id, 0) + len(value)

    def ledgers(self) -> list[LedgerInfo]:
        return [replace(info, size_bytes=self._bytes.get(info.ledger_id, 0)) for info in self._inner.ledgers()]

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        batch = self._inner.read(start, max_bytes)
        return None if batch is None else _values(batch)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        def hear(batch: EntryBatch) -> bool | None:
            return None if listener is None else listener(_values(batch))

        return self._inner.subscribe(hear, closed)

    def release(self, position: Position) -> None:
        self._inner.release(position)

    def delete(self, ledger_id: int) -> None:
        self._inner.delete(ledger_id)


class SegmentSource(ValueSource):
    """Is asked until it knows the entries there are: a segment's list grows with what readers receive."""

    def ledgers(self) -> list[LedgerInfo]:
        newest, found = self._newest(), list[LedgerInfo]()

        def is_listed() -> bool:
            found[:] = super(SegmentSource, self).ledgers()
            return newest is None or any(Position(each.ledger_id, each.entries - 1) >= newest for each in found)

        eventually(is_listed)
        return found

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        newest, found = self._newest(), list[EntryBatch]()

        def is_read() -> bool:
            if (batch := super(SegmentSource, self).read(start, max_bytes)) is not None:
                found.append(batch)
            return bool(found) or newest is None or newest < start

        eventually(is_read)
        return next(iter(found), None)

    def _newest(self) -> Position | None:
        return self.bench.topic.entries[-1][0] if self.bench.topic.entries else None


def _values(batch: EntryBatch) -> EntryBatch:
    values = [entry[decode_frame(entry).payload_start :] for entry in batch.payloads.to_pylist()]
    return EntryBatch.build(batch.ledger_id, batch.first.entry_id, values, batch.publish_times_ms)


@pytest.mark.slow
class TestPulsarSource(SourceSuite):
    deletes = False
    topics: tuple[str, ...] = ()
    made: type[ValueSource] = ValueSource

    @pytest.fixture
    def source(self) -> Iterator[LedgerSource]:
        bench = PulsarBench(*self.topics, trim=False)
        yield self.made(bench)
        bench.close()

    def append(self, source: LedgerSource, payloads: Sequence[bytes]) -> None:
        assert isinstance(source, ValueSource)
        source.append(payloads)

    def close_ledger(self, source: LedgerSource) -> None:
        assert isinstance(source, ValueSource)
        source.bench.topic.roll()


class TestSegmentSource(TestPulsarSource):
    """A segment of a scalable topic: its ledgers are what readers receive."""

    topics = ("segment://public/default/orders/0000-ffff-0",)
    made = SegmentSource

    def test_what_was_read_stays_as_it_was(self, source: LedgerSource) -> None:
        """One read may return less than there is."""
        self.append(source, [b"first", b"second"])
        batch = source.read(Position(0, 0), 1 << 30)
        assert batch is not None
        payloads = [entry.payload for entry in batch.entries()]
        assert payloads == [b"first", b"second"][: len(payloads)]
        self.append(source, [b"third" * 1000] * 10)
        assert [entry.payload for entry in batch.entries()] == payloads

    def test_what_a_listener_hears_can_be_read(self, source: LedgerSource) -> None:
        """Entry by entry: one read may return less than there is."""
        heard: list[EntryBatch] = []
        source.subscribe(heard.append)
        self.append(source, [b"a", b"b"])
        eventually(lambda: sum(map(len, heard)) == 2)
        for entry in (entry for batch in heard for entry in batch.entries()):
            again = source.read(entry.position, 1)
            assert again is not None
            assert [each.payload for each in again.entries()] == [entry.payload]

    def test_a_closed_ledger_takes_no_further_entry(self, source: LedgerSource) -> None:
        """Known when an entry of a later ledger came."""
        self.append(source, [b"a"])
        self.close_ledger(source)
        assert [(info.entries, info.closed) for info in source.ledgers()] == [(1, False)]
        self.append(source, [b"b"])
        assert [(info.entries, info.closed) for info in source.ledgers()] == [(1, True), (1, False)]
