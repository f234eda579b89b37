"""A stream's reader: exactly the requested entries, in order, from one pinned manifest version."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formats.entries import TIME_UNKNOWN_MS, Entry, EntryBatch, Position
from formats.manifest import Gap, LedgerClosed, StreamDeleted, Truncate
from formats.segment import Codec
from formats.summary import Layout
from offloader.errors import BeyondEndError, ClosedError, InvalidCallError, NotFoundError, TrimmedError
from offloader.read.partitions import open_reader
from offloader.read.reader import Reader, open_stream_reader
from offloader.settings import ReadSettings, Size
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import FaultyStore
from tests.support.streams import BASE_MS, StreamWriter, batch_of, random_batch
from tests.support.waiting import PATIENCE_S

names = itertools.count()
NO_FIXTURE_CHECK = [HealthCheck.function_scoped_fixture]


def new_store() -> ObjectStore:
    return open_store(f"memory://reader-{next(names)}")


def mixed(store: ObjectStore) -> StreamWriter:
    """A stream of every kind of segment: V1, V2, plain, extended, compressed, spanning ledgers and cut by them."""
    writer, chance = StreamWriter(store), random.Random(1)
    writer.add([random_batch(chance, 3, 0, 127, 60)])
    writer.add([random_batch(chance, 3, 127, 73, 60), random_batch(chance, 4, 0, 40, 900)], closes=[3, 4])
    writer.add([random_batch(chance, 7, 0, 30, 60), random_batch(chance, 9, 0, 31, 60)], closes=[7], extension=False)
    writer.add([random_batch(chance, 9, 31, 1, 5000), batch_of(9, 32, 60)], codec=Codec.ZSTD, closes=[9])
    writer.add([random_batch(chance, 10, 0, 100, 60)], layout=Layout.V1, closes=[10])
    writer.add([random_batch(chance, 12, 0, 100, 60)], layout=Layout.V1, extension=False, closes=[12])
    return writer


@pytest.fixture(scope="module")
def stream() -> StreamWriter:
    return mixed(new_store())


@pytest.fixture
def reader(stream: StreamWriter) -> Reader:
    return open_stream_reader(stream.store, stream.stream)


def entries_of(batches: object) -> list[Entry]:
    return [entry for batch in batches for entry in batch.entries()]  # type: ignore[attr-defined]


def test_scan_returns_every_entry_of_every_layout_in_order(stream: StreamWriter, reader: Reader) -> None:
    assert entries_of(reader.scan()) == stream.entries


def test_the_public_name_is_the_same_function(stream: StreamWriter) -> None:
    assert entries_of(open_reader(stream.store, stream.stream).scan()) == stream.entries


def test_the_ends_are_the_first_and_the_last_entry(stream: StreamWriter, reader: Reader) -> None:
    assert (reader.first_position, reader.last_position) == (Position(3, 0), Position(12, 99))
    assert [record.uuid for record in reader.segments()] == stream.uuids


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=NO_FIXTURE_CHECK)
@given(st.data())
def test_a_read_of_any_range_gives_exactly_its_entries(
    stream: StreamWriter, reader: Reader, data: st.DataObject
) -> None:
    low, high = sorted([data.draw(st.integers(0, len(stream.entries) - 1)) for _ in range(2)])
    first, last = stream.entries[low].position, stream.entries[high].position
    found = reader.read(first, last)
    assert list(found) == stream.entries[low : high + 1]
    assert entries_of(reader.scan(first, last)) == stream.entries[low : high + 1]
    assert reader.count(first, last) == high - low + 1


@pytest.mark.parametrize("entry", [0, 126, 127, 128, 129, 199])
def test_single_entry_is_read_alone_even_at_segment_ends(stream: StreamWriter, reader: Reader, entry: int) -> None:
    """Pulsar's reader returns 0..8 when 8 is requested."""
    assert list(reader.read(Position(3, entry), Position(3, entry))) == [stream.entries[entry]]


def test_positions_between_ledgers_are_no_error_and_add_nothing(stream: StreamWriter, reader: Reader) -> None:
    first, last = Position(4, 35), Position(8, 500)
    assert list(reader.read(first, last)) == stream.between(first, last)
    assert len(reader.read(Position(5, 0), Position(6, 10))) == 0


def test_read_result_converts_to_one_arrow_table(stream: StreamWriter, reader: Reader) -> None:
    found = reader.read(Position(3, 190), Position(4, 5))
    table = found.to_arrow()
    assert table.schema.names == ["ledger_id", "entry_id", "publish_time", "payload"]
    assert table.schema.field("publish_time").type == pa.timestamp("ms", tz="UTC")
    expected = stream.between(Position(3, 190), Position(4, 5))
    assert table["payload"].to_pylist() == [entry.payload for entry in expected]
    assert table["ledger_id"].to_pylist() == [entry.ledger_id for entry in expected]
    assert table["publish_time"].cast(pa.int64()).to_pylist() == [
        None if entry.publish_time_ms == TIME_UNKNOWN_MS else entry.publish_time_ms for entry in expected
    ]
    assert (found.first, found.last, found.payload_bytes) == (
        Position(3, 190),
        Position(4, 5),
        sum(len(entry.payload) for entry in expected),
    )


def test_an_empty_answer_is_an_empty_table_of_the_same_columns(reader: Reader) -> None:
    empty = reader.read(Position(5, 0), Position(6, 0))
    assert (len(empty), empty.first, empty.to_arrow().num_rows) == (0, None, 0)
    assert empty.to_arrow().schema == reader.read(Position(3, 0), Position(3, 0)).to_arrow().schema


@pytest.mark.slow
@pytest.mark.parametrize("batch_bytes", [1, 100, 5000, 10**9])
def test_scan_batches_respect_their_size_except_for_large_entries(
    stream: StreamWriter, reader: Reader, batch_bytes: int
) -> None:
    batches = list(reader.scan(batch_bytes=batch_bytes))
    assert entries_of(batches) == stream.entries
    assert all(len(batch) > 0 for batch in batches)
    assert all(batch.payload_bytes <= batch_bytes or len(batch) == 1 for batch in batches)


@pytest.mark.slow
@pytest.mark.parametrize("request_bytes", [4096, 10**6])
@pytest.mark.parametrize("in_flight", [1, 3])
def test_read_result_does_not_depend_on_how_it_is_fetched(
    stream: StreamWriter, request_bytes: int, in_flight: int
) -> None:
    chosen = ReadSettings(request_size=Size(request_bytes), requests_in_flight_max=in_flight, cache_size_max=Size(0))
    reader = open_stream_reader(stream.store, stream.stream, settings=chosen)
    assert entries_of(reader.scan()) == stream.entries
    assert list(reader.read(Position(3, 100), Position(9, 3))) == stream.between(Position(3, 100), Position(9, 3))


def test_a_range_that_ends_before_it_begins_is_refused(reader: Reader) -> None:
    with pytest.raises(InvalidCallError, match=r"4:1\.\.4:0 ends before it begins"):
        reader.read(Position(4, 1), Position(4, 0))


def test_a_position_before_the_stream_begins_names_where_it_does(reader: Reader) -> None:
    with pytest.raises(TrimmedError, match="position 2:0 is before the first entry 3:0") as caught:
        reader.read(Position(2, 0), Position(3, 5))
    assert caught.value.first_available == Position(3, 0)
    with pytest.raises(TrimmedError):
        reader.scan(start=Position(2, 0))


def test_a_position_after_the_end_names_the_last_one(reader: Reader) -> None:
    with pytest.raises(BeyondEndError, match="12:100 is beyond the last readable entry 12:99") as caught:
        reader.read(Position(12, 0), Position(12, 100))
    assert caught.value.last_available == Position(12, 99)
    with pytest.raises(BeyondEndError):
        reader.scan(start=Position(99, 0))
    with pytest.raises(BeyondEndError):
        reader.count(last=Position(99, 0))


def test_an_empty_stream_scans_to_nothing_and_has_no_positions() -> None:
    writer = StreamWriter(new_store())
    reader = open_stream_reader(writer.store, writer.stream)
    assert (reader.first_position, reader.last_position, reader.segments()) == (None, None, [])
    assert list(reader.scan()) == []
    assert reader.count() == 0
    assert reader.position_at(0) is None
    with pytest.raises(BeyondEndError, match="no readable entries"):
        reader.read(Position(0, 0), Position(0, 0))
    with pytest.raises(BeyondEndError, match="no readable entries"):
        reader.scan(start=Position(0, 0))


def test_an_unknown_stream_is_not_found_and_similar_names_are_suggested(stream: StreamWriter) -> None:
    with pytest.raises(NotFoundError, match="isn't in memory://") as caught:
        open_stream_reader(stream.store, "public/default/persistent/order")
    assert caught.value.hint == "did you mean public/default/persistent/orders?"
    with pytest.raises(NotFoundError) as caught:
        open_stream_reader(stream.store, "something/else")
    assert "offloader ls" in caught.value.hint


@pytest.mark.parametrize("name", ["_catalog/x", "a//b", "a/manifest"])
def test_invalid_stream_name_is_refused(stream: StreamWriter, name: str) -> None:
    with pytest.raises(InvalidCallError, match=r"stream name .* can't be used"):
        open_stream_reader(stream.store, name)


def test_a_deleted_stream_is_not_found() -> None:
    writer = StreamWriter(new_store())
    writer.add([batch_of(1, 0, 5)])
    writer.log.commit([StreamDeleted()])
    with pytest.raises(NotFoundError, match="was deleted"):
        open_stream_reader(writer.store, writer.stream)


def test_reader_is_pinned_to_its_manifest_version_until_refreshed() -> None:
    writer = StreamWriter(new_store())
    writer.add([batch_of(1, 0, 5)])
    reader = open_stream_reader(writer.store, writer.stream)
    writer.add([batch_of(1, 5, 5)])
    assert (reader.last_position, reader.count()) == (Position(1, 4), 5)
    fresh = reader.refresh()
    assert (fresh.last_position, fresh.count()) == (Position(1, 9), 10)
    assert entries_of(reader.scan()) == writer.entries[:5]


def test_given_view_is_pinned() -> None:
    writer = StreamWriter(new_store())
    writer.add([batch_of(1, 0, 5)])
    state = writer.log.state
    writer.add([batch_of(1, 5, 5)])
    assert open_stream_reader(writer.store, writer.stream, state=state).last_position == Position(1, 4)


def test_entries_before_the_head_are_trimmed_also_inside_a_segment() -> None:
    writer = StreamWriter(new_store())
    writer.add([batch_of(1, 0, 50)])
    writer.add([batch_of(1, 50, 50)])
    writer.log.commit([Truncate(Position(1, 60))])
    reader = open_stream_reader(writer.store, writer.stream)
    assert reader.first_position == Position(1, 60)
    assert entries_of(reader.scan()) == writer.entries[60:]
    assert reader.count() == 40
    assert reader.position_at(0) == Position(1, 60)
    with pytest.raises(TrimmedError, match="1:59 was deleted: the stream begins at 1:60") as caught:
        reader.read(Position(1, 59), Position(1, 70))
    assert caught.value.first_available == Position(1, 60)


def test_head_after_the_last_entry_leaves_nothing() -> None:
    writer = StreamWriter(new_store())
    writer.add([batch_of(1, 0, 5)])
    writer.log.commit([LedgerClosed(1, 4), Truncate(Position(2, 0))])
    reader = open_stream_reader(writer.store, writer.stream)
    assert list(reader.scan()) == []
    assert reader.segments() == []


def test_scans_continue_over_recorded_gaps() -> None:
    writer = StreamWriter(new_store())
    writer.add([batch_of(1, 0, 5)])
    writer.log.commit([Gap(Position(1, 5), Position(1, 7), "expired")])
    writer.add([batch_of(1, 8, 5)])
    reader = open_stream_reader(writer.store, writer.stream)
    assert entries_of(reader.scan()) == writer.entries
    assert [entry.entry_id for entry in reader.read(Position(1, 4), Position(1, 8))] == [4, 8]
    assert len(reader.read(Position(1, 5), Position(1, 7))) == 0
    assert reader.count() == 10


def test_a_closed_reader_refuses_and_its_store_stays_open(stream: StreamWriter) -> None:
    with open_stream_reader(stream.store, stream.stream) as reader:
        assert reader.count() == len(stream.entries)
    for call in (reader.scan, reader.count, reader.refresh, lambda: reader.position_at(0)):
        with pytest.raises(ClosedError, match="is closed"):
            call()
    assert open_stream_reader(stream.store, stream.stream).count() == len(stream.entries)


# By time


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True])
def test_position_at_is_the_earliest_position_published_then_or_later(plain: bool) -> None:
    writer, chance = StreamWriter(new_store(), block_bytes=400), random.Random(4)
    for first in range(0, 300, 60):
        writer.add([random_batch(chance, 1, first, 60, 40)], extension=not (plain and first == 120))
    reader = open_stream_reader(writer.store, writer.stream)
    for time_ms in [0, BASE_MS, BASE_MS + 1_000_001, *(BASE_MS + chance.randint(0, 10**6) for _ in range(150))]:
        later = [entry.position for entry in writer.entries if entry.publish_time_ms >= time_ms]
        assert reader.position_at(time_ms) == (later[0] if later else None)


def test_position_at_never_means_an_entry_without_a_time() -> None:
    writer = StreamWriter(new_store())
    writer.add([batch_of(1, 0, 5, times=TIME_UNKNOWN_MS)])
    writer.add([EntryBatch.build(1, 5, [b"a", b"b"], [TIME_UNKNOWN_MS, 5])])
    reader = open_stream_reader(writer.store, writer.stream)
    assert reader.position_at(-100) == reader.position_at(5) == Position(1, 6)
    assert reader.position_at(6) is None


def test_position_at_fetches_one_index_and_one_block() -> None:
    writer = StreamWriter(new_store(), block_bytes=500)
    for ledger in range(1, 6):
        writer.add([batch_of(ledger, 0, 100)], closes=[ledger])
    store = FaultyStore(writer.store)
    reader = open_stream_reader(store, writer.stream)
    before = len(store.calls)
    assert reader.position_at(BASE_MS + 1000 * (1000 * 3 + 50)) == Position(3, 50)
    assert [verb for verb, _ in store.calls[before:]] == ["get", "get"]


# What is asked of the store


def calls_of(store: FaultyStore, call: Callable[[], object]) -> list[str]:
    before = len(store.calls)
    call()
    return [key for verb, key in store.calls[before:] if verb == "get"]


def test_single_read_costs_two_gets_cold_one_with_index_and_none_cached() -> None:
    writer = StreamWriter(new_store())
    uuid = writer.add([batch_of(1, 0, 200)])
    data, index = writer.keys(uuid)
    store = FaultyStore(writer.store)
    reader = open_stream_reader(store, writer.stream)
    assert calls_of(store, lambda: reader.read(Position(1, 5), Position(1, 5))) == [index, data]
    assert calls_of(store, lambda: reader.read(Position(1, 150), Position(1, 150))) == [data]
    assert calls_of(store, lambda: reader.read(Position(1, 6), Position(1, 6))) == []


def test_adjacent_uncached_blocks_are_one_get() -> None:
    writer = StreamWriter(new_store())
    uuid = writer.add([batch_of(1, 0, 400)])
    data, _ = writer.keys(uuid)
    store = FaultyStore(writer.store)
    reader = open_stream_reader(store, writer.stream)
    reader.read(Position(1, 200), Position(1, 200))
    assert calls_of(store, lambda: reader.read(Position(1, 150), Position(1, 250))) == [data, data]  # around the cached
    assert calls_of(store, lambda: reader.read(Position(1, 150), Position(1, 250))) == []


def test_a_scan_neither_fills_nor_empties_the_cache() -> None:
    writer = StreamWriter(new_store())
    uuid = writer.add([batch_of(1, 0, 400)])
    data, _ = writer.keys(uuid)
    store = FaultyStore(writer.store)
    reader = open_stream_reader(store, writer.stream)
    reader.read(Position(1, 0), Position(1, 0))
    assert calls_of(store, lambda: list(reader.scan())) == [data]
    assert calls_of(store, lambda: reader.read(Position(1, 0), Position(1, 0))) == []
    assert calls_of(store, lambda: reader.read(Position(1, 399), Position(1, 399))) == [data]


def test_counting_fetches_only_indexes_of_partly_covered_segments() -> None:
    writer = StreamWriter(new_store())
    uuids = [writer.add([batch_of(1, 100 * n, 100)]) for n in range(3)]
    store = FaultyStore(writer.store)
    reader = open_stream_reader(store, writer.stream)
    assert calls_of(store, lambda: reader.count()) == []
    cut = calls_of(store, lambda: reader.count(Position(1, 50), Position(1, 250)))
    assert cut == [writer.keys(uuids[0])[1], writer.keys(uuids[2])[1]]


@pytest.mark.slow
def test_readers_in_many_threads_do_not_disturb_each_other(stream: StreamWriter, reader: Reader) -> None:
    wrong: list[object] = []

    def read(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            low, high = sorted(chance.sample(range(len(stream.entries)), 2))
            first, last = stream.entries[low].position, stream.entries[high].position
            found = list(reader.read(first, last)) if chance.random() < 0.5 else entries_of(reader.scan(first, last))
            if found != stream.entries[low : high + 1]:
                wrong.append((first, last))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert wrong == []


# Where segments were written


def test_a_segment_written_to_another_place_is_refused_naming_both() -> None:
    writer = StreamWriter(new_store())
    writer.add([batch_of(1, 0, 5)])
    elsewhere = {"managedLedgerOffloadDriver": "aws-s3", "bucket": "other", "region": "", "serviceEndpoint": ""}
    writer.add([batch_of(1, 5, 5)], driver=elsewhere)
    reader = open_stream_reader(writer.store, writer.stream)
    assert [entry.entry_id for entry in reader.read(Position(1, 0), Position(1, 4))] == [0, 1, 2, 3, 4]
    with pytest.raises(
        InvalidCallError, match=r"was written to managedLedgerOffloadDriver=aws-s3, bucket=other.*this store is"
    ):
        list(reader.scan())


def test_another_region_is_no_other_place() -> None:
    writer = StreamWriter(new_store())
    writer.add([batch_of(1, 0, 5)], driver={**writer.store.driver_metadata, "region": "somewhere-else-1"})
    assert open_stream_reader(writer.store, writer.stream).count() == 5
