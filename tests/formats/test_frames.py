"""Frames and fills: what is encoded decodes, and damage of any kind is an error."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.checksum import crc32c
from formats.entries import EntryBatch
from formats.errors import (
    BadMagicError,
    ChecksumMismatchError,
    FormatError,
    InconsistentError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from formats.frames import (
    END_MARK_BYTES,
    FILL_HEADER_BYTES,
    FRAMES_BYTES_MAX,
    decode_fill,
    decode_fill_header,
    decode_frames,
    encode_fill,
    encode_frames,
)

LEDGER = 7


def batch_at(ids: list[int], payloads: list[bytes]) -> EntryBatch:
    """Entries with any ascending ids."""
    made = EntryBatch.build(LEDGER, 0, payloads)
    return EntryBatch(LEDGER, np.array(ids, dtype=np.int64), made.payloads, made.publish_times_ms)


def whole(*batches: EntryBatch, piece_bytes: int = 1 << 20) -> bytes:
    return b"".join(bytes(piece) for piece in encode_frames(batches, piece_bytes=piece_bytes))


def sealed(run: bytes) -> bytes:
    """Frames with a right end mark, whatever they are."""
    return run + struct.pack(">iq", -1, crc32c(run))


def pairs(batch: EntryBatch) -> list[tuple[int, bytes]]:
    return [(entry.entry_id, entry.payload) for entry in batch.entries()]


SOME = batch_at([3, 4, 9, 10, 400], [b"marker", b"", bytes(300), b"abort", b"commit"])


def test_frames_are_length_id_and_bytes_and_end_with_their_checksum() -> None:
    run = struct.pack(">iq", 2, 5) + b"ab" + struct.pack(">iq", 0, 2**40)
    assert whole(batch_at([5, 2**40], [b"ab", b""])) == run + struct.pack(">iq", -1, crc32c(run))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2**50), st.binary(max_size=40)), max_size=60),
    st.integers(1, 200),
    st.integers(0, 60),
)
def test_entries_come_back_however_they_are_cut(steps: list[tuple[int, bytes]], piece_bytes: int, cut: int) -> None:
    ids = np.cumsum([step for step, _ in steps]).tolist()
    batch = batch_at(ids, [payload for _, payload in steps])
    body = whole(batch.slice(0, cut), batch.slice(cut, len(batch)), piece_bytes=piece_bytes)
    found = decode_frames(body, ledger_id=LEDGER)
    assert pairs(found) == pairs(batch)
    assert (found.ledger_id, set(found.publish_times_ms.tolist())) == (LEDGER, {-1} if steps else set())


def test_a_piece_is_no_larger_than_asked_for_unless_one_entry_is() -> None:
    batch = EntryBatch.build(LEDGER, 0, [bytes(100)] * 50 + [bytes(5000)] + [bytes(100)] * 3)
    sizes = [len(piece) for piece in [*encode_frames([batch], piece_bytes=1000)][:-1]]
    assert [size for size in sizes if size > 1000] == [5012]
    assert max(size for size in sizes if size <= 1000) == 8 * 112


def test_batches_out_of_order_or_of_another_ledger_are_refused() -> None:
    for second in (SOME.slice(0, 1), EntryBatch.build(8, 500, [b"x"])):
        with pytest.raises(InconsistentError, match="out of order"):
            whole(SOME, second)


def test_every_flipped_bit_is_noticed() -> None:
    body = whole(SOME)
    for at in range(len(body)):
        for bit in range(8):
            damaged = bytearray(body)
            damaged[at] ^= 1 << bit
            with pytest.raises(FormatError):
                decode_frames(bytes(damaged), ledger_id=LEDGER)


def test_a_body_that_was_cut_anywhere_or_has_more_after_its_end_is_incomplete() -> None:
    body = whole(SOME)
    for stop in range(len(body)):
        with pytest.raises(FormatError):
            decode_frames(body[:stop], ledger_id=LEDGER)
    with pytest.raises(TruncatedError, match="no end mark"):
        decode_frames(body + b"\0" * 20, ledger_id=LEDGER)


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (struct.pack(">iq", 1, 5) + b"a" + struct.pack(">iq", 1, 5) + b"b", InconsistentError),  # the same id
        (struct.pack(">iq", 1, 5) + b"a" + struct.pack(">iq", 1, 4) + b"b", InconsistentError),  # going back
        (struct.pack(">iq", 1, -1) + b"a", InconsistentError),
        (struct.pack(">iq", 9, 5) + b"a", TruncatedError),
        (struct.pack(">iq", 2**31 - 1, 5) + b"a", TruncatedError),
        (struct.pack(">iq", -2, 5), InconsistentError),
        (b"\0\0\0", TruncatedError),
        (struct.pack(">iq", 0, 5) + bytes.fromhex("fedcdeadfedcdeadfedcdead"), InconsistentError),  # a block's padding
        (bytes.fromhex("fedcdead") * 3, InconsistentError),
        (whole(SOME), InconsistentError),  # an end mark in the middle
    ],
)
def test_wrong_frames_behind_a_right_checksum_are_refused(run: bytes, kind: type[FormatError]) -> None:
    with pytest.raises(kind):
        decode_frames(sealed(run), ledger_id=LEDGER)


def test_a_wrong_checksum_and_too_many_bytes_are_named() -> None:
    body = whole(SOME)
    with pytest.raises(ChecksumMismatchError):
        decode_frames(body[:-1] + bytes([body[-1] ^ 1]), ledger_id=LEDGER)
    largest = whole(EntryBatch.build(LEDGER, 0, [bytes(FRAMES_BYTES_MAX - 12 - END_MARK_BYTES)]))
    assert len(largest) == FRAMES_BYTES_MAX
    assert len(decode_frames(largest, ledger_id=LEDGER)) == 1
    with pytest.raises(LimitExceededError):
        decode_frames(bytes(FRAMES_BYTES_MAX + 1), ledger_id=LEDGER)


def test_frames_without_entries_are_an_end_mark() -> None:
    assert whole() == struct.pack(">iq", -1, 0)
    assert len(decode_frames(whole(), ledger_id=LEDGER)) == 0


def test_a_fill_says_what_it_has_and_gives_it_back() -> None:
    data = bytes(encode_fill(SOME))
    header = decode_fill_header(data)
    assert (header.ledger_id, header.first_entry_id, header.last_entry_id) == (LEDGER, 3, 400)
    assert (header.entries, header.payload_bytes) == (5, SOME.payload_bytes)
    assert len(data) == FILL_HEADER_BYTES + SOME.wire_bytes + END_MARK_BYTES
    assert data[FILL_HEADER_BYTES:] == whole(SOME)
    assert pairs(decode_fill(data)) == pairs(SOME)


def test_every_flipped_byte_of_a_fill_is_noticed_and_every_cut() -> None:
    data = bytes(encode_fill(SOME))
    for at in range(len(data)):
        with pytest.raises(FormatError):
            decode_fill(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(FormatError):
            decode_fill(data[:at])


def resealed(data: bytes, offset: int, value: bytes) -> bytes:
    """A fill with another field in its header, and a checksum that fits."""
    fixed = data[:offset] + value + data[offset + len(value) : FILL_HEADER_BYTES - 4]
    return fixed + crc32c(fixed).to_bytes(4, "big") + data[FILL_HEADER_BYTES:]


def test_a_header_that_contradicts_the_frames_is_refused() -> None:
    data = bytes(encode_fill(SOME))
    for offset, value in ((16, 2), (24, 401), (32, 0)):
        with pytest.raises(InconsistentError, match="header of a fill"):
            decode_fill(resealed(data, offset, value.to_bytes(8, "big")))
    with pytest.raises(InconsistentError, match="header of a fill"):
        decode_fill(resealed(data, 40, (4).to_bytes(4, "big")))
    with pytest.raises(UnsupportedVersionError):
        decode_fill(resealed(data, 4, (2).to_bytes(4, "big")))
    with pytest.raises(BadMagicError):
        decode_fill(resealed(data, 0, b"OFFL"))
    with pytest.raises(InconsistentError):
        decode_fill(data[:FILL_HEADER_BYTES] + whole())


def test_a_fill_that_could_not_be_read_is_not_written() -> None:
    with pytest.raises(LimitExceededError):
        encode_fill(EntryBatch.build(LEDGER, 0, [bytes(FRAMES_BYTES_MAX - END_MARK_BYTES - 11)]))
    largest = EntryBatch.build(LEDGER, 0, [bytes(FRAMES_BYTES_MAX - END_MARK_BYTES - 12)])
    assert len(decode_fill(bytes(encode_fill(largest)))) == 1
