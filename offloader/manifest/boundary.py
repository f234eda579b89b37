"""The boundary object: which records are kept, which checkpoint is the newest.

Owns reading, creating and raising it. Must never lower a number in it, nor write it without the ETag of what was read.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from formats.errors import FormatError
from formats.keys import boundary_key
from formats.manifest import Boundary, decode_boundary, encode_boundary
from offloader.errors import Corrupt, NotFound, OutcomeUnknown, PreconditionFailed
from offloader.manifest.objects import list_manifest
from offloader.manifest.unreadable import REBUILD, unreadable
from offloader.store.base import CREATE, IfMatch, ObjectStore

__all__ = [
    "FIRST_BOUNDARY",
    "GIVEN_UP_ID",
    "StoredBoundary",
    "create_boundary",
    "raise_boundary",
    "read_boundary",
    "require_no_records",
]

#: First kept id of a manifest that was given up: no number of it counts any more.
GIVEN_UP_ID = 2**62
FIRST_BOUNDARY = Boundary(first_kept_id=1, checkpoint_id=0, checkpoint_crc32c=0)


class StoredBoundary(NamedTuple):
    """A boundary as it was read, and the ETag that a change must match."""

    boundary: Boundary
    etag: str


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


def require_no_records(store: ObjectStore, stream: str, incarnation: UUID) -> None:
    """After a boundary wasn't there: nothing else of the manifest is either.

    A stream is created boundary first and deleted boundary last. The listing only tells loss from creation; what it
    doesn't show is never taken for gone.

    Raises:
        Corrupt: something is, and no boundary appeared meanwhile.
    """
    found = list_manifest(store, stream, incarnation)
    if found.boundary is None and found.known():
        raise Corrupt(f"the boundary of stream {stream} is missing, its records are there", hint=REBUILD)


def raise_boundary(
    store: ObjectStore, stream: str, incarnation: UUID, stored: StoredBoundary, wanted: Boundary
) -> StoredBoundary | None:
    """Replaces ``stored`` by ``wanted``; ``None`` when something else stands there by now.

    Raises:
        OutcomeUnknown: the store doesn't tell. Harmless: the request can only land on ``stored``.
    """
    assert wanted.first_kept_id >= stored.boundary.first_kept_id, "a boundary is never lowered"
    assert wanted.checkpoint_id >= stored.boundary.checkpoint_id, "a boundary is never lowered"
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
