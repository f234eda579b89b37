"""``offloader pause STREAM`` and ``offloader resume STREAM``: no segment of a stream is assigned between them.

Reports a pause only after its record is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Annotated

import typer

from offloader.cli.options import ConfigArguments, Json, Stream
from offloader.cli.output import json_line
from offloader.read.reader import load_stream
from offloader.write.backfill_service import BackfillService
from offloader.write.offloader import LedgerOffloader

__all__ = ["resume", "run"]


def run(
    stream: Stream,
    given: ConfigArguments,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for who reads the manifest.")] = "",
    json: Json = False,
) -> None:
    """Stop offloading a stream until it is resumed, whoever offloads it.

    A segment that is under way completes; whatever comes later stays in the hot tier. A running writer notices with its
    next record. Appending, reading and retention go on.
    """
    _record(
        *(stream, given, json),
        change=lambda runs: runs.pause(stream, reason),
        changed="is paused",
        as_it_was="was paused already",
    )


def resume(stream: Stream, given: ConfigArguments, json: Json = False) -> None:
    """Let a paused stream go on, exactly where it stopped.

    A running writer that has entries waiting looks every minute at the latest; one in the process that resumes it goes
    on at once.
    """
    _record(
        *(stream, given, json),
        change=lambda runs: runs.resume(stream),
        changed="goes on",
        as_it_was="wasn't paused",
    )


def _record(
    stream: str,
    given: ConfigArguments,
    as_json: bool,
    *,
    change: Callable[[BackfillService], bool],
    changed: str,
    as_it_was: str,
) -> None:
    """Records the change and prints the result: ``changed``, or ``as_it_was`` without a change."""
    settings = given.settings(stream)
    # Check that the stream exists before probing the store with a write.
    load_stream(given.open(settings), stream)
    opened = given.open(settings, read_only=False)
    with closing(LedgerOffloader(opened, settings)) as offloader:
        done = change(offloader.history)
    state = load_stream(opened, stream)
    if as_json:
        facts = {"stream": stream, "paused": state.paused, "changed": done}
        print(json_line({**facts, "assigned": len(state.assigned()), "committed": state.committed_end()}))
        return
    left = len(state.assigned())
    under_way = f"; {left} assigned {'segment completes' if left == 1 else 'segments complete'}" if left else ""
    print(f"{stream} {changed if done else as_it_was}: committed is {state.committed_end() or 'nothing'}{under_way}")
