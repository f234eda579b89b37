"""``offloader cleanup audit``: what was deleted, by whom, when and why.

Owns how it is printed. Must never leave a batch out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from formats.deletion_record import DeletionRecord
from offloader.cleanup.audit import read_batches
from offloader.cli.options import Json, StoreArguments
from offloader.cli.output import Column, bytes_text, print_rows
from offloader.errors import NotFound
from offloader.manifest.catalog import list_streams
from offloader.read.times import time_text
from offloader.store.base import ObjectStore

__all__ = ["run"]

_COLUMNS = [
    Column("stream", "STREAM"),
    Column("done_ms", "WHEN", lambda done_ms: "not yet" if done_ms is None else time_text(done_ms)),
    Column("action", "ACTION"),
    Column("first", "FIRST", right=True),
    Column("last", "LAST", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("object_bytes", "BYTES", bytes_text, right=True),
    Column("by", "BY"),
    Column("rule", "WHY"),
]


def run(
    given: StoreArguments,
    stream: Annotated[str, typer.Argument(help="The stream's name.", show_default="every stream")] = "",
    json: Json = False,
) -> None:
    """List every segment that was deleted from the store: who decided, why, which objects, how many bytes, when.

    With --json one object per line, to be kept elsewhere: batches are remembered for cleanup.audit_days, at most
    cleanup.audit_records_max of a stream, and as long as the stream exists.
    """
    opened = given.open()
    streams = list_streams(opened)
    if stream and stream not in streams:
        raise NotFound(f"stream {stream} isn't in {opened.url}", hint="`offloader ls` lists the streams")
    rows = (row for name in ([stream] if stream else streams) for row in _rows(opened, name))
    print_rows(rows, _COLUMNS, as_json=json, empty="nothing was deleted")


def _rows(store: ObjectStore, stream: str) -> Iterator[Mapping[str, object]]:
    for done in (True, False):
        for batch in read_batches(store, stream, done=done):
            yield from _of_batch(batch)


def _of_batch(batch: DeletionRecord) -> Iterator[Mapping[str, object]]:
    for segment in batch.segments:
        yield {
            "stream": batch.stream,
            "incarnation": batch.incarnation,
            "batch": batch.name,
            "action": batch.action,
            "by": batch.by,
            "rule": batch.rule,
            "retire_record": batch.retire_record or None,
            "segment": segment.uuid,
            "keys": segment.keys,
            "first": segment.first,
            "last": segment.last,
            "entries": segment.entries,
            "object_bytes": segment.object_bytes,
            "planned_ms": batch.planned_ms,
            "done_ms": batch.done_ms,
            "attempts": batch.attempts,
            "problem": batch.problem or None,
        }
