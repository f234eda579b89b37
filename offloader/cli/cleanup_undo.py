"""``offloader cleanup undo STREAM``: what was retired comes back, while it isn't purged.

Owns what is asked and said. Must never claim that something is back that isn't readable.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from offloader.cleanup.undo import undo_retirements
from offloader.cli.options import ConfigArguments, DryRun, Json, Stream, position_of
from offloader.cli.output import counted, json_line
from offloader.clock import SystemClock
from offloader.errors import InvalidCall
from offloader.manifest.log import ManifestLog

__all__ = ["run"]


def run(
    stream: Stream,
    given: ConfigArguments,
    segment: Annotated[
        list[str] | None,
        typer.Option("--segment", metavar="UUID", help="Only this one. May be repeated.", show_default="all retired"),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="LEDGER:ENTRY", help="Where the stream begins then.", show_default="where it began before"
        ),
    ] = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Bring back what a truncation took away, as long as it isn't purged.

    The stream begins where it did before. What was purged is gone, and with it everything before that. A policy that
    truncated the stream will do so again: put a hold on it first.
    """
    try:
        uuids = [UUID(text) for text in segment or []]
    except ValueError as cause:
        raise InvalidCall(f"--segment: {cause}", hint="`offloader cleanup plan STREAM` lists them") from cause
    settings = given.settings(stream)
    opened = given.open(settings, read_only=dry_run)
    log = ManifestLog(opened, stream, clock=SystemClock(), settings=settings.manifest)
    head = position_of(to, option="--to") if to else None
    done = undo_retirements(log, segments=uuids, head=head, dry_run=dry_run)
    if json:
        facts = {
            "stream": stream,
            "dry_run": dry_run,
            "segments": [each.uuid for each in done.segments],
            "head_before": done.head_before,
            "head": done.head,
            "ledgers": done.ledgers,
            "record": done.record_id,
        }
        print(json_line(facts))
        return
    verbs = ("would come back", "would begin") if dry_run else ("came back", "begins")
    begins = "" if done.head == done.head_before else f"; the stream {verbs[1]} at {done.head} again"
    print(f"{counted(len(done.segments), 'segment')} of {stream} {verbs[0]}{begins}")
