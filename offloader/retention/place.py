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
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from formats.errors import FormatError
from formats.keys import catalog_key, stream_of_catalog_key
from formats.retention_state import (
    PartitionRow,
    TopicEntry,
    decode_topic_entry,
    document_keys,
    encode_topic_entry,
    topic_key,
)
from offloader.errors import InvalidCall, NotFound, PreconditionFailed, StoreUnavailable
from offloader.manifest.catalog import list_streams, read_entry
from offloader.manifest.objects import delete_keys, listed
from offloader.manifest.unreadable import unreadable
from offloader.retention.at_once import at_once
from offloader.store.base import CREATE, IfMatch, ObjectStore

__all__ = [
    "PARTITIONS_MAX",
    "Partition",
    "Place",
    "find_place",
    "forget_documents",
    "home_of",
    "partition_of",
    "partition_streams",
    "release_topic",
]

#: Partitions of one topic.
PARTITIONS_MAX = 10_000
#: Times an entry is tried to be changed while others change it.
ATTEMPTS_MAX = 20
#: Names that an error about an unknown stream suggests.
SUGGESTIONS_MAX = 3
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})")
_VOID = b""


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


def partition_of(stream: str) -> tuple[str, int] | None:
    """Topic and number of a stream that is named like a partition; ``None`` for any other name."""
    match = _PARTITION.fullmatch(stream)
    return None if match is None else (match[1], int(match[2]))


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
        entry, etag = _topic_entry(store, name)
        gone = None
        if entry is not None and not any(map(place.is_alive, entry.partitions)):
            gone, entry = entry.incarnation, None
        incarnation = None if entry is None else entry.incarnation
        known = entry is not None and entry.partitions == place.rows
        if known or not create:
            return Place(name=name, incarnation=incarnation, partitions=partitions, is_topic=True)
        wanted = TopicEntry(name, incarnation or UUID(bytes=entropy(16), version=4), place.rows)
        try:
            store.put(topic_key(name), encode_topic_entry(wanted), mode=CREATE if etag is None else IfMatch(etag))
        except PreconditionFailed:
            continue  # somebody else's: look
        if gone is not None:
            forget_documents(store, name, gone)
        return Place(name=name, incarnation=wanted.incarnation, partitions=partitions, is_topic=True)
    raise StoreUnavailable(f"the retention entry of topic {name} changes all the time")


def release_topic(store: ObjectStore, topic: str) -> bool:
    """After partitions of a topic were deleted: lets go of its entry when none of those it names lives.

    By If-Match on what was read, so that a topic that is created again meanwhile keeps its own; what stays is an empty
    object, as of a stream's catalogue entry. The documents that the entry named go with it.

    Returns:
        Whether no entry stands for partitions that are gone.
    """
    entry, etag = _topic_entry(store, topic)
    if entry is None or etag is None:
        return True
    place = Place(name=topic, incarnation=None, partitions=_partitions(store, topic), is_topic=True)
    if any(map(place.is_alive, entry.partitions)):
        return False
    try:
        store.put(topic_key(topic), _VOID, mode=IfMatch(etag))
    except PreconditionFailed:
        return False
    forget_documents(store, topic, entry.incarnation)
    return True


def forget_documents(store: ObjectStore, name: str, incarnation: UUID) -> None:
    """Deletes what retention keeps of one incarnation that is gone, of a stream or of a topic.

    Raises:
        StoreUnavailable: not all of it was deleted; call again.
    """
    delete_keys(store, document_keys(name, incarnation))


def _only(stream: str, incarnation: UUID) -> Mapping[int, Partition]:
    return {0: Partition(stream, incarnation)}


def partition_streams(store: ObjectStore, topic: str) -> Mapping[int, str]:
    """Number -> stream of a topic's partitions, ascending; empty: it has none here. One listing.

    Raises:
        InvalidCall: not a stream's name, or more than ``PARTITIONS_MAX`` partitions.
    """
    try:
        prefix = f"{catalog_key(topic)}-partition-"
    except FormatError as error:
        raise InvalidCall(str(error)) from error
    found: dict[int, str] = {}
    for info in listed(store, prefix):
        try:
            stream = stream_of_catalog_key(info.key)
        except FormatError:
            continue
        split = partition_of(stream)
        if info.size_bytes and split is not None and split[0] == topic:
            found[split[1]] = stream
        if len(found) > PARTITIONS_MAX:
            raise InvalidCall(f"topic {topic} has more than {PARTITIONS_MAX} partitions")
    return dict(sorted(found.items()))


def _partitions(store: ObjectStore, topic: str) -> Mapping[int, Partition]:
    streams = partition_streams(store, topic)
    entries = at_once(lambda stream: read_entry(store, stream), streams.values())
    return {
        number: Partition(stream, entry.incarnation)
        for (number, stream), entry in zip(streams.items(), entries, strict=True)
        if entry is not None
    }


def _topic_entry(store: ObjectStore, topic: str) -> tuple[TopicEntry | None, str | None]:
    key = topic_key(topic)
    try:
        data, info = store.get(key)
    except NotFound:
        return None, None
    if data == _VOID:
        return None, info.etag
    try:
        entry = decode_topic_entry(data, object_name=key)
    except FormatError as error:
        raise unreadable(f"{key} in {store.url}", error, hint="put an earlier version of this object back") from error
    return entry, info.etag
