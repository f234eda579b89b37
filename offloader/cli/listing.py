"""``offloader ls``, which imports as little as possible for a short start time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated

import typer

from offloader.cli.errors import failure_of
from offloader.cli.options import Json, StoreArguments, argument
from offloader.cli.output import AMOUNTS, ENDS, Column, print_rows
from offloader.errors import OffloaderError
from offloader.manifest.catalog import list_streams
from offloader.manifest.load import load_manifest
from offloader.manifest.unlisted import unlisted_streams
from offloader.read.ranges import readable_segments, whole_range
from offloader.store.base import ObjectStore

_STREAM_COLUMNS = [Column("stream", "STREAM"), Column("segments", "SEGMENTS", right=True, less=1), *AMOUNTS, *ENDS]


def list_stored(
    given: StoreArguments,
    prefix: Annotated[str, argument("Only streams whose names begin with PREFIX.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number of streams; 0 = all.")] = 0,
    json: Json = False,
) -> int:
    """List the streams of a store with their offloaded entries.

    The row of a damaged stream, or of one with objects but without a catalogue entry, shows the error; the exit code is
    then not 0.
    """
    opened = given.open()
    codes: list[int] = []
    rows = islice(_stream_rows(opened, prefix, codes), limit or None)
    print_rows(rows, _STREAM_COLUMNS, as_json=json, empty=f"no streams in {opened.url}")
    return max(codes, default=0)


def _stream_rows(store: ObjectStore, prefix: str, codes: list[int]) -> Iterator[Mapping[str, object]]:
    """A row for each stream that isn't deleted; the exit code of a damaged stream's error goes into ``codes``."""
    for name in list_streams(store, prefix=prefix):
        try:
            state = load_manifest(store, name)
            if state.stream_deleted:  # the catalogue keeps its entry until the tombstone expires
                continue
            ends = whole_range(state)
            sums = readable_segments(state).sums()
            yield {
                "stream": name,
                "segments": sums.segments,
                "entries": sums.entries,
                "payload_bytes": sums.payload_bytes,
                "object_bytes": sums.object_bytes,
                "first": ends[0] if ends else None,
                "last": ends[1] if ends else None,
            }
        except OffloaderError as error:
            if error.retryable:
                raise  # an unreachable store fails for all streams
            yield _damaged_row(name, error, codes)
    known = list_streams(store, released=True)
    for name, lost in unlisted_streams(store, known, prefix=prefix):
        yield _damaged_row(name, lost, codes)


def _damaged_row(name: str, error: OffloaderError, codes: list[int]) -> Mapping[str, object]:
    failure = failure_of(error)
    codes.append(failure.exit_code)
    return {
        "stream": f"{name} ({failure.message})",
        "payload_bytes": 0,
        "object_bytes": 0,
        "error": failure.error,
    }
