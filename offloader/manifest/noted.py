"""Compares a stream's manifest with the notes of its hot tier, to detect a store that the stream isn't committed to.

A hot tier with an identity keeps the incarnation of every manifest that the stream was committed to, and the newest
record that it relies on: of its newest start, and of each release of hot copies. An entry may have left the hot tier
because of such a record. A store without that manifest is a different store, or was emptied, isn't mounted, or was
restored to an earlier state. A writer that continued there would silently omit those entries. A writer is therefore
refused before it creates or commits anything, and a reader of both tiers before the first entry, until an operator
accepts the store.

The notes of a source are read before the manifest, which may only advance in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from offloader.errors import NotFoundError, StoreMismatchError
from offloader.ledgers.base import NotingSource, ReadableLedgers, identified, noting
from offloader.manifest.catalog import is_released, read_entry, require_can_create
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectStore

#: Incarnations that a source was committed to, each with the newest noted record; the newest incarnation last.
Noted = Sequence[tuple[UUID, int]]


def noted_by(source: ReadableLedgers | None) -> Noted:
    """The notes of a source; empty: it has none, or keeps no notes."""
    notes = noting(source)
    return [] if notes is None else notes.noted_manifests()


def store_mismatch(state: ManifestState | None, noted: Noted, replaced: Sequence[UUID] = ()) -> str:
    """Why a stream's manifest isn't the one that a source was committed to; empty: it is. Does no I/O.

    Args:
        state: ``None``: the store has no manifest of the stream.
        replaced: incarnations that it was rebuilt from.
    """
    if not noted:
        return ""
    newest, record_id = noted[-1]
    if state is None:
        return f"the store has no manifest of the stream, which was committed to {newest}, up to record {record_id}"
    if (seen := dict(noted).get(state.incarnation, 0)) > state.record_id:
        return (
            f"its manifest, {state.incarnation}, ends with record {state.record_id}, but the hot tier saw record "
            f"{seen}: the store was restored from a backup, or records were lost"
        )
    if state.incarnation == newest or newest in replaced:
        return ""
    if seen:
        return (
            f"its manifest, {state.incarnation}, is older than {newest}, to which the stream was committed since: the "
            "store was restored to an earlier state"
        )
    return f"its manifest is {state.incarnation}, but the stream was committed to {newest}"


def replaced_by(store: ObjectStore, state: ManifestState) -> Sequence[UUID]:
    """The incarnations that a manifest was rebuilt from."""
    entry = read_entry(store, state.stream)
    return () if entry is None or entry.incarnation != state.incarnation else entry.replaces


def require_noted(
    store: ObjectStore, state: ManifestState, source: ReadableLedgers | NotingSource | None, noted: Noted
) -> None:
    """Compares a manifest with what ``source`` noted before the manifest was read.

    A manifest without a note is accepted if it knows a start of this very source: the process ended between the record
    and the note. A manifest of another source isn't compared here, because another check refuses it with a more
    specific error.

    Raises:
        StoreMismatchError: it is another manifest, or an older state of it.
    """
    if not store_mismatch(state, noted):
        return
    identity, known = identified(source), state.source
    if identity is not None and known is not None:
        if known.uuid != identity.source_id():
            return
        if all(incarnation != state.incarnation for incarnation, _ in noted) and identity.has_start(known.token):
            return
    if why := store_mismatch(state, noted, replaced_by(store, state)):
        raise _other_store(store, state.stream, why, source)


def require_absence_noted(store: ObjectStore, stream: str, source: ReadableLedgers | None, noted: Noted) -> None:
    """After a missing catalogue entry: requires that the source was never committed to this stream.

    Raises:
        CorruptError: only the entry is missing. LostRecordsError: there are segments and no manifest.
        StoreMismatchError: the store has nothing of the stream.
    """
    if why := store_mismatch(None, noted):
        require_can_create(store, stream, look_for_remains=not is_released(store, stream), over_segments=False)
        raise _other_store(store, stream, why, source)


def load_noted(log: ManifestLog, source: ReadableLedgers | None, *, create: bool = False) -> ManifestState:
    """Loads a stream's manifest and compares it with the notes of its hot tier.

    Args:
        create: create a missing stream, unless the source was committed to it.

    Raises:
        StoreMismatchError: ``source`` has seen more of the manifest, or another one. Others as ``ManifestLog.load``.
    """
    noted = noted_by(source)
    try:
        state = log.load(create=create and not noted)
    except NotFoundError:
        require_absence_noted(log.store, log.stream, source, noted)
        raise
    if noted:
        require_noted(log.store, state, source, noted)
    return state


def _other_store(
    store: ObjectStore, stream: str, why: str, source: ReadableLedgers | NotingSource | None
) -> StoreMismatchError:
    notes = noting(source)
    remedy = "" if notes is None else f"; to continue without them: {notes.noted_remedy()}"
    return StoreMismatchError(
        f"stream {stream}: {store.url} isn't the store recorded by its hot tier: {why}. Nothing was changed",
        hint=f"check that the right store is mounted; restore that store or its newer objects{remedy}",
    )
