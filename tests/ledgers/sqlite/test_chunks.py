"""Stored chunks: they round-trip, and every damaged byte is detected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import EntryBatch, Position
from formats.errors import FormatError, InconsistentError
from offloader.ledgers.sqlite.chunks import (
    CHUNK_BYTES,
    CHUNK_ENTRIES_MAX,
    _checksum,
    cut_chunks,
    encode_chunk,
    join_chunks,
)


def same(left: EntryBatch, right: EntryBatch) -> bool:
    return list(left.entries()) == list(right.entries())


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 1, 7, 300_000, CHUNK_BYTES, CHUNK_BYTES + 1]), min_size=1, max_size=12),
    times=st.lists(st.integers(-1, 3), min_size=12, max_size=12),
    start=st.integers(0, 11),
)
def test_any_entries_round_trip_through_chunks(lengths: list[int], times: list[int], start: int) -> None:
    batch = EntryBatch.build(7, 40, [b"%d" % (i % 10) * n for i, n in enumerate(lengths)], times[: len(lengths)])
    batch = batch.slice(min(start, len(batch) - 1), len(batch))
    pieces = list(cut_chunks(batch))
    assert all(len(p) == 1 or p.payload_bytes <= CHUNK_BYTES for p in pieces)
    assert same(join_chunks([encode_chunk(p) for p in pieces], batch.first), batch)


def test_chunks_are_filled_up_to_their_limits() -> None:
    batch = EntryBatch.build(1, 0, [b"x" * 1000] * 2500)
    assert [len(piece) for piece in cut_chunks(batch)] == [1048, 1048, 404]
    empty = EntryBatch.build(1, 0, [b""] * (CHUNK_ENTRIES_MAX + 1))
    assert [len(piece) for piece in cut_chunks(empty)] == [CHUNK_ENTRIES_MAX, 1]


def test_equal_lengths_and_times_are_not_stored() -> None:
    chunk = encode_chunk(EntryBatch.build(1, 0, [b"ab", b"cd"], 5))
    assert (chunk.lengths, chunk.times, chunk.first_time_ms) == (None, None, 5)


@pytest.mark.parametrize("field", ["lengths", "times", "payload"])
def test_every_flipped_bit_is_found(field: str) -> None:
    chunk = encode_chunk(EntryBatch.build(3, 9, [b"ab", b"c", b"defg"], [1, 2, 3]))
    blob: bytes = getattr(chunk, field)
    for bit in range(len(blob) * 8):
        damaged = bytearray(blob)
        damaged[bit // 8] ^= 1 << bit % 8
        changed: dict[str, Any] = {field: bytes(damaged)}
        with pytest.raises(FormatError, match="ledger 3 chunk 9"):
            join_chunks([chunk._replace(**changed)], Position(3, 9))


@pytest.mark.parametrize("field", ["ledger_id", "first_entry_id", "entries", "first_time_ms", "crc"])
def test_every_wrong_number_is_detected(field: str) -> None:
    chunk = encode_chunk(EntryBatch.build(3, 9, [b"ab", b"c", b"defg"], [1, 2, 3]))
    for wrong in (getattr(chunk, field) + 1, getattr(chunk, field) - 1, 0):
        changed: dict[str, Any] = {field: wrong}
        with pytest.raises(FormatError):
            join_chunks([chunk._replace(**changed)], Position(3, 9))


def test_wrong_columns_with_a_right_checksum_are_detected() -> None:
    good = encode_chunk(EntryBatch.build(3, 0, [b"ab", b"c"], [1, 2]))
    for lengths, times, payload, told in (
        (np.array([2, 2], "<i4").tobytes(), good.times, good.payload, "expected 3 bytes, found 4 bytes"),
        (b"\1\0\0", good.times, good.payload, "expected 2 lengths of 4 bytes, found 3 bytes"),
        (good.lengths, b"\1" * 9, good.payload, "expected 2 times of 8 bytes, found 9 bytes"),
        (good.lengths, good.times, b"abcd", "expected 4 bytes, found 3 bytes"),
        (None, good.times, good.payload, "expected 3 bytes, found 2 bytes"),
    ):
        wrong = good._replace(lengths=lengths, times=times, payload=payload)
        with pytest.raises(InconsistentError, match=told):
            join_chunks([wrong._replace(crc=_checksum(wrong))], Position(3, 0))


def test_missing_rows_are_found() -> None:
    rows = [encode_chunk(EntryBatch.build(3, n, [b"%d" % n])) for n in range(4)]
    for some, wanted in ((rows[1:], 0), ([rows[0], rows[2]], 0), (rows[:2], 2), ([], 0)):
        with pytest.raises(InconsistentError, match="missing"):
            join_chunks(some, Position(3, wanted))
