"""What must hold of a stream that is truncated, swept and deleted; each check answers what is wrong, or nothing.

It doesn't use the code that decides or deletes: it looks at the bucket and at what was appended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from formats.documents import lease_prefix
from formats.entries import Position
from formats.keys import parse_object_key, stream_prefix
from offloader.errors import NotFoundError
from offloader.manifest.boundary import listed
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectStore
from tests.proof.simulation.simulation_checks import stored_entries

__all__ = ["named_keys", "what_is_left", "what_is_unreadable_after_head", "what_should_be_gone"]

#: Position and payload of entries, in the stream's order.
_Entries = Sequence[tuple[Position, bytes]]


def named_keys(state: ManifestState) -> set[str]:
    """Keys of the objects that a manifest counts on, of retired segments too.

    Nobody may change the set: in a long run it is computed once.
    """
    return {
        key
        for segment in state.segments.in_order()
        if segment.summary is not None
        for key in segment.object_keys(state.stream)
    }


def what_is_unreadable_after_head(store: ObjectStore, state: ManifestState, appended: _Entries, *, whole: bool) -> str:
    """Whether what is readable is what was appended from the head on, once and in order.

    Args:
        appended: everything that was ever appended.
        whole: everything has to be there; else a part from the head on.
    """
    try:
        stored = stored_entries(store, state)
    except NotFoundError as error:
        return f"the manifest names what isn't there: {error}"
    if state.gaps:
        return f"a gap was recorded at {state.gaps[0].first}, and nobody lost anything"
    head = state.head or Position(0, 0)
    stored = [entry for entry in stored if entry[0] >= head]
    expected = [entry for entry in appended if entry[0] >= head]
    if stored != expected[: len(stored)]:
        return f"what is readable from {head} on isn't what was appended, once and in order"
    if whole and len(stored) != len(expected):
        return f"{len(stored)} of {len(expected)} entries from {head} on are readable at rest"
    return ""


def what_is_left(store: ObjectStore, stream: str, state: ManifestState | None, foreign: Collection[str]) -> str:
    """After quiet time: the objects are exactly those that the manifest names, and there is nothing else below the
    stream but what belongs to the living incarnation and ``foreign``.

    Args:
        state: the manifest; ``None``: the stream was deleted.
    """
    there = {info.key for info in listed(store, stream_prefix(stream))}
    gone = set(foreign) - there
    if gone:
        return f"{min(gone)} was somebody else's and is gone"
    there -= set(foreign)
    uploads = store.list_uploads("")
    if uploads:
        return f"an upload of {uploads[0].key} is left over"
    leases = sorted(key for key in there if key.startswith(lease_prefix(stream)))
    if leases:
        return f"{leases[0]} is left over"
    if state is None:
        return f"{min(there)} is left of a stream that was deleted" if there else ""
    objects = {key for key in there if parse_object_key(key, stream) is not None}
    named = named_keys(state)
    if objects != named:
        left, missing = sorted(objects - named), sorted(named - objects)
        return f"{left[0]} is left over" if left else f"the manifest names {missing[0]}, which isn't there"
    manifests = f"{stream_prefix(stream)}manifest/"
    other = sorted(k for k in there if k.startswith(manifests) and f"/{state.incarnation}/" not in k)
    return f"{other[0]} is left of an incarnation that is gone" if other else ""


def what_should_be_gone(state: ManifestState | None) -> str:
    """After rounds of cleanup in quiet time: nothing is kept that lies before the head, or is retired."""
    if state is None or state.head is None:
        return ""
    kept = [each for each in state.segments.values() if each.end is not None and each.end < state.head]
    kept += [each for each in state.segments.retired() if each not in kept]
    return f"segment {kept[0].uuid}, before the head {state.head} or retired, is still kept" if kept else ""
