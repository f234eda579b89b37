"""Checksums of whole blocks from the index alone: those of the bytes in the data object."""

from __future__ import annotations

import random

import numpy as np
import pytest

from formats.checksum import crc32c, crc32c_combine, crc32c_combine_many
from formats.extension import Codec
from formats.segment_map import CRC_UNKNOWN, SegmentMap, block_checksums
from formats.summary import Layout
from tests.formats.segments import batch, build


def computed(data: bytes, segment_map: SegmentMap) -> list[int]:
    ends = zip(segment_map.blocks.offset.tolist(), segment_map.blocks.length.tolist(), strict=True)
    return [crc32c(data[start : start + length]) for start, length in ends]


def all_of(segment_map: SegmentMap) -> list[int]:
    found: list[int] = block_checksums(segment_map, np.arange(len(segment_map.blocks))).tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout.V1, Layout.V2])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_checksums_from_the_index_are_those_of_the_blocks(layout: Layout, codec: Codec) -> None:
    generator = random.Random(5)
    ledgers = (7,) if layout is Layout.V1 else (7, 9, 2**62)
    batches = [
        batch(ledger, 0, [generator.randbytes(generator.choice((0, 1, 40, 900, 9000))) for _ in range(60)], times)
        for ledger in ledgers
        for times in [-1 if ledger == 9 else 1_700_000_000_000 + ledger % 7]
    ]
    data, finished = build(batches, layout=layout, codec=codec)
    segment_map = SegmentMap.parse(finished.index)
    assert len(segment_map.blocks) > len(ledgers)
    assert all_of(segment_map) == computed(data, segment_map)


def test_index_without_our_extension_has_no_checksums() -> None:
    _, finished = build([batch(7, 0, [b"x" * 900] * 20)], layout=Layout.V1, extension=False)
    segment_map = SegmentMap.parse(finished.index, ledger_id=7)
    assert set(all_of(segment_map)) == {CRC_UNKNOWN}


def test_no_blocks_have_no_checksums() -> None:
    _, finished = build([batch(7, 0, [b"x"])])
    assert block_checksums(SegmentMap.parse(finished.index), np.array([], dtype=np.int64)).tolist() == []


def test_checksums_of_many_pairs_are_combined_as_one_by_one() -> None:
    generator = random.Random(3)
    lengths = [0, 1, 2, 12, 4096, 2**31 - 1, *(generator.randrange(2**24) for _ in range(50))]
    first = [generator.getrandbits(32) for _ in lengths]
    second = [generator.getrandbits(32) for _ in lengths]
    found = crc32c_combine_many(*(np.array(each, dtype=np.int64) for each in (first, second, lengths)))
    assert found.tolist() == [crc32c_combine(*each) for each in zip(first, second, lengths, strict=True)]
