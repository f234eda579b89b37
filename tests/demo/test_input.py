"""Input files of the demo: the result for each format, and the error for each kind of broken line."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from offloader.demo.input import (
    EVENTS_PER_BATCH,
    LINE_BYTES_MAX,
    EventDigest,
    EventFile,
    Events,
    Source,
    open_input,
    survey,
    table_to_json,
    time_ms_of,
)
from offloader.errors import ErrorKind, InvalidCallError, NotFoundError, OffloaderError

pytestmark = pytest.mark.slow


def payloads(source: Source) -> list[bytes]:
    return [payload for events in source.events() for payload in events.payloads.to_pylist()]


def times(source: Source) -> list[int]:
    return [time for events in source.events() for time in events.times_ms.tolist()]


def refused(path: Path, **options: Any) -> str:
    """The message of a refusal, checked for its form."""
    with pytest.raises(OffloaderError) as caught:
        survey(open_input(str(path), **options))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    return str(caught.value)


# -- the flights


def test_options_of_files_need_a_file() -> None:
    with pytest.raises(InvalidCallError, match="require --input"):
        open_input("", time_field="t")


# -- good files


def test_lines_are_events_byte_for_byte_without_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"one\n\ntwo\r\n\xff\x00 not text\nlast")
    assert payloads(EventFile(str(path), file_format="lines")) == [b"one", b"", b"two", b"\xff\x00 not text", b"last"]


def test_ndjson_lines_are_kept_byte_for_byte_as_events(tmp_path: Path) -> None:
    path = tmp_path / "e.ndjson"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n {"b":"\xc3\xa4"} \r\n[1, 2]\n"x"')
    assert payloads(EventFile(str(path))) == [b'{"a": 1}', '{"b":"ä"}'.encode(), b"[1, 2]", b'"x"']


def test_csv_rows_become_json_with_numbers_kept_and_empty_fields_omitted(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text('id,name,"the ""x""",note\n1,ann,1.50,\n007,"a, ""b""\nc",-3e5,ä\n\n,,,NaN\n', encoding="utf-8-sig")
    assert [json.loads(p) for p in payloads(EventFile(str(path)))] == [
        {"id": 1, "name": "ann", 'the "x"': 1.5},
        {"id": "007", "name": 'a, "b"\nc', 'the "x"': -3e5, "note": "ä"},
        {"note": "NaN"},
    ]
    assert payloads(EventFile(str(path)))[0] == b'{"id":1,"name":"ann","the \\"x\\"":1.50}'


def test_parquet_rows_become_json_of_their_types(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    table = pa.table(
        {
            "i": pa.array([1, None, 2**62], pa.int64()),
            "f": pa.array([0.5, float("nan"), None]),
            "s": ['q"\\', "ä\n", None],
            "b": [True, None, False],
            "t": pa.array([0, 1, None], pa.timestamp("ms", "UTC")),
            "d": pa.array([Decimal("1.10"), None, None]),
            "l": [[1, 2], None, []],
            "c": pa.array(["x", "y", "x"]).dictionary_encode(),
            "raw": [b"\x00\xff", None, b""],
        }
    )
    pyarrow.parquet.write_table(table, path)
    assert [json.loads(p) for p in payloads(EventFile(str(path)))] == [
        {"i": 1, "f": 0.5, "s": 'q"\\', "b": True, "t": "1970-01-01T00:00:00+00:00", "d": "1.10", "l": [1, 2],
         "c": "x", "raw": "00ff"},
        {"s": "ä\n", "t": "1970-01-01T00:00:00.001000+00:00", "c": "y"},
        {"i": 2**62, "b": False, "l": [], "c": "x", "raw": ""},
    ]  # fmt: skip


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "n": st.integers(-(2**63), 2**63 - 1),
                "x": st.floats(allow_infinity=False, allow_nan=False),
                "s": st.text(),
                'odd "name"\n': st.booleans(),
            },
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_table_is_the_json_that_python_would_write(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ('odd "name"\n', pa.bool_())])
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    assert [json.loads(p) for p in table_to_json(batch).to_pylist()] == rows


def test_a_table_without_columns_is_empty_objects() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert table_to_json(batch).to_pylist() == [b"{}", b"{}"]


def test_file_is_read_in_batches_and_repeatedly(tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_bytes(b"".join(b"%d\n" % n for n in range(EVENTS_PER_BATCH * 2 + 5)))
    source = EventFile(str(path))
    assert [len(events.payloads) for events in source.events()] == [EVENTS_PER_BATCH, EVENTS_PER_BATCH, 5]
    assert payloads(source) == payloads(source)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.json", b'{"t":"1970-01-01T00:00:01Z"}\n{"t":2}\n{"t":2500000000000}\n{"t":"1970-01-01T02:00:03+02:00"}'),
        ("e.csv", b"t\n1970-01-01T00:00:01\n2\n2500000000000\n1970-01-01T02:00:03+02:00\n"),
    ],
)
def test_the_time_field_gives_publish_times(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    source = open_input(str(path), time_field="t")
    assert source.has_times
    assert times(source) == [1000, 2000, 2_500_000_000_000, 3000]


def test_parquet_times_are_taken_from_timestamps_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    pyarrow.parquet.write_table(pa.table({"t": pa.array([moment], pa.timestamp("ns", "UTC")), "n": [7]}), path)
    assert times(open_input(str(path), time_field="t")) == [1_577_836_800_000]
    assert times(open_input(str(path), time_field="n")) == [7000]


def test_without_a_time_field_events_have_no_time(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"a\n")
    assert times(EventFile(str(path))) == [-1]
    assert not survey(EventFile(str(path))).has_times


@pytest.mark.parametrize("value", [True, None, "yesterday", -1, "1969-12-31", float("nan"), [1], 1e300])
def test_invalid_time_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, OverflowError)):
        time_ms_of(value)


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("e.ndjson", b'{"a":1}\n{"a":2}\n', [b'{"a":1}', b'{"a":2}']),
        ("e.json", b'[{"a":1},{"a":2}]', [b'{"a":1}', b'{"a":2}']),
        ("e.csv", b"a\n1\n2\n", [b'{"a":1}', b'{"a":2}']),
        ("e.log", b"one\ntwo", [b"one", b"two"]),
    ],
)
def test_compressed_files_are_read_as_what_is_in_them(
    tmp_path: Path, suffix: str, name: str, content: bytes, expected: list[bytes]
) -> None:
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(COMPRESSORS[suffix](content))
    source = EventFile(str(path))
    assert payloads(source) == expected
    assert payloads(source) == expected, "it can be read again"


def test_several_compressed_parts_in_one_file_are_all_read(tmp_path: Path) -> None:
    for suffix, compress in ((".gz", gzip.compress), (".zst", zstandard.compress)):
        path = tmp_path / f"e.txt{suffix}"
        path.write_bytes(compress(b"one\n") + compress(b"two\n"))
        assert payloads(EventFile(str(path))) == [b"one", b"two"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_file_that_breaks_off_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"e.ndjson{suffix}"
    generator = random.Random(1)
    content = COMPRESSORS[suffix](b"".join(b'{"n":%d}\n' % generator.getrandbits(60) for _ in range(5_000)))
    path.write_bytes(content[: len(content) // 2])
    assert "can't be decompressed" in refused(path) or "not JSON" in refused(path)
    path.write_bytes(content[:-40] + bytes(40))
    assert "can't be decompressed" in refused(path)
    lines = tmp_path / f"e.txt{suffix}"
    for end in (len(content) // 2, len(content) - 1):
        lines.write_bytes(content[:end])
        assert "is damaged and can't be decompressed" in refused(lines)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[]", None),
        (b' [1, "x",\t{"a": [1, 2]} ]\n', [b"1", b'"x"', b'{"a": [1, 2]}']),
        (b'\xef\xbb\xbf[{"a":\n  1},\n null]', [b'{"a":1}', b"null"]),
        (b"[12345678, 9]", [b"12345678", b"9"]),
    ],
)
def test_elements_of_a_json_array_are_events(tmp_path: Path, content: bytes, expected: list[bytes] | None) -> None:
    path = tmp_path / "e.json"
    path.write_bytes(content)
    if expected is None:
        assert "has no events" in refused(path)
    else:
        assert payloads(EventFile(str(path))) == expected


def test_json_array_is_read_in_pieces(tmp_path: Path) -> None:
    """Elements on both sides of a piece's end, one of them larger than a piece."""
    path = tmp_path / "e.json"
    values: list[Any] = [{"n": n, "text": "ä" * (n % 500)} for n in range(2_000)]
    values[1_000] = {"large": "x" * 300_000}
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
    assert [json.loads(each) for each in payloads(EventFile(str(path)))] == values


def test_json_file_with_a_value_per_line_is_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    assert payloads(EventFile(str(path))) == [b'{"a": 1}', b'{"a": 2}']


def test_times_of_an_arrays_elements_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_bytes(b'[{"t": 5}, {"u": 6}]')
    assert "element 2: no field 't'" in refused(path, time_field="t")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("e.dat", b"\x89PNG\r\n\x1a\n", "is binary, a PNG picture"),
        ("e.xlsx", b"PK\x03\x04rest", "is binary, a ZIP archive"),
        ("e.ndjson.bz2", b"BZh9rest", "is binary, compressed with bzip2"),
        ("e.avro", b"Obj\x01rest", "is binary, an Avro file"),
        ("e.csv", b"PAR1rest", "is binary, a Parquet file"),
        ("e.bin", b"text\x00more", "is binary, not text: byte 5 is zero"),
        ("e.ndjson", b'{"a":1}\n\x00', "is binary, not text: byte 9 is zero"),
        ("e.log.gz", gzip.compress(b"a\x00b", mtime=0), "is binary, not text: byte 2 is zero"),
    ],
)
def test_binary_file_is_refused_with_the_reason(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert why in refused(path)
    with pytest.raises(InvalidCallError) as caught:
        survey(open_input(str(path)))
    assert "ndjson, json, csv, parquet, lines, plain, .gz or .zst" in caught.value.hint


# -- broken files: named with the line, nothing else happens


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("e.ndjson", b'{"a":1}\n{"a":\n', "line 2: not JSON: Expecting value"),
        ("e.ndjson", b'{"a":1}\n\n\n{"a":1} x\n', "line 4: not JSON: Extra data"),
        ("e.ndjson", b'{"a":NaN}\n', "line 1: not JSON: NaN"),
        ("e.ndjson", b'{"a":1}\n{"a":"\xff"}\n', "line 2: not UTF-8"),
        ("e.ndjson", b"[" * 200_000, "line 1: not JSON"),
        ("e.jsonl", b"{}\n'x'\n", "line 2: not JSON"),
        ("e.csv", b"a,b\n1,2\n3\n", "line 3: 1 fields, the first line has 2"),
        ("e.csv", b'a,b\n"1\n2",x\n3,4,5\n', "line 4: 3 fields, the first line has 2"),
        ("e.csv", b'a,b\n1,"2\n3,4\n', "not CSV: unexpected end of data"),
        ("e.csv", b'a,b\n1,"2"x\n', "line 2: not CSV"),
        ("e.csv", b"a,\n1,2\n", "line 1: field names must be unique"),
        ("e.csv", b"a,a\n1,2\n", "line 1: field names must be unique"),
        ("e.csv", b"a\n1\n\xff\n", "line 3: not UTF-8"),
        ("e.parquet", b"PAR1 no, it isn't PAR1", "is not readable Parquet after row 0"),
        ("e.json", b"[1, 2", "element 2: not a JSON array: the file ends after it, instead of a comma or ]"),
        ("e.json", b"[1 2]", "element 1: not a JSON array: '2' follows it"),
        ("e.json", b"[1, ]", "element 2: not JSON: Expecting value"),
        ("e.json", b"[1, NaN]", "element 2: NaN isn't a JSON number"),
        ("e.json", b"[1] x", "element 1: there is text after the end of the array"),
        ("e.json", b'[1, "\xff"]', "not UTF-8"),
        ("e.json", b"[" * 200_000, "element 1: not JSON"),
        ("e.ndjson", b"", "has no events"),
        ("e.csv", b"a,b\n", "has no events"),
        ("e.txt", b"", "has no events"),
        ("e.txt", b"x\n" + b"y" * (LINE_BYTES_MAX + 1), f"line 2: longer than {LINE_BYTES_MAX} bytes"),
    ],
)
def test_a_broken_file_is_refused_with_the_line(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert problem in refused(path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("e.ndjson", b'{"t":1}\n{"u":1}\n', "line 2: no field 't'"),
        ("e.ndjson", b'{"t":1}\n[1]\n', "line 2: no field 't'"),
        ("e.ndjson", b'{"t":"soon"}\n', "line 1: field 't' isn't a time"),
        ("e.csv", b"t,u\n1,2\n,2\n", "line 3: no field 't'"),
        ("e.csv", b"u\n1\n", "line 1: no field 't'; the fields are u"),
        ("e.txt", b"x\n", "is read as lines"),
        ("e.json", b'[{"t":1},{"u":1}]', "element 2: no field 't'"),
    ],
)
def test_a_missing_or_odd_time_is_refused_with_the_line(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = refused(path, time_field="t")
    assert problem in found
    assert found.count(str(path)) == 1


def test_a_parquet_row_without_time_is_named(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pyarrow.parquet.write_table(pa.table({"t": [1, None]}), path)
    assert refused(path, time_field="t").startswith(f"{path} row 2: no field 't'")
    assert refused(path, time_field="u").startswith(f"{path} has no column 'u'")


def test_parquet_value_without_a_json_form_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pyarrow.parquet.write_table(pa.table({"x": [1.0, float("inf")]}), path)
    assert "row 1, column x" in refused(path)


def test_a_damaged_parquet_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pyarrow.parquet.write_table(pa.table({"x": list(range(1000))}), path)
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)
    path.write_bytes(content)
    assert "is not readable Parquet" in refused(path)


def test_missing_files_directories_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="doesn't exist"):
        open_input(str(tmp_path / "nothing.csv"))
    with pytest.raises(InvalidCallError, match="not a regular file"):
        open_input(str(tmp_path))
    with pytest.raises(InvalidCallError, match="'xml' is unknown"):
        open_input(str(tmp_path), file_format="xml")


def test_the_format_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_bytes(b"a,b\n1,2\n")
    assert payloads(open_input(str(path), file_format="lines")) == [b"a,b", b"1,2"]


def test_refusals_are_the_callers_to_fix(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_bytes(b"{")
    with pytest.raises(InvalidCallError) as caught:
        survey(open_input(str(path)))
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
    assert "nothing was imported" in caught.value.hint


# -- the digest


def digest_of(events: list[bytes], event_times: list[int], *, with_times: bool, cut: int = 0) -> str:
    digest = EventDigest(with_times=with_times)
    for part in (slice(0, cut), slice(cut, None)):
        digest.add(Events(pa.array(events[part], pa.binary()), np.array(event_times[part], dtype=np.int64)))
    assert (digest.events, digest.payload_bytes) == (len(events), sum(map(len, events)))
    return digest.hexdigest()


@hypothesis_settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.data())
def test_the_digest_depends_on_the_events_and_not_on_the_batches(events: list[bytes], data: st.DataObject) -> None:
    event_times = list(range(len(events)))
    cut = data.draw(st.integers(0, len(events)))
    whole = digest_of(events, event_times, with_times=True)
    assert digest_of(events, event_times, with_times=True, cut=cut) == whole
    other = [*events]
    place = data.draw(st.integers(0, len(events) - 1))
    other[place] += b"x"
    assert digest_of(other, event_times, with_times=True) != whole
    assert digest_of(events, [t + 1 for t in event_times], with_times=True) != whole


def test_digest_depends_on_event_boundaries() -> None:
    assert digest_of([b"ab", b"c"], [0, 0], with_times=False) != digest_of([b"a", b"bc"], [0, 0], with_times=False)


def test_the_digest_can_leave_times_out() -> None:
    assert digest_of([b"a"], [1], with_times=False) == digest_of([b"a"], [2], with_times=False)


def test_the_digest_of_a_slice_is_that_of_its_events() -> None:
    batch = pa.array([b"x", b"a", b"b", b"y"], pa.binary()).slice(1, 2)
    digest = EventDigest(with_times=False)
    digest.add(Events(batch, np.array([-1, -1])))
    assert digest.hexdigest() == digest_of([b"a", b"b"], [0, 0], with_times=False)
