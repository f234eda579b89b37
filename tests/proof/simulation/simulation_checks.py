"""What must hold of a stream's bucket, whatever happened to it; each check answers what is wrong, or nothing.

It doesn't use the code that reads streams: it looks at the objects themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from formats.block import decode_block
from formats.entries import Position
from formats.keys import data_key, index_key, parse_object_key, record_number
from formats.manifest import Assign, Edit, LedgerClosed, Pause, Resume, decode_record
from formats.segment_map import SegmentMap
from offloader.errors import NotFoundError
from offloader.manifest.catalog import read_entry
from offloader.manifest.load import load_manifest_view
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectStore

__all__ = ["entries_in", "loaded", "stored_entries", "what_is_unaccounted", "what_is_unreadable"]

_BLOCK_BYTES_MAX = 2**30

#: Position and payload of entries, in the stream's order.
_Entries = Sequence[tuple[Position, bytes]]


def loaded(store: ObjectStore, stream: str) -> ManifestState | None:
    """The stream's manifest, loaded on this thread; ``None``: there is none."""
    entry = read_entry(store, stream)
    if entry is None:
        return None
    return load_manifest_view(store, stream, entry.incarnation, requests_max=1).state


def stored_entries(store: ObjectStore, state: ManifestState) -> list[tuple[Position, bytes]]:
    """Every entry of every offloaded segment up to the committed end, in the manifest's order: what is readable.

    Ledgers offloaded behind a gap that isn't recorded yet (the ledger method doesn't wait for it) aren't.

    Raises:
        NotFoundError: the manifest names what isn't there.
    """
    found: list[tuple[Position, bytes]] = []
    committed = state.committed_end()
    for segment in state.offloaded():
        if committed is None or segment.begin > committed:
            continue
        ledger_id = segment.v1_ledger_id
        data = store.get(data_key(state.stream, segment.uuid, ledger_id))[0]
        index = store.get(index_key(state.stream, segment.uuid, ledger_id))[0]
        found += entries_in(data, index, ledger_id)
    return found


def entries_in(data: bytes, index: bytes, ledger_id: int | None) -> list[tuple[Position, bytes]]:
    """The entries of one segment. Nobody may change the list: in a long run it is computed once."""
    found: list[tuple[Position, bytes]] = []
    for offset in SegmentMap.parse(index, ledger_id=ledger_id).blocks.offset.tolist():
        batch = decode_block(
            memoryview(data)[offset:],
            block_bytes_max=_BLOCK_BYTES_MAX,
            decompressed_bytes_max=_BLOCK_BYTES_MAX,
            ledger_id=ledger_id,
        )
        found += [(entry.position, entry.payload) for entry in batch.entries()]
    return found


def what_is_unreadable(
    store: ObjectStore,
    state: ManifestState,
    appended: _Entries,
    lost: Collection[Position],
    unheard: Collection[int],
    *,
    whole: bool,
) -> str:
    """Whether what is readable is what was appended, once and in order, but for gaps that are recorded.

    Args:
        appended: everything that was ever appended.
        lost: entries whose hot copy somebody deleted without asking: those alone may be in gaps.
        unheard: ledgers that were lost and may have been before any writer heard of them. When no record names such a
            ledger either, nobody can miss it: ledger ids aren't dense.
        whole: everything has to be there; else a part from the beginning.
    """
    try:
        stored = stored_entries(store, state)
    except NotFoundError as error:
        return f"the manifest names what isn't there: {error}"
    gaps = [(gap.first, gap.last) for gap in state.gaps]
    excused = set(unheard) - {position.ledger_id for position, _ in stored}
    if excused:
        excused -= _named_ledgers(store)
    expected = [
        entry
        for entry in appended
        if entry[0].ledger_id not in excused and not any(first <= entry[0] <= last for first, last in gaps)
    ]
    if stored != expected[: len(stored)]:
        return "what is readable isn't what was appended, once and in order"
    if whole and len(stored) != len(expected):
        return f"{len(stored)} of {len(expected)} entries are readable at rest"
    for first, last in gaps:
        inside = [position for position, _ in appended if first <= position <= last]
        kept = [position for position in inside if position not in lost]
        # How a ledger ended that is gone may be known to nobody: then a gap that held nothing is right.
        if kept or not any(first.ledger_id <= position.ledger_id <= last.ledger_id for position in lost):
            return f"{kept[0] if kept else first} is in a gap, and nobody lost it"
    return ""


def what_is_unaccounted(store: ObjectStore, state: ManifestState) -> str:
    """At rest: every object and upload is named by a record that assigned it before its first byte was sent, and while
    the stream wasn't paused; nothing is still promised; nothing that is complete has an upload left."""
    keys, edits = _all_keys(store), _edits(store)
    assigned = {edit.uuid for edit in edits if isinstance(edit, Assign)}
    in_a_pause = _assigned_in_a_pause(edits)
    if in_a_pause is not None:
        return f"{in_a_pause} was assigned while the stream was paused"
    uploads = [upload.key for upload in store.list_uploads("")]
    offloaded = {segment.uuid for segment in state.offloaded()}
    for key in [*keys, *uploads]:
        named = parse_object_key(key, state.stream)
        if named is not None and named.uuid not in assigned:
            return f"{key} is unaccounted for"
    for key in uploads:
        named = parse_object_key(key, state.stream)
        if named is not None and named.uuid in offloaded:
            return f"an upload of {key} is left over, which is complete"
    left = state.assigned()
    return f"{left[0].uuid} is assigned at rest" if left else ""


def _assigned_in_a_pause(edits: Sequence[Edit]) -> UUID | None:
    paused = False
    for edit in edits:
        paused = isinstance(edit, Pause) or (paused and not isinstance(edit, Resume))
        if paused and isinstance(edit, Assign):
            return edit.uuid
    return None


def _edits(store: ObjectStore) -> list[Edit]:
    bodies = [store.get(key)[0] for key in _all_keys(store) if record_number(key) is not None]
    return [edit for body in bodies for edit in decode_record(body).edits]


def _named_ledgers(store: ObjectStore) -> set[int]:
    """Ledgers that some record says to have had entries."""
    edits = _edits(store)
    begins = {edit.begin.ledger_id for edit in edits if isinstance(edit, Assign)}
    return begins | {edit.ledger_id for edit in edits if isinstance(edit, LedgerClosed) and edit.last_entry_id >= 0}


def _all_keys(store: ObjectStore) -> list[str]:
    keys: list[str] = []
    after: str | None = ""
    while after is not None:
        page = store.list("", after=after)
        keys += [info.key for info in page.objects]
        after = page.next_after
    return keys
