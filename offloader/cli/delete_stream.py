"""``offloader delete-stream STREAM``: deletes a whole stream, or all partitions of a topic.

Deletes only named streams, and only when confirmed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from offloader.cli.options import ConfigArguments, DryRun, Json, StreamOrTopic
from offloader.cli.output import bytes_text, counted, print_result
from offloader.errors import InvalidCall
from offloader.gc.delete_stream import StreamRemoval, removal_of, remove_stream
from offloader.manifest.catalog import read_entry, release_topics_of
from offloader.manifest.protection import time_for_deletion_ms
from offloader.retention.scope import find_scope
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore


def run(
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
    settings, clock = given.settings(stream), SystemClock()
    opened = given.open(settings, read_only=dry_run)
    streams = [stream]
    if read_entry(opened, stream) is None:
        streams = [each.stream for each in find_scope(opened, stream).partitions.values()]
    planned = [removal_of(opened, each, now_ms=clock.now_ms()) for each in streams]
    if dry_run:
        _print(planned, as_json=json)
        return
    if not yes:
        _ask(planned, opened)
    done = [
        remove_stream(opened, each, clock=clock, settings=settings.manifest, ignore_leases=ignore_leases)
        for each in streams
    ]
    now_ms = time_for_deletion_ms(opened, clock, skew_ms_max=settings.manifest.clock_skew_seconds_max * 1000)
    release_topics_of(opened, streams, clock=clock, now_ms=now_ms)
    _print(done, as_json=json)


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


def _print(found: Sequence[StreamRemoval], *, as_json: bool) -> None:
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
        print_result(facts, _lines(each), as_json=as_json)


def _lines(each: StreamRemoval) -> Iterator[str]:
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
