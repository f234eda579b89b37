"""``offloader segments STREAM``: what a stream's manifest says of its segments.

Owns that table. Must never look at the objects: that is verifying.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloader.cli.options import Json, StoreArguments, Stream
from offloader.cli.output import Column, bytes_text, json_line, print_rows
from offloader.errors import InvalidCall
from offloader.manifest.state import ManifestState
from offloader.picture import draw
from offloader.read.segment_rows import segment_row
from offloader.read.stream_shape import shape_of
from offloader.read.streams import load_stream
from offloader.read.times import time_text

__all__ = ["run"]


def _time(value: int | None) -> str:
    return "-" if value is None else time_text(value)


def _size(value: int | None) -> str:
    return "-" if value is None else bytes_text(value)


def _plain(value: object) -> str:
    return "-" if value is None else str(value)


#: Suffixes of files that ``--plot`` writes.
PICTURES = (".svg", ".png")

_COLUMNS = [
    Column("uuid", "SEGMENT"),
    Column("layout", "LAYOUT"),
    Column("status", "STATUS"),
    Column("first", "FIRST", _plain, right=True),
    Column("last", "LAST", _plain, right=True),
    Column("ledgers", "LEDGERS", lambda ledgers: ",".join(map(str, ledgers)) or "-"),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", _size, right=True),
    Column("object_bytes", "STORED", _size, right=True),
    Column("blocks", "BLOCKS", right=True),
    Column("publish_time_min_ms", "PUBLISHED FROM", _time),
    Column("publish_time_max_ms", "TO", _time),
    Column("offloaded_ms", "OFFLOADED", _time),
]


def run(
    stream: Stream,
    given: StoreArguments,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most segments shown; 0 = all.")] = 0,
    plot: Annotated[
        str,
        typer.Option("--plot", metavar="FILE", help="Draw ledgers, segments, time into FILE.svg or FILE.png."),
    ] = "",
    json: Json = False,
) -> None:
    """List a stream's segments in the stream's order: positions, ledgers, sizes, times; with --json the objects too."""
    opened = given.open()
    state = load_stream(opened, stream)
    if plot:
        _plot(state, Path(plot), as_json=json)
        return
    rows = [segment_row(record, stream) for record in state.segments.in_order()]
    print_rows(
        rows[:limit] if limit else rows,
        _COLUMNS,
        as_json=json,
        empty=f"stream {stream} has no segments",
    )


def _plot(state: ManifestState, path: Path, *, as_json: bool) -> None:
    if path.suffix not in PICTURES:
        raise InvalidCall(f"--plot {path}: a picture is {' or '.join(PICTURES)}", hint="give the file such a name")
    draw(shape_of(state), path)
    print(json_line({"stream": state.stream, "picture": str(path)}) if as_json else f"Picture: {path}")
