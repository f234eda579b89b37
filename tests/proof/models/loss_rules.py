"""Rules M17 to M40 of docs/explanation/manifest.md that the product follows, each switched off by a patch. Not a test.

A replay with a rule switched off shows that it would see the loss that the rule prevents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import get_ident
from typing import Any
from uuid import UUID

import pytest

from formats.checkpoint import KnownSource
from formats.entries import Position
from formats.manifest import Assign, Edit, Failed, OpenEpoch, Record
from offloader.gc import orphans as witnesses
from offloader.gc.orphans import Garbage
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest import apply, load, log
from offloader.manifest import load as tail
from offloader.manifest import source_identity as source_check
from offloader.manifest.boundary import StoredBoundary, read_boundary
from offloader.manifest.source_identity import SourceFacts
from offloader.manifest.state import ManifestState
from offloader.retention import truncate as truncation
from offloader.store.base import ObjectStore
from offloader.write.ownership import LEDGERS_RESERVED, OwnersSource

__all__ = ["switch_off"]


def switch_off(rule: str, patch: pytest.MonkeyPatch) -> None:
    """Makes the product ignore a rule of the model until the patch is undone."""
    _SWITCHES[rule](patch)


# -- which hot tier


def _without_identity(patch: pytest.MonkeyPatch) -> None:
    """Another database is accepted."""

    def mismatch(known: KnownSource, facts: SourceFacts) -> str | None:
        return checked(known, facts) if facts.uuid == known.uuid else None

    checked = _replace_mismatch(patch, mismatch)


def _without_generation(patch: pytest.MonkeyPatch) -> None:
    """A file that lacks the newest start is accepted."""
    checked = _replace_mismatch(patch, lambda known, facts: checked(known, replace(facts, has_token=True)))


def _without_reach(patch: pytest.MonkeyPatch) -> None:
    """A file that ends before the newest known position is accepted."""
    checked = _replace_mismatch(patch, lambda known, facts: checked(replace(known, reach=None), facts))


_Mismatch = Callable[[KnownSource, SourceFacts], str | None]


def _replace_mismatch(patch: pytest.MonkeyPatch, mismatch: _Mismatch) -> _Mismatch:
    """Compares a source with the one that is known by ``mismatch``; answers how it was compared before."""
    before = source_check.source_mismatch
    patch.setattr(
        source_check, "source_mismatch", lambda known, facts: None if known is None else mismatch(known, facts)
    )
    return before


def _without_token(patch: pytest.MonkeyPatch) -> None:
    """A start is the number of starts in its database: two copies count alike."""
    opening = OwnersSource.opening

    def numbered(self: OwnersSource, state: ManifestState) -> list[Edit]:
        stream = _stream_of(self)
        with stream._database.reading() as connection:
            [starts] = connection.execute(
                "SELECT count(*) FROM starts WHERE stream_id = ?", (stream._stream_id,)
            ).fetchone()
        self._token = f"{starts + 1:032d}"
        return opening(self, state)

    patch.setattr(OwnersSource, "opening", numbered)


def _without_raise_first(patch: pytest.MonkeyPatch) -> None:
    """The database has a start's token after the record that names it."""
    opening, committed = OwnersSource.opening, OwnersSource.committed

    def unrecorded(self: OwnersSource, state: ManifestState) -> list[Edit]:
        stream = _stream_of(self)
        record = stream.record_start
        stream.record_start = lambda token: None  # type: ignore[method-assign]
        try:
            return opening(self, state)
        finally:
            stream.record_start = record  # type: ignore[method-assign]

    def recorded(self: OwnersSource, state: ManifestState) -> None:
        self._source.record_start(self._token)
        committed(self, state)

    patch.setattr(OwnersSource, "opening", unrecorded)
    patch.setattr(OwnersSource, "committed", recorded)


def _without_recheck(patch: pytest.MonkeyPatch) -> None:
    """A start compares its source once, and not again after other records came first."""
    check = OwnersSource.check
    checked: list[OwnersSource] = []

    def once(self: OwnersSource, state: ManifestState) -> Position | None:
        if self in checked:
            return self._source.reached()
        checked.append(self)
        return check(self, state)

    patch.setattr(OwnersSource, "check", once)


def _without_reserve(patch: pytest.MonkeyPatch) -> None:
    """No record reserves ledger ids: a start takes those above what the database and the cold tier have."""
    opening, committed = OwnersSource.opening, OwnersSource.committed

    def unreserved(self: OwnersSource, state: ManifestState) -> list[Edit]:
        edits = opening(self, state)
        self._range = None
        return [replace(edit, reserved=None) if isinstance(edit, OpenEpoch) else edit for edit in edits]

    def granted(self: OwnersSource, state: ManifestState) -> None:
        committed(self, state)
        if not self._has_granted:
            self._has_granted = True
            first = self._source.next_ledger()
            self._source.grant_ledgers(first, first + LEDGERS_RESERVED)

    patch.setattr(OwnersSource, "opening", unreserved)
    patch.setattr(OwnersSource, "committed", granted)


def _without_new_ledger(patch: pytest.MonkeyPatch) -> None:
    """A start goes on with the ledger that was open."""
    open_stream, grant_ledgers = EmbeddedLedgers.open_stream, EmbeddedStream.grant_ledgers
    left_open: dict[int, int] = {}

    def opened(self: EmbeddedLedgers, stream: str, **options: Any) -> EmbeddedStream:
        with self._database.reading() as connection:
            found = connection.execute("SELECT ledger_id FROM ledgers WHERE closed_ms IS NULL").fetchone()
        handle = open_stream(self, stream, **options)
        if found is not None:
            left_open[id(handle)] = found[0]
        return handle

    def granted(self: EmbeddedStream, first: int, end: int) -> None:
        grant_ledgers(self, first, end)
        before = left_open.pop(id(self), None)
        if before is None:
            return
        with self._database.writing() as connection:
            connection.execute("DELETE FROM ledgers WHERE closed_ms IS NULL")
            connection.execute("UPDATE ledgers SET closed_ms = NULL WHERE ledger_id = ?", (before,))
            connection.execute(
                "INSERT OR IGNORE INTO ledgers (ledger_id, stream_id, created_ms) VALUES (?, ?, 0)",
                (before, self._stream_id),
            )

    patch.setattr(EmbeddedLedgers, "open_stream", opened)
    patch.setattr(EmbeddedStream, "grant_ledgers", granted)


def _without_facts(patch: pytest.MonkeyPatch) -> None:
    """What a source lists isn't compared with what the manifest knows of its ledgers."""
    patch.setattr(source_check, "contradictions", lambda state, ledgers: {})


def _without_truncate_held(patch: pytest.MonkeyPatch) -> None:
    """A truncation takes every ledger before the head from the hot tier."""
    patch.setattr(truncation, "_not_held_ledgers", lambda state, ledgers: {})


# -- records that are gone


def _without_chain(patch: pytest.MonkeyPatch) -> None:
    """A record follows whichever one has the number before.

    Of a record that offloaded a segment the totals tell too, and the range of the next one: both are ignored.
    """

    def folded(state: ManifestState, record: Record) -> ManifestState:
        if any(isinstance(edit, Assign) for edit in record.edits):
            unfinished = [Failed(segment.uuid, "unknown") for segment in state.assigned()]
            state = apply.apply_edits(state, unfinished, record_id=state.record_id)
        totals = apply.apply_edits(state, record.edits, record_id=record.record_id).totals()
        return apply.fold(state, replace(record, previous_nonce=state.nonce, totals=totals))

    patch.setattr(load, "fold", folded)


def _without_list_end(patch: pytest.MonkeyPatch) -> None:
    """The first absent number ends the log."""
    patch.setattr(tail, "_highest_listed", lambda store, view: 0)


def _without_limit(patch: pytest.MonkeyPatch) -> None:
    """A load doesn't look at the record that the boundary names."""
    read = read_boundary

    def unnamed(store: ObjectStore, stream: str, incarnation: UUID) -> StoredBoundary:
        stored = read(store, stream, incarnation)
        return stored._replace(boundary=replace(stored.boundary, newest_id=0, newest_nonce=""))

    patch.setattr(tail, "read_boundary", unnamed)


def _without_limit_nonce(patch: pytest.MonkeyPatch) -> None:
    """Of the record that the boundary names only the number counts."""
    read_tail = tail._tail

    def forgetful(*arguments: Any) -> Any:
        view = read_tail(*arguments)
        arguments[-2].clear()  # the nonces
        return view

    patch.setattr(tail, "_tail", forgetful)
    patch.setattr(StoredBoundary, "contradicts", lambda self, record_id, nonce: False)


def _without_name_before(patch: pytest.MonkeyPatch) -> None:
    """The boundary doesn't name the record that a deletion or a promise relies on."""
    patch.setattr(log, "name_record", lambda store, state, stored: True)


def _without_no_records(patch: pytest.MonkeyPatch) -> None:
    """A manifest without boundary or records is one that begins."""
    patch.setattr(load, "_is_empty", lambda store, stream, incarnation: True)
    patch.setattr(log, "require_never_begun", lambda store, stream, incarnation: True)


def _without_reread_before_damage(patch: pytest.MonkeyPatch) -> None:
    """A record that is missing is called lost without another look at the boundary."""
    highest_listed, boundary = tail._highest_listed, tail._boundary
    last: dict[int, StoredBoundary | None] = {}

    def listed(store: ObjectStore, view: Any) -> int:
        last.pop(get_ident(), None)
        return highest_listed(store, view)

    def first_only(store: ObjectStore, view: Any, first: int) -> StoredBoundary | None:
        if get_ident() not in last:
            last[get_ident()] = boundary(store, view, first)
        return last[get_ident()]

    patch.setattr(tail, "_highest_listed", listed)
    patch.setattr(tail, "_boundary", first_only)


def _without_testimony_epoch(patch: pytest.MonkeyPatch) -> None:
    """An object tells of a lost record only where the record's number is above the newest."""
    judged = witnesses.Witnesses.judged
    newest = [0]  # one search at a time

    def by_number(self: witnesses.Witnesses, leftover: Garbage, names: ManifestState | None) -> Garbage:
        newest[0] = 0 if names is None else names.record_id
        return judged(self, leftover, names)

    patch.setattr(witnesses.Witnesses, "judged", by_number)
    patch.setattr(witnesses, "tells_of_loss", lambda assigning, testimony: testimony.record_id > newest[0])


def _stream_of(owners: OwnersSource) -> EmbeddedStream:
    assert isinstance(owners._source, EmbeddedStream)
    return owners._source


_SWITCHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "chain": _without_chain,
    "facts": _without_facts,
    "generation": _without_generation,
    "identity": _without_identity,
    "limit": _without_limit,
    "limit-nonce": _without_limit_nonce,
    "list-end": _without_list_end,
    "name-before": _without_name_before,
    "new-ledger": _without_new_ledger,
    "no-records": _without_no_records,
    "raise-first": _without_raise_first,
    "reach": _without_reach,
    "recheck": _without_recheck,
    "reread-before-damage": _without_reread_before_damage,
    "reserve": _without_reserve,
    "testimony-epoch": _without_testimony_epoch,
    "token": _without_token,
    "truncate-held": _without_truncate_held,
}
