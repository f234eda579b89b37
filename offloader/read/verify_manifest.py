"""Whether a stream's manifest is whole: every record and checkpoint that is kept, and what objects tell of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from formats.errors import FormatError
from formats.keys import parse_object_key, record_key, stream_prefix
from formats.manifest import decode_record
from offloader.errors import Corrupt, NotFound, OffloaderError
from offloader.manifest.boundary import GIVEN_UP_ID, read_boundary
from offloader.manifest.catalog import read_entry
from offloader.manifest.load import check_checkpoints, load_manifest_view
from offloader.manifest.objects import incarnations_in, listed
from offloader.manifest.state import ManifestState
from offloader.manifest.survivors import Survivors, Unnamed, survivors_of, unnamed_objects
from offloader.manifest.unreadable import REBUILD, Unreadable
from offloader.read.verify import Finding, Problem
from offloader.store.base import ObjectStore

__all__ = ["check_history", "describe_damage", "lost_record_told"]


def check_history(store: ObjectStore, state: ManifestState) -> Iterator[Finding]:
    """Every record and checkpoint that is kept, those included that a newer checkpoint holds; loading reads none of
    these."""
    stored = read_boundary(store, state.stream, state.incarnation)
    nonce = ""
    for number in range(stored.boundary.first_kept_id, state.record_id + 1):
        key = record_key(state.stream, state.incarnation, number)
        try:
            record = decode_record(store.get(key)[0], object_name=key)
        except NotFound:
            if read_boundary(store, state.stream, state.incarnation).boundary.first_kept_id <= number:
                yield _damage(state.stream, Problem.LOST_RECORDS, f"record {number} is missing", key)
            nonce = ""
            continue
        except (FormatError, Corrupt) as error:
            yield _damage(state.stream, Problem.MANIFEST, f"record {number}: {error}", key)
            nonce = ""
            continue
        if nonce and record.previous_nonce and record.previous_nonce != nonce:
            what = f"record {number} follows another record {number - 1} than the one that is there"
            yield _damage(state.stream, Problem.LOST_RECORDS, what, key)
        nonce = record.writer.nonce
    for key, problem in check_checkpoints(store, state, stored):
        if read_boundary(store, state.stream, state.incarnation).boundary == stored.boundary:
            yield _damage(state.stream, Problem.MANIFEST, str(problem), key)


def describe_damage(store: ObjectStore, stream: str, error: OffloaderError) -> Iterator[Finding]:
    """What can be said of a stream whose manifest can't be loaded: what is there of it, and of its objects."""
    yield _damage(stream, Problem.MANIFEST, error.message, None, advice=error.hint)
    try:
        entry = read_entry(store, stream)
    except Unreadable:
        entry = None
    incarnations = incarnations_in(store, stream) if entry is None else [entry.incarnation]
    found = survivors_of(store, stream, incarnations)
    for key in found.unreadable:
        yield _damage(stream, Problem.MANIFEST, f"{key} can't be read", key)
    for first, last in found.absent(_first_kept(store, stream, incarnations, found)):
        text = f"record {first} is" if first == last else f"records {first} to {last} are"
        yield _damage(stream, Problem.LOST_RECORDS, f"{text} missing, and record {found.numbers[-1]} is there", None)
    there = set()
    for info in listed(store, stream_prefix(stream)):
        name = parse_object_key(info.key, stream)
        if name is None or name.is_index:
            continue
        there.add(name.uuid)
        if name.uuid not in found.ranges:
            yield Finding(
                stream=stream,
                problem=Problem.ORPHAN,
                key=info.key,
                found=f"{info.size_bytes} bytes",
                message=f"stream {stream}, object {info.key}, {info.size_bytes} bytes: no record names it",
                advice="nothing deletes it while the manifest can't be read",
            )
    for uuid in sorted(found.ranges.keys() - there):
        first_position, last_position = found.ranges[uuid]
        what = f"segment {uuid} at {first_position}..{last_position} has no data object"
        yield _damage(stream, Problem.MISSING, what, None, segment=uuid)


def lost_record_told(store: ObjectStore, state: ManifestState, unnamed: Unnamed) -> Finding | None:
    """The damage that an unnamed object tells of; ``None``: none, or its record came since ``state`` was loaded."""
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
    return _damage(state.stream, Problem.LOST_RECORDS, what, unnamed.info.key, segment=unnamed.uuid)


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
    stream: str, problem: Problem, what: str, key: str | None, *, advice: str = REBUILD, segment: UUID | None = None
) -> Finding:
    message = what if what.startswith(("stream ", "manifest ")) else f"stream {stream}: {what}"
    return Finding(stream=stream, problem=problem, key=key, segment=segment, message=message, advice=advice)
