"""The verb ls, which loads no more than it needs: people wait for it."""

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
    prefix: Annotated[str, argument("Only streams whose name begins like this.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most streams shown; 0 = all.")] = 0,
    json: Json = False,
) -> int:
    """List the streams of a store: what each has in the cold tier.

    A damaged stream, and one with objects and without a catalogue entry, has its error in the row, and the exit code
    isn't 0.
    """
    opened = given.open()
    codes: list[int] = []
    rows = islice(_stream_rows(opened, prefix, codes), limit or None)
    print_rows(rows, _STREAM_COLUMNS, as_json=json, empty=f"no streams in {opened.url}")
    return max(codes, default=0)


def _stream_rows(store: ObjectStore, prefix: str, codes: list[int]) -> Iterator[Mapping[str, object]]:
    """A row for each stream that wasn't deleted; of a damaged one its error, whose exit code goes into ``codes``."""
    for name in list_streams(store, prefix=prefix):
        try:
            state = load_manifest(store, name)
            if state.stream_deleted:  # its entry stays until the tombstone expires
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
                raise  # the store is unreachable, for every other stream too
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
