"""Whether a segment's two objects are in the store as the manifest says.

Owns that question. Must never trust what a writer remembers of its upload.
"""

from __future__ import annotations

from uuid import UUID

from formats.keys import data_key, index_key
from formats.segment import Layout, SegmentSummary
from offloader.errors import NotFound, ObjectChanged, ObjectMissing
from offloader.store.base import ObjectStore

__all__ = ["confirm_stored"]


def confirm_stored(
    store: ObjectStore, stream: str, uuid: UUID, summary: SegmentSummary, *, at_root: bool = False
) -> tuple[str, str]:
    """Asks the store for both objects and compares their lengths with the recorded ones; their keys.

    Args:
        at_root: whether they are where Pulsar puts them, see ``SegmentRecord.object_keys``.

    Raises:
        ObjectMissing: one of them isn't there.
        ObjectChanged: one of them has another length.
    """
    ledger_id = summary.begin.ledger_id if summary.layout is Layout.V1 else None
    folder = "" if at_root else stream
    keys = data_key(folder, uuid, ledger_id), index_key(folder, uuid, ledger_id)
    for key, size_bytes in zip(keys, (summary.data_bytes, summary.index_bytes), strict=True):
        try:
            found = store.head(key).size_bytes
        except NotFound as cause:
            raise ObjectMissing(f"{key} isn't in {store.url}, which segment {uuid} of {stream} needs") from cause
        if found != size_bytes:
            raise ObjectChanged(f"{key} in {store.url} has {found} bytes, {size_bytes} were recorded")
    return keys
