"""``offloader ls TOPIC --graph``: the segments of a scalable topic, as a picture in text and as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from formats.topic_layout import HASHES, RangeSegment, TopicLayout
from offloader.cli.output import Column, print_rows
from offloader.errors import InvalidCallError
from offloader.manifest.load import load_manifest
from offloader.manifest.names import named_streams
from offloader.manifest.topic_layouts import in_order, without_overlap
from offloader.read.ranges import readable_segments
from offloader.store.base import ObjectStore

#: Characters of the whole hash range: a segment of a 64th still has its borders and a digit.
WIDTH = 72

_COLUMNS = [
    Column("segment", "SEGMENT", right=True),
    Column("hashes", "HASHES"),
    Column("after", "AFTER", lambda parents: ",".join(map(str, parents)) or "-"),
    Column("state", "STATE"),
    Column("entries", "ENTRIES", right=True),
    Column("last", "LAST"),
    Column("stream", "STREAM", less=1),
]


def print_graph(store: ObjectStore, topic: str, *, as_json: bool) -> None:
    """Prints the layout of a scalable topic.

    Raises:
        InvalidCallError: it isn't a scalable topic.
    """
    named = named_streams(store, topic)
    if named.layout is None:
        raise InvalidCallError(
            f"--graph shows the segments of a scalable topic, and {topic} is none with a recorded layout",
            hint="names look like topic://tenant/namespace/topic; `offloader ls STREAM` lists a stream's segments",
        )
    if not as_json:
        print(f"{named.layout.topic}: {len(named.layout.segments)} segments, epoch {named.layout.epoch}\n")
        print("\n".join(picture(named.layout)), end="\n\n")
    print_rows(_rows(store, named.layout, set(named.streams)), _COLUMNS, as_json=as_json, empty="no segments")


def _rows(store: ObjectStore, layout: TopicLayout, there: set[str]) -> Iterator[Mapping[str, object]]:
    for row in (row for group in in_order(layout) for row in group):
        entries, last = 0, None
        if row.stream in there:
            state = load_manifest(store, row.stream)
            entries, last = readable_segments(state).sums().entries, state.committed_end()
        is_short = row.end is not None and row.end.entry_id >= 0 and (last is None or last < row.end)
        yield {
            "segment": row.id,
            "hashes": f"{row.hash_start:04x}-{row.hash_stop - 1:04x}",
            "after": list(row.parents),
            "state": _state(row, is_short=is_short),
            "entries": entries,
            "last": last,
            "stream": row.stream,
        }


def _state(row: RangeSegment, *, is_short: bool) -> str:
    if not row.is_sealed:
        return "active"
    if row.end is None:
        return "sealed, end unknown"
    return f"sealed, offloading until {row.end}" if is_short else "complete"


def picture(layout: TopicLayout) -> list[str]:
    """A line per step of the topic's history, from its first segments down; each segment is as wide as its hashes.

    Segments that continue others are below them. A segment whose hashes overlap those of another one in its line has a
    line of its own: the partitions of a migrated topic.
    """
    lines = [f"{'0000':<{WIDTH // 2}}{HASHES // 2:04x}{'ffff':>{WIDTH // 2 - 3}}"]
    for group in in_order(layout):
        for line in without_overlap(group):
            cells = [" "] * (WIDTH + 1)
            for row in line:
                _draw(cells, row)
            lines.append("".join(cells).rstrip())
    return lines


def _draw(cells: list[str], row: RangeSegment) -> None:
    start, stop = (round(hash_value * WIDTH / HASHES) for hash_value in (row.hash_start, row.hash_stop))
    stop = max(stop, start + 2)
    fill = "-" if row.is_sealed else "="
    label = f" {row.id} " if stop - start > len(str(row.id)) + 2 else str(row.id)[: stop - start - 1]
    inner = label.center(stop - start - 1, fill)
    cells[start : stop + 1] = ["|", *inner, "|"][: len(cells) - start]
