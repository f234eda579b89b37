"""Output of commands: tables, plain columns, JSON lines, messages and progress."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from formats.entries import Position
from formats.errors import FormatError
from formats.summary import SegmentSummary
from offloader.cli import all_columns
from offloader.cli.errors import failure_of
from offloader.errors import NotFoundError, OffloaderError

if TYPE_CHECKING:
    from rich.progress import Progress

#: Rows buffered before a table is printed: a column is as wide as its widest cell.
TABLE_ROWS_MAX = 10_000
#: Width of a table that isn't printed on a terminal.
WIDTH = 80
#: Minimum width of a column whose text is wrapped.
_WRAPPED_WIDTH_MIN = 24
#: Between two columns, in plain text and on a terminal.
_GAP, _RICH_GAP = 2, 3

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def bytes_text(count: int) -> str:
    """``1536`` -> ``"1.5 KiB"``."""
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def rate_text(bytes_per_second: float) -> str:
    """``1536000`` -> ``"1.5 MB/s"``: in powers of ten, as on the web page."""
    rate = bytes_per_second / 1e6
    if 0 < rate < 0.01:
        return "<0.01 MB/s"
    return f"{rate:,.{0 if rate == 0 or rate >= 100 else 1 if rate >= 1 else 2}f} MB/s"


def counted(count: int, noun: str, plural: str = "") -> str:
    """``2, "segment"`` -> ``"2 segments"``, unless it has another plural."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def yes_or_no(value: object) -> str:
    """``True`` -> ``"yes"``."""
    return "yes" if value else "no"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: key, heading, formatter, alignment, and the text of ``None``.

    Attributes:
        less: order in which columns are dropped from a table that is too wide: highest first; 0: never.
        wraps: its text may take several lines in such a table.
    """

    key: str
    heading: str
    text: Callable[[Any], str] = _text
    right: bool = False
    none: str = "-"
    less: int = 0
    wraps: bool = False

    def cell(self, row: Mapping[str, object]) -> str:
        """The cell of a row."""
        value = row.get(self.key)
        return self.none if value is None else self.text(value)


#: Columns of many tables: the ends of a range, and how much it holds.
ENDS = (Column("first", "FIRST", right=True, less=4), Column("last", "LAST", right=True, less=2))
AMOUNTS = (
    Column("entries", "ENTRIES", right=True, less=1),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True, less=5),
    Column("object_bytes", "STORED", bytes_text, right=True, less=3),
)


def json_line(value: Mapping[str, object]) -> str:
    """``value`` on one line: positions as ``"7:12"``, bytes and anything else as text."""
    plain = _plain(value)
    line = json.dumps(plain, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON may contain as an escape
        return json.dumps(plain)
    return line


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


def print_result(facts: Mapping[str, object], lines: str | Iterable[str], *, as_json: bool) -> None:
    """Prints ``facts`` as one line of JSON, or else ``lines``."""
    for line in [json_line(facts)] if as_json else [lines] if isinstance(lines, str) else lines:
        print(line)


def print_rows(
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[Column],
    *,
    as_json: bool = False,
    stream: TextIO | None = None,
    title: str = "",
    empty: str = "",
) -> int:
    """Prints ``rows`` and returns their number.

    JSON lines are written row by row and hold every key of a row. A table shows ``columns`` only, and the text
    ``empty`` if there are no rows. It fits the terminal, or ``WIDTH``: less important columns are dropped, then texts
    are wrapped; names are never shortened. With ``all_columns`` a table has every column.
    """
    out, count = stream or sys.stdout, 0
    if as_json:
        for row in rows:
            out.write(json_line(row) + "\n")
            count += 1
        return count
    iterator, shown = iter(rows), columns
    while page := list(islice(iterator, TABLE_ROWS_MAX)):
        if not count:
            shown = _fitting(page, columns, out)
        _print_table([[column.cell(row) for column in shown] for row in page], shown, out, "" if count else title)
        count += len(page)
    if not count and empty:
        out.write(empty + "\n")
    return count


def print_each(
    names: Sequence[str],
    row_of: Callable[[str], Mapping[str, object]],
    failed_row: Callable[[str, Exception], Mapping[str, object]],
    columns: Sequence[Column],
    *,
    is_named: bool,
    as_json: bool,
    empty: str,
) -> int:
    """Prints a row for each item; a failure of one does not stop the others. Returns the exit code of the first
    failure.

    Args:
        is_named: the user named the items: a missing one is an error, and the error of a single one is raised.
    """
    failed: list[Exception] = []

    def rows() -> Iterator[Mapping[str, object]]:
        for name in names:
            try:
                yield row_of(name)
            except (OffloaderError, FormatError) as error:
                if not is_named and isinstance(error, NotFoundError):
                    continue  # deleted meanwhile
                if is_named and len(names) == 1:
                    raise
                failed.append(error)
                yield failed_row(name, error)

    print_rows(rows(), columns, as_json=as_json, empty=empty)
    for error in failed:
        print(f"error: {error}", file=sys.stderr)
    return failure_of(failed[0]).exit_code if failed else 0


def _width_of(out: TextIO) -> int:
    return shutil.get_terminal_size().columns if out.isatty() else WIDTH


def _fitting(rows: Sequence[Mapping[str, object]], columns: Sequence[Column], out: TextIO) -> Sequence[Column]:
    """The columns that fit side by side, with wrapping ones at their minimum width. Empty ones are dropped first."""
    if all_columns.get():
        return columns
    gap = _RICH_GAP if out.isatty() else _GAP
    empty = {each.key for each in columns if all(row.get(each.key) is None for row in rows)}
    shown = [(column, _least_width(column, rows)) for column in columns]
    while sum(width + gap for _, width in shown) - gap > _width_of(out):
        least = max(shown, key=lambda each: (bool(each[0].less) and each[0].key in empty, each[0].less))
        if not least[0].less:
            break
        shown.remove(least)
    return [column for column, _ in shown]


def _least_width(column: Column, rows: Iterable[Mapping[str, object]]) -> int:
    widest = max(len(column.cell(row)) for row in rows)
    return max(len(column.heading), min(widest, _WRAPPED_WIDTH_MIN) if column.wraps else widest)


def _print_table(cells: list[list[str]], columns: Sequence[Column], out: TextIO, title: str) -> None:
    if out.isatty():
        _print_rich(cells, columns, out, title)
        return
    widths = [max(len(column.heading), max(len(row[i]) for row in cells)) for i, column in enumerate(columns)]
    if not all_columns.get():
        _shrink(widths, columns)
    for row in [[column.heading for column in columns], *cells]:
        for line in _lines(row, widths, columns):
            padded = [
                cell.rjust(width) if column.right else cell.ljust(width)
                for cell, width, column in zip(line, widths, columns, strict=True)
            ]
            out.write((" " * _GAP).join(padded).rstrip() + "\n")


def _shrink(widths: list[int], columns: Sequence[Column]) -> None:
    """Makes columns that wrap narrower until the table fits, the widest first."""
    excess = sum(widths) + _GAP * (len(widths) - 1) - WIDTH
    for i in sorted((i for i, column in enumerate(columns) if column.wraps), key=lambda i: -widths[i]):
        taken = max(0, min(excess, widths[i] - max(_WRAPPED_WIDTH_MIN, len(columns[i].heading))))
        widths[i] -= taken
        excess -= taken


def _lines(row: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> Iterator[Sequence[str]]:
    """A row as lines, several if a text is wrapped."""
    if all(len(cell) <= width for cell, width in zip(row, widths, strict=True)):
        return iter([row])
    wrapped = [
        textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) if column.wraps else [cell]
        for cell, width, column in zip(row, widths, columns, strict=True)
    ]
    return iter(list(zip_longest(*wrapped, fillvalue="")))


def _print_rich(cells: list[list[str]], columns: Sequence[Column], out: TextIO, title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Without edges, a table is as wide as ``_fitting`` computes.
    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left", overflow="fold")
    for row in cells:
        table.add_row(*[Text(cell) for cell in row])
    Console(file=out).print(table)


def program_name() -> str:
    """The command to call this program again: ``offloader`` if it is on PATH, else a path."""
    here = Path(sys.executable).with_name("offloader")
    found = shutil.which("offloader")
    if found is not None and Path(found).resolve() == here.resolve():
        return "offloader"
    return os.path.relpath(here) if here.exists() else "offloader"


class TransientLine:
    """One line that is overwritten on a terminal; no output elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._is_shown = out, False

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self._out.isatty():
            self._is_shown = True
            self._out.write(f"\r\x1b[K{text}")
            self._out.flush()

    def clear(self) -> None:
        """Removes the line."""
        if self._is_shown:
            self.show("")
            self._is_shown = False


class _ProgressLine(ExitStack):
    """A progress bar on a terminal, ended by the context; lines elsewhere.

    Args:
        always: print lines even if ``out`` isn't a terminal.
    """

    def __init__(self, out: TextIO, *, always: bool) -> None:
        super().__init__()
        self._out, self._shown = out, always or out.isatty()
        self._bar: Progress | None = None

    def _start_bar(self, what: str, total: int) -> None:
        if not self._out.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(complete_style="blue"),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
            TextColumn("{task.fields[size]}"),
            TimeElapsedColumn(),
            console=Console(file=self._out),
            transient=True,
        )
        self._bar.add_task(what, total=total, size="0 B")
        self.enter_context(self._bar)

    def _show(self, done: int, total: int, size: str, line: str) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, size=size)
        elif self._shown:
            self._out.write(f"{line}\n")
            self._out.flush()


class SegmentProgress(_ProgressLine):
    """Counts readable segments. Thread-safe; leaving the context ends the bar.

    Args:
        always: print lines even if ``out`` isn't a terminal.
        what: the counted noun, plural.
    """

    def __init__(self, out: TextIO, *, always: bool = False, what: str = "segments") -> None:
        super().__init__(out, always=always)
        self._what, self._about = what, ""
        self._lock = threading.Lock()
        self._done = self._total = self._payload_bytes = 0

    def expect(self, total: int, *, about: bool = False) -> None:
        """Sets the total; ``about``: an estimate."""
        with self._lock:
            self._total, self._about = total, "about " if about else ""
            if total and self._bar is None:
                self._start_bar(self._what, total)

    def segment(self, summary: SegmentSummary) -> None:
        """Counts one segment."""
        with self._lock:
            self._done += 1
            self._payload_bytes += summary.payload_bytes
            size = bytes_text(self._payload_bytes)
            of = f"{self._done} of {self._about}{self._total} {self._what}"
            self._show(self._done, max(self._done, self._total), size, f"{of}, {size}: {summary.begin}..{summary.end}")


class EntryProgress(_ProgressLine):
    """Progress of entries. Leaving the context ends the bar.

    Args:
        total: number of entries.
        always: print lines even if ``out`` isn't a terminal.
    """

    def __init__(self, out: TextIO, total: int, *, always: bool = False) -> None:
        super().__init__(out, always=always)
        self._total, self._last = total, -1
        self._start_bar("entries", total)

    def at(self, entries: int, size_bytes: int, position: Position | None) -> None:
        """Updates the progress."""
        size = bytes_text(size_bytes)
        if self._bar is not None or entries != self._last:
            of = f"{entries:,} of {self._total:,} entries"
            self._show(entries, self._total, size, f"{of}, {size}: {position or '-'}")
        self._last = entries


def base64_text(value: bytes) -> str:
    """Base64 without line breaks."""
    return base64.b64encode(value).decode("ascii")


def utf8_text(value: bytes) -> str | None:
    """The bytes as text; ``None``: they aren't UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
