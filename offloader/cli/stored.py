"""What a verb has brought into the store, and checked there: a row for each segment, and their sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from formats.segment import SegmentSummary
from offloader.cli.output import AMOUNTS, ENDS, Column, bytes_text
from offloader.store.base import ObjectStore
from offloader.write.upload import verify_objects

STORED_COLUMNS = [Column("uuid", "SEGMENT"), Column("layout", "LAYOUT"), *ENDS, *AMOUNTS]


def stored_rows(
    store: ObjectStore, stream: str, segments: Iterable[tuple[UUID, SegmentSummary]]
) -> list[Mapping[str, Any]]:
    """A row for each segment, in the stream's order.

    Raises:
        ObjectMissing, ObjectChanged: the store differs from the manifest.
    """
    rows: list[Mapping[str, Any]] = []
    for uuid, summary in sorted(segments, key=lambda each: each[1].begin):
        data, index = verify_objects(store, stream, uuid, summary)
        row = {
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
        rows.append(row)
    return rows


def stored_totals(rows: list[Mapping[str, Any]]) -> dict[str, int]:
    """Sums over the rows; each segment is two objects."""
    sums = {name: sum(row[name] for row in rows) for name in ("entries", "payload_bytes", "object_bytes")}
    return {"segments": len(rows), "objects": 2 * len(rows), **sums}


def totals_text(totals: Mapping[str, int], store: ObjectStore) -> str:
    """The same for people."""
    size = bytes_text(totals["payload_bytes"])
    return f"{totals['entries']:,} entries, {size}, in {totals['objects']} objects, each checked in {store.url}"
