"""Finding the unfinished uploads of a stream, also where a store finds them by their whole key only.

Owns which keys are asked for. Must never abort an upload.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from formats.entries import Position
from formats.errors import FormatError
from formats.keys import data_key, stream_prefix
from formats.manifest import Assign, Record, Rewrite, decode_record
from offloader.errors import NotFound
from offloader.manifest.named_uuids import NamedUuids
from offloader.manifest.objects import list_manifest
from offloader.manifest.records import kept_records
from offloader.manifest.unreadable import unreadable
from offloader.store.base import ObjectStore, UploadInfo

__all__ = ["uploads_below", "uploads_by_key", "uploads_of_deleted"]


def uploads_below(store: ObjectStore, stream: str) -> list[UploadInfo]:
    """The uploads that the store finds below the stream's prefix."""
    return list(store.list_uploads(stream_prefix(stream)))


def uploads_by_key(store: ObjectStore, names: NamedUuids) -> Iterator[UploadInfo]:
    """The uploads of every segment that a kept record assigned, but for those that are still promised.

    Records are kept for ``orphan_age_hours_min`` and longer, so what a failed attempt left is looked for when it is old
    enough to be aborted; what was begun under a name long after that had failed isn't found.
    """
    try:
        for record in kept_records(store, names):
            for uuid, key in _assigned_by(record, names.stream):
                if not names.is_open(uuid):
                    yield from (upload for upload in store.list_uploads(key) if upload.key == key)
    except NotFound:
        # Records are being deleted at this moment: what they assigned is looked for the next time.
        return


def uploads_of_deleted(store: ObjectStore, stream: str, incarnation: UUID) -> Iterator[UploadInfo]:
    """The uploads of every segment that a record assigned which is still there, below the boundary too.

    Raises:
        Corrupt: a record is damaged.
    """
    for number, info in sorted(list_manifest(store, stream, incarnation).records.items()):
        try:
            record = decode_record(store.get(info.key)[0], object_name=info.key)
        except NotFound:
            continue  # somebody else deletes the stream, and has got further
        except FormatError as error:
            raise unreadable(f"manifest of stream {stream}, record {number}", error) from error
        for _, key in _assigned_by(record, stream):
            yield from (upload for upload in store.list_uploads(key) if upload.key == key)


def _assigned_by(record: Record, stream: str) -> Iterator[tuple[UUID, str]]:
    """Uuid and key of the data object of each segment that a record promises."""
    for edit in record.edits:
        if isinstance(edit, Assign | Rewrite):
            yield edit.uuid, data_key(stream, edit.uuid, _ledger_of(edit.layout, edit.begin))


def _ledger_of(layout: int, begin: Position) -> int | None:
    return begin.ledger_id if layout == 1 else None
