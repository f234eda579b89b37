"""Pending entries of the encoder: order, and counts to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import ENTRY_HEADER_BYTES, Entry, EntryBatch, Position
from formats.segment import LedgerFacts
from offloader.write import segment as intake_module
from offloader.write.quota import StreamQuota
from offloader.write.segment import PendingEntries, joined

#: Each step: entries one by one (so many), a batch (of so many), the end of the ledger, or a turn of the encoder.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("singles"), st.integers(1, 5)),
        st.tuples(st.just("batch"), st.integers(1, 40)),
        st.tuples(st.just("close"), st.just(0)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(deadline=None)
@given(STEPS, st.integers(1, 5000))
def test_takes_return_every_entry_once_in_order_and_count_every_byte(
    steps: list[tuple[str, int]], joined_bytes_min: int
) -> None:
    intake = PendingEntries("segment", None, {"entry_size_max": 1000})
    offered: list[Entry] = []
    found: list[Entry] = []
    ledger_id, entry_id = 1, 0

    def turn() -> bool:
        pieces, taken_bytes = intake.take()
        batches = joined(pieces)
        assert sum(batch.wire_bytes for batch in batches) == taken_bytes
        assert [batch.ledger_id for batch in batches] == sorted({batch.ledger_id for batch in batches})
        found.extend(entry for batch in batches for entry in batch.entries())
        return bool(pieces)

    before, intake_module.JOINED_BYTES_MIN = intake_module.JOINED_BYTES_MIN, joined_bytes_min
    try:
        for kind, count in steps:
            new = [Entry(ledger_id, entry_id + at, b"x" * ((entry_id + at) * 7 % 90), at) for at in range(count)]
            if kind == "singles":
                for entry in new:
                    intake.check(entry.position, len(entry.payload))
                    intake.add_entry(entry, len(entry.payload) + ENTRY_HEADER_BYTES)
            elif kind == "batch":
                payloads, times = [entry.payload for entry in new], [entry.publish_time_ms for entry in new]
                batch = EntryBatch.build(ledger_id, entry_id, payloads, times)
                intake.check(batch.first, int(batch.lengths.max()))
                intake.add_batch(batch, batch.wire_bytes)
            elif kind == "close" and entry_id:
                intake.ledger_closed(LedgerFacts(ledger_id=ledger_id, closed=True), entry_id - 1)
                ledger_id, entry_id = ledger_id + 1, 0
            elif kind == "turn":
                turn()
            offered += new
            entry_id += count
            waiting = offered[len(found) :]
            assert intake.waiting_bytes == sum(len(entry.payload) + ENTRY_HEADER_BYTES for entry in waiting)
            assert intake.last == (offered[-1].position if offered else None)
        while turn():
            pass
    finally:
        intake_module.JOINED_BYTES_MIN = before
    assert found == offered
    assert intake.waiting_bytes == 0
    assert intake.wire_bytes == sum(len(entry.payload) + ENTRY_HEADER_BYTES for entry in offered)


def test_nothing_waits_after_clear() -> None:
    intake = PendingEntries("segment", None, {})
    intake.add_batch(EntryBatch.build(1, 0, [b"a", b"b"]), 26)
    intake.add_entry(Entry(1, 2, b"c"), 13)
    intake.clear()
    assert (intake.take(), intake.waiting_bytes, intake.last) == (([], 0), 0, Position(1, 2))


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(0, 4000), st.integers(0, 2000))
def test_a_buffer_takes_the_leading_entries_that_fit(sizes: list[int], limit_bytes: int, held_bytes: int) -> None:
    buffer = StreamQuota(limit_bytes)
    held = held_bytes if buffer.take(held_bytes) else 0
    batch = EntryBatch.build(1, 0, [b"x" * size for size in sizes])
    count = buffer.take_leading(batch.lengths)
    taken = batch.slice(0, count).wire_bytes
    assert buffer.held_bytes == held + taken <= limit_bytes
    assert count == len(batch) or batch.slice(0, count + 1).wire_bytes > limit_bytes - held
