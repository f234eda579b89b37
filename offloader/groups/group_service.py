"""Reader groups in the store, and publication of their positions to the streams."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from formats.documents import GROUP_PREFIX, GroupState, PartitionRow, StreamCutRow, ToDoRow, group_key, group_of_key
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    UnsupportedError,
)
from offloader.groups import reader_groups
from offloader.groups.assignment import joined, reconfigured, require_reader_name, timed
from offloader.groups.group_reader import GroupAccess, GroupReader, homes_of, parents_of
from offloader.groups.reader_groups import (
    GROUP_STREAMS_MAX,
    GroupConfig,
    RetentionType,
    absent_group,
    config_of,
    require_group,
)
from offloader.manifest.boundary import listed
from offloader.manifest.names import stream_name
from offloader.read.reader import Reader, open_stream_reader
from offloader.retention.cuts import StreamCut, cut_of_rows, rows_alive, stream_rows
from offloader.retention.scope import DocumentStore, ReadableOf, Scope, Stored, no_source
from offloader.retention.subscribers import PublishStatus, StreamRetention
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore, require_open_store

#: Returns the wanted group for the current one.
Change = Callable[[GroupState], GroupState]
_log = logging.getLogger("offloader.groups")


def open_reader_groups(
    store: ObjectStore,
    *,
    source_of: ReadableOf | None = None,
    clock: Clock | None = None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> ReaderGroups:
    """Open the reader groups of a store.

    Args:
        store: open for writing.
        source_of: the hot tier by a stream's name, as for ``open_retention``.
    """
    require_open_store(store)
    return ReaderGroups(DocumentStore(store, clock or SystemClock(), entropy), source_of or no_source)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """A group after a change.

    Attributes:
        refused: obligations that a stream refused permanently, with the reason; they are dropped.
        failed: obligations left because the store failed, with the reason; ``settle`` retries them.
    """

    group: GroupState
    refused: Sequence[tuple[ToDoRow, str]] = ()
    failed: Sequence[tuple[ToDoRow, OffloaderError]] = ()


def group_facts(group: GroupState) -> dict[str, Any]:
    """A group for programs."""
    shares = Counter(row.reader for row in group.assignments)
    return {
        "group": group.name,
        "generation": group.generation,
        "type": group.retention,
        "streams": group.streams,
        "readers": {reader: shares[reader] for reader in group.readers},
        "checkpoints": [
            {"name": row.name, "kept": row.kept, "complete": not row.behind, "behind": row.behind}
            for row in group.checkpoints
        ],
        "published": {
            each.stream: {str(row.partition): str(row.position) for row in each.cut} for each in group.published
        },
        "owed": [{"action": row.action, "stream": row.stream} for row in group.to_do],
    }


class ReaderGroup:
    """One group; see ``ReaderGroups.open``."""

    def __init__(self, groups: ReaderGroups, name: str) -> None:
        self._groups, self.name = groups, name

    def state(self) -> GroupState:
        """The group's current document."""
        return self._groups.get(self.name)

    def initiate_checkpoint(self, name: str, *, keep: bool = True) -> GroupOutcome:
        """As ``ReaderGroups.initiate_checkpoint``."""
        return self._groups.initiate_checkpoint(self.name, name, keep=keep)

    def update_truncation_checkpoint(self, name: str) -> GroupOutcome:
        """As ``ReaderGroups.update_truncation_checkpoint``."""
        return self._groups.update_truncation_checkpoint(self.name, name)

    def join(
        self,
        reader_id: str,
        *,
        settings_of: Callable[[str], ReadSettings | None] = lambda _: None,
        refreshed: Callable[[Reader], Reader] = Reader.refresh,
        stop: threading.Event | None = None,
    ) -> GroupReader:
        """As ``ReaderGroups.join``."""
        return self._groups.join(self.name, reader_id, settings_of=settings_of, refreshed=refreshed, stop=stop)


class ReaderGroups:
    """See ``open_reader_groups``. Thread-safe; several processes may work on one group.

    Every change raises ``NotFoundError`` for a group that doesn't exist, and the errors of ``DocumentStore.change``.
    """

    def __init__(self, documents: DocumentStore, source_of: ReadableOf) -> None:
        self._documents = documents
        self._stream = lru_cache(GROUP_STREAMS_MAX)(lambda stream: StreamRetention(documents, stream, source_of))
        self._source_of = source_of

    def names(self) -> list[str]:
        """Existing groups, sorted; one whose document can't be read is among them."""
        names = [group_of_key(info.key) for info in listed(self._documents.store, GROUP_PREFIX)]
        return sorted(name for name in names if name is not None and not self._is_deleted(name))

    def _is_deleted(self, name: str) -> bool:
        with suppress(CorruptError, UnsupportedError):
            return self._read(name).deleted
        return False

    def get(self, name: str) -> GroupState:
        """Current value of a group."""
        group = self._read(name)
        require_group(group)
        return group

    def create(self, name: str, config: GroupConfig) -> GroupOutcome:
        """Create a group; an existing one is unchanged.

        Raises:
            InvalidCallError: not a name, or a start that is no cut of its stream.
            NotFoundError: a stream doesn't exist.
        """
        homes = homes_of(self._checked(config), config.streams)
        return self._change(name, lambda group: reader_groups.created(group, config, homes))

    def update(self, name: str, from_generation: int, config: GroupConfig) -> GroupOutcome:
        """Change the configuration. Becoming a subscriber registers the group, ceasing to be one removes it.

        Raises:
            InvalidCallError: the group changed since ``from_generation``; and as ``create``.
        """
        scopes = self._checked(config)
        homes, parents = homes_of(scopes, config.streams), parents_of(scopes)
        return self._change(name, lambda group: reconfigured(group, from_generation, config, homes, parents))

    def configure(
        self, name: str, streams: Sequence[str], retention: RetentionType, automatic_checkpoint_ms: int | None = None
    ) -> GroupOutcome:
        """Create a group, or change the streams, type and checkpoint interval of one; its other settings are kept.

        Raises: as ``create`` and ``update``.
        """
        changes: dict[str, Any] = {"streams": sorted({stream_name(each) for each in streams}), "retention": retention}
        if automatic_checkpoint_ms is not None:
            changes["automatic_checkpoint_ms"] = automatic_checkpoint_ms
        outcome = self.create(name, GroupConfig(**changes))
        before = config_of(outcome.group)
        for bound, cuts in (("starts", before.starts), ("ends", before.ends)):
            changes[bound] = {stream: cut for stream, cut in cuts.items() if stream in changes["streams"]}
        wanted = replace(before, **changes)
        return outcome if wanted == before else self.update(name, outcome.group.generation, wanted)

    def delete(self, name: str) -> GroupOutcome:
        """Delete a group and its subscribers; again, where that failed. A small object keeps its generation."""
        return self._change(name, reader_groups.deleted)

    def open(self, name: str) -> ReaderGroup:
        """One existing group, to read it and to start checkpoints."""
        self.get(name)
        return ReaderGroup(self, name)

    def initiate_checkpoint(self, name: str, checkpoint: str, *, keep: bool = True) -> GroupOutcome:
        """Start a checkpoint, which is complete when every reader has passed it.

        Args:
            keep: keep it until it expires, so that it can be published later.

        Raises:
            InvalidCallError: the name is taken, or the group has no readers.
            LimitReachedError: too many wait already, or too many are kept.
        """

        def started(group: GroupState) -> GroupState:
            return reader_groups.started_checkpoint(group, checkpoint, kept=keep, now_ms=group.store_ms)

        try:
            return self._change(name, started)
        except LimitReachedError:
            # Those that fill the group may have come to lie before the start positions since the last was reached.
            before = self.get(name)
            if self._without_expired(GroupOutcome(before)).group == before:
                raise
        return self._change(name, started)

    def update_truncation_checkpoint(self, name: str, checkpoint: str) -> GroupOutcome:
        """Publish a complete checkpoint of a group; raises ``UnsupportedError`` if its retention isn't manual."""
        return self._change(name, lambda group: reader_groups.truncated_at_checkpoint(group, checkpoint))

    def update_truncation_cuts(self, name: str, cuts: Mapping[str, StreamCut]) -> GroupOutcome:
        """Publish cuts of a group, one for each stream; raises ``UnsupportedError`` if its retention isn't manual."""
        rows = self._rows(cuts)
        return self._change(name, lambda group: reader_groups.owing_publish(group, rows))

    def settle(self, name: str) -> GroupOutcome:
        """Perform the group's obligations to its streams; also for a deleted group."""
        return self._settled(self._stored(name))

    def join(
        self,
        name: str,
        reader_id: str,
        *,
        settings_of: Callable[[str], ReadSettings | None] = lambda _: None,
        refreshed: Callable[[Reader], Reader] = Reader.refresh,
        stop: threading.Event | None = None,
    ) -> GroupReader:
        """Join the group as a reader, which reads the partitions that the group assigns to it.

        Partitions are assigned immediately if they are free, else when their readers have passed a checkpoint, which
            takes two heartbeats at most. Close the reader, or use it as a context manager: it leaves the group then.

        Args:
            reader_id: unique in the group; a running reader of that name is fenced, and its partitions are released.
            settings_of: the settings of reads by a stream's name; ``None``: the defaults.
            refreshed: a reader's successor at the current manifest, which may have another hot tier.
            stop: ends the iteration when set.

        Raises:
            NotFoundError: there is no such group.
            InvalidCallError: not a reader's name.
            LimitReachedError: the group has too many readers.
        """
        require_reader_name(reader_id)
        documents = self._documents
        streams = self.get(name).streams
        scopes = self._scopes(streams)
        homes, parents = homes_of(scopes, streams), parents_of(scopes)
        session = documents.entropy(8).hex()

        access = GroupAccess(
            read=lambda: self._read(name),
            change=lambda change: self._change(name, change).group,
            expire=lambda group: self._without_expired(GroupOutcome(group)).group,
            scopes=self._scopes,
            opened=lambda stream: open_stream_reader(
                documents.store,
                stream,
                settings=settings_of(stream),
                source=self._source_of(stream),
                clock=documents.clock,
            ),
            refreshed=refreshed,
            clock=documents.clock,
        )
        now_s = documents.clock.monotonic_s()
        group = access.change(lambda group: joined(group, reader_id, session, homes, parents))
        return GroupReader(access, group, reader_id, session, scopes, stop or threading.Event(), now_s)

    def _scopes(self, streams: Sequence[str]) -> dict[str, Scope]:
        """The current partitions of streams, without streams that don't exist."""
        found = {}
        for stream in streams:
            with suppress(NotFoundError):
                found[stream] = self._stream(stream).scope()
        return found

    def _stored(self, name: str) -> Stored[GroupState]:
        absent = absent_group(name)  # before the key, which not every text has
        return self._documents.read(group_key(name), absent)

    def _read(self, name: str) -> GroupState:
        return self._stored(name).document

    def _change(self, name: str, change: Change) -> GroupOutcome:
        """Replace a group by the result of ``change``, and perform its obligations.

        Args:
            change: pure; called with a ``timed`` group for each version found.
        """
        return self._settled(self._written(name, change))

    def _written(self, name: str, change: Change) -> Stored[GroupState]:
        def alter(stored: Stored[GroupState]) -> GroupState | None:
            before = timed(stored.document, stored.modified_ms)
            after = change(before)
            return None if after == before else after

        absent = absent_group(name)
        return self._documents.change(group_key(name), absent, alter)

    def _settled(self, stored: Stored[GroupState]) -> GroupOutcome:
        group = stored.document
        refused: list[tuple[ToDoRow, str]] = []
        failed: list[tuple[ToDoRow, OffloaderError]] = []
        done: list[tuple[ToDoRow, PublishStatus]] = []
        # Before the streams record the time of the publication: the next sign of life must not be later than they wait.
        now_ms = stored.modified_ms
        for row in group.to_do:
            # Obligations of a stream are performed in order: its later ones wait for one that failed.
            if any(row.stream == earlier.stream for earlier, _ in failed):
                continue
            try:
                status, why = self._do(group.name, row)
            except OffloaderError as error:
                failed.append((row, error))
                _log.warning("reader group %s: %s in stream %s: %s", group.name, row.action, row.stream, error)
                continue
            done.append((row, status))
            if why:
                refused.append((row, why))
                _log.warning("reader group %s: %s in stream %s: %s", group.name, row.action, row.stream, why)
        if not done:
            return GroupOutcome(group, refused, failed)

        def struck_out(group: GroupState) -> GroupState:
            for row, status in done:
                if row in group.to_do:
                    group = reader_groups.settled(group, row, status, now_ms=now_ms)
            return group

        return GroupOutcome(self._written(group.name, struck_out).document, refused, failed)

    def _do(self, name: str, row: ToDoRow) -> tuple[PublishStatus, str]:
        """Apply one change to a registry; returns its status, and the reason of a permanent refusal."""
        stream = self._stream(row.stream)
        try:
            if row.action == "remove":
                stream.remove(name, generation=row.generation)
                return PublishStatus.SUCCESS, ""
            scope = stream.scope()
            # A partition deleted and recreated since doesn't have these positions: nothing of it was read.
            alive = rows_alive(row.cut or (), row.partitions, scope.rows)
            cut = cut_of_rows(alive) if alive else None
            if row.action == "add":
                # Another process may have made this registration meanwhile, and another one removed it. Removing comes
                # after the registration isn't owed any more, and replaces the registry that was read before.
                stream.add_if(lambda: row in self._read(name).to_do, name, generation=row.generation, start=cut)
                return PublishStatus.SUCCESS, ""
            # A group that has read nothing needs everything. A stream without an entry has no position for that.
            wanted = cut or stream.cuts(scope).begin()
            if not wanted.offsets:
                return PublishStatus.SUCCESS, ""
            outcome = stream.try_publish(name, wanted, generation=row.generation)
            return outcome.status, outcome.why
        except NotFoundError as error:
            return PublishStatus.STREAM_NOT_FOUND, "" if row.action == "remove" else error.message

    def _rows(self, cuts: Mapping[str, StreamCut]) -> tuple[StreamCutRow, ...]:
        """Cuts with the incarnations of their streams: a name may be reused later."""
        homes, named = {}, _named(cuts)
        for stream in named:
            with suppress(NotFoundError):
                homes[stream] = self._stream(stream).scope().rows
        return stream_rows(named, homes)

    def _checked(self, config: GroupConfig) -> Mapping[str, Scope]:
        """The streams of a valid configuration."""
        scopes = {}
        for stream in config.streams:
            scopes[stream] = scope = self._stream(stream).scope()
            start = config.starts.get(stream, StreamCut())
            if scope.layout is not None and (start.offsets or stream in config.ends):
                raise InvalidCallError(
                    f"{scope.layout.topic} is a scalable topic: a reader group begins at its beginning and has no end",
                    hint="leave its start and end out",
                )
            if start.offsets and (problem := self._stream(stream).cuts(scope).problem(start)):
                raise InvalidCallError(f"a reader group can't start at {start} in stream {stream}: {problem}")
        return scopes

    def _without_expired(self, outcome: GroupOutcome) -> GroupOutcome:
        """Drop checkpoints behind the streams' start positions, once one is complete, as the proposal specifies."""
        group = outcome.group
        if not any(row.kept and not row.waiting for row in group.checkpoints):
            return outcome
        heads, homes = {}, dict[str, tuple[PartitionRow, ...]]()
        for stream in sorted({each.stream for row in group.checkpoints for each in row.cuts}):
            with suppress(OffloaderError):  # of a broken one the start position is unknown
                try:
                    scope = self._stream(stream).scope()
                except NotFoundError:
                    heads[stream], homes[stream] = StreamCut(), ()
                else:
                    heads[stream], homes[stream] = self._stream(stream).cuts(scope).head(), scope.rows
        if reader_groups.expired(group, heads, homes) == group:
            return outcome
        found = self._change(group.name, lambda group: reader_groups.expired(group, heads, homes))
        return GroupOutcome(found.group, [*outcome.refused, *found.refused], [*outcome.failed, *found.failed])


def _named(cuts: Mapping[str, StreamCut]) -> dict[str, StreamCut]:
    """Cuts by the streams' names, where a topic's was given."""
    return {stream_name(of): cut for of, cut in cuts.items()}
