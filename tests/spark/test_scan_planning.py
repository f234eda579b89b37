"""Plans: small partitions, one pinned manifest version, and executors that only read ranges."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from formats.entries import TIME_MS_MAX, TIME_MS_MIN, TIME_UNKNOWN_MS, EntryBatch, Position
from formats.keys import catalog_key
from formats.manifest import Assign, Failed
from formats.segment import SegmentMap
from offloader.spark.options import Needs, Projection, SourceOptions
from offloader.spark.scan import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    INDEXES_READ_MAX,
    SegmentSlice,
    read_slices,
)
from offloader.spark.source import OffloaderReader, Pinned
from offloader.store.base import ByteRange, ObjectInfo, ObjectStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import FaultyStore
from offloader.times import TABLE_TIME_MS_MAX, TABLE_TIME_MS_MIN
from tests.spark.reading import planned
from tests.support.streams import BASE_MS, StreamWriter, batch_of

ENTRIES = pa.schema([("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("payload", pa.binary())])


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"))


def options(writer: StreamWriter, **more: object) -> SourceOptions:
    return SourceOptions(store=writer.store.url, stream=writer.stream, **more)  # type: ignore[arg-type]


def rows(
    slices: tuple[SegmentSlice, ...],
    writer: StreamWriter,
    store: ObjectStore | None = None,
    schema: pa.Schema = ENTRIES,
    needs: Needs = Needs.PAYLOADS,
) -> list[pa.RecordBatch]:
    return list(read_slices(slices, options(writer), Projection(schema, needs), store or writer.store))


def blocks_of(partitions: list[tuple[SegmentSlice, ...]]) -> dict[object, list[int]]:
    found: dict[object, list[int]] = {}
    for slices in partitions:
        for piece in slices:
            numbers = [n for start, stop in piece.blocks for n in range(start, stop)]
            found.setdefault(piece.objects.uuid, []).extend(numbers)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("split_bytes", [1, 700, 5000, 10**9])
def test_partitions_hold_every_block_once_and_are_cut_at_blocks(writer: StreamWriter, split_bytes: int) -> None:
    for number in range(4):
        writer.add([batch_of(1, 300 * number, 300)])
    partitions = planned(options(writer, split_bytes=split_bytes), Needs.PAYLOADS, writer.store)
    totals = {record.uuid: record.summary for record in writer.log.state.offloaded()}
    assert blocks_of(partitions) == {uuid: list(range(s.blocks)) for uuid, s in totals.items() if s is not None}
    sizes = []
    for slices in partitions:
        size = 0
        for piece in slices:
            index = SegmentMap.parse(writer.store.get(piece.objects.index_key)[0])
            size += sum(int(index.blocks.length[start:stop].sum()) for start, stop in piece.blocks)
        sizes.append(size)
    assert max(sizes) <= split_bytes + 2 * writer.block_bytes
    assert min(sizes) >= min(split_bytes, sum(sizes)) / 2 - writer.block_bytes


@pytest.mark.slow
def test_partitions_are_small_and_carry_no_manifest_and_no_credentials(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 20_000)])
    partitions = planned(options(writer, split_bytes=50_000), Needs.PAYLOADS, writer.store)
    assert len(partitions) > 10
    for each in partitions:
        pickled = pickle.dumps(each)
        assert len(pickled) < 1000
        assert b"manifest" not in pickled
        assert pickle.loads(pickled) == each


@pytest.mark.slow
def test_pickled_reader_is_small(writer: StreamWriter) -> None:
    from pyspark.sql.types import BinaryType, LongType, StructType

    for number in range(50):
        writer.add([batch_of(1, 10 * number, 10)])
    schema = StructType().add("entry_id", LongType()).add("payload", BinaryType())
    reader = OffloaderReader(options(writer), schema, Pinned(options(writer)))
    before = len(pickle.dumps(reader))
    reader.partitions()
    assert len(pickle.dumps(reader)) == before < 2000


class RangesOnly:
    """A store that refuses everything but ranged reads."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.url = inner.url
        self.driver_metadata = inner.driver_metadata
        self.bytes_read: dict[str, int] = {}

    def get(self, key: str, byte_range: ByteRange | None = None, **_: object) -> tuple[bytes, ObjectInfo]:
        assert byte_range is not None, f"all of {key} was asked for"
        assert "/manifest/" not in key
        assert not key.startswith("_catalog")
        self.bytes_read[key] = self.bytes_read.get(key, 0) + byte_range.length
        return self.inner.get(key, byte_range)


@pytest.mark.slow
def test_executors_only_read_ranges_of_the_objects_in_their_partition(writer: StreamWriter) -> None:
    for number in range(3):
        writer.add([batch_of(1, 300 * number, 300)])
    partitions = planned(options(writer, split_bytes=4000), Needs.PAYLOADS, writer.store)
    ids: list[int] = []
    for slices in partitions:
        store = RangesOnly(writer.store)
        for batch in rows(slices, writer, store):  # type: ignore[arg-type]
            ids += batch["entry_id"].to_pylist()
        own = {key for piece in slices for key in (piece.objects.data_key, piece.objects.index_key)}
        assert set(store.bytes_read) <= own
        data = sum(count for key, count in store.bytes_read.items() if not key.endswith("-index"))
        assert data <= 4000 + 2 * writer.block_bytes
    assert ids == list(range(900))


@pytest.mark.slow
def test_publish_times_read_a_fraction_of_the_bytes_and_positions_none(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 2000, size=300)])
    key = writer.keys(writer.uuids[0])[0]
    read = {}
    for needs, name in ((Needs.PAYLOADS, "payload"), (Needs.ENTRY_TABLES, "publish_time"), (Needs.INDEXES, "entry_id")):
        [slices] = planned(options(writer), needs, writer.store)
        store = RangesOnly(writer.store)
        types = {"payload": pa.binary(), "publish_time": pa.timestamp("us", tz="UTC"), "entry_id": pa.int64()}
        found = rows(slices, writer, store, pa.schema([(name, types[name])]), needs)  # type: ignore[arg-type]
        assert sum(batch.num_rows for batch in found) == 2000
        read[name] = store.bytes_read.get(key, 0)
    assert read["entry_id"] == 0
    assert 0 < read["publish_time"] < read["payload"] / 10


def test_times_outside_of_the_calendar_are_null(writer: StreamWriter) -> None:
    from pyspark.sql.types import StructType, TimestampType

    first_ms, last_ms = TABLE_TIME_MS_MIN, TABLE_TIME_MS_MAX
    times = [TIME_MS_MIN, first_ms - 1, first_ms, -5, TIME_UNKNOWN_MS, last_ms, last_ms + 1, TIME_MS_MAX]
    writer.add([batch_of(1, 0, len(times), times=times)])
    wanted = [None, None, first_ms, -5, None, last_ms, None, None]
    schema = pa.schema([("publish_time", pa.timestamp("us", tz="UTC")), ("payload", pa.binary())])
    for needs, columns in ((Needs.ENTRY_TABLES, schema.remove(1)), (Needs.PAYLOADS, schema)):
        [slices] = planned(options(writer), needs, writer.store)
        [batch] = rows(slices, writer, schema=columns, needs=needs)
        found = batch["publish_time"].cast(pa.int64()).to_pylist()
        assert found == [None if time is None else time * 1000 for time in wanted]
    segments = options(writer, content="segments")
    ends = StructType().add("publish_time_min", TimestampType()).add("publish_time_max", TimestampType())
    reader = OffloaderReader(segments, ends, Pinned(segments))
    [partition] = reader.partitions()
    [row] = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert row == {"publish_time_min": None, "publish_time_max": None}


def test_segments_content_has_failed_ones_when_asked_for(writer: StreamWriter) -> None:
    from pyspark.sql.types import StringType, StructType

    writer.add([batch_of(1, 0, 5)], closes=[1])
    uuid = uuid4()
    writer.log.commit([Assign(uuid, 2, Position(2, 0), None, BASE_MS, {})])
    writer.log.commit([Failed(uuid, "the store didn't answer")])
    columns = StructType().add("uuid", StringType()).add("status", StringType()).add("reason", StringType())
    found = []
    for more in ({}, {"failed_segments": True}):
        asked = options(writer, content="segments", **more)
        reader = OffloaderReader(asked, columns, Pinned(asked))
        [partition] = reader.partitions()
        found.append([tuple(row.values()) for batch in reader.read(partition) for row in batch.to_pylist()])
    offloaded = (str(writer.uuids[0]), "offloaded", None)
    assert found == [[offloaded], [offloaded, (str(uuid), "failed", "the store didn't answer")]]


def test_plan_excludes_entries_committed_later(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 50)])
    partitions = planned(options(writer), Needs.PAYLOADS, writer.store)
    writer.add([batch_of(1, 50, 50)])
    ids = [i for slices in partitions for batch in rows(slices, writer) for i in batch["entry_id"].to_pylist()]
    assert ids == list(range(50))


def test_each_manifest_is_loaded_once(writer: StreamWriter) -> None:
    for number in range(5):
        writer.add([batch_of(1, 50 * number, 50)])
    store = FaultyStore(writer.store)
    planned(options(writer), Needs.PAYLOADS, store)
    # The boundary is read before and after the records: only then a view counts.
    keys = [key for _, key in store.calls if not key.endswith("/boundary")]
    assert keys[0] == catalog_key(writer.stream)
    assert len(keys) == len(set(keys))
    assert [key for key in keys if key.endswith("-index")] == []  # nothing has to be cut or pruned


@pytest.mark.slow
def test_segments_are_cut_by_block_counts_when_there_are_too_many_indexes(
    writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        writer.add([batch_of(1, 300 * number, 300)])
    store = FaultyStore(writer.store)
    monkeypatch.setattr("offloader.spark.scan.INDEXES_READ_MAX", 2)
    assert INDEXES_READ_MAX > 2
    partitions = planned(options(writer, split_bytes=4000), Needs.PAYLOADS, store)
    assert [key for _, key in store.calls if key.endswith("-index")] == []
    totals = {record.uuid: record.summary for record in writer.log.state.offloaded()}
    assert blocks_of(partitions) == {uuid: list(range(s.blocks)) for uuid, s in totals.items() if s is not None}
    ids = [i for slices in partitions for batch in rows(slices, writer) for i in batch["entry_id"].to_pylist()]
    assert ids == list(range(900))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "block_bytes"),
    [([10] * 60_000, 1 << 20), ([10] * 3000, 300), ([1 << 20] * 20, 1 << 23), ([6 << 20, 1, 1, 7 << 20], 1 << 20)],
    ids=["many small in large blocks", "tiny blocks", "large in one block", "larger than a batch"],
)
def test_batches_are_of_a_size_that_suits_the_pipe_to_the_jvm(
    writer: StreamWriter, sizes: list[int], block_bytes: int
) -> None:
    writer.block_bytes = block_bytes
    writer.add([EntryBatch.build(1, 0, [bytes(size) for size in sizes])])
    [slices] = planned(options(writer, split_bytes=10**9), Needs.PAYLOADS, writer.store)
    batches = rows(slices, writer)
    assert [i for batch in batches for i in batch["entry_id"].to_pylist()] == list(range(len(sizes)))
    for batch in batches:
        assert batch.schema.equals(ENTRIES)
        assert batch.num_rows <= 2 * BATCH_ROWS_MAX
        assert batch["payload"].nbytes <= 2 * BATCH_BYTES_MAX or batch.num_rows == 1
    for batch in batches[:-1]:
        assert batch.num_rows >= 4000 or batch["payload"].nbytes >= 1 << 20


def test_slices_keep_expected_object_facts_when_pickled(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 10)])
    [slices] = planned(options(writer), Needs.PAYLOADS, writer.store)
    objects = pickle.loads(pickle.dumps(slices))[0].objects
    summary = writer.log.state.offloaded()[0].summary
    assert summary is not None
    assert (objects.data_bytes, objects.index_bytes, objects.index_crc32c, objects.blocks) == (
        summary.data_bytes,
        summary.index_bytes,
        summary.index_crc32c,
        summary.blocks,
    )


def test_tasks_of_one_process_fetch_an_index_once(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 900)])
    first, second = planned(options(writer, split_bytes=5000), Needs.PAYLOADS, writer.store)[:2]
    assert first[0].objects == second[0].objects
    store = FaultyStore(writer.store)
    for slices in (first, second):
        assert rows(slices, writer, store)
        assert [key for _, key in store.calls].count(first[0].objects.index_key) == 1


@pytest.mark.slow
def test_task_logs_fetched_and_used_bytes(writer: StreamWriter, caplog: pytest.LogCaptureFixture) -> None:
    writer.add([batch_of(1, 0, 2_000)])
    [partition] = planned(options(writer), Needs.PAYLOADS, writer.store)
    index_object = writer.store.get(partition[0].objects.index_key)[0]
    index = SegmentMap.parse(index_object)
    with caplog.at_level("INFO", logger="offloader.spark"):
        batches = rows(partition, writer)
    payloads = sum(batch.column("payload").nbytes for batch in batches)
    [said] = [record.getMessage() for record in caplog.records if record.name == "offloader.spark"]
    found = re.fullmatch(
        r"read 1 slices: 2000 rows with payload columns of (\d+) bytes out of (\d+) bytes in (\d+) GETs \(0 failed\);"
        r" (\d+) blocks read, 0 ruled out, 0 damaged or missing pieces skipped",
        said,
    )
    assert found is not None, said
    used, fetched, gets, blocks = map(int, found.groups())
    assert blocks == len(index.blocks)
    assert gets == 2  # the index, and all blocks at once
    assert fetched == index.data_bytes + len(index_object)
    assert 0 < used <= fetched
    assert used == pytest.approx(payloads, rel=0.05)  # columns that were put together have one offset less
