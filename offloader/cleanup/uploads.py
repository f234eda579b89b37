"""Finding the unfinished uploads of a stream, also where a store finds them by their whole key only.

Owns which keys are asked for. Must never abort an upload.
"""

from __future__ import annotations

from collections.abc import Iterator

from formats.entries import Position
from formats.keys import data_key, stream_prefix
from formats.manifest import Assign, Rewrite
from offloader.errors import NotFound
from offloader.manifest.named_uuids import NamedUuids
from offloader.manifest.records import kept_records
from offloader.store.base import ObjectStore, UploadInfo

__all__ = ["uploads_below", "uploads_by_key"]


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
            for edit in record.edits:
                if isinstance(edit, Assign | Rewrite) and not names.is_open(edit.uuid):
                    key = data_key(names.stream, edit.uuid, _ledger_of(edit.layout, edit.begin))
                    yield from (upload for upload in store.list_uploads(key) if upload.key == key)
    except NotFound:
        # Records are being deleted at this moment: what they assigned is looked for the next time.
        return


def _ledger_of(layout: int, begin: Position) -> int | None:
    return begin.ledger_id if layout == 1 else None
