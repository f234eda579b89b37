"""``offloader verify STREAM ...``: checks stored objects against the manifests. Changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, TextIO

import typer

from offloader.cli.options import Json, StoreArguments
from offloader.cli.output import bytes_text, json_line
from offloader.errors import Corrupt, ErrorKind
from offloader.inspect.unreferenced import find_unexpected
from offloader.inspect.verify import CheckTotals, Finding, check_history, check_order, check_segments, describe_damage
from offloader.manifest.state import ManifestState
from offloader.read.fetch import Fetcher
from offloader.read.reader import load_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

__all__ = ["print_finding", "print_totals", "run"]

#: Seconds between two lines of progress.
PROGRESS_EVERY_S = 1.0


def run(
    streams: Annotated[list[str], typer.Argument(help="The streams' names.", metavar="STREAM...", show_default=False)],
    given: StoreArguments,
    deep: Annotated[bool, typer.Option("--deep", help="Read and decode every block, not only the indexes.")] = False,
    json: Json = False,
) -> int:
    """Check the objects of streams against their manifests; every finding is a line, damage ends with exit code 6.

    Without --deep: both objects of every segment are there with the recorded length and checksum, and every index adds
    up to what the manifest says. With it, every byte is read as well, of the manifest too. Objects that no manifest
    names are notes, unless one tells of a record that is lost.
    """
    opened = given.open()
    damaged = False
    for stream in streams:
        damaged |= _verify(opened, stream, deep=deep, as_json=json)
    return ErrorKind.REPAIR_DATA.value if damaged else 0


def _verify(store: ObjectStore, stream: str, *, deep: bool, as_json: bool) -> bool:
    totals = CheckTotals()
    try:
        state = load_stream(store, stream)
    except Corrupt as error:
        # A damaged manifest: report the details found.
        for finding in describe_damage(store, stream, error):
            totals.count([finding])
            print_finding(finding, as_json=as_json)
        print_totals(stream, 0, totals, deep=deep, as_json=as_json)
        return True
    progress = _Progress(sys.stderr, of=len(state.offloaded()))
    for finding in _findings(store, state, totals, progress, deep=deep):
        totals.count([finding])
        progress.clear()
        print_finding(finding, as_json=as_json)
    progress.clear()
    print_totals(stream, state.record_id, totals, deep=deep, as_json=as_json)
    return totals.damage > 0


def _findings(
    store: ObjectStore, state: ManifestState, totals: CheckTotals, progress: _Progress, *, deep: bool
) -> Iterator[Finding]:
    yield from check_order(state)
    for check in check_segments(Fetcher(store, ReadSettings()), state, deep=deep):
        totals.add(check)
        progress.show(totals)
        yield from check.findings
    if deep:
        yield from check_history(store, state)
    yield from find_unexpected(store, state)


def print_finding(finding: Finding, *, as_json: bool) -> None:
    """One finding, on a line."""
    advice = f" ({finding.advice})" if finding.advice else ""
    text = f"{finding.problem.value}: {finding.message}{advice}"
    print(json_line(finding.as_row()) if as_json else text, flush=True)


def print_totals(stream: str, record_id: int, totals: CheckTotals, *, deep: bool, as_json: bool) -> None:
    """A stream's last line: what was checked, and the result."""
    if as_json:
        counts = asdict(totals)
        print(json_line({"stream": stream, "manifest": record_id, "deep": deep, **counts, "ok": not totals.damage}))
        return
    looked = _count(totals.segments, "segment")
    if deep:
        blocks, entries = _count(totals.blocks, "block"), _count(totals.entries, "entry", "entries")
        looked = f"{looked}, {blocks}, {entries}, {bytes_text(totals.data_bytes)}"
    damage = _count(totals.damage, "finding")
    verdict = "all as the manifest says" if not totals.damage else f"{damage} of damage"
    notes = f"; {_count(totals.notes, 'note')}" if totals.notes else ""
    trimmed = f"; retention took {totals.trimmed:,} meanwhile" if totals.trimmed else ""
    print(f"{stream}: {looked}: {verdict}{notes}{trimmed}")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


class _Progress:
    """One line, overwritten on a terminal; nothing elsewhere."""

    def __init__(self, out: TextIO, *, of: int) -> None:
        self._out = out if out.isatty() else None
        self._of = of
        self._shown_s = SystemClock().monotonic_s()
        self._width = 0

    def show(self, totals: CheckTotals) -> None:
        now = SystemClock().monotonic_s()
        if self._out is None or now - self._shown_s < PROGRESS_EVERY_S:
            return
        self._shown_s = now
        text = f"{totals.segments:,} of {self._of:,} segments, {bytes_text(totals.data_bytes)} read"
        self._out.write("\r" + text.ljust(self._width))
        self._out.flush()
        self._width = len(text)

    def clear(self) -> None:
        if self._out is not None and self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()
            self._width = 0
