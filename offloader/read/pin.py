"""A stream's manifest as it was at one of its records.

Owns re-running an old view. Must never present a view whose objects may be gone.
"""

from __future__ import annotations

from offloader.errors import InvalidCall, Trimmed
from offloader.manifest.load import load_manifest, load_manifest_view_at
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectStore

__all__ = ["load_manifest_at"]


def load_manifest_at(store: ObjectStore, stream: str, record_id: int) -> ManifestState:
    """The view of ``stream`` after record ``record_id``, and nothing later.

    Raises:
        NotFound: no such stream.
        InvalidCall: the manifest hasn't got that far, or that record was folded into a checkpoint.
        Trimmed: segments of that view were retired since.
        Corrupt: a record is damaged.
    """
    newest = load_manifest(store, stream)
    if record_id > newest.record_id:
        raise InvalidCall(
            f"stream {stream}: the manifest ends at record {newest.record_id}, {record_id} doesn't exist yet"
        )
    state = load_manifest_view_at(store, newest, record_id)
    gone = state.offloaded().not_in(newest.offloaded())
    if gone:
        raise Trimmed(
            f"stream {stream}: {len(gone)} segments of manifest record {record_id} were retired since, first "
            f"{gone[0].uuid} ({gone[0].begin}..{gone[0].end})",
            first_available=newest.first_position(),
            hint="pin a later record",
        )
    return state
