"""A stream's manifest as it was at one of its records.

Owns re-running an old view. Must never present a view whose objects may be gone.
"""

from __future__ import annotations

from uuid import UUID

from formats.errors import FormatError
from formats.keys import record_key
from formats.manifest import decode_record
from offloader.errors import Corrupt, InvalidCall, NotFound, Trimmed
from offloader.manifest.apply import fold
from offloader.manifest.log import load_manifest
from offloader.manifest.state import EditRefused, ManifestState, SegmentStatus
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
    state = ManifestState(stream=stream, incarnation=newest.incarnation)
    while state.record_id < record_id:
        key = record_key(stream, state.incarnation, state.record_id + 1)
        try:
            state = fold(state, decode_record(store.get(key)[0], object_name=key))
        except NotFound as error:
            raise InvalidCall(
                f"stream {stream}: record {record_id} can't be pinned: manifest record {state.record_id + 1} is gone",
                hint=f"the newest record is {newest.record_id}",
            ) from error
        except (FormatError, EditRefused) as error:
            raise Corrupt(f"manifest of stream {stream}, record {state.record_id + 1}: {error}") from error
    gone = [s for s in state.offloaded() if not _is_offloaded(newest, s.uuid)]
    if gone:
        raise Trimmed(
            f"stream {stream}: {len(gone)} segments of manifest record {record_id} were retired since, first "
            f"{gone[0].uuid} ({gone[0].begin}..{gone[0].end})",
            first_available=newest.first_position(),
            hint="pin a later record",
        )
    return state


def _is_offloaded(state: ManifestState, uuid: UUID) -> bool:
    record = state.segments.get(uuid)
    return record is not None and record.status is SegmentStatus.OFFLOADED
