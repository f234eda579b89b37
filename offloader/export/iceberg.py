"""Export a stream or a topic to an Iceberg table, and protect entries that the table does not have yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from formats.entries import Position
from formats.pulsar.messages import BadEntry
from offloader import iceberg
from offloader.errors import InvalidCallError
from offloader.iceberg import RANGE_BYTES_MAX, Exported
from offloader.iceberg.columns import Values
from offloader.manifest.names import named_streams
from offloader.read.schemas import ValueSchemas
from offloader.read.typed_values import typed_decoder
from offloader.read.values import VersionedDecoders
from offloader.retention.cuts import partition_segment
from offloader.retention.subscribers import StreamRetention, open_retention
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

if TYPE_CHECKING:
    from pyiceberg.table import Table


def export_topic(
    store: ObjectStore,
    name: str,
    table: Table,
    *,
    schemas: ValueSchemas,
    settings_of: Callable[[str], ReadSettings | None],
    skip_lost: bool = False,
    subscriber: str = "",
    range_bytes: int = RANGE_BYTES_MAX,
    bad_messages: BadEntry = BadEntry.ERROR,
    stop: threading.Event | None = None,
) -> list[Exported]:
    """Add the new entries of a stream, or of all partitions of a topic, to a table.

    Args:
        schemas: of the values, for a column ``decoded``.
        settings_of: a stream's settings of reads.
        subscriber: retention keeps the entries that the table lacks for this subscriber, which is added first. Its
            positions are acknowledged after all partitions are exported. Empty: none.

    Raises:
        as ``offloader.iceberg.export`` and ``open_retention``.
    """
    named = named_streams(store, name)
    retention = open_retention(store, named.name) if subscriber else None
    if retention is not None:
        retention.add(subscriber)
    done = [
        iceberg.export(
            store,
            each,
            table,
            skip_lost=skip_lost,
            range_bytes=range_bytes,
            bad_messages=bad_messages,
            values=values_of(schemas, store, each if named.layout is None else named.name),
            settings=settings_of(each),
            stop=stop,
        )
        for each in named.streams
    ]
    if retention is not None:
        ends: dict[int, Position] = {
            number: each.end.next() for number, each in zip(named.partitions or [0], done, strict=True) if each.end
        }
        if ends:
            _publish(retention, subscriber, ends)
    return done


def values_of(schemas: ValueSchemas, store: ObjectStore, stream: str) -> Values | None:
    """The decoders of a stream's values; ``None``: values are bytes. Raises as ``ValueSchemas.decoders``."""
    found = schemas.decoders(store, stream, typed_decoder)
    return None if found is None else VersionedDecoders(*found)


def _publish(retention: StreamRetention, subscriber: str, ends: dict[int, Position]) -> None:
    """Acknowledges the table's position of each partition; another exporter of that subscriber may be further."""
    try:
        retention.publish(subscriber, ends)
    except InvalidCallError:
        found = retention.registry().subscribers.get(subscriber)
        known = {} if found is None or found.cut is None else found.cut.offsets
        for number, end in ends.items():
            place = known.get(partition_segment(number))
            if not isinstance(place, Position) or place < end:
                raise
