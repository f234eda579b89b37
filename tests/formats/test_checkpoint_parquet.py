"""Runs of segments as Parquet: recorded ranges are used and checked."""

from __future__ import annotations

import json
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.checkpoint import LedgerColumns, decode_ledgers, encode_ledgers
from formats.checkpoint_parquet import (
    NUMBER_COLUMNS,
    ROW_GROUP_ROWS,
    SegmentColumns,
    decode_columns,
    encode_columns,
)
from formats.errors import InconsistentError, LimitExceededError
from offloader.manifest.apply import apply_edits
from offloader.manifest.segment_table import columns_of
from offloader.manifest.state import ManifestState
from tests.support.hostile_parquet import hostile_segments
from tests.support.manifests import segment_edits


def segment_columns() -> SegmentColumns:
    """Of 40 segments; their entry ids need more than a byte."""
    edits = [edit for number in range(40) for edit in segment_edits(number)]
    state = apply_edits(ManifestState(stream="orders", incarnation=UUID(int=7)), edits, record_id=1)
    return columns_of(state.segments.values())


def test_parquet_without_recorded_ranges_is_inconsistent() -> None:
    table = pq.read_table(pa.BufferReader(encode_columns(segment_columns(), {b"other": b"kept"})))
    kept = {name: value for name, value in table.schema.metadata.items() if name != b"offloader.ranges"}
    assert len(kept) == len(table.schema.metadata) - 1
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(kept), sink)
    with pytest.raises(InconsistentError, match=r"offloader\.ranges"):
        decode_columns(sink.getvalue().to_pybytes())


def test_more_rows_than_the_bytes_can_hold_are_refused() -> None:
    with pytest.raises(LimitExceededError, match="rows"):
        decode_columns(hostile_segments(40_000))


def test_rows_of_several_groups_round_trip() -> None:
    """The columns of a load's steps, whose boundaries differ from those of the file's row groups."""
    rows = np.arange(2 * ROW_GROUP_ROWS + 5) % 40
    columns = segment_columns().take(rows)
    again = decode_columns(encode_columns(columns, {}))
    for name in (*NUMBER_COLUMNS, "uuid_high", "uuid_low", "span_rows", "span_offsets", "spans"):
        assert np.array_equal(getattr(again, name), getattr(columns, name)), name


@pytest.mark.parametrize("ranges", [b"{}", b"[]", b"nonsense", b'{"status": [1, 2]}'])
def test_ranges_that_fit_no_columns_are_inconsistent(ranges: bytes) -> None:
    body = encode_columns(segment_columns(), {b"offloader.ranges": ranges})
    with pytest.raises(InconsistentError, match="not a table of segments"):
        decode_columns(body)


def test_a_number_outside_of_the_range_that_the_file_names_is_damage() -> None:
    columns = segment_columns()
    ranges = {name: [int(getattr(columns, name).min()), int(getattr(columns, name).max())] for name in NUMBER_COLUMNS}
    ranges["entries"] = [0, 3]
    ranges["begin_entry_id"][1] -= 1
    body = encode_columns(columns, {b"offloader.ranges": json.dumps(ranges).encode()})
    with pytest.raises(InconsistentError, match="outside of"):
        decode_columns(body)


@pytest.mark.parametrize("kind", ["segments", "ledgers"])
def test_column_of_another_type_is_named_with_both_types(kind: str) -> None:
    name = "entries" if kind == "segments" else "last_entry_id"
    zeros = np.zeros(1, np.int64)
    columns = LedgerColumns(
        ledger_id=zeros, last_entry_id=zeros, flags=np.zeros(1, np.uint8), payload_bytes=zeros, created_ms=zeros
    )
    body = encode_columns(segment_columns(), {}) if kind == "segments" else encode_ledgers(columns)
    table = pq.read_table(pa.BufferReader(body))
    place = table.schema.get_field_index(name)
    field = table.schema.field(name).with_type(pa.int32())
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(place, field, table.column(name).cast(pa.int32())), sink)
    decode = decode_columns if kind == "segments" else decode_ledgers
    with pytest.raises(InconsistentError) as raised:
        decode(sink.getvalue().to_pybytes())
    expected, found = str(raised.value).split(", found ")
    assert f"{name}: int64 not null" in expected
    assert f"{name}: int32 not null" in found


@pytest.mark.parametrize("kind", [TypeError, RecursionError, pa.ArrowInvalid])
def test_every_error_of_arrow_means_an_unreadable_file(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_: object) -> None:
        raise kind("damaged")

    body = encode_columns(segment_columns(), {})
    monkeypatch.setattr(pq, "ParquetFile", damaged)
    raised: Exception | None = None
    try:
        decode_columns(body)
    except Exception as caught:
        raised = caught
    assert isinstance(raised, InconsistentError)
