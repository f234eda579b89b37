"""Subscribers that were registered at a scalable topic's parts before it had a registry: they remain its subscribers.

A topic that was migrated had a registry as a regular topic, and the stream of a segment may have one that was written
before the topic's layout. Their entries are kept by the topic's policy now, so their subscribers must count. Until the
topic's own registry is written it is this: all of those subscribers, by name. Its first change writes all of them, in
one step.

A cut of one part says nothing about the others, of which nothing counts as read. The registry has the newest of the
former revisions, so a former registry that was lost is noticed, as the topic's own would be
(``offloader.retention.subscribers``). The former documents aren't changed, and deleted with their streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from formats.documents import CutRow, PartitionRow, SubscriberRow, Subscribers, document_key
from formats.topic_layout import TopicLayout
from offloader.manifest.catalog import read_entry, read_topic_entry
from offloader.parallel_map import at_once
from offloader.retention.scope import DocumentStore, Scope
from offloader.stream_names import partition_of


def former_registry(documents: DocumentStore, scope: Scope) -> Subscribers:
    """The registry of a scalable topic that has none of its own.

    Raises:
        CorruptError, UnsupportedError: a former registry can't be read.
    """
    ids = {} if scope.layout is None else _ids(scope.layout)
    read = at_once(lambda name: _registries(documents, name), ids)
    found = [_renumbered(each, ids[name]) for name, registries in zip(ids, read, strict=True) for each in registries]
    rows = dict[str, SubscriberRow]()
    for row in (row for each in found for row in each.subscribers):
        rows[row.name] = _joined(rows[row.name], row) if row.name in rows else row
    return Subscribers(
        name=scope.name,
        partitions=tuple(sorted({row for each in found for row in each.partitions}, key=lambda row: row.number)),
        subscribers=tuple(rows[name] for name in sorted(rows)),
        version=max(
            (each.version for each in found),
            key=lambda version: version.revision,
            default=Subscribers(name="", partitions=()).version,
        ),
    )


def _ids(layout: TopicLayout) -> dict[str, dict[int, int]]:
    """Names that a registry may have been kept under -> its numbers -> ids of segments."""
    found: dict[str, dict[int, int]] = {}
    for row in layout.segments:
        found.setdefault(row.stream, {})[0] = row.id
        if row.is_legacy and (split := partition_of(row.stream)) is not None:
            found.setdefault(split[0], {})[split[1]] = row.id
    return found


def _registries(documents: DocumentStore, name: str) -> list[Subscribers]:
    entries = read_entry(documents.store, name), read_topic_entry(documents.store, name)[0]
    empty = Subscribers(name=name, partitions=())
    keys = [document_key(Subscribers, name, each.incarnation) for each in entries if each is not None]
    found = [documents.read(key, empty).document for key in keys]
    return [each for each in found if each.version.revision]


def _renumbered(registry: Subscribers, ids: Mapping[int, int]) -> Subscribers:
    partitions = (PartitionRow(ids[row.number], row.incarnation) for row in registry.partitions if row.number in ids)
    rows = (replace(row, cut=_rows_of(row.cut, ids), start=_rows_of(row.start, ids)) for row in registry.subscribers)
    return replace(registry, partitions=tuple(partitions), subscribers=tuple(rows))


def _rows_of(cut: tuple[CutRow, ...] | None, ids: Mapping[int, int]) -> tuple[CutRow, ...] | None:
    return None if cut is None else _sorted(CutRow(ids[r.partition], r.position) for r in cut if r.partition in ids)


def _joined(one: SubscriberRow, other: SubscriberRow) -> SubscriberRow:
    """One subscriber of several parts. It has published if it has in one of them."""
    cuts, starts = [
        [each for each in pair if each is not None] for pair in ((one.cut, other.cut), (one.start, other.start))
    ]
    return SubscriberRow(
        name=one.name,
        generation=max(one.generation, other.generation),
        updated_ms=max(one.updated_ms, other.updated_ms),
        active_ms=max(one.active_ms, other.active_ms),
        cut=_sorted(row for cut in cuts for row in cut) if cuts else None,
        start=_sorted(row for start in starts for row in start) if len(starts) == 2 else None,
    )


def _sorted(rows: Iterable[CutRow]) -> tuple[CutRow, ...]:
    return tuple(sorted(rows, key=lambda row: row.partition))
