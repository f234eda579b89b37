"""``offloader pause STREAM`` and ``offloader resume STREAM``: no segment of a stream is assigned between them.

Reports a pause only after its record is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Annotated

import typer

from offloader.cli.options import ConfigArguments, Json, Stream
from offloader.cli.output import counted, print_result
from offloader.read.reader import load_stream
from offloader.write.backfill_service import BackfillService
from offloader.write.offloader import LedgerOffloader


def run(
    stream: Stream,
    given: ConfigArguments,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for who reads the manifest.")] = "",
    json: Json = False,
) -> None:
    """Stop offloading a stream until it is resumed, in whichever process it runs.

    A segment that is under way completes; whatever comes later stays in the hot tier. A running writer notices with its
    next record. Appending, reading and retention go on.
    """
    _record(stream, given, lambda runs: runs.pause(stream, reason), "is paused", "was paused already", as_json=json)


def resume(stream: Stream, given: ConfigArguments, json: Json = False) -> None:
    """Let a paused stream go on, exactly where it stopped.

    A running writer that has entries waiting looks every minute at the latest; one in the process that resumes it goes
    on at once.
    """
    _record(stream, given, lambda runs: runs.resume(stream), "goes on", "wasn't paused", as_json=json)


def _record(
    stream: str,
    given: ConfigArguments,
    change: Callable[[BackfillService], bool],
    changed: str,
    as_it_was: str,
    *,
    as_json: bool,
) -> None:
    """Records the change and prints the result: ``changed``, or ``as_it_was`` without a change."""
    settings = given.settings(stream)
    # Check that the stream exists before probing the store with a write.
    load_stream(given.open(settings), stream)
    opened = given.open(settings, read_only=False)
    with closing(LedgerOffloader(opened, settings)) as offloader:
        done = change(offloader.history)
    state = load_stream(opened, stream)
    left, end = len(state.assigned()), state.committed_end()
    facts = {"stream": stream, "paused": state.paused, "changed": done, "assigned": left, "committed": end}
    under_way = f"; {counted(left, 'assigned segment completes', 'assigned segments complete')}" if left else ""
    text = f"{stream} {changed if done else as_it_was}: committed is {end or 'nothing'}{under_way}"
    print_result(facts, text, as_json=as_json)
