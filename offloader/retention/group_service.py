"""Reader groups in the store, and publication of their positions to the streams."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Concatenate, ParamSpec

from formats.documents import GROUP_PREFIX, GroupState, PartitionRow, StreamCutRow, ToDoRow, group_key, group_of_key
from offloader.errors import Corrupt, InvalidCall, LimitReached, NotFound, OffloaderError, Unsupported
from offloader.manifest.boundary import listed
from offloader.manifest.names import stream_name
from offloader.retention import reader_groups
from offloader.retention.cuts import Cut, cut_of_rows, rows_alive, stream_rows
from offloader.retention.reader_groups import GROUP_STREAMS_MAX, GroupConfig, Homes, absent_group, require_group
from offloader.retention.scope import DocumentStore, SourceOf, Stored, no_source
from offloader.retention.subscribers import PublishStatus, StreamRetention
from offloader.runtime.clock import Clock, SystemClock
from offloader.store.base import ObjectStore, require_open_store

_Given = ParamSpec("_Given")
_log = logging.getLogger("offloader.retention")


def open_reader_groups(
    store: ObjectStore,
    *,
    source_of: SourceOf | None = None,
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


class ReaderGroups:
    """See ``open_reader_groups``. Thread-safe; several processes may work on one group.

    Every change raises ``NotFound`` for a group that doesn't exist, and the errors of ``DocumentStore.change``.
    """

    def __init__(self, documents: DocumentStore, source_of: SourceOf) -> None:
        self._documents = documents
        self._stream = lru_cache(GROUP_STREAMS_MAX)(lambda stream: StreamRetention(documents, stream, source_of))
        self._views: dict[str, tuple[float, GroupState]] = {}

    def names(self) -> list[str]:
        """Existing groups, sorted; one whose document can't be read is among them."""
        names = [group_of_key(info.key) for info in listed(self._documents.store, GROUP_PREFIX)]
        return sorted(name for name in names if name is not None and not self._is_deleted(name))

    def _is_deleted(self, name: str) -> bool:
        with suppress(Corrupt, Unsupported):
            return self._read(name).deleted
        return False

    def get(self, name: str) -> GroupState:
        """Current value of a group."""
        group = self._read(name)
        require_group(group)
        return group

    def view(self, name: str) -> GroupState:
        """A group, cached for at most its ``refresh_ms``: for readers that check after each event."""
        now_s = self._documents.clock.monotonic_s()
        seen_s, group = self._views.get(name, (0.0, None))
        if group is None or (now_s - seen_s) * 1000 >= group.refresh_ms:
            group = self.get(name)
            self._views[name] = (now_s, group)
        return group

    def create(self, name: str, config: GroupConfig) -> GroupOutcome:
        """Create a group; an existing one is unchanged.

        Raises:
            InvalidCall: not a name, or a start that is no cut of its stream.
            NotFound: a stream doesn't exist.
        """
        return self._change(name, reader_groups.created, config, self._checked(config))

    def update(self, name: str, from_generation: int, config: GroupConfig) -> GroupOutcome:
        """Change the configuration. Becoming a subscriber registers the group, ceasing to be one removes it.

        Raises:
            InvalidCall: the group changed since ``from_generation``; and as ``create``.
        """
        return self._change(name, reader_groups.updated, from_generation, config, self._checked(config))

    def delete(self, name: str) -> GroupOutcome:
        """Delete a group and its subscribers; again, where that failed. A small object keeps its generation."""
        return self._change(name, reader_groups.deleted)

    def add_reader(self, name: str, reader: str) -> GroupOutcome:
        """Add a reader, which takes part in checkpoints from now on."""
        return self._change(name, reader_groups.reader_added, reader)

    def remove_reader(self, name: str, reader: str, cuts: Mapping[str, Cut]) -> GroupOutcome:
        """Remove a reader; ``cuts`` are its processed positions, by stream."""
        return self._change(name, reader_groups.reader_removed, reader, self._rows(cuts))

    def start_checkpoint(self, name: str, checkpoint: str, *, kept: bool = True) -> GroupOutcome:
        """Start a checkpoint; ``kept``: keep it until it expires, for later publication."""
        now_ms = self._documents.clock.now_ms()
        started = partial(reader_groups.started_checkpoint, name=checkpoint, kept=kept, now_ms=now_ms)
        try:
            return self._change(name, started)
        except LimitReached:
            # Those that fill the group may have come to lie before the start positions since the last was reached.
            before = self.get(name)
            if self._expiring(GroupOutcome(before)).group == before:
                raise
        return self._change(name, started)

    def reach_checkpoint(self, name: str, checkpoint: str, reader: str, cuts: Mapping[str, Cut]) -> GroupOutcome:
        """Record a reader's positions at a checkpoint: the next entry it reads, by stream.

        Raises:
            InvalidCall: a stream that the group doesn't read, or positions that the stream doesn't have.
        """
        for stream, cut in _named(cuts).items():
            if cut.offsets and (problem := self._stream(stream).cuts().problem(cut)):
                raise InvalidCall(
                    f"reader {reader} of group {name} at checkpoint {checkpoint}, stream {stream}: {problem}"
                )
        return self._expiring(self._change(name, reader_groups.reached, checkpoint, reader, self._rows(cuts)))

    def pass_checkpoint(self, name: str, checkpoint: str, reader: str) -> GroupOutcome:
        """Record that a reader has read past a checkpoint. Once all have, an automatic group publishes it."""
        return self._change(name, reader_groups.passed, checkpoint, reader)

    def update_truncation_checkpoint(self, name: str, checkpoint: str) -> GroupOutcome:
        """Publish a complete checkpoint of a group; raises ``Unsupported`` if its retention isn't manual."""
        return self._change(name, reader_groups.truncated_at_checkpoint, checkpoint)

    def update_truncation_cuts(self, name: str, cuts: Mapping[str, Cut]) -> GroupOutcome:
        """Publish cuts of a group, one for each stream; raises ``Unsupported`` if its retention isn't manual."""
        return self._change(name, reader_groups.owing_publish, self._rows(cuts))

    def tick(self, name: str, *, renew_ms: int) -> GroupOutcome:
        """Periodic work: start an automatic checkpoint if due, and settle obligations.

        Args:
            renew_ms: age at which cuts are republished, at most a third of the streams' shortest subscriber timeout.
        """
        now_ms = self._documents.clock.now_ms()

        def ticked(group: GroupState) -> GroupState:
            require_group(group)
            group = reader_groups.renewed(group, now_ms=now_ms, renew_ms=renew_ms)
            # A time as far ahead is of a process whose clock is wrong.
            if abs(now_ms - group.checkpoint_ms) < group.automatic_checkpoint_ms or not group.readers:
                return group
            with suppress(LimitReached):  # the readers lag: a later checkpoint covers this one
                group = reader_groups.started_checkpoint(
                    group, f"automatic-{now_ms}", kept=False, now_ms=now_ms, automatic=True
                )
            return group

        outcome = self._change(name, ticked)
        is_full = len(outcome.group.checkpoints) >= reader_groups.CHECKPOINTS_MAX
        return self._expiring(outcome) if is_full else outcome

    def settle(self, name: str) -> GroupOutcome:
        """Perform the group's obligations to its streams; also for a deleted group."""
        return self._settled(self._read(name))

    def _read(self, name: str) -> GroupState:
        absent = absent_group(name)  # before the key, which not every text has
        return self._documents.read(group_key(name), absent).document

    def _change(
        self,
        name: str,
        change: Callable[Concatenate[GroupState, _Given], GroupState],
        *given: _Given.args,
        **named: _Given.kwargs,
    ) -> GroupOutcome:
        return self._settled(self._written(name, lambda group: change(group, *given, **named)))

    def _written(self, name: str, change: Callable[[GroupState], GroupState]) -> GroupState:
        def alter(stored: Stored[GroupState]) -> GroupState | None:
            after = change(stored.document)
            return None if after == stored.document else after

        absent = absent_group(name)
        group = self._documents.change(group_key(name), absent, alter).document
        self._views.pop(name, None)
        return group

    def _settled(self, group: GroupState) -> GroupOutcome:
        refused: list[tuple[ToDoRow, str]] = []
        failed: list[tuple[ToDoRow, OffloaderError]] = []
        done: list[tuple[ToDoRow, PublishStatus]] = []
        # Before the streams note the time of what is published: the next sign of life must not be later than they wait.
        now_ms = self._documents.clock.now_ms()
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

        return GroupOutcome(self._written(group.name, struck_out), refused, failed)

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
        except NotFound as error:
            return PublishStatus.STREAM_NOT_FOUND, "" if row.action == "remove" else error.message

    def _rows(self, cuts: Mapping[str, Cut]) -> tuple[StreamCutRow, ...]:
        """Cuts with the incarnations of their streams: a name may be reused later."""
        homes, named = {}, _named(cuts)
        for stream in named:
            with suppress(NotFound):
                homes[stream] = self._stream(stream).scope().rows
        return stream_rows(named, homes)

    def _checked(self, config: GroupConfig) -> Homes:
        """The incarnations of a valid configuration's streams."""
        homes = {}
        for stream in config.streams:
            scope = self._stream(stream).scope()
            homes[stream] = scope.rows
            start = config.starts.get(stream, Cut())
            if start.offsets and (problem := self._stream(stream).cuts(scope).problem(start)):
                raise InvalidCall(f"a reader group can't start at {start} in stream {stream}: {problem}")
        return homes

    def _expiring(self, outcome: GroupOutcome) -> GroupOutcome:
        """Drop checkpoints behind the streams' start positions, once one is complete, as the proposal specifies."""
        group = outcome.group
        if not any(row.kept and not row.waiting for row in group.checkpoints):
            return outcome
        heads, homes = {}, dict[str, tuple[PartitionRow, ...]]()
        for stream in sorted({each.stream for row in group.checkpoints for each in row.cuts}):
            with suppress(OffloaderError):  # of a broken one the start position is unknown
                try:
                    scope = self._stream(stream).scope()
                except NotFound:
                    heads[stream], homes[stream] = Cut(), ()
                else:
                    heads[stream], homes[stream] = self._stream(stream).cuts(scope).head(), scope.rows
        if reader_groups.expired(group, heads, homes) == group:
            return outcome
        found = self._change(group.name, reader_groups.expired, heads, homes)
        return GroupOutcome(found.group, [*outcome.refused, *found.refused], [*outcome.failed, *found.failed])


def _named(cuts: Mapping[str, Cut]) -> dict[str, Cut]:
    """Cuts by the streams' names, where a topic's was given."""
    return {stream_name(of): cut for of, cut in cuts.items()}
