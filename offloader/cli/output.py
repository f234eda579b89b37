"""How verbs print: tables on terminals, plain columns in pipes, JSON lines for programs.

Owns the shape of standard output. Must never write to standard error nor decide what is printed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from formats.entries import Position

__all__ = ["Column", "bytes_text", "counted", "json_line", "print_rows", "program_name"]

#: Rows that a table holds before it begins to print: columns are as wide as their widest cell.
TABLE_ROWS_MAX = 10_000

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def bytes_text(count: int) -> str:
    """``1536`` -> ``"1.5 KiB"``."""
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def counted(count: int, noun: str) -> str:
    """``1, "segment"`` -> ``"1 segment"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the rows' key, the heading, how a value is written, and whether it is flush right."""

    key: str
    heading: str
    text: Callable[[Any], str] = _text
    right: bool = False


def json_line(value: Mapping[str, object]) -> str:
    """``value`` on one line: positions as ``"7:12"``, bytes and anything else as text."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: object) -> object:
    match value:
        case Position():
            return str(value)
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "backslashreplace")
        case list() | tuple():
            return [_plain(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def print_rows(
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[Column],
    *,
    as_json: bool = False,
    stream: TextIO | None = None,
    title: str = "",
    empty: str = "",
) -> int:
    """Prints ``rows`` and answers how many there were.

    JSON lines are written row by row and hold every key of a row; a table shows ``columns`` only. ``empty`` is what a
    table of no rows says instead.
    """
    out = stream or sys.stdout
    if as_json:
        count = 0
        for row in rows:
            out.write(json_line(row) + "\n")
            count += 1
        return count
    count, page = 0, []
    for row in rows:
        page.append([column.text(row.get(column.key)) for column in columns])
        count += 1
        if len(page) == TABLE_ROWS_MAX:
            _print_table(page, columns, out, title if count == len(page) else "")
            page = []
    if page:
        _print_table(page, columns, out, title if count == len(page) else "")
    elif count == 0 and empty:
        out.write(empty + "\n")
    return count


def _print_table(cells: list[list[str]], columns: Sequence[Column], out: TextIO, title: str) -> None:
    if out.isatty():
        _print_rich(cells, columns, out, title)
        return
    widths = [max(len(column.heading), max(len(row[i]) for row in cells)) for i, column in enumerate(columns)]
    for row in [[column.heading for column in columns], *cells]:
        padded = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        out.write("  ".join(padded).rstrip() + "\n")


def _print_rich(cells: list[list[str]], columns: Sequence[Column], out: TextIO, title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left", overflow="fold")
    for row in cells:
        table.add_row(*[Text(cell) for cell in row])
    Console(file=out).print(table)


def program_name() -> str:
    """How the person at the keyboard can call this program again: ``offloader`` when that is on PATH, else a path."""
    here = Path(sys.executable).with_name("offloader")
    found = shutil.which("offloader")
    if found is not None and Path(found).resolve() == here.resolve():
        return "offloader"
    return os.path.relpath(here) if here.exists() else "offloader"
