"""The boundary object: which records are kept, which checkpoint is the newest.

Owns reading, creating and raising it. Must never lower a number in it, nor write it without the ETag of what was read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from formats.errors import FormatError
from formats.keys import boundary_key
from formats.manifest import Boundary, decode_boundary, encode_boundary
from offloader.errors import Corrupt, NotFound, OutcomeUnknown, PreconditionFailed
from offloader.manifest.objects import ManifestObjects, has_segment_of, list_manifest
from offloader.manifest.state import ManifestState
from offloader.manifest.unreadable import REBUILD, LostRecords, unreadable
from offloader.store.base import CREATE, IfMatch, ObjectStore

__all__ = [
    "FIRST_BOUNDARY",
    "GIVEN_UP_ID",
    "StoredBoundary",
    "create_boundary",
    "name_record",
    "naming",
    "put_given_up",
    "raise_boundary",
    "read_boundary",
    "require_never_begun",
    "require_no_records",
]

#: First kept id of a manifest that was given up: no number of it counts any more.
GIVEN_UP_ID = 2**62
FIRST_BOUNDARY = Boundary(first_kept_id=1, checkpoint_id=0, checkpoint_crc32c=0)


class StoredBoundary(NamedTuple):
    """A boundary as it was read, and the ETag that a change must match."""

    boundary: Boundary
    etag: str

    def contradicts(self, record_id: int, nonce: str) -> bool:
        """Whether it names this record's number, or a later one, and doesn't say that the record was this one."""
        newest = self.boundary.newest_id, self.boundary.newest_nonce
        return 0 < record_id <= newest[0] and newest != (record_id, nonce)


def read_boundary(store: ObjectStore, stream: str, incarnation: UUID) -> StoredBoundary:
    """The boundary now.

    Raises:
        NotFound: there is none: the stream is only being created, or was deleted.
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
    """Creates the first boundary unless there is one; whether there was none.

    Args:
        is_new: the caller made this incarnation: it can't have lost a boundary, so that nobody has to look for one.

    Raises:
        Corrupt: there is none, and yet there are records: it was lost, and a first one would forget what they say.
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
    """Makes a boundary that says that the manifest was given up, where none is; False: there is one by now."""
    given_up = replace(FIRST_BOUNDARY, first_kept_id=GIVEN_UP_ID)
    try:
        store.put(boundary_key(stream, incarnation), encode_boundary(given_up), mode=CREATE)
    except PreconditionFailed:
        return False
    return True


def require_no_records(store: ObjectStore, stream: str, incarnation: UUID) -> ManifestObjects:
    """After a boundary wasn't there: nothing else of the manifest is either. What is there, where a boundary is.

    A stream is created boundary first and deleted boundary last. The listing only tells loss from creation; what it
    doesn't show is never taken for gone.

    Raises:
        Corrupt: something is, and no boundary appeared meanwhile.
    """
    found = list_manifest(store, stream, incarnation)
    if found.boundary is None and found.known():
        raise Corrupt(f"the boundary of stream {stream} is missing, its records are there", hint=REBUILD)
    return found


def require_never_begun(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Of the living incarnation, in which no record was found: True: none ever was; False: there is one by now.

    Objects of segments come after the records that assign them. So when there are objects, listed first, and still no
    record and no checkpoint, read after, then these are lost.

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
    """The boundary that says that a record certainly existed, unless it names a later one already."""
    if record_id < boundary.newest_id:
        return boundary
    return replace(boundary, newest_id=record_id, newest_nonce=nonce)


def name_record(store: ObjectStore, state: ManifestState, stored: StoredBoundary) -> bool:
    """Makes the boundary name the newest record of a view; False: it is another one by now.

    Raises:
        OutcomeUnknown: the store doesn't tell.
    """
    wanted = naming(stored.boundary, state.record_id, state.nonce)
    if wanted == stored.boundary:
        return True
    return raise_boundary(store, state.stream, state.incarnation, stored, wanted) is not None


def raise_boundary(
    store: ObjectStore, stream: str, incarnation: UUID, stored: StoredBoundary, wanted: Boundary
) -> StoredBoundary | None:
    """Replaces ``stored`` by ``wanted``; ``None`` when something else stands there by now.

    Raises:
        OutcomeUnknown: the store doesn't tell. Harmless: the request can only land on ``stored``.
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
            return found  # ours: the answer was lost
        if found.etag == stored.etag and isinstance(error, OutcomeUnknown):
            raise
        return None
    return StoredBoundary(wanted, info.etag)
