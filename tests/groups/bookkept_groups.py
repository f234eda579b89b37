"""Groups whose readers are only names: each call is one change of the document, as a ``GroupReader`` makes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from formats.documents import GroupState
from offloader.errors import InvalidCallError, LimitReachedError
from offloader.groups import reader_groups
from offloader.groups.assignment import is_checkpoint_due
from offloader.groups.group_service import GroupOutcome, ReaderGroups
from offloader.manifest.names import stream_name
from offloader.retention.cuts import StreamCut
from offloader.retention.scope import DocumentStore, SourceOf, no_source
from offloader.runtime.clock import Clock, SystemClock
from offloader.store.base import ObjectStore


def open_bookkept_groups(
    store: ObjectStore,
    *,
    source_of: SourceOf = no_source,
    clock: Clock | None = None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> BookkeptGroups:
    return BookkeptGroups(DocumentStore(store, clock or SystemClock(), entropy), source_of)


class BookkeptGroups(ReaderGroups):
    def add_reader(self, name: str, reader: str) -> GroupOutcome:
        return self._change(name, lambda group: reader_groups.reader_added(group, reader))

    def remove_reader(self, name: str, reader: str, cuts: Mapping[str, StreamCut]) -> GroupOutcome:
        rows = self._rows(cuts)
        return self._change(name, lambda group: reader_groups.reader_removed(group, reader, rows))

    def reach_checkpoint(self, name: str, checkpoint: str, reader: str, cuts: Mapping[str, StreamCut]) -> GroupOutcome:
        for stream, cut in ((stream_name(of), cut) for of, cut in cuts.items()):
            if cut.offsets and (problem := self._stream(stream).cuts().problem(cut)):
                raise InvalidCallError(f"stream {stream}: {problem}")
        rows = self._rows(cuts)
        change = self._change(name, lambda group: reader_groups.reached(group, checkpoint, reader, rows))
        return self._without_expired(change)

    def pass_checkpoint(self, name: str, checkpoint: str, reader: str) -> GroupOutcome:
        return self._change(name, lambda group: reader_groups.passed(group, checkpoint, reader))

    def tick(self, name: str, *, renew_ms: int) -> GroupOutcome:
        """What readers do at a heartbeat, at the clock's time instead of the last heartbeat's."""
        now_ms = self._documents.clock.now_ms()

        def ticked(group: GroupState) -> GroupState:
            reader_groups.require_group(group)
            group = replace(group, store_ms=now_ms)
            group = reader_groups.renewed(group, now_ms=now_ms, renew_ms=renew_ms)
            with suppress(LimitReachedError):
                if is_checkpoint_due(group) and group.readers:
                    checkpoint = f"automatic-{group.version.revision}"
                    return reader_groups.started_checkpoint(
                        group, checkpoint, kept=False, now_ms=now_ms, automatic=True
                    )
            return group

        outcome = self._change(name, ticked)
        is_full = len(outcome.group.checkpoints) >= reader_groups.CHECKPOINTS_MAX
        return self._without_expired(outcome) if is_full else outcome
