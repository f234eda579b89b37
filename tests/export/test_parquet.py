"""Parquet files of a stream: rows, limits of files, names, and existing files that are kept."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import offloader
from formats.entries import EntryBatch, Position
from offloader.errors import InvalidCallError, OutcomeUnknownError
from offloader.export import parquet
from offloader.export.parquet import ParquetOptions, export_parquet
from offloader.runtime.clock import SystemClock
from offloader.store.base import OVERWRITE, Body, ObjectInfo, PutMode
from offloader.store.memory import MemoryStore
from tests.formats.pulsar_entries import Sent, batch_entry, single_entry
from tests.support.streams import StreamWriter, batch_of

numbers = itertools.count()
ORDERS = "shop/eu/persistent/orders"


@pytest.fixture
def store() -> Iterator[offloader.Store]:
    opened = offloader.open_store(f"memory://export-parquet-{next(numbers)}")
    yield opened
    opened.close()


def table_of(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(each) for each in sorted(folder.rglob("*.parquet"))])


def positions_of(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["ledger_id"].to_pylist(), table["entry_id"].to_pylist(), strict=True))


@pytest.mark.slow
def test_files_have_the_rows_of_the_scan_and_the_names_of_their_ends(store: offloader.Store, tmp_path: Path) -> None:
    writer = StreamWriter(store.objects, ORDERS)
    writer.add([batch_of(1, 0, 10), batch_of(2, 0, 10)], closes=[1])
    orders = store.stream(ORDERS)
    [done] = orders.export.parquet(f"file://{tmp_path}")
    assert (done.stream, done.entries, done.rows) == (ORDERS, 20, 20)
    [path] = tmp_path.rglob("*.parquet")
    assert path.relative_to(tmp_path).as_posix() == done.files[0].key
    assert path.name == f"{1:019d}_{0:019d}-{2:019d}_{9:019d}.parquet"
    assert pq.read_table(path).equals(orders.scan().to_table())


@pytest.mark.slow
def test_range_and_columns_are_chosen(store: offloader.Store, tmp_path: Path) -> None:
    StreamWriter(store.objects, "orders").add([batch_of(1, 0, 10)])
    export = store.stream("orders").export
    [done] = export.parquet(
        f"file://{tmp_path}", start=Position(1, 2), stop=Position(1, 5), columns=["payload", "entry_id"]
    )
    table = table_of(tmp_path)
    assert (table.column_names, table["entry_id"].to_pylist()) == (["payload", "entry_id"], [2, 3, 4])
    assert (done.files[0].first, done.files[0].last) == (Position(1, 2), Position(1, 4))
    with pytest.raises(InvalidCallError, match="entries have no column value"):
        export.parquet(f"file://{tmp_path}", columns=["value"])
    with pytest.raises(InvalidCallError, match="doesn't fit a file"):
        export.parquet(f"file://{tmp_path}", file_size=10, row_group_size=11)


@pytest.mark.slow
def test_files_and_row_groups_are_no_larger_than_their_limits(store: offloader.Store, tmp_path: Path) -> None:
    payloads = [random.Random(number).randbytes(10_000) for number in range(100)]
    StreamWriter(store.objects, "orders").add([EntryBatch.build(1, 0, payloads)])
    limits: dict[str, Any] = {"file_size": 300_000, "row_group_size": 50_000}
    [done] = store.stream("orders").export.parquet(f"file://{tmp_path}", **limits)
    assert [each.last.entry_id + 1 for each in done.files[:-1]] == [each.first.entry_id for each in done.files[1:]]
    assert len(done.files) > 1
    assert all(each.size_bytes <= 300_000 for each in done.files)
    for path in tmp_path.rglob("*.parquet"):
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        assert all(rows <= 5 for rows in groups)
    assert table_of(tmp_path)["payload"].to_pylist() == payloads


@pytest.mark.slow
def test_range_that_overlaps_a_file_is_refused_and_the_next_one_is_not(store: offloader.Store, tmp_path: Path) -> None:
    writer = StreamWriter(store.objects, "orders")
    writer.add([batch_of(1, 0, 10)])
    export = store.stream("orders").export
    export.parquet(f"file://{tmp_path}")
    before = {each: each.read_bytes() for each in tmp_path.rglob("*.parquet")}
    for dry_run in (True, False):
        with pytest.raises(InvalidCallError, match="already has entries 1:0 to 1:9"):
            export.parquet(f"file://{tmp_path}", dry_run=dry_run)
    writer.add([batch_of(1, 10, 5)])
    export.parquet(f"file://{tmp_path}", start=Position(1, 10))
    assert positions_of(table_of(tmp_path)) == [(1, number) for number in range(15)]
    assert all(each.read_bytes() == body for each, body in before.items())


def test_dry_run_creates_nothing(store: offloader.Store, tmp_path: Path) -> None:
    StreamWriter(store.objects, "orders").add([batch_of(1, 0, 10)])
    [done] = store.stream("orders").export.parquet(f"file://{tmp_path}/new", dry_run=True)
    assert (done.entries, done.files) == (10, ())
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_each_partition_has_a_folder_and_takes_no_positions(store: offloader.Store, tmp_path: Path) -> None:
    for number in range(2):
        StreamWriter(store.objects, f"{ORDERS}-partition-{number}").add([batch_of(number, 0, 4)])
    export = store.stream(ORDERS).export
    done = export.parquet(f"file://{tmp_path}")
    assert [each.stream for each in done] == [f"{ORDERS}-partition-{number}" for number in range(2)]
    assert [table_of(tmp_path / each.stream).num_rows for each in done] == [4, 4]
    with pytest.raises(InvalidCallError, match="a position belongs to one partition"):
        export.parquet(f"file://{tmp_path}", start=Position(0, 0))


@pytest.mark.slow
def test_messages_of_an_entry_are_in_one_file(store: offloader.Store, tmp_path: Path) -> None:
    batch = batch_entry([Sent(value=bytes([number]) * 1000, key=f"k{number}") for number in range(5)])
    entries = [batch, single_entry(Sent(value=b"alone", key="k")), batch]
    StreamWriter(store.objects, "orders").add([EntryBatch.build(1, 0, entries)])
    [done] = store.stream("orders").export.parquet(
        f"file://{tmp_path}",
        content="messages",
        file_size=1000,
        row_group_size=1000,
        columns=["stream", "key", "value"],
    )
    assert (done.entries, done.rows) == (3, 11)
    assert [(each.first.entry_id, each.last.entry_id) for each in done.files] == [(0, 0), (1, 1), (2, 2)]
    table = table_of(tmp_path)
    assert table.column_names == ["stream", "key", "value"]
    assert table["key"].to_pylist() == [*(f"k{n}" for n in range(5)), "k", *(f"k{n}" for n in range(5))]
    StreamWriter(store.objects, "bytes").add([batch_of(1, 0, 2)])
    with pytest.raises(InvalidCallError, match="isn't a message of Pulsar's"):
        store.stream("bytes").export.parquet(f"file://{tmp_path}", content="messages")


class Losing(MemoryStore):
    """Loses the response of a put, after it was done or instead."""

    def __init__(self, *, done: bool) -> None:
        super().__init__(f"losing-{next(numbers)}", "", SystemClock())
        self._done = done

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: object = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        if self._done:
            super().put(key, body, mode=mode)
        raise OutcomeUnknownError("the response was lost")


@pytest.mark.parametrize("is_done", [True, False])
def test_create_with_a_lost_response_is_settled_by_reading_the_file(store: offloader.Store, is_done: bool) -> None:
    StreamWriter(store.objects, "orders").add([batch_of(1, 0, 10)])
    run = export_parquet(store.objects, "orders", Losing(done=is_done), ParquetOptions())
    if is_done:
        assert next(run).rows == 10
    else:
        with pytest.raises(OutcomeUnknownError):
            next(run)


def test_file_that_another_export_created_meanwhile_is_kept(store: offloader.Store) -> None:
    StreamWriter(store.objects, "orders").add([batch_of(1, 0, 10)])
    target = MemoryStore(f"target-{next(numbers)}", "", SystemClock())

    def overtaken(done: parquet.ParquetExport) -> None:
        if not done.files:
            target.put(f"orders/{1:019d}_{0:019d}-{1:019d}_{9:019d}.parquet", b"another")

    with pytest.raises(InvalidCallError, match="exists with other content"):
        next(export_parquet(store.objects, "orders", target, ParquetOptions(), on_progress=overtaken))
    assert [target.get(each.key)[0] for each in target.list("").objects] == [b"another"]
