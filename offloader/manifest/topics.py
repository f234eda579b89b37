"""Partitioned topics: their streams, and the documents under their names.

A topic's documents stay while one of the streams that they name lives, or may be restored.

A partitioned topic is the streams ``<topic>-partition-0``, ``-1``, ...; it has no manifest and no catalogue entry of
its own. Its entry and its last truncation lie under keys that all its incarnations share (``shared_keys``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from formats.documents import (
    PartitionRow,
    TopicEntry,
    TruncationIntent,
    document_keys,
    intent_key,
    retention_prefix,
    topic_key,
)
from formats.errors import FormatError
from formats.keys import catalog_key, manifest_prefix, stream_of_catalog_key
from offloader.errors import Corrupt, InvalidCall, Unsupported
from offloader.manifest.boundary import REBUILD, decoded, delete_keys, listed
from offloader.manifest.catalog import is_released, is_void_size, let_go, read_entry, read_shared, remove_void
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectInfo, ObjectStore

#: Partitions of one topic.
PARTITIONS_MAX = 10_000
_Value = TypeVar("_Value")
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})")


def partition_of(stream: str) -> tuple[str, int] | None:
    """Topic and number of a stream named like a partition; ``None`` for any other name."""
    match = _PARTITION.fullmatch(stream)
    return None if match is None else (match[1], int(match[2]))


def partition_streams(store: ObjectStore, topic: str) -> Mapping[int, str]:
    """Number -> stream of a topic's partitions, ascending; empty if it has none here. One listing.

    Raises:
        InvalidCall: not a stream's name, or more than ``PARTITIONS_MAX`` partitions.
    """
    try:
        prefix = f"{catalog_key(topic)}-partition-"
    except FormatError as error:
        raise InvalidCall(str(error), hint="names look like public/default/persistent/orders") from error
    found: dict[int, str] = {}
    for info in listed(store, prefix):
        with suppress(FormatError):
            stream = stream_of_catalog_key(info.key)
            split = partition_of(stream)
            if not is_void_size(info.size_bytes) and split is not None and split[0] == topic:
                found[split[1]] = stream
        if len(found) > PARTITIONS_MAX:
            raise InvalidCall(f"topic {topic} has more than {PARTITIONS_MAX} partitions")
    return dict(sorted(found.items()))


def read_topic_entry(store: ObjectStore, topic: str) -> tuple[TopicEntry | None, ObjectInfo | None]:
    """A topic's entry, and the description of its object or tombstone if there is one.

    Raises:
        Corrupt, Unsupported: it can't be read.
    """
    key, hint = topic_key(topic), "put an earlier version of this object back"
    return _read(store, key, TopicEntry.decode, f"{key} in {store.url}", hint)


def read_intent(store: ObjectStore, topic: str) -> tuple[TruncationIntent | None, ObjectInfo | None]:
    """A topic's last truncation; as ``read_topic_entry``."""
    what = f"the truncation under way of {topic}, {intent_key(topic)},"
    return _read(store, intent_key(topic), TruncationIntent.decode, what, REBUILD)


def _read(
    store: ObjectStore, key: str, decode: Callable[..., _Value], what: str, hint: str
) -> tuple[_Value | None, ObjectInfo | None]:
    data, info = read_shared(store, key)
    return decoded(data, key, decode, what, hint=hint) if data else None, info


def forget_documents(store: ObjectStore, name: str, incarnation: UUID) -> None:
    """Deletes the retention documents of one deleted incarnation, of a stream or of a topic.

    Raises:
        StoreUnavailable: not all of it was deleted; call again.
    """
    delete_keys(store, document_keys(name, incarnation))


def release_topic(store: ObjectStore, topic: str) -> bool:
    """Replaces a topic's entry by a tombstone when none of its partitions is left; deletes its documents.

    Returns whether no entry names deleted partitions only.

    Raises:
        Corrupt, Unsupported: it can't be read.
        StoreUnavailable: not all documents were deleted; ``cleanup orphans`` finds them.
    """
    entry, info = read_topic_entry(store, topic)
    if entry is None or info is None:
        return True
    if doubtful_rows(store, entry) or not let_go(store, topic_key(topic), info.etag):
        return False
    forget_documents(store, topic, entry.incarnation)
    return True


def release_intent(store: ObjectStore, topic: str) -> bool:
    """Replaces a topic's last truncation by a tombstone when none of its partitions is left.

    Returns whether none names deleted partitions only.

    Raises:
        Corrupt, Unsupported: it can't be read.
    """
    intent, info = read_intent(store, topic)
    if intent is None or info is None:
        return True
    return _is_over(store, intent) and let_go(store, intent_key(topic), info.etag)


def release_topics_of(store: ObjectStore, streams: Iterable[str], *, clock: Clock, now_ms: int) -> None:
    """After streams were deleted: releases the documents of topics whose last streams they were.

    Also under the streams' own names, which may have been topics' names once. After a crash before this, ``cleanup
    orphans`` finds the documents.
    """
    names = {name for stream in streams for name in (stream, (partition_of(stream) or (stream,))[0])}
    for topic in sorted(names):
        if release_topic(store, topic) and release_intent(store, topic):
            forget_topic(store, topic, clock=clock, now_ms=now_ms)


def forget_topic(store: ObjectStore, topic: str, *, clock: Clock, now_ms: int) -> bool:
    """Removes the tombstones of a fully deleted topic; returns whether none is left.

    Args:
        now_ms: the earlier of both clocks.

    Raises:
        OutcomeUnknown, StoreUnavailable: call again an hour later.
    """
    gone = [
        remove_void(store, key, clock=clock, now_ms=now_ms, is_unused=lambda: is_topic_unused(store, topic))
        for key in _shared_keys(topic)
    ]
    return all(gone)


def _shared_keys(topic: str) -> tuple[str, str]:
    return intent_key(topic), topic_key(topic)


def is_topic_unused(store: ObjectStore, topic: str) -> bool:
    """Whether only tombstones are left of a topic; they name the topic of any remaining document."""
    return all(info.key in _shared_keys(topic) for info in listed(store, retention_prefix(topic)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """Objects under a topic's name.

    Attributes:
        incarnation: of the documents in use; ``None`` if none are.
        is_there: whether there is an entry or its tombstone.
        is_damaged: whether it can't be read: an earlier version of it may be restored.
        entry_is_over, intent_is_over: every named partition is deleted for good.
        voids: tombstones that are not removed yet.
    """

    incarnation: UUID | None = None
    is_there: bool = False
    is_damaged: bool = False
    entry_is_over: bool = False
    intent_is_over: bool = False
    voids: tuple[ObjectInfo, ...] = ()


def topic_state(store: ObjectStore, topic: str) -> TopicState:
    """Reads a topic's state; an unreadable object doesn't count as over."""
    is_damaged, intent_is_over = False, False
    entry, of_entry, intent, of_intent = None, None, None, None
    try:
        entry, of_entry = read_topic_entry(store, topic)
    except (Corrupt, Unsupported):
        is_damaged = True
    entry_is_over = entry is not None and not doubtful_rows(store, entry)
    with suppress(Corrupt, Unsupported):
        intent, of_intent = read_intent(store, topic)
        intent_is_over = intent is not None and _is_over(store, intent)
    found = ((of_intent, intent), (of_entry, entry))
    return TopicState(
        incarnation=None if entry is None or entry_is_over else entry.incarnation,
        is_there=is_damaged or of_entry is not None,
        is_damaged=is_damaged,
        entry_is_over=entry_is_over,
        intent_is_over=intent_is_over,
        voids=tuple(info for info, value in found if info is not None and value is None),
    )


def doubtful_rows(store: ObjectStore, entry: TopicEntry) -> tuple[PartitionRow, ...]:
    """The partitions of an entry that live, or may be restored: the topic's documents are still theirs."""
    return tuple(
        row for row in entry.partitions if not _is_gone(store, f"{entry.topic}-partition-{row.number}", row.incarnation)
    )


def _is_over(store: ObjectStore, intent: TruncationIntent) -> bool:
    return all(_is_gone(store, each.stream, each.incarnation) for each in intent.heads)


def _is_gone(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Whether an incarnation was deleted. A lost catalogue entry can be restored with the same one."""
    entry = read_entry(store, stream)
    if entry is not None:
        return entry.incarnation != incarnation
    # A tombstone goes last: without one either all of the stream is deleted, or its entry is lost and its manifest
    # exists.
    return is_released(store, stream) or not store.list(manifest_prefix(stream, incarnation), limit=1).objects
