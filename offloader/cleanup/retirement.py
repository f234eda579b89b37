"""What the store says of retired segments: since when they are, and which readers may still need them.

Owns the order that makes leases sound: they are listed after the record that retired is durable, and exactly those are
waited for. Must never take a retirement for older than it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from formats.deletion_record import (
    AwaitedReaders,
    awaited_key,
    awaited_number,
    awaited_prefix,
    decode_awaited,
    encode_awaited,
)
from formats.errors import FormatError
from formats.keys import record_key
from formats.manifest import decode_record
from offloader.cleanup.plan import Retired, RetiredFacts
from offloader.errors import NotFound
from offloader.manifest.leases import LeaseInfo, leases_of
from offloader.manifest.objects import delete_keys, list_manifest, listed
from offloader.manifest.state import ManifestState
from offloader.manifest.unreadable import unreadable
from offloader.store.base import ObjectStore

__all__ = ["forget_readers", "note_readers", "retired_facts"]


def retired_facts(
    store: ObjectStore, state: ManifestState, groups: Sequence[Retired], *, now_ms: int, grace_ms: int, notes: bool
) -> Mapping[int, RetiredFacts]:
    """What is known of retirements; of those that are younger than the first one in its grace period, nothing.

    Args:
        groups: the oldest first, from a view that is durable.
        now_ms: by the earlier clock.
        notes: write down which readers are waited for from now on; False: write nothing.
    """
    found: dict[int, RetiredFacts] = {}
    live: Mapping[UUID, str] | None = None
    for group in groups:
        retired_ms = _retired_ms(store, state, group.record_id)
        if retired_ms is None or now_ms < retired_ms + grace_ms:
            found[group.record_id] = RetiredFacts(retired_ms)
            break
        # One listing is enough: all these records were durable before it.
        live = _live(leases_of(store, state.stream), now_ms) if live is None else live
        found[group.record_id] = RetiredFacts(retired_ms, _awaited(store, state, group.record_id, live, notes=notes))
    return found


def note_readers(store: ObjectStore, state: ManifestState, retire_records: Sequence[int], *, now_ms: int) -> None:
    """Writes down who reads the stream now, for retirements that have just become durable.

    Without it who reads when the grace period is over is waited for, be it somebody who came later.
    """
    if not retire_records:
        return
    live = _live(leases_of(store, state.stream), now_ms)
    if live:
        for number in retire_records:
            _write(store, state, number, live)


def forget_readers(store: ObjectStore, state: ManifestState, groups: Sequence[Retired]) -> None:
    """Deletes the lists of readers of retirements that are over."""
    kept = {group.record_id for group in groups}
    names = [(info.key, awaited_number(info.key, state.stream)) for info in listed(store, awaited_prefix(state.stream))]
    # A record that is newer than this view may have retired something by now.
    gone = [key for key, number in names if number is not None and number <= state.record_id and number not in kept]
    if gone:
        delete_keys(store, gone)


def _retired_ms(store: ObjectStore, state: ManifestState, record_id: int) -> int | None:
    """When a record was written, at the latest: the later of what its writer's clock and the store's said."""
    key = record_key(state.stream, state.incarnation, record_id)
    try:
        data, info = store.get(key)
    except NotFound:
        # Folded into a checkpoint that was written later and is kept.
        checkpoints = list_manifest(store, state.stream, state.incarnation).checkpoints
        later = [number for number in checkpoints if number >= record_id]
        return checkpoints[min(later)].modified_ms if later else None
    try:
        return max(decode_record(data, object_name=key).time_ms, info.modified_ms)
    except FormatError as error:
        raise unreadable(f"manifest of stream {state.stream}, record {record_id}", error) from error


def _live(leases: Sequence[LeaseInfo], now_ms: int) -> dict[UUID, str]:
    """Leases that haven't ended by the earlier clock; one that can't be read doesn't end by itself."""
    return {
        lease.uuid: lease.reader or f"the unreadable lease {lease.uuid}"
        for lease in leases
        if lease.ends_ms is None or lease.ends_ms >= now_ms
    }


def _awaited(
    store: ObjectStore, state: ManifestState, record_id: int, live: Mapping[UUID, str], *, notes: bool
) -> Sequence[str]:
    """Who has to be waited for: of those that were there after the record, the ones that still are."""
    if not live:
        return ()
    noted = _noted(store, state, record_id)
    if noted is None:
        if notes:
            _write(store, state, record_id, live)
        return sorted(live.values())
    return sorted(live[uuid] for uuid in noted if uuid in live)


def _noted(store: ObjectStore, state: ManifestState, record_id: int) -> Sequence[UUID] | None:
    key = awaited_key(state.stream, record_id)
    try:
        found = decode_awaited(store.get(key)[0], object_name=key)
    except NotFound:
        return None
    except FormatError as error:
        raise unreadable(f"the list of readers {key}", error) from error
    # Of a stream of that name that was deleted: its readers aren't ours.
    return found.leases if (found.incarnation, found.retire_record) == (state.incarnation, record_id) else None


def _write(store: ObjectStore, state: ManifestState, record_id: int, live: Mapping[UUID, str]) -> None:
    awaited = AwaitedReaders(state.incarnation, record_id, tuple(sorted(live)))
    # Whoever writes it listed the leases after the record was durable: each such list is right.
    store.put(awaited_key(state.stream, record_id), encode_awaited(awaited))
