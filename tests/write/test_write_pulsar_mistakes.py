"""Mistakes of Pulsar's own streaming offloader, point by point, through public interfaces.

Each test names the mistake that running or reading Pulsar 4.0.8 showed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from formats.block import decode_block_header
from formats.entries import Entry, EntryBatch, Position
from formats.index import INDEX_ENTRY, IndexGroup, ObjectIndex, decode_index, encode_index
from formats.keys import data_key, index_key
from formats.metadata.messages import OffloadContext, OffloadSegment, PulsarLedger
from formats.summary import Layout
from offloader.errors import BeyondEndError, CorruptError, InvalidCallError, StoreUnavailableError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.offloader import LedgerOffloader
from offloader.write.quota import StreamQuota
from offloader.write.segment import OffloadHandle
from offloader.write.upload import SourceLedger
from tests.support.streams import StreamWriter, batch_of

KIB, MIB = 1024, 1024 * 1024
STREAM = "public/default/persistent/orders"
WAIT_S = 30
_names = count()


def offloader_on(store: ObjectStore, **offload: Any) -> LedgerOffloader:
    return LedgerOffloader(store, Settings.of({"offload": {"part_size": 5 * MIB, **offload}}))


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(f"mistakes-{next(_names)}", "", SystemClock()))


@pytest.fixture
def offloader_with(store: FaultyStore) -> Iterator[Callable[..., LedgerOffloader]]:
    made: list[LedgerOffloader] = []

    def make(**offload: Any) -> LedgerOffloader:
        made.append(offloader_on(store, **offload))
        return made[-1]

    yield make
    for each in made:
        each.close()


def finish(handle: OffloadHandle) -> UUID:
    handle.close()
    return handle.get_offload_result_async().result(WAIT_S).uuid


def entries_of(batches: Iterable[EntryBatch]) -> list[Entry]:
    return [entry for batch in batches for entry in batch.entries()]


def read_all(offloader: LedgerOffloader, ledger_id: int, *uuids: UUID) -> list[Entry]:
    context = OffloadContext(segments=tuple(OffloadSegment(uuid=uuid, complete=True) for uuid in uuids))
    handle = offloader.read_offloaded(ledger_id, context, {})
    return list(handle.read(handle.first_entry_id, handle.last_entry_id))


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_segment_of_several_parts_arrives_on_real_s3(s3_place: Any) -> None:
    """Pulsar names no content length, so S3 refuses its first part: it never worked there."""
    real = s3_place.open()
    entries = [bytes([n]) * (2 * MIB) for n in range(7)]
    with closing(offloader_on(real, part_size=5 * MIB)) as offloader:
        handle = offloader.streaming_offload(UUID(int=1), {})
        assert handle.offer_batch(EntryBatch.build(3, 0, entries)) == 7
        uuid = finish(handle)
        assert [entry.payload for entry in read_all(offloader, 3, uuid)] == entries
    assert real.list_uploads("") == []


def test_the_index_gives_the_real_offset_of_every_block(
    store: FaultyStore, offloader_with: Callable[..., LedgerOffloader]
) -> None:
    """Pulsar doesn't count the first entry of a block: its index has 6356 where the block begins at 7380."""
    offloader = offloader_with(block_size=5 * KIB)
    handle = offloader.streaming_offload(UUID(int=2), {})
    batch = EntryBatch.build(7, 0, [bytes([n]) * KIB for n in range(20)])
    assert handle.offer_batch(batch) == 20
    uuid = finish(handle)

    data, index = store.get(data_key("", uuid))[0], decode_index(store.get(index_key("", uuid))[0])
    rows = index.groups[0].entries
    assert len(rows) > 2
    offsets = [int(offset) for offset in rows["offset"]]
    assert offsets[0] == 0
    for first, offset in zip(rows["first_entry_id"], offsets, strict=True):
        header = decode_block_header(data[offset : offset + 128])
        assert header.first_entry_id == first
    lengths = [decode_block_header(data[offset : offset + 128]).block_bytes for offset in offsets]
    assert [b - a for a, b in pairwise([*offsets, len(data)])] == lengths
    assert read_all(offloader, 7, uuid) == list(batch.entries())


@pytest.mark.parametrize("sizes", [[9 * KIB, 10, 10, 10], [10, 9 * KIB, 10], [9 * KIB], [5 * KIB, 5 * KIB, 0, 1]])
def test_entries_above_the_block_size_lose_no_other_entry(
    offloader_with: Callable[..., LedgerOffloader], sizes: list[int]
) -> None:
    """Pulsar drops small entries behind a large one, and can't read a lone one that is larger than a block."""
    offloader = offloader_with(block_size=5 * KIB)
    batch = EntryBatch.build(7, 0, [bytes([65 + n]) * size for n, size in enumerate(sizes)])
    handle = offloader.streaming_offload(UUID(int=3), {})
    assert handle.offer_batch(batch) == len(sizes)
    assert read_all(offloader, 7, finish(handle)) == list(batch.entries())


@pytest.mark.slow
def test_failing_segments_leave_no_byte_in_the_buffer_and_no_upload(
    store: FaultyStore, offloader_with: Callable[..., LedgerOffloader]
) -> None:
    """Pulsar's counter leaks until every offer is refused, and its parts are sent to an aborted upload."""
    offloader, buffer = offloader_with(workers_max=4), StreamQuota(16 * MIB)
    batch = EntryBatch.build(7, 0, [bytes(MIB)] * 12)
    for number in range(8):
        store.set_faults([Fault(call=1 + number % 2, calls=1000, verb="upload_part")])
        handle = offloader.streaming_offload(UUID(int=100 + number), {}, buffer=buffer)
        handle.offer_batch(batch)
        handle.close()
        with pytest.raises(StoreUnavailableError):
            handle.get_offload_result_async().result(WAIT_S)
        verbs = [verb for verb, key in store.calls if key == data_key("", UUID(int=100 + number))]
        assert verbs.count("abort_upload") == 1
        assert buffer.held_bytes == 0
        assert store.inner.list_uploads("") == []

    store.set_faults([])
    handle = offloader.streaming_offload(UUID(int=200), {}, buffer=buffer)
    assert handle.offer_batch(batch) == 12
    finish(handle)
    assert buffer.held_bytes == 0


def test_closing_without_an_entry_writes_nothing(
    store: FaultyStore, offloader_with: Callable[..., LedgerOffloader]
) -> None:
    """Pulsar's timer fails there and leaves an object of no bytes."""
    handle = offloader_with().streaming_offload(UUID(int=4), {})
    handle.close()
    assert handle.get_offload_result_async().result(WAIT_S).summary is None
    assert store.calls == []


def test_an_object_above_2_gib_keeps_its_length_in_the_index() -> None:
    """Pulsar counts the bytes of an object in 32 bits."""
    length = 2**32 + 12_345
    rows = np.array([(0, 1, 0), (900, 2, 2**31 + 9)], dtype=INDEX_ENTRY)
    decoded = decode_index(
        encode_index(ObjectIndex(Layout.V2, length, 128, (IndexGroup(7, PulsarLedger(ledger_id=7).encode(), rows),)))
    )
    assert decoded.data_bytes == length
    assert decoded.groups[0].entries["offset"].tolist() == [0, 2**31 + 9]


def test_second_call_with_a_uuid_is_an_error_and_the_first_continues(
    offloader_with: Callable[..., LedgerOffloader],
) -> None:
    """Pulsar's second call overwrites the state of the first."""
    offloader = offloader_with()
    batch = batch_of(7, 0, 30, times=-1)
    handle = offloader.streaming_offload(UUID(int=6), {})
    handle.offer_batch(batch)
    with pytest.raises(InvalidCallError, match="exists already"):
        offloader.streaming_offload(UUID(int=6), {})
    assert read_all(offloader, 7, finish(handle)) == list(batch.entries())


# --- reading ---------------------------------------------------------------------------------------------------------


def test_reading_entry_8_returns_only_entry_8(store: FaultyStore) -> None:
    """Pulsar gives 0 to 8."""
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 0, 45)])
    with open_stream_reader(store, STREAM) as reader:
        assert list(reader.read(Position(7, 8), Position(7, 8))) == [writer.entries[8]]


def test_two_segments_are_read_in_order_with_both_ends_known(store: FaultyStore) -> None:
    """Pulsar gives 20 to 44 and then 0 to 19, and takes the last entry from the last segment's metadata alone."""
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 0, 20)])
    writer.add([batch_of(7, 20, 25), batch_of(8, 0, 3)], closes=[7, 8])
    with open_stream_reader(store, STREAM) as reader:
        assert entries_of(reader.scan()) == writer.entries
    uuids = [OffloadSegment(uuid=uuid, complete=True) for uuid in writer.uuids]
    with closing(offloader_on(store)) as offloader:
        for order in (uuids, uuids[::-1]):
            handle = offloader.read_offloaded(7, OffloadContext(segments=tuple(order)), {}, stream=STREAM)
            assert (handle.first_entry_id, handle.last_entry_id) == (0, 44)
            assert list(handle.read(0, 44)) == writer.entries[:45]
            with pytest.raises(BeyondEndError):
                handle.read(0, 45)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [127, 128, 129, 200, 1000])
def test_reading_one_entry_opens_only_its_segment(store: FaultyStore, begin: int) -> None:
    """Pulsar allocates 648 MB for a segment that begins at 128, and opens every segment for one entry."""
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 0, begin)])
    writer.add([batch_of(7, begin, 50)])
    writer.add([batch_of(7, begin + 50, 50)])
    with open_stream_reader(store, STREAM) as reader:
        before = len(store.calls)
        wanted = Position(7, begin + 1)
        assert list(reader.read(wanted, wanted)) == writer.between(wanted, wanted)
        asked = store.calls[before:]
    assert {key for verb, key in asked if verb.startswith("get")} <= set(writer.keys(writer.uuids[1]))
    assert len(asked) <= 2, "the index and one block"


# --- V1 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded_bytes", [0, 1, -1, +1], ids=["0", "1", "a byte short", "a byte more"])
def test_the_recorded_length_of_a_ledger_decides_nothing(
    store: FaultyStore, tmp_path: Path, recorded_bytes: int
) -> None:
    """Pulsar cuts the object where the recorded length ends, and reports success."""
    with (
        closing(EmbeddedLedgers(str(tmp_path / "l.db"))) as database,
        closing(offloader_on(store, block_size=4 * KIB)) as offloader,
    ):
        source = database.open_stream(STREAM)
        # An entry above a block in the middle is the third way to lose the rest.
        source.append([b"a" * 100] * 20 + [b"b" * 9 * KIB] + [b"c" * 10] * 20, 0)
        source.close_ledger()
        info = next(info for info in source.ledgers() if info.closed and info.entries)
        claimed = recorded_bytes if recorded_bytes in (0, 1) else info.size_bytes + recorded_bytes
        ledger = SourceLedger(source, replace(info, size_bytes=claimed))
        uuid = UUID(int=8)
        try:
            offloader.offload(ledger, uuid, {}).result(WAIT_S)
        except CorruptError:
            assert not [info for info in store.inner.list("").objects if info.key.endswith("-index")]
        else:
            handle = offloader.read_offloaded(info.ledger_id, OffloadContext(uuid=uuid, complete=True), {})
            assert [len(entry.payload) for entry in handle.read(0, 40)] == [100] * 20 + [9 * KIB] + [10] * 20
