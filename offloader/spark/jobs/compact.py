"""The job ``compact``: executors merge the small segments of many streams.

The driver plans from the manifests and splits each stream into ranges of neighbouring merges. A task runs the library's
The driver plans from the manifests and splits each stream into ranges of neighbouring merges. A task runs the library's
compaction over one range: it promises, uploads, reads back, compares and replaces by separate maintenance commits.
Ranges of one stream don't share a segment, so their tasks only compete for the manifest's record numbers. A task
that Spark runs again, or twice at the same time, is a second compaction of the range: one of both replaces, and the
other one finds nothing left.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from formats.summary import SegmentSummary
from offloader.coverage import Range
from offloader.errors import FencedError, OffloaderError
from offloader.manifest.state import require_takeable
from offloader.read.ranges import grouped
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.settings.layered import SettingsFile
from offloader.spark.jobs.verify import PLACE_OPTIONS, pinned_streams, require_known
from offloader.spark.options import SourceOptions
from offloader.spark.session import translated
from offloader.store.probe import require_conditional_puts
from offloader.write.compact import Merge, plan_compaction
from offloader.write.offloader import LedgerOffloader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Result of a run for one stream.

    Attributes:
        planned: first and last position of each merge that was planned.
        merged: name and summary of each new segment, in the stream's order.
        replaced: segments whose objects are deleted after the grace period.
        replaced_bytes: of their objects.
        adopted: segments that would have been merged, but are adopted.
        error: why not everything was merged, ``None``: it was.
    """

    stream: str
    planned: tuple[Range, ...] = ()
    merged: tuple[tuple[UUID, SegmentSummary], ...] = ()
    replaced: int = 0
    replaced_bytes: int = 0
    adopted: tuple[UUID, ...] = ()
    error: OffloaderError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask:
    """A range of a stream to be compacted; small and picklable."""

    stream: str
    within: Range
    place: SourceOptions
    settings: Settings
    recode: bool


def compact(
    spark: SparkSession,
    streams: Sequence[str],
    options: Mapping[str, str],
    *,
    config: SettingsFile | None = None,
    recode: bool = False,
    beside_owner: bool = False,
    dry_run: bool = False,
) -> list[Compacted]:
    """Merges the small neighbouring segments of streams; a repeated call resumes after an interruption.

    Args:
        spark: a classic session (not Spark Connect).
        streams: names or patterns.
        options: ``PLACE_OPTIONS`` of the data source; ``store`` is required. A task has about ``splitBytes`` of data.
        config: settings, by stream: segment size, codec, block size.
        recode: also rewrite single segments whose compression isn't the codec's.
        beside_owner: also streams whose owner was active recently; it isn't fenced.
        dry_run: only plan.

    Returns:
        One value per stream, ordered by name. A failed range doesn't affect the others.

    Raises:
        InvalidCallError, NotFoundError: an option, a name.
        UnsupportedError: the store lets two writers create one object.
    """
    require_known(streams, options, PLACE_OPTIONS, job="compact")
    pinned = sorted(pinned_streams(streams, options), key=lambda each: each[0].stream)
    settings_of = (lambda _: Settings()) if config is None else config.settings_of
    now_ms = SystemClock().now_ms()
    found: dict[str, Compacted] = {}
    tasks: list[CompactionTask] = []
    for state, place in pinned:
        settings = settings_of(state.stream)
        plan = plan_compaction(state, settings.offload, recode=recode)
        planned = Compacted(
            stream=state.stream,
            planned=tuple((each.begin, each.end) for each in plan.merges),
            adopted=tuple(each.uuid for each in plan.adopted),
        )
        found[state.stream] = planned
        if plan.merges and not dry_run:
            try:  # once: the tasks of a stream see each other's records
                patience_s = settings.offload.takeover_after
                require_takeable(state, now_ms, patience_s, take_over=beside_owner, option="--beside-owner")
            except FencedError as error:
                found[state.stream] = replace(planned, error=error)
                continue
        tasks += [
            CompactionTask(
                stream=state.stream,
                within=(pack[0].begin, pack[-1].end),
                place=place,
                settings=settings,
                recode=recode,
            )
            for pack in grouped(plan.merges, _size, place.split_bytes)
        ]
    if tasks and not dry_run:
        own = settings_of("")
        store = pinned[0][1].open_store(read_only=False, settings=own.store, limits=own.limits)
        require_conditional_puts(store, single_writer=own.store.single_writer)
        with translated("Spark's compaction", hint="run the job again: it continues with the remaining merges"):
            rows = spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(_carry_out).collect()
        for each in rows:
            found[each.stream] = _joined(found[each.stream], each)
    return list(found.values())


def _size(merge: Merge) -> int:
    return sum(each.content.data_bytes for each in merge.old)


def _joined(one: Compacted, other: Compacted) -> Compacted:
    """Results of two ranges of a stream."""
    return replace(
        one,
        merged=tuple(sorted((*one.merged, *other.merged), key=lambda each: each[1].begin)),
        replaced=one.replaced + other.replaced,
        replaced_bytes=one.replaced_bytes + other.replaced_bytes,
        error=one.error or other.error,
    )


def _carry_out(tasks: Iterable[CompactionTask]) -> Iterator[Compacted]:
    """Runs on an executor. An error is a result: if it were raised, Spark would repeat the task and hide it."""
    for task in tasks:
        try:
            yield _compacted(task)
        except OffloaderError as error:
            yield Compacted(stream=task.stream, error=error)
        except Exception as error:
            what = f"stream {task.stream}: on executor {socket.gethostname()}: {type(error).__name__}: {error}"
            yield Compacted(stream=task.stream, error=OffloaderError(what))


def _compacted(task: CompactionTask) -> Compacted:
    settings = task.settings
    store = task.place.open_store(read_only=False, settings=settings.store, limits=settings.limits)
    with closing(LedgerOffloader(store, settings)) as offloader:
        result = offloader.history.compact(
            task.stream, recode=task.recode, within=task.within, beside_owner=True, read=settings.read
        )
    return Compacted(
        stream=task.stream,
        merged=tuple(result.merged),
        replaced=result.replaced,
        replaced_bytes=result.replaced_bytes,
        error=next(iter(result.errors), None),
    )
