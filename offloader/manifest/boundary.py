"""The boundary object, and the objects of one incarnation's manifest by kind.

**The problem.** Records never change, and each has a fixed key. That is safe only while none is deleted: the key of a
deleted record is free, and a stalled writer can create it again. A listing may be incomplete, so it can't prove where
the log ends. The boundary is the one object of a manifest that changes. Writers and readers read it after the records
(M15, M31), so a change to it takes effect for all of them.

**Fields.**

* ``first_kept_id``: records below it may be deleted. A record that is created below it isn't committed (M15, M44).
* ``checkpoint_id``, ``checkpoint_crc32c``: the checkpoint that loads start from; 0: none yet (M27).
* ``newest_id``, ``newest_nonce``: a record that certainly existed. A log that ends before it has lost records (M34).
* ``subscribers_revision``: a revision of the registry of subscribers that certainly existed.

**Invariants.** The boundary is replaced with ``If-Match`` only, and none of its numbers decreases (M28). A change whose
response was lost is therefore harmless: it can only replace the version that was read. After an error
``raise_boundary`` reads the boundary again. It reports success if the content is the wanted one, an unknown outcome if
the response was lost and the version is unchanged, and otherwise a conflict. ``change_boundary`` computes the change
again after a conflict.

**Order of durable steps.** The boundary is the first object of a manifest and the last one to be deleted.

1. Creation: catalogue entry, boundary, first record.
2. Checkpoint: runs, checkpoint, boundary. After a crash before the boundary, loads start from the previous checkpoint.
3. Expiry: boundary, then records, checkpoints and runs. After a crash in between, the next expiry deletes the rest.
4. A deletion that relies on a record: record, boundary that names it or a later one, deletion.
5. Deletion of a stream (M48): record ``stream_deleted``, checkpoint, boundary past it, objects of segments, records.
   After ``manifest.orphan_age_min``: the catalogue entry is released, the rest is deleted, the entry is removed.

**A missing boundary.** The stream is being created, or was deleted, or the boundary is lost. It is lost if the
catalogue names the incarnation and other objects of the manifest exist; then nothing is created
(``require_no_records``). Segments of the incarnation without any record or checkpoint prove that records are lost, with
or without a boundary (``require_never_begun``, M39). A rebuild abandons an incarnation by raising ``first_kept_id`` to
``GIVEN_UP_ID``, or by creating such a boundary: no number of that incarnation is valid any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar
from uuid import UUID

from formats.checkpoint import run_record_id
from formats.errors import FormatError, UnsupportedVersionError
from formats.keys import (
    boundary_key,
    checkpoint_number,
    is_segment_uuid_of,
    manifest_prefix,
    parse_object_key,
    record_number,
    stream_prefix,
)
from formats.manifest import Boundary, Record, decode_record
from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.manifest.state import ManifestState
from offloader.store.base import CREATE, MAY_NOT_DELETE, IfMatch, ObjectInfo, ObjectStore, put_if

#: Keys of one delete request.
DELETE_KEYS_MAX = 1000
#: Version of the uuids that this project generates for segments.
_OWN_UUID_VERSION = 8


@dataclass(slots=True)
class ManifestObjects:
    """Objects under one incarnation's prefix.

    Attributes:
        records, checkpoints: by number.
        runs: by name.
        boundary: ``None`` if there is none.
        unknown: all other keys.
    """

    records: dict[int, ObjectInfo] = field(default_factory=dict)
    checkpoints: dict[int, ObjectInfo] = field(default_factory=dict)
    runs: dict[str, ObjectInfo] = field(default_factory=dict)
    boundary: ObjectInfo | None = None
    unknown: tuple[str, ...] = ()

    def known(self) -> list[ObjectInfo]:
        """All but the unknown ones, in a safe order of deletion: the boundary last."""
        records = (self.records[number] for number in sorted(self.records))
        last = [] if self.boundary is None else [self.boundary]
        return [*records, *self.checkpoints.values(), *self.runs.values(), *last]


def list_manifest(store: ObjectStore, stream: str, incarnation: UUID) -> ManifestObjects:
    """Lists one incarnation's manifest."""
    prefix = manifest_prefix(stream, incarnation)
    found = ManifestObjects()
    for info in listed(store, prefix):
        name = info.key[len(prefix) :]
        if info.key == boundary_key(stream, incarnation):
            found.boundary = info
        elif not is_manifest_object(name):
            found.unknown += (info.key,)
        elif (number := record_number(name)) is not None:
            found.records[number] = info
        elif (number := checkpoint_number(name)) is not None:
            found.checkpoints[number] = info
        else:
            found.runs[name] = info
    return found


def is_manifest_object(name: str) -> bool:
    """Whether this project writes objects of that name below an incarnation's prefix."""
    given = number_in(name) is not None or run_record_id(name) is not None
    return name == "boundary" or (given and "/" not in name)


def number_in(name: str) -> int | None:
    """The record number in the name of a record or a checkpoint; ``None`` for any other name."""
    record = record_number(name)
    return checkpoint_number(name) if record is None else record


def has_segment_of(store: ObjectStore, stream: str, incarnation: UUID, *, or_index: bool = False) -> bool:
    """Whether a data object, or also an index, of that incarnation lies below the stream's name."""
    found = (parse_object_key(info.key, stream) for info in listed(store, stream_prefix(stream)))
    known = (each.uuid for each in found if each is not None and (or_index or not each.is_index))
    return any(is_segment_uuid_of(uuid, incarnation) for uuid in known)


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
    return sorted(_boundaries(store, stream))


def unlisted_incarnation(store: ObjectStore, stream: str) -> UUID | None:
    """An incarnation with a boundary and a record or checkpoint. If no catalogue entry names it, its entry is lost.

    A boundary alone is from an overtaken creation of a stream, records alone from a writer of a stream deleted long
    ago.
    """
    return next((each for each, kinds in _boundaries(store, stream).items() if kinds == {True, False}), None)


def _boundaries(store: ObjectStore, stream: str) -> dict[UUID, set[bool]]:
    """Each incarnation with objects under its prefix: whether they are its boundary."""
    found: dict[UUID, set[bool]] = {}
    prefix = f"{stream_prefix(stream)}manifest/"
    for info in listed(store, prefix):
        name, separator, _ = info.key[len(prefix) :].partition("/")
        with suppress(ValueError):
            incarnation = UUID(name)
            if separator and str(incarnation) == name:
                found.setdefault(incarnation, set()).add(info.key == boundary_key(stream, incarnation))
    return found


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
        AccessDeniedError: the permission to delete one of them is missing.
        StoreUnavailableError: one of them wasn't deleted.
    """
    for start in range(0, len(keys), DELETE_KEYS_MAX):
        failures = store.delete(keys[start : start + DELETE_KEYS_MAX])
        if failures:
            kind, hint = (AccessDeniedError, MAY_NOT_DELETE) if failures[0].is_denied else (StoreUnavailableError, "")
            raise kind(f"{failures[0].key} in {store.url} couldn't be deleted: {failures[0].reason}", hint=hint)


REBUILD = "`offloader manifest rebuild` makes a new manifest from the objects"
#: Errors that ``unreadable`` returns.
Unreadable = (CorruptError, UnsupportedError)


class LostRecordsError(CorruptError):
    """Records of a manifest that certainly existed are missing."""


def unreadable(what: str, error: Exception, *, hint: str = REBUILD) -> OffloaderError:
    """The error to raise for an object that doesn't decode, or doesn't fit.

    Args:
        what: the object and its stream, for people.
        hint: what to do if it is damaged.
    """
    if isinstance(error, UnsupportedVersionError):
        return UnsupportedError(
            f"{what}: {error}", hint="a later release wrote this object: use that release; nothing was changed"
        )
    return CorruptError(f"{what}: {error}", hint=hint)


_Value = TypeVar("_Value")


def decoded(data: bytes, key: str, decode: Callable[..., _Value], what: str, *, hint: str = REBUILD) -> _Value:
    """Decodes an object with ``decode``; raises as ``unreadable`` if it can't."""
    try:
        return decode(data, object_name=key)
    except FormatError as error:
        raise unreadable(what, error, hint=hint) from error


def read_record(store: ObjectStore, stream: str, key: str, number: int) -> tuple[Record, ObjectInfo]:
    """A record of a manifest, and the description of its object.

    Raises:
        NotFoundError: it is missing.
        CorruptError, UnsupportedError: it can't be read.
    """
    data, info = store.get(key)
    return decoded(data, key, decode_record, f"manifest of stream {stream}, record {number}"), info


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
        NotFoundError: there is none: the stream is being created, or was deleted.
        CorruptError: it is damaged.
        UnsupportedError: a later release wrote it.
    """
    key = boundary_key(stream, incarnation)
    data, info = store.get(key)
    return StoredBoundary(decoded(data, key, Boundary.decode, f"the boundary of stream {stream}"), info.etag)


def create_boundary(store: ObjectStore, stream: str, incarnation: UUID, *, is_new: bool = False) -> bool:
    """Creates the first boundary unless there is one; returns whether there was none.

    Args:
        is_new: the caller created this incarnation: it can't have lost a boundary, so the check is skipped.

    Raises:
        CorruptError: there are records without a boundary: it was lost, and a new one would hide them.
    """
    if not is_new:
        with suppress(NotFoundError):
            store.head(boundary_key(stream, incarnation))
            return False
        require_no_records(store, stream, incarnation)
    return put_if(store, boundary_key(stream, incarnation), FIRST_BOUNDARY.encode(), CREATE)


def require_no_records(store: ObjectStore, stream: str, incarnation: UUID) -> ManifestObjects:
    """After a missing boundary: requires that no other manifest object exists. Returns what exists beside a boundary.

    A stream is created boundary first and deleted boundary last. The listing only distinguishes loss from creation; an
    object that it omits is never assumed deleted.

    Raises:
        CorruptError: there is an object, and no boundary appeared meanwhile.
    """
    found = list_manifest(store, stream, incarnation)
    if found.boundary is None and found.known():
        raise CorruptError(f"the boundary of stream {stream} is missing, but its records exist", hint=REBUILD)
    return found


def require_never_begun(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Whether the living incarnation, in which no record was found, never had one; False if it has one by now.

    Objects of segments are written after the records that assign them. If objects, listed first, exist, and a later
    read still finds neither record nor checkpoint, then these are lost.

    Raises:
        CorruptError: there are records and no boundary.
        LostRecordsError: there are segments and no record.
    """
    has_segment = has_segment_of(store, stream, incarnation)
    found = require_no_records(store, stream, incarnation)
    if not has_segment:
        return True
    if found.records or found.checkpoints:
        return False
    raise LostRecordsError(
        f"stream {stream} has segments of {incarnation} but no manifest record: the records are lost", hint=REBUILD
    )


def naming(boundary: Boundary, record_id: int, nonce: str) -> Boundary:
    """The boundary that names a record as committed, unless it names a later one already."""
    return boundary if record_id < boundary.newest_id else replace(boundary, newest_id=record_id, newest_nonce=nonce)


def name_record(store: ObjectStore, state: ManifestState, stored: StoredBoundary) -> bool:
    """Makes the boundary name the newest record of a view; False if it was replaced meanwhile.

    Raises:
        OutcomeUnknownError: the outcome is unknown.
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
        OutcomeUnknownError: the outcome is unknown. Harmless: the request can only land on ``stored``.
    """
    for name in ("first_kept_id", "checkpoint_id", "newest_id"):
        assert getattr(wanted, name) >= getattr(stored.boundary, name), "a boundary is never lowered"
    try:
        info = store.put(boundary_key(stream, incarnation), wanted.encode(), mode=IfMatch(stored.etag))
    except (PreconditionFailedError, OutcomeUnknownError) as error:
        with suppress(NotFoundError):
            found = read_boundary(store, stream, incarnation)
            if found.boundary == wanted:
                return found  # ours: the response was lost
            if found.etag == stored.etag and isinstance(error, OutcomeUnknownError):
                raise
        return None
    return StoredBoundary(wanted, info.etag)


#: Attempts to change a boundary while other processes change it too.
CHANGES_MAX = 10


def change_boundary(
    store: ObjectStore, stream: str, incarnation: UUID, change: Callable[[Boundary], Boundary]
) -> StoredBoundary:
    """Replaces the boundary by the result of ``change``; returns the boundary that is in the store then.

    Raises:
        NotFoundError, CorruptError, UnsupportedError: as ``read_boundary``.
        StoreUnavailableError: other processes changed it every time.
    """
    for _ in range(CHANGES_MAX):
        stored = read_boundary(store, stream, incarnation)
        wanted = change(stored.boundary)
        if wanted == stored.boundary:
            return stored
        if (raised := raise_boundary(store, stream, incarnation, stored, wanted)) is not None:
            return raised
    raise StoreUnavailableError(f"stream {stream}: other processes changed its boundary {CHANGES_MAX} times")
