"""Output of verbs: tables, plain columns, JSON lines, messages and progress."""

from __future__ import annotations

import base64
import codecs
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from formats.entries import Position
from formats.segment import SegmentSummary

if TYPE_CHECKING:
    from rich.progress import Progress

#: Rows buffered before a table is printed: a column is as wide as its widest cell.
TABLE_ROWS_MAX = 10_000

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def bytes_text(count: int) -> str:
    """``1536`` -> ``"1.5 KiB"``."""
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def duration_text(seconds: float) -> str:
    """``7200`` -> ``"2.0 h"``; up to two of a unit in the next smaller one."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def counted(count: int, noun: str, plural: str = "") -> str:
    """``2, "segment"`` -> ``"2 segments"``, unless it has another plural."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: key, heading, formatter, alignment, and the text of ``None``."""

    key: str
    heading: str
    text: Callable[[Any], str] = _text
    right: bool = False
    none: str = "-"

    def cell(self, row: Mapping[str, object]) -> str:
        """The cell of a row."""
        value = row.get(self.key)
        return self.none if value is None else self.text(value)


#: Columns of many tables: the ends of a range, and how much it holds.
ENDS = (Column("first", "FIRST", right=True), Column("last", "LAST", right=True))
AMOUNTS = (
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True),
    Column("object_bytes", "STORED", bytes_text, right=True),
)


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


def print_result(facts: Mapping[str, object], lines: str | Iterable[str], *, as_json: bool) -> None:
    """Prints ``facts`` as one line of JSON, or ``lines`` for people."""
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

    JSON lines are written row by row and hold every key of a row; a table shows ``columns`` only, and ``empty`` without
    rows.
    """
    out, count = stream or sys.stdout, 0
    if as_json:
        for row in rows:
            out.write(json_line(row) + "\n")
            count += 1
        return count
    cells = ([column.cell(row) for column in columns] for row in rows)
    while page := list(islice(cells, TABLE_ROWS_MAX)):
        _print_table(page, columns, out, "" if count else title)
        count += len(page)
    if not count and empty:
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
    """How the user can call this program again: ``offloader`` if it is on PATH, else a path."""
    here = Path(sys.executable).with_name("offloader")
    found = shutil.which("offloader")
    if found is not None and Path(found).resolve() == here.resolve():
        return "offloader"
    return os.path.relpath(here) if here.exists() else "offloader"


class TransientLine:
    """One line, overwritten on a terminal; nothing elsewhere."""

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
    """A bar on a terminal, which the context ends; lines elsewhere.

    Args:
        always: print lines even if ``out`` is no terminal.
    """

    def __init__(self, out: TextIO, *, always: bool) -> None:
        super().__init__()
        self._out, self._shown = out, always or out.isatty()
        self._bar: Progress | None = None

    def _start_bar(self, what: str, total: int) -> None:
        if not self._out.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
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
    """Counts segments as they become readable. Thread-safe; a context that ends the bar.

    Args:
        always: print lines even if ``out`` is no terminal.
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
        """One more."""
        with self._lock:
            self._done += 1
            self._payload_bytes += summary.payload_bytes
            size = bytes_text(self._payload_bytes)
            of = f"{self._done} of {self._about}{self._total} {self._what}"
            self._show(self._done, max(self._done, self._total), size, f"{of}, {size}: {summary.begin}..{summary.end}")


class EntryProgress(_ProgressLine):
    """Progress of entries. A context that ends the bar.

    Args:
        total: number of entries.
        always: print lines even if ``out`` is no terminal.
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


#: Characters of a value in a line for people.
VALUE_SIGNS_MAX = 200
#: Enough for so many UTF-8 characters.
_PREVIEW_BYTES = 4 * VALUE_SIGNS_MAX

_Row = Mapping[str, Any]


def message_text(row: _Row) -> str:
    """``id <tab> publish time <tab> key <tab> value``, the value cut; other than an ordinary value is in brackets."""
    key = "-" if row["key"] is None else _one_line(row["key"])
    time = "-" if row["publish_time"] is None else _time(row["publish_time"])
    return "\t".join([_id(row), time, key, _note(row) or _preview(row["value"])])


def message_json(row: _Row) -> str:
    """One object: ``id``, ``publish_time``, ``key``, ``value``, ``properties``, and all other known fields.

    Bytes are base64 under a name that ends in ``_base64``; a value that is UTF-8 is text.
    """
    shown: dict[str, object] = {"id": _id(row)}
    shown |= {name: _plain_value(row[name]) for name in ("publish_time", "key")} | _value(row["value"])
    shown["properties"] = dict(row["properties"] or ())
    for name, value in row.items():
        if name not in _SHOWN_ALREADY and value is not None and value is not False:
            shown[f"{name}_base64" if isinstance(value, bytes) else name] = _plain_value(value)
    if row["encryption_keys"]:
        shown["encryption_keys"] = [key["name"] for key in row["encryption_keys"]]
    return json_line(shown)


_SHOWN_ALREADY = frozenset(
    ("ledger_id", "entry_id", "batch_index", "publish_time", "key", "value", "properties", "encryption_keys")
)


def _id(row: _Row) -> str:
    """``7:12``, and in a batch ``7:12:3``."""
    place = f"{row['ledger_id']}:{row['entry_id']}"
    return place if row["batch_index"] < 0 else f"{place}:{row['batch_index']}"


def _value(value: bytes | None) -> dict[str, object]:
    text = utf8_text(value) if value is not None else None
    if value is None or text is not None:
        return {"value": text}
    return {"value_base64": base64_text(value)}


def _note(row: _Row) -> str:
    """Placeholder of a value that isn't an ordinary one, in brackets; else empty."""
    value, note = row["value"], ""
    if row["error"] is not None and value is None:
        note = f"error: {row['error']}"
    elif row["marker_type"] is not None:
        note = f"marker {row['marker_type']}"
    elif value is None:
        note = "compacted out" if row["compacted_out"] else "null"
    elif row["encryption_keys"]:
        note = f"encrypted, {len(value)} bytes"
    elif row["chunk_id"] is not None:
        note = f"chunk {row['chunk_id'] + 1} of {row['chunk_count']} of {row['chunk_uuid']}, {len(value)} bytes"
    return f"({_one_line(note)})" if note else ""


def _preview(value: bytes) -> str:
    head = value[:_PREVIEW_BYTES]
    try:
        # Drops a character that the cut splits.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) == len(value))
    except UnicodeDecodeError:
        shown = "base64:" + base64_text(value[:VALUE_SIGNS_MAX])
        return shown if len(value) <= VALUE_SIGNS_MAX else f"{shown}..."
    whole = len(head) == len(value) and len(text) <= VALUE_SIGNS_MAX
    return _one_line(text[:VALUE_SIGNS_MAX]) + ("" if whole else "...")


def _one_line(text: str) -> str:
    """Line breaks, tabs and other unprintable characters as escapes."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)


def _plain_value(value: object) -> object:
    if isinstance(value, datetime):
        return _time(value)
    return base64_text(value) if isinstance(value, bytes) else value


def _time(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def base64_text(value: bytes) -> str:
    """Base64 without line breaks."""
    return base64.b64encode(value).decode("ascii")


def utf8_text(value: bytes) -> str | None:
    """UTF-8 as text; ``None``: it isn't UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
