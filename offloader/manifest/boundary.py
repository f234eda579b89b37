"""The boundary object, and the objects of one incarnation's manifest by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from formats.checkpoint import run_record_id
from formats.errors import FormatError, UnsupportedVersion
from formats.keys import (
    boundary_key,
    checkpoint_number,
    is_segment_uuid_of,
    manifest_prefix,
    parse_object_key,
    record_number,
    stream_prefix,
)
from formats.manifest import Boundary, decode_boundary, encode_boundary
from offloader.errors import (
    Corrupt,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    Unsupported,
)
from offloader.manifest.state import ManifestState
from offloader.store.base import CREATE, IfMatch, ObjectInfo, ObjectStore

__all__ = [
    "FIRST_BOUNDARY",
    "GIVEN_UP_ID",
    "REBUILD",
    "LostRecords",
    "ManifestObjects",
    "StoredBoundary",
    "Unreadable",
    "create_boundary",
    "delete_keys",
    "has_segment_of",
    "incarnations_in",
    "is_manifest_object",
    "list_manifest",
    "listed",
    "name_record",
    "naming",
    "number_in",
    "put_given_up",
    "raise_boundary",
    "read_boundary",
    "require_never_begun",
    "require_no_records",
    "unlisted_incarnation",
    "unlisted_segment",
    "unreadable",
]

#: Keys of one delete request.
DELETE_KEYS_MAX = 1000
#: Version of the uuids that this project generates for segments.
_OWN_UUID_VERSION = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestObjects:
    """Objects under one incarnation's prefix.

    Attributes:
        records, checkpoints: by number.
        runs: by name.
        boundary: ``None`` if there is none.
        unknown: all other keys.
    """

    records: Mapping[int, ObjectInfo]
    checkpoints: Mapping[int, ObjectInfo]
    runs: Mapping[str, ObjectInfo]
    boundary: ObjectInfo | None
    unknown: Sequence[str]

    def known(self) -> list[ObjectInfo]:
        """All but the unknown ones, in a safe order of deletion: the boundary last."""
        found = [*(self.records[number] for number in sorted(self.records)), *self.checkpoints.values()]
        found += self.runs.values()
        return found if self.boundary is None else [*found, self.boundary]


def list_manifest(store: ObjectStore, stream: str, incarnation: UUID) -> ManifestObjects:
    """Lists one incarnation's manifest."""
    prefix = manifest_prefix(stream, incarnation)
    records: dict[int, ObjectInfo] = {}
    checkpoints: dict[int, ObjectInfo] = {}
    runs: dict[str, ObjectInfo] = {}
    boundary: ObjectInfo | None = None
    unknown: list[str] = []
    for info in listed(store, prefix):
        name = info.key[len(prefix) :]
        if info.key == boundary_key(stream, incarnation):
            boundary = info
        elif "/" in name:
            unknown.append(info.key)
        elif (number := record_number(name)) is not None:
            records[number] = info
        elif (number := checkpoint_number(name)) is not None:
            checkpoints[number] = info
        elif run_record_id(name) is not None:
            runs[name] = info
        else:
            unknown.append(info.key)
    return ManifestObjects(
        records=records, checkpoints=checkpoints, runs=runs, boundary=boundary, unknown=tuple(unknown)
    )


def is_manifest_object(name: str) -> bool:
    """Whether this project writes objects of that name below an incarnation's prefix."""
    given = number_in(name) is not None or run_record_id(name) is not None
    return name == "boundary" or (given and "/" not in name)


def number_in(name: str) -> int | None:
    """The record number in the name of a record or a checkpoint; ``None`` for any other name."""
    record = record_number(name)
    return checkpoint_number(name) if record is None else record


def has_segment_of(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Whether a data object of that incarnation lies below the stream's name."""
    found = (parse_object_key(info.key, stream) for info in listed(store, stream_prefix(stream)))
    return any(each is not None and not each.is_index and is_segment_uuid_of(each.uuid, incarnation) for each in found)


def unlisted_segment(store: ObjectStore, stream: str) -> UUID | None:
    """A segment with both objects whose name this project generated, of any incarnation."""
    seen: set[tuple[UUID, int | None, bool]] = set()
    for info in listed(store, stream_prefix(stream)):
        found = parse_object_key(info.key, stream)
        if found is None or found.uuid.version != _OWN_UUID_VERSION:
            continue
        seen.add((found.uuid, found.ledger_id, found.is_index))
        if (found.uuid, found.ledger_id, not found.is_index) in seen:
            return found.uuid
    return None


def incarnations_in(store: ObjectStore, stream: str) -> list[UUID]:
    """Every incarnation with objects under its prefix."""
    prefix = f"{stream_prefix(stream)}manifest/"
    found = {_incarnation(info.key[len(prefix) :]) for info in listed(store, prefix)}
    return sorted(each for each in found if each is not None)


def unlisted_incarnation(store: ObjectStore, stream: str) -> UUID | None:
    """An incarnation with a boundary and a record or checkpoint. If no catalogue entry names it, its entry is lost.

    A boundary alone is from an overtaken creation of a stream, records alone from a writer of a stream deleted long
    ago.
    """
    found: dict[UUID, set[bool]] = {}
    prefix = f"{stream_prefix(stream)}manifest/"
    for info in listed(store, prefix):
        incarnation = _incarnation(info.key[len(prefix) :])
        if incarnation is not None:
            found.setdefault(incarnation, set()).add(info.key == boundary_key(stream, incarnation))
    return next((each for each, kinds in found.items() if len(kinds) == len((True, False))), None)


def _incarnation(rest: str) -> UUID | None:
    name, separator, _ = rest.partition("/")
    try:
        found = UUID(name)
    except ValueError:
        return None
    return found if separator and str(found) == name else None


def listed(store: ObjectStore, prefix: str) -> Iterator[ObjectInfo]:
    """Every object whose key begins with ``prefix``."""
    after: str | None = ""
    while after is not None:
        page = store.list(prefix, after=after)
        yield from page.objects
        after = page.next_after


def delete_keys(store: ObjectStore, keys: Sequence[str]) -> None:
    """Deletes objects, in sequential requests.

    Raises:
        StoreUnavailable: one of them wasn't deleted.
    """
    for start in range(0, len(keys), DELETE_KEYS_MAX):
        failures = store.delete(keys[start : start + DELETE_KEYS_MAX])
        if failures:
            raise StoreUnavailable(f"{failures[0].key} in {store.url} wasn't deleted: {failures[0].reason}")


REBUILD = "`offloader manifest rebuild` makes a new manifest from the objects"
#: Errors that ``unreadable`` returns.
Unreadable = (Corrupt, Unsupported)


class LostRecords(Corrupt):
    """Records of a manifest that certainly existed are missing."""


def unreadable(what: str, error: Exception, *, hint: str = REBUILD) -> OffloaderError:
    """The error to raise for an object that doesn't decode, or doesn't fit.

    Args:
        what: the object and its stream, for people.
        error: why it can't be read.
        hint: what to do if it is damaged.
    """
    if isinstance(error, UnsupportedVersion):
        return Unsupported(f"{what}: {error}", hint="a later release wrote this: use that one. Nothing was changed")
    return Corrupt(f"{what}: {error}", hint=hint)


#: First kept id of an abandoned manifest: none of its numbers is valid any more.
GIVEN_UP_ID = 2**62
FIRST_BOUNDARY = Boundary(first_kept_id=1, checkpoint_id=0, checkpoint_crc32c=0)


class StoredBoundary(NamedTuple):
    """A boundary as read, and the ETag that a change must match."""

    boundary: Boundary
    etag: str

    def contradicts(self, record_id: int, nonce: str) -> bool:
        """Whether it names this record's number, or a later one, and not this record."""
        newest = self.boundary.newest_id, self.boundary.newest_nonce
        return 0 < record_id <= newest[0] and newest != (record_id, nonce)


def read_boundary(store: ObjectStore, stream: str, incarnation: UUID) -> StoredBoundary:
    """Reads the boundary.

    Raises:
        NotFound: there is none: the stream is being created, or was deleted.
        Corrupt: it is damaged.
        Unsupported: a later release wrote it.
    """
    key = boundary_key(stream, incarnation)
    data, info = store.get(key)
    try:
        return StoredBoundary(decode_boundary(data, object_name=key), info.etag)
    except FormatError as error:
        raise unreadable(f"the boundary of stream {stream}", error) from error


def create_boundary(store: ObjectStore, stream: str, incarnation: UUID, *, is_new: bool = False) -> bool:
    """Creates the first boundary unless there is one; returns whether there was none.

    Args:
        is_new: the caller created this incarnation: it can't have lost a boundary, so the check is skipped.

    Raises:
        Corrupt: there are records without a boundary: it was lost, and a new one would hide them.
    """
    key = boundary_key(stream, incarnation)
    if not is_new:
        try:
            store.head(key)
        except NotFound:
            require_no_records(store, stream, incarnation)
        else:
            return False
    try:
        store.put(key, encode_boundary(FIRST_BOUNDARY), mode=CREATE)
    except PreconditionFailed:
        return False
    return True


def put_given_up(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Creates a boundary that marks the manifest as abandoned; False if there is one by now."""
    given_up = replace(FIRST_BOUNDARY, first_kept_id=GIVEN_UP_ID)
    try:
        store.put(boundary_key(stream, incarnation), encode_boundary(given_up), mode=CREATE)
    except PreconditionFailed:
        return False
    return True


def require_no_records(store: ObjectStore, stream: str, incarnation: UUID) -> ManifestObjects:
    """After a missing boundary: requires that no other manifest object exists. Returns what exists beside a boundary.

    A stream is created boundary first and deleted boundary last. The listing only distinguishes loss from creation; an
    object that it omits is never assumed deleted.

    Raises:
        Corrupt: there is an object, and no boundary appeared meanwhile.
    """
    found = list_manifest(store, stream, incarnation)
    if found.boundary is None and found.known():
        raise Corrupt(f"the boundary of stream {stream} is missing, its records are there", hint=REBUILD)
    return found


def require_never_begun(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Whether the living incarnation, in which no record was found, never had one; False if it has one by now.

    Objects of segments are written after the records that assign them. If objects, listed first, exist, and a later
    read still finds neither record nor checkpoint, then these are lost.

    Raises:
        Corrupt: there are records and no boundary.
        LostRecords: there are segments and no record.
    """
    has_segment = has_segment_of(store, stream, incarnation)
    found = require_no_records(store, stream, incarnation)
    if not has_segment:
        return True
    if found.records or found.checkpoints:
        return False
    raise LostRecords(
        f"stream {stream} has segments of {incarnation} and no manifest record: they are lost", hint=REBUILD
    )


def naming(boundary: Boundary, record_id: int, nonce: str) -> Boundary:
    """The boundary that names a record as committed, unless it names a later one already."""
    if record_id < boundary.newest_id:
        return boundary
    return replace(boundary, newest_id=record_id, newest_nonce=nonce)


def name_record(store: ObjectStore, state: ManifestState, stored: StoredBoundary) -> bool:
    """Makes the boundary name the newest record of a view; False if it was replaced meanwhile.

    Raises:
        OutcomeUnknown: the outcome is unknown.
    """
    wanted = naming(stored.boundary, state.record_id, state.nonce)
    if wanted == stored.boundary:
        return True
    return raise_boundary(store, state.stream, state.incarnation, stored, wanted) is not None


def raise_boundary(
    store: ObjectStore, stream: str, incarnation: UUID, stored: StoredBoundary, wanted: Boundary
) -> StoredBoundary | None:
    """Replaces ``stored`` by ``wanted``; ``None`` if it was replaced meanwhile.

    Raises:
        OutcomeUnknown: the outcome is unknown. Harmless: the request can only land on ``stored``.
    """
    assert wanted.first_kept_id >= stored.boundary.first_kept_id, "a boundary is never lowered"
    assert wanted.checkpoint_id >= stored.boundary.checkpoint_id, "a boundary is never lowered"
    assert wanted.newest_id >= stored.boundary.newest_id, "a boundary is never lowered"
    try:
        info = store.put(boundary_key(stream, incarnation), encode_boundary(wanted), mode=IfMatch(stored.etag))
    except (PreconditionFailed, OutcomeUnknown) as error:
        try:
            found = read_boundary(store, stream, incarnation)
        except NotFound:
            return None
        if found.boundary == wanted:
            return found  # ours: the response was lost
        if found.etag == stored.etag and isinstance(error, OutcomeUnknown):
            raise
        return None
    return StoredBoundary(wanted, info.etag)
