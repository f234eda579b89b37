"""Where a stream's retention state is: under its own name, or under that of the partitioned topic it belongs to.

Owns which streams make up a topic, and the topic's entry. Must never let a stream that was deleted and created again
inherit what was said of the old one.

A partitioned topic is the streams ``<topic>-partition-0``, ``-1``, ...; it has no manifest and no catalogue entry of
its own. Its entry is made with its first retention state and says for which incarnations of the partitions that is.
While one of them lives, the topic is the same; when none does, the entry is replaced, and what it named isn't read any
more.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from formats.retention_state import PartitionRow, TopicEntry, encode_topic_entry, topic_key
from offloader.errors import InvalidCall, NotFound, PreconditionFailed, StoreUnavailable
from offloader.manifest.catalog import list_streams, read_entry
from offloader.manifest.shared_keys import mode_of_new
from offloader.manifest.topics import (
    doubtful_rows,
    forget_documents,
    partition_of,
    partition_streams,
    read_topic_entry,
)
from offloader.retention.at_once import at_once
from offloader.store.base import ObjectStore

__all__ = [
    "Partition",
    "Place",
    "find_place",
    "home_of",
]

#: Times an entry is tried to be changed while others change it.
ATTEMPTS_MAX = 20
#: Names that an error about an unknown stream suggests.
SUGGESTIONS_MAX = 3


@dataclass(frozen=True, slots=True)
class Partition:
    """One stream of a topic; a plain stream is its own only one."""

    stream: str
    incarnation: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a retention state is of.

    Attributes:
        name: the stream, or the partitioned topic.
        incarnation: of the stream, or of the topic's state: the documents' keys have it. ``None``: a topic without a
            state.
        partitions: number -> partition, those that exist now; 0 for a plain stream.
        is_topic: whether it is partitioned.
    """

    name: str
    incarnation: UUID | None
    partitions: Mapping[int, Partition]
    is_topic: bool

    @property
    def rows(self) -> tuple[PartitionRow, ...]:
        """The partitions as documents name them."""
        return tuple(PartitionRow(number, each.incarnation) for number, each in sorted(self.partitions.items()))

    def is_alive(self, row: PartitionRow) -> bool:
        """Whether positions of that partition are still positions of the same stream."""
        found = self.partitions.get(row.number)
        return found is not None and found.incarnation == row.incarnation


def home_of(store: ObjectStore, stream: str) -> tuple[str, int]:
    """The name under which a stream's retention state is, and the stream's number there: its topic's, or its own."""
    split = partition_of(stream)
    # Beside a plain stream ``x`` a stream ``x-partition-0`` is one of its own.
    return (stream, 0) if split is None or read_entry(store, split[0]) is not None else split


def find_place(
    store: ObjectStore, name: str, *, create: bool = False, entropy: Callable[[int], bytes] = os.urandom
) -> Place:
    """The place of the retention state of a stream or partitioned topic.

    Args:
        store: where it is.
        name: of a plain stream or of a topic.
        create: make the topic's entry, or bring it up to date; a plain stream needs none.
        entropy: source of the entry's incarnation.

    Raises:
        NotFound: no such stream and no such topic.
        InvalidCall: not a stream's name, or one partition of a topic.
        Corrupt, Unsupported: an entry is damaged, or a later release wrote it.
    """
    own = read_entry(store, name)
    if own is not None:
        topic, number = home_of(store, name)
        if topic != name:
            raise InvalidCall(
                f"{name} is partition {number} of a topic: retention decides for all partitions together",
                hint=f"name the topic: {topic}",
            )
        return Place(name=name, incarnation=own.incarnation, partitions=_only(name, own.incarnation), is_topic=False)
    partitions = _partitions(store, name)
    if not partitions:
        similar = difflib.get_close_matches(name, list_streams(store), n=SUGGESTIONS_MAX)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "`offloader ls` lists the streams"
        raise NotFound(f"stream {name} isn't in {store.url}", hint=hint)
    place = Place(name=name, incarnation=None, partitions=partitions, is_topic=True)
    for _ in range(ATTEMPTS_MAX):
        entry, info = read_topic_entry(store, name)
        # A partition whose catalogue entry is lost can come back: while it may, the topic is the same.
        kept = () if entry is None else _missing(store, place, entry)
        gone = None
        if entry is not None and not kept and not any(map(place.is_alive, entry.partitions)):
            gone, entry = entry.incarnation, None
        incarnation = None if entry is None else entry.incarnation
        rows = tuple(sorted((*place.rows, *kept), key=lambda row: row.number))
        known = entry is not None and entry.partitions == rows
        if known or not create:
            return Place(name=name, incarnation=incarnation, partitions=partitions, is_topic=True)
        wanted = TopicEntry(name, incarnation or UUID(bytes=entropy(16), version=4), rows)
        key = topic_key(name)
        try:
            store.put(key, encode_topic_entry(wanted), mode=mode_of_new(store, key, info))
        except PreconditionFailed:
            continue  # somebody else's: look
        if gone is not None:
            forget_documents(store, name, gone)
        return Place(name=name, incarnation=wanted.incarnation, partitions=partitions, is_topic=True)
    raise StoreUnavailable(f"the retention entry of topic {name} changes all the time")


def _missing(store: ObjectStore, place: Place, entry: TopicEntry) -> tuple[PartitionRow, ...]:
    """Partitions that the entry names, that aren't in the catalogue, and that weren't deleted either."""
    absent = tuple(row for row in entry.partitions if row.number not in place.partitions)
    return doubtful_rows(store, replace(entry, partitions=absent)) if absent else ()


def _only(stream: str, incarnation: UUID) -> Mapping[int, Partition]:
    return {0: Partition(stream, incarnation)}


def _partitions(store: ObjectStore, topic: str) -> Mapping[int, Partition]:
    streams = partition_streams(store, topic)
    entries = at_once(lambda stream: read_entry(store, stream), streams.values())
    return {
        number: Partition(stream, entry.incarnation)
        for (number, stream), entry in zip(streams.items(), entries, strict=True)
        if entry is not None
    }
