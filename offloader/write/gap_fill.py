"""Keeps entries that readers aren't given, which the broker sends: one object for those of several recorded gaps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np

from formats.checkpoint import LAST_UNKNOWN
from formats.checksum import crc32c
from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from formats.frames import encode_fill
from formats.keys import fill_key, new_segment_uuid, object_metadata
from formats.manifest import GapFilled
from offloader.errors import InvalidCall, LimitReached, SourceMismatch, Trimmed
from offloader.manifest.ledger_table import Run, fills_in, gap_runs, is_gone, is_settled, runs_of, without
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefused, ManifestState, newest_of
from offloader.read.fills import read_fill
from offloader.store.base import CREATE

#: Plans of one call, while other writers change the manifest.
ATTEMPTS_MAX = 5


def missing_runs(state: ManifestState, ledger_id: int, last: int) -> list[Run]:
    """Runs of entries of a ledger, up to ``last``, that are recorded as gaps and that no fill holds."""
    return _unfilled(state, ledger_id, 0, last)


def _unfilled(state: ManifestState, ledger_id: int, first: int, last: int) -> list[Run]:
    filled = [(each.first.entry_id, each.last.entry_id) for each in fills_in(state.fills, ledger_id, first, last)]
    return without(gap_runs(state.gaps, ledger_id, first, last), filled)


def fill_gaps(
    log: ManifestLog,
    batch: EntryBatch,
    first: int,
    last: int,
    *,
    entropy: Callable[[int], bytes] = os.urandom,
) -> int:
    """Stores the missing entries from ``first`` to ``last`` of the batch's ledger, and records them.

    Idempotent: entries that are stored already may come again, if their bytes are the same.

    Args:
        log: of the stream; need not own it.
        batch: every entry in this range that is in a recorded gap and in no fill, and none that is in no gap.

    Returns:
        the number of entries, all of them stored when it returns.

    Raises:
        InvalidCall: the batch has other entries.
        LimitReached: it is too large for one object.
        SourceMismatch: an entry that is stored already has other bytes.
        Trimmed: the ledger is deleted from the stream.
        EditRefused: the stream was deleted, or others changed the manifest every time.
        OutcomeUnknown, StoreUnavailable: nothing, or all of it is recorded: call it again.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        state = log.load()
        state.check(state.incarnation, None)
        parts = list(_parts(state, batch, first, last))
        _require_same(log, state, batch)
        if not parts:
            return len(batch)
        # An object that a refused record leaves is unnamed: the orphan search deletes it.
        edits = [_stored(log, state, part, entropy) for part in parts]
        try:
            log.commit_as_maintainer(edits)
        except EditRefused:
            if attempt == ATTEMPTS_MAX:
                raise
        else:
            return len(batch)
    raise AssertionError("the last attempt returns or raises")


def _parts(state: ManifestState, batch: EntryBatch, first: int, last: int) -> Iterator[EntryBatch]:
    """The entries that no fill has, one batch for each object; checks that they are the missing ones."""
    ledger_id = batch.ledger_id
    where = f"stream {state.stream}, ledger {ledger_id}"
    fact = state.ledgers.get(ledger_id)
    if is_gone(ledger_id, fact, state.head):
        raise Trimmed(f"{where}: it is deleted from the stream", first_available=state.first_position())
    given = runs_of(batch.entry_ids)
    if given and not first <= given[0][0] <= given[-1][1] <= last:
        raise InvalidCall(f"{where}: entries {given[0][0]} to {given[-1][1]} came for {first} to {last}")
    end = fact.last_entry_id
    if given and end != LAST_UNKNOWN and given[-1][1] > end:
        raise InvalidCall(f"{where}: entry {given[-1][1]} came, the ledger ends at {end}")
    others = without(given, gap_runs(state.gaps, ledger_id, first, last))
    if others:
        raise InvalidCall(
            f"{where}: entry {others[0][0]} came, which is in no recorded gap", hint="send what is missing"
        )
    wanted = _unfilled(state, ledger_id, first, last)
    absent = without(wanted, given)
    if absent:
        raise InvalidCall(f"{where}: entry {absent[0][0]} is missing and didn't come", hint="send what is missing")
    for group in _groups(state, ledger_id, wanted):
        yield batch.between(Position(ledger_id, group[0][0]), Position(ledger_id, group[-1][1]))


def _groups(state: ManifestState, ledger_id: int, wanted: list[Run]) -> Iterator[list[Run]]:
    """Missing runs that one fill may hold: no other fill lies between them, and nothing that isn't offloaded yet."""

    def joins(low: int, high: int) -> bool:
        is_filled = bool(fills_in(state.fills, ledger_id, low, high))
        return not is_filled and is_settled(state.segments, state.gaps, ledger_id, low, high)

    if wanted and joins(wanted[0][0], wanted[-1][1]):
        yield wanted
        return
    group: list[Run] = []
    for run in wanted:
        if group and not joins(group[-1][1] + 1, run[0] - 1):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _require_same(log: ManifestLog, state: ManifestState, batch: EntryBatch) -> None:
    """Requires that entries which a fill has already are the same."""
    if not len(batch):
        return
    for fill in fills_in(state.fills, batch.ledger_id, batch.first.entry_id, batch.last.entry_id):
        given = batch.between(fill.first, fill.last)
        if not len(given):
            continue
        stored = read_fill(log.store, state.stream, fill)
        _, own, its = np.intersect1d(given.entry_ids, stored.entry_ids, assume_unique=True, return_indices=True)
        if not given.payloads.take(own).equals(stored.payloads.take(its)):
            raise SourceMismatch(
                f"stream {state.stream}: entries at {fill.first}..{fill.last} came with other bytes than those that "
                f"fill {fill.uuid} has",
                hint="another cluster's ledger has this number, or the broker's entry was damaged",
            )


def _stored(log: ManifestLog, state: ManifestState, batch: EntryBatch, entropy: Callable[[int], bytes]) -> GapFilled:
    """Puts the object of a fill; returns the edit that names it."""
    from offloader import __version__

    uuid = new_segment_uuid(state.incarnation, int.from_bytes(entropy(8), "big"))
    try:
        body = encode_fill(batch)
    except FormatError as error:
        raise LimitReached(f"stream {state.stream}: {error}", hint="send fewer entries at once") from error
    checksum = 0
    for view in body.views:
        checksum = crc32c(view, checksum)
    testimony = newest_of(state.assigning, state.owner.nonce)
    metadata = object_metadata(
        role="fill",
        stream=state.stream,
        format_version=1,
        software_version=__version__,
        incarnation=state.incarnation,
        epoch=state.epoch,
        testimony=testimony,
    )
    log.store.put(fill_key(state.stream, uuid), body, mode=CREATE, metadata=metadata, crc32c=checksum)
    return GapFilled(
        uuid=uuid,
        first=batch.first,
        last=batch.last,
        entries=len(batch),
        payload_bytes=batch.payload_bytes,
        object_bytes=len(body),
        crc32c=checksum,
    )
