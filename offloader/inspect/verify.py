"""Verify a stream's objects, indexes, blocks and records against its manifest; find unreferenced objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np

from formats.checksum import crc32c
from formats.entries import EntryBatch
from formats.errors import FormatError
from formats.keys import fill_key, is_segment_uuid_of, manifest_prefix, parse_object_key, record_key, stream_prefix
from formats.manifest import GapFilled, decode_record
from formats.segment_map import SegmentMap
from formats.summary import SegmentSummary
from offloader.coverage import gap_runs, runs_of
from offloader.errors import (
    CorruptError,
    ErrorKind,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    ObjectChangedError,
    ObjectMissingError,
    OffloaderError,
    TrimmedError,
)
from offloader.manifest.boundary import (
    GIVEN_UP_ID,
    REBUILD,
    Unreadable,
    incarnations_in,
    is_manifest_object,
    listed,
    read_boundary,
)
from offloader.manifest.catalog import read_entry
from offloader.manifest.load import check_checkpoints, load_manifest_view
from offloader.manifest.lost_records import Survivors, Unnamed, newest_ms, survivors_of, unnamed_objects
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.cold import objects_of, read_fill
from offloader.read.fetch import BlockRun, Fetcher, SegmentObjects, Sized, block_runs
from offloader.store.base import ObjectStore


class Damage(Enum):
    """Kind of damage; the value appears in output."""

    MISSING = "missing"
    CHANGED = "changed"
    CORRUPT = "corrupt"
    CONTRADICTION = "contradiction"
    UNREADABLE = "unreadable"
    GAP = "gap"
    MANIFEST = "manifest"
    LOST_RECORDS = "lost records"
    ORPHAN = "orphan"
    FOREIGN = "foreign"
    UNFINISHED = "unfinished"


#: Findings without data loss, which are only reported.
NOTES = frozenset({Damage.ORPHAN, Damage.FOREIGN, Damage.UNFINISHED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One deviation.

    Attributes:
        problem: the kind of damage or note.
        start, stop: byte range in the object, if known.
        message: all facts on one line.
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
        """Whether entries are lost or at risk; otherwise the finding is a note."""
        return self.problem not in NOTES

    def as_row(self) -> dict[str, object]:
        """The finding for JSON, with values of plain types."""
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
        blocks, entries: decoded; 0 in a shallow check.
        data_bytes: bytes read of the data object.
        is_trimmed: whether retention deleted the segment during the check; the other fields are empty then.
    """

    uuid: UUID
    is_trimmed: bool = False
    blocks: int = 0
    entries: int = 0
    data_bytes: int = 0
    findings: tuple[Finding, ...] = ()


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
            self.damage += finding.is_damage
            self.notes += not finding.is_damage


def check_segments(fetcher: Fetcher, state: ManifestState, *, deep: bool) -> Iterator[SegmentCheck]:
    """``check_segment`` of every offloaded segment of ``state``, in the stream's order, in parallel.

    The fetcher's settings bound requests in flight and memory; ``deep`` reads and decodes every block.

    Raises:
        OffloaderError: an error unrelated to the objects: the store is unreachable, access is denied.
    """
    records = state.offloaded()
    if deep:  # blocks of a segment are read in parallel
        yield from (check_segment(fetcher, state.stream, record, deep=True) for record in records)
        return
    tasks = (partial(check_segment, fetcher, state.stream, record, deep=False) for record in records)
    with closing(fetcher.workers.in_order(tasks)) as results:
        yield from results


def check_stream(
    fetcher: Fetcher, state: ManifestState, *, deep: bool, checked: Callable[[SegmentCheck], object] = lambda _: None
) -> Iterator[Finding]:
    """All deviations of the stored objects from the manifest. Raises as ``check_segments``.

    Args:
        deep: also read every block, and the records that a checkpoint contains.
        checked: is called with the check of each segment, before its findings.
    """
    yield from check_order(state)
    for check in check_segments(fetcher, state, deep=deep):
        checked(check)
        yield from check.findings
    yield from check_fills(fetcher.store, state, deep=deep)
    if deep:
        yield from check_history(fetcher.store, state)
    yield from find_unexpected(fetcher.store, state)


def check_segment(fetcher: Fetcher, stream: str, record: SegmentRecord, *, deep: bool) -> SegmentCheck:
    """Check the two objects of one offloaded segment.

    Shallow: both exist with the manifest's length and (if the store keeps one) checksum; the index is
    read, matches its checksum, and agrees with the manifest. Deep: every block is read and decoded as well, its entries
    match the index, and the whole object matches its checksum.
    """
    found: list[Finding] = []
    objects = objects_of(stream, record, fetcher.store, fetcher.settings.relocate)
    summary = record.content
    try:
        try:
            _check_data_object(fetcher, objects, summary)
        except OffloaderError as error:
            found.append(_finding(error, stream, record.uuid, objects.data_key))
        try:
            segment_map = fetcher.index(objects, keep=False)
        except OffloaderError as error:
            found.append(_finding(error, stream, record.uuid, objects.index_key))
            return SegmentCheck(uuid=record.uuid, findings=tuple(found))
        found += _contradictions(objects, segment_map, summary)
        if not deep or any(each.problem is Damage.MISSING for each in found):
            return SegmentCheck(uuid=record.uuid, findings=tuple(found))
        return _check_blocks(fetcher, objects, segment_map, summary, found)
    except TrimmedError:  # retention deleted it after the load of the manifest
        return SegmentCheck(uuid=record.uuid, is_trimmed=True)


def check_order(state: ManifestState) -> Iterator[Finding]:
    """Gaps and overlaps between the manifest's readable segments, from the manifest alone."""
    if (end := state.committed_end()) is None:
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
                f"{before.end}, the next starts at {after.begin}",
                advice="report it; both segments are readable",
            )
        elif not state.follows(before.end, after.begin) and not any(
            before.end < gap.last and gap.first < after.begin for gap in state.gaps
        ):
            yield Finding(
                stream=state.stream,
                problem=Damage.GAP,
                segment=after.uuid,
                expected=f"entries after {before.end}, or a recorded gap",
                found=str(after.begin),
                message=f"stream {state.stream}: no segment or gap is recorded between {before.end} and {after.begin}",
                advice="compare with the hot tier, if it still has these entries",
            )


def check_fills(store: ObjectStore, state: ManifestState, *, deep: bool) -> Iterator[Finding]:
    """Check the objects that hold entries of gaps: their length and, if the store keeps one, their checksum.

    ``deep``: also check every byte, and that they hold exactly the entries of the gaps in their range.

    Raises:
        OffloaderError: an error unrelated to the objects: the store is unreachable, access is denied.
    """
    for fill in state.fills:
        key = fill_key(state.stream, fill.uuid)
        try:
            if deep:
                batch = read_fill(store, state.stream, fill)
                gaps = gap_runs(state.gaps, fill.first.ledger_id, fill.first.entry_id, fill.last.entry_id)
                if runs_of(batch.entry_ids) != gaps:
                    yield Finding(
                        stream=state.stream,
                        problem=Damage.CONTRADICTION,
                        segment=fill.uuid,
                        key=key,
                        message=f"stream {state.stream}, object {key}: its entries differ from those of the gaps "
                        f"from {fill.first} to {fill.last}",
                        advice="report it; readers skip these entries",
                    )
            else:
                _check_fill_object(store, state.stream, fill)
        except TrimmedError:  # its ledger was deleted after the load of the manifest
            continue
        except OffloaderError as error:
            yield _finding(error, state.stream, fill.uuid, key)


def _check_fill_object(store: ObjectStore, stream: str, fill: GapFilled) -> None:
    key = fill_key(stream, fill.uuid)
    try:
        info = store.head(key)
    except NotFoundError:
        read_fill(store, stream, fill)  # raises the specific error
        return
    if info.size_bytes != fill.object_bytes or info.crc32c not in (None, fill.crc32c):
        found = f"{info.size_bytes} bytes" + ("" if info.crc32c is None else f", CRC-32C {info.crc32c:08x}")
        raise ObjectChangedError(
            f"stream {stream}, object {key} in {store.url}: expected {fill.object_bytes} bytes, "
            f"CRC-32C {fill.crc32c:08x}, found {found}",
            hint="the object was replaced: restore it from a copy",
        )


def _check_data_object(fetcher: Fetcher, objects: SegmentObjects, summary: SegmentSummary) -> None:
    where = f"stream {objects.stream}, object {objects.data_key}"
    try:
        info = fetcher.store.head(objects.data_key)
    except NotFoundError as cause:
        raise fetcher.missing(objects, objects.data_key) from cause
    if info.size_bytes != summary.data_bytes:
        raise ObjectChangedError(
            f"{where} in {fetcher.store.url}: expected {summary.data_bytes} bytes, found {info.size_bytes}",
            hint="the object was replaced or truncated: restore it from a copy",
        )
    known = info.crc32c is not None and summary.data_crc32c  # 0: adopted and not yet read
    if known and info.crc32c != summary.data_crc32c:
        raise ObjectChangedError(
            f"{where} in {fetcher.store.url}: expected CRC-32C {summary.data_crc32c:08x}, the store reports "
            f"{info.crc32c:08x}",
            hint="the object was replaced: restore it from a copy",
        )


def _contradictions(objects: SegmentObjects, segment_map: SegmentMap, summary: SegmentSummary) -> list[Finding]:
    """Differences between the totals in the index and those in the manifest. A plain index has no totals."""
    if not segment_map.has_extension:
        return []
    own: Any = segment_map.summary(summary.data_crc32c)
    pairs = [
        (each.name, getattr(summary, each.name), getattr(own, each.name))
        for each in fields(SegmentSummary)
        if each.name not in ("index_bytes", "index_crc32c")
    ]
    advice = "run `offloader verify --deep`: the blocks show which of the two is correct"
    return _differences(objects, objects.index_key, Damage.CONTRADICTION, pairs, "the index has", advice)


def _differences(
    objects: SegmentObjects,
    key: str,
    problem: Damage,
    pairs: Sequence[tuple[str, object, object]],
    says: str,
    advice: str,
    **place: int,
) -> list[Finding]:
    """A finding for each pair of the manifest's and the object's values that differ."""
    return [
        Finding(
            stream=objects.stream,
            problem=problem,
            segment=objects.uuid,
            key=key,
            expected=f"{name} {recorded}",
            found=f"{name} {value}",
            message=f"stream {objects.stream}, object {key}: the manifest has {name} {recorded}, {says} {value}",
            advice=advice,
            **place,
        )
        for name, recorded, value in pairs
        if recorded != value
    ]


def _check_blocks(
    fetcher: Fetcher, objects: SegmentObjects, segment_map: SegmentMap, summary: SegmentSummary, found: list[Finding]
) -> SegmentCheck:
    blocks = segment_map.blocks
    numbers = np.argsort(blocks.offset, kind="stable").astype(np.int64)
    runs = block_runs(objects, segment_map, numbers, fetcher.settings.request_size)
    checksum = entries = payload_bytes = decoded = position = 0
    damaged = len(found) > 0
    results = fetcher.workers.in_order(Sized(partial(_read_run, fetcher, run), run.held_bytes) for run in runs)
    with closing(results):
        try:
            for run, data, counted, errors in results:
                found += [_finding(error, objects.stream, objects.uuid, objects.data_key) for error in errors]
                damaged = damaged or bool(errors)
                own_bytes = int(blocks.offset[run.numbers[-1]] + blocks.length[run.numbers[-1]]) - run.start
                checksum, position = crc32c(memoryview(data)[:own_bytes], checksum), run.start + own_bytes
                decoded += len(run.numbers) - len(errors)
                entries, payload_bytes = entries + counted[0], payload_bytes + counted[1]
        except OffloaderError as error:
            found.append(_finding(error, objects.stream, objects.uuid, objects.data_key))
            damaged = True
    if not damaged:
        pairs = [
            ("CRC-32C", f"{summary.data_crc32c or checksum:08x}", f"{checksum:08x}"),
            ("bytes in blocks", summary.data_bytes, position),
            ("entries", summary.entries, entries),
            ("payload bytes", summary.payload_bytes, payload_bytes),
        ]
        key, advice = objects.data_key, "restore this object from a copy"
        place = {"start": 0, "stop": summary.data_bytes}
        found += _differences(objects, key, Damage.CORRUPT, pairs, "its blocks have", advice, **place)
    return SegmentCheck(uuid=objects.uuid, blocks=decoded, entries=entries, data_bytes=position, findings=tuple(found))


def _read_run(fetcher: Fetcher, run: BlockRun) -> tuple[BlockRun, bytes, tuple[int, int], list[CorruptError]]:
    """A run's bytes, the number of its entries and payload bytes, and its damaged blocks."""
    errors: list[CorruptError] = []
    data = fetcher.run_bytes(run)
    batches: list[EntryBatch] = fetcher.decode(run, data, errors.append)
    return run, data, (sum(map(len, batches)), sum(batch.payload_bytes for batch in batches)), errors


_PROBLEMS = {
    ObjectMissingError: Damage.MISSING,
    ObjectChangedError: Damage.CHANGED,
    LimitReachedError: Damage.UNREADABLE,
    InvalidCallError: Damage.UNREADABLE,
}


def _finding(error: OffloaderError, stream: str, uuid: UUID, key: str) -> Finding:
    """Convert an error into a finding; re-raise errors unrelated to the object.

    An unreachable store or denied access isn't a finding: nothing was checked.
    """
    corrupt = Damage.CORRUPT if error.kind is ErrorKind.DATA_CORRUPTION else None
    problem = next((problem for kind, problem in _PROBLEMS.items() if isinstance(error, kind)), corrupt)
    if problem is None:
        raise error
    cause = error.__cause__ if isinstance(error.__cause__, FormatError) else None
    return Finding(
        stream=stream,
        problem=problem,
        segment=uuid,
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
        expected, nonce = nonce, ""
        key = record_key(state.stream, state.incarnation, number)
        try:
            record = decode_record(store.get(key)[0], object_name=key)
        except NotFoundError:
            if read_boundary(store, state.stream, state.incarnation).boundary.first_kept_id <= number:
                yield _damage(state.stream, Damage.LOST_RECORDS, f"record {number} is missing", key)
            continue
        except (FormatError, CorruptError) as error:
            yield _damage(state.stream, Damage.MANIFEST, f"record {number}: {error}", key)
            continue
        if expected and record.previous_nonce != expected:
            what = f"record {number} refers to another record {number - 1} than the stored one"
            yield _damage(state.stream, Damage.LOST_RECORDS, what, key)
        nonce = record.writer.nonce
    for key, problem in check_checkpoints(store, state, stored):
        if read_boundary(store, state.stream, state.incarnation).boundary == stored.boundary:
            yield _damage(state.stream, Damage.MANIFEST, str(problem), key)


def describe_damage(store: ObjectStore, stream: str, error: OffloaderError) -> Iterator[Finding]:
    """Findings for a stream whose manifest can't be loaded: its remaining records and objects."""
    yield _damage(stream, Damage.MANIFEST, error.message, None, advice=error.hint)
    entry = None
    with suppress(*Unreadable):
        entry = read_entry(store, stream)
    incarnations = incarnations_in(store, stream) if entry is None else [entry.incarnation]
    found = survivors_of(store, stream, incarnations)
    yield from (_damage(stream, Damage.MANIFEST, f"{key} can't be read", key) for key in found.unreadable)
    for first, last in found.absent(_first_kept(store, stream, incarnations, found)):
        text = f"record {first} is" if first == last else f"records {first} to {last} are"
        yield _damage(stream, Damage.LOST_RECORDS, f"{text} missing, but record {found.numbers[-1]} exists", None)
    there = set()
    for info in listed(store, stream_prefix(stream)):
        if (name := parse_object_key(info.key, stream)) is None or name.is_index:
            continue
        there.add(name.uuid)
        if name.uuid not in found.ranges and name.uuid not in found.fills:
            words = "no record references it", "it is not deleted while the manifest can't be read"
            yield _note(stream, Damage.ORPHAN, info.key, f"{info.size_bytes} bytes", words)
    for uuid in sorted(found.ranges.keys() - there):
        where = "..".join(map(str, found.ranges[uuid]))
        yield _damage(stream, Damage.MISSING, f"segment {uuid} at {where} has no data object", None, segment=uuid)


def _lost_record_told(store: ObjectStore, state: ManifestState, unnamed: Unnamed) -> Finding | None:
    """Damage proved by an unreferenced object; ``None``: none, or its record is newer than ``state``."""
    if not unnamed.tells_of_loss or unnamed.testimony is None:
        return None
    newer = load_manifest_view(store, state.stream, state.incarnation).state
    if not any(each.tells_of_loss for each in unnamed_objects(store, newer, [unnamed.info])):
        return None
    what = (
        f"object {unnamed.info.key} belongs to record {unnamed.testimony.record_id} of its epoch, which is missing "
        f"from "
        "the manifest: the newest records are lost"
    )
    return _damage(state.stream, Damage.LOST_RECORDS, what, unnamed.info.key, segment=unnamed.uuid)


def _first_kept(store: ObjectStore, stream: str, incarnations: Sequence[UUID], found: Survivors) -> int:
    if len(incarnations) == 1:
        with suppress(NotFoundError, *Unreadable):
            first = read_boundary(store, stream, incarnations[0]).boundary.first_kept_id
            if first < GIVEN_UP_ID:
                return first
    return min(found.numbers, default=1)


def _damage(
    stream: str, problem: Damage, what: str, key: str | None, *, advice: str = REBUILD, segment: UUID | None = None
) -> Finding:
    message = what if what.startswith(("stream ", "manifest ")) else f"stream {stream}: {what}"
    return Finding(stream=stream, problem=problem, key=key, segment=segment, message=message, advice=advice)


def find_unexpected(store: ObjectStore, state: ManifestState) -> Iterator[Finding]:
    """Findings for objects and unfinished uploads that the manifest doesn't explain: damage if an object refers to a
    missing record, else a note.

    The listing may be older or newer than ``state``. A segment in progress isn't a finding, as its record is older than
    its objects; a segment assigned after ``state`` was loaded looks like an orphan.
    """
    prefix, aside = stream_prefix(state.stream), state.uuids_aside()
    for info in listed(store, prefix):
        if (problem := what_is(info.key, state, aside)) is None:
            continue
        unnamed = next(unnamed_objects(store, state, [info]), None) if problem is Damage.ORPHAN else None
        damage = None if unnamed is None else _lost_record_told(store, state, unnamed)
        is_untold = unnamed is not None and unnamed.testimony is None and info.modified_ms > newest_ms(store, state)
        words = _UNTOLD if is_untold else _WORDS[problem]
        yield damage or _note(state.stream, problem, info.key, f"{info.size_bytes} bytes", words)
    for upload in store.list_uploads(prefix):
        key = parse_object_key(upload.key, state.stream)
        if key is None or key.uuid not in state.segments:
            found = f"an unfinished upload, {upload.upload_id}"
            yield _note(state.stream, Damage.UNFINISHED, upload.key, found, _WORDS[Damage.UNFINISHED])


def what_is(key: str, state: ManifestState, aside: Collection[UUID]) -> Damage | None:
    """Kind of a listed key under the stream's prefix; ``None`` if the manifest explains it.

    Known key shapes are directly under the stream, and a uuid proves the origin of an object: see
    docs/explanation/manifest.md.

    Args:
        aside: the state's ``uuids_aside``.
    """
    if (found := parse_object_key(key, state.stream)) is not None:
        if found.uuid in state.segments or found.uuid in aside:
            return None
        return Damage.ORPHAN if is_segment_uuid_of(found.uuid, state.incarnation) else Damage.FOREIGN
    prefix = manifest_prefix(state.stream, state.incarnation)
    if key.startswith(prefix):
        return None if is_manifest_object(key[len(prefix) :]) else Damage.FOREIGN
    folder = key[len(stream_prefix(state.stream)) :].partition("/")[0]
    return None if folder in ("leases", "retention") else Damage.FOREIGN


_WORDS = {
    Damage.ORPHAN: ("left by a failed or very recent attempt", "cleanup deletes it when it is old"),
    Damage.FOREIGN: ("not an object of this stream's manifest", "offloader never changes it"),
    Damage.UNFINISHED: ("an upload without a segment", "cleanup aborts it when it is old, if it is ours"),
}
_UNTOLD = (
    "it names no record and is younger than the newest one: left by a failed attempt, or a record is lost",
    "cleanup keeps it until a newer record exists",
)


def _note(stream: str, problem: Damage, key: str, found: str, words: tuple[str, str]) -> Finding:
    message = f"stream {stream}, object {key}, {found}: {words[0]}"
    return Finding(stream=stream, problem=problem, key=key, found=found, message=message, advice=words[1])
