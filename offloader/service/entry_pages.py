"""Pages of a stream's entries, of both tiers, for HTTP; of a topic with partitions all of them by publish time."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from formats.entries import TIME_UNKNOWN_MS, Entry, Position
from offloader.errors import BeyondEnd, InvalidCall
from offloader.ledgers.base import LedgerSource
from offloader.manifest.names import named_streams
from offloader.read.partitions import merge_published
from offloader.read.reader import Reader, open_reader
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

#: Payload bytes that end a page; a larger entry is a page of its own.
PAGE_BYTES_MAX = 512 * 1024
#: Partitions of a page's topic: its cursor has a place in each.
PARTITIONS_MAX = 100
#: Readers of one page have one small request in flight each.
_SETTINGS = ReadSettings(request_bytes=1024 * 1024, requests_in_flight_max=1, batch_bytes=PAGE_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryQuery:
    """Which entries.

    Attributes:
        first: of one stream; ``None``: by ``from_ms``, else the first there is.
        from_ms, to_ms: publish times, the end excluded; ``None``: no bound.
        after: ``next_after`` of the page before; empty: the first page.
        limit: most entries.
    """

    first: Position | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    after: str = ""
    limit: int = 100


def entry_page(
    store: ObjectStore, name: str, source_of: Callable[[str], LedgerSource | None], query: EntryQuery
) -> tuple[list[dict[str, Any]], str | None]:
    """A page's rows, and the place of the next page; ``None``: there is nothing more now.

    Raises:
        NotFound: no such stream and no such topic.
        InvalidCall: a position in a topic with partitions, or two beginnings, or ``after`` isn't a place.
        Trimmed, BeyondEnd: ``first`` or a place isn't in the stream (any more).
    """
    named = named_streams(store, name)
    if named.partitions and query.first is not None:
        raise InvalidCall(
            f"{named.name} has {len(named.partitions)} partitions, and a position is of one",
            hint=f"give from_time, or ask for one of them: {named.streams[0]}",
        )
    if query.first is not None and query.from_ms is not None:
        raise InvalidCall("from and from_time both say where to begin", hint="leave one of them out")
    if len(named.partitions) > PARTITIONS_MAX:
        raise InvalidCall(f"{named.name} has more than {PARTITIONS_MAX} partitions", hint="ask for one of them")
    places = _places(query.after)
    numbers: list[int | None] = list(named.partitions) or [None]
    with ExitStack() as stack:
        readers = [
            stack.enter_context(open_reader(store, each, settings=_SETTINGS, source=source_of(each)))
            for each in named.streams
        ]
        both = list(zip(readers, numbers, strict=True))
        begins = [
            places.get(str(number))
            or query.first
            or (None if query.from_ms is None else reader.position_at(query.from_ms))
            for reader, number in both
        ]
        ranges = [_range(reader, query, begin) for reader, begin in zip(readers, begins, strict=True)]
        scans = [
            reader.scan(*chosen) if chosen is not None else iter(())
            for reader, chosen in zip(readers, ranges, strict=True)
        ]
        reached = dict(zip(map(str, numbers), begins, strict=True))
        rows: list[dict[str, Any]] = []
        size_bytes = 0
        with closing(merge_published(scans)) as merged:
            for at, batch in merged:
                for entry in batch.entries():
                    if len(rows) == query.limit or (rows and size_bytes + len(entry.payload) > PAGE_BYTES_MAX):
                        return rows, json.dumps({key: str(each) for key, each in reached.items() if each is not None})
                    rows.append(_row(readers[at].stream, numbers[at], entry))
                    size_bytes += len(entry.payload)
                    reached[str(numbers[at])] = entry.position.next()
        return rows, None


def _range(reader: Reader, query: EntryQuery, begin: Position | None) -> tuple[Position | None, Position | None] | None:
    """First and last position; ``None``: nothing of the stream is wanted."""
    last = reader.last_position
    if last is None or (begin is None and query.from_ms is not None):
        return None
    if begin is not None and begin > last:
        if begin == query.first and begin != last.next():
            raise BeyondEnd(
                f"stream {reader.stream}: position {begin} is beyond the last readable entry {last}",
                last_available=last,
                hint=f"begin at {last.next()} or earlier",
            )
        return None
    return reader.range_of(begin, None, None, query.to_ms)


def _places(after: str) -> Mapping[str, Position]:
    """Partition's number, or ``None`` -> where it goes on."""
    if not after:
        return {}
    try:
        return {key: Position.parse(text) for key, text in json.loads(after).items()}
    except (ValueError, AttributeError, TypeError, RecursionError) as cause:
        raise InvalidCall("cursor: no place in this list", hint="take next_cursor of the page before") from cause


def _row(stream: str, number: int | None, entry: Entry) -> dict[str, Any]:
    known = entry.publish_time_ms != TIME_UNKNOWN_MS
    return {
        **({} if number is None else {"stream": stream, "partition": number}),
        "position": str(entry.position),
        "publish_time_ms": entry.publish_time_ms if known else None,
        "payload_base64": base64.b64encode(entry.payload).decode("ascii"),
    }
