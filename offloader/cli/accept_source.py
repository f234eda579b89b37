"""``offloader accept-source STREAM``: a stream goes on with a ledger database that its manifest doesn't know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Annotated

import typer

from offloader.cli.options import (
    Config,
    DryRun,
    EndpointUrl,
    Json,
    Ledgers,
    Region,
    Store,
    open_configured_store,
    require_ledgers,
)
from offloader.cli.output import json_line
from offloader.clock import SystemClock
from offloader.effective_settings import settings_for
from offloader.ledgers.embedded import EmbeddedLedgers
from offloader.manifest.log import ManifestLog
from offloader.read.streams import load_stream
from offloader.write.ownership.accepting import Acceptance, accept_source

__all__ = ["acceptance_facts", "acceptance_words", "run"]


def run(
    stream: Annotated[str, typer.Argument(help="The stream's name.", show_default=False)],
    ledgers: Ledgers = "",
    store: Store = "",
    endpoint_url: EndpointUrl = "",
    region: Region = "",
    config: Config = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make a ledger database the stream's hot tier, whatever its manifest knows of another one.

    For a database that was lost, restored from an older backup, or replaced. Nothing is deleted: complete segments that
    were on their way are kept, what is missing becomes a gap, and ledgers of the database that contradict the manifest
    are left aside: never offloaded, released or deleted. Stop the process that appends first. There is no undo.
    """
    settings = settings_for(stream, config or None)
    opened = open_configured_store(store, endpoint_url, region, settings, read_only=dry_run)
    clock = SystemClock()
    require_ledgers(ledgers)
    load_stream(opened, stream)  # of a stream that isn't there nothing is made in the database
    with closing(EmbeddedLedgers(ledgers, create=not dry_run)) as database:
        if not dry_run:
            database.accept_loss(stream)
            if stream not in database.streams():
                database.open_stream(stream, held=True)
        source = database.view_stream(stream, may_delete=not dry_run)
        log = ManifestLog(opened, stream, clock=clock, settings=settings.manifest)
        done = accept_source(log, source, settings=settings.offload, clock=clock, dry_run=dry_run)
    if json:
        print(json_line(acceptance_facts(done, dry_run=dry_run)))
        return
    if not done.why:
        print(f"ledger database {done.source} is the one that the manifest of {stream} knows: nothing to do")
        return
    print(f"{stream}: {done.why}")
    for line in acceptance_words(done, dry_run=dry_run):
        print(line)


def acceptance_facts(done: Acceptance, *, dry_run: bool) -> Mapping[str, object]:
    """What was accepted, for ``--json``."""
    return {
        "stream": done.stream,
        "dry_run": dry_run,
        "source": done.source,
        "mismatch": done.why,
        "missing": [{"first": gap.first, "last": gap.last, "reason": gap.reason} for gap in done.gaps],
        "aside": done.aside,
        "adopted": done.adopted,
        "failed": done.failed,
        "record": done.record_id,
    }


def acceptance_words(done: Acceptance, *, dry_run: bool) -> Sequence[str]:
    """What was accepted, for people."""
    would = "would be " if dry_run else ""
    lines = [f"missing from now on: {gap.first} up to {gap.last}: {gap.reason}" for gap in done.gaps]
    lines += [f"ledger {each} {would}left aside: never offloaded, released or deleted" for each in done.aside]
    lines += [f"segment {each} was complete and is kept" for each in done.adopted]
    if dry_run:
        lines += [f"segment {each} is on its way: kept if it is complete, else missing" for each in done.failed]
        lines.append(f"ledger database {done.source} would be the stream's hot tier")
    else:
        lines.append(f"ledger database {done.source} is the stream's hot tier, since record {done.record_id}")
    return lines
