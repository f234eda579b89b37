"""Blocks are decoded from reused memory while a response arrives: entries are unaffected."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import EntryBatch
from formats.segment import Codec
from offloader.errors import CorruptError, LimitReachedError, ObjectChangedError, StoreUnavailableError
from offloader.read.fetch import ArrivingBlocks, BlockRun, Fetcher, SegmentObjects, block_runs
from offloader.read.reader import open_stream_reader
from offloader.settings import ReadSettings, Size, StoreSettings
from offloader.store.base import ByteRange, ObjectInfo, ObjectStore, Sink
from offloader.store.open import open_store
from offloader.store.wrappers import Request, RetryingStore, StoreWrapper
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter, batch_of, random_batch

BLOCK_BYTES = 4 * 1024
names = itertools.count()


class Trickling(StoreWrapper):
    """Gives bodies to whoever receives, a few bytes at a time, and spoils the memory as soon as it may.

    ``breaks``: of the next gets, after how many bytes they fail. ``shown``: makes other bytes of a body.
    """

    def __init__(self, inner: ObjectStore, pieces: random.Random) -> None:
        super().__init__(inner)
        self._pieces = pieces
        self.breaks: list[int] = []
        self.shown: Callable[[bytes], bytes] = bytes
        self.received = 0

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        return call()

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Sink | None = None
    ) -> tuple[bytes, ObjectInfo]:
        body, info = super().get(key, byte_range)
        if into is None:
            return body, info
        self.received += 1
        self._give(self.shown(body), into)
        return b"", info

    def _give(self, body: bytes, into: Sink) -> None:
        into.begin()
        end = self.breaks.pop(0) if self.breaks else len(body)
        at = 0
        used: list[Any] = []
        while at < min(end, len(body)):
            room = into.room()
            count = min(self._pieces.randint(1, 3000), len(room), len(body) - at)
            room[:count] = body[at : at + count]
            used.append(room.obj)
            into.came(count)
            at += count
            assert into.received_bytes == at
        for memory in used:
            np.frombuffer(memory, dtype=np.uint8)[:] = 0xEE
        if end < len(body):
            raise StoreUnavailableError(f"broke off after {end} bytes")


def written(*batches: EntryBatch, codec: Codec = Codec.NONE, extension: bool = True) -> StreamWriter:
    writer = StreamWriter(open_store(f"memory://arriving-{next(names)}"), block_bytes=BLOCK_BYTES)
    writer.add(batches or [batch_of(1, 0, 500)], codec=codec, extension=extension)
    return writer


def run_of(writer: StreamWriter) -> BlockRun:
    """All blocks of the only segment, in one request."""
    objects = SegmentObjects.of_record(writer.stream, open_stream_reader(writer.store, writer.stream).segments()[0])
    found = Fetcher(writer.store, ReadSettings()).index(objects)
    [run] = block_runs(objects, found, np.arange(len(found.blocks)), 1 << 30)
    assert len(run.numbers) > 3
    return run


def entries(batches: list[EntryBatch]) -> list[Any]:
    return [entry for batch in batches for entry in batch.entries()]


def trickling(writer: StreamWriter, seed: int = 0) -> tuple[Trickling, Fetcher]:
    store = Trickling(writer.store, random.Random(seed))
    return store, Fetcher(store, ReadSettings())


@pytest.mark.slow
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    codec=st.sampled_from(Codec),
    equal=st.booleans(),
    cuts=st.lists(st.floats(0, 0.999), max_size=3),
)
def test_entries_are_the_right_ones_after_their_memory_was_used_again(
    seed: int, codec: Codec, equal: bool, cuts: list[float]
) -> None:
    generator = random.Random(seed)
    size = generator.randint(0, 900)
    batches = [
        batch_of(number, 0, 40, size=size) if equal else random_batch(generator, number, 3, 60, 900)
        for number in (1, 2, 4, 5)
    ]
    writer = written(*batches, codec=codec)
    store, _ = trickling(writer, seed)
    run = run_of(writer)
    store.breaks = [int(cut * (run.stop - run.start)) for cut in cuts]
    patient = RetryingStore(store, StoreSettings(), ManualClock(), random.Random(0))
    fetcher = Fetcher(patient, ReadSettings())
    assert entries(fetcher.run(run)) == writer.entries
    assert store.received == 1 + len(cuts)


@pytest.mark.parametrize("codec", Codec)
def test_a_scan_receives_and_answers_every_entry(codec: Codec) -> None:
    generator = random.Random(3)
    writer = written(*(random_batch(generator, number, 0, 150, 400) for number in (1, 2)), codec=codec)
    store, _ = trickling(writer)
    reader = open_stream_reader(store, writer.stream, settings=ReadSettings(request_size=Size(3 * BLOCK_BYTES)))
    assert entries(list(reader.scan())) == writer.entries
    assert store.received > 3


def test_plain_blocks_are_not_received_as_one_needs_bytes_of_the_next() -> None:
    writer = written(extension=False)
    store, fetcher = trickling(writer)
    assert entries(fetcher.run(run_of(writer))) == writer.entries
    assert store.received == 0


def test_damaged_block_is_reported_or_skipped_as_in_a_whole_read() -> None:
    writer = written()
    run = run_of(writer)
    at = int(run.segment_map.blocks.offset[2]) - run.start + 200

    def damaged(body: bytes) -> bytes:
        return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]

    store, fetcher = trickling(writer)
    store.shown = damaged
    skipped: list[CorruptError] = []
    with pytest.raises(CorruptError) as received:
        fetcher.run(run)
    left = entries(fetcher.run(run, skipped.append))
    whole = Fetcher(writer.store, ReadSettings())
    with pytest.raises(CorruptError) as answered:
        whole.decode(run, damaged(whole.run_bytes(run)))
    assert str(received.value) == str(answered.value) == str(skipped[0])
    assert left == entries(whole.decode(run, damaged(whole.run_bytes(run)), lambda _: None))
    assert 0 < len(left) < len(writer.entries)


def test_changed_object_length_takes_precedence_over_block_damage() -> None:
    writer = written()
    run = run_of(writer)
    data, _ = writer.keys(writer.uuids[0])
    body, info = writer.store.get(data)
    writer.store.put(data, body + b"more", metadata=info.metadata)
    _, fetcher = trickling(writer)
    with pytest.raises(ObjectChangedError, match=f"expected {len(body)} bytes, found {len(body) + 4}"):
        fetcher.run(run)


def test_oversized_blocks_are_never_fetched() -> None:
    writer = written()
    store, _ = trickling(writer)
    with pytest.raises(LimitReachedError, match=r"exceeds read\.block_size_max = 1024"):
        Fetcher(store, ReadSettings(block_size_max=Size(1024))).run(run_of(writer))
    assert store.received == 0


def test_decoding_errors_are_raised_after_the_call_in_block_order() -> None:
    """A store would take an error for its own, and ask again or close a connection that is in order."""
    writer = written()
    run = run_of(writer)
    body = Fetcher(writer.store, ReadSettings()).run_bytes(run)

    def decode(_: BlockRun, number: int, data: Any) -> EntryBatch:
        raise MemoryError(f"{number}: {len(data)}")

    blocks = ArrivingBlocks(run, decode)
    blocks.begin()
    view = memoryview(body)
    while view:
        room = blocks.room()
        room[:] = view[: len(room)]
        view = view[len(room) :]
        blocks.came(len(room))
    assert blocks.received_bytes == len(body)
    with pytest.raises(MemoryError, match=f"^0: {int(run.segment_map.blocks.length[0])}$"):
        blocks.batches(lambda _: None)
