"""Verbs that change one stream: pause, resume, accept-source, accept-loss, delete-stream.

A pause is reported only after its record is durable. Deletes only named streams, and only when confirmed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Annotated

import typer

from offloader.cli.options import ConfigArguments, DryRun, Json, LedgerArguments, Stream, StreamOrTopic, TakeOver
from offloader.cli.output import bytes_text, counted, print_result
from offloader.errors import InvalidCall
from offloader.gc.delete_stream import StreamRemoval, removal_of, remove_stream
from offloader.manifest.catalog import read_entry
from offloader.manifest.deletion_clock import time_for_deletion_ms
from offloader.manifest.log import ManifestLog
from offloader.manifest.topics import release_topics_of
from offloader.read.reader import load_stream
from offloader.retention.scope import find_scope
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.write import epoch as accepting
from offloader.write.backfill_service import BackfillService
from offloader.write.offloader import LedgerOffloader


def pause(
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
    # Check that the stream exists before probing the store with a write.
    load_stream(given.prepared(stream)[1], stream)
    settings, opened = given.prepared(stream, read_only=False)
    with closing(LedgerOffloader(opened, settings)) as offloader:
        done = change(offloader.history)
    state = load_stream(opened, stream)
    left, end = len(state.assigned()), state.committed_end()
    facts = {"stream": stream, "paused": state.paused, "changed": done, "assigned": left, "committed": end}
    under_way = f"; {counted(left, 'assigned segment completes', 'assigned segments complete')}" if left else ""
    text = f"{stream} {changed if done else as_it_was}: committed is {end or 'nothing'}{under_way}"
    print_result(facts, text, as_json=as_json)


def accept_source(stream: Stream, given: LedgerArguments, dry_run: DryRun = False, json: Json = False) -> None:
    """Make a ledger database the stream's hot tier, whatever its manifest knows of another one.

    For a database that was lost, restored from an older backup, or replaced. Nothing is deleted: complete segments that
    were on their way are kept, what is missing becomes a gap, and ledgers of the database that contradict the manifest
    are left aside: never offloaded, released or deleted. Stop the process that appends first. There is no undo.
    """
    settings, opened = given.prepared(stream, read_only=dry_run)
    given.require_ledgers()
    load_stream(opened, stream)  # require the stream before the database creates it
    clock = SystemClock()
    with closing(given.open_ledgers(create=not dry_run)) as database:
        if not dry_run:
            database.accept_loss(stream)
            if stream not in database.streams():
                database.open_stream(stream, held=True)
        source = database.view_stream(stream, may_delete=not dry_run)
        log = ManifestLog(opened, stream, clock=clock, settings=settings.manifest)
        done = accepting.accept_source(log, source, settings=settings.offload, clock=clock, dry_run=dry_run)
    nothing = f"ledger database {done.source} is the one that the manifest of {stream} knows: nothing to do"
    lines = [f"{stream}: {done.why}", *_accepted_lines(done, dry_run=dry_run)] if done.why else [nothing]
    print_result(_accepted(done, dry_run=dry_run), lines, as_json=json)


def accept_loss(
    stream: Stream, given: LedgerArguments, take_over: TakeOver = False, dry_run: DryRun = False, json: Json = False
) -> None:
    """Open a stream again whose ledger database lacks entries that it acknowledged.

    Their positions stay used. What the object store doesn't have of them becomes a gap of the manifest, whatever
    on_gap says. A segment that is on its way is taken from its writer and kept if it is complete. Restore the database
    instead if there is a copy that has them. Stop the process that appends first. There is no undo.
    """
    given.require_ledgers()
    settings, opened = given.prepared(stream, read_only=dry_run)
    clock, recorded = SystemClock(), None
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
        "manifest": None if recorded is None else _accepted(recorded, dry_run=dry_run),
    }
    verb = "would be lost" if dry_run else "lost"
    lines = [f"{verb} from the ledger database: {each.first} up to {each.last}" for each in lost]
    lines = lines or [f"ledger database {given.ledgers} has everything of {stream} that it acknowledged"]
    if recorded is not None and recorded.record_id is not None:
        lines += _accepted_lines(recorded, dry_run=dry_run)
    print_result(facts, lines, as_json=json)


def _accepted(done: accepting.Acceptance, *, dry_run: bool) -> Mapping[str, object]:
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


def _accepted_lines(done: accepting.Acceptance, *, dry_run: bool) -> Sequence[str]:
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


def delete_stream(
    stream: StreamOrTopic,
    given: ConfigArguments,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    ignore_leases: Annotated[
        bool, typer.Option("--ignore-leases", help="Also while a reader holds a lease on it.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Delete a stream: all its segments, unfinished uploads, what is remembered of it, and its manifest.

    There is no undo. Writers stop at their next record. A tombstone stays for orphan_age_min, so that one that
    stalled notices; call this again then, or let `offloader cleanup run` finish it. The hot tier isn't touched.
    """
    clock, streams = SystemClock(), [stream]
    settings, opened = given.prepared(stream, read_only=dry_run)
    if read_entry(opened, stream) is None:
        streams = [each.stream for each in find_scope(opened, stream).partitions.values()]
    planned = [removal_of(opened, each, now_ms=clock.now_ms()) for each in streams]
    if dry_run:
        _print_removed(planned, as_json=json)
        return
    if not yes:
        _ask(planned, opened)
    done = [
        remove_stream(opened, each, clock=clock, settings=settings.manifest, ignore_leases=ignore_leases)
        for each in streams
    ]
    now_ms = time_for_deletion_ms(opened, clock, skew_ms_max=settings.manifest.clock_skew_seconds_max * 1000)
    release_topics_of(opened, streams, clock=clock, now_ms=now_ms)
    _print_removed(done, as_json=json)


def _ask(planned: Sequence[StreamRemoval], store: ObjectStore) -> None:
    what = f"{planned[0].stream}" if len(planned) == 1 else f"{len(planned)} streams, {planned[0].stream} ..."
    size_bytes = sum(each.object_bytes for each in planned)
    if not sys.stdin.isatty():
        raise InvalidCall(
            f"deleting {what} ({bytes_text(size_bytes)}) from {store.url} can't be undone",
            hint="look at it with --dry-run, then say --yes",
        )
    if not typer.confirm(f"Delete {what}, {bytes_text(size_bytes)}, from {store.url}, for good?", err=True):
        raise InvalidCall("nothing was deleted", hint="say --yes to be sure")


def _print_removed(found: Sequence[StreamRemoval], *, as_json: bool) -> None:
    for each in found:
        facts = {
            "stream": each.stream,
            "dry_run": each.deletion is None,
            "objects": each.objects,
            "object_bytes": each.object_bytes,
            "uploads": each.uploads,
            "readers": each.readers,
            "adopted_segments_kept": each.adopted,
            "foreign": each.foreign,
            "finished": each.deletion is not None and each.deletion.is_finished,
        }
        print_result(facts, _removal_lines(each), as_json=as_json)


def _removal_lines(each: StreamRemoval) -> Iterator[str]:
    verb = "would delete" if each.deletion is None else "deleted"
    yield (
        f"{each.stream}: {verb} {counted(each.objects, 'object')}, {bytes_text(each.object_bytes)}, and "
        f"{counted(each.uploads, 'unfinished upload')}"
    )
    for key in each.foreign:
        yield f"not ours, stays: {key}"
    if each.readers:
        yield f"read by {', '.join(each.readers)}"
    if each.adopted:
        yield f"the objects of {counted(each.adopted, 'adopted segment')} stay: they aren't ours"
    if each.deletion is not None and not each.deletion.is_finished:
        yield f"{each.stream}: its tombstone goes with a later `offloader cleanup run`, or this command again"
