"""``offloader manifest show | context | rebuild | checkpoint | expire STREAM``: shows and maintains a manifest.

``--dry-run`` writes nothing; a rebuild requires the start position.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

import typer

from formats.metadata.messages import OffloadContext
from offloader.cli import NOTHING_PLANNED
from offloader.cli.errors import run_on_each
from offloader.cli.ledgers import LedgerArguments, opening_sources
from offloader.cli.options import Apply, Json, StoreArguments, Stream, StreamOrTopic, option, position_of
from offloader.cli.output import ENDS, Column, bytes_text, print_result, print_rows, yes_or_no
from offloader.cli.retention import opening_lists
from offloader.coverage import Range, unheld
from offloader.errors import ErrorKind, InvalidCallError
from offloader.manifest.compaction import plan_checkpoint
from offloader.manifest.load import LoadedManifest, kept_records
from offloader.manifest.log import ManifestLog
from offloader.manifest.names import named_streams
from offloader.manifest.rebuild import Rebuild, rebuild_manifest
from offloader.read.reader import existing_streams
from offloader.runtime.clock import SystemClock
from offloader.settings import ManifestSettings
from offloader.store.base import ObjectStore
from offloader.stream_manifest import StreamManifest, expire_manifest, load_view, manifest_facts
from offloader.times import time_text

HEAD_FIRST = "first"


Plan = Annotated[bool, typer.Option("--dry-run", help="Print the planned writes and deletions; change nothing.")]


def show(
    stream: StreamOrTopic,
    given: StoreArguments,
    records: Annotated[
        int, typer.Option("--records", min=0, help="Also show the N most recent records.", metavar="N")
    ] = 0,
    json: Json = False,
) -> int:
    """Show a summary of a stream's manifest, or of the manifest of each partition of a topic.

    Examples:
        offloader manifest show orders
        offloader manifest show orders --records 5
    """
    opened = given.open()
    named = named_streams(opened, stream)
    one = partial(_show, opened, records=records, of_partition=bool(named.partitions), as_json=json)
    return run_on_each(named.streams, one, as_json=json)


Numbers = Literal["pulsar", "pip-76"]


def context(
    stream: Stream,
    ledger: Annotated[int, typer.Argument(metavar="LEDGER", min=0, help="The ledger's id.")],
    given: LedgerArguments,
    proto: Annotated[
        Numbers | None,
        option(
            "--proto",
            "Write the protobuf message instead, with the field numbers of Pulsar's releases or of PIP-76.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show the location of a ledger's entries as Pulsar's OffloadContext with its OffloadSegments.

    The ledger database, or a broker with the plugin, knows whether the hot copy is deleted. Without either, a copy
    counts as deleted once the manifest has released it.

    Examples:
        offloader manifest context orders 7
    """
    if proto is not None and sys.stdout.isatty():
        raise InvalidCallError(
            "--proto writes binary data, and standard output is a terminal",
            hint="redirect it to a file or a program: > context.bin",
        )
    opened = given.open()
    pulsar = given.file().settings_of("").pulsar
    with (
        opening_sources(given.ledgers_url() if given.has_ledgers() else "") as source_of,
        opening_lists(pulsar, source_of) as listed_of,
    ):
        source, listed = source_of(stream), listed_of(stream)
        hot = None if source is None else [each.ledger_id for each in source.ledgers()]
        hot = [ledger_id for ledger_id, _ in listed.stored] if listed is not None and listed.layout is None else hot
    found = StreamManifest(opened, stream).context(ledger, hot=hot)
    if proto is not None:
        sys.stdout.buffer.write(found.encode(proposed=proto == "pip-76"))
        return
    facts = {"stream": stream, "ledger_id": ledger, **_context_facts(found)}
    print_result(facts, _context_lines(facts), as_json=json)


def rebuild(
    stream: Stream,
    given: LedgerArguments,
    head: Annotated[
        str,
        option(
            "--head",
            "Start position of the stream, which no object records; 'first' = the first entry found.",
            metavar="LEDGER:ENTRY|first",
        ),
    ] = "",
    closed: Annotated[
        list[str] | None,
        option(
            "--closed",
            "Last entry of a ledger whose end the objects don't prove. May be repeated.",
            metavar="LEDGER:ENTRY",
        ),
    ] = None,
    accept_loss: Annotated[
        list[str] | None,
        option(
            "--accept-loss",
            "Accept that these entries are missing: no exit code 6 for them. May be repeated.",
            metavar="FIRST..LAST",
        ),
    ] = None,
    dry_run: Plan = False,
    json: Json = False,
) -> int:
    """Rebuild a manifest from the objects in the store.

    Use it for a stream whose manifest can't be read or lost records. It neither changes nor deletes objects. Missing
    entries are listed, recorded as gaps and end with exit code 6, unless you accept them by position. Name the stream's
    ledger database if it has one: the database knows the ends of ledgers, and entries in it aren't missing. For a
    partitioned topic, rebuild each partition by its own name.

    Examples:
        offloader manifest rebuild orders --head first --dry-run
    """
    if not head:
        raise InvalidCallError(
            "missing --head: no object records the stream's start position",
            hint="give --head LEDGER:ENTRY, or --head first if the stream was never truncated",
        )
    named_streams(given.open(), stream).require_one("a rebuild needs one stream")
    accepted = [_range_of(text) for text in accept_loss or []]
    ends = [position_of(text, option="--closed") for text in closed or []]
    start = None if head == HEAD_FIRST else position_of(head, option="--head")
    with opening_sources(given.ledgers_url() if given.has_ledgers() else "") as source_of:
        source = source_of(stream)
        hot = [] if source is None else source.ledgers()
    settings, opened = given.prepared(read_only=dry_run)  # after the checks: it probes the store with a write
    done = rebuild_manifest(
        opened,
        stream,
        head=start,
        clock=SystemClock(),
        closed_ledgers={end.ledger_id: end.entry_id for end in ends},
        hot=hot,
        dry_run=dry_run,
        settings=settings.manifest,
    )
    _print_rebuild(done, as_json=json)
    lost = unheld(done.missing, accepted, None)
    if lost:
        names = " ".join(f"--accept-loss {first}..{last}" for first, last in lost)
        sys.stderr.write(f"offloader: entries are missing and recorded as gaps; to accept them, give {names}\n")
    return ErrorKind.DATA_CORRUPTION.value if lost else 0


def checkpoint(stream: StreamOrTopic, given: StoreArguments, dry_run: Plan = False, json: Json = False) -> int:
    """Write a checkpoint of a stream's manifest now, or of each partition's manifest.

    Examples:
        offloader manifest checkpoint orders
    """
    named = existing_streams(given.open(), stream)  # before the store is probed with a write
    settings, opened = given.prepared(read_only=dry_run)

    def one(each: str) -> None:
        if dry_run:
            _print_plan(load_view(opened, each), as_json=json)
            return
        log = ManifestLog(opened, each, clock=SystemClock(), settings=settings.manifest)
        log.load()
        log.checkpoint()
        _show(opened, each, as_json=json)

    return run_on_each(named.streams, one, as_json=json)


def expire(stream: StreamOrTopic, given: StoreArguments, apply: Apply = False, json: Json = False) -> int:
    """Delete records and checkpoints that a stream's manifest no longer needs.

    Deletes records, checkpoints and runs that are covered by a checkpoint older than orphan_age_min, and the remains of
    the stream's dead incarnations. Never deletes objects of segments. For a partitioned topic, the command handles each
    partition.

    Examples:
        offloader manifest expire orders
        offloader manifest expire orders --apply
    """
    named = existing_streams(given.open(), stream)  # before the store is probed with a write
    settings, opened = given.prepared(read_only=not apply)
    objects: list[int] = []

    def one(each: str) -> None:
        objects.append(_expire(opened, each, settings=settings.manifest, dry_run=not apply, as_json=json))

    return run_on_each(named.streams, one, as_json=json) or (0 if any(objects) else NOTHING_PLANNED)


def _expire(store: ObjectStore, stream: str, *, settings: ManifestSettings, dry_run: bool, as_json: bool) -> int:
    """Prints and returns the number of deleted objects, or of those that would be."""
    found = expire_manifest(store, stream, settings=settings, dry_run=dry_run)
    verb = "would delete" if dry_run else "deleted"
    counts = f"{found.records:,} records, {found.checkpoints:,} checkpoints and {found.runs:,} runs"
    of_dead = f"{found.objects_of_dead_incarnations:,} objects of {found.dead_incarnations:,} dead incarnations"
    lines = [f"{stream}: {verb} {counts}, and {of_dead}"]
    kept = found.first_kept_record
    lines += [] if kept is None else [f"records from {kept:,} on are kept"]
    lines += [f"unknown object, not deleted: {key}" for key in found.unknown]
    print_result({"dry_run": dry_run, **asdict(found)}, lines, as_json=as_json)
    return found.objects


def _show(store: ObjectStore, stream: str, *, records: int = 0, of_partition: bool = False, as_json: bool) -> None:
    loaded = load_view(store, stream)
    facts = manifest_facts(loaded)
    width = max(map(len, facts))
    columns = (_LABELLED.get(name) or Column(name, name) for name in facts)
    lines = (f"{column.heading.ljust(width)}  {column.cell(facts)}" for column in columns)
    print_result(facts, lines, as_json=as_json)
    of = {"stream": stream} if of_partition else {}
    rows = (
        {
            **of,
            "record": record.record_id,
            "time_ms": record.time_ms,
            "epoch": record.epoch,
            "writer": record.writer.name,
            "edits": [edit.kind for edit in record.edits],
        }
        for record in kept_records(store, loaded.state, newest_first=True, count=records)
    )
    print_rows(rows, _RECORD_COLUMNS, as_json=as_json)


def _context_facts(found: OffloadContext) -> dict[str, Any]:
    return {
        "uuid": found.uuid,
        "complete": found.complete,
        "bookkeeper_deleted": found.bookkeeper_deleted,
        "timestamp_ms": found.timestamp_ms,
        "driver": found.driver_name,
        "driver_metadata": dict(found.driver_metadata),
        "segments": [
            {
                "uuid": str(each.uuid),
                "complete": each.complete,
                "bookkeeper_deleted": each.bookkeeper_deleted,
                "assigned_ms": each.assigned_ms,
                "offloaded_ms": each.offloaded_ms,
                "end_entry_id": each.end_entry_id,
                "driver": each.driver_name,
                "driver_metadata": dict(each.driver_metadata),
            }
            for each in found.segments
        ],
    }


def _context_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"OffloadContext of ledger {facts['ledger_id']} of {facts['stream']}"
    yield from _message_lines({name: value for name, value in facts.items() if name not in _OF_LEDGER}, "  ")
    for each in facts["segments"]:
        yield "  OffloadSegment"
        yield from _message_lines(each, "    ")


_OF_LEDGER = ("stream", "ledger_id", "segments")


def _message_lines(message: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in message.items():
        if name == "driver_metadata":
            yield from (f"{indent}{key} = {text}" for key, text in value.items())
        elif isinstance(value, bool):
            yield f"{indent}{name}  {yes_or_no(value)}"
        elif name.endswith("_ms"):
            yield f"{indent}{name.removesuffix('_ms')}  {time_text(value) if value else '-'}"
        else:
            yield f"{indent}{name}  {'-' if value is None else value}"


def _range_of(text: str) -> Range:
    first, separator, last = text.partition("..")
    begin = position_of(first, option="--accept-loss")
    end = position_of(last, option="--accept-loss") if separator else begin
    if end < begin:
        raise InvalidCallError(
            f"--accept-loss {text}: the range ends before it begins", hint="give FIRST..LAST, for example 2:0..2:39"
        )
    return begin, end


#: Facts with their own formatting, by name.
_LABELLED = {
    "time_ms": Column("time_ms", "time", time_text),
    "payload_bytes": Column("payload_bytes", "payload", bytes_text),
    "object_bytes": Column("object_bytes", "objects", bytes_text),
    **{name: Column(name, name, yes_or_no) for name in ("paused", "held", "deleted")},
}


_RECORD_COLUMNS = [
    Column("record", "RECORD", right=True),
    Column("time_ms", "TIME", time_text),
    Column("epoch", "EPOCH", right=True),
    Column("writer", "WRITER", less=1),
    Column("edits", "EDITS", ", ".join, wraps=True),
]


def _print_plan(loaded: LoadedManifest, *, as_json: bool) -> None:
    state, stored = loaded
    newest = 0 if stored is None else stored.boundary.checkpoint_id
    plan = None if newest == state.record_id else plan_checkpoint(state, lambda: 0)
    facts = {
        "stream": state.stream,
        "record": state.record_id,
        "checkpoint": newest or None,
        "runs": 0 if plan is None else len(plan.runs),
        "bytes": 0 if plan is None else len(plan.body) + sum(len(body) for _, body in plan.runs),
    }
    text = (
        f"record {newest:,} already has a checkpoint: nothing to write"
        if plan is None
        else f"would write a checkpoint of record {state.record_id:,}: {facts['runs']} runs, {facts['bytes']:,} bytes"
    )
    print_result(facts, f"{state.stream}: {text}", as_json=as_json)


_FOUND_COLUMNS = [
    Column("what", "WHAT"),
    Column("segment", "SEGMENT"),
    Column("layout", "LAYOUT", less=6),
    *ENDS,
    Column("entries", "ENTRIES", right=True),
    Column("epoch", "EPOCH", right=True, less=7),
    Column("owned", "OURS", yes_or_no, less=5),
    Column("why", "WHY", wraps=True),
]


def _print_rebuild(done: Rebuild, *, as_json: bool) -> None:
    chosen, state = done.chosen, done.state
    print_rows(_found_rows(done), _FOUND_COLUMNS, as_json=as_json)
    summary: Mapping[str, object] = {
        "what": "summary",
        "attached": done.attached,
        "incarnation": None if state is None else state.incarnation,
        "recorded": len(chosen.recorded),
        "overlapping": len(chosen.overlapping),
        "before_head": len(chosen.before_head),
        "problems": len(done.problems),
        "unknown": len(done.unknown),
        "missing": [f"{first}..{last}" for first, last in done.missing],
        "ledgers_without_proven_end": list(chosen.unproven),
        "committed_end": None if state is None else state.committed_end(),
    }
    print_result(summary, _rebuild_lines(done), as_json=as_json)


def _rebuild_lines(done: Rebuild) -> Iterator[str]:
    chosen = done.chosen
    for first, last in done.missing:
        yield f"missing: {first}..{last}: recorded as a gap"
    for position in chosen.unproven:
        yield (
            f"ledger {position.ledger_id} may have entries after {position}, but none are readable. If it ends there, "
            f"give --closed {position}"
        )
    if done.attached is not None:
        yield f"manifest {done.attached} is readable; only its catalogue entry was missing"
    verb = "would record" if done.state is None else "recorded"
    yield (
        f"{verb} {len(chosen.recorded):,} segments; {len(chosen.overlapping):,} overlapping, "
        f"{len(chosen.before_head):,} before the head, {len(done.problems):,} not usable: those are left unchanged"
    )


def _found_rows(done: Rebuild) -> Iterator[Mapping[str, object]]:
    chosen = done.chosen
    for what, segments in (
        ("recorded", chosen.recorded),
        ("overlapping", chosen.overlapping),
        ("before head", chosen.before_head),
    ):
        for segment in segments:
            yield {
                "what": what,
                "segment": str(segment.uuid),
                "layout": f"V{int(segment.summary.layout)}",
                "first": segment.summary.begin,
                "last": segment.summary.end,
                "entries": segment.summary.entries,
                "epoch": segment.epoch,
                "owned": segment.owned,
                "why": "its index is rebuilt" if segment.index is not None else "",
            }
    for key, why in done.problems:
        yield {"what": "not usable", "segment": key, "why": why}
    for key in done.unknown:
        yield {"what": "unknown", "segment": key, "why": "not an object name of this project"}
