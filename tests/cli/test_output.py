"""How verbs print: plain columns in pipes, tables on terminals, JSON lines for programs; and the shared options."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from formats.entries import Position
from offloader.cli import all_columns
from offloader.cli.options import open_chosen_store, position_of
from offloader.cli.output import TABLE_ROWS_MAX, WIDTH, Column, bytes_text, json_line, print_rows, program_name
from offloader.errors import InvalidCallError, OffloaderError

COLUMNS = [Column("first", "FIRST"), Column("size_bytes", "SIZE", bytes_text, right=True), Column("n", "N", right=True)]
ROWS = [
    {"first": Position(7, 0), "size_bytes": 2048, "n": 1234567, "hidden": b"\xff\x00a"},
    {"first": Position(12, 5), "size_bytes": 3, "n": None, "hidden": b"b"},
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_pipe_columns_are_aligned_and_plain() -> None:
    out = io.StringIO()
    assert print_rows(ROWS, COLUMNS, stream=out, title="Segments") == 2
    assert out.getvalue() == "FIRST     SIZE          N\n7:0    2.0 KiB  1,234,567\n12:5       3 B          -\n"


def test_on_a_terminal_the_same_cells_are_a_table_and_markup_stays_text() -> None:
    out = Terminal()
    print_rows([*ROWS, {"first": "[bold]x[/]", "size_bytes": 0, "n": 0}], COLUMNS, stream=out, title="Segments")
    for cell in ("Segments", "FIRST", "7:0", "2.0 KiB", "1,234,567", "[bold]x[/]"):
        assert cell in out.getvalue()


def test_json_lines_hold_every_field_as_numbers_and_text() -> None:
    out = io.StringIO()
    assert print_rows(ROWS, COLUMNS, as_json=True, stream=out) == 2
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"first": "7:0", "size_bytes": 2048, "n": 1234567, "hidden": "\\xff\x00a"},
        {"first": "12:5", "size_bytes": 3, "n": None, "hidden": "b"},
    ]


def test_json_object_is_always_one_line() -> None:
    text = json_line({"a": "x\ny", "path": Path("p"), "list": [Position(1, 2)], "map": {1: {"b": True}}})
    assert "\n" not in text
    assert json.loads(text) == {"a": "x\ny", "path": "p", "list": ["1:2"], "map": {"1": {"b": True}}}


def test_json_rows_are_written_incrementally() -> None:
    out = io.StringIO()

    def rows() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        assert out.getvalue() == '{"n": 1}\n'
        yield {"n": 2}

    print_rows(rows(), COLUMNS, as_json=True, stream=out)


def test_empty_result_is_reported_except_in_json() -> None:
    out = io.StringIO()
    assert print_rows([], COLUMNS, stream=out, empty="no streams") == 0
    assert print_rows([], COLUMNS, stream=out, as_json=True, empty="no streams") == 0
    assert out.getvalue() == "no streams\n"


@pytest.mark.slow
def test_long_tables_are_printed_in_pages() -> None:
    out = io.StringIO()
    count = print_rows(({"n": n} for n in range(TABLE_ROWS_MAX + 2)), [Column("n", "N")], stream=out)
    lines = out.getvalue().splitlines()
    assert count == TABLE_ROWS_MAX + 2
    assert [i for i, line in enumerate(lines) if line == "N"] == [0, TABLE_ROWS_MAX + 1]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**60 * 5, "5.0 EiB")]
)
def test_bytes_are_written_in_binary_units(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_program_name_is_the_command_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PATH the bare name; else the script beside the interpreter, from here."""
    beside = Path(sys.executable).parent
    assert (beside / "offloader").exists(), "this test needs the installed command"
    monkeypatch.setenv("PATH", str(beside))
    assert program_name() == "offloader"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Path(program_name()).resolve() == (beside / "offloader").resolve()
    shutil.copy(beside / "offloader", tmp_path / "offloader")
    assert program_name() != "offloader", "another one of the same name on PATH"


def test_without_a_store_the_option_and_the_variable_are_named() -> None:
    with pytest.raises(InvalidCallError, match="no store was given") as caught:
        open_chosen_store("")
    assert "--store" in caught.value.hint
    assert "OFFLOADER_STORE" in caught.value.hint


def test_a_store_is_opened_for_reading_unless_asked_otherwise(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with pytest.raises(OffloaderError):
        open_chosen_store(url)
    assert not (tmp_path / "store").exists(), "looking creates nothing"
    with pytest.raises(OffloaderError):
        open_chosen_store(url, read_only=False)
    assert not (tmp_path / "store").exists(), "nor does changing what isn't there"
    store = open_chosen_store(url, read_only=False, create=True)
    store.put("a", b"x")
    assert open_chosen_store(url).get("a")[0] == b"x"
    with pytest.raises(OffloaderError):
        open_chosen_store(url).put("b", b"x")


def test_a_position_is_parsed_or_refused_with_the_options_name() -> None:
    assert position_of("7:12", option="--from") == Position(7, 12)
    for text in ("7", "7:", "a:b", "7:12:1", "", os.linesep):
        with pytest.raises(InvalidCallError, match="--from: a position is written LEDGER:ENTRY"):
            position_of(text, option="--from")


def test_first_rows_of_a_long_table_are_printed_before_the_last_are_made() -> None:
    made, printed_after = itertools.count(), list[int]()

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            printed_after.append(next(made))
            return super().write(text)

    rows = ({"n": next(made)} for _ in range(2 * TABLE_ROWS_MAX))
    print_rows(rows, [Column("n", "N")], stream=Out())
    assert printed_after[0] == TABLE_ROWS_MAX


WIDE_COLUMNS = [
    Column("stream", "STREAM"),
    Column("uuid", "SEGMENT", less=2),
    Column("bytes", "BYTES", bytes_text, right=True, less=1),
    Column("why", "WHY", wraps=True),
]
WIDE_ROW = {"stream": "shop/eu/persistent/orders", "uuid": "u" * 36, "bytes": 1536, "why": "it is " + "older " * 12}


def table(row: Mapping[str, object]) -> list[str]:
    out = io.StringIO()
    print_rows([row], WIDE_COLUMNS, stream=out)
    return out.getvalue().splitlines()


def test_too_wide_table_leaves_out_columns_and_then_wraps_texts() -> None:
    lines = table(WIDE_ROW)
    assert lines[0].split() == ["STREAM", "BYTES", "WHY"]
    assert [len(line) <= WIDTH for line in lines] == [True] * 3
    assert lines[1].startswith("shop/eu/persistent/orders  1.5 KiB  it is older")
    assert " ".join(line[36:].strip() for line in lines[1:]) == str(WIDE_ROW["why"]).strip()
    assert table(WIDE_ROW | {"why": "-", "stream": "s"})[0].split() == ["STREAM", "SEGMENT", "BYTES", "WHY"]


def test_names_are_not_cut() -> None:
    lines = table(WIDE_ROW | {"stream": "s" * 90})
    assert lines[0].split() == ["STREAM", "WHY"]
    assert lines[1].startswith("s" * 90)


def test_wide_tables_have_all_columns_on_one_line() -> None:
    before = all_columns.set(True)
    try:
        lines = table(WIDE_ROW)
    finally:
        all_columns.reset(before)
    assert (len(lines), lines[0].split()) == (2, ["STREAM", "SEGMENT", "BYTES", "WHY"])


def test_name_that_fits_a_terminal_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "shop/eu/persistent/payments"
    columns = [Column("name", "STREAM"), *(Column(key, key.upper(), right=True, less=1) for key in "abcd")]
    # As wide as the terminal: the name, four columns of 10 or 11 signs, and three blanks between two.
    row = {"name": name, "a": "x" * 10, "b": "x" * 10, "c": "x" * 10, "d": "x" * 11}
    out = Terminal()
    print_rows([row], columns, stream=out)
    last = out.getvalue().splitlines()[-1]
    assert last.startswith(name)
    assert len(last) == 80
