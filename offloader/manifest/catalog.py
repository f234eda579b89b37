"""The catalogue: entries of streams, and of partitioned topics, at keys that all incarnations of a name share.

A released entry is replaced by a tombstone. A partitioned topic consists of the streams ``<topic>-partition-0``,
``-1``, ...; it has no manifest and no catalogue entry, but a topic entry and its last truncation among its documents.
These are kept while one of the streams that they name exists or may be restored. A scalable topic has the same under
its place: the numbers in its entry are the ids of segments, and its layout has the names of their streams.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
from formats.keys import (
    CATALOG_PREFIX,
    catalog_key,
    levels_above,
    manifest_prefix,
    stream_of_catalog_key,
    stream_prefix,
)
from formats.manifest import CatalogEntry
from formats.topic_layout import TopicLayout, layout_key
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    PreconditionFailedError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.manifest.boundary import (
    REBUILD,
    LostRecordsError,
    decoded,
    delete_keys,
    listed,
    unlisted_incarnation,
    unlisted_segment,
)
from offloader.parallel_map import at_once
from offloader.runtime.clock import Clock
from offloader.store.base import CREATE, IfMatch, ObjectInfo, ObjectStore, PutMode, is_local, put_if
from offloader.stream_names import is_place, name_clash, partition_of, place_of, require_stream_name

_Value = TypeVar("_Value")

#: Content of a tombstone, which replaces a released object.
VOID = b""
#: Age after which another removal may take over a mark: its writer has sent its DELETE by then, or never will.
MARK_MS_MIN = 3_600_000
#: Time limit between deciding to set a removal mark and sending the request; a slower process clears its mark.
REMOVAL_S_MAX = 60.0
_MARK = re.compile(rb"gone [0-9a-f]{11}")
_MARK_BYTES = 16


def is_void_size(size_bytes: int) -> bool:
    """Whether a listed object of that size is a tombstone or a removal mark: no entry is that small."""
    return size_bytes in (len(VOID), _MARK_BYTES)


def read_shared(store: ObjectStore, key: str) -> tuple[bytes, ObjectInfo | None]:
    """The object (``VOID`` for a tombstone, a mark or nothing), and its description if it exists."""
    with suppress(NotFoundError):
        data, info = store.get(key)
        return (VOID if _MARK.fullmatch(data) else data), info
    return VOID, None


def mode_of_new(store: ObjectStore, key: str, info: ObjectInfo | None) -> PutMode:
    """The PUT condition for a new object where ``info`` was read: nothing, a tombstone, or the object to replace.

    Raises:
        StoreUnavailableError: the tombstone there is being removed.
    """
    if info is None:
        return CREATE
    if info.size_bytes == _MARK_BYTES:
        raise StoreUnavailableError(
            f"{key} in {store.url} is being removed after a deletion",
            hint="try again; if the removal was interrupted, `offloader cleanup run` finishes it an hour later",
        )
    return IfMatch(info.etag)


def let_go(store: ObjectStore, key: str, etag: str) -> bool:
    """Replaces the object with that ETag by a tombstone; False if another object is there now."""
    return put_if(store, key, VOID, IfMatch(etag))


def remove_void(
    store: ObjectStore,
    key: str,
    *,
    clock: Clock,
    now_ms: int,
    is_unused: Callable[[], bool],
) -> bool:
    """Removes an unneeded tombstone; returns whether nothing is there any more.

    A mark left by an interrupted removal becomes a tombstone again if the tombstone is still needed: while the mark
    stands, the name can't be created.

    Args:
        now_ms: the earlier of both clocks, for the age of an abandoned mark.
        is_unused: whether nothing is left that needs the tombstone; called before and after the mark is set.

    Raises:
        OutcomeUnknownError, StoreUnavailableError: a mark may be left; another call removes it an hour later.
    """
    data, info = read_shared(store, key)
    if info is None:
        return True
    if data != VOID or (info.size_bytes and info.modified_ms > now_ms - MARK_MS_MIN):
        return False
    try:
        if not is_unused():
            if info.size_bytes:
                store.put(key, VOID, mode=IfMatch(info.etag))
            return False
        began_s = clock.monotonic_s()
        marked = store.put(key, b"gone " + os.urandom(6).hex()[:11].encode(), mode=IfMatch(info.etag))
        if not is_unused() or clock.monotonic_s() - began_s > REMOVAL_S_MAX:
            # Only a process delayed by days writes below a name that can't be created; the tombstone is then needed.
            store.put(key, VOID, mode=IfMatch(marked.etag))
            return False
        store.delete_if_match(key, marked.etag)
    except PreconditionFailedError:
        return False  # created again, or another process removes it
    return True


#: Attempts to create a stream while others create, delete and remove it.
ATTEMPTS_MAX = 10
#: Folders that are left below a name only while an entry or a tombstone names their stream.
_FOLDERS = ("manifest/", "retention/", "leases/")


def read_entry(store: ObjectStore, stream: str) -> CatalogEntry | None:
    """Reads the stream's entry; ``None`` if there is no such stream.

    Raises:
        InvalidCallError: ``stream`` isn't a valid stream name.
        CorruptError: the entry is damaged.
        UnsupportedError: a later release wrote it.
    """
    return _read(store, stream)[0]


def require_entry(store: ObjectStore, stream: str) -> CatalogEntry:
    """Reads the stream's entry, which must exist.

    Raises:
        NotFoundError: there is no such stream.
        InvalidCallError, CorruptError, UnsupportedError: as ``read_entry``.
    """
    entry = read_entry(store, stream)
    if entry is None:
        raise not_listed(store, stream)
    return entry


def not_listed(store: ObjectStore, stream: str) -> NotFoundError:
    """The error that the store has no such stream."""
    return NotFoundError(f"stream {stream} isn't in {store.url}", hint="run `offloader ls` to list the streams")


def list_streams(store: ObjectStore, *, prefix: str = "", released: bool = False) -> list[str]:
    """Names of the streams in a store that begin with ``prefix``, sorted. One listing of the catalogue.

    Args:
        released: also names of deleted streams, whose entries are tombstones.
    """
    return sorted(name for name in _streams_below(store, CATALOG_PREFIX, released=released) if name.startswith(prefix))


def require_free_name(store: ObjectStore, stream: str) -> None:
    """Refuses a name that no stream of the store can have, before an entry is accepted that can't be stored.

    An unreadable catalogue entry is accepted: entries appended to such a stream remain in its hot tier. If the stream
    exists, other names don't matter, whether or not they can be read.

    Raises:
        InvalidCallError: as ``create_entry``; or a topic whose partitions are streams here: it would hide them.
        StoreUnavailableError: the store doesn't respond.
    """

    def require_no_partitions() -> None:
        if partitions := partition_streams(store, stream):
            raise InvalidCallError(
                f"stream {stream} can't be created: a topic of that name has {len(partitions)} partitions",
                hint=f"use one of its partitions, for example {next(iter(partitions.values()))}",
            )

    def refusal(require: Callable[[], None]) -> OffloaderError | None:
        try:
            require()
        except OffloaderError as error:
            return error
        return None

    free = partial(_require_no_clash, store, stream), require_no_partitions
    looks: list[Callable[[], object]] = [partial(read_entry, store, stream), *(partial(refusal, each) for each in free)]
    with suppress(CorruptError, UnsupportedError):
        entry, *refusals = _answers(store, looks)
        for error in refusals if entry is None else ():
            if isinstance(error, OffloaderError):
                raise error


def is_released(store: ObjectStore, stream: str) -> bool:
    """Whether the stream's entry was replaced by a tombstone that is still there."""
    existing, info = _read(store, stream)
    return existing is None and info is not None


def create_entry(
    store: ObjectStore,
    stream: str,
    new_incarnation: Callable[[], UUID],
    created_ms: int,
    *,
    over_segments: bool = False,
) -> tuple[CatalogEntry, bool]:
    """Creates the stream's entry unless one exists; returns the entry and whether it was created.

    Args:
        over_segments: also if segments lie below that name without an entry or a tombstone.

    Raises:
        InvalidCallError: another stream's name begins with this one's levels, or the other way round.
        CorruptError: there is a manifest without an entry: a new entry would hide it.
        LostRecordsError: there are whole segments without an entry.
        StoreUnavailableError: the tombstone of a stream of that name is being removed.
    """
    entry: CatalogEntry | None = None
    for _ in range(ATTEMPTS_MAX):
        existing, info = _read(store, stream)
        if existing is not None:
            # Our own PUT whose response was lost looks the same.
            return existing, existing == entry
        require_can_create(store, stream, look_for_remains=info is None, over_segments=over_segments)
        entry = entry or CatalogEntry(stream, new_incarnation(), created_ms)
        # Refused if another process created it, or removed a tombstone.
        if put_if(store, catalog_key(stream), entry.encode(), mode_of_new(store, catalog_key(stream), info)):
            return entry, True
    raise StoreUnavailableError(f"stream {stream} was created and removed repeatedly in {store.url}")


def replace_entry(store: ObjectStore, entry: CatalogEntry, *, expected: CatalogEntry | None) -> bool:
    """Replaces the entry ``expected`` (``None``: nothing readable) by ``entry``; False if it changed.

    Raises:
        InvalidCallError: there is no entry, and another stream's name begins with this one's levels, or the other way
            round.
    """
    key = catalog_key(entry.stream)
    try:
        existing, info = _read(store, entry.stream)
    except CorruptError:
        existing, info = None, store.head(key)
    if existing != expected:
        return existing == entry
    if info is None:
        _require_no_clash(store, entry.stream)
    return put_if(store, key, entry.encode(), mode_of_new(store, key, info)) or _read(store, entry.stream)[0] == entry


def release_entry(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Replaces one incarnation's entry by a tombstone; returns whether that entry is gone."""
    existing, info = _read(store, stream)
    if existing is None or existing.incarnation != incarnation or info is None:
        return True
    if let_go(store, catalog_key(stream), info.etag):
        return True
    existing = read_entry(store, stream)
    return existing is None or existing.incarnation != incarnation


def forget_name(store: ObjectStore, stream: str, *, clock: Clock, now_ms: int) -> bool:
    """Removes the tombstone of a fully deleted stream; returns whether its name is free.

    Args:
        now_ms: the earlier of both clocks.

    Raises:
        OutcomeUnknownError, StoreUnavailableError: call again an hour later.
    """
    return remove_void(
        store, catalog_key(stream), clock=clock, now_ms=now_ms, is_unused=lambda: _is_unused(store, stream)
    )


def unused_void(store: ObjectStore, stream: str) -> ObjectInfo | None:
    """The tombstone that ``forget_name`` would remove, ignoring its age; ``None`` if there is none."""
    existing, info = _read(store, stream)
    return info if existing is None and info is not None and _is_unused(store, stream) else None


def _is_unused(store: ObjectStore, stream: str) -> bool:
    return not any(store.list(f"{stream_prefix(stream)}{folder}", limit=1).objects for folder in _FOLDERS)


def _read(store: ObjectStore, stream: str) -> tuple[CatalogEntry | None, ObjectInfo | None]:
    """The entry, and the description of its object or tombstone if there is one."""
    require_stream_name(stream)
    key = catalog_key(stream)
    data, info = read_shared(store, key)
    if info is None or data == VOID:
        return None, info
    entry = decoded(data, key, CatalogEntry.decode, f"the catalogue entry of stream {stream}")
    if entry.stream != stream:
        raise CorruptError(f"{key} in {store.url} names stream {entry.stream}, not {stream}", hint=REBUILD)
    return entry, info


def require_can_create(store: ObjectStore, stream: str, *, look_for_remains: bool, over_segments: bool) -> None:
    """Requires that no stream has an overlapping name, and that nothing of a stream is left without its entry.

    Args:
        look_for_remains: no tombstone says that the name was released.
        over_segments: segments may be left.
    """
    looks: list[Callable[[], object]] = [partial(_require_no_clash, store, stream)]
    if look_for_remains:
        looks.append(lambda: unlisted_incarnation(store, stream))
        looks += [] if over_segments else [lambda: unlisted_segment(store, stream)]
    _, *remains = _answers(store, looks)
    # Read again: another process may have created the stream between the first read and the listings.
    if not any(remains) or read_entry(store, stream) is not None:
        return
    if remains[0] is not None:
        raise CorruptError(
            f"stream {stream} has a manifest, {remains[0]}, but no catalogue entry, which may be lost", hint=REBUILD
        )
    raise LostRecordsError(
        f"stream {stream} has segments in {store.url}, for example {remains[1]}, but neither a catalogue entry nor a "
        "manifest: both may be lost",
        hint=f"{REBUILD}; `manifest.create_over_segments = true` creates a new stream beside them",
    )


def _require_no_clash(store: ObjectStore, stream: str) -> None:
    """Refuses a name if another stream's is the beginning of its levels, or the other way round: keys would overlap."""

    def above(name: str) -> str | None:
        return name if read_entry(store, name) is not None else None

    looks: list[Callable[[], str | None]] = [partial(above, name) for name in levels_above(stream)]
    looks.append(lambda: next(_streams_below(store, catalog_key(stream) + "/"), None))
    if (clash := next(filter(None, _answers(store, looks)), None)) is not None:
        raise name_clash(stream, clash)


def _answers(store: ObjectStore, looks: Sequence[Callable[[], _Value]]) -> list[_Value]:
    """The results of all looks, which run in parallel for a remote store."""
    return at_once(lambda look: look(), looks, sequential_max=len(looks) if is_local(store) else 1)


def _streams_below(store: ObjectStore, prefix: str, *, released: bool = False) -> Iterator[str]:
    for info in listed(store, prefix):
        with suppress(FormatError):  # a foreign object under the catalogue's prefix
            if released or not is_void_size(info.size_bytes):
                yield stream_of_catalog_key(info.key)


#: Partitions of one topic.
PARTITIONS_MAX = 10_000


def partition_streams(store: ObjectStore, topic: str) -> Mapping[int, str]:
    """Number -> stream of a topic's partitions, ascending; empty if it has none here. One listing.

    Raises:
        InvalidCallError: not a stream's name, or more than ``PARTITIONS_MAX`` partitions.
    """
    require_stream_name(topic)
    prefix = f"{catalog_key(topic)}-partition-"
    found: dict[int, str] = {}
    for info in listed(store, prefix):
        with suppress(FormatError):
            stream = stream_of_catalog_key(info.key)
            split = partition_of(stream)
            if not is_void_size(info.size_bytes) and split is not None and split[0] == topic:
                found[split[1]] = stream
        if len(found) > PARTITIONS_MAX:
            raise InvalidCallError(f"topic {topic} has more than {PARTITIONS_MAX} partitions")
    return dict(sorted(found.items()))


def segment_streams(store: ObjectStore, place: str) -> Iterator[str]:
    """The streams of a scalable topic's segments, of the topic whose documents are under ``place``. One listing.

    Those of migrated topics have other names.
    """
    tenant, namespace, _, topic = place.split("/")
    return _streams_below(store, catalog_key(f"{tenant}/{namespace}/segment/{topic}") + "/")


def read_topic_entry(store: ObjectStore, topic: str) -> tuple[TopicEntry | None, ObjectInfo | None]:
    """A topic's entry, and the description of its object or tombstone if there is one.

    Raises:
        CorruptError, UnsupportedError: it can't be read.
    """
    key, hint = topic_key(topic), "restore an earlier version of this object"
    return _read_document(store, key, TopicEntry.decode, f"{key} in {store.url}", hint)


def _read_layout(store: ObjectStore, place: str) -> tuple[TopicLayout | None, ObjectInfo | None]:
    """The record of a scalable topic's segments; as ``read_topic_entry``."""
    key, hint = layout_key(place), "restore an earlier version of this object"
    return _read_document(store, key, TopicLayout.decode, f"{key} in {store.url}", hint)


def read_intent(store: ObjectStore, topic: str) -> tuple[TruncationIntent | None, ObjectInfo | None]:
    """A topic's last truncation; as ``read_topic_entry``."""
    what = f"the truncation under way of {topic}, {intent_key(topic)},"
    return _read_document(store, intent_key(topic), TruncationIntent.decode, what, REBUILD)


def _read_document(
    store: ObjectStore, key: str, decode: Callable[..., _Value], what: str, hint: str
) -> tuple[_Value | None, ObjectInfo | None]:
    data, info = read_shared(store, key)
    return decoded(data, key, decode, what, hint=hint) if data else None, info


def forget_documents(store: ObjectStore, name: str, incarnation: UUID) -> None:
    """Deletes the retention documents of one deleted incarnation, of a stream or of a topic.

    Raises:
        StoreUnavailableError: not all of it was deleted; call again.
    """
    delete_keys(store, document_keys(name, incarnation))


def release_topic(store: ObjectStore, topic: str) -> bool:
    """Replaces a topic's entry by a tombstone when none of its partitions is left; deletes its documents.

    Returns whether no entry names deleted partitions only.

    Raises:
        CorruptError, UnsupportedError: it can't be read.
        StoreUnavailableError: not all documents were deleted; ``cleanup orphans`` finds them.
    """
    entry, info = read_topic_entry(store, topic)
    if entry is None or info is None:
        return True
    if doubtful_rows(store, entry) or not let_go(store, topic_key(topic), info.etag):
        return False
    forget_documents(store, topic, entry.incarnation)
    return True


def release_layout(store: ObjectStore, place: str, deleted: Collection[str], *, clock: Clock, now_ms: int) -> bool:
    """Deletes the record of a scalable topic's segments when all their streams were deleted; else returns False.

    Only for an operator who deletes the topic: a process that still offloads it would not record it again in time.

    Args:
        deleted: streams that were deleted, and whose entries may still be there.
        now_ms: the earlier of both clocks.

    Raises:
        CorruptError, UnsupportedError: it can't be read.
        OutcomeUnknownError, StoreUnavailableError: call again.
    """
    key = layout_key(place)
    layout, info = _read_layout(store, place)
    if info is None:
        return True
    if layout is not None:
        streams = {*segment_streams(store, place), *(row.stream for row in layout.segments)} - {*deleted}
        if not all(_answers(store, [partial(_is_deleted, store, each) for each in sorted(streams)])):
            return False
        if not let_go(store, key, info.etag):
            return False
    return remove_void(store, key, clock=clock, now_ms=now_ms, is_unused=lambda: True)


def _is_deleted(store: ObjectStore, stream: str) -> bool:
    """Whether neither a catalogue entry is left nor a manifest that could restore one."""
    entry, tombstone = _read(store, stream)
    if entry is not None or tombstone is not None:
        return entry is None
    return not store.list(f"{stream_prefix(stream)}manifest/", limit=1).objects


def release_intent(store: ObjectStore, topic: str) -> bool:
    """Replaces a topic's last truncation by a tombstone when none of its partitions is left.

    Returns whether none names deleted partitions only.

    Raises:
        CorruptError, UnsupportedError: it can't be read.
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
    given = {*streams}
    names = {name for stream in given for name in (stream, (partition_of(stream) or (stream,))[0])}
    names |= {place for place in {*map(place_of, given)} if place and read_topic_entry(store, place)[0] is not None}
    for topic in sorted(names):
        if release_topic(store, topic) and release_intent(store, topic):
            forget_topic(store, topic, clock=clock, now_ms=now_ms)


def forget_topic(store: ObjectStore, topic: str, *, clock: Clock, now_ms: int) -> bool:
    """Removes the tombstones of a fully deleted topic; returns whether none is left.

    Args:
        now_ms: the earlier of both clocks.

    Raises:
        OutcomeUnknownError, StoreUnavailableError: call again an hour later.
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
    except (CorruptError, UnsupportedError):
        is_damaged = True
    entry_is_over = False
    with suppress(CorruptError, UnsupportedError):  # of the layout: then it isn't known which streams are meant
        entry_is_over = entry is not None and not doubtful_rows(store, entry)
    with suppress(CorruptError, UnsupportedError):
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
    """The partitions of an entry that live, or may be restored: the topic's documents are still theirs.

    Raises:
        CorruptError, UnsupportedError: the layout of a scalable topic can't be read.
    """
    named: dict[int, str] = {}
    if is_place(entry.topic):
        layout, _ = _read_layout(store, entry.topic)
        if layout is None and any(True for _ in segment_streams(store, entry.topic)):
            return entry.partitions  # the layout was lost, and may be restored
        named = {} if layout is None else {row.id: row.stream for row in layout.segments}
    return tuple(
        row
        for row in entry.partitions
        if not _is_gone(store, named.get(row.number, f"{entry.topic}-partition-{row.number}"), row.incarnation)
    )


def _is_over(store: ObjectStore, intent: TruncationIntent) -> bool:
    return all(_is_gone(store, each.stream, each.incarnation) for each in intent.heads)


def _is_gone(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Whether an incarnation was deleted. A lost catalogue entry can be restored with the same one."""
    entry, tombstone = _read(store, stream)
    if entry is not None:
        return entry.incarnation != incarnation
    # A tombstone goes last: without one either all of the stream is deleted, or its entry is lost and its manifest
    # exists.
    return tombstone is not None or not store.list(manifest_prefix(stream, incarnation), limit=1).objects
