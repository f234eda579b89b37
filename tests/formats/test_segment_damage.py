"""One flipped bit anywhere is detected, except in padding, where it is harmless; every cut is detected."""

from __future__ import annotations

import pytest

from formats.errors import ChecksumMismatchError, FormatError, InconsistentError, TruncatedError
from formats.extension import Codec
from formats.index import IndexGroup, ObjectIndex, decode_index, encode_index
from formats.segment import FinishedSegment, LedgerFacts, SegmentMap
from formats.summary import Layout
from tests.formats.segments import LIMITS, batch, block_bytes, build, decode, entries_of, read

KINDS = [pytest.param(layout, codec, id=f"{layout.name} {codec.name.lower()}") for layout in Layout for codec in Codec]


def segment(layout: Layout, codec: Codec) -> tuple[bytes, FinishedSegment]:
    """Two or three small blocks with lengths and times of several widths."""
    ledger = [batch(7, 0, [b"", b"aaaaaaaaaaaaaaaaaaaaaaaa" * 5, b"b"] * 4, list(range(1000, 13000, 1000)))]
    batches = ledger if layout is Layout.V1 else [*ledger, batch(9, 3, [b"c" * 80, b"d" * 70])]
    facts = {7: LedgerFacts(ledger_id=7, closed=True, closed_ms=99, size_bytes=500)}
    data, finished = build(batches, layout=layout, codec=codec, block_bytes=700, facts=facts)
    assert finished.summary.compressed == (codec is Codec.ZSTD)
    return data, finished


def flips(length: int) -> list[tuple[int, int]]:
    return [(at, 1 << bit) for at in range(length) for bit in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "codec"), KINDS)
def test_every_flipped_bit_of_the_data_is_detected_and_harmless_in_padding(layout: Layout, codec: Codec) -> None:
    data, finished = segment(layout, codec)
    found = SegmentMap.parse(finished.index)
    blocks = found.blocks
    expected = entries_of(decode(found, data))
    harmless = detected = 0
    for number in range(len(blocks)):
        start = int(blocks.offset[number])
        marker = range(int(blocks.table_offset[number]) - 4, int(blocks.table_offset[number]))
        own = entries_of([found.decode(number, block_bytes(found, data, number), **LIMITS)])
        for at, bit in flips(int(blocks.length[number])):
            block = bytearray(block_bytes(found, data, number))
            block[at] ^= bit
            if start + at in marker:
                assert entries_of([found.decode(number, block, **LIMITS)]) == own
                harmless += 1
            else:
                with pytest.raises(FormatError):
                    found.decode(number, block, **LIMITS)
                detected += 1
    assert harmless == len(blocks) * 32
    assert harmless + detected == len(data) * 8
    assert expected == read(data, finished.index)


@pytest.mark.parametrize(("layout", "codec"), KINDS)
def test_each_part_of_a_block_has_its_own_checksum(layout: Layout, codec: Codec) -> None:
    data, finished = segment(layout, codec)
    found = SegmentMap.parse(finished.index)
    table_at = int(found.blocks.table_offset[0])
    for at, what in ((60, "block header"), (130, "block payload"), (table_at + 3, "entry table")):
        block = bytearray(data)
        block[at] ^= 1
        with pytest.raises(ChecksumMismatchError, match=what):
            found.decode(0, block, **LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("layout", Layout)
def test_every_flipped_bit_of_the_index_is_detected(layout: Layout) -> None:
    """By the index alone, without the manifest's checksum or a block header."""
    _, finished = segment(layout, Codec.NONE)
    for at, bit in flips(len(finished.index)):
        index = bytearray(finished.index)
        index[at] ^= bit
        with pytest.raises(FormatError):
            SegmentMap.parse(index)


@pytest.mark.parametrize("layout", Layout)
def test_index_without_its_extension_is_detected_at_the_first_block(layout: Layout) -> None:
    """Even if several bits flip: each block header requires the index to have the extension."""
    data, finished = segment(layout, Codec.NONE)
    _, plain = build([batch(7, 0, [b""] * 1)], layout=layout, extension=False)
    own, other = decode_index(finished.index), decode_index(plain.index)
    stripped = IndexGroup(7, other.groups[0].metadata, own.groups[0].entries)
    index = encode_index(ObjectIndex(layout, own.data_bytes, own.header_bytes, (stripped,)))
    found = SegmentMap.parse(index, ledger_id=7)
    assert not found.has_extension
    with pytest.raises(InconsistentError, match="index has lost its extension"):
        found.decode(0, block_bytes(found, data, 0), **LIMITS)


@pytest.mark.parametrize("layout", Layout)
def test_a_block_of_another_object_is_not_taken_for_the_indexed_one(layout: Layout) -> None:
    """Same entry ids, same lengths, another payload: only the index's checksums differ."""
    one, finished = build([batch(7, 0, [b"one"])], layout=layout)
    other, _ = build([batch(7, 0, [b"two"])], layout=layout)
    found = SegmentMap.parse(finished.index)
    assert len(one) == len(other)
    with pytest.raises(InconsistentError, match="contradicts the index"):
        found.decode(0, other, **LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "codec"), KINDS)
def test_an_object_cut_anywhere_is_truncated(layout: Layout, codec: Codec) -> None:
    data, finished = segment(layout, codec)
    found = SegmentMap.parse(finished.index)
    for length in range(len(data)):
        cut = data[:length]
        number = int((found.blocks.offset + found.blocks.length <= length).sum())
        for whole in range(number):
            found.decode(whole, block_bytes(found, cut, whole), **LIMITS)
        with pytest.raises(TruncatedError):
            found.decode(number, block_bytes(found, cut, number), **LIMITS)


@pytest.mark.parametrize("layout", Layout)
def test_an_index_cut_anywhere_is_truncated_and_trailing_bytes_are_ignored(layout: Layout) -> None:
    _, finished = segment(layout, Codec.NONE)
    for length in range(len(finished.index)):
        with pytest.raises(TruncatedError):
            SegmentMap.parse(finished.index[:length])
    for tail in (b"\0", finished.index, bytes(1000)):
        SegmentMap.parse(finished.index + tail)
        assert encode_index(decode_index(finished.index + tail)) == finished.index


@pytest.mark.slow
@pytest.mark.parametrize("layout", Layout)
def test_a_flipped_bit_of_a_plain_object_never_gives_wrong_ids(layout: Layout) -> None:
    """No checksum protects a plain payload; its structure shows a whole ledger, or a run from its beginning.

    In V2 the last block may lose its last entries unnoticed; only the manifest's count detects it.
    """
    batches = [batch(7, 0, [b"p" * 20] * 12)]
    data, finished = build(batches, layout=layout, extension=False, block_bytes=1 << 10)
    found = SegmentMap.parse(finished.index, ledger_id=7)
    for at, bit in flips(len(data)):
        block = bytearray(data)
        block[at] ^= bit
        try:
            ids = found.decode(0, block, **LIMITS).entry_ids.tolist()
        except FormatError:
            continue
        assert ids == list(range(12 if layout is Layout.V1 else len(ids)))
