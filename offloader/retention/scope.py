"""Location of a stream's retention documents, their changes, and the partitions they cover.

A partitioned topic has one state for all its partitions, and a scalable topic one for all segments of its recorded
layout, under the topic's place. A segment's number is its id, which is unique in the topic. The streams are the
segments that the store has: others have no entries here that could be deleted. New ones join as partitions do.

A migrated topic's former streams are segments too. Calls by its former name, or by that of a former partition, are
refused. The subscribers that were registered there remain (``offloader.retention.former``). The recorded cuts of before
aren't used: ages begin again with the ends of segments. A layout that can't be read is an error of every call: nothing
is deleted.
"""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias
from uuid import UUID

from formats.documents import NONCES_KEPT, Document, PartitionRow, TopicEntry, Version, document_key, topic_key
from formats.keys import stream_prefix
from formats.topic_layout import TopicLayout
from offloader.errors import (
    InvalidCallError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from offloader.ledgers.base import LedgerSource, ReadableLedgers
from offloader.manifest.boundary import decoded
from offloader.manifest.catalog import (
    doubtful_rows,
    forget_documents,
    list_streams,
    mode_of_new,
    partition_streams,
    read_entry,
    read_topic_entry,
    segment_streams,
)
from offloader.manifest.load import refreshed
from offloader.manifest.state import ManifestState
from offloader.manifest.topic_layouts import read_layout
from offloader.parallel_map import at_once
from offloader.retention.entries import Known, PartitionEntries
from offloader.runtime.clock import Clock
from offloader.store.base import CREATE, IfMatch, ObjectStore, put_if
from offloader.stream_names import is_place, partition_of, place_of

#: Attempts to change an entry under concurrent changes.
ATTEMPTS_MAX = 20
#: Names suggested by an error about an unknown stream.
SUGGESTIONS_MAX = 3


@dataclass(frozen=True, slots=True)
class Partition:
    """One stream of a topic; a plain stream is its own only partition."""

    stream: str
    incarnation: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Scope of a retention state.

    Attributes:
        name: the stream, the partitioned topic, or the place of the scalable topic.
        incarnation: of the stream, or of the topic's state: the documents' keys have it. ``None``: a topic without a
            state.
        partitions: number -> existing partition; 0 for a plain stream.
        is_topic: whether it is partitioned, or a scalable topic.
        layout: of a scalable topic, whose segments are the partitions.
        absent: its segments of which the store has nothing.
    """

    name: str
    incarnation: UUID | None
    partitions: Mapping[int, Partition]
    is_topic: bool
    layout: TopicLayout | None = None
    absent: frozenset[int] = frozenset()

    @property
    def rows(self) -> tuple[PartitionRow, ...]:
        """The partitions in documents' form."""
        return tuple(PartitionRow(number, each.incarnation) for number, each in sorted(self.partitions.items()))

    def alive(self, rows: Iterable[PartitionRow]) -> set[int]:
        """Numbers of the partitions of which positions still refer to the same stream."""
        return {row.number for row in set(rows) & set(self.rows)}

    def key(self, kind: type[Document]) -> str:
        """Key of a document; only with an incarnation."""
        assert self.incarnation is not None, "made before something is written"
        return document_key(kind, self.name, self.incarnation)


def home_of(store: ObjectStore, stream: str) -> tuple[str, int]:
    """Name of a stream's retention state, and the stream's number there: its topic's, or its own.

    Raises:
        CorruptError, UnsupportedError: an entry or a layout can't be read.
    """
    if (place := place_of(stream)) is not None and (layout := read_layout(store, place)) is not None:
        for row in layout.segments:
            if row.stream == stream:
                return place, row.id
    return _partition_home(store, stream)


def _partition_home(store: ObjectStore, stream: str) -> tuple[str, int]:
    split = partition_of(stream)
    # Beside a plain stream ``x``, ``x-partition-0`` is a separate stream.
    return (stream, 0) if split is None or read_entry(store, split[0]) is not None else split


def former_names(layout: TopicLayout) -> frozenset[str]:
    """Names of the retention states that a migrated topic had before: of its streams, and of its partitions' topic."""
    streams = [row.stream for row in layout.segments if row.is_legacy]
    return frozenset({*streams, *(split[0] for each in streams if (split := partition_of(each)) is not None)})


def require_own_state(store: ObjectStore, name: str) -> None:
    """Refuses a segment of a scalable topic, and the former name of a migrated one, as ``find_scope``."""
    place = place_of(name)
    layout = None if place is None else read_layout(store, place)
    if layout is None:
        return
    ids = [row.id for row in layout.segments if row.stream == name]
    what = f"segment {ids[0]}" if ids else "a former name"
    if ids or name in former_names(layout):
        raise InvalidCallError(
            f"{name} is {what} of a scalable topic: retention decides for all segments together",
            hint=f"use the topic's name: {layout.topic}",
        )


def is_part_of_scalable(store: ObjectStore, name: str) -> bool:
    """Whether a name is that of a segment of a scalable topic, or a former name of one: it has no state."""
    try:
        require_own_state(store, name)
    except InvalidCallError:
        return True
    return False


def find_scope(
    store: ObjectStore, name: str, *, create: bool = False, entropy: Callable[[int], bytes] = os.urandom
) -> Scope:
    """Find the retention state of a stream or partitioned topic.

    Args:
        name: of a plain stream or of a topic; of a scalable topic, the place.
        create: create or update the topic's entry; a plain stream needs none.

    Raises:
        NotFoundError: no such stream and no such topic.
        InvalidCallError: not a stream's name, or one partition or segment of a topic.
        CorruptError, UnsupportedError: an entry or a layout is damaged, or a later release wrote it.
    """
    require_own_state(store, name)
    if (own := read_entry(store, name)) is not None:
        topic, number = _partition_home(store, name)
        if topic != name:
            raise InvalidCallError(
                f"{name} is partition {number} of a topic: retention decides for all partitions together",
                hint=f"use the topic's name: {topic}",
            )
        return Scope(
            name=name,
            incarnation=own.incarnation,
            partitions={0: Partition(name, own.incarnation)},
            is_topic=False,
        )
    for _ in range(ATTEMPTS_MAX):
        # Before the partitions: those of a topic deleted since would make the entry of its successor look like an old
        # one.
        entry, info = read_topic_entry(store, name)
        layout = read_layout(store, name) if is_place(name) else None
        partitions = _partitions(store, name, layout)
        absent = frozenset[int]() if layout is None else _absent(store, layout, partitions)
        scope = Scope(name=name, incarnation=None, partitions=partitions, is_topic=True, layout=layout, absent=absent)
        # A partition with a lost catalogue entry can be restored: until then the topic is the same.
        missing = () if entry is None else tuple(row for row in entry.partitions if row.number not in partitions)
        kept = doubtful_rows(store, replace(entry, partitions=missing)) if entry is not None and missing else ()
        gone = None
        if entry is not None and not kept and not scope.alive(entry.partitions):
            gone, entry = entry.incarnation, None
        incarnation = None if entry is None else entry.incarnation
        rows = tuple(sorted((*scope.rows, *kept), key=lambda row: row.number))
        if (entry is not None and entry.partitions == rows) or not create:
            return replace(scope, incarnation=incarnation)
        wanted = TopicEntry(name, incarnation or UUID(bytes=entropy(16), version=4), rows)
        key = topic_key(name)
        if put_if(store, key, wanted.encode(), mode_of_new(store, key, info)):
            if gone is not None:
                forget_documents(store, name, gone)
            return replace(scope, incarnation=wanted.incarnation)
        # Else a concurrent change: read it again.
    raise StoreUnavailableError(f"the retention entry of topic {name} was changed by other processes at every attempt")


def require_no_segments(scope: Scope) -> None:
    """Refuses a scalable topic where positions are given by hand: they might delete a child's entries first."""
    if scope.layout is not None:
        raise InvalidCallError(
            f"{scope.layout.topic} is a scalable topic: only a retention policy moves its start",
            hint="truncate single segments by their own names, parents before children",
        )


def _partitions(store: ObjectStore, topic: str, layout: TopicLayout | None) -> dict[int, Partition]:
    """Existing partitions or segments of a topic; raises ``NotFoundError`` where there are none."""
    if layout is None:
        streams = partition_streams(store, topic)
    else:
        there = {*segment_streams(store, topic)}
        streams = {row.id: row.stream for row in layout.segments if row.is_legacy or row.stream in there}
    entries = at_once(lambda stream: read_entry(store, stream), streams.values())
    partitions = {
        number: Partition(stream, entry.incarnation)
        for (number, stream), entry in zip(streams.items(), entries, strict=True)
        if entry is not None
    }
    if not partitions:
        similar = difflib.get_close_matches(topic, list_streams(store), n=SUGGESTIONS_MAX)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "run `offloader ls` to list the streams"
        raise NotFoundError(f"stream {topic} isn't in {store.url}", hint=hint)
    return partitions


def _absent(store: ObjectStore, layout: TopicLayout, partitions: Mapping[int, Partition]) -> frozenset[int]:
    """Segments without entries and without an object in the store: no catalogue entry of theirs can be restored."""
    empty = [
        row for row in layout.segments if row.id not in partitions and row.end is not None and row.end.entry_id < 0
    ]
    pages = at_once(lambda row: store.list(stream_prefix(row.stream), limit=1), empty)
    return frozenset(row.id for row, page in zip(empty, pages, strict=True) if not page.objects)


def record_partitions(store: ObjectStore, streams: Iterable[str]) -> None:
    """Record what partitions the topics of these streams have. Call it before streams are deleted.

    A topic counts as deleted, and its subscribers with it, when none of the recorded partitions is left. One that came
    since the last record has to be in it before the others go. Topics without a retention state need no record.

    Raises:
        CorruptError, UnsupportedError: an entry is damaged, or a later release wrote it.
    """
    given = {*streams}
    topics = {split[0] for stream in given if (split := partition_of(stream)) is not None}
    for topic in sorted(topics | {place for stream in given if (place := place_of(stream)) is not None}):
        if read_topic_entry(store, topic)[0] is not None:
            with suppress(NotFoundError, InvalidCallError):  # the former name of a migrated topic has no partitions
                find_scope(store, topic, create=True)


#: The hot tier of a stream, by its name; ``None``: unavailable, the stream then ends at its committed end.
SourceOf = Callable[[str], LedgerSource | None]
#: As ``SourceOf``, for code that only reads.
ReadableOf = Callable[[str], ReadableLedgers | None]


def no_source(stream: str) -> None:
    """Placeholder for a missing hot tier: the stream then ends at its committed end."""


class LoadedPartitions(Mapping[int, PartitionEntries]):
    """Number -> entries of a partition. One snapshot: each partition is loaded once.

    Args:
        known: where counting begins, by partition.
        views: earlier views by stream, updated in place instead of loaded again.

    Raises:
        NotFoundError: (of every access) a partition's stream was deleted.
    """

    def __init__(
        self,
        store: ObjectStore,
        scope: Scope,
        source_of: ReadableOf,
        known: Mapping[int, Known] | None = None,
        views: dict[str, ManifestState] | None = None,
    ) -> None:
        self._store = store
        self._scope = scope
        self._source_of = source_of
        self._known = known or {}
        self._views = {} if views is None else views
        self._loaded: dict[int, PartitionEntries] = {}

    def __len__(self) -> int:
        return len(self._scope.partitions)

    def __iter__(self) -> Iterator[int]:
        return iter(self._scope.partitions)

    def __contains__(self, number: object) -> bool:
        return number in self._scope.partitions

    def __getitem__(self, number: int) -> PartitionEntries:
        if number not in self._loaded:
            source = self._source_of(self._scope.partitions[number].stream)
            # Load the hot tier first: entries leave it only after the manifest has them.
            ledgers = [] if source is None else source.ledgers()
            self._loaded[number] = PartitionEntries(self.state(number), ledgers, self._known.get(number))
        return self._loaded[number]

    def load(self, numbers: Iterable[int]) -> None:
        """Load existing partitions that aren't loaded yet, in parallel."""
        at_once(self.__getitem__, [number for number in numbers if number in self and number not in self._loaded])

    def state(self, number: int) -> ManifestState:
        """The newest view of a partition's manifest."""
        partition = self._scope.partitions[number]
        view = self._views.get(partition.stream)
        if view is None or view.incarnation != partition.incarnation:
            # Refreshing an empty view loads it.
            view = ManifestState(stream=partition.stream, incarnation=partition.incarnation)
        view = refreshed(self._store, view).state
        if view.stream_deleted:
            raise NotFoundError(f"stream {partition.stream} in {self._store.url} was deleted")
        self._views[partition.stream] = view
        return view


#: Conflicting changes after which a change fails.
CONFLICTS_MAX = 100
#: Retries of a request with unknown outcome before it is reported.
UNKNOWN_REPEATS_MAX = 5
#: Longest wait before a conflicting change is retried, seconds; random each time.
CONFLICT_WAIT_S_MAX = 0.25
_DAMAGED = "restore an earlier version of this object; until then retention deletes nothing of the stream"


@dataclass(frozen=True, slots=True)
class Stored(Generic[Document]):
    """A document as read, and when it was written, by the store's clock; empty, ``None`` and 0 where there is none."""

    document: Document
    etag: str | None
    modified_ms: int = 0


#: Arguments of ``DocumentStore.change``.
Change: TypeAlias = tuple[str, Document, Callable[[Stored[Document]], Document | None]]


class DocumentStore:
    """Documents in an object store; the clock gives the times in them. Thread-safe."""

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self.store = store
        self.clock = clock
        self.entropy = entropy

    def read(self, key: str, empty: Document) -> Stored[Document]:
        """Read the document, or ``empty``; ``CorruptError`` if damaged, ``UnsupportedError`` if a later release
        wrote it."""
        try:
            data, info = self.store.get(key)
        except NotFoundError:
            return Stored(empty, None)
        document = decoded(data, key, type(empty).decode, f"{key} in {self.store.url}", hint=_DAMAGED)
        return Stored(document, info.etag, info.modified_ms)

    def change(
        self, key: str, empty: Document, alter: Callable[[Stored[Document]], Document | None]
    ) -> Stored[Document]:
        """Replace a document by the result of ``alter`` and return the new one.

        Args:
            empty: the input of ``alter`` where there is none.
            alter: pure, called for each version found; ``None``: no change. An error from it ends the change, nothing
                was written.

        Raises:
            OutcomeUnknownError: the write may have happened; call again.
            StoreUnavailableError: ``CONFLICTS_MAX`` concurrent changes, nothing was changed.
            CorruptError, UnsupportedError: as for ``read``.
        """
        for conflict in range(CONFLICTS_MAX):
            stored = self.read(key, empty)
            if (wanted := alter(stored)) is None:
                return stored
            before: Version = stored.document.version
            nonces = (before.nonce, *before.before)[:NONCES_KEPT] if before.revision else ()
            # Times never move back, even if the clock does.
            now_ms = max(self.clock.now_ms(), before.written_ms)
            version = Version(before.revision + 1, self.entropy(8).hex(), nonces, now_ms)
            if (written := self._write(key, stored, replace(wanted, version=version))) is not None:
                return written
            # Back off longer the more conflicts: some process always makes progress.
            fraction = int.from_bytes(self.entropy(2), "big") / 2**16
            self.clock.wait(threading.Event(), fraction * min(CONFLICT_WAIT_S_MAX, 0.01 * (conflict + 1)))
        raise StoreUnavailableError(f"{key} in {self.store.url}: other processes changed it {CONFLICTS_MAX} times")

    def _write(self, key: str, stored: Stored[Document], wanted: Document) -> Stored[Document] | None:
        """The document with ``wanted`` in it; ``None``: another change won, and this one can't take effect any more."""
        body, mode = wanted.encode(), CREATE if stored.etag is None else IfMatch(stored.etag)
        for attempt in range(UNKNOWN_REPEATS_MAX + 1):
            try:
                info = self.store.put(key, body, mode=mode)
                return Stored(wanted, info.etag, info.modified_ms)
            except PreconditionFailedError:
                return self._found(key, stored, wanted)
            except OutcomeUnknownError:
                if self.read(key, stored.document).etag != stored.etag:
                    return self._found(key, stored, wanted)
                # The request may still take effect on the current document: only retry the same bytes.
                if attempt == UNKNOWN_REPEATS_MAX:
                    raise
        raise AssertionError("the last repeat raises")

    def _found(self, key: str, stored: Stored[Document], wanted: Document) -> Stored[Document] | None:
        """After another document than ``stored`` was found: whether ``wanted`` is in it."""
        found = self.read(key, stored.document)
        version: Version = found.document.version
        own: Version = wanted.version
        if found.etag is not None and own.nonce in (version.nonce, *version.before):
            return found
        if found.etag is not None and version.revision - own.revision > NONCES_KEPT:
            raise OutcomeUnknownError(
                f"{key} in {self.store.url} was changed {version.revision - own.revision} times since", hint="look"
            )
        return None
