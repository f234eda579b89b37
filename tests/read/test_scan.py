"""Scans as tables of Arrow, DuckDB, Polars and pandas: the same rows, snapshot and errors; columns and filters."""

from __future__ import annotations

import gc
import itertools
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from formats.entries import TIME_MS_MAX, TIME_MS_MIN, TIME_UNKNOWN_MS, Entry, EntryBatch, Position
from formats.keys import data_key
from offloader.errors import (
    BeyondEndError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    ObjectMissingError,
    OffloaderError,
    UnsupportedError,
)
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.library import Store
from offloader.manifest.protection import leases_of
from offloader.read import cold, scan
from offloader.read.partitions import open_reader
from offloader.read.scan import Scan
from offloader.settings import ReadSettings, Size
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import FaultyStore
from offloader.times import TABLE_TIME_MS_MAX, TABLE_TIME_MS_MIN
from tests.formats.pulsar_entries import Sent, entry_of, metadata_of, single_entry
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


def scan_of(store: ObjectStore, stream: str = STREAM, **options: Any) -> Scan:
    return Store(store).stream(stream).scan(**options)


def table_of(kind: str, store: ObjectStore, stream: str, **options: Any) -> pa.Table:
    found = scan_of(store, stream, **options)
    match kind:
        case "arrow":
            return found.to_table()
        case "duckdb":
            return pa.table(found.to_duckdb().to_arrow_table())
        case "polars":
            return found.to_polars().collect().to_arrow()
    return pa.Table.from_pandas(found.to_pandas(), preserve_index=False)


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
    assert rows(table_of(kind, store, STREAM, start=Position(1, 120), stop=Position(2, 251))) == sent(wanted)
    with open_reader(store, STREAM) as reader:
        begin, stop = BASE_MS + 200, datetime.fromtimestamp((BASE_MS + 900_000) / 1000, tz=UTC)
        between = [e for batch in reader.scan_published(begin, stop) for e in batch.entries()]
        first = reader.position_at(begin)
    assert first is not None
    assert rows(table_of(kind, store, STREAM, since=begin, until=stop)) == sent(between)
    mixed = [e for e in writer.entries if first <= e.position <= Position(2, 7)]
    assert rows(table_of(kind, store, STREAM, since=begin, stop=Position(2, 8))) == sent(mixed)
    assert rows(table_of(kind, store, STREAM, since="2100-01-01")) == []


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
    half = table_of(kind, store, TOPIC, until=BASE_MS + 100_000)
    assert half["entry_id"].to_pylist() == [each for each in range(100) for _ in range(3)]
    with pytest.raises(InvalidCallError, match="has 3 partitions, but a position belongs to a single partition"):
        table_of(kind, store, TOPIC, start=Position(0, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_stream_without_entries_is_a_table_without_rows(store: ObjectStore, kind: str) -> None:
    StreamWriter(store, STREAM)
    table = table_of(kind, store, STREAM)
    assert (table.num_rows, table.column_names) == (0, scan.SCHEMA.names)


# Snapshot


@pytest.mark.slow
def test_batches_come_from_the_manifest_of_the_call(store: ObjectStore, writer: StreamWriter) -> None:
    before = list(writer.entries)
    reader, relation = scan_of(store).to_reader(), scan_of(store).to_duckdb()
    writer.add([batch_of(5, 100, 50)])
    assert rows(reader.read_all()) == sent(before)
    assert relation.count("*").fetchall() == [(len(before),)]
    assert len(scan_of(store).to_pandas()) == len(before) + 50


@pytest.mark.slow
def test_relation_of_duckdb_answers_every_query_from_its_snapshot(store: ObjectStore, writer: StreamWriter) -> None:
    import duckdb

    relation = scan_of(store).to_duckdb(duckdb.connect())
    for _ in range(2):
        gc.collect()
        assert relation.count("*").fetchall() == [(len(writer.entries),)]
    sizes = relation.aggregate("ledger_id, sum(octet_length(payload))::bigint", "ledger_id").order("ledger_id")
    expected = {e.ledger_id: 0 for e in writer.entries}
    for each in writer.entries:
        expected[each.ledger_id] += len(each.payload)
    assert sizes.fetchall() == sorted(expected.items())


# Columns and filters


class Counted:
    """A stream of ten segments, each with one ledger of 50 entries, and its requests."""

    def __init__(self, store: ObjectStore, **options: Any) -> None:
        self.writer = StreamWriter(store, STREAM)
        for ledger in range(1, 11):
            self.writer.add([batch_of(ledger, 0, 50)], closes=[ledger])
        self._store = FaultyStore(store)
        self.scan = scan_of(self._store, **options)

    def objects_read(self, use: Callable[[], object]) -> tuple[object, int]:
        """The result of a use of the scan, and the number of data objects that it reads."""
        before = len(self._store.calls)
        result = use()
        keys = {key for verb, key in self._store.calls[before:] if verb == "get"}
        return result, sum(data_key(STREAM, uuid) in keys for uuid in self.writer.uuids)


HOUR = (
    datetime.fromtimestamp((BASE_MS + 7_000_000) / 1000, tz=UTC),
    datetime.fromtimestamp((BASE_MS + 8_000_000) / 1000, tz=UTC),
)


@pytest.mark.slow
def test_filters_and_columns_of_duckdb_bound_the_objects_that_are_read(store: ObjectStore) -> None:
    import duckdb

    counted = Counted(store)
    table = counted.scan.to_duckdb(duckdb.connect())
    uses: list[tuple[Any, object, int]] = [
        (table.aggregate("count(*)"), [(500,)], 0),
        (table.filter("ledger_id = 7 AND entry_id < 2").project("entry_id"), [(0,), (1,)], 0),
        (table.filter("ledger_id = 7").aggregate("sum(octet_length(payload)) > 0"), [(True,)], 1),
        (table.filter(f"publish_time >= '{HOUR[0]}' AND publish_time < '{HOUR[1]}'").aggregate("count(*)"), [(50,)], 1),
        (table.filter("stream = 'another'").aggregate("count(payload)"), [(0,)], 0),
        (table.filter("ledger_id IN (2, 9)").aggregate("count(payload)"), [(100,)], 2),
        (table.filter("octet_length(payload) = 0").aggregate("count(*)"), [(0,)], 10),
    ]
    for relation, wanted, objects in uses:
        assert counted.objects_read(relation.fetchall) == (wanted, objects), relation


def value_of(lazy: Any) -> object:
    return lazy.collect().item()


@pytest.mark.slow
def test_filters_and_columns_of_polars_bound_the_objects_that_are_read(store: ObjectStore) -> None:
    import polars as pl

    counted = Counted(store)
    frame, time = counted.scan.to_polars(), pl.col("publish_time")
    uses: list[tuple[Any, object, int]] = [
        (frame.select(pl.len()), 500, 0),
        (frame.filter(pl.col("ledger_id") == 3).select(pl.col("entry_id").sum()), 49 * 25, 0),
        (frame.filter((time >= HOUR[0]) & (time < HOUR[1])).select(pl.col("payload").len()), 50, 1),
    ]
    for lazy, wanted, objects in uses:
        assert counted.objects_read(partial(value_of, lazy)) == (wanted, objects)


def test_filter_of_the_scan_applies_to_columns_that_are_not_selected(store: ObjectStore) -> None:
    counted = Counted(store, columns=["ledger_id"], filter=pc.field("entry_id") == 49)
    assert counted.objects_read(lambda: counted.scan.to_table()["ledger_id"].to_pylist()) == ([*range(1, 11)], 0)
    by_number = scan_of(store, columns=["ledger_id"], filter=pc.field(2) == 49)
    assert by_number.to_table()["ledger_id"].to_pylist() == [*range(1, 11)]
    timed = scan_of(store, columns=["ledger_id"], filter=pc.field(3) >= HOUR[0])
    assert timed.to_table()["ledger_id"].unique().to_pylist() == [7, 8, 9, 10]
    with pytest.raises(InvalidCallError, match="the scan does not select payload"):
        counted.scan.to_table(columns=["payload"])
    both = counted.scan.filter(pc.field("publish_time") >= HOUR[0])
    assert both.to_table().num_rows == both.count() == 4


@pytest.mark.slow
def test_filtered_rows_are_those_of_the_whole_table(store: ObjectStore, writer: StreamWriter) -> None:
    """Random conditions, also on blocks without a known time and on ledgers that segments share."""
    writer.add([EntryBatch.build(6, 0, [b"unknown"] * 40), batch_of(7, 3, 60)], closes=[6])
    chance, whole = random.Random(5), scan_of(store).to_table()
    times = [BASE_MS + offset for offset in (-1, 0, 1, 200, 90_000, 180_000, 200_000_000)]
    columns = ["stream", "ledger_id", "entry_id", "publish_time", "payload"]
    for _ in range(10):
        condition: pc.Expression = pc.scalar(chance.random() < 0.8)
        for _ in range(chance.randint(1, 3)):
            moment = pa.scalar(chance.choice(times), pa.timestamp("ms", "UTC"))
            term: pc.Expression = chance.choice(
                [
                    pc.field("publish_time") >= moment,
                    pc.field("publish_time") < moment,
                    pc.field("publish_time").is_null(),
                    pc.field("ledger_id") == chance.randint(0, 8),
                    pc.field("ledger_id").isin([1, 6, 9]),
                    pc.field("entry_id") > chance.randint(0, 300),
                    ~(pc.field("entry_id") <= chance.randint(0, 300)),
                    pc.field("stream") == chance.choice([STREAM, "other"]),
                    pc.field("payload") == b"unknown",
                ]
            )
            condition = condition & term if chance.random() < 0.6 else condition | term
        chosen = chance.sample(columns, chance.randint(1, 5))
        found = scan_of(store, columns=chosen, filter=condition)
        assert found.to_table().equals(whole.filter(condition).select(chosen)), condition
        assert found.count() == whole.filter(condition).num_rows


def test_positions_come_from_the_index_where_entry_ids_are_missing(store: ObjectStore) -> None:
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(1, 0, 10), batch_of(1, 15, 10), batch_of(2, 4, 5)], closes=[1])
    wanted = [(1, each) for each in [*range(10), *range(15, 25)]] + [(2, each) for each in range(4, 9)]
    table = scan_of(store, columns=["ledger_id", "entry_id"]).to_table()
    assert list(zip(*table.to_pydict().values(), strict=True)) == wanted
    part = scan_of(store, columns=["entry_id"], start=Position(1, 8), stop=Position(2, 5))
    assert part.to_table()["entry_id"].to_pylist() == [8, 9, *range(15, 25), 4]


def test_many_parts_of_a_filter_are_read_without_their_indexes_first(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "NARROWED_PARTS_MAX", 2)
    counted = Counted(store, filter=pc.field("ledger_id").isin([1, 3, 5, 7]))
    assert counted.objects_read(lambda: counted.scan.to_table().num_rows) == (200, 4)


def test_limit_ends_the_rows(store: ObjectStore, writer: StreamWriter) -> None:
    found = scan_of(store, limit=7)
    assert rows(found.to_table()) == sent(writer.entries[:7])
    assert (found.count(), found.head(3).num_rows, scan_of(store, limit=0).to_table().num_rows) == (7, 3, 0)
    assert scan_of(store, limit=2, filter=pc.field("entry_id") == 5).to_table()["ledger_id"].to_pylist() == [1, 2]
    with pytest.raises(UnsupportedError, match="a scan with a limit accepts no further filter"):
        found.to_table(filter=pc.field("entry_id") == 5)


def test_segments_select_their_entries(store: ObjectStore, writer: StreamWriter) -> None:
    second = writer.uuids[1]
    wanted = [each for each in writer.entries if each.position >= Position(2, 200)]
    assert rows(scan_of(store, segments=[second]).to_table()) == sent(wanted)
    part = scan_of(store, segments=[second], start=Position(1, 0), stop=Position(2, 203), columns=["entry_id"])
    assert part.to_table()["entry_id"].to_pylist() == [200, 201, 202]
    with pytest.raises(NotFoundError, match="has no readable segment 00000000-"):
        scan_of(store, segments=[UUID(int=0)])


def test_stop_is_excluded_and_may_be_the_start_of_the_next_ledger(store: ObjectStore, writer: StreamWriter) -> None:
    begin, last = Position(1, 0), writer.entries[-1].position
    assert scan_of(store, start=begin, stop=Position(2, 0)).count() == 300
    assert scan_of(store, start=begin, stop=last.next()).count() == len(writer.entries)
    assert scan_of(store, start=begin, stop=Position(last.ledger_id + 1, 0)).count() == len(writer.entries)
    assert scan_of(store, stop=begin).to_table().num_rows == 0
    assert scan_of(store, start=last, stop=last).to_table().num_rows == 0
    found = Store(store).stream(STREAM).read(Position(1, 298), Position(2, 2))
    assert [each.position for each in found] == [(1, 298), (1, 299), (2, 0), (2, 1)]


def test_entries_are_the_readers_batches_without_columns_or_filters(store: ObjectStore, writer: StreamWriter) -> None:
    assert [each for batch in scan_of(store).entries() for each in batch.entries()] == writer.entries
    for options in ({"columns": ["payload"]}, {"limit": 1}, {"filter": pc.field("entry_id") == 1}):
        with pytest.raises(InvalidCallError, match="entries are read whole"):
            scan_of(store, **options).entries()


@pytest.mark.slow
def test_messages_are_decoded_and_chunks_are_joined(store: ObjectStore) -> None:
    cut = [
        entry_of(metadata_of(chunk=("uuid", number, 3, 12)), piece)
        for number, piece in enumerate((b"thre", b"e pi", b"eces"))
    ]
    payloads = [single_entry(Sent(value=b"one")), *cut, single_entry(Sent(value=b"two"))]
    StreamWriter(store, STREAM).add([EntryBatch.build(1, 0, payloads)])
    table = pa.Table.from_batches(scan_of(store).messages())
    assert table["value"].to_pylist() == [b"one", b"three pieces", b"two"]


def test_no_method_of_arrows_dataset_or_scanner_reaches_its_missing_object() -> None:
    for ours, theirs in ((Scan, ds.Dataset), (scan.EntryScanner, ds.Scanner)):
        own = set(vars(ours)) | {"from_batches", "from_dataset", "from_fragment"}
        assert {name for name in vars(theirs) if not name.startswith("__")} <= own


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
        found = scan_of(store, source=hot)
        hot.append([b"later"])
        assert found.to_table()["payload"].to_pylist() == [b"first", b"second"]
        assert found.to_table(columns=["entry_id"], filter=pc.field("payload") == b"second").to_pylist() == [
            {"entry_id": 1}
        ]
        assert (found.count(), scan_of(store, source=hot, columns=["entry_id"]).to_table().num_rows) == (2, 3)


@pytest.mark.slow
def test_lease_ends_with_the_table_that_it_protects(store: ObjectStore, writer: StreamWriter) -> None:
    reader = scan_of(store, lease_seconds=600).to_reader()
    assert len(leases_of(store, STREAM)) == 1
    reader.read_next_batch()
    del reader
    gc.collect()
    assert not leases_of(store, STREAM)
    unread = scan_of(store, lease_seconds=600).to_reader()
    del unread
    gc.collect()
    assert not leases_of(store, STREAM)


# Batches


@pytest.mark.slow
def test_one_batch_is_in_memory_at_a_time(store: ObjectStore) -> None:
    writer = StreamWriter(store, STREAM, block_bytes=256 * 1024)
    for ledger in range(1, 9):
        writer.add([batch_of(ledger, 0, 64, size=64 * 1024)], closes=[ledger])
    settings = ReadSettings(batch_size=Size(512 * 1024), request_size=Size(256 * 1024), requests_in_flight_max=1)
    pool, seen = pa.default_memory_pool(), 0
    before = pool.bytes_allocated()
    for batch in scan_of(store, settings=settings).to_batches():
        seen += batch.num_rows
        assert batch.nbytes <= scan.JOINED_BYTES_MAX
        assert pool.bytes_allocated() - before <= 4 * scan.JOINED_BYTES_MAX, "32 MiB in the stream"
    assert seen == 8 * 64


@pytest.mark.slow
def test_large_entries_are_in_memory_as_far_as_the_settings_say(tmp_path: Path) -> None:
    """What is fetched ahead, the batch that the caller has and the one that follows it."""
    size = 4 << 20
    writer = StreamWriter(open_store(f"file://{tmp_path}"), STREAM, block_bytes=size + 1024)
    for number in range(12):
        writer.add([EntryBatch.build(1, number, [bytes(size)], BASE_MS)])
    settings = ReadSettings(ahead_size_max=Size(2 * size), requests_in_flight_max=8)
    list(scan_of(writer.store, stop=Position(1, 1), settings=settings).to_batches())  # loads what it needs
    tracemalloc.start()
    try:
        reader = scan_of(writer.store, settings=settings).to_batches()
        assert sum(batch.num_rows for batch in reader) == 12
        assert tracemalloc.get_traced_memory()[1] < settings.ahead_size_max + 2 * size + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_small_batches_are_joined_and_large_ones_are_not_copied() -> None:
    small = [EntryBatch.build(1, number, [b"x"]).to_arrow() for number in range(1000)]
    large = EntryBatch.build(1, 1000, [b"y" * (2 * scan.JOINED_BYTES_MAX)]).to_arrow()
    found = list(scan._joined([*small, large, *small[:1]]))
    assert [batch.num_rows for batch in found] == [1000, 1, 1]
    assert found[1] is large
    many = EntryBatch.build(1, 0, [b""] * scan.JOINED_ROWS_MAX).to_arrow()
    assert [batch.num_rows for batch in scan._joined([many, small[0]])] == [scan.JOINED_ROWS_MAX, 1]


# Errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "kind_of_error", "text"),
    [
        ({"columns": ["value"]}, InvalidCallError, "entries have no column value"),
        ({"columns": ["payload", "payload"]}, InvalidCallError, "duplicate column in: payload, payload"),
        ({"start": Position(1, 0), "since": "-1h"}, InvalidCallError, "begin: both a position and a time are given"),
        ({"stop": Position(1, 0), "until": 5}, InvalidCallError, "end: both a position and a time are given"),
        ({"stop": Position(99, 1)}, BeyondEndError, "position 99:0 is beyond the last readable entry 5:99"),
        ({"since": "yesterday"}, InvalidCallError, "'yesterday' is not a time"),
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
    with pytest.raises(NotFoundError) as caught:
        scan_of(store, STREAM + "s")
    assert STREAM in caught.value.hint


@pytest.mark.parametrize("kind", ["arrow", "polars", "pandas"])
def test_missing_object_is_the_error_of_the_reader(store: ObjectStore, writer: StreamWriter, kind: str) -> None:
    store.delete([data_key(STREAM, writer.uuids[0])])
    with pytest.raises((ObjectMissingError, CorruptError), match=str(writer.uuids[0])):
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
from offloader.read.scan import Scan
try:
    Scan.to_{package}(None)
except offloader.errors.UnsupportedError as error:
    print(error.message, "|", error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout == f"{package} isn't installed | pip install {package}\n"
