"""``offloader cleanup hold``: nothing is deleted until it is lifted.

Owns what is asked and said. Must never lift a hold that wasn't named.
"""

from __future__ import annotations

from typing import Annotated

import typer

from offloader.cli.options import ConfigArguments, Json
from offloader.cli.output import json_line
from offloader.clock import SystemClock
from offloader.errors import InvalidCall
from offloader.manifest.global_hold import lift_global_hold, set_global_hold
from offloader.manifest.hold import set_hold
from offloader.manifest.leases import user_at_host

__all__ = ["run"]


def run(
    given: ConfigArguments,
    stream: Annotated[str, typer.Argument(help="The stream's name.", show_default=False)] = "",
    everything: Annotated[bool, typer.Option("--all", help="All deletion in the store.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Lift it.")] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for people.", show_default="none")] = "",
    json: Json = False,
) -> None:
    """Keep everything of a stream, or of the whole store, until the hold is lifted.

    Nothing is truncated, retired, purged or deleted meanwhile; what is under way ends before its next step.
    """
    if bool(stream) == everything:
        raise InvalidCall("a hold is on one stream or on everything", hint="name a STREAM, or say --all")
    opened = given.open(given.settings(stream), read_only=False)
    clock = SystemClock()
    if stream:
        changed = set_hold(opened, stream, on=not off, reason=reason, clock=clock)
    elif off:
        lift_global_hold(opened)
        changed = True
    else:
        set_global_hold(opened, by=user_at_host(), reason=reason or "no reason given", now_ms=clock.now_ms())
        changed = True
    what = stream or f"everything in {opened.url}"
    if json:
        print(json_line({"stream": stream or None, "held": not off, "changed": changed}))
    elif off:
        print(f"no hold on {what} any more" if changed else f"there was no hold on {what}")
    else:
        print(f"nothing of {what} is deleted until `offloader cleanup hold {stream or '--all'} --off`")
