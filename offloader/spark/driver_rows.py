"""Rows of the contents that the driver makes: segments, ledgers, manifest records, findings of a shallow verify.

Owns the meaning of those columns. Must never read a data object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

import pyarrow as pa

from formats.checkpoint_ledgers import DELETED, HOT_RELEASED, LAST_UNKNOWN
from formats.entries import TIME_UNKNOWN_MS
from formats.manifest import encode_record
from offloader.manifest.records import kept_records
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.fetch import Fetcher
from offloader.read.unexpected import find_unexpected
from offloader.read.verify import check_order, check_segments
from offloader.settings import Pairs, ReadSettings
from offloader.store.base import ObjectStore

__all__ = ["DRIVER_CONTENTS", "driver_batch", "segment_row"]

_US_PER_MS = 1000

_Row = Mapping[str, object]


def driver_batch(
    content: str, states: Iterable[ManifestState], store: ObjectStore, relocate: Pairs, schema: pa.Schema
) -> pa.RecordBatch:
    """All rows of a content, as one Arrow batch.

    Args:
        content: one of ``DRIVER_CONTENTS``.
        states: the pinned manifests.
        store: where they are.
        relocate: buckets that were moved.
        schema: the wanted columns.
    """
    settings = ReadSettings(relocate=relocate)
    rows = [row for state in states for row in DRIVER_CONTENTS[content](state, store, settings)]
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _segments(state: ManifestState, _: ObjectStore, __: ReadSettings) -> Iterator[_Row]:
    """All segments, by position; assigned and retired ones too."""
    return (segment_row(state.stream, record) for record in state.segments.in_order())


def segment_row(stream: str, record: SegmentRecord) -> Mapping[str, object]:
    """One segment; what isn't known before it is offloaded is ``None``. Times in microseconds since 1970 UTC."""
    summary, end = record.summary, record.end
    spans = summary.ledgers if summary else ()
    return {
        "stream": stream,
        "uuid": str(record.uuid),
        "status": record.status.value,
        "format": record.layout,
        "epoch": record.epoch,
        "first_ledger_id": record.begin.ledger_id,
        "first_entry_id": record.begin.entry_id,
        "last_ledger_id": end.ledger_id if end else None,
        "last_entry_id": end.entry_id if end else None,
        "entries": summary.entries if summary else None,
        "payload_bytes": summary.payload_bytes if summary else None,
        "data_bytes": summary.data_bytes if summary else None,
        "index_bytes": summary.index_bytes if summary else None,
        "blocks": summary.blocks if summary else None,
        "compressed": summary.compressed if summary else None,
        "publish_time_min": _micros(summary.publish_time_min_ms if summary else None),
        "publish_time_max": _micros(summary.publish_time_max_ms if summary else None),
        "assigned_time": _micros(record.assigned_ms),
        "offloaded_time": _micros(record.offloaded_ms),
        "ledgers": [
            {
                "ledger_id": span.ledger_id,
                "first_entry_id": span.first_entry_id,
                "last_entry_id": span.last_entry_id,
                "entries": span.entries,
                "payload_bytes": span.payload_bytes,
            }
            for span in spans
        ],
    }


def _micros(time_ms: int | None) -> int | None:
    return None if time_ms is None or time_ms == TIME_UNKNOWN_MS else time_ms * _US_PER_MS


def _ledgers(state: ManifestState, _: ObjectStore, __: ReadSettings) -> Iterator[_Row]:
    """Every ledger that a segment holds or that the source said something of, by id."""
    offloaded: dict[int, list[int]] = {}
    for record in state.offloaded():
        for span in record.summary.ledgers if record.summary else ():
            sums = offloaded.setdefault(span.ledger_id, [0, 0, 0, span.first_entry_id, span.last_entry_id])
            sums[0] += 1
            sums[1] += span.entries
            sums[2] += span.payload_bytes
            sums[3], sums[4] = min(sums[3], span.first_entry_id), max(sums[4], span.last_entry_id)
    facts = state.ledgers.merged()
    columns = facts.ledger_id.tolist(), facts.last_entry_id.tolist(), facts.flags.tolist()
    known = {ledger_id: (last, flags) for ledger_id, last, flags in zip(*columns, strict=True)}
    for ledger_id in sorted({*offloaded, *known}):
        last_entry_id, flags = known.get(ledger_id, (LAST_UNKNOWN, 0))
        segments, entries, payload_bytes, first, last = offloaded.get(ledger_id, (0, 0, 0, None, None))
        yield {
            "stream": state.stream,
            "ledger_id": ledger_id,
            "closed": last_entry_id != LAST_UNKNOWN,
            "closed_at_entry_id": None if last_entry_id == LAST_UNKNOWN else last_entry_id,
            "deleted": bool(flags & DELETED),
            "hot_released": bool(flags & HOT_RELEASED),
            "segments": segments,
            "entries": entries,
            "payload_bytes": payload_bytes,
            "first_entry_id": first,
            "last_entry_id": last,
        }


def _records(state: ManifestState, store: ObjectStore, _: ReadSettings) -> Iterator[_Row]:
    """The manifest's records that are still kept, the oldest first."""
    for record in kept_records(store, state):
        yield {
            "stream": state.stream,
            "incarnation": str(record.incarnation),
            "record_id": record.record_id,
            "time": _micros(record.time_ms),
            "epoch": record.epoch,
            "writer": record.writer.name,
            "edits": [edit.kind for edit in record.edits],
            "json": json.dumps(json.loads(encode_record(record)), separators=(",", ":")),
        }


def _anomalies(state: ManifestState, store: ObjectStore, settings: ReadSettings) -> Iterator[_Row]:
    """What a shallow verify finds."""
    checks = check_segments(Fetcher(store, settings), state, deep=False)
    found = chain.from_iterable(check.findings for check in checks)
    for finding in chain(check_order(state), found, find_unexpected(store, state)):
        yield finding.as_row()


#: content -> the rows of one stream.
DRIVER_CONTENTS: Mapping[str, Callable[[ManifestState, ObjectStore, ReadSettings], Iterator[_Row]]] = {
    "segments": _segments,
    "ledgers": _ledgers,
    "manifest": _records,
    "anomalies": _anomalies,
}
