"""Managed ledger over embedded ledgers: append, read through both tiers, offload.

An append is acknowledged only after the ledger database has committed it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import EntryBatch, Position
from offloader.errors import InvalidCallError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.chunks import require_small
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.ledgers.tail_buffer import TailingSource
from offloader.manifest.catalog import read_entry, require_free_name
from offloader.manifest.log import ManifestLog
from offloader.manifest.names import stream_name
from offloader.read.reader import Entries, open_stream_reader
from offloader.retention.truncate import Truncation, truncate_stream
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import LedgerSettings, Settings
from offloader.settings.layered import settings_for
from offloader.store.base import ObjectStore, require_open_store
from offloader.store.probe import require_conditional_puts
from offloader.store.wrappers import require_store_settings
from offloader.stream_names import require_stream_name
from offloader.write.epoch import open_source
from offloader.write.hot_release import HotRelease
from offloader.write.offloader import LedgerOffloader, MethodOffload
from offloader.write.stream_state import StreamStatus


def open_managed_ledger(
    stream: str,
    *,
    ledgers: str | EmbeddedLedgers,
    store: ObjectStore,
    settings: Settings | str | Path | None = None,
    clock: Clock | None = None,
    entropy: Callable[[int], bytes] = os.urandom,
    new_source: bool = False,
    offloader: LedgerOffloader | None = None,
) -> ManagedLedger:
    """Opens a stream for appends and offloads its entries to ``store`` as they are written.

    Takes ownership of the stream; a previous owner is fenced at its next append. With offloading, appends wait until
    the manifest has recorded this start.

    Args:
        stream: its name, levels separated by ``/``, or its topic's: ``persistent://tenant/ns/topic``.
        ledgers: ``sqlite:///path/ledgers.db``, a path, or an open ``EmbeddedLedgers``.
        store: the object store of the cold tier.
        settings: sizes and limits, or a settings file; ``offload.method`` selects the offload method.
        clock, entropy: time and randomness, for tests.
        new_source: accept this database although the manifest knows another one, or it is an older copy: missing
            entries become a gap, and contradicting ledgers are skipped.
        offloader: of several streams, made with these settings; it remains open. Default: one of this stream.

    Raises:
        SourceMismatchError: the database isn't the one in the manifest, or has lost entries.
        InvalidCallError: ``store`` is a URL; the store can't represent a name; a setting is unknown, contradictory or
            without effect.
        UnsupportedError: the store lacks create-if-absent, and ``store.single_writer`` isn't set.
        StoreUnavailableError, AccessDeniedError, NotFoundError: the database or the store can't be used.
    """
    require_open_store(store)
    require_stream_name(stream := stream_name(stream))
    settings, clock = settings_for(stream, settings), clock or SystemClock()
    require_store_settings(store, settings.store)
    problems: Sequence[str] = ()
    if settings.offload.method != "none":
        # If two writers could both create an object, entries would be lost: check before the first write.
        problems = require_conditional_puts(store, single_writer=settings.store.single_writer).problems
        require_free_name(store, stream)
    own = EmbeddedLedgers(ledgers, settings=settings.ledgers, clock=clock) if isinstance(ledgers, str) else None
    with ExitStack() as opened:
        if own is not None:
            opened.callback(own.close)
        database = own or ledgers
        assert isinstance(database, EmbeddedLedgers)
        _require_ledger_settings(database, settings.ledgers)
        owns_offloader = offloader is None
        if offloader is None:
            how: Any = {"entropy": entropy, "observe": True, "store_problems": problems}
            offloader = LedgerOffloader(store, settings, clock=clock, **how)
            opened.callback(offloader.close)
        log = offloader.history.owners_log(stream)
        source = open_source(database, log, settings=settings.offload, clock=clock, new_source=new_source)
        # Before the offload: the cache must have an entry before its notification arrives.
        tail = TailingSource(source, settings.offload.tail_cache_size_max)
        offload = MethodOffload(offloader, tail, stream, settings.offload.method)
        offload.begin(log)
        opened.pop_all()  # the managed ledger closes them
    hot_release = offloader.history.hot_release(tail, stream)
    if settings.offload.method != "none":
        hot_release.start()
    log = ManifestLog(store, stream, clock=clock, entropy=entropy, settings=settings.manifest)
    return ManagedLedger(
        _Parts(
            *(stream, source, tail, store, settings, offloader, owns_offloader, offload, own, hot_release, log, clock)
        )
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    stream: str
    source: EmbeddedStream
    #: The source for readers, which serves the newest entries from memory.
    tail: TailingSource
    store: ObjectStore
    settings: Settings
    offloader: LedgerOffloader
    owns_offloader: bool
    offload: MethodOffload
    own_database: EmbeddedLedgers | None
    hot_release: HotRelease
    #: For truncations, which don't need the owner.
    log: ManifestLog
    clock: Clock


class ManagedLedger:
    """One stream in both tiers. Thread-safe. Created by ``open_managed_ledger``; close it, or use it as a context."""

    def __init__(self, parts: _Parts) -> None:
        self._parts, self._closed = parts, False
        self._switching = threading.Lock()

    @property
    def stream(self) -> str:
        return self._parts.stream

    def append(self, payload: bytes, publish_time_ms: int | None = None) -> Position:
        """Appends one entry; it is durable in the hot tier on return.

        Raises: as ``append_batch``.
        """
        return self.append_batch([payload], publish_time_ms)[0].first

    def append_batch(
        self,
        payloads: pa.Array | Sequence[bytes],
        publish_times_ms: Sequence[int] | NDArray[np.int64] | int | None = None,
        *,
        notes: Mapping[str, bytes] | None = None,
    ) -> list[EntryBatch]:
        """Appends entries, all or none; they are durable in the hot tier on return.

        Args:
            payloads: byte strings, or an Arrow array of byte strings.
            publish_times_ms: a time for each, or one for all, ms since 1970 UTC; default now.
            notes: small values of the caller, stored in the same transaction.

        Returns:
            One batch for each ledger written.

        Raises:
            FencedError: another process opened the stream since.
            InvalidCallError: not byte strings, a wrong number of times, or times out of range.
            LimitReachedError: an entry is above ``entry_size_max``.
            StoreUnavailableError: the disk is full or the database is locked; nothing was written.
        """
        limit = min(self._parts.settings.offload.entry_size_max, self._parts.settings.offload.offload_buffer_size_max)
        require_small(payloads, limit, where=f"append to stream {self.stream!r}")
        return self._parts.source.append(payloads, publish_times_ms, notes=notes)

    def read(self, first: Position, last: Position) -> Entries:
        """The entries from ``first`` to ``last``, from the cold tier if committed, else from the hot tier."""
        with open_stream_reader(
            self._parts.store, self.stream, settings=self._parts.settings.read, source=self._parts.tail
        ) as reader:
            return reader.read(first, last)

    def offload(self, until: Position | None = None, *, timeout_s: float | None = None) -> Position | None:
        """Offloads everything appended so far (or up to ``until``) and waits for the commit.

        Method ``streaming``: closes and completes the current segment. Method ``ledger``: offloads each closed ledger.

        Returns:
            The committed end, ``None`` when nothing is offloaded.

        Raises:
            InvalidCallError: the method is ``none``.
            StreamPaused: the stream is paused.
            StoreUnavailableError: not committed in time; no entry is lost.
        """
        return self._parts.offload.offload(until, timeout_s=timeout_s)

    @property
    def method(self) -> str:
        """The current offload method: ``streaming``, ``ledger`` or ``none``."""
        return self._parts.offload.method

    def set_method(self, method: str) -> None:
        """Switches the offload method during appends, without sending entries again or losing any.

        From ``streaming``: closes the open ledger and completes its segment first, so that streaming ends with a
        ledger. To ``ledger``: offloads closed ledgers by the thresholds or at the next ``offload``; a ledger that
        streaming started is completed in its layout. From ``ledger``: after the current run. The manifest records the
        method; the next opening takes it from the settings again.

        Raises:
            InvalidCallError: no such method.
            StoreUnavailableError, OutcomeUnknownError: the current segment couldn't be completed, or the manifest's
                record couldn't be written; the method is unchanged.
        """
        if method not in ("streaming", "ledger", "none"):
            raise InvalidCallError(f"stream {self.stream}: no method {method!r}", hint="use streaming, ledger or none")
        with self._switching:
            offload = self._parts.offload
            if method == offload.method:
                return
            if method != "none":
                require_conditional_puts(self._parts.store, single_writer=self._parts.settings.store.single_writer)
            if offload.method == "streaming":
                self._parts.source.close_ledger()
                offload.offload()
            offload.end()
            try:
                self._parts.offloader.history.switch(self.stream, method)
                offload.method = method
            finally:
                offload.begin_again()  # with the old method, if the manifest's record failed

    def truncate(self, before: Position, *, force: bool = False) -> Truncation:
        """Truncates the stream: earlier entries than ``before`` become unreadable in both tiers.

        Deletes whole hot ledgers now; cleanup deletes the segments after the grace period.

        Args:
            before: the first position kept; no effect if the stream already begins later.
            force: truncate even if an earlier entry isn't offloaded yet, and lose it.

        Raises:
            EditRefusedError: an earlier entry isn't offloaded yet, or the stream is on hold; nothing was changed.
            InvalidCallError: no entry was ever written before the position.
            DeletionStoppedError: all deletion in the store is stopped.
            StoreUnavailableError, OutcomeUnknownError: repeat the call.
        """
        with self._switching:
            if self.method == "none" and read_entry(self._parts.store, self.stream) is not None:
                # The manifest must only record a method that has an offloader.
                self._parts.offloader.history.switch(self.stream, "none")
            if force:
                self._parts.offload.end()
            try:
                return truncate_stream(
                    self._parts.log,
                    before,
                    clock=self._parts.clock,
                    source=self._parts.tail,
                    force=force,
                    take_over=True,
                    method=self.method,
                )
            finally:
                if force:
                    self._parts.offload.begin_again()

    def pause(self, reason: str = "") -> bool:
        """Pauses offloading until any process calls ``resume``; appends and reads continue. False: already paused.

        The current segment completes with its entries; later ones remain in the hot tier.

        Args:
            reason: shown to operators, kept in the manifest's record.

        Raises:
            NotFoundError: the stream was never offloaded.
            StoreUnavailableError, OutcomeUnknownError: the manifest's record couldn't be written; repeat the call.
        """
        return self._look_after(self._parts.offloader.history.pause(self.stream, reason))

    def resume(self) -> bool:
        """Resumes offloading where it stopped; False: it wasn't paused. Raises as ``pause``."""
        return self._look_after(self._parts.offloader.history.resume(self.stream))

    def _look_after(self, changed: bool) -> bool:
        self._parts.offload.wake()
        return changed

    def release_hot(self) -> list[int]:
        """Deletes hot copies whose deletion lag has passed (also done periodically); returns their ledgers.

        Raises:
            ObjectMissingError, ObjectChangedError: an object of a ledger isn't in the store as recorded: its hot copy
                is kept.
            StoreUnavailableError: the store or the database doesn't respond; retried at the next run.
        """
        done = self._parts.hot_release.look()
        if done.errors:
            raise done.errors[0]
        return done.deleted

    def close_ledger(self) -> LedgerInfo | None:
        """Closes the open ledger, so that the next append opens another; returns the closed one."""
        return self._parts.source.close_ledger()

    def ledgers(self) -> list[LedgerInfo]:
        """The ledgers of the hot tier, ascending."""
        return self._parts.source.ledgers()

    def status(self) -> StreamStatus | None:
        """Status of the streaming offload; ``None`` with another method."""
        return self._parts.offload.status()

    def get_note(self, key: str) -> bytes | None:
        """A note stored with ``append_batch(notes=...)``."""
        return self._parts.source.get_note(key)

    def close(self, *, drain: bool = True) -> None:
        """Ends offloading and closes everything opened here. Idempotent.

        Args:
            drain: first complete the current segment, for at most ``drain_timeout``; else the next start completes
                it.

        Raises:
            StoreUnavailableError: the last segment couldn't be completed; the hot tier still has its entries.
        """
        if self._closed:
            return
        self._closed = True
        with ExitStack() as rest:  # in reverse order, even if Ctrl-C ends the wait for the last segment
            if self._parts.own_database is not None:
                rest.callback(self._parts.own_database.close)
            rest.callback(self._parts.tail.close)
            if self._parts.owns_offloader:
                rest.callback(self._parts.offloader.close)
            rest.callback(self._parts.hot_release.stop)
            failure = self._parts.offload.close(drain=drain)
        if failure is not None:
            raise failure

    def __enter__(self) -> ManagedLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)


def _require_ledger_settings(database: EmbeddedLedgers, settings: LedgerSettings) -> None:
    # An open database doesn't poll.
    others = (replace(each, poll_interval=settings.poll_interval) for each in (LedgerSettings(), database.settings))
    if settings not in others:
        raise InvalidCallError(
            f"the settings ledgers have no effect on {database.path}: it was opened with other settings",
            hint="open it with EmbeddedLedgers(..., settings=settings.ledgers)",
        )
