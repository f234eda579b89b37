"""The job ``rebuild``: executors make new manifests of many streams from their objects.

A task rebuilds one stream by the library's own function. A rebuild gives up every older incarnation of its stream, so
two at the same time could give up each other's: a task that Spark repeats does nothing, and speculation is refused.
The driver reads the ledger database, because entries that are still in the hot tier must not become a gap.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from formats.entries import Position
from offloader.coverage import Range
from offloader.errors import ExecutorLostError, InvalidCallError, NotFoundError, OffloaderError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.catalog import list_streams
from offloader.manifest.names import matching_streams
from offloader.manifest.rebuild import Rebuild, rebuild_manifest
from offloader.manifest.unlisted import unlisted_streams
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.settings.layered import SettingsFile
from offloader.spark.jobs.backfill import require_single_copies
from offloader.spark.jobs.verify import STORE_OPTIONS, require_known
from offloader.spark.options import SourceOptions
from offloader.spark.session import translated
from offloader.store.base import ObjectStore
from offloader.store.probe import require_conditional_puts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """Result of a run for one stream.

    Attributes:
        segments, entries: that the new manifest has, or would have.
        missing: ranges that no segment holds; they are gaps in the new manifest.
        problems: key and reason of each object that isn't part of a whole segment.
        error: why it wasn't rebuilt, for example because its manifest can be read; ``None``: it was, or would be.
    """

    stream: str
    segments: int = 0
    entries: int = 0
    missing: tuple[Range, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    error: OffloaderError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTask:
    """A stream to be rebuilt; picklable."""

    stream: str
    head: Position | None
    hot: tuple[LedgerInfo, ...]
    place: SourceOptions
    settings: Settings
    dry_run: bool


def rebuild(
    spark: SparkSession,
    streams: Sequence[str],
    options: Mapping[str, str],
    *,
    heads: Mapping[str, Position | None],
    ledgers: str = "",
    config: SettingsFile | None = None,
    dry_run: bool = False,
) -> list[Rebuilt]:
    """Makes new manifests of the streams whose manifests can't be read; skips the others.

    Args:
        spark: a classic session (not Spark Connect).
        streams: names or patterns; also of streams whose catalogue entry is lost.
        options: ``STORE_OPTIONS`` of the data source; ``store`` is required.
        heads: stream -> where it begins, which no object tells; ``None``: at the first entry found. The name ``*``
            stands for all others.
        ledgers: URL of the streams' ledger database, as the driver sees it; empty: there is none.
        config: settings, by stream.
        dry_run: write nothing.

    Returns:
        One value per stream, ordered by name. A failed stream doesn't affect the others.

    Raises:
        InvalidCallError: an option, a stream without a head, or Spark's speculation is on.
        NotFoundError: no such stream.
    """
    require_known(streams, options, STORE_OPTIONS, job="rebuild")
    require_single_copies(spark, "a stream is rebuilt once")
    settings_of = (lambda _: Settings()) if config is None else config.settings_of
    own, place = settings_of(""), SourceOptions.of({**options, "stream": "*"})
    store = place.open_store(read_only=dry_run, settings=own.store, limits=own.limits)
    names = _named(store, streams)
    if without := [name for name in names if name not in heads and "*" not in heads]:
        raise InvalidCallError(
            f"the start of stream {without[0]} is unknown: no object records truncations",
            hint="give its head, or state that it begins with the first entry found",
        )
    if not dry_run:
        require_conditional_puts(store, single_writer=own.store.single_writer)
    tasks = []
    with closing(EmbeddedLedgers(ledgers, create=False)) if ledgers else nullcontext() as database:
        for name in names:
            hot: Sequence[LedgerInfo] = ()
            if database is not None:
                with suppress(NotFoundError):  # the database doesn't have it
                    hot = database.view_stream(name).ledgers()
            head = heads[name] if name in heads else heads["*"]
            settings = settings_of(name)
            tasks.append(
                RebuildTask(stream=name, head=head, hot=tuple(hot), place=place, settings=settings, dry_run=dry_run)
            )
    with translated("Spark's rebuild", hint="run the job again: it skips rebuilt streams"):
        return list(spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(_carry_out).collect())


def _named(store: ObjectStore, wanted: Sequence[str]) -> list[str]:
    listed = set(list_streams(store))
    known = listed | {name for name, _ in unlisted_streams(store, list(list_streams(store, released=True)))}
    found: set[str] = set()
    for each in wanted:
        if not (fitting := matching_streams(each, known)):
            raise NotFoundError(f"no stream {each} in {store.url}", hint="run `offloader ls` to list the streams")
        found.update(fitting)
    return sorted(found)


def _carry_out(tasks: Iterable[RebuildTask]) -> Iterator[Rebuilt]:
    """Runs on an executor. An error is a result: if it were raised, Spark would repeat the task and hide it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for task in tasks:
        try:
            if context is None or context.attemptNumber() > 0:
                raise ExecutorLostError(
                    f"stream {task.stream}: the first attempt was lost, and may still be writing",
                    hint="run the job again when no executor of this one is left",
                )
            yield _rebuilt(task)
        except OffloaderError as error:
            yield Rebuilt(stream=task.stream, error=error)
        except Exception as error:
            what = f"stream {task.stream}: on executor {socket.gethostname()}: {type(error).__name__}: {error}"
            yield Rebuilt(stream=task.stream, error=OffloaderError(what))


def _rebuilt(task: RebuildTask) -> Rebuilt:
    settings = task.settings
    store = task.place.open_store(read_only=task.dry_run, settings=settings.store, limits=settings.limits)
    done: Rebuild = rebuild_manifest(
        store,
        task.stream,
        head=task.head,
        clock=SystemClock(),
        hot=task.hot,
        dry_run=task.dry_run,
        settings=settings.manifest,
    )
    recorded = done.chosen.recorded
    return Rebuilt(
        stream=task.stream,
        segments=len(recorded),
        entries=sum(each.summary.entries for each in recorded),
        missing=tuple(done.missing),
        problems=tuple(done.problems),
    )
