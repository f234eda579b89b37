"""``offloader retention plan | run | explain``: what would go, what goes, and why.

Owns what is printed of a cycle. Must never let a plan write anything, nor say another thing than the run would do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from offloader.cli.options import Json, LedgerArguments, StreamOrTopic
from offloader.cli.output import Column, bytes_text, json_line, print_rows
from offloader.cli.retention_subscribers import opening_sources
from offloader.clock import SystemClock
from offloader.effective_settings import SettingsFile
from offloader.errors import NotFound, OffloaderError
from offloader.read.times import time_text
from offloader.retention.cycle import CycleOutcome, RetentionCycle
from offloader.retention.explain import explain, outcome_facts
from offloader.retention.recorded_state import read_decisions
from offloader.retention.service import retained_streams
from offloader.retention.stream_retention import open_retention

__all__ = ["explain_stream", "plan", "run"]

Streams = Annotated[
    list[str] | None, typer.Argument(metavar="[STREAM]...", help="Streams, or partitioned topics.", show_default="all")
]


def plan(
    given: LedgerArguments,
    streams: Streams = None,
    json: Json = False,
) -> int:
    """Say what the next cycle would do to each stream; change nothing.

    The policies are those of the settings file: see `offloader config explain`.
    """
    with _cycles(given, read_only=True) as (cycle, _):
        return _print_each(cycle, streams, cycle.plan, json, done=False)


def run(
    given: LedgerArguments,
    streams: Streams = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The same as plan.")] = False,
    json: Json = False,
) -> int:
    """Run one cycle now: record where the streams end, decide, and let streams begin later.

    With --ledgers, hot ledgers before the new beginning are deleted at once. Objects in the store stay until a round of
    cleanup, which has a grace period. A stream that fails keeps no other from its turn.
    """
    with _cycles(given, read_only=dry_run) as (cycle, _):
        return _print_each(cycle, streams, cycle.plan if dry_run else cycle.run, json, done=not dry_run)


def explain_stream(
    stream: StreamOrTopic,
    given: LedgerArguments,
    decisions: Annotated[bool, typer.Option("--decisions", help="List the decisions of past cycles instead.")] = False,
    json: Json = False,
) -> None:
    """Explain in words and as a picture what would go of a stream now, by which rule, and who isn't done with it."""
    with _cycles(given, read_only=True) as (cycle, file):
        if decisions:
            retention = open_retention(cycle.store, stream)
            kept = read_decisions(retention, retention.place())
            print_rows(map(_decision_row, kept), _DECISIONS, as_json=json, empty=f"stream {stream} has no decision yet")
            return
        outcome = cycle.plan(stream)
    if json:
        print(json_line(outcome_facts(outcome, done=False)))
        return
    for line in explain(outcome):
        print(line)
    if outcome.policy is None and not file.name:
        print("\nno settings file was named: --config FILE says which policies there are", file=sys.stderr)


@contextmanager
def _cycles(given: LedgerArguments, *, read_only: bool) -> Iterator[tuple[RetentionCycle, SettingsFile]]:
    file = given.file()
    opened = given.open(file.settings_of(""), read_only=read_only)
    with opening_sources(given.ledgers) as source_of:
        yield RetentionCycle(opened, clock=SystemClock(), settings_of=file.settings_of, source_of=source_of), file


def _print_each(
    cycle: RetentionCycle,
    streams: Sequence[str] | None,
    turn: Callable[[str], CycleOutcome],
    as_json: bool,
    *,
    done: bool,
) -> int:
    """The exit code: that of the first stream that failed."""
    failed: list[OffloaderError] = []

    def rows() -> Iterator[Mapping[str, object]]:
        for stream in streams or retained_streams(cycle.store):
            try:
                yield outcome_facts(turn(stream), done=done)
            except NotFound:
                if streams:
                    raise  # one that nobody named was deleted meanwhile
            except OffloaderError as error:
                if streams is not None and len(streams) == 1:
                    raise
                failed.append(error)
                yield {"stream": stream, "error": str(error), "retryable": error.retryable}

    print_rows(rows(), _COLUMNS, as_json=as_json, empty=f"no stream in {cycle.store.url}")
    for error in failed:
        print(f"error: {error}", file=sys.stderr)
    return failed[0].kind.value if failed else 0


def _decision_row(row: Mapping[str, object]) -> Mapping[str, object]:
    cut = row.get("cut")
    overridden = row.get("overridden")
    names = [str(each["name"]) for each in overridden] if isinstance(overridden, list) else []
    shown = ",".join(f"{name}={at}" for name, at in cut.items()) if isinstance(cut, dict) else None
    return {**row, "shown": shown, "loses": ", ".join(names) or None}


_COLUMNS = [
    Column("stream", "STREAM"),
    Column("new_head", "BEGINS AT", right=True),
    Column("entries", "ENTRIES GO", right=True),
    Column("bytes", "BYTES GO", lambda count: "-" if count is None else bytes_text(count), right=True),
    Column("overridden", "LOSES", lambda names: ", ".join(names or ()) or "-"),
    Column("rule", "RULE"),
]
_DECISIONS = [
    Column("at_ms", "TIME", time_text),
    Column("shown", "BEGINS AT"),
    Column("removed_entries", "ENTRIES", right=True),
    Column("removed_bytes", "BYTES", lambda count: "-" if count is None else bytes_text(count), right=True),
    Column("loses", "LOSES"),
    Column("why", "RULE"),
]
