"""``offloader ls``, which imports as little as possible for a short start time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from offloader.cli.errors import failure_of
from offloader.cli.options import Json, StoreArguments, name_argument, option
from offloader.cli.output import AMOUNTS, ENDS, Column, print_rows
from offloader.errors import InvalidCallError, OffloaderError
from offloader.manifest.catalog import list_streams
from offloader.manifest.load import load_manifest
from offloader.manifest.unlisted import unlisted_streams
from offloader.read.ranges import readable_segments, whole_range
from offloader.store.base import ObjectStore

_STREAM_COLUMNS = [Column("stream", "STREAM"), Column("segments", "SEGMENTS", right=True, less=1), *AMOUNTS, *ENDS]


def list_stored(
    given: StoreArguments,
    stream: Annotated[
        str, name_argument("List the segments of this stream or topic: persistent://tenant/namespace/topic.")
    ] = "",
    prefix: Annotated[str, option("--prefix", "Only streams whose names begin with PREFIX.", metavar="PREFIX")] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number of rows; 0 = all.")] = 0,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="With STREAM: also list segments that failed, with the reason; reads all records of the manifest.",
        ),
    ] = False,
    plot: Annotated[
        str,
        typer.Option(
            "--plot", metavar="FILE", help="With STREAM: draw ledgers, segments and time to FILE.svg or FILE.png."
        ),
    ] = "",
    graph: Annotated[
        bool,
        typer.Option("--graph", help="With a scalable topic (topic://...): show how its segments split and merge."),
    ] = False,
    json: Json = False,
) -> int:
    """List the streams of a store with their offloaded entries, or the segments of STREAM.

    Without STREAM, the row of a damaged stream, or of one with objects but without a catalogue entry, shows the error;
    the exit code is then not 0. With STREAM, segments are listed in order, with positions, ledgers, sizes and times;
    --json also prints their objects.

    Examples:
        offloader ls --store s3://bucket
        offloader ls --prefix public/default/ --json
        offloader ls orders --all
        offloader ls orders --plot segments.svg
        offloader ls topic://public/default/orders --graph
    """
    if graph:
        if not stream or prefix or limit or everything or plot:
            raise InvalidCallError("--graph needs the name of a scalable topic, and no other option")
        from offloader.cli.graph import print_graph  # the list of streams doesn't need it

        print_graph(given.open(), stream, as_json=json)
        return 0
    if stream:
        _list_segments(given, stream, prefix, limit, everything=everything, plot=plot, as_json=json)
        return 0
    if everything or plot:
        raise InvalidCallError("--all and --plot need the name of a stream", hint="`offloader ls STREAM`")
    opened = given.open()
    codes: list[int] = []
    rows = islice(_stream_rows(opened, prefix, codes), limit or None)
    print_rows(rows, _STREAM_COLUMNS, as_json=json, empty=f"no streams in {opened.url}")
    return max(codes, default=0)


def _list_segments(
    given: StoreArguments, stream: str, prefix: str, limit: int, *, everything: bool, plot: str, as_json: bool
) -> None:
    from offloader.cli.segments import plot_segments, print_segments  # the list of streams needs neither

    if prefix:
        raise InvalidCallError("--prefix selects streams, and STREAM names one", hint="leave one of them out")
    if plot and (limit or everything):
        raise InvalidCallError(
            "--plot draws all segments of the manifest; --limit and --all apply to the list only",
            hint="leave out --plot, or leave out --limit and --all",
        )
    opened = given.open()
    if plot:
        plot_segments(opened, stream, Path(plot), as_json=as_json)
    else:
        print_segments(opened, stream, limit, everything=everything, as_json=as_json)


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
