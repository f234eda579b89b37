"""Damaged, missing and foreign objects: the error names stream, object, place, expected and found."""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from formats.checksum import crc32c
from formats.entries import Entry, Position
from formats.manifest import Purged, Retire, Truncate
from formats.segment import Codec, SegmentMap
from formats.summary import Layout
from offloader.errors import (
    CorruptError,
    LimitReachedError,
    ObjectChangedError,
    ObjectMissingError,
    OffloaderError,
    StoreUnavailableError,
    TrimmedError,
    UnsupportedError,
)
from offloader.read.fetch import Cache, Fetcher, SegmentObjects, block_runs
from offloader.read.reader import open_stream_reader
from offloader.settings import ReadSettings, Size, StoreSettings
from offloader.store.base import ByteRange, ObjectInfo, ObjectStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.support.streams import StreamWriter, batch_of, build
from tests.support.waiting import PATIENCE_S

names = itertools.count()
FIRST, LAST = Position(1, 0), Position(1, 99)


@pytest.fixture
def writer() -> StreamWriter:
    writer = StreamWriter(open_store(f"memory://damage-{next(names)}"))
    writer.add([batch_of(1, 0, 100)])
    return writer


def overwrite(writer: StreamWriter, key: str, data: bytes) -> None:
    """Replaces an object's bytes and keeps its user metadata."""
    _, info = writer.store.get(key)
    writer.store.put(key, data, metadata=info.metadata)


def flip(writer: StreamWriter, key: str, byte: int, bit: int = 0) -> None:
    data = bytearray(writer.store.get(key)[0])
    data[byte] ^= 1 << bit
    overwrite(writer, key, bytes(data))


def both_ways(writer: StreamWriter) -> list[OffloaderError]:
    """The error of a cached read and of a scan."""
    reader, caught = open_stream_reader(writer.store, writer.stream, cache=Cache(1 << 26)), []
    for call in (lambda: reader.read(FIRST, LAST), lambda: list(reader.scan())):
        with pytest.raises(OffloaderError) as error:
            call()
        caught.append(error.value)
    return caught


def test_a_flipped_bit_in_the_payload_is_found_and_named(writer: StreamWriter) -> None:
    data, index = writer.keys(writer.uuids[0])
    blocks = SegmentMap.parse(writer.store.get(index)[0]).blocks
    offset, length = int(blocks.offset[1]), int(blocks.length[1])
    flip(writer, data, offset + 140)
    for error in both_ways(writer):
        assert isinstance(error, CorruptError)
        for part in (writer.stream, data, f"bytes {offset}..{offset + length}", "expected", "found"):
            assert part in str(error)


@pytest.mark.slow
def test_any_flipped_bit_of_a_data_object_is_found_or_harmless(writer: StreamWriter) -> None:
    """Padding has no meaning; everything else is under a checksum or a cross-check."""
    data, _ = writer.keys(writer.uuids[0])
    whole, _ = writer.store.get(data)
    chance = random.Random(3)
    for byte in chance.sample(range(len(whole)), 250):
        flip(writer, data, byte, chance.randrange(8))
        try:
            found = list(open_stream_reader(writer.store, writer.stream).read(FIRST, LAST))
        except CorruptError:
            pass
        else:
            assert found == writer.entries, f"byte {byte} changed the answer"
        overwrite(writer, data, whole)


@pytest.mark.slow
def test_any_flipped_bit_of_an_index_is_found(writer: StreamWriter) -> None:
    _, index = writer.keys(writer.uuids[0])
    whole, _ = writer.store.get(index)
    for byte in range(0, len(whole), 7):
        flip(writer, index, byte, byte % 8)
        with pytest.raises(
            CorruptError, match=r"expected CRC-32C [0-9a-f]{8} \(from the manifest\), found [0-9a-f]{8}"
        ):
            open_stream_reader(writer.store, writer.stream).read(FIRST, LAST)
        overwrite(writer, index, whole)


def test_an_object_of_another_length_was_changed(writer: StreamWriter) -> None:
    data, index = writer.keys(writer.uuids[0])
    for key, change in ((data, b""), (data, b"x" * 10_000), (index, b""), (index, b"x" * 10_000)):
        whole, _ = writer.store.get(key)
        overwrite(writer, key, (whole[:-1] if not change else whole + change))
        for error in both_ways(writer):
            assert isinstance(error, ObjectChangedError)
            assert f"expected {len(whole)} bytes, found {len(whole) - 1 if not change else len(whole) + 10_000}" in str(
                error
            )
        overwrite(writer, key, whole)
    assert list(open_stream_reader(writer.store, writer.stream).read(FIRST, LAST)) == writer.entries


def test_another_object_of_the_same_length_is_found_by_the_index(writer: StreamWriter) -> None:
    """Its blocks are whole and their checksums right, but they aren't the ones in the index."""
    data, _ = writer.keys(writer.uuids[0])
    _, other = build([batch_of(1, 100, 100, size=20)], writer.block_bytes)
    assert len(other) == len(writer.store.get(data)[0])
    overwrite(writer, data, other)
    for error in both_ways(writer):
        assert isinstance(error, CorruptError)


def test_index_contradicting_the_manifest_is_corrupt_despite_its_checksum(
    writer: StreamWriter,
) -> None:
    _, index = writer.keys(writer.uuids[0])
    record = writer.log.state.segments[writer.uuids[0]]
    good = SegmentObjects.of_record(writer.stream, record)
    other, _ = build([batch_of(1, 0, 120)], writer.block_bytes)
    overwrite(writer, index, other.index)
    lying = replace(good, index_bytes=len(other.index), index_crc32c=crc32c(other.index))
    fetcher = Fetcher(writer.store, ReadSettings())
    with pytest.raises(CorruptError, match="data object length"):
        fetcher.index(lying)
    with pytest.raises(CorruptError, match="number of blocks"):
        fetcher.index(replace(lying, data_bytes=None))


@pytest.mark.parametrize("is_index", [False, True])
def test_an_object_the_manifest_has_and_the_store_has_not_is_missing(writer: StreamWriter, is_index: bool) -> None:
    key = writer.keys(writer.uuids[0])[is_index]
    writer.store.delete([key])
    for error in both_ways(writer):
        assert isinstance(error, ObjectMissingError)
        assert key in str(error)
        assert writer.stream in str(error)
        assert "1:0..1:99" in str(error)


@pytest.mark.parametrize("purged", [False, True])
def test_missing_object_of_a_since_retired_segment_is_trimmed(writer: StreamWriter, purged: bool) -> None:
    writer.add([batch_of(1, 100, 10)])
    reader = open_stream_reader(writer.store, writer.stream)
    old = writer.uuids[0]
    writer.log.commit([Truncate(Position(1, 100)), Retire((old,))])
    if purged:
        writer.log.commit([Purged((old,), writer.log.state.record_id)])
    writer.store.delete(list(writer.keys(old)))
    with pytest.raises(
        TrimmedError, match=r"retention deleted segment .* during the read; the stream now begins at 1:100"
    ) as caught:
        list(reader.scan())
    assert caught.value.first_available == Position(1, 100)
    assert [entry.entry_id for entry in reader.refresh().read(Position(1, 100), Position(1, 109))] == list(
        range(100, 110)
    )


def test_entries_before_a_damaged_segment_are_delivered_before_the_error(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 100, 100)])
    writer.store.delete([writer.keys(writer.uuids[1])[1]])
    reader = open_stream_reader(writer.store, writer.stream)
    found: list[Entry] = []
    with pytest.raises(ObjectMissingError):
        found.extend(entry for batch in reader.scan() for entry in batch.entries())
    assert found == writer.entries[:100]


@pytest.mark.parametrize("version", ["3", "", None])
def test_an_object_of_an_unknown_format_version_is_refused(writer: StreamWriter, version: str | None) -> None:
    data, _ = writer.keys(writer.uuids[0])
    whole, info = writer.store.get(data)
    name = "s3managedledgeroffloaderformatversion"
    metadata = {key: value for key, value in info.metadata.items() if key != name}
    writer.store.put(data, whole, metadata=metadata if version is None else {**metadata, name: version})
    for error in both_ways(writer):
        assert isinstance(error, UnsupportedError)
        assert "invalid object version" in str(error)


def test_block_above_the_limit_is_refused_before_it_is_fetched(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 100, 1, size=5000)])
    store = FaultyStore(writer.store)
    reader = open_stream_reader(store, writer.stream, settings=ReadSettings(block_size_max=Size(4000)))
    with pytest.raises(LimitReachedError, match=r"read\.block_size_max = 4000"):
        reader.read(Position(1, 100), Position(1, 100))
    assert [key for verb, key in store.calls if key == writer.keys(writer.uuids[1])[0]] == []
    assert len(reader.read(FIRST, LAST)) == 100


def test_decompression_is_capped_by_a_setting(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 100, 1, size=50_000)], codec=Codec.ZSTD)
    reader = open_stream_reader(writer.store, writer.stream, settings=ReadSettings(decompressed_size_max=Size(10_000)))
    with pytest.raises(LimitReachedError, match=r"read\.decompressed_size_max"):
        reader.read(Position(1, 100), Position(1, 100))


def test_plain_pulsar_blocks_are_checked_structurally() -> None:
    """They have no checksum: a damaged length or id is found, a damaged payload byte can't be."""
    writer = StreamWriter(open_store(f"memory://damage-{next(names)}"))
    uuid = writer.add([batch_of(1, 0, 100)], layout=Layout.V1, extension=False, closes=[1])
    data, _ = writer.keys(uuid, 1)
    flip(writer, data, 128 + 4 + 7)  # the lowest byte of the first entry's id
    for error in both_ways(writer):
        assert isinstance(error, CorruptError)


def test_unreachable_store_is_an_error_and_the_next_read_works(writer: StreamWriter) -> None:
    quick = StoreSettings(retries_max=0)
    store = FaultyStore(open_store(writer.store.url, settings=quick))
    reader = open_stream_reader(store, writer.stream)
    store.set_faults([Fault(call=1, verb="get", error=StoreUnavailableError)])
    with pytest.raises(StoreUnavailableError):
        reader.read(FIRST, LAST)
    assert list(reader.read(FIRST, LAST)) == writer.entries


@pytest.mark.slow
@pytest.mark.parametrize("call", range(1, 12))
def test_read_failing_at_any_call_is_right_or_raises(writer: StreamWriter, call: int) -> None:
    writer.add([batch_of(1, 100, 100), batch_of(2, 0, 300)], closes=[1])
    store = FaultyStore(writer.store, [Fault(call=call, verb="get")])
    try:
        reader = open_stream_reader(store, writer.stream, settings=ReadSettings(request_size=Size(4096)))
        found = [entry for batch in reader.scan() for entry in batch.entries()]
    except OffloaderError:
        return
    assert found == writer.entries


class HeldStore:
    """``inner`` whose ranged reads of one key wait until they are let go: a slow store, without sleeping."""

    def __init__(self, inner: ObjectStore, key: str) -> None:
        self.inner = inner
        self.key = key
        self.arrived = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.reads = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def get(self, key: str, byte_range: ByteRange | None = None, **_: object) -> tuple[bytes, ObjectInfo]:
        if key == self.key:
            self.reads += 1
            self.arrived.release()
            assert self.go_on.wait(PATIENCE_S)
        return self.inner.get(key, byte_range)


def test_concurrent_readers_of_a_missing_block_send_one_get(writer: StreamWriter) -> None:
    data, _ = writer.keys(writer.uuids[0])
    store = HeldStore(writer.store, data)
    reader = open_stream_reader(store, writer.stream)  # type: ignore[arg-type]
    reader.count(Position(1, 1), Position(1, 2))  # the index is in the cache now
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(len(reader.read(FIRST, FIRST)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert store.arrived.acquire(timeout=PATIENCE_S)
    store.go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [1, 1, 1, 1]
    assert store.reads == 1


@pytest.mark.slow
def test_scan_sends_as_many_concurrent_gets_as_configured(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 100, 2000)])
    data, _ = writer.keys(writer.uuids[1])
    store = HeldStore(writer.store, data)
    chosen = ReadSettings(request_size=Size(4096), requests_in_flight_max=3)
    reader = open_stream_reader(store, writer.stream, settings=chosen)  # type: ignore[arg-type]
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(len(batch) for batch in reader.scan()))
    thread.start()
    for _ in range(3):
        assert store.arrived.acquire(timeout=PATIENCE_S)
    assert not store.arrived.acquire(timeout=0.05)
    store.go_on.set()
    thread.join(PATIENCE_S)
    assert sum(found) == 2100


def test_no_thread_is_left_after_a_scan_was_closed_early(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 100, 2000)])
    scan = open_stream_reader(writer.store, writer.stream, settings=ReadSettings(request_size=Size(4096))).scan()
    assert len(next(scan)) > 0
    scan.close()
    for thread in threading.enumerate():
        if thread.name.startswith("offloader-read"):
            thread.join(PATIENCE_S)
    assert not any(thread.name.startswith("offloader-read") for thread in threading.enumerate())


def test_fetcher_may_skip_only_the_damaged_block_of_a_run(writer: StreamWriter) -> None:
    data, index = writer.keys(writer.uuids[0])
    segment_map = SegmentMap.parse(writer.store.get(index)[0])
    flip(writer, data, int(segment_map.blocks.offset[2]) + 140)
    objects = SegmentObjects.of_record(writer.stream, writer.log.state.segments[writer.uuids[0]])
    [run] = block_runs(objects, segment_map, np.arange(len(segment_map.blocks)), 10**9)
    skipped: list[CorruptError] = []
    batches = Fetcher(writer.store, ReadSettings()).run(run, skip=skipped.append)
    assert len(batches) == len(segment_map.blocks) - 1
    assert len(skipped) == 1
