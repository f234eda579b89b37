"""``offloader manifest show | rebuild | checkpoint | expire STREAM``: the manifest itself.

``--dry-run`` writes nothing; a rebuild requires the start position.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from offloader.cli.options import ConfigArguments, Json, Stream, position_of
from offloader.cli.output import Column, bytes_text, json_line, print_rows
from offloader.errors import ErrorKind, InvalidCall, NotFound
from offloader.manifest.catalog import is_released, read_entry
from offloader.manifest.compaction import plan_checkpoint
from offloader.manifest.leases import require_no_global_hold
from offloader.manifest.load import LoadedManifest, kept_records, load_manifest_view
from offloader.manifest.log import ManifestLog
from offloader.manifest.lost_records import Range, missing_ranges
from offloader.manifest.maintenance import expire_records, sweep_dead_incarnations
from offloader.manifest.rebuild import FoundSegment, Rebuild, rebuild_manifest
from offloader.manifest.state import ManifestState
from offloader.read.reader import time_text
from offloader.runtime.clock import SystemClock
from offloader.settings import ManifestSettings
from offloader.store.base import ObjectStore

__all__ = ["Action", "run"]

HEAD_FIRST = "first"


class Action(StrEnum):
    """Action on the manifest."""

    SHOW = "show"
    REBUILD = "rebuild"
    CHECKPOINT = "checkpoint"
    EXPIRE = "expire"


def run(
    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)],
    stream: Stream,
    given: ConfigArguments,
    records: Annotated[int, typer.Option("--records", min=0, help="show: the newest records too, so many.")] = 0,
    head: Annotated[
        str,
        typer.Option(
            "--head",
            metavar="LEDGER:ENTRY|first",
            help="rebuild: where the stream begins, which no object tells; 'first' = the first entry found.",
            show_default=False,
        ),
    ] = "",
    closed: Annotated[
        list[str] | None,
        typer.Option(
            "--closed",
            metavar="LEDGER:ENTRY",
            help="rebuild: that ledger ends there, where the objects don't prove it. May be repeated.",
            show_default=False,
        ),
    ] = None,
    accept_loss: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-loss",
            metavar="FIRST..LAST",
            help="rebuild: that these entries are missing is known, and no reason for exit code 6. May be repeated.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="rebuild, checkpoint, expire: say what would be written or deleted.")
    ] = False,
    json: Json = False,
) -> int:
    """Look after a stream's manifest.

    show: what it says, in short. checkpoint: write a checkpoint now. rebuild: a new manifest from the objects, where
    the old one can't be read or lost records; objects are neither changed nor deleted. What is missing is listed and
    recorded as gaps, and ends with exit code 6 unless it is accepted by name. expire: delete what the manifest doesn't
    need any more: records, checkpoints and runs that a checkpoint older than orphan_age_hours_min holds, and what dead
    incarnations of the stream left. Never an object of a segment.
    """
    _check_options(action, records, head, [*(closed or []), *(accept_loss or [])], dry_run)
    writes = action is not Action.SHOW and not dry_run
    settings = given.settings(stream)
    opened = given.open(settings, read_only=not writes)
    if action is Action.EXPIRE:
        _expire(opened, stream, settings.manifest, dry_run=dry_run, as_json=json)
        return 0
    if action is Action.REBUILD:
        accepted = [_range_of(text) for text in accept_loss or []]
        return _rebuild(opened, stream, head, closed or [], accepted, settings.manifest, dry_run=dry_run, as_json=json)
    if action is Action.CHECKPOINT and not dry_run:
        log = ManifestLog(opened, stream, clock=SystemClock(), settings=settings.manifest)
        log.load()
        log.checkpoint()
    loaded = _load(opened, stream)
    if action is Action.CHECKPOINT and dry_run:
        _print_plan(loaded, as_json=json)
    else:
        _print_facts(_facts(loaded), as_json=json)
        print_rows(_record_rows(opened, loaded, records), _RECORD_COLUMNS, as_json=json)
    return 0


def _print_facts(facts: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json_line(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{_LABELS.get(name, name).ljust(width)}  {_text(name, value)}")


def _range_of(text: str) -> Range:
    first, separator, last = text.partition("..")
    begin = position_of(first, option="--accept-loss")
    end = position_of(last, option="--accept-loss") if separator else begin
    if end < begin:
        raise InvalidCall(f"--accept-loss {text}: it ends before it begins", hint="give FIRST..LAST, as 2:0..2:39")
    return begin, end


#: Labels of values that are printed with their unit.
_LABELS = {"time_ms": "time", "payload_bytes": "payload", "object_bytes": "objects"}


def _check_options(action: Action, records: int, head: str, closed: Sequence[str], dry_run: bool) -> None:
    if action is Action.REBUILD and not head:
        raise InvalidCall(
            "where does the stream begin? No object says what was truncated",
            hint="give --head LEDGER:ENTRY, or --head first when nothing ever was",
        )
    if action is not Action.REBUILD and (head or closed):
        raise InvalidCall(
            "--head, --closed and --accept-loss are for rebuilding", hint="`offloader manifest rebuild STREAM`"
        )
    if action is not Action.SHOW and records:
        raise InvalidCall("--records is for showing", hint="`offloader manifest show STREAM --records N`")
    if action is Action.SHOW and dry_run:
        raise InvalidCall("showing writes nothing anyway", hint="leave out --dry-run")


def _load(store: ObjectStore, stream: str) -> LoadedManifest:
    entry = read_entry(store, stream)
    if entry is None:
        raise NotFound(f"stream {stream} isn't in {store.url}", hint="`offloader ls` lists the streams")
    return load_manifest_view(store, ManifestState(stream=stream, incarnation=entry.incarnation))


def _facts(loaded: LoadedManifest) -> Mapping[str, object]:
    state, stored = loaded
    totals = state.totals()
    boundary = None if stored is None else stored.boundary
    checkpoint = 0 if boundary is None else boundary.checkpoint_id
    return {
        "stream": state.stream,
        "incarnation": state.incarnation,
        "record": state.record_id,
        "time_ms": state.time_ms or None,
        "epoch": state.epoch,
        "owner": state.owner.name or None,
        "owner_url": state.owner.url or None,
        "method": state.method,
        "paused": state.paused,
        "held": state.held,
        "deleted": state.stream_deleted,
        "head": state.head,
        "first": state.first_position(),
        "committed_end": state.committed_end(),
        "newest_end": state.newest_end,
        "segments": totals.segments,
        "assigned": len(state.assigned()),
        "retired": len(state.segments) - totals.segments - len(state.assigned()) + len(state.replaced),
        "rewrites": len(state.rewrites),
        "entries": totals.entries,
        "payload_bytes": totals.payload_bytes,
        "object_bytes": totals.object_bytes,
        "gaps": len(state.gaps),
        "checkpoint": checkpoint or None,
        "records_since_checkpoint": state.record_id - checkpoint,
        "first_kept_record": None if boundary is None else boundary.first_kept_id,
    }


def _text(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name.endswith("_bytes") and isinstance(value, int):
        return bytes_text(value)
    if name == "time_ms" and isinstance(value, int):
        return time_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


_RECORD_COLUMNS = [
    Column("record", "RECORD", right=True),
    Column("time_ms", "TIME", time_text),
    Column("epoch", "EPOCH", right=True),
    Column("writer", "WRITER"),
    Column("edits", "EDITS", ", ".join),
]


def _record_rows(store: ObjectStore, loaded: LoadedManifest, count: int) -> Iterator[Mapping[str, object]]:
    """The newest existing records, the newest first."""
    for record in kept_records(store, loaded.state, newest_first=True, count=count):
        yield {
            "record": record.record_id,
            "time_ms": record.time_ms,
            "epoch": record.epoch,
            "writer": record.writer.name,
            "edits": [edit.kind for edit in record.edits],
        }


def _rebuild(
    store: ObjectStore,
    stream: str,
    head: str,
    closed: Sequence[str],
    accepted: Sequence[Range],
    settings: ManifestSettings,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    ends = [position_of(text, option="--closed") for text in closed]
    done = rebuild_manifest(
        store,
        stream,
        head=None if head == HEAD_FIRST else position_of(head, option="--head"),
        clock=SystemClock(),
        closed_ledgers={end.ledger_id: end.entry_id for end in ends},
        dry_run=dry_run,
        settings=settings,
    )
    _print_rebuild(done, as_json=as_json)
    lost = missing_ranges(done.missing, accepted, None)
    if lost:
        _print_loss(lost)
    return ErrorKind.REPAIR_DATA.value if lost else 0


def _print_loss(lost: Sequence[Range]) -> None:
    names = " ".join(f"--accept-loss {first}..{last}" for first, last in lost)
    sys.stderr.write(f"offloader: entries are missing; they are gaps from now on. Known and accepted: {names}\n")


def _expire(store: ObjectStore, stream: str, settings: ManifestSettings, *, dry_run: bool, as_json: bool) -> None:
    clock, entry = SystemClock(), read_entry(store, stream)
    if entry is None and not is_released(store, stream):
        raise NotFound(f"stream {stream} isn't in {store.url}", hint="`offloader ls` lists the streams")
    if not dry_run:
        require_no_global_hold(store)
    expired = None
    if entry is not None:
        state = ManifestState(stream=stream, incarnation=entry.incarnation)
        # Load first: nothing is deleted from an unreadable manifest.
        state = load_manifest_view(store, state).state
        expired = expire_records(store, state, clock=clock, settings=settings, dry_run=dry_run)
    swept = sweep_dead_incarnations(store, stream, clock=clock, settings=settings, dry_run=dry_run)
    unknown = [*(() if expired is None else expired.unknown), *(key for dead in swept.values() for key in dead.unknown)]
    facts = {
        "stream": stream,
        "dry_run": dry_run,
        "records": 0 if expired is None else expired.records,
        "checkpoints": 0 if expired is None else expired.checkpoints,
        "runs": 0 if expired is None else expired.runs,
        "first_kept_record": None if expired is None else expired.first_kept_id,
        "dead_incarnations": len(swept),
        "objects_of_dead_incarnations": sum(dead.objects for dead in swept.values()),
        "unknown": unknown,
    }
    if as_json:
        print(json_line(facts))
        return
    verb = "would delete" if dry_run else "deleted"
    print(
        f"{verb} {facts['records']:,} records, {facts['checkpoints']:,} checkpoints and {facts['runs']:,} runs, and "
        f"{facts['objects_of_dead_incarnations']:,} objects of {len(swept):,} dead incarnations"
    )
    if expired is not None:
        print(f"records from {expired.first_kept_id:,} on are kept")
    for key in unknown:
        print(f"unknown, stays: {key}")


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
    if as_json:
        print(json_line(facts))
    elif plan is None:
        print(f"record {newest:,} has its checkpoint already: nothing would be written")
    else:
        print(f"would write a checkpoint of record {state.record_id:,}: {facts['runs']} runs, {facts['bytes']:,} bytes")


_FOUND_COLUMNS = [
    Column("what", "WHAT"),
    Column("segment", "SEGMENT"),
    Column("layout", "LAYOUT"),
    Column("first", "FIRST", right=True),
    Column("last", "LAST", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("epoch", "EPOCH", right=True),
    Column("owned", "OURS", lambda owned: "-" if owned is None else "yes" if owned else "no"),
    Column("why", "WHY", lambda why: why or ""),
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
    if as_json:
        print(json_line(summary))
        return
    for first, last in done.missing:
        print(f"missing: {first}..{last}: recorded as a gap")
    for position in chosen.unproven:
        print(
            f"ledger {position.ledger_id} may go on after {position}: nothing is readable past it. If it ends there, "
            f"say --closed {position}"
        )
    if done.attached is not None:
        print(f"manifest {done.attached} can be read, only its catalogue entry was missing")
    verb = "would record" if state is None else "recorded"
    print(
        f"{verb} {len(chosen.recorded):,} segments; {len(chosen.overlapping):,} overlapping, "
        f"{len(chosen.before_head):,} before the head, {len(done.problems):,} not usable: those stay as they are"
    )


def _found_rows(done: Rebuild) -> Iterator[Mapping[str, object]]:
    chosen = done.chosen
    for what, segments in (
        ("recorded", chosen.recorded),
        ("overlapping", chosen.overlapping),
        ("before head", chosen.before_head),
    ):
        yield from (_found_row(what, segment) for segment in segments)
    for key, why in done.problems:
        yield {"what": "not usable", "segment": key, "why": why}
    for key in done.unknown:
        yield {"what": "unknown", "segment": key, "why": "not a name that this project gives"}


def _found_row(what: str, segment: FoundSegment) -> Mapping[str, object]:
    return {
        "what": what,
        "segment": str(segment.uuid),
        "layout": f"V{int(segment.summary.layout)}",
        "first": segment.summary.begin,
        "last": segment.summary.end,
        "entries": segment.summary.entries,
        "epoch": segment.epoch,
        "owned": segment.owned,
        "why": "its index is made anew" if segment.index is not None else "",
    }
