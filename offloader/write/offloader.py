"""Public interface of the write side: the proposal's ``LedgerOffloader``, and one stream's offload by its method."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from formats.block_memory import BlockMemory
from formats.entries import Position
from formats.keys import Testimony, data_key, index_key
from formats.metadata.messages import OffloadContext
from formats.summary import SegmentSummary
from offloader.errors import (
    ClosedError,
    FencedError,
    InvalidCallError,
    OffloaderError,
    SourceMismatchError,
    StoreUnavailableError,
)
from offloader.ledgers.base import LedgerSource, Subscription
from offloader.manifest.log import ManifestLog
from offloader.manifest.names import stream_name
from offloader.manifest.segment_table import AT_ROOT, is_at_root
from offloader.manifest.state import EditRefusedError, ManifestState, StreamPaused
from offloader.monitor import Observation
from offloader.read.reader import ReadHandle, read_offloaded
from offloader.runtime.clock import Clock, SystemClock
from offloader.runtime.workers import Alarm, SerialTask, Workers
from offloader.settings import OffloadSettings, Settings
from offloader.settings.layered import SettingsFile
from offloader.store.base import ObjectStore, require_open_store
from offloader.store.wrappers import recorder_of, require_limits
from offloader.telemetry.recorder import NO_TELEMETRY
from offloader.write.backfill import HISTORY_PARTS, BackfillPlan, HistoryResult, HistoryTools, upload_order
from offloader.write.backfill_service import OFF, BackfillService, LedgerMethodPlan, due_ledgers
from offloader.write.machine import StreamOffload
from offloader.write.quota import MemoryBudget, StreamQuota
from offloader.write.segment import OffloadHandle, OffloadResult
from offloader.write.stream_state import StreamStatus
from offloader.write.upload import LedgerHandle, offload_ledger, upload_of

#: Parallel runs of the ledger method in the whole process; others wait.
LEDGER_RUNS_MAX = 2
#: Unused block memory kept by the process: twice the memory that a part of the default size frees.
BLOCK_MEMORY_BYTES = 32 * 1024 * 1024
#: Smaller blocks aren't pooled.
BLOCK_BYTES_MIN = 64 * 1024
_Result = TypeVar("_Result")

#: Names kept to refuse a second segment of the same name.
REMEMBERED_MAX = 65_536

#: Marks objects written without a manifest.
NO_INCARNATION = UUID(int=0)


class LedgerOffloader:
    """Writes segments into one store (PIP-76 ``LedgerOffloader``).

    Args:
        store: where segments are written.
        settings: sizes, ages and limits.
        clock, entropy: time and randomness, for tests and simulations.
        observe: monitor the streams periodically (watchdog). Implied by a status file and by a store opened with a
            recorder, which then also gets the streams' metrics.
        workers: runs its tasks, for simulations; closed with the offloader.
        store_problems: conditions that the store was found not to honour (``offloader.store.probe``), for the status.
        writer_url: where this process accepts a request to hand a stream over; recorded with its epochs.

    Raises:
        InvalidCallError: ``settings.limits`` aren't those that the store was opened with.
    """

    def __init__(
        self,
        store: ObjectStore,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        observe: bool = False,
        workers: Workers | None = None,
        store_problems: Sequence[str] = (),
        writer_url: str = "",
    ) -> None:
        require_open_store(store)
        self.store = store
        self.settings = settings or Settings()
        require_limits(store, self.settings.limits)
        self._clock = clock or SystemClock()
        self._workers = workers or Workers(self.settings.offload.workers_max, self._clock)
        # A simulation runs everything itself.
        self._is_simulated = workers is not None
        self._uploaders = workers or Workers(self.settings.offload.backfill_segments_in_flight_max, self._clock)
        # Separate threads: a segment that waits for its parts occupies an uploader, and live parts don't wait for one.
        self._senders = Workers(HISTORY_PARTS * self.settings.offload.parts_in_flight_max, self._clock)
        self._run_workers = Workers(LEDGER_RUNS_MAX, self._clock)
        # Separate thread: it reports when all workers hang in the store.
        self._observers = Workers(1, self._clock)
        request_flush = SerialTask(self._workers, lambda: self._budget.request_flush())
        self._budget = MemoryBudget(self.settings.offload.offload_memory_size_max, request_flush.schedule)
        block_bytes = self.settings.offload.block_size
        self._block_memory = BlockMemory(block_bytes, BLOCK_MEMORY_BYTES) if block_bytes >= BLOCK_BYTES_MIN else None
        self._upload_order = partial(
            upload_order, store, send_aside=None if self._is_simulated else self._senders.submit
        )
        self._tools = HistoryTools(
            upload=partial(self._upload_order, settings=self.settings.offload, memory=self._block_memory),
            driver=dict(store.driver_metadata),
            settings=self.settings.offload,
            workers=self._workers,
            uploaders=self._uploaders,
            budget=self._budget,
            clock=self._clock,
            entropy=entropy,
            writer_url=writer_url,
        )
        #: Runs a function on a worker after so many seconds.
        self.call_after = self._workers.call_after
        #: Runs over history of streams with the process's settings.
        self.history = BackfillService(store, self._tools, self.settings.manifest)
        self._lock = threading.Lock()
        self._runs = {self.settings.offload: self.history}
        self._names: OrderedDict[UUID, None] = OrderedDict()
        recorder = recorder_of(store)
        self.observation = Observation(
            self.settings, self._clock, recorder=recorder, store=store, store_problems=store_problems
        )
        self._observe = observe or recorder is not NO_TELEMETRY or bool(self.settings.telemetry.status_file)

    @property
    def memory_bytes(self) -> int:
        """Memory granted to all streams now, at most ``offload_memory_size_max`` plus the overhead of encoding."""
        return self._budget.granted_bytes

    def streaming_offload(
        self,
        uuid: UUID,
        driver_metadata: Mapping[str, str],
        *,
        stream: str = "",
        incarnation: UUID = NO_INCARNATION,
        epoch: int = 0,
        after: Position | None = None,
        buffer: StreamQuota | None = None,
        sending: bool = True,
        on_change: Callable[[], None] = lambda: None,
        settings: OffloadSettings | None = None,
        testimony: Callable[[], Testimony | None] = lambda: None,
    ) -> OffloadHandle:
        """A handle that writes offered entries into one V2 segment.

        Args:
            uuid: the segment's name; each is used once.
            driver_metadata: where the objects are to be; empty, or this store's own.
            stream: its name, or its topic's, decides the keys; empty: Pulsar's own layout, objects at the store's root.
            incarnation, epoch: written to the objects, so that a bucket is self-describing.
            after: the position the first entry has to follow.
            buffer: counts held bytes together with other segments of the stream; default: a separate buffer.
            sending: False: parts wait for ``start_sending`` (until the manifest has the segment).
            on_change: called from a worker when bytes were freed or the result is available.
            settings: of the stream; default: those of the process.
            testimony: metadata in the data object about the record that assigned it; called when it is sent.

        Raises:
            InvalidCallError: the uuid was used before, or the driver metadata names another place.
        """
        self._require_here(driver_metadata)
        self._claim(uuid)
        settings = settings or self.settings.offload
        return OffloadHandle(
            uuid=uuid,
            upload=upload_of(
                self.store,
                stream_name(stream),
                uuid,
                None,
                incarnation=incarnation,
                epoch=epoch,
                codec=settings.codec,
                testimony=testimony,
            ),
            workers=self._workers,
            buffer=buffer or StreamQuota(settings.offload_buffer_size_max),
            settings=settings,
            after=after,
            sending=sending,
            on_change=on_change,
            memory=self._memory_for(settings),
        )

    def _memory_for(self, settings: OffloadSettings) -> BlockMemory | None:
        # Blocks of one size share it.
        return self._block_memory if settings.block_size == self.settings.offload.block_size else None

    def offload(
        self,
        ledger: LedgerHandle,
        uuid: UUID,
        extra_metadata: Mapping[str, str],
        *,
        stream: str = "",
        incarnation: UUID = NO_INCARNATION,
        epoch: int = 0,
    ) -> Future[OffloadResult]:
        """Upload one closed ledger in the V1 layout (PIP-17), on a worker.

        Args:
            ledger: closed and not empty.
            uuid: the attempt's name; each is used once.
            extra_metadata: user metadata to be added to both objects.
            stream, incarnation, epoch: as for ``streaming_offload``.

        Returns:
            The result when both objects are in the store and verified.
        """
        self._claim(uuid)
        upload = upload_of(
            self.store,
            stream_name(stream),
            uuid,
            ledger.info.ledger_id,
            incarnation=incarnation,
            epoch=epoch,
            codec=self.settings.offload.codec,
            extra_metadata=extra_metadata,
        )
        return self._later(lambda: OffloadResult(uuid, offload_ledger(ledger, upload, self.settings.offload)))

    def read_offloaded(
        self, ledger_id: int, context: OffloadContext, driver_metadata: Mapping[str, str], *, stream: str = ""
    ) -> ReadHandle:
        """A read handle on one offloaded ledger, for any layout of its segments.

        Args:
            ledger_id: the ledger.
            context: from ``offloader.manifest.state.offload_context``, or Pulsar's own metadata.
            driver_metadata: where the objects were written; empty, or this store's own.
            stream: its name, or its topic's, decides the keys; empty: Pulsar's own layout, objects at the store's root.

        Raises: as ``offloader.read.reader.read_offloaded``.
        """
        return read_offloaded(
            self.store, ledger_id, context, driver_metadata, stream=stream_name(stream), settings=self.settings.read
        )

    def delete_offloaded(
        self, uuid: UUID, driver_metadata: Mapping[str, str], ledger_id: int | None = None, *, stream: str = ""
    ) -> Future[None]:
        """Delete a segment's two objects, on a worker; missing ones count as deleted.

        The recorded driver metadata locates them: an adopted segment's aren't below the stream.

        The caller has recorded that they are unneeded: no check here.

        Raises (in the future):
            StoreUnavailableError: the store kept one of them.
        """
        folder = "" if is_at_root(driver_metadata) else stream_name(stream)
        self._require_here({name: value for name, value in driver_metadata.items() if name not in AT_ROOT})

        def delete() -> None:
            if kept := self.store.delete([data_key(folder, uuid, ledger_id), index_key(folder, uuid, ledger_id)]):
                raise StoreUnavailableError(f"{kept[0].key} in {self.store.url} couldn't be deleted: {kept[0].reason}")

        return self._later(delete)

    def _later(self, call: Callable[[], _Result]) -> Future[_Result]:
        done: Future[_Result] = Future()
        done.set_running_or_notify_cancel()  # a caller may stop waiting, but can't cancel the deletion

        def run() -> None:
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

        self._workers.submit(run)
        return done

    def offload_stream(
        self,
        source: LedgerSource,
        stream: str,
        *,
        take_over: bool = True,
        settings: OffloadSettings | None = None,
        log: ManifestLog | None = None,
        on_refused: Callable[[StreamOffload], None] = lambda _: None,
    ) -> StreamOffload:
        """Start offloading a stream as its owner, from the position in the manifest.

        Args:
            log: of ``history.owners_log``, with an epoch that was opened for this source; ``None``: one is opened when
                there is something to offload.
            on_refused: called with the result when it stops because the manifest refused its edits, perhaps before
                this returns.
            take_over: False: not from an owner whose last record is younger than ``takeover_after``.
            settings: of the stream; default: those of the process. Settings that all streams share (workers, memory,
                segments of history in parallel) are always the process's.
        """
        stream, tools = stream_name(stream), self._tools_of(settings)
        log = log or self.history.owners_log(stream)
        make_handle = partial(
            self.streaming_offload,
            driver_metadata={},
            stream=stream,
            sending=False,
            settings=tools.settings,
            testimony=log.testimony,
        )
        offload = StreamOffload(
            source, log, make_handle=make_handle, tools=tools, take_over=take_over, on_refused=on_refused
        )
        try:
            offload.start()
        except BaseException:
            offload.stop()
            raise
        self.observation.add(offload)
        self.observe()
        return offload

    def offload_ledgers(self, source: LedgerSource, stream: str) -> Position | None:
        """Run the ledger method once: every unoffloaded closed ledger, in order; returns the committed end.

        Raises:
            the error of the first failed ledger; all others were tried.
        """
        result = self.history.ledgers(source, stream_name(stream))
        if result.errors:
            raise result.errors[0]
        return result.committed

    def offload_closed_ledgers(
        self, source: LedgerSource, stream: str, *, settings: OffloadSettings | None = None
    ) -> LedgerTrigger:
        """Start the ledger method for a stream: closed ledgers are offloaded when they reach the thresholds.

        Args:
            source: the hot tier, of the appending process.
            settings: as for ``offload_stream``.
        """
        trigger = LedgerTrigger(
            source,
            partial(self.runs_of(settings).ledgers, source, stream_name(stream)),
            settings=settings or self.settings.offload,
            workers=self._run_workers,
            clock=self._clock,
        )
        trigger.start()
        self.observe()
        return trigger

    def runs_of(self, settings: OffloadSettings | None) -> BackfillService:
        """``history`` for streams with separate settings."""
        with self._lock:
            key = settings or self.settings.offload
            if key not in self._runs:
                self._runs[key] = BackfillService(self.store, self._tools_of(key), self.settings.manifest)
            return self._runs[key]

    def observe(self) -> None:
        """Start to observe the streams periodically, and so to write the status file, if that is wanted. Idempotent;
        the first stream does it too."""
        if self._observe:
            self.observation.start(self._observers.call_after)

    def status(self) -> dict[str, Any]:
        """Status document (``offloader.monitor``) of this process's streams, its limits and its store."""
        return self.observation.look()

    def close(self) -> None:
        """End the workers; stop the streams first. Idempotent."""
        self.observation.close()
        self._observers.close()
        with self._lock:
            runs = list(self._runs.values())
        for each in runs:
            each.stop()
        if not self._is_simulated:
            for each in runs:
                each.wait()
        self._run_workers.close()
        self._uploaders.close()
        self._senders.close()  # after the threads that wait for it
        self._workers.close()

    def _tools_of(self, settings: OffloadSettings | None) -> HistoryTools:
        if settings is None or settings == self.settings.offload:
            return self._tools
        return replace(
            self._tools,
            settings=settings,
            upload=partial(self._upload_order, settings=settings, memory=self._memory_for(settings)),
        )

    def _claim(self, uuid: UUID) -> None:
        with self._lock:
            if uuid in self._names:
                raise InvalidCallError(
                    f"segment {uuid} exists already", hint="each segment and each attempt has its own uuid"
                )
            self._names[uuid] = None
            if len(self._names) > REMEMBERED_MAX:
                self._names.popitem(last=False)

    def _require_here(self, driver_metadata: Mapping[str, str]) -> None:
        given, own = dict(driver_metadata), dict(self.store.driver_metadata)
        if given and given != own:
            raise InvalidCallError(f"this offloader's store is {own}, the driver metadata names {given}")


_ledgers_log = logging.getLogger("offloader.ledgers")

#: Poll interval: how late a ledger's age is noticed, and when a failed ledger is retried.
LOOK_S = 60.0


class LedgerTrigger:
    """Runs the ledger method after each ledger that is closed, and once a minute.

    Args:
        source: the hot tier, of the appending process.
        run: offloads due ledgers, for ``threshold_bytes`` and ``threshold_seconds``.
        settings: the thresholds.
        workers: not those that upload: a run waits for these.
    """

    def __init__(
        self,
        source: LedgerSource,
        run: Callable[..., HistoryResult],
        *,
        settings: OffloadSettings,
        workers: Workers,
        clock: Clock,
    ) -> None:
        self._source, self._run, self._settings = source, run, settings
        self._clock, self._one_run = clock, threading.Lock()
        self._task = SerialTask(workers, self._look)
        self._next_look = Alarm(workers, self._task.schedule)
        self._subscription: Subscription | None = None
        self._committed: Position | None = None
        #: The result of the run that further callers wait for, until it begins.
        self._wanted: Future[HistoryResult] | None = None
        self._lock = threading.Lock()
        #: Why it stopped by itself: another writer took the stream, or the hot tier isn't the stream's.
        self.stopped_by: FencedError | SourceMismatchError | None = None

    def start(self) -> None:
        """Start polling."""
        self._subscription = self._source.subscribe(None, lambda _: self._task.schedule())
        self._task.schedule()

    def stop(self) -> None:
        """Stop polling: no run begins by itself after this and ``wait``; the offloader stops a running one."""
        self._next_look.stop()
        if self._subscription is not None:
            self._subscription.cancel()

    def wake(self) -> None:
        """Poll soon: the stream may have been resumed."""
        self._task.schedule()

    def wait(self) -> None:
        """Wait for the current run, if any."""
        with self._one_run:
            return

    def offload(self, *, timeout_s: float | None = None) -> HistoryResult:
        """Offload every closed ledger now, after the current run.

        Args:
            timeout_s: limit of the wait, for callers that can't wait for all of a history; the run continues after it.

        Raises:
            ClosedError: it was stopped during the wait. StoreUnavailableError: it isn't done within ``timeout_s``.
        """
        if timeout_s is None:
            return self._all_ran()
        with self._lock:
            wanted = self._wanted = self._wanted or Future()
        is_done = threading.Event()
        wanted.add_done_callback(lambda _: is_done.set())
        self._task.schedule()
        if not self._clock.wait(is_done, timeout_s):
            raise StoreUnavailableError(
                f"the closed ledgers weren't committed within {timeout_s:.3g} s; offloading continues",
                hint="call again later",
            )
        return wanted.result()

    def _all_ran(self) -> HistoryResult:
        with self._one_run:
            if self._next_look.is_stopped and self.stopped_by is None:
                raise ClosedError("the ledger method of this stream was stopped")
            return self._ran(0, OFF)

    def _run_wanted(self) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        try:
            wanted.set_result(self._all_ran())
        except Exception as error:
            wanted.set_exception(error)

    def _look(self) -> None:
        self._run_wanted()
        if self._next_look.is_stopped:
            return
        self._next_look.set(LOOK_S)
        try:
            done = -1 if self._committed is None else self._committed.ledger_id
            left = [info for info in self._source.ledgers() if info.ledger_id > done]
            limits: dict[str, Any] = {
                "threshold_bytes": self._settings.offload_threshold_size,
                "threshold_seconds": self._settings.offload_threshold_age,
            }
            if not due_ledgers(left, now_ms=self._clock.now_ms(), **limits):
                return
            with self._one_run:
                if self._next_look.is_stopped:  # while another run was waited for
                    return
                for error in self._ran(**limits).errors:
                    self._tell(error)
        except (FencedError, SourceMismatchError) as error:
            _ledgers_log.warning("%s; the ledger method of this stream ends", error)
            self.stopped_by = error
            self.stop()
        except StreamPaused as error:
            _ledgers_log.info("offloading closed ledgers: %s; retrying in %g s", error, LOOK_S)
        except OffloaderError as error:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        _ledgers_log.warning(
            "offloading closed ledgers failed: %s; retrying in %g s", error, LOOK_S, extra={"event": "retry"}
        )

    def _ran(self, threshold_bytes: int, threshold_seconds: float) -> HistoryResult:
        result = self._run(threshold_bytes=threshold_bytes, threshold_seconds=threshold_seconds)
        self._committed = result.committed
        return result


_log = logging.getLogger("offloader.stream")

#: First back-off before restarting a stream that stopped because the manifest refused its edits; doubles.
RESTART_S_MIN = 1.0
RESTART_S_MAX = 300.0


class MethodOffload:
    """Offloads a stream by streaming, the ledger method, or not at all. Thread-safe, but for ``begin`` and ``end``.

    Attributes:
        method: ``streaming``, ``ledger`` or ``none``.
    """

    def __init__(self, offloader: LedgerOffloader, source: LedgerSource, stream: str, method: str) -> None:
        self._offloader, self._source, self._stream, self.method = offloader, source, stream, method
        self._lock = threading.RLock()
        #: Counts the ends: a start that is to be repeated is off after the next one.
        self._ends = 0
        self._is_closed = False
        self._offload: StreamOffload | None = None
        #: Referenced here, as the monitor doesn't: its last poll reports how this one ended.
        self._ended: StreamOffload | None = None
        self._trigger: LedgerTrigger | None = None
        self._restart_s = RESTART_S_MIN

    @property
    def is_running(self) -> bool:
        return self._offload is not None or self._trigger is not None

    def begin(self, log: ManifestLog | None = None) -> None:
        """Start with the current method.

        Args:
            log: with the epoch of this start; ``None``: one is opened when there is something to offload.
        """
        with self._lock:  # the stream may stop itself before this has it
            if self._is_closed:  # closed while the method was switched
                return
            if self.method == "streaming":
                self._offload = self._offloader.offload_stream(
                    self._source, self._stream, log=log, on_refused=self._refused
                )
            elif self.method == "ledger":
                self._trigger = self._offloader.offload_closed_ledgers(self._source, self._stream)

    def begin_again(self) -> None:
        """Start after ``end``, also if the hot tier fails: then again later."""
        self._begin_again(self._ends)

    def _begin_again(self, ends: int) -> None:
        try:
            with self._lock:
                if self._ends == ends:
                    self.begin()
        except Exception as error:  # as of a restart
            _log.warning("stream %s isn't offloaded: %s", self._stream, error)
            self._later(lambda: self._begin_again(ends))

    def end(self) -> None:
        """Stop, leaving uncommitted entries to the next start."""
        with self._lock:  # the stream may be about to be restarted
            offload, trigger = self._offload, self._trigger
            self._offload = self._trigger = None
            self._ends += 1
        if offload is not None:
            offload.stop()
            self._offloader.observation.remove(offload)
        if trigger is not None:
            trigger.stop()
            trigger.wait()

    def offload(self, until: Position | None = None, *, timeout_s: float | None = None) -> Position | None:
        """See ``ManagedLedger.offload``."""
        offload, trigger = self._offload, self._trigger
        if offload is not None:
            try:
                return offload.offload(until, timeout_s=timeout_s)
            except StreamPaused:
                raise
            except EditRefusedError:
                # The manifest differs from this stream's view: restart from the manifest.
                return self._restarted(offload).offload(until, timeout_s=timeout_s)
        if trigger is None and self.method != "none":
            raise StoreUnavailableError(f"stream {self._stream} is being started", hint="call again")
        if trigger is None:
            raise InvalidCallError(f"stream {self._stream} isn't offloaded: its method is none")
        result = trigger.offload()
        if result.errors:
            raise result.errors[0]
        return result.committed

    def wake(self) -> None:
        """Reload the manifest: the stream may have been paused or resumed."""
        for each in (self._offload, self._trigger):
            if each is not None:
                each.wake()

    def status(self) -> StreamStatus | None:
        """Status of the streaming offload; ``None`` with another method."""
        offload = self._offload
        return None if offload is None else offload.status()

    def close(self, *, drain: bool) -> OffloaderError | None:
        """End permanently; with ``drain``, returns why not everything is committed."""
        failure: OffloaderError | None = None
        try:
            if drain and self._offload is not None:
                self.offload()
        except OffloaderError as error:
            # A pause is intended: unoffloaded entries remain in the hot tier.
            failure = None if isinstance(error, StreamPaused) else error
        finally:  # also when Ctrl-C ends the wait
            with self._lock:
                offload, self._offload = self._offload, None
                self._ended = offload
                self._is_closed = True
            if offload is not None:
                offload.stop()
            if self._trigger is not None:
                self._trigger.stop()
        return failure

    def _refused(self, stopped: StreamOffload) -> None:
        """The stream stopped itself after the manifest refused a record: restart it soon."""
        if stopped.status().segments_committed:
            self._restart_s = RESTART_S_MIN
        self._later(lambda: self._restart(stopped))

    def _later(self, run: Callable[[], None]) -> None:
        wait_s, self._restart_s = self._restart_s, min(2 * self._restart_s, RESTART_S_MAX)
        self._offloader.call_after(wait_s, run)

    def _restart(self, stopped: StreamOffload) -> None:
        try:
            with suppress(ClosedError):
                self._restarted(stopped)
        except Exception as error:  # also of memory, or a bug: no error ends the attempts
            _log.warning("stream %s isn't offloaded: %s", self._stream, error)
            self._later(lambda: self._restart(stopped))

    def _restarted(self, stopped: StreamOffload) -> StreamOffload:
        """The replacement of a stream that stopped itself."""
        with self._lock:
            if self._offload is stopped:
                stopped.stop()
                self._offloader.observation.remove(stopped)
                _log.warning("stream %s is restarted: the manifest refused its record", self._stream)
                self._offload = self._offloader.offload_stream(self._source, self._stream, on_refused=self._refused)
            if self._offload is None:
                raise ClosedError(f"stream {self._stream} was stopped")
            return self._offload


def manual_method(state: ManifestState, file: SettingsFile | None) -> str:
    """Offload method from a settings file or else the manifest: ``streaming`` or ``ledger``.

    Raises:
        InvalidCallError: it isn't.
    """
    found = None if file is None else file.values_of(state.stream)["offload.method"]
    method, source = (state.method, "its manifest") if found is None else (str(found.value), found.source)
    if method == "none":
        raise InvalidCallError(
            f"stream {state.stream} isn't offloaded: its method is none ({source})", hint="set another method first"
        )
    return method


def offload_manually(
    runs: BackfillService,
    source: LedgerSource,
    stream: str,
    method: str,
    *,
    last: Position | None = None,
    threshold_bytes: int = 0,
    take_over: bool = False,
    on_plan: Callable[[BackfillPlan | LedgerMethodPlan], None] = lambda _: None,
    on_progress: Callable[[SegmentSummary], None] = lambda _: None,
) -> HistoryResult:
    """Offload the missing entries, record the method and the ledgers closed meanwhile.

    Args:
        source: a view opened with ``may_delete`` suffices: it gets no acknowledgements.
        method: ``streaming`` or ``ledger``.
        threshold_bytes: method ledger: newest bytes that remain in the hot tier.
        others: as for ``BackfillService.backfill``.

    Raises: as ``BackfillService.backfill``.
    """
    run = partial(runs.ledgers, threshold_bytes=threshold_bytes) if method == "ledger" else runs.backfill
    result = run(
        source, stream, last=last, take_over=take_over, acknowledges=False, on_plan=on_plan, on_progress=on_progress
    )
    if result.committed is not None or result.offloaded:
        runs.note_ends(source, stream, method=method if result.offloaded else "", known=result.state)
    return result
