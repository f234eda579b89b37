"""Reusable block memory: reused only when unreferenced, bounded, and without traces of earlier content."""

from __future__ import annotations

import itertools
import mmap
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.block import interleave
from formats.block_memory import BlockMemory
from formats.entries import Entry, EntryBatch, Pieces, views_of
from formats.extension import Codec
from formats.segment import FinishedSegment, Part, SegmentBuilder
from formats.summary import Layout

KIB = 1024


def address(buffer: np.ndarray) -> int:
    return int(buffer.__array_interface__["data"][0])


def test_buffer_is_reusable_when_its_last_view_is_released() -> None:
    memory = BlockMemory(KIB, 4 * KIB)
    first = memory.take()
    at = address(first)
    view = first[10:20].data
    del first
    assert not memory._unused, "a view is left"
    other = memory.take()
    assert address(other) != at
    del view
    assert len(memory._unused) == 1
    assert address(memory.take()) == at


def test_unused_memory_is_kept_only_up_to_its_limit() -> None:
    memory = BlockMemory(KIB, 2 * KIB + 5)
    taken = [memory.take() for _ in range(5)]
    assert len({address(buffer) for buffer in taken}) == 5
    taken.clear()
    assert len(memory._unused) == 2
    nothing = BlockMemory(KIB, 0)
    nothing.take()
    assert not nothing._unused


def test_memory_above_the_limit_returns_to_the_system() -> None:
    memory = BlockMemory(mmap.PAGESIZE + 1, 2 * (mmap.PAGESIZE + 1))
    taken = [memory.take() for _ in range(5)]
    addresses = {address(buffer) for buffer in taken}
    for buffer in taken:
        buffer[:] = 0xFF
    del buffer
    taken.clear()
    again = [memory.take() for _ in range(5)]
    assert {address(each) for each in again} == addresses, "no new memory while there are addresses of old"
    assert sorted(int(each.max()) for each in again) == [0, 0, 0, 0xFF, 0xFF], "the system clears what it gives"


@pytest.mark.process
def test_a_forked_process_does_not_write_into_the_blocks_of_its_parent() -> None:
    memory = BlockMemory(KIB, 4 * KIB)
    buffer = memory.take()
    buffer[:] = 1
    child = os.fork()
    if child == 0:
        buffer[:] = 2
        os._exit(int(buffer[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert (buffer == 1).all()


def test_part_keeps_its_bytes_while_other_blocks_are_written() -> None:
    """The bytes of a timed-out attempt stay unchanged, however many blocks follow."""
    memory = BlockMemory(128 * KIB, 1024 * KIB)
    builder = SegmentBuilder(block_bytes=128 * KIB, part_bytes=512 * KIB, memory=memory)
    first: list[Part] = []
    copies = []
    for number in range(100):
        batch = EntryBatch.build(1, number * 16, [bytes([number]) * 4000] * 16)
        for part in builder.append(batch):
            first.append(part)
            copies.append(bytes(part.body))
            del first[2:], copies[2:]  # the others are acknowledged at once
    assert memory._unused
    assert [bytes(part.body) for part in first] == copies


def built(
    batches: list[EntryBatch], block_bytes: int, codec: Codec, memory: BlockMemory | None
) -> tuple[bytes, FinishedSegment]:
    layout = Layout.V2
    builder = SegmentBuilder(layout=layout, block_bytes=block_bytes, part_bytes=10_000, codec=codec, memory=memory)
    data = [bytes(part.body) for batch in batches for part in builder.append(batch)]
    finished = builder.finish()
    return b"".join([*data, *(bytes(part.body) for part in finished.parts)]), finished


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_segments_are_equal_in_fresh_and_reused_memory(data: st.DataObject) -> None:
    equal = data.draw(st.booleans())
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=80))
    payloads = [bytes([at % 256]) * (sizes[0] if equal else size) for at, size in enumerate(sizes)]
    whole = EntryBatch.build(7, 0, payloads, list(range(len(payloads))))
    borders = sorted({0, len(sizes), *data.draw(st.lists(st.integers(0, len(sizes)), max_size=6))})
    batches = [whole.slice(a, b) for a, b in itertools.pairwise(borders)]
    codec = data.draw(st.sampled_from([Codec.NONE, Codec.ZSTD]))
    memory = BlockMemory(2_000, 100_000)
    dirty = [memory.take() for _ in range(5)]
    for buffer in dirty:
        buffer[:] = 0xAA
    del dirty, buffer
    plain = built(batches, 2_000, codec, None)
    for _ in range(2):
        again = built(batches, 2_000, codec, memory)
        assert again[0] == plain[0]
        assert again[1].index == plain[1].index


@pytest.mark.parametrize("size", [0, 1, 100])
@pytest.mark.parametrize("count", [1, 7, 8, 50])
def test_interleaved_entries_have_length_id_and_payload(size: int, count: int) -> None:
    payloads = [bytes([number]) * size for number in range(count + 3)]
    batch = EntryBatch.build(1, 5, payloads).slice(2, count + 2)
    expected = b"".join(
        size.to_bytes(4, "big") + entry.entry_id.to_bytes(8, "big") + entry.payload for entry in batch.entries()
    )
    assert interleave(batch).tobytes() == expected
    out = np.full(len(expected), 0xFF, dtype=np.uint8)
    assert interleave(batch, out) is out
    assert out.tobytes() == expected


def test_pieces_are_one_body() -> None:
    pieces = Pieces([b"ab", b"", bytearray(b"cd"), np.frombuffer(b"e", dtype=np.uint8)])
    assert (len(pieces), bytes(pieces), len(pieces.views)) == (5, b"abcde", 3)
    assert pieces == b"abcde"
    assert b"abcde" == pieces  # noqa: SIM300 - what a store compares with what it found
    assert pieces != b"abcdf"
    assert pieces == Pieces([b"abcde"])
    assert pieces != "abcde"
    assert [bytes(view) for view in views_of(b"x")] == [b"x"]
    assert views_of(b"") == () == views_of(Pieces([]))


def test_small_slice_of_a_large_buffer_is_copied() -> None:
    whole = EntryBatch.build(1, 0, pa.array([b"x" * 100] * 100, pa.binary()))
    assert whole.compact() is whole
    most = whole.slice(0, 90)
    assert most.compact() is most
    few = whole.slice(0, 10).compact()
    assert few.payloads.buffers()[2].size == 1000
    assert list(few.entries()) == [Entry(1, number, b"x" * 100) for number in range(10)]
    assert len(whole.slice(0, 0).compact()) == 0
