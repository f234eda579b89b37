"""Entries as Arrow batches, and as tables of DuckDB, Polars and pandas: the same rows, snapshot and errors."""

from __future__ import annotations

import gc
import itertools
import random
import subprocess
import sys
import tracemalloc
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import offloader
from formats.entries import TIME_MS_MAX, TIME_MS_MIN, TIME_UNKNOWN_MS, Entry, EntryBatch, Position
from formats.keys import data_key
from offloader.errors import BeyondEnd, Corrupt, InvalidCall, NotFound, ObjectMissing, OffloaderError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.protection import leases_of
from offloader.read import arrow
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import FaultyStore
from offloader.times import TABLE_TIME_MS_MAX, TABLE_TIME_MS_MIN
from tests.support.streams import BASE_MS, StreamWriter, batch_of, random_batch
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "persistent://shop/eu/orders"
STREAM = "shop/eu/persistent/orders"
numbers = itertools.count()


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://arrow-{next(numbers)}")


@pytest.fixture
def writer(store: ObjectStore) -> StreamWriter:
    chance = random.Random(11)
    writer = StreamWriter(store, STREAM)
    writer.add([random_batch(chance, 1, 0, 300, 200), random_batch(chance, 2, 0, 200, 50)], closes=[1])
    writer.add([random_batch(chance, 2, 200, 100, 3000), random_batch(chance, 5, 0, 100, 10)], closes=[2])
    return writer


def sent(entries: list[Entry], stream: str = STREAM) -> list[tuple[Any, ...]]:
    """Rows that a table must have."""
    return [
        (
            stream,
            e.ledger_id,
            e.entry_id,
            None if e.publish_time_ms == TIME_UNKNOWN_MS else e.publish_time_ms,
            e.payload,
        )
        for e in entries
    ]


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    times = table["publish_time"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    named = {name: table[name].to_pylist() for name in table.column_names} | {"publish_time": times}
    return list(zip(*named.values(), strict=True))


def table_of(kind: str, store: ObjectStore, stream: str, **options: Any) -> pa.Table:
    match kind:
        case "arrow":
            return offloader.read_arrow(store, stream, **options).read_all()
        case "duckdb":
            found = offloader.to_duckdb(store, stream, **options).to_arrow_table()
            return pa.table(found)
        case "polars":
            return offloader.to_polars(store, stream, **options).to_arrow()
    return pa.Table.from_pandas(offloader.to_pandas(store, stream, **options), preserve_index=False)


KINDS = ("arrow", "duckdb", "polars", "pandas")


# Rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_has_the_entries_that_were_sent(
    store: ObjectStore, writer: StreamWriter, kind: str
) -> None:
    table = table_of(kind, store, STREAM)
    assert table.column_names == ["stream", "ledger_id", "entry_id", "publish_time", "payload"]
    assert rows(table) == sent(writer.entries)
    assert rows(table_of(kind, store, TOPIC)) == sent(writer.entries)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_are_positions_or_publish_times_as_of_the_reader(
    store: ObjectStore, writer: StreamWriter, kind: str
) -> None:
    wanted = [e for e in writer.entries if Position(1, 120) <= e.position <= Position(2, 250)]
    assert rows(table_of(kind, store, STREAM, start=Position(1, 120), end=Position(2, 250))) == sent(wanted)
    with offloader.open_reader(store, STREAM) as reader:
        begin, stop = BASE_MS + 200, datetime.fromtimestamp((BASE_MS + 900_000) / 1000, tz=UTC)
        between = [e for batch in reader.scan_published(begin, stop) for e in batch.entries()]
        first = reader.position_at(begin)
    assert first is not None
    assert rows(table_of(kind, store, STREAM, from_time=begin, to_time=stop)) == sent(between)
    mixed = [e for e in writer.entries if first <= e.position <= Position(2, 7)]
    assert rows(table_of(kind, store, STREAM, from_time=begin, end=Position(2, 7))) == sent(mixed)
    assert rows(table_of(kind, store, STREAM, from_time="2100-01-01")) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_chosen_in_the_wanted_order(store: ObjectStore, writer: StreamWriter, kind: str) -> None:
    table = table_of(kind, store, STREAM, columns=["entry_id", "ledger_id"])
    assert table.column_names == ["entry_id", "ledger_id"]
    assert table.to_pydict() == {
        "entry_id": [e.entry_id for e in writer.entries],
        "ledger_id": [e.ledger_id for e in writer.entries],
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_topic_with_partitions_is_one_table_in_the_order_of_publish_times(store: ObjectStore, kind: str) -> None:
    names = [f"{STREAM}-partition-{number}" for number in range(3)]
    for number, name in enumerate(names):
        times = [BASE_MS + 1000 * each + number for each in range(200)]
        StreamWriter(store, name).add([batch_of(number, 0, 200, times=times)])
    table = table_of(kind, store, TOPIC)
    times = table["publish_time"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    assert times == [BASE_MS + 1000 * each + number for each in range(200) for number in range(3)]
    assert table["stream"].to_pylist() == names * 200
    half = table_of(kind, store, TOPIC, to_time=BASE_MS + 100_000)
    assert half["entry_id"].to_pylist() == [each for each in range(100) for _ in range(3)]
    with pytest.raises(InvalidCall, match="has 3 partitions, but a position belongs to a single partition"):
        table_of(kind, store, TOPIC, start=Position(0, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_stream_without_entries_is_a_table_without_rows(store: ObjectStore, kind: str) -> None:
    StreamWriter(store, STREAM)
    table = table_of(kind, store, STREAM)
    assert (table.num_rows, table.column_names) == (0, arrow.SCHEMA.names)


# Snapshot


@pytest.mark.slow
def test_batches_come_from_the_manifest_of_the_call(store: ObjectStore, writer: StreamWriter) -> None:
    before = list(writer.entries)
    reader, relation = offloader.read_arrow(store, STREAM), offloader.to_duckdb(store, STREAM)
    writer.add([batch_of(5, 100, 50)])
    assert rows(reader.read_all()) == sent(before)
    assert relation.count("*").fetchall() == [(len(before),)]
    assert len(offloader.to_pandas(store, STREAM)) == len(before) + 50


@pytest.mark.slow
def test_relation_of_duckdb_answers_every_query_from_its_snapshot(store: ObjectStore, writer: StreamWriter) -> None:
    import duckdb

    relation = offloader.to_duckdb(store, STREAM, connection=duckdb.connect())
    for _ in range(2):
        gc.collect()
        assert relation.count("*").fetchall() == [(len(writer.entries),)]
    sizes = relation.aggregate("ledger_id, sum(octet_length(payload))::bigint", "ledger_id").order("ledger_id")
    expected = {e.ledger_id: 0 for e in writer.entries}
    for each in writer.entries:
        expected[each.ledger_id] += len(each.payload)
    assert sizes.fetchall() == sorted(expected.items())


@pytest.mark.slow
def test_arguments_bound_what_is_read_and_filters_of_duckdb_do_not(store: ObjectStore) -> None:
    import duckdb

    writer = StreamWriter(store, STREAM)
    for ledger in range(1, 11):
        writer.add([batch_of(ledger, 0, 50)], closes=[ledger])
    counted = FaultyStore(store)
    hour: dict[str, Any] = {"from_time": BASE_MS + 7_000_000, "to_time": BASE_MS + 8_000_000}

    def objects_read(relation: Any) -> int:
        """Data objects that one query reads."""
        before = len(counted.calls)
        relation.fetchall()
        keys = {key for verb, key in counted.calls[before:] if verb == "get"}
        return sum(any(data_key(STREAM, uuid) == key for key in keys) for uuid in writer.uuids)

    whole = offloader.to_duckdb(counted, STREAM, connection=duckdb.connect())
    assert objects_read(whole.filter("ledger_id = 7")) == 10
    assert objects_read(whole.aggregate("count(*)")) == 10
    bound = offloader.to_duckdb(counted, STREAM, connection=duckdb.connect(), **hour)
    assert bound.aggregate("count(*)").fetchall() == [(50,)]
    assert objects_read(bound.filter("entry_id < 5")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_publish_time_outside_of_the_calendar_is_null(store: ObjectStore, kind: str) -> None:
    writer, in_microseconds = StreamWriter(store, STREAM), BASE_MS * 1_000
    times_ms = [BASE_MS, in_microseconds, -in_microseconds, TIME_MS_MIN, TIME_MS_MAX]
    times_ms += [TABLE_TIME_MS_MIN - 1, TABLE_TIME_MS_MAX + 1]
    writer.add([EntryBatch.build(1, 0, [b"abcdefg"[each : each + 1] for each in range(7)], times_ms)])
    try:
        found = rows(table_of(kind, store, STREAM))
    except Exception as error:  # of the engine
        pytest.fail(str(error))
    assert found == [(STREAM, 1, number, None if number else BASE_MS, b"abcdefg"[number:][:1]) for number in range(7)]


def test_entries_of_the_hot_tier_are_read_up_to_the_end_at_the_call(tmp_path: Path, store: ObjectStore) -> None:
    StreamWriter(store, STREAM)
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as ledgers:
        hot = ledgers.open_stream(STREAM)
        hot.append([b"first", b"second"])
        reader = offloader.read_arrow(store, STREAM, source=hot, columns=["payload"])
        hot.append([b"later"])
        assert reader.read_all()["payload"].to_pylist() == [b"first", b"second"]


@pytest.mark.slow
def test_lease_ends_with_the_table_that_it_protects(store: ObjectStore, writer: StreamWriter) -> None:
    reader = offloader.read_arrow(store, STREAM, lease_seconds=600)
    assert len(leases_of(store, STREAM)) == 1
    reader.read_next_batch()
    del reader
    gc.collect()
    assert not leases_of(store, STREAM)
    unread = offloader.read_arrow(store, STREAM, lease_seconds=600)
    del unread
    gc.collect()
    assert not leases_of(store, STREAM)


@pytest.mark.parametrize("read", [offloader.read_arrow, offloader.to_duckdb])
def test_unknown_options_are_refused(store: ObjectStore, writer: StreamWriter, read: Any) -> None:
    with pytest.raises(TypeError, match="of_nobody"):
        read(store, STREAM, of_nobody=1)


# Batches


@pytest.mark.slow
def test_one_batch_is_in_memory_at_a_time(store: ObjectStore) -> None:
    writer = StreamWriter(store, STREAM, block_bytes=256 * 1024)
    for ledger in range(1, 9):
        writer.add([batch_of(ledger, 0, 64, size=64 * 1024)], closes=[ledger])
    settings = ReadSettings(batch_bytes=512 * 1024, request_bytes=256 * 1024, requests_in_flight_max=1)
    pool, seen = pa.default_memory_pool(), 0
    before = pool.bytes_allocated()
    for batch in offloader.read_arrow(store, STREAM, settings=settings):
        seen += batch.num_rows
        assert batch.nbytes <= arrow.JOINED_BYTES_MAX
        assert pool.bytes_allocated() - before <= 4 * arrow.JOINED_BYTES_MAX, "32 MiB in the stream"
    assert seen == 8 * 64


@pytest.mark.slow
def test_large_entries_are_in_memory_as_far_as_the_settings_say(tmp_path: Path) -> None:
    """What is fetched ahead, the batch that the caller has and the one that follows it."""
    size = 4 << 20
    writer = StreamWriter(open_store(f"file://{tmp_path}"), STREAM, block_bytes=size + 1024)
    for number in range(12):
        writer.add([EntryBatch.build(1, number, [bytes(size)], BASE_MS)])
    settings = ReadSettings(ahead_bytes_max=2 * size, requests_in_flight_max=8)
    list(offloader.read_arrow(writer.store, STREAM, end=Position(1, 0), settings=settings))  # loads what it needs
    tracemalloc.start()
    try:
        reader = offloader.read_arrow(writer.store, STREAM, settings=settings)
        assert sum(batch.num_rows for batch in reader) == 12
        assert tracemalloc.get_traced_memory()[1] < settings.ahead_bytes_max + 2 * size + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_small_batches_are_joined_and_large_ones_are_not_copied() -> None:
    small = [EntryBatch.build(1, number, [b"x"]).to_arrow() for number in range(1000)]
    large = EntryBatch.build(1, 1000, [b"y" * (2 * arrow.JOINED_BYTES_MAX)]).to_arrow()
    found = list(arrow._joined([*small, large, *small[:1]]))
    assert [batch.num_rows for batch in found] == [1000, 1, 1]
    assert found[1] is large
    many = EntryBatch.build(1, 0, [b""] * arrow.JOINED_ROWS_MAX).to_arrow()
    assert [batch.num_rows for batch in arrow._joined([many, small[0]])] == [arrow.JOINED_ROWS_MAX, 1]


# Errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "kind_of_error", "text"),
    [
        ({"columns": ["value"]}, InvalidCall, "entries have no column value"),
        ({"columns": ["payload", "payload"]}, InvalidCall, "duplicate column in: payload, payload"),
        ({"start": Position(1, 0), "from_time": "-1h"}, InvalidCall, "begin: both a position and a time are given"),
        ({"end": Position(1, 0), "to_time": 5}, InvalidCall, "end: both a position and a time are given"),
        ({"end": Position(99, 0)}, BeyondEnd, "position 99:0 is beyond the last readable entry 5:99"),
        ({"from_time": "yesterday"}, InvalidCall, "'yesterday' is not a time"),
    ],
)
def test_wrong_arguments_fail_at_the_call(
    store: ObjectStore,
    writer: StreamWriter,
    kind: str,
    options: dict[str, Any],
    kind_of_error: type[OffloaderError],
    text: str,
) -> None:
    with pytest.raises(kind_of_error, match=text):
        table_of(kind, store, STREAM, **options)


def test_unknown_stream_is_named_with_similar_ones(store: ObjectStore, writer: StreamWriter) -> None:
    with pytest.raises(NotFound) as caught:
        offloader.to_polars(store, STREAM + "s")
    assert STREAM in caught.value.hint


@pytest.mark.parametrize("kind", ["arrow", "polars", "pandas"])
def test_missing_object_is_the_error_of_the_reader(store: ObjectStore, writer: StreamWriter, kind: str) -> None:
    store.delete([data_key(STREAM, writer.uuids[0])])
    with pytest.raises((ObjectMissing, Corrupt), match=str(writer.uuids[0])):
        table_of(kind, store, STREAM)


@pytest.mark.slow
def test_error_of_duckdb_has_the_text_of_the_reader(store: ObjectStore, writer: StreamWriter) -> None:
    import duckdb

    store.delete([data_key(STREAM, writer.uuids[0])])
    with pytest.raises(duckdb.Error, match=str(writer.uuids[0])):
        table_of("duckdb", store, STREAM)


@pytest.mark.process
@pytest.mark.parametrize("package", ["duckdb", "polars", "pandas"])
def test_missing_package_is_named_with_what_to_install(package: str) -> None:
    code = f"""
import sys
import tracemalloc
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Missing())
import offloader
try:
    offloader.to_{package}(offloader.open_store("memory://x"), "t/s")
except offloader.errors.Unsupported as error:
    print(error.message, "|", error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout == f"{package} isn't installed | pip install {package}\n"
