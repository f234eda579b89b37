"""The job ``verify``: executors compare every byte of many streams with the manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from offloader.errors import InvalidCallError
from offloader.inspect.verify import (
    CheckTotals,
    Finding,
    SegmentCheck,
    check_fills,
    check_order,
    check_segment,
    find_unexpected,
)
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.fetch import Fetcher
from offloader.read.ranges import grouped
from offloader.settings import ReadSettings
from offloader.spark.options import SourceOptions, ddl
from offloader.spark.scan import pinned_states
from offloader.spark.session import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Options of the store's location and credentials; every job takes them.
STORE_OPTIONS = ("store", "endpointUrl", "region", "accessKey", "secretKey", "sessionToken")
#: With the options of reading streams there.
PLACE_OPTIONS = (*STORE_OPTIONS, "relocate", "splitBytes", "leaseSeconds")


def require_known(streams: Sequence[str], options: Mapping[str, str], known: Iterable[str], *, job: str) -> None:
    """Raises ``InvalidCallError`` for options that the job sets itself or doesn't use, and for a call without
    streams."""
    if isinstance(streams, str) or not streams:
        raise InvalidCallError("streams must be a list of names or patterns", hint='for example ["public/default/*"]')
    names = {name.lower() for name in known}
    wrong = sorted(name for name in options if name.lower() not in names)
    if wrong:
        raise InvalidCallError(f"{job} doesn't accept option {', '.join(wrong)}", hint=f"options: {', '.join(known)}")


def pinned_streams(streams: Sequence[str], options: Mapping[str, str]) -> list[tuple[ManifestState, SourceOptions]]:
    """One pinned manifest of each stream that matches ``streams``, and the options to read it with.

    Args:
        streams: names or patterns, as in the option ``stream``; duplicates count once.
        options: of the data source, without ``stream``.

    Raises:
        NotFoundError: a stream doesn't exist, or none matches a pattern.
    """
    found: dict[str, tuple[ManifestState, SourceOptions]] = {}
    for name in streams:
        read = SourceOptions.of({**options, "stream": name})
        for state in pinned_states(read, read.open_store()):
            found.setdefault(state.stream, (state, read))
    return list(found.values())


#: Findings of one segment returned to the driver; the last one has the number of further ones.
FINDINGS_PER_SEGMENT_MAX = 100


@dataclass(frozen=True, slots=True)
class StreamVerdict:
    """Result of one stream: the manifest record compared with, the sums, and the findings."""

    stream: str
    manifest: int
    totals: CheckTotals
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Scrub:
    """Result of ``verify``: the streams in the given order, and all findings as rows of ``content=anomalies``."""

    streams: tuple[StreamVerdict, ...]
    frame: DataFrame

    @property
    def has_damage(self) -> bool:
        """Whether any finding is more than a note."""
        return any(each.totals.damage for each in self.streams)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A segment to check; small and picklable."""

    stream: str
    record: SegmentRecord
    options: SourceOptions


def verify(spark: SparkSession, streams: Sequence[str], options: Mapping[str, str]) -> Scrub:
    """Reads and decodes every block of the streams and compares it with index, manifest and listing.

    Args:
        spark: a classic session (not Spark Connect).
        streams: names or patterns.
        options: ``PLACE_OPTIONS`` of the data source; ``store`` is required.

    Raises:
        InvalidCallError, NotFoundError: an option, a name.
        OffloaderError: an error that isn't about the objects (store unreachable, access denied), or Spark failed.
    """
    require_known(streams, options, PLACE_OPTIONS, job="verify")
    pinned = pinned_streams(streams, options)
    # Manifests remain on the driver: a task has one record.
    tasks = [SegmentTask(state.stream, record, read) for state, read in pinned for record in state.offloaded()]
    with translated("Spark's verify", hint="run the job again: nothing was changed"):
        packs = list(grouped(tasks, lambda task: task.record.content.data_bytes, pinned[0][1].split_bytes))
        rows = spark.sparkContext.parallelize(packs, len(packs)).mapPartitions(_check_packs).collect() if packs else []
    checks: dict[str, list[SegmentCheck]] = {}
    for stream, check in rows:
        checks.setdefault(stream, []).append(check)
    verdicts = []
    for state, read in pinned:
        totals = CheckTotals()
        found = list(check_order(state))
        for check in checks.get(state.stream, ()):
            totals.add(check)
            found += check.findings
        store = read.open_store()
        found += [*check_fills(store, state, deep=True), *find_unexpected(store, state)]
        totals.count(found)
        verdicts.append(StreamVerdict(state.stream, state.record_id, totals, tuple(found)))
    findings = [tuple(finding.as_row().values()) for each in verdicts for finding in each.findings]
    return Scrub(tuple(verdicts), spark.createDataFrame(findings, ddl("anomalies")))


def _check_packs(packs: Iterable[Sequence[SegmentTask]]) -> Iterator[tuple[str, SegmentCheck]]:
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
