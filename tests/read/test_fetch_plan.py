"""Planning: which segments, which blocks, which byte ranges."""

from __future__ import annotations

import itertools
import pickle
import random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import Position
from formats.segment import Codec, SegmentMap
from offloader.read.fetch import COMPRESSED_SHARE, SegmentObjects, block_runs, request_sizes
from offloader.read.ranges import readable_segments, segments_between, whole_range
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of, build, random_batch

HIGHEST = Position(2**63 - 1, 0)


def segment_map(count: int, block_bytes: int, *, extension: bool = True, seed: int = 0) -> SegmentMap:
    finished, _ = build([random_batch(random.Random(seed), 7, 0, count, 300)], block_bytes, extension=extension)
    return SegmentMap.parse(finished.index)


def objects() -> SegmentObjects:
    return SegmentObjects(stream="a/b", uuid=UUID(int=7))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 200),
    st.integers(200, 4000),
    st.integers(1, 20_000),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_runs_are_contiguous_bounded_and_hold_every_wanted_block_once(
    count: int, block_bytes: int, request_bytes: int, extension: bool, choice: random.Random
) -> None:
    found = segment_map(count, block_bytes, extension=extension)
    blocks = found.blocks
    wanted = np.array([n for n in range(len(blocks)) if choice.random() < 0.7], dtype=np.int64)
    runs = list(block_runs(objects(), found, wanted, request_bytes))
    assert np.concatenate([run.numbers for run in runs] or [wanted]).tolist() == wanted.tolist()
    for run in runs:
        starts, lengths = blocks.offset[run.numbers], blocks.length[run.numbers]
        assert run.start == starts[0]
        assert run.stop == starts[-1] + blocks.read_bytes[run.numbers[-1]]
        assert (starts[1:] == starts[:-1] + lengths[:-1]).all()
        assert lengths.sum() <= request_bytes or len(run.numbers) == 1
    for before, after in itertools.pairwise(runs):
        neighbours = after.numbers[0] == before.numbers[-1] + 1
        next_stop = after.start + int(blocks.length[after.numbers[0]])
        assert not neighbours or next_stop > before.start + request_bytes  # it didn't fit


def test_a_block_longer_than_a_request_is_a_run_of_its_own() -> None:
    found = segment_map(50, 4000)
    runs = list(block_runs(objects(), found, np.arange(len(found.blocks)), 1))
    assert [run.numbers.tolist() for run in runs] == [[n] for n in range(len(found.blocks))]


def test_runs_of_compressed_blocks_are_bounded_by_their_entries_too() -> None:
    finished, _ = build([batch_of(1, 0, 256, size=4000)], 64 * 1024, codec=Codec.ZSTD)
    found = SegmentMap.parse(finished.index)
    decoded = found.blocks.uncompressed_bytes
    assert found.data_bytes < decoded.sum() // (4 * COMPRESSED_SHARE)
    request_bytes = 100_000
    runs = list(block_runs(objects(), found, np.arange(len(found.blocks)), request_bytes))
    sizes = [int(decoded[run.numbers].sum()) for run in runs]
    assert len(runs) > 2
    assert max(sizes) <= COMPRESSED_SHARE * request_bytes
    assert [run.held_bytes for run in runs] == [
        size + int(found.blocks.length[run.numbers].max()) for run, size in zip(runs, sizes, strict=True)
    ]


def test_neighbouring_blocks_are_one_request() -> None:
    found = segment_map(100, 1000)
    [run] = block_runs(objects(), found, np.arange(len(found.blocks)), 10**9)
    assert (run.start, run.stop) == (0, found.data_bytes)


def test_first_requests_of_a_scan_are_small() -> None:
    mib = 1 << 20
    assert list(itertools.islice(request_sizes(16 * mib), 5)) == [4 * mib, 4 * mib, 4 * mib, 16 * mib, 16 * mib]
    assert list(itertools.islice(request_sizes(mib), 3)) == [mib, mib, mib]


def test_runs_of_several_segments_share_the_sizes_of_a_scan() -> None:
    found = segment_map(100, 1000)
    sizes, numbers = iter([2000, 10**9]), np.arange(len(found.blocks))
    first, *rest = block_runs(objects(), found, numbers[:10], sizes)
    [all_in_one] = block_runs(objects(), found, numbers, itertools.repeat(10**9))
    assert first.stop - first.start <= 2000
    assert [run.numbers.tolist() for run in rest] == [numbers[len(first.numbers) : 10].tolist()]
    assert all_in_one.stop - all_in_one.start > 2000


def test_no_blocks_are_no_runs() -> None:
    assert list(block_runs(objects(), segment_map(10, 1000), np.arange(0), 1000)) == []


def test_objects_have_pulsars_names_and_are_picklable() -> None:
    plain = objects()
    assert plain.data_key == "a/b/00000000-0000-0000-0000-000000000007"
    assert plain.index_key == "a/b/00000000-0000-0000-0000-000000000007-index"
    v1 = SegmentObjects(stream="a/b", uuid=plain.uuid, ledger_id=9)
    assert v1.data_key.endswith("-ledger-9")
    assert v1.index_key.endswith("-ledger-9-index")
    assert pickle.loads(pickle.dumps(v1)) == v1
    assert len(pickle.dumps(v1)) < 500


@pytest.fixture
def writer() -> StreamWriter:
    return StreamWriter(open_store(f"memory://{random.getrandbits(64):x}"))


def test_an_empty_manifest_has_no_range_and_no_segments(writer: StreamWriter) -> None:
    assert whole_range(writer.log.state) is None
    assert readable_segments(writer.log.state) == []


def test_segments_are_found_by_their_positions(writer: StreamWriter) -> None:
    writer.add([batch_of(3, 0, 10)])
    writer.add([batch_of(3, 10, 10), batch_of(5, 0, 10)], closes=[3, 5])
    writer.add([batch_of(9, 0, 10)])
    state = writer.log.state

    def found(first: Position, last: Position) -> list[int]:
        return [writer.uuids.index(record.uuid) for record in segments_between(state.offloaded(), first, last)]

    assert whole_range(state) == (Position(3, 0), Position(9, 9))
    assert found(Position(0, 0), HIGHEST) == [0, 1, 2]
    assert found(Position(3, 9), Position(3, 9)) == [0]
    assert found(Position(3, 9), Position(3, 10)) == [0, 1]
    assert found(Position(5, 9), Position(9, 0)) == [1, 2]
    assert found(Position(5, 10), Position(8, 7)) == []


def test_segments_after_the_committed_end_are_not_readable(writer: StreamWriter) -> None:
    """An unrecorded gap may still be filled: entries after it don't count yet."""
    writer.add([batch_of(3, 0, 10)])
    writer.add([batch_of(3, 20, 10)])
    assert whole_range(writer.log.state) == (Position(3, 0), Position(3, 9))
    assert [record.uuid for record in readable_segments(writer.log.state)] == writer.uuids[:1]
