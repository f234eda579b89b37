"""Delete a whole stream: objects, uploads and all documents beside its manifest."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from formats.checkpoint import AssignedSegment
from formats.documents import incarnation_of_retention_key, intent_key, lease_uuid, retention_prefix, topic_key
from formats.keys import data_key, is_segment_uuid_of, parse_object_key, stream_prefix
from offloader.errors import InvalidCallError, NotFoundError, StoreUnavailableError
from offloader.gc.reconcile import uploads_of_deleted
from offloader.manifest.boundary import DELETE_KEYS_MAX, delete_keys, listed
from offloader.manifest.catalog import read_entry, require_entry
from offloader.manifest.load import load_manifest
from offloader.manifest.maintenance import StreamDeletion, delete_stream
from offloader.manifest.protection import DeletionClock, live_readers, require_no_global_hold
from offloader.manifest.segment_table import SegmentRecord, is_at_root
from offloader.manifest.state import ManifestState
from offloader.runtime.clock import Clock
from offloader.settings import ManifestSettings
from offloader.store.base import ObjectStore, UploadInfo
from offloader.store.probe import finds_uploads_by_prefix

#: Listings repeated because new objects arrived.
ROUNDS_MAX = 10


@dataclass(slots=True, kw_only=True)
class StreamRemoval:
    """Objects that deleting a stream removes, or has removed.

    Attributes:
        objects, object_bytes: of segments, and of documents beside the manifest.
        uploads: unfinished ones.
        readers: holders of leases.
        foreign: keys below the stream that don't belong to this project; they are kept.
        adopted: segments whose objects don't belong to this project; they are kept.
        deletion: its progress; ``None``: not begun.
    """

    stream: str
    objects: int = 0
    object_bytes: int = 0
    uploads: int = 0
    readers: Sequence[str] = ()
    foreign: list[str] = field(default_factory=list)
    adopted: int = 0
    deletion: StreamDeletion | None = None


def removal_of(store: ObjectStore, stream: str, *, now_ms: int) -> StreamRemoval:
    """The objects that deleting a stream would remove. Writes nothing. Raises ``NotFoundError``: no such stream."""
    state = load_manifest(store, stream)
    found = StreamRemoval(
        stream=stream, adopted=_adopted(state), readers=sorted(live_readers(store, stream, now_ms).values())
    )
    for key, size_bytes, ours in _objects(store, state):
        if ours:
            found.objects += 1
            found.object_bytes += size_bytes
        else:
            found.foreign.append(key)
    found.uploads = len(_ours_of(_listed_uploads(store, state), state))
    return found


def remove_stream(
    store: ObjectStore,
    stream: str,
    *,
    clock: Clock,
    settings: ManifestSettings = ManifestSettings(),
    deletion_clock: DeletionClock | None = None,
    ignore_leases: bool = False,
    entropy: Callable[[int], bytes] = os.urandom,
) -> StreamRemoval:
    """Delete a stream as far as safe now; call again after ``orphan_age_min`` to finish.

    Args:
        ignore_leases: ignore leases.

    Raises:
        NotFoundError: no such stream.
        InvalidCallError: a reader holds a lease.
        EditRefusedError: it is on hold.
        DeletionStoppedError: all deletion in the store is stopped.
        ClockSkewError: the clocks can't be trusted.
        StoreUnavailableError, OutcomeUnknownError: call it again.
    """
    require_no_global_hold(store)
    times = deletion_clock or DeletionClock(store, clock, skew_ms_max=settings.clock_skew_max * 1000)
    now_ms = times.now_ms()
    require_entry(store, stream)
    done = StreamRemoval(stream=stream, readers=sorted(live_readers(store, stream, now_ms).values()))
    if done.readers and not ignore_leases:
        raise InvalidCallError(
            f"stream {stream} is being read by {', '.join(done.readers)}",
            hint="wait until they have finished, or use --ignore-leases",
        )

    done.deletion = delete_stream(
        *(store, stream),
        clock=clock,
        delete_objects=lambda state: _delete_everything(store, state, done, entropy),
        settings=settings,
        entropy=entropy,
    )
    return done


def _delete_everything(
    store: ObjectStore, state: ManifestState, done: StreamRemoval, entropy: Callable[[int], bytes]
) -> None:
    """Delete until a listing shows no object of this project."""
    done.adopted = _adopted(state)
    by_prefix = finds_uploads_by_prefix(store, entropy=entropy)
    for _ in range(ROUNDS_MAX):
        failed = () if by_prefix else uploads_of_deleted(store, state.stream, state.incarnation)
        for upload in _ours_of(itertools.chain(_listed_uploads(store, state), failed), state):
            store.abort_upload(upload.key, upload.upload_id)
            done.uploads += 1
        done.foreign.clear()
        keys: list[str] = []
        objects_before = done.objects
        for key, size_bytes, ours in _objects(store, state):
            if not ours:
                done.foreign.append(key)
                continue
            keys.append(key)
            done.objects += 1
            done.object_bytes += size_bytes
            if len(keys) == DELETE_KEYS_MAX:
                _delete_listed(store, state, keys)
                keys.clear()
        _delete_listed(store, state, keys)
        if done.objects == objects_before:
            return
    raise StoreUnavailableError(f"stream {state.stream}: new objects kept arriving during the deletion")


def _delete_listed(store: ObjectStore, state: ManifestState, keys: Sequence[str]) -> None:
    """Delete objects listed while this incarnation was the deleted one, unless all deletion was stopped since.

    The keys of leases and documents beside the manifest don't show the incarnation. This listing is older than a
    recreated stream, so it has none of its keys.
    """
    require_no_global_hold(store)
    if (entry := read_entry(store, state.stream)) is None or entry.incarnation != state.incarnation:
        raise NotFoundError(f"stream {state.stream} was deleted by another process")
    delete_keys(store, keys)


def _objects(store: ObjectStore, state: ManifestState) -> Iterator[tuple[str, int, bool]]:
    """Key, size and ownership of every object of a stream except its manifest."""
    prefix = stream_prefix(state.stream)
    for info in listed(store, prefix):
        if not info.key.startswith(f"{prefix}manifest/") and not _is_of_others(info.key, state):
            yield info.key, info.size_bytes, _is_ours(info.key, state)
    for segment in state.segments.in_order():
        if segment.owned and segment.summary is not None and is_at_root(segment.driver):
            sizes = segment.summary.data_bytes, segment.summary.index_bytes
            for key, size_bytes in zip(segment.object_keys(state.stream), sizes, strict=True):
                with suppress(NotFoundError):
                    store.head(key)
                    yield key, size_bytes, True


def _is_of_others(key: str, state: ManifestState) -> bool:
    """Whether a key belongs to another incarnation, or to a partitioned topic of that name.

    Documents name their incarnation, so a late deletion doesn't remove those of a recreated stream. ``release_topic``
    removes a topic's documents after checking that no partition is live.
    """
    found = incarnation_of_retention_key(key, state.stream)
    return found not in (None, state.incarnation) or key in (topic_key(state.stream), intent_key(state.stream))


def _is_ours(key: str, state: ManifestState) -> bool:
    stream = state.stream
    # These two folder names are reserved: no stream and no other program has objects there.
    if key.startswith(retention_prefix(stream)) or lease_uuid(key, stream) is not None:
        return True
    if (parsed := parse_object_key(key, stream)) is None:
        return False
    segment = state.segments.get(parsed.uuid)
    if segment is not None and key in segment.object_keys(stream):
        return segment.owned
    return is_segment_uuid_of(parsed.uuid, state.incarnation) or (
        parsed.is_fill and any(fill.uuid == parsed.uuid for fill in state.fills)
    )


def _listed_uploads(store: ObjectStore, state: ManifestState) -> Iterator[UploadInfo]:
    # Some servers find an upload by its exact key only.
    promised: list[SegmentRecord | AssignedSegment] = [*state.assigned(), *state.rewrites]
    keys = (data_key(state.stream, each.uuid, each.begin.ledger_id if each.layout == 1 else None) for each in promised)
    return itertools.chain.from_iterable(map(store.list_uploads, [stream_prefix(state.stream), *keys]))


def _ours_of(uploads: Iterable[UploadInfo], state: ManifestState) -> Collection[UploadInfo]:
    """Each upload once, if its name proves that it is of this incarnation."""
    return {
        upload.upload_id: upload
        for upload in uploads
        if (key := parse_object_key(upload.key, state.stream)) and is_segment_uuid_of(key.uuid, state.incarnation)
    }.values()


def _adopted(state: ManifestState) -> int:
    return int((~state.segments.in_order().owned()).sum())
