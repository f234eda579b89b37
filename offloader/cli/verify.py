"""``offloader verify STREAM ...``: checks stored objects against the manifests. Changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from offloader.cli.options import Json, StoreArguments, argument
from offloader.cli.output import TransientLine, bytes_text, counted, json_line, print_result
from offloader.errors import Corrupt, ErrorKind
from offloader.inspect.verify import (
    CheckTotals,
    Finding,
    check_fills,
    check_history,
    check_order,
    check_segments,
    describe_damage,
    find_unexpected,
)
from offloader.manifest.state import ManifestState
from offloader.read.fetch import Fetcher
from offloader.read.reader import load_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

#: Seconds between two lines of progress.
PROGRESS_EVERY_S = 1.0


def run(
    streams: Annotated[list[str], argument("The streams' names.", metavar="STREAM...")],
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
    return ErrorKind.DATA_CORRUPTION.value if damaged else 0


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
    progress = TransientLine(sys.stderr)
    for finding in _findings(store, state, totals, progress, deep=deep):
        totals.count([finding])
        progress.clear()
        print_finding(finding, as_json=as_json)
    progress.clear()
    print_totals(stream, state.record_id, totals, deep=deep, as_json=as_json)
    return totals.damage > 0


def _findings(
    store: ObjectStore, state: ManifestState, totals: CheckTotals, progress: TransientLine, *, deep: bool
) -> Iterator[Finding]:
    yield from check_order(state)
    clock, of = SystemClock(), len(state.offloaded())
    shown_s = clock.monotonic_s()
    for check in check_segments(Fetcher(store, ReadSettings()), state, deep=deep):
        totals.add(check)
        if clock.monotonic_s() - shown_s >= PROGRESS_EVERY_S:
            shown_s = clock.monotonic_s()
            progress.show(f"{totals.segments:,} of {of:,} segments, {bytes_text(totals.data_bytes)} read")
        yield from check.findings
    yield from check_fills(store, state, deep=deep)
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
    facts = {"stream": stream, "manifest": record_id, "deep": deep, **asdict(totals), "ok": not totals.damage}
    looked = counted(totals.segments, "segment")
    if deep:
        blocks, entries = counted(totals.blocks, "block"), counted(totals.entries, "entry", "entries")
        looked = f"{looked}, {blocks}, {entries}, {bytes_text(totals.data_bytes)}"
    damage = counted(totals.damage, "finding")
    verdict = "all as the manifest says" if not totals.damage else f"{damage} of damage"
    notes = f"; {counted(totals.notes, 'note')}" if totals.notes else ""
    trimmed = f"; retention took {totals.trimmed:,} meanwhile" if totals.trimmed else ""
    print_result(facts, f"{stream}: {looked}: {verdict}{notes}{trimmed}", as_json=as_json)
