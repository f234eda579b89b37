"""The job ``backfill``: executors upload the history of many streams, the driver commits.

The driver opens each stream's epoch, lists its ledgers, and plans, assigns and commits segments, with the code of a
backfill on one machine. A task reads one assigned segment from the hot tier and uploads it. It opens the hot tier by
itself, read-only: a ledger database, or a Pulsar topic through a broker's reader, without a subscription and without an
acknowledgement. The driver acknowledges nothing either; the process that offloads the topic does that.

A task records nothing, and Spark's second attempt at a task does nothing, so neither a lost executor nor a copy of a
task changes the result: the manifest has a segment only after the driver got its summary from the first attempt.

A topic has entries that no reader receives (markers of transactions, entries that the bookies lost). Only reading shows
them, and executors read. A task that meets one reads on to the end of its segment and returns where such entries are.
The driver reads there itself, so that its list of ledgers has them with the reason, and plans again around them. Doubt
about an entry is thus decided in one place, before its gap is recorded.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from formats.entries import Position
from formats.summary import SegmentSummary
from offloader.errors import (
    AccessDeniedError,
    ClosedError,
    CorruptError,
    ExecutorLostError,
    InvalidCallError,
    NotFoundError,
    ObjectMissingError,
    OffloaderError,
    UnsupportedError,
)
from offloader.ledgers.base import LedgerInfo, Ledgers, LedgerSource
from offloader.ledgers.pulsar.discovery import matching_topics, topic_pattern
from offloader.ledgers.sqlite.database import database_path
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.names import matching_streams, resolve_name
from offloader.read.reader import load_stream
from offloader.runtime.clock import SystemClock
from offloader.runtime.workers import Workers
from offloader.settings import LimitSettings, OffloadSettings, PulsarSettings, Settings, StoreSettings
from offloader.settings.layered import SettingsFile
from offloader.spark.jobs.verify import STORE_OPTIONS, require_known
from offloader.spark.options import SourceOptions
from offloader.spark.session import translated
from offloader.store.base import ObjectStore
from offloader.store.probe import require_conditional_puts
from offloader.write.backfill import HistoryTools, PlannedSegment, SegmentJob, upload_order
from offloader.write.backfill_service import BackfillService
from offloader.write.offloader import manual_method, offload_manually
from offloader.write.upload import READ_BYTES, verify_objects

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = logging.getLogger("offloader.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTask:
    """An executor's upload of a segment, with the ledgers that hold it, as the driver sees them; picklable."""

    order: SegmentJob
    ledgers: tuple[LedgerInfo, ...]
    hot_url: str
    open_hot: Callable[[str], Ledgers]
    place: SourceOptions
    store: StoreSettings
    limits: LimitSettings
    offload: OffloadSettings


@dataclass(frozen=True, slots=True)
class NotAsListed:
    """Why a segment couldn't be uploaded: the hot tier doesn't deliver the entries that the driver sees.

    Attributes:
        at: where each run of undelivered entries begins, as the executor found them.
    """

    error: OffloaderError
    at: tuple[Position, ...]


def carry_out(task: UploadTask) -> SegmentSummary | NotAsListed | OffloaderError | None:
    """Uploads the segment; ``None`` if this is a retry by Spark: the earlier attempt may still be writing.

    Runs on an executor. Returns an error as a result: if it were raised, Spark would retry and hide it.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or context.attemptNumber() > 0:
        return None
    order = task.order
    try:
        with closing(task.open_hot(task.hot_url)) as hot:
            source = hot.view_stream(order.stream)
            store = task.place.open_store(read_only=False, settings=task.store, limits=task.limits)
            try:
                _require_same(order, task.ledgers, source.ledgers())
                return upload_order(store, source, order, settings=task.offload)
            except (CorruptError, UnsupportedError) as error:
                return NotAsListed(error, _not_delivered(source, order.planned))
    except AccessDeniedError as error:
        return AccessDeniedError(f"on executor {socket.gethostname()}: {error.message}", hint=error.hint)
    except NotFoundError as error:
        return NotFoundError(f"on executor {socket.gethostname()}: {error.message}", hint=_SHARED)
    except OffloaderError as error:
        return error
    except Exception as error:
        _log.exception("stream %s: a task failed", order.stream)
        return OffloaderError(f"on executor {socket.gethostname()}: {type(error).__name__}: {error}")


def _not_delivered(source: LedgerSource, planned: PlannedSegment) -> tuple[Position, ...]:
    """The first entry of each run in the segment that the source doesn't deliver, as reading it to its end shows."""
    at, runs = planned.begin, list[Position]()
    with suppress(OffloaderError):  # a read that fails leaves the runs before it
        while at <= planned.end and (batch := source.read(at, READ_BYTES)) is not None:
            at = batch.last.next()
    with suppress(OffloaderError):
        runs = [Position(info.ledger_id, first) for info in source.ledgers() for first, _ in info.not_given]
    return tuple(each for each in runs if planned.begin <= each <= planned.end)


_SHARED = "the driver and all executors must see the same ledgers under this URL"


def _require_same(order: SegmentJob, expected: Sequence[LedgerInfo], found: Sequence[LedgerInfo]) -> None:
    """Refuses a different file at the same path on another machine: an old copy, another database."""
    here = {info.ledger_id: info for info in found}
    for info in expected:
        own = here.get(info.ledger_id)
        if own is None or own.created_ms != info.created_ms or own.entries < info.entries:
            there = f"{info.entries} entries, created {info.created_ms}"
            what = "isn't there" if own is None else f"has {own.entries} entries, created {own.created_ms}"
            raise CorruptError(
                f"stream {order.stream}, ledger {info.ledger_id}: {there} for the driver, but on executor "
                f"{socket.gethostname()} it {what}",
                hint=_SHARED,
            )


#: Concurrent segments, each with a driver thread that waits for its task.
SEGMENTS_AT_ONCE_MAX = 256
#: Concurrent streams, each with a thread that waits for its segments.
STREAMS_AT_ONCE_MAX = 16
#: Threads that plan and commit.
COMMITTERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """Result of a run for one stream.

    Attributes:
        planned: of a dry run: segments to offload, sizes inside ledgers estimated.
        offloaded: name and summary of each segment that is in the manifest now.
        trimmed: segments whose ledger left the hot tier during the run.
        committed: the committed end afterwards.
        skipped: the reason why the stream was skipped; empty: it wasn't.
        error: why segments are still missing, ``None``: complete.
    """

    stream: str
    planned: tuple[PlannedSegment, ...] = ()
    offloaded: tuple[tuple[UUID, SegmentSummary], ...] = ()
    trimmed: tuple[PlannedSegment, ...] = ()
    committed: Position | None = None
    skipped: str = ""
    error: OffloaderError | None = None


def _embedded(url: str) -> Ledgers:
    return EmbeddedLedgers(url, create=False)


# The base install, on executors of other jobs, has no HTTP client: Pulsar's client is imported where it is used.


def _topics(_url: str, *, settings: PulsarSettings, take_over: bool) -> Ledgers:
    from offloader.ledgers.pulsar.views import PulsarTopics

    return PulsarTopics(settings, take_over=take_over)


def backfill(
    spark: SparkSession,
    streams: Sequence[str],
    options: Mapping[str, str],
    *,
    ledgers: str | PulsarSettings,
    config: SettingsFile | None = None,
    take_over: bool = False,
    dry_run: bool = False,
    segments_at_once: int | None = None,
    open_hot: Callable[[str], Ledgers] = _embedded,
) -> list[Backfilled]:
    """Offloads the part of streams that is only in the hot tier; a repeated call resumes after an interruption.

    Args:
        spark: a classic session (not Spark Connect).
        streams: names or patterns, of streams in the hot tier.
        options: ``STORE_OPTIONS`` of the data source; ``store`` is required.
        ledgers: URL of the hot tier, the same for the driver and all executors: ``sqlite:////absolute/file.db``. Or
            the cluster of Pulsar topics; ``streams`` then select topics as ``pulsar.topics`` does, and its ``exclude``
            applies.
        config: settings, by stream.
        take_over: take over streams from active writers, also topics from a process that is connected to the
            offloader's subscription.
        dry_run: only plan.
        segments_at_once: default: the number of parallel tasks of the cluster (``defaultParallelism``).
        open_hot: opens ``ledgers``, here and on executors; picklable.

    Returns:
        One value per stream, ordered by name. A failed stream doesn't affect the others.

    Raises:
        InvalidCallError: an option, or Spark's speculation is on (it runs copies of slow tasks).
        NotFoundError: no such stream in the hot tier, or no such hot tier.
        AccessDeniedError, StoreUnavailableError: Pulsar's admin interface doesn't list the topics.
        UnsupportedError: the store lets two writers create one object.
    """
    require_known(streams, options, STORE_OPTIONS, job="backfill")
    if segments_at_once is not None and not 1 <= segments_at_once <= SEGMENTS_AT_ONCE_MAX:
        raise InvalidCallError(f"segments_at_once is {segments_at_once}, use 1 to {SEGMENTS_AT_ONCE_MAX}")
    require_single_copies(spark, "a segment is uploaded once")
    matching: Callable[[str, Collection[str]], list[str]] = matching_streams
    on_gap = ""
    if isinstance(ledgers, PulsarSettings):
        wanted = replace(ledgers, topics=tuple(map(topic_pattern, streams)))
        open_hot, matching = partial(_topics, settings=wanted, take_over=take_over), matching_topics
        url, on_gap = ledgers.service_url, ledgers.on_gap
    else:
        url = _absolute(ledgers) if open_hot is _embedded else ledgers
    place = SourceOptions.of({**options, "stream": "*"})
    settings = Settings() if config is None else config.settings_of("")
    with closing(open_hot(url)) as hot:
        names = _named(streams, hot.streams(), url, matching)
        store = place.open_store(read_only=dry_run, settings=settings.store, limits=settings.limits)
        if not dry_run:
            require_conditional_puts(store, single_writer=settings.store.single_writer)
        return _Run(
            context=spark.sparkContext,
            hot_url=url,
            open_hot=open_hot,
            hot=hot,
            place=place,
            store=store,
            config=config,
            named=frozenset(stream for each in streams for stream in resolve_name(each, names).streams),
            slots=segments_at_once or max(1, min(spark.sparkContext.defaultParallelism, SEGMENTS_AT_ONCE_MAX)),
            take_over=take_over,
            dry_run=dry_run,
            on_gap=on_gap,
        ).all(names)


def _absolute(url: str) -> str:
    path = database_path(url)
    if path == ":memory:":
        raise InvalidCallError(
            "executors can't read a database in memory", hint="use a file: sqlite:////absolute/file.db"
        )
    return f"sqlite:///{Path(path).absolute()}"


def _named(
    wanted: Sequence[str],
    known: Sequence[str],
    ledgers: str,
    matching: Callable[[str, Collection[str]], Collection[str]],
) -> list[str]:
    found: set[str] = set()
    for each in wanted:
        fitting = matching(each, known)
        if not fitting:
            some = ", ".join(known[:5]) or "nothing"
            raise NotFoundError(
                f"no stream {each} in {ledgers}", hint=f"it has {some}{' ...' if len(known) > 5 else ''}"
            )
        found.update(fitting)
    return sorted(found)


def require_single_copies(spark: SparkSession, why: str) -> None:
    """Refuses speculation: a copy makes Spark end the original task, and neither does its work, repeatedly."""
    conf = spark.sparkContext.getConf()
    if (conf.get("spark.speculation") or "").lower() == "true" and conf.get(
        "spark.speculation.task.duration.threshold"
    ):
        raise InvalidCallError(
            f"Spark is configured to run copies of long tasks, but {why}",
            hint="set --conf spark.speculation=false",
        )


@dataclass(eq=False, kw_only=True)
class _Run:
    """Several concurrent streams, each on a thread that waits for its segments, which Spark's tasks upload."""

    context: SparkContext
    hot_url: str
    open_hot: Callable[[str], Ledgers]
    hot: Ledgers
    place: SourceOptions
    store: ObjectStore
    config: SettingsFile | None
    named: Collection[str]
    slots: int
    take_over: bool
    dry_run: bool
    #: The policy of the hot tier, instead of that of the stream's settings; empty: it has none.
    on_gap: str

    def __post_init__(self) -> None:
        self._group = f"offloader-backfill-{os.urandom(4).hex()}"
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._under_way: list[BackfillService] = []
        self._stopped = False
        self._committers = Workers(COMMITTERS, self._clock)
        self._uploaders = Workers(self.slots, self._clock)
        self._streams = ThreadPoolExecutor(min(self.slots, STREAMS_AT_ONCE_MAX))

    def all(self, streams: Sequence[str]) -> list[Backfilled]:
        try:
            done = [self._streams.submit(self._one, stream) for stream in streams]
            return [each.result() for each in done]
        except BaseException:
            # An interruption first stops the current uploads.
            with self._lock:
                self._stopped = True
                under_way = list(self._under_way)
            for runs in under_way:
                runs.stop()
            self.context.cancelJobGroup(self._group)
            raise
        finally:
            self._streams.shutdown()
            self._uploaders.close()
            self._committers.close()

    def _one(self, stream: str) -> Backfilled:
        try:
            return self._offloaded(stream)
        except OffloaderError as error:
            return Backfilled(stream=stream, error=error)

    def _offloaded(self, stream: str) -> Backfilled:
        settings = Settings() if self.config is None else self.config.settings_of(stream)
        if self.on_gap:
            settings = replace(settings, offload=replace(settings.offload, on_gap=self.on_gap))
        source = self.hot.view_stream(stream, may_delete=not self.dry_run)
        state = load_stream(self.store, stream, may_be_absent=True)
        try:
            method = manual_method(state, self.config)
        except InvalidCallError as error:
            if stream in self.named:
                raise
            return Backfilled(stream=stream, committed=state.committed_end(), skipped=error.message)
        tools = HistoryTools(
            upload=partial(self._upload, settings),
            driver=dict(self.store.driver_metadata),
            settings=replace(settings.offload, backfill_segments_in_flight_max=self.slots),
            workers=self._committers,
            uploaders=self._uploaders,
            budget=None,
            clock=self._clock,
            entropy=os.urandom,
        )
        runs = BackfillService(self.store, tools, settings.manifest)
        if self.dry_run:
            planned = runs.preview(state, source.ledgers(), method=method, last=None, threshold_bytes=0)
            return Backfilled(stream=stream, planned=tuple(planned), committed=state.committed_end())
        with self._lock:
            if self._stopped:
                raise ClosedError("the backfill was stopped")
            self._under_way.append(runs)
        try:
            result = offload_manually(runs, source, stream, method, take_over=self.take_over)
        finally:
            with self._lock:
                self._under_way.remove(runs)
        for found in result.errors:
            if not isinstance(found, OffloaderError):
                raise found
        _log.info("stream %s: %d segments offloaded", stream, len(result.offloaded))
        return Backfilled(
            stream=stream,
            offloaded=tuple(result.offloaded),
            trimmed=tuple(result.trimmed),
            committed=result.committed,
            error=next((each for each in result.errors if isinstance(each, OffloaderError)), None),
        )

    def _upload(
        self, settings: Settings, source: LedgerSource, order: SegmentJob, is_stopped: Callable[[], bool]
    ) -> SegmentSummary:
        """Uploads a segment; runs on a driver thread, which waits for the task, and raises its errors."""
        if is_stopped():
            raise ClosedError(f"the backfill of {order.stream} was stopped")
        planned = order.planned
        what = f"stream {order.stream}, {planned.begin}..{planned.end}"
        task = UploadTask(
            order=order,
            ledgers=tuple(
                info
                for info in source.ledgers()
                if info.entries and planned.begin.ledger_id <= info.ledger_id <= planned.end.ledger_id
            ),
            hot_url=self.hot_url,
            open_hot=self.open_hot,
            place=self.place,
            store=settings.store,
            limits=settings.limits,
            offload=settings.offload,
        )
        self.context.setJobGroup(self._group, f"backfill of {what}", interruptOnCancel=True)
        with translated(f"Spark's upload of {what}", hint="run the job again: it continues with the missing segments"):
            (answer,) = self.context.parallelize([task], 1).map(carry_out).collect()
        if answer is None:
            raise ExecutorLostError(
                f"{what}: the first attempt was lost", hint="the segment is uploaded again under another uuid"
            )
        if isinstance(answer, NotAsListed):
            # At the begin too: its ledger may be gone since it was listed.
            for at in (planned.begin, *answer.at):
                with suppress(OffloaderError):  # the task's error is raised in any case
                    source.read(at, 1)
            raise answer.error
        if isinstance(answer, OffloaderError):
            raise answer
        summary: SegmentSummary = answer
        try:
            verify_objects(self.store, order.stream, order.uuid, summary)
        except ObjectMissingError as error:
            raise ObjectMissingError(
                f"{what}: an executor has uploaded it, but {error.message}",
                hint="the driver and all executors must see the same store under its URL",
            ) from error
        return summary
