"""``offloader ls`` and ``offloader segments STREAM``: lists the streams of a store, and a stream's segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from formats.segment import SegmentSummary
from offloader.cli.errors import failure_of
from offloader.cli.options import Json, StoreArguments, Stream, argument
from offloader.cli.output import AMOUNTS, ENDS, Column, bytes_text, print_result, print_rows
from offloader.errors import InvalidCall, OffloaderError
from offloader.inspect.inspect import segment_row, timeline_of
from offloader.manifest.log import list_streams, load_manifest
from offloader.manifest.state import ManifestState
from offloader.plot import draw
from offloader.read.fetch import readable_segments, whole_range
from offloader.read.reader import load_stream, time_text
from offloader.store.base import ObjectStore
from offloader.write.upload import verify_objects

_STREAM_COLUMNS = [Column("stream", "STREAM"), Column("segments", "SEGMENTS", right=True), *AMOUNTS, *ENDS]


def list_stored(
    given: StoreArguments,
    prefix: Annotated[str, argument("Only streams whose name begins like this.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most streams shown; 0 = all.")] = 0,
    json: Json = False,
) -> int:
    """List the streams of a store: what each has in the cold tier."""
    opened = given.open()
    names = list_streams(opened, prefix=prefix)[: limit or None]
    codes: list[int] = []
    rows = _stream_rows(opened, names, codes)
    print_rows(rows, _STREAM_COLUMNS, as_json=json, empty=f"no streams in {opened.url}")
    return max(codes, default=0)


def _stream_rows(store: ObjectStore, names: list[str], codes: list[int]) -> Iterator[Mapping[str, object]]:
    """A row for each stream; a damaged one has its error, and its exit code is added to ``codes``."""
    for name in names:
        try:
            state = load_manifest(store, name)
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
            failure = failure_of(error)
            codes.append(failure.exit_code)
            broken = f"{name} ({failure.message})"
            yield {"stream": broken, "payload_bytes": 0, "object_bytes": 0, "error": failure.error}


#: Suffixes of plot files.
PICTURES = (".svg", ".png")

_COLUMNS = [
    Column("uuid", "SEGMENT"),
    Column("layout", "LAYOUT"),
    Column("status", "STATUS"),
    *ENDS,
    Column("ledgers", "LEDGERS", lambda ledgers: ",".join(map(str, ledgers)) or "-"),
    *AMOUNTS,
    Column("blocks", "BLOCKS", right=True),
    Column("publish_time_min_ms", "PUBLISHED FROM", time_text),
    Column("publish_time_max_ms", "TO", time_text),
    Column("offloaded_ms", "OFFLOADED", time_text),
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
    rows = [segment_row(record, stream) for record in state.segments.in_order()][: limit or None]
    print_rows(rows, _COLUMNS, as_json=json, empty=f"stream {stream} has no segments")


def _plot(state: ManifestState, path: Path, *, as_json: bool) -> None:
    if path.suffix not in PICTURES:
        raise InvalidCall(f"--plot {path}: a picture is {' or '.join(PICTURES)}", hint="give the file such a name")
    draw(timeline_of(state), path)
    print_result({"stream": state.stream, "picture": str(path)}, f"Picture: {path}", as_json=as_json)


STORED_COLUMNS = [Column("uuid", "SEGMENT"), Column("layout", "LAYOUT"), *ENDS, *AMOUNTS]


def stored_rows(
    store: ObjectStore, stream: str, segments: Iterable[tuple[UUID, SegmentSummary]]
) -> list[Mapping[str, Any]]:
    """A row for each segment, in the stream's order.

    Raises:
        ObjectMissing, ObjectChanged: the store differs from the manifest.
    """
    return [_row(store, stream, uuid, summary) for uuid, summary in sorted(segments, key=lambda each: each[1].begin)]


def stored_totals(rows: list[Mapping[str, Any]]) -> dict[str, int]:
    """Sums over the rows; each segment is two objects."""
    sums = {name: sum(row[name] for row in rows) for name in ("entries", "payload_bytes", "object_bytes")}
    return {"segments": len(rows), "objects": 2 * len(rows), **sums}


def totals_text(totals: Mapping[str, int], store: ObjectStore) -> str:
    """The same for people."""
    size = bytes_text(totals["payload_bytes"])
    return f"{totals['entries']:,} entries, {size}, in {totals['objects']} objects, each checked in {store.url}"


def _row(store: ObjectStore, stream: str, uuid: UUID, summary: SegmentSummary) -> Mapping[str, Any]:
    data, index = verify_objects(store, stream, uuid, summary)
    return {
        "uuid": str(uuid),
        "layout": f"V{int(summary.layout)}",
        "first": summary.begin,
        "last": summary.end,
        "entries": summary.entries,
        "payload_bytes": summary.payload_bytes,
        "object_bytes": summary.data_bytes + summary.index_bytes,
        "data": data,
        "index": index,
    }
