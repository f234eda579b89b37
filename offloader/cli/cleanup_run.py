"""``offloader cleanup plan | run``: what is to be deleted, and deleting it.

Owns what is printed of a round. Must never act on another list than the one it prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import typer

from formats.deletion_record import DeletionRecord
from offloader.cleanup.cycle import CleanupReport, cleanup_all, cleanup_stream
from offloader.cleanup.plan import CleanupPlan
from offloader.cli.options import ConfigArguments, Json
from offloader.cli.output import Column, bytes_text, counted, json_line, print_rows
from offloader.clock import SystemClock
from offloader.errors import InvalidCall
from offloader.manifest.global_hold import global_hold
from offloader.read.times import time_text

__all__ = ["plan", "run"]

_Stream = Annotated[str, typer.Argument(help="The stream's name.", show_default="every stream")]
_Prefix = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Only streams whose names begin with it.", show_default=False)
]

_COLUMNS = [
    Column("stream", "STREAM"),
    Column("action", "ACTION"),
    Column("segment", "SEGMENT"),
    Column("first", "FIRST", right=True),
    Column("last", "LAST", right=True),
    Column("object_bytes", "BYTES", bytes_text, right=True),
    Column("rule", "WHY"),
    Column("when", "WHEN"),
]


def plan(
    given: ConfigArguments,
    stream: _Stream = "",
    prefix: _Prefix = "",
    json: Json = False,
) -> None:
    """List what the next round would do, segment by segment, why, and what it waits for. Writes nothing.

    What is old is told by this machine's clock alone here; a round asks the store's clock too.
    """
    _round(stream, given, prefix, yes=False, dry_run=True, as_json=json)


def run(
    given: ConfigArguments,
    stream: _Stream = "",
    prefix: _Prefix = "",
    yes: Annotated[bool, typer.Option("--yes", help="Also when more than half of a stream would be retired.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The same as plan.")] = False,
    json: Json = False,
) -> None:
    """Run one round: retire what nobody needs, purge what was retired and is over its grace period and readers.

    The objects of a segment go only after the manifest has recorded that it is purged. Interrupted, the next round goes
    on. Objects that can't be deleted are tried again by later rounds, for ever.
    """
    _round(stream, given, prefix, yes=yes, dry_run=dry_run, as_json=json)


def _round(stream: str, given: ConfigArguments, prefix: str, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    if stream and prefix:
        raise InvalidCall("--prefix is for all streams", hint="leave out the stream's name")
    clock = SystemClock()
    opened = given.open(given.settings(stream), read_only=dry_run)
    stop = global_hold(opened) if dry_run else None
    if stop is not None and not as_json:
        print(f"all deletion is stopped by {stop.by}: {stop.reason}: nothing of this happens")

    def show(planned: CleanupPlan) -> None:
        print_rows(_rows(planned), _COLUMNS, as_json=as_json)

    if stream:
        settings = given.settings(stream)
        reports: Iterable[CleanupReport] = [
            cleanup_stream(
                *(opened, stream), clock=clock, settings=settings, allow_large=yes, dry_run=dry_run, on_plan=show
            )
        ]
    else:
        reports = cleanup_all(
            opened,
            clock=clock,
            settings_of=given.settings_of(),
            prefix=prefix,
            allow_large=yes,
            dry_run=dry_run,
            on_plan=show,
        )
    errors = []
    for report in reports:
        _print(report, as_json=as_json)
        errors += [] if report.error is None else [report.error]
    if errors:
        raise errors[0]


def _rows(planned: CleanupPlan) -> Iterator[Mapping[str, object]]:
    for line in planned.lines():
        until = "" if line.until_ms is None else f" until {time_text(line.until_ms)}"
        when = f"waits for {line.waits_for}{until}" if line.waits_for else "now"
        yield {"stream": planned.state.stream, **line.as_json(), "when": when}


def _print(report: CleanupReport, *, as_json: bool) -> None:
    swept = report.swept
    if as_json:
        facts = {
            "what": "summary",
            "stream": report.stream,
            "dry_run": report.dry_run,
            "held": report.held,
            "large": None if report.plan is None else report.plan.large,
            "is_deleted": report.is_deleted,
            "retired": swept.retired,
            "released": swept.released,
            "purged": swept.purged,
            "deleted_objects": swept.deleted_objects,
            "deleted_bytes": swept.deleted_bytes,
            "pending": [_pending(batch) for batch in report.pending],
            "error": None if report.error is None else str(report.error),
        }
        print(json_line(facts))
        return
    for batch in report.pending:
        print(f"{report.stream}: not deleted yet: {_pending_text(batch)}")
    if report.error is not None:
        print(f"{report.stream}: {report.error}")
    elif report.is_deleted:
        print(f"{report.stream}: the stream is being deleted")
    elif report.held:
        print(f"{report.stream}: on hold, nothing was done")
    elif report.dry_run:
        large = report.plan is not None and report.plan.large
        print(f"{report.stream}: {'more than half of it: run asks for --yes' if large else 'nothing was done'}")
    else:
        print(
            f"{report.stream}: {counted(swept.retired, 'segment')} retired, {swept.released:,} released, "
            f"{swept.purged:,} purged; {counted(swept.deleted_objects, 'object')} deleted, "
            f"{bytes_text(swept.deleted_bytes)}"
        )


def _pending(batch: DeletionRecord) -> Mapping[str, object]:
    return {
        "batch": batch.name,
        "segments": len(batch.segments),
        "attempts": batch.attempts,
        "tried_ms": batch.tried_ms or None,
        "problem": batch.problem or None,
    }


def _pending_text(batch: DeletionRecord) -> str:
    what = f"{counted(len(batch.segments), 'segment')} of batch {batch.name}"
    if not batch.attempts:
        return f"{what}: the next round goes on"
    return f"{what}, tried {counted(batch.attempts, 'time')}: {batch.problem}"
