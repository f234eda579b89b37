"""``offloader accept-loss STREAM``: a ledger database goes on without entries that it acknowledged and has lost."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from offloader.cli.accept_source import acceptance_facts, acceptance_words
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
from offloader.manifest.catalog import read_entry
from offloader.manifest.log import ManifestLog
from offloader.write.ownership.accepting import Acceptance, accept_loss

__all__ = ["run"]


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
    """Open a stream again whose ledger database lacks entries that it acknowledged.

    Their positions stay used. What the object store doesn't have of them becomes a gap of the manifest, whatever
    on_gap says. Restore the database instead if there is a copy that has them. Stop the process that appends first.
    There is no undo.
    """
    settings = settings_for(stream, config or None)
    require_ledgers(ledgers)
    clock = SystemClock()
    opened = open_configured_store(store, endpoint_url, region, settings, read_only=dry_run)
    recorded: Acceptance | None = None
    with closing(EmbeddedLedgers(ledgers, create=False)) as database:
        lost = database.accept_loss(stream, dry_run=dry_run)
        if not dry_run and read_entry(opened, stream) is not None:
            log = ManifestLog(opened, stream, clock=clock, settings=settings.manifest)
            source = database.view_stream(stream, may_delete=True)
            recorded = accept_loss(log, source, settings=settings.offload, clock=clock)
    if json:
        ranges = [{"first": each.first, "last": each.last, "source": each.source_id} for each in lost]
        facts = None if recorded is None else acceptance_facts(recorded, dry_run=dry_run)
        print(json_line({"stream": stream, "dry_run": dry_run, "lost": ranges, "manifest": facts}))
        return
    if not lost:
        print(f"ledger database {ledgers} has everything of {stream} that it acknowledged")
    for each in lost:
        print(f"{'would be lost' if dry_run else 'lost'} from the ledger database: {each.first} up to {each.last}")
    for line in () if recorded is None or recorded.record_id is None else acceptance_words(recorded, dry_run=dry_run):
        print(line)
