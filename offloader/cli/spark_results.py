"""What ``offloader spark`` prints of the jobs' results, and the exit codes that go with it.

Owns those lines. Must never report an uploaded object that it hasn't looked at in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offloader.cli.output import json_line
from offloader.cli.stored_segments import stored_rows, stored_totals, totals_text
from offloader.cli.verify import print_finding, print_totals
from offloader.errors import ErrorKind
from offloader.store.base import ObjectStore

if TYPE_CHECKING:
    from offloader.spark.jobs import Backfilled, Exported, Scrub

__all__ = ["print_backfilled", "print_exported", "print_scrub"]


def print_scrub(scrub: Scrub, *, as_json: bool) -> int:
    """Findings, and a line for each stream."""
    for each in scrub.streams:
        for finding in each.findings:
            print_finding(finding, as_json=as_json)
        print_totals(each.stream, each.manifest, each.totals, deep=True, as_json=as_json)
    return ErrorKind.REPAIR_DATA.value if scrub.has_damage else 0


def print_exported(done: Sequence[Exported], *, as_json: bool) -> int:
    """A line for each stream."""
    for exported in done:
        rows, bad_rows = (sum(getattr(each, name) for each in exported.ranges) for name in ("rows", "bad_rows"))
        if as_json:
            facts = {"stream": exported.stream, "ranges": len(exported.ranges), "rows": rows, "bad_rows": bad_rows}
            print(json_line({**facts, "end": exported.end}))
            continue
        bad = f", {bad_rows:,} put aside" if bad_rows else ""
        new = f"{rows:,} new rows{bad}, exported up to {exported.end}" if exported.ranges else "nothing new"
        print(f"{exported.stream}: {new}")
    return 0


def print_backfilled(done: Sequence[Backfilled], store: ObjectStore, *, dry_run: bool, as_json: bool) -> int:
    """A line for each stream; raises the first error there was, after all of them."""
    for each in done:
        if as_json:
            print(json_line(_facts(each, store, dry_run=dry_run)))
        else:
            print(f"{each.stream}: {_sentence(each, store, dry_run=dry_run)}")
    for each in done:
        if each.error is not None:
            raise each.error
    return 0


def _facts(done: Backfilled, store: ObjectStore, *, dry_run: bool) -> dict[str, object]:
    facts: dict[str, object] = {"stream": done.stream, "dry_run": dry_run}
    if dry_run:
        planned = [{"layout": f"V{int(each.layout)}", "first": each.begin, "last": each.end} for each in done.planned]
        facts["segments"] = planned
    else:
        rows = stored_rows(store, done.stream, done.offloaded)
        facts |= {"offloaded": rows, **stored_totals(rows), "trimmed": [each.begin for each in done.trimmed]}
    error = None if done.error is None else str(done.error)
    return {**facts, "committed": done.committed, "skipped": done.skipped, "error": error}


def _sentence(done: Backfilled, store: ObjectStore, *, dry_run: bool) -> str:
    committed = f"committed is {done.committed or 'nothing'}"
    if dry_run and done.error is None and not done.skipped:
        ends = f", {done.planned[0].begin} to {done.planned[-1].end}" if done.planned else ""
        return f"about {len(done.planned)} segments to be offloaded{ends}; {committed}"
    parts = []
    if done.offloaded:
        parts.append(totals_text(stored_totals(stored_rows(store, done.stream, done.offloaded)), store))
    parts += [f"ledger {each.begin.ledger_id} left the hot tier meanwhile" for each in done.trimmed]
    if done.error is not None:
        parts.append(f"not offloaded whole: {done.error.message}")
    if done.skipped:
        parts.append(f"left alone: {done.skipped}")
    return "; ".join([*(parts or ["nothing to offload"]), committed])
