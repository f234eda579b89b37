"""The job ``verify``: every byte of many streams is read and compared with the manifests, by all executors.

Owns cutting that work into tasks and adding up what they find. Must never decide what a finding is: that is
``offloader.read.verify``'s.

The driver pins each manifest, looks at it alone and at the listing, and packs segments into tasks of about
``splitBytes``; a task reads whole segments, because a data object's checksum is of all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from offloader.manifest.state import SegmentRecord
from offloader.read.fetch import Fetcher
from offloader.read.unexpected import find_unexpected
from offloader.read.verify import CheckTotals, Finding, SegmentCheck, check_order, check_segment
from offloader.settings import ReadSettings
from offloader.spark.failures import translated
from offloader.spark.jobs.streams import PLACE_OPTIONS, pinned_streams, require_known
from offloader.spark.options import SourceOptions
from offloader.spark.schema import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FINDINGS_PER_SEGMENT_MAX", "Scrub", "SegmentTask", "StreamVerdict", "bounded", "packed", "verify"]

#: Findings of one segment that come to the driver; the last one says how many more there are.
FINDINGS_PER_SEGMENT_MAX = 100

_COLUMNS = ddl("anomalies")


@dataclass(frozen=True, slots=True)
class StreamVerdict:
    """One stream: the manifest record that was compared with, the sums, and what is wrong."""

    stream: str
    manifest: int
    totals: CheckTotals
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Scrub:
    """What ``verify`` found.

    Attributes:
        streams: in the order in which they were named.
        frame: all findings as rows; columns as with ``content=anomalies``.
    """

    streams: tuple[StreamVerdict, ...]
    frame: DataFrame

    @property
    def has_damage(self) -> bool:
        """Whether any finding is more than a note."""
        return any(each.totals.damage for each in self.streams)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A segment to be checked; small and picklable."""

    stream: str
    record: SegmentRecord
    options: SourceOptions


def verify(spark: SparkSession, streams: Sequence[str], options: Mapping[str, str]) -> Scrub:
    """Reads and decodes every block of the streams and compares it with index, manifest and listing.

    Args:
        spark: a classic session (not Spark Connect).
        streams: names or patterns.
        options: ``PLACE_OPTIONS`` of the data source; ``store`` is needed.

    Raises:
        InvalidCall, NotFound: an option, a name.
        OffloaderError: what says nothing of the objects (the store is away, access is denied), or Spark failed.
    """
    require_known(options, PLACE_OPTIONS, job="verify")
    pinned = pinned_streams(streams, options)
    tasks = [
        SegmentTask(state.stream, record, read) for state, read in pinned for record in state.offloaded()
    ]  # the manifests stay here: a task is a record
    with translated("Spark's verify", hint="run it again: nothing was changed"):
        checks = _checked(spark, packed(tasks, pinned[0][1].split_bytes))
    verdicts = []
    for state, read in pinned:
        totals = CheckTotals()
        found = list(check_order(state))
        for check in checks.get(state.stream, ()):
            totals.add(check)
            found += check.findings
        found += find_unexpected(read.open_store(), state)
        totals.count(found)
        verdicts.append(StreamVerdict(state.stream, state.record_id, totals, tuple(found)))
    rows = [tuple(finding.as_row().values()) for each in verdicts for finding in each.findings]
    return Scrub(tuple(verdicts), spark.createDataFrame(rows, _COLUMNS))


def packed(tasks: Iterable[SegmentTask], split_bytes: int) -> list[tuple[SegmentTask, ...]]:
    """Neighbours put together until another one would exceed ``split_bytes``; a larger segment is alone."""
    packs: list[list[SegmentTask]] = []
    size = 0
    for task in tasks:
        assert task.record.summary is not None, "offloaded segments have one"
        own = task.record.summary.data_bytes
        if not packs or size + own > split_bytes:
            packs.append([])
            size = 0
        packs[-1].append(task)
        size += own
    return [tuple(pack) for pack in packs]


def _checked(spark: SparkSession, packs: Sequence[tuple[SegmentTask, ...]]) -> dict[str, list[SegmentCheck]]:
    """Stream -> its segments' checks, in its order."""
    found: dict[str, list[SegmentCheck]] = {}
    if packs:
        for stream, check in spark.sparkContext.parallelize(packs, len(packs)).mapPartitions(_check_packs).collect():
            found.setdefault(stream, []).append(check)
    return found


def _check_packs(packs: Iterable[tuple[SegmentTask, ...]]) -> Iterator[tuple[str, SegmentCheck]]:
    """Runs on an executor."""
    for pack in packs:
        options = pack[0].options
        settings = ReadSettings(relocate=options.relocate)
        check = partial(check_segment, Fetcher(options.open_store(), settings), deep=True)
        for task in pack:
            yield task.stream, bounded(task.stream, check(task.stream, task.record))


def bounded(stream: str, check: SegmentCheck) -> SegmentCheck:
    """``check`` with at most ``FINDINGS_PER_SEGMENT_MAX`` findings."""
    more = len(check.findings) - (FINDINGS_PER_SEGMENT_MAX - 1)
    if more <= 1:
        return check
    kept = check.findings[: FINDINGS_PER_SEGMENT_MAX - 1]
    rest = Finding(
        stream=stream,
        problem=kept[-1].problem,
        segment=check.uuid,
        key=kept[-1].key,
        message=f"stream {stream}, segment {check.uuid}: {more} more findings in this segment",
        advice=f"`offloader verify {stream} --deep` lists all of them",
    )
    return replace(check, findings=(*kept, rest))
