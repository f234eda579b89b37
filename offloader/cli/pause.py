"""``offloader pause STREAM``: no segment of a stream is assigned until ``offloader resume``.

Owns what is asked and said of both. Must never say that a stream is paused before the record is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Annotated

import typer

from offloader.cli.options import Config, EndpointUrl, Json, Region, Store, open_configured_store
from offloader.cli.output import json_line
from offloader.effective_settings import settings_for
from offloader.read.streams import load_stream
from offloader.write.offloader import LedgerOffloader
from offloader.write.runs import HistoryRuns

__all__ = ["record", "run"]


def run(
    stream: Annotated[str, typer.Argument(help="The stream's name.", show_default=False)],
    store: Store = "",
    endpoint_url: EndpointUrl = "",
    region: Region = "",
    config: Config = "",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for who reads the manifest.")] = "",
    json: Json = False,
) -> None:
    """Stop offloading a stream until it is resumed, whoever offloads it.

    A segment that is under way completes; whatever comes later stays in the hot tier. A running writer notices with its
    next record. Appending, reading and retention go on.
    """
    record(
        *(stream, store, endpoint_url, region, config, json),
        change=lambda runs: runs.pause(stream, reason),
        changed="is paused",
        as_it_was="was paused already",
    )


def record(
    stream: str,
    store: str,
    endpoint_url: str,
    region: str,
    config: str,
    as_json: bool,
    *,
    change: Callable[[HistoryRuns], bool],
    changed: str,
    as_it_was: str,
) -> None:
    """Records the change and says what came of it: ``changed``, or ``as_it_was`` where there was nothing to record."""
    settings = settings_for(stream, config or None)
    # A stream that isn't there is no reason to write to the store what finds out whether it can be written to.
    load_stream(open_configured_store(store, endpoint_url, region, settings, read_only=True), stream)
    opened = open_configured_store(store, endpoint_url, region, settings, read_only=False)
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
