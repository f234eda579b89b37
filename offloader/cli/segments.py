"""The rows and the picture of ``offloader ls STREAM``: a stream's segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import islice
from pathlib import Path

from offloader.cli.output import AMOUNTS, ENDS, Column, print_result, print_rows
from offloader.errors import InvalidCallError
from offloader.inspect.inspect import segment_row, timeline_of
from offloader.manifest.failed_segments import failed_segments
from offloader.manifest.names import named_streams
from offloader.manifest.state import ManifestState
from offloader.plot import draw
from offloader.read.reader import load_stream
from offloader.store.base import ObjectStore
from offloader.times import time_text

#: Suffixes of plot files.
PICTURES = (".svg", ".png")

_SEGMENT_COLUMNS = [
    Column("uuid", "SEGMENT"),
    Column("layout", "LAYOUT", less=6),
    Column("status", "STATUS", less=7),
    *ENDS,
    Column("ledgers", "LEDGERS", lambda ledgers: ",".join(map(str, ledgers)) or "-", less=8),
    *AMOUNTS,
    Column("blocks", "BLOCKS", right=True, less=9),
    Column("publish_time_min_ms", "PUBLISHED FROM", time_text, less=11),
    Column("publish_time_max_ms", "TO", time_text, less=10),
    Column("offloaded_ms", "OFFLOADED", time_text, less=12),
]
#: With ``--all``.
_FAILED_COLUMNS = [Column("failed_ms", "FAILED", time_text, less=13), Column("reason", "WHY", less=14)]


def print_segments(store: ObjectStore, stream: str, limit: int, *, everything: bool, as_json: bool) -> None:
    """Prints the segments of a stream, or of all partitions of a topic, in order.

    Args:
        limit: maximum number of segments; 0: all.
        everything: with those that failed.
    """
    named = named_streams(store, stream)
    states = [load_stream(store, each) for each in named.streams]
    rows = (
        {**({"stream": state.stream} if named.partitions else {}), **row}
        for state in states
        for row in _segment_rows(store, state, everything=everything)
    )
    columns = [*([Column("stream", "STREAM")] if named.partitions else []), *_SEGMENT_COLUMNS]
    columns += _FAILED_COLUMNS if everything else []
    print_rows(islice(rows, limit or None), columns, as_json=as_json, empty=f"stream {stream} has no segments")


def plot_segments(store: ObjectStore, stream: str, path: Path, *, as_json: bool) -> None:
    """Draws the segments of one stream.

    Raises:
        InvalidCallError: a topic with partitions, or a file that is no picture.
    """
    named = named_streams(store, stream)
    if len(named.streams) > 1:
        raise InvalidCallError(
            f"--plot draws one stream, and {stream} has {len(named.streams)} partitions",
            hint=f"name {named.streams[0]}",
        )
    if path.suffix not in PICTURES:
        raise InvalidCallError(
            f"--plot {path}: a picture is {' or '.join(PICTURES)}", hint="use a file name with one of these suffixes"
        )
    state = load_stream(store, named.streams[0])
    draw(timeline_of(state), path)
    print_result({"stream": state.stream, "picture": str(path)}, f"Picture: {path}", as_json=as_json)


def _segment_rows(store: ObjectStore, state: ManifestState, *, everything: bool) -> Iterator[Mapping[str, object]]:
    """Rows in the stream's order; a failed segment before those that replaced it."""
    given_up = sorted(failed_segments(store, state), key=lambda each: each.record.begin) if everything else []
    failed = ((each.record, {"failed_ms": each.failed_ms, "reason": each.reason}) for each in given_up)
    empty: Mapping[str, object] = {"failed_ms": None, "reason": None} if everything else {}
    listed = ((record, empty) for record in state.segments.in_order())
    for record, more in merge(failed, listed, key=lambda each: each[0].begin):
        yield {**segment_row(record, state.stream), **more}
