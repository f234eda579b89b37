"""Truncation requested over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formats.entries import Position
from offloader.errors import InvalidCallError
from offloader.manifest.log import ManifestLog
from offloader.retention.broker import first_listed, listed_by_source
from offloader.retention.scope import find_scope, require_no_segments
from offloader.retention.truncate import Truncation, truncate_stream, truncate_topic
from offloader.runtime.clock import Clock
from offloader.service.positions import positions_of
from offloader.service.streams import ServedStreams
from offloader.store.base import ObjectStore


def truncate(
    store: ObjectStore, name: str, before: object, *, clock: Clock, streams: ServedStreams, by: str
) -> dict[str, Any]:
    """Moves the start position of a stream, or of the named partitions of a topic, and returns the truncated segments.

    Refused if entries before the position aren't offloaded, or if a broker lists a ledger there.

    Args:
        before: the new start position, or positions by partition.
        streams: streams of this process, whose hot ledgers before the position are deleted too.
        by: the caller, for display.

    Raises:
        InvalidCallError: ``before`` is not a position, or a partition doesn't exist.
        Like ``truncate_stream``, ``truncate_topic``, ``first_listed``.
    """
    wanted = positions_of(before, "before")
    scope = find_scope(store, name)
    require_no_segments(scope)
    if scope.is_topic != isinstance(wanted, Mapping):
        has = f"has {len(scope.partitions)} partitions" if scope.is_topic else "has no partitions"
        raise InvalidCallError(f"before: {name} {has}", hint='{"0": "7:12"}' if scope.is_topic else '"7:12"')
    if isinstance(wanted, Position):
        heads = {name: wanted}
    else:
        unknown = [number for number in wanted if number not in scope.partitions]
        if unknown:
            raise InvalidCallError(
                f"before: {name} has no partition {unknown[0]}", hint="GET the stream for its partitions"
            )
        heads = {scope.partitions[number].stream: position for number, position in wanted.items()}
    settings = streams.settings_of(name)
    has_plugin = streams.settings_of("").pulsar.broker_plugin
    listed = first_listed(listed_by_source(streams.source_of), [*heads]) if has_plugin else {}
    if isinstance(wanted, Position):
        done = truncate_stream(
            ManifestLog(store, name, clock=clock, settings=settings.manifest),
            wanted,
            clock=clock,
            source=streams.source_of(name),
            method=settings.offload.method,
            listed=listed.get(name),
        )
        return _row(done)
    rows = [
        _row(each)
        for each in truncate_topic(
            *(store, name, heads), clock=clock, by=by, source_of=streams.source_of, listed=listed
        ).values()
    ]
    sums = {key: sum(row[key] for row in rows) for key in ("segments", "entries")}
    return {"stream": name, "head": None, "moved": any(row["moved"] for row in rows), **sums, "partitions": rows}


def _row(done: Truncation) -> dict[str, Any]:
    return {
        "stream": done.stream,
        "head": str(done.head),
        "moved": done.moves,
        "ledgers": list(done.ledgers),
        "segments": done.segments,
        "entries": done.entries,
    }
