"""A lake for tests: a store with streams, a catalogue, a warehouse, and readers of the table that aren't ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import polars
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from formats.entries import TIME_UNKNOWN_MS, Entry
from offloader import iceberg
from offloader.iceberg import Exported
from offloader.store.open import open_store
from tests.support.streams import StreamWriter

COLUMNS = ["stream", "ledger_id", "entry_id", "publish_time", "payload"]
Row = tuple[str, int, int, int | None, bytes]


@dataclass(frozen=True)
class Lake:
    """Where everything is."""

    folder: Path

    @property
    def store_url(self) -> str:
        return f"file://{self.folder}/store"

    @property
    def catalog(self) -> str:
        return f"sqlite:///{self.folder}/catalog.db"

    @property
    def warehouse(self) -> str:
        return f"file://{self.folder}/warehouse"

    def writer(self, stream: str = "public/default/persistent/orders") -> StreamWriter:
        return StreamWriter(open_store(self.store_url), stream)

    def table(self) -> Table:
        return iceberg.open_table("lake.entries", catalog=self.catalog, warehouse=self.warehouse)

    def export(self, writer: StreamWriter, table: Table | None = None, **more: Any) -> Exported:
        return iceberg.export(writer.store, writer.stream, table or self.table(), **more)

    def foreign_table(self) -> Table:
        """The table as pyiceberg alone loads it, without code of ours."""
        return load_catalog("offloader", type="sql", uri=self.catalog).load_table("lake.entries")

    def data_files(self) -> list[Path]:
        """Every data file in the warehouse, whether or not a snapshot names it."""
        return sorted((self.folder / "warehouse").rglob("*.parquet"))


def rows_of(table: pa.Table) -> list[Row]:
    """In order; times in milliseconds."""
    table = table.select(COLUMNS)
    micros = table["publish_time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    times = [None if each is None else each // 1000 for each in micros]
    columns = [times if name == "publish_time" else table[name].to_pylist() for name in COLUMNS]
    return sorted(zip(*columns, strict=True), key=lambda row: row[:3])


def sent(*writers: StreamWriter) -> list[Row]:
    """The rows that a table must have."""

    def row(stream: str, entry: Entry) -> Row:
        time_ms = None if entry.publish_time_ms == TIME_UNKNOWN_MS else entry.publish_time_ms
        return (stream, entry.ledger_id, entry.entry_id, time_ms, entry.payload)

    return sorted((row(each.stream, entry) for each in writers for entry in each.entries), key=lambda row: row[:3])


def named_files(table: Table, snapshot_id: int | None = None) -> list[str]:
    """Paths of the data files that the snapshot's manifests name."""
    paths = table.inspect.files(snapshot_id)["file_path"].to_pylist()
    return [unquote(urlsplit(path).path) if "%25" in path else urlsplit(path).path for path in paths]


def rows_by_duckdb(table: Table) -> list[Row]:
    """By DuckDB's own reader of Parquet, from the files that the current snapshot names."""
    relation = duckdb.connect().read_parquet(named_files(table), hive_partitioning=False)
    return rows_of(pa.table(relation.to_arrow_table()))


def rows_by_polars(table: Table) -> list[Row]:
    """By Polars' own reader of Parquet, likewise."""
    return rows_of(polars.read_parquet(named_files(table), hive_partitioning=False).to_arrow())


def rows_by_pyiceberg(table: Table, snapshot_id: int | None = None) -> list[Row]:
    """By pyiceberg's scan, of any snapshot."""
    return rows_of(table.scan(snapshot_id=snapshot_id).to_arrow())
