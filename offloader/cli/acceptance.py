"""``offloader accept-source STREAM`` and ``offloader accept-loss STREAM``: resume a stream despite lost entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from offloader.cli.options import DryRun, Json, LedgerArguments, Stream, TakeOver
from offloader.cli.output import print_result
from offloader.manifest.catalog import read_entry
from offloader.manifest.log import ManifestLog
from offloader.read.reader import load_stream
from offloader.runtime.clock import SystemClock
from offloader.write import epoch as accepting
from offloader.write.epoch import Acceptance


def accept_source(stream: Stream, given: LedgerArguments, dry_run: DryRun = False, json: Json = False) -> None:
    """Make a ledger database the stream's hot tier, whatever its manifest knows of another one.

    For a database that was lost, restored from an older backup, or replaced. Nothing is deleted: complete segments that
    were on their way are kept, what is missing becomes a gap, and ledgers of the database that contradict the manifest
    are left aside: never offloaded, released or deleted. Stop the process that appends first. There is no undo.
    """
    settings, clock = given.settings(stream), SystemClock()
    opened = given.open(settings, read_only=dry_run)
    given.require_ledgers()
    load_stream(opened, stream)  # require the stream before the database creates it
    with closing(given.open_ledgers(create=not dry_run)) as database:
        if not dry_run:
            database.accept_loss(stream)
            if stream not in database.streams():
                database.open_stream(stream, held=True)
        source = database.view_stream(stream, may_delete=not dry_run)
        log = ManifestLog(opened, stream, clock=clock, settings=settings.manifest)
        done = accepting.accept_source(log, source, settings=settings.offload, clock=clock, dry_run=dry_run)
    nothing = f"ledger database {done.source} is the one that the manifest of {stream} knows: nothing to do"
    lines = [f"{stream}: {done.why}", *_words(done, dry_run=dry_run)] if done.why else [nothing]
    print_result(_facts(done, dry_run=dry_run), lines, as_json=json)


def accept_loss(
    stream: Stream, given: LedgerArguments, take_over: TakeOver = False, dry_run: DryRun = False, json: Json = False
) -> None:
    """Open a stream again whose ledger database lacks entries that it acknowledged.

    Their positions stay used. What the object store doesn't have of them becomes a gap of the manifest, whatever
    on_gap says. A segment that is on its way is taken from its writer and kept if it is complete. Restore the database
    instead if there is a copy that has them. Stop the process that appends first. There is no undo.
    """
    settings, clock = given.settings(stream), SystemClock()
    given.require_ledgers()
    opened = given.open(settings, read_only=dry_run)
    recorded: Acceptance | None = None
    with closing(given.open_ledgers()) as database:
        is_offloaded = read_entry(opened, stream) is not None
        if not is_offloaded and stream not in database.streams():
            load_stream(opened, stream)  # raises if the stream is unknown
        lost = database.accept_loss(stream, dry_run=dry_run)
        if not dry_run and is_offloaded:
            log = ManifestLog(opened, stream, clock=clock, settings=settings.manifest)
            source = database.view_stream(stream, may_delete=True)
            recorded = accepting.accept_loss(log, source, settings=settings.offload, clock=clock, take_over=take_over)
    facts = {
        "stream": stream,
        "dry_run": dry_run,
        "lost": [{"first": each.first, "last": each.last, "source": each.source_id} for each in lost],
        "manifest": None if recorded is None else _facts(recorded, dry_run=dry_run),
    }
    verb = "would be lost" if dry_run else "lost"
    lines = [f"{verb} from the ledger database: {each.first} up to {each.last}" for each in lost]
    lines = lines or [f"ledger database {given.ledgers} has everything of {stream} that it acknowledged"]
    if recorded is not None and recorded.record_id is not None:
        lines += _words(recorded, dry_run=dry_run)
    print_result(facts, lines, as_json=json)


def _facts(done: Acceptance, *, dry_run: bool) -> Mapping[str, object]:
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


def _words(done: Acceptance, *, dry_run: bool) -> Sequence[str]:
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
