"""How far a run over segments or entries is, for who waits for it.

Owns that display: a bar on a terminal, lines where they were asked for, nothing elsewhere. Must never write to standard
output.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from formats.entries import Position
from formats.segment import SegmentSummary
from offloader.cli.output import bytes_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["EntryProgress", "SegmentProgress"]


class SegmentProgress:
    """Counts segments as they become readable. Thread-safe; a context that ends the bar.

    Args:
        out: standard error.
        always: lines also where ``out`` is no terminal.
        what: what is counted, in the plural.
    """

    def __init__(self, out: TextIO, *, always: bool = False, what: str = "segments") -> None:
        self._out, self._what = out, what
        self._shown = always or out.isatty()
        self._lock = threading.Lock()
        self._done = 0
        self._payload_bytes = 0
        self._total = 0
        self._about = ""
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def expect(self, total: int, *, about: bool = False) -> None:
        """Says how many there will be; ``about``: that is an estimate."""
        with self._lock:
            self._total, self._about = total, "about " if about else ""
            if self._shown and self._out.isatty() and total and self._bar is None:
                self._bar = _bar(self._out)
                self._task = self._bar.add_task(self._what, total=total, size="0 B")
                self._bar.start()

    def segment(self, summary: SegmentSummary) -> None:
        """One more."""
        with self._lock:
            self._done += 1
            self._payload_bytes += summary.payload_bytes
            size = bytes_text(self._payload_bytes)
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, completed=self._done, total=max(self._done, self._total), size=size)
            elif self._shown:
                of = f"{self._done} of {self._about}{self._total} {self._what}"
                self._out.write(f"{of}, {size}: {summary.begin}..{summary.end}\n")
                self._out.flush()

    def __enter__(self) -> SegmentProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class EntryProgress:
    """Shows how many entries are done. A context that ends the bar.

    Args:
        out: standard error.
        total: how many there are.
        always: lines also where ``out`` is no terminal.
    """

    def __init__(self, out: TextIO, total: int, *, always: bool = False) -> None:
        self._out, self._total = out, total
        self._shown = always or out.isatty()
        self._last = -1
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if self._shown and out.isatty():
            self._bar = _bar(out)
            self._task = self._bar.add_task("entries", total=total, size="0 B")
            self._bar.start()

    def at(self, entries: int, size_bytes: int, position: Position | None) -> None:
        """So far."""
        size = bytes_text(size_bytes)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=entries, size=size)
        elif self._shown and entries != self._last:
            self._last = entries
            self._out.write(f"{entries:,} of {self._total:,} entries, {size}: {position or '-'}\n")
            self._out.flush()

    def __enter__(self) -> EntryProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(out: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
        console=Console(file=out),
        transient=True,
    )
