"""Memory for blocks that is used again: only when nobody looks at it, no more of it than asked, and with no trace."""

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
from formats.compression import Codec
from formats.entries import Entry, EntryBatch, Pieces, views_of
from formats.segment import FinishedSegment, Layout, Part, SegmentBuilder

KIB = 1024


def address(buffer: np.ndarray) -> int:
    return int(buffer.__array_interface__["data"][0])


def test_a_buffer_is_free_again_when_its_last_view_goes() -> None:
    memory = BlockMemory(KIB, 4 * KIB)
    first = memory.take()
    at = address(first)
    view = first[10:20].data
    del first
    assert memory.kept_bytes == 0, "a view is left"
    other = memory.take()
    assert address(other) != at
    del view
    assert memory.kept_bytes == KIB
    assert address(memory.take()) == at


def test_no_more_unused_memory_is_kept_than_asked() -> None:
    memory = BlockMemory(KIB, 2 * KIB + 5)
    taken = [memory.take() for _ in range(5)]
    assert len({address(buffer) for buffer in taken}) == 5
    taken.clear()
    assert memory.kept_bytes == 2 * KIB
    assert BlockMemory(KIB, 0).kept_bytes == 0


def test_memory_that_is_not_kept_goes_back_to_the_system_and_serves_again() -> None:
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


def test_a_part_keeps_its_bytes_while_its_memory_is_wanted_for_others() -> None:
    """What a timed-out attempt may still send doesn't change, however many blocks come after it."""
    memory = BlockMemory(128 * KIB, 1024 * KIB)
    builder = SegmentBuilder(block_bytes=128 * KIB, part_bytes=512 * KIB, memory=memory)
    first: list[Part] = []
    copies = []
    for number in range(100):
        batch = EntryBatch.build(1, number * 16, [bytes([number]) * 4000] * 16)
        for part in builder.append(batch):
            first.append(part)
            copies.append(part.data)
            del first[2:], copies[2:]  # the others are acknowledged at once
    assert memory.kept_bytes > 0
    assert [part.data for part in first] == copies


def built(
    batches: list[EntryBatch], block_bytes: int, codec: Codec, memory: BlockMemory | None
) -> tuple[bytes, FinishedSegment]:
    layout = Layout.V2
    builder = SegmentBuilder(layout=layout, block_bytes=block_bytes, part_bytes=10_000, codec=codec, memory=memory)
    data = [part.data for batch in batches for part in builder.append(batch)]
    finished = builder.finish()
    return b"".join([*data, *(part.data for part in finished.parts)]), finished


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_bytes_are_the_same_with_memory_that_held_others_before(data: st.DataObject) -> None:
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
def test_equal_entries_are_laid_out_like_any_others(size: int, count: int) -> None:
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


def test_a_batch_that_pays_for_others_memory_is_copied() -> None:
    whole = EntryBatch.build(1, 0, pa.array([b"x" * 100] * 100, pa.binary()))
    assert whole.compact() is whole
    most = whole.slice(0, 90)
    assert most.compact() is most
    few = whole.slice(0, 10).compact()
    assert few.payloads.buffers()[2].size == 1000
    assert list(few.entries()) == [Entry(1, number, b"x" * 100) for number in range(10)]
    assert len(whole.slice(0, 0).compact()) == 0
