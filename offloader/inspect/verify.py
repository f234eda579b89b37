"""Verify a stream's objects, indexes, blocks and manifest records against its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np

from formats.checksum import crc32c
from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from formats.keys import parse_object_key, record_key, stream_prefix
from formats.manifest import decode_record
from formats.segment import SegmentSummary
from formats.segment_map import SegmentMap
from offloader.errors import (
    Corrupt,
    ErrorKind,
    InvalidCall,
    LimitReached,
    NotFound,
    ObjectChanged,
    ObjectMissing,
    OffloaderError,
    Trimmed,
)
from offloader.manifest.boundary import GIVEN_UP_ID, REBUILD, Unreadable, incarnations_in, listed, read_boundary
from offloader.manifest.catalog import read_entry
from offloader.manifest.load import check_checkpoints, load_manifest_view
from offloader.manifest.lost_records import Survivors, Unnamed, survivors_of, unnamed_objects
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.cold import objects_of
from offloader.read.fetch import BlockRun, Fetcher, SegmentObjects, block_runs
from offloader.store.base import ObjectStore

__all__ = [
    "CheckTotals",
    "Damage",
    "Finding",
    "SegmentCheck",
    "check_history",
    "check_order",
    "check_segment",
    "check_segments",
    "describe_damage",
    "lost_record_told",
]


class Damage(Enum):
    """Kind of damage; the value appears in output."""

    MISSING = "missing"
    CHANGED = "changed"
    CORRUPT = "corrupt"
    CONTRADICTION = "contradiction"
    UNREADABLE = "unreadable"
    HOLE = "hole"
    MANIFEST = "manifest"
    LOST_RECORDS = "lost records"
    ORPHAN = "orphan"
    FOREIGN = "foreign"
    UNFINISHED = "unfinished"


#: Findings without data loss: reported only.
NOTES = frozenset({Damage.ORPHAN, Damage.FOREIGN, Damage.UNFINISHED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One deviation.

    Attributes:
        stream: its name.
        problem: what kind of thing.
        segment: the affected segment, if any.
        key: the affected object, if any.
        start, stop: bytes of the object, where they are known.
        expected, found: in a few words.
        message: one line with all of it.
        advice: what to do.
    """

    stream: str
    problem: Damage
    message: str
    advice: str = ""
    segment: UUID | None = None
    key: str | None = None
    start: int | None = None
    stop: int | None = None
    expected: str | None = None
    found: str | None = None

    @property
    def is_damage(self) -> bool:
        """Whether entries are lost or at risk; else it is a note."""
        return self.problem not in NOTES

    def as_row(self) -> dict[str, object]:
        """For JSON: values of plain types."""
        return {
            "stream": self.stream,
            "problem": self.problem.value,
            "damage": self.is_damage,
            "segment": None if self.segment is None else str(self.segment),
            "object": self.key,
            "start": self.start,
            "stop": self.stop,
            "expected": self.expected,
            "found": self.found,
            "message": self.message,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCheck:
    """Result of checking one segment.

    Attributes:
        uuid: the segment's.
        blocks, entries: decoded; 0 in a shallow check.
        data_bytes: bytes read of the data object.
        is_trimmed: whether retention deleted the segment meanwhile; the other fields are empty then.
        findings: its deviations.
    """

    uuid: UUID
    is_trimmed: bool = False
    blocks: int = 0
    entries: int = 0
    data_bytes: int = 0
    findings: tuple[Finding, ...] = field(default=())


@dataclass(slots=True)
class CheckTotals:
    """Totals of one stream's check; fields as in ``SegmentCheck``."""

    segments: int = 0
    blocks: int = 0
    entries: int = 0
    data_bytes: int = 0
    trimmed: int = 0
    damage: int = 0
    notes: int = 0

    def add(self, check: SegmentCheck) -> None:
        """Add the amounts of a segment; its findings are counted separately."""
        self.segments += 1
        self.trimmed += check.is_trimmed
        self.blocks += check.blocks
        self.entries += check.entries
        self.data_bytes += check.data_bytes

    def count(self, findings: Iterable[Finding]) -> None:
        """Count findings as damage or as notes."""
        for finding in findings:
            if finding.is_damage:
                self.damage += 1
            else:
                self.notes += 1


def check_segments(fetcher: Fetcher, state: ManifestState, *, deep: bool) -> Iterator[SegmentCheck]:
    """``check_segment`` of every offloaded segment of ``state``, in the stream's order, in parallel.

    Args:
        fetcher: reads the store; its settings bound requests in flight and memory.
        state: the manifest's view.
        deep: whether to read and decode every block.

    Raises:
        OffloaderError: an error unrelated to the objects: the store is unreachable, access is denied.
    """
    records = state.offloaded()
    if deep:  # inside a segment blocks are read in parallel
        yield from (check_segment(fetcher, state.stream, record, deep=True) for record in records)
        return
    tasks = (partial(check_segment, fetcher, state.stream, record, deep=False) for record in records)
    with closing(fetcher.workers.in_order(tasks)) as results:
        yield from results


def check_segment(fetcher: Fetcher, stream: str, record: SegmentRecord, *, deep: bool) -> SegmentCheck:
    """Check the two objects of one offloaded segment.

    Shallow: both exist, with the length and (where the store keeps one) the checksum in the manifest; the index is
    read, matches its checksum, and agrees with the manifest. Deep: every block is read and decoded as well, its entries
    match the index, and the whole object matches its checksum.

    Args: as for ``check_segments``.
    """
    found: list[Finding] = []
    objects = objects_of(stream, record, fetcher.store, fetcher.settings.relocate)
    summary = record.summary
    assert summary is not None, "offloaded segments have one"
    try:
        try:
            _check_data_object(fetcher, objects, summary)
        except OffloaderError as error:
            found.append(_finding(error, objects, objects.data_key))
        try:
            segment_map = fetcher.index(objects, keep=False)
        except OffloaderError as error:
            found.append(_finding(error, objects, objects.index_key))
            return SegmentCheck(uuid=record.uuid, findings=tuple(found))
        found += _contradictions(objects, segment_map, summary)
        if not deep or any(each.problem is Damage.MISSING for each in found):
            return SegmentCheck(uuid=record.uuid, findings=tuple(found))
        return _check_blocks(fetcher, objects, segment_map, summary, found)
    except Trimmed:  # retention deleted it since the manifest was loaded
        return SegmentCheck(uuid=record.uuid, is_trimmed=True)


def check_order(state: ManifestState) -> Iterator[Finding]:
    """Gaps and overlaps between the manifest's readable segments, from the manifest alone."""
    end = state.committed_end()
    if end is None:
        return
    for before, after in pairwise(state.offloaded(state.committed_from, end)):
        assert before.end is not None
        if after.begin > end:
            return
        if after.begin <= before.end:
            yield Finding(
                stream=state.stream,
                problem=Damage.CONTRADICTION,
                segment=after.uuid,
                expected=f"a begin after {before.end}",
                found=str(after.begin),
                message=f"stream {state.stream}: segments {before.uuid} and {after.uuid} overlap: one ends at "
                f"{before.end}, the next begins at {after.begin}",
                advice="report it; both are readable",
            )
        elif not state.follows(before.end, after.begin) and not _is_gap(state, before.end, after.begin):
            yield Finding(
                stream=state.stream,
                problem=Damage.HOLE,
                segment=after.uuid,
                expected=f"what follows {before.end}, or a recorded gap",
                found=str(after.begin),
                message=f"stream {state.stream}: nothing says what was between {before.end} and {after.begin}",
                advice="compare with the hot tier, if it still has these entries",
            )


def _is_gap(state: ManifestState, end: Position, begin: Position) -> bool:
    return any(end < gap.last and gap.first < begin for gap in state.gaps)


def _check_data_object(fetcher: Fetcher, objects: SegmentObjects, summary: SegmentSummary) -> None:
    where = f"stream {objects.stream}, object {objects.data_key}"
    try:
        info = fetcher.store.head(objects.data_key)
    except NotFound as cause:
        raise fetcher.missing(objects, objects.data_key) from cause
    if info.size_bytes != summary.data_bytes:
        raise ObjectChanged(
            f"{where} in {fetcher.store.url}: expected {summary.data_bytes} bytes, found {info.size_bytes}",
            hint="somebody replaced or cut it: restore it from a copy",
        )
    known = info.crc32c is not None and summary.data_crc32c  # 0: adopted and not yet read
    if known and info.crc32c != summary.data_crc32c:
        raise ObjectChanged(
            f"{where} in {fetcher.store.url}: expected CRC-32C {summary.data_crc32c:08x}, the store says "
            f"{info.crc32c:08x}",
            hint="somebody replaced it: restore it from a copy",
        )


def _contradictions(objects: SegmentObjects, segment_map: SegmentMap, summary: SegmentSummary) -> list[Finding]:
    """Differences between the index's own sums and the manifest's. A plain index has too little to sum up."""
    if not segment_map.has_extension:
        return []
    own: Any = segment_map.summary(summary.data_crc32c)
    wrong = [
        (each.name, getattr(summary, each.name), getattr(own, each.name))
        for each in fields(SegmentSummary)
        if each.name not in ("index_bytes", "index_crc32c") and getattr(summary, each.name) != getattr(own, each.name)
    ]
    return [
        Finding(
            stream=objects.stream,
            problem=Damage.CONTRADICTION,
            segment=objects.uuid,
            key=objects.index_key,
            expected=f"{name} {recorded}",
            found=f"{name} {summed}",
            message=f"stream {objects.stream}, object {objects.index_key}: the manifest has {name} {recorded}, the "
            f"index adds up to {summed}",
            advice="run `offloader verify --deep`: the blocks tell which of the two is right",
        )
        for name, recorded, summed in wrong
    ]


def _check_blocks(
    fetcher: Fetcher, objects: SegmentObjects, segment_map: SegmentMap, summary: SegmentSummary, found: list[Finding]
) -> SegmentCheck:
    blocks = segment_map.blocks
    numbers = np.argsort(blocks.offset, kind="stable").astype(np.int64)
    runs = block_runs(objects, segment_map, numbers, fetcher.settings.request_bytes)
    checksum = entries = payload_bytes = decoded = position = 0
    damaged = len(found) > 0
    results = fetcher.workers.in_order(partial(_read_run, fetcher, run) for run in runs)
    with closing(results):
        try:
            for run, data, counted, errors in results:
                found += [_finding(error, objects, objects.data_key) for error in errors]
                damaged = damaged or bool(errors)
                own_bytes = int(blocks.offset[run.numbers[-1]] + blocks.length[run.numbers[-1]]) - run.start
                checksum, position = crc32c(memoryview(data)[:own_bytes], checksum), run.start + own_bytes
                decoded += len(run.numbers) - len(errors)
                entries, payload_bytes = entries + counted[0], payload_bytes + counted[1]
        except OffloaderError as error:
            found.append(_finding(error, objects, objects.data_key))
            damaged = True
    if not damaged:
        pairs = [
            ("CRC-32C", f"{summary.data_crc32c or checksum:08x}", f"{checksum:08x}"),
            ("bytes in blocks", summary.data_bytes, position),
            ("entries", summary.entries, entries),
            ("payload bytes", summary.payload_bytes, payload_bytes),
        ]
        found += [
            Finding(
                stream=objects.stream,
                problem=Damage.CORRUPT,
                segment=objects.uuid,
                key=objects.data_key,
                start=0,
                stop=summary.data_bytes,
                expected=f"{name} {recorded}",
                found=f"{name} {counted_value}",
                message=f"stream {objects.stream}, object {objects.data_key}: the manifest has {name} {recorded}, "
                f"its blocks give {counted_value}",
                advice="restore this object from a copy",
            )
            for name, recorded, counted_value in pairs
            if recorded != counted_value
        ]
    return SegmentCheck(uuid=objects.uuid, blocks=decoded, entries=entries, data_bytes=position, findings=tuple(found))


def _read_run(fetcher: Fetcher, run: BlockRun) -> tuple[BlockRun, bytes, tuple[int, int], list[Corrupt]]:
    """A run's bytes, the number of its entries and payload bytes, and its damaged blocks."""
    errors: list[Corrupt] = []
    data = fetcher.run_bytes(run)
    batches: list[EntryBatch] = fetcher.decode(run, data, errors.append)
    return run, data, (sum(map(len, batches)), sum(batch.payload_bytes for batch in batches)), errors


def _finding(error: OffloaderError, objects: SegmentObjects, key: str) -> Finding:
    """Convert an error into a finding; re-raise errors unrelated to the object.

    An unreachable store or denied access is no finding: nothing was checked.
    """
    match error:
        case ObjectMissing():
            problem = Damage.MISSING
        case ObjectChanged():
            problem = Damage.CHANGED
        case LimitReached():
            problem = Damage.UNREADABLE
        case _ if error.kind is ErrorKind.REPAIR_DATA:
            problem = Damage.CORRUPT
        case InvalidCall():
            problem = Damage.UNREADABLE
        case _:
            raise error
    cause = error.__cause__ if isinstance(error.__cause__, FormatError) else None
    return Finding(
        stream=objects.stream,
        problem=problem,
        segment=objects.uuid,
        key=key,
        start=None if cause is None else cause.offset,
        expected=None if cause is None or cause.expected is None else str(cause.expected),
        found=None if cause is None or cause.found is None else str(cause.found),
        message=error.message,
        advice=error.hint,
    )


def check_history(store: ObjectStore, state: ManifestState) -> Iterator[Finding]:
    """Check every kept record and checkpoint, including those that a newer checkpoint covers and loading skips."""
    stored = read_boundary(store, state.stream, state.incarnation)
    nonce = ""
    for number in range(stored.boundary.first_kept_id, state.record_id + 1):
        key = record_key(state.stream, state.incarnation, number)
        try:
            record = decode_record(store.get(key)[0], object_name=key)
        except NotFound:
            if read_boundary(store, state.stream, state.incarnation).boundary.first_kept_id <= number:
                yield _damage(state.stream, Damage.LOST_RECORDS, f"record {number} is missing", key)
            nonce = ""
            continue
        except (FormatError, Corrupt) as error:
            yield _damage(state.stream, Damage.MANIFEST, f"record {number}: {error}", key)
            nonce = ""
            continue
        if nonce and record.previous_nonce and record.previous_nonce != nonce:
            what = f"record {number} follows another record {number - 1} than the one that is there"
            yield _damage(state.stream, Damage.LOST_RECORDS, what, key)
        nonce = record.writer.nonce
    for key, problem in check_checkpoints(store, state, stored):
        if read_boundary(store, state.stream, state.incarnation).boundary == stored.boundary:
            yield _damage(state.stream, Damage.MANIFEST, str(problem), key)


def describe_damage(store: ObjectStore, stream: str, error: OffloaderError) -> Iterator[Finding]:
    """Findings for a stream whose manifest can't be loaded: its remaining records and objects."""
    yield _damage(stream, Damage.MANIFEST, error.message, None, advice=error.hint)
    try:
        entry = read_entry(store, stream)
    except Unreadable:
        entry = None
    incarnations = incarnations_in(store, stream) if entry is None else [entry.incarnation]
    found = survivors_of(store, stream, incarnations)
    for key in found.unreadable:
        yield _damage(stream, Damage.MANIFEST, f"{key} can't be read", key)
    for first, last in found.absent(_first_kept(store, stream, incarnations, found)):
        text = f"record {first} is" if first == last else f"records {first} to {last} are"
        yield _damage(stream, Damage.LOST_RECORDS, f"{text} missing, and record {found.numbers[-1]} is there", None)
    there = set()
    for info in listed(store, stream_prefix(stream)):
        name = parse_object_key(info.key, stream)
        if name is None or name.is_index:
            continue
        there.add(name.uuid)
        if name.uuid not in found.ranges:
            yield Finding(
                stream=stream,
                problem=Damage.ORPHAN,
                key=info.key,
                found=f"{info.size_bytes} bytes",
                message=f"stream {stream}, object {info.key}, {info.size_bytes} bytes: no record names it",
                advice="nothing deletes it while the manifest can't be read",
            )
    for uuid in sorted(found.ranges.keys() - there):
        first_position, last_position = found.ranges[uuid]
        what = f"segment {uuid} at {first_position}..{last_position} has no data object"
        yield _damage(stream, Damage.MISSING, what, None, segment=uuid)


def lost_record_told(store: ObjectStore, state: ManifestState, unnamed: Unnamed) -> Finding | None:
    """Damage reported by an unnamed object; ``None``: none, or its record was written since ``state`` was loaded."""
    if not unnamed.tells_of_loss or unnamed.testimony is None:
        return None
    empty = ManifestState(stream=state.stream, incarnation=state.incarnation)
    newer = load_manifest_view(store, empty).state
    if not any(each.tells_of_loss for each in unnamed_objects(store, newer, [unnamed.info])):
        return None
    what = (
        f"object {unnamed.info.key} tells of record {unnamed.testimony.record_id} of its epoch, which the manifest "
        "hasn't: the newest records are lost"
    )
    return _damage(state.stream, Damage.LOST_RECORDS, what, unnamed.info.key, segment=unnamed.uuid)


def _first_kept(store: ObjectStore, stream: str, incarnations: Sequence[UUID], found: Survivors) -> int:
    lowest = min(found.numbers, default=1)
    if len(incarnations) != 1:
        return lowest
    try:
        first = read_boundary(store, stream, incarnations[0]).boundary.first_kept_id
    except (NotFound, *Unreadable):
        return lowest
    return lowest if first >= GIVEN_UP_ID else first


def _damage(
    stream: str, problem: Damage, what: str, key: str | None, *, advice: str = REBUILD, segment: UUID | None = None
) -> Finding:
    message = what if what.startswith(("stream ", "manifest ")) else f"stream {stream}: {what}"
    return Finding(stream=stream, problem=problem, key=key, segment=segment, message=message, advice=advice)
