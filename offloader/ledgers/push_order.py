"""What of pushed entries is new, and whether it may come next; pure.

Owns the rules by which a broker's ids are believed. Must never pass over a hole, nor take an entry a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.errors import InvalidCall

__all__ = ["LedgerEnd", "NotNext", "Piece", "new_pieces", "new_size"]


class NotNext(InvalidCall):
    """Pushed entries don't follow what is there; nothing of them was taken."""


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The broker's word that a ledger is closed at ``last_entry_id`` (-1: it holds nothing)."""

    ledger_id: int
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What comes next: first a ledger ends (``None``: none does), then these entries of one ledger come (or none)."""

    closed: LedgerEnd | None
    batch: EntryBatch | None


def new_pieces(
    stream: str,
    end: Position | None,
    closed: Mapping[int, int],
    batches: Sequence[EntryBatch],
    ends: Sequence[LedgerEnd],
) -> list[Piece]:
    """What of a push is new, in order; empty: all of it is there already.

    Args:
        stream: its name, for errors.
        end: the newest entry there is, ``None``: none yet.
        closed: ledgers known to be closed -> last entry id.
        batches: pushed entries, each batch of one ledger and not empty.
        ends: ledgers that the broker says are closed.

    Raises:
        NotNext: entries are missing before them, or between them; a ledger's end wasn't told.
        InvalidCall: ids descend or are negative, or the broker contradicts itself.
    """
    told = _told(stream, closed, ends)
    pieces: list[Piece] = []
    at, before = end, None
    for batch in batches:
        _require_ascending(stream, before, batch)
        before = batch.last
        if at is not None and batch.last <= at:
            continue
        rest = batch
        ends_first = None
        if at is not None and batch.ledger_id == at.ledger_id:
            rest = _rest_of_ledger(stream, at, batch, told)
        elif batch.first.entry_id != 0:
            raise NotNext(
                f"stream {stream}: {batch.first} was pushed after {at or 'nothing'}: a ledger begins with entry 0",
                hint=f"push {batch.ledger_id}:0 first",
            )
        elif at is not None:
            ends_first = _end_before(stream, at, batch.first, told, closed)
        pieces.append(Piece(ends_first, rest))
        at = rest.last
    return [*pieces, *_last_end(stream, at, closed, ends, pieces)]


def new_size(pieces: Sequence[Piece]) -> int:
    """How many entries they have."""
    return sum(len(piece.batch) for piece in pieces if piece.batch is not None)


def _told(stream: str, closed: Mapping[int, int], ends: Sequence[LedgerEnd]) -> dict[int, int]:
    told = dict(closed)
    for each in ends:
        if each.ledger_id < 0 or each.last_entry_id < -1:
            raise InvalidCall(f"stream {stream}: ledger {each.ledger_id} can't end at {each.last_entry_id}")
        if told.setdefault(each.ledger_id, each.last_entry_id) != each.last_entry_id:
            raise InvalidCall(
                f"stream {stream}: ledger {each.ledger_id} ends at entry {each.last_entry_id}, says the broker; "
                f"it said {told[each.ledger_id]} before",
                hint="nothing was taken: a closed ledger never changes",
            )
    return told


def _require_ascending(stream: str, before: Position | None, batch: EntryBatch) -> None:
    if batch.ledger_id < 0 or int(batch.entry_ids[0]) < 0:
        raise InvalidCall(f"stream {stream}: {batch.first} is no position", hint="LEDGER:ENTRY, both 0 or more")
    if before is not None and batch.first <= before:
        raise InvalidCall(f"stream {stream}: {batch.first} was pushed after {before}", hint="ids ascend along a stream")
    if len(batch) < 2 or int(batch.entry_ids[-1]) - int(batch.entry_ids[0]) == len(batch) - 1:
        steps = np.diff(batch.entry_ids)
        if (steps == 1).all():
            return
    wrong = int(np.argmax(np.diff(batch.entry_ids) != 1))
    low, high = (Position(batch.ledger_id, int(batch.entry_ids[at])) for at in (wrong, wrong + 1))
    text = f"stream {stream}: {high} was pushed right after {low}"
    if high <= low:
        raise InvalidCall(text, hint="ids ascend along a stream, one after the other")
    raise NotNext(text, hint="entries are missing between them: a ledger has no holes")


def _rest_of_ledger(stream: str, at: Position, batch: EntryBatch, told: Mapping[int, int]) -> EntryBatch:
    """The entries after ``at``, of the same ledger."""
    if told.get(at.ledger_id, batch.last.entry_id) < batch.last.entry_id:
        raise InvalidCall(
            f"stream {stream}: {batch.last} was pushed, and ledger {at.ledger_id} ends at entry {told[at.ledger_id]}",
            hint="nothing was taken: a closed ledger never grows",
        )
    if batch.first.entry_id > at.entry_id + 1:
        raise NotNext(
            f"stream {stream}: {batch.first} was pushed after {at}",
            hint=f"push {at.ledger_id}:{at.entry_id + 1} first: what lies between is missing",
        )
    return batch.slice(at.entry_id + 1 - batch.first.entry_id, len(batch))


def _end_before(
    stream: str, at: Position, first: Position, told: Mapping[int, int], closed: Mapping[int, int]
) -> LedgerEnd | None:
    """The end of the ledger of ``at``, if it wasn't known yet; another ledger begins with ``first``."""
    last = told.get(at.ledger_id)
    if last is None:
        raise NotNext(
            f"stream {stream}: {first} was pushed after {at}, and nobody said that ledger {at.ledger_id} ends there",
            hint=f'send the fact with the batch, as application metadata: {{"closed": {{"{at.ledger_id}": '
            f"{at.entry_id}}}}}",
        )
    if last != at.entry_id:
        raise NotNext(
            f"stream {stream}: {first} was pushed after {at}, and ledger {at.ledger_id} ends at entry {last}",
            hint=f"push {at.ledger_id}:{at.entry_id + 1} first: what lies between is missing",
        )
    skipped = [each for each, end in told.items() if at.ledger_id < each < first.ledger_id and end >= 0]
    if skipped:
        raise NotNext(
            f"stream {stream}: {first} was pushed after {at}, and ledger {min(skipped)} between them has entries",
            hint=f"push {min(skipped)}:0 first",
        )
    return None if at.ledger_id in closed else LedgerEnd(at.ledger_id, last)


def _last_end(
    stream: str,
    at: Position | None,
    closed: Mapping[int, int],
    ends: Sequence[LedgerEnd],
    pieces: Sequence[Piece],
) -> list[Piece]:
    """The end of the ledger that the newest entry is in, if that is told now; checks what else was told."""
    said = {piece.closed.ledger_id for piece in pieces if piece.closed is not None}
    found: list[Piece] = []
    for each in ends:
        if each.ledger_id in closed or each.ledger_id in said:
            continue
        if at is None or each.ledger_id > at.ledger_id:
            if each.last_entry_id < 0:
                continue  # empty: nothing of it will come
            raise NotNext(
                f"stream {stream}: ledger {each.ledger_id} ends at entry {each.last_entry_id}, says the broker; "
                "none of it was pushed",
                hint=f"push {each.ledger_id}:0 first",
            )
        if each.ledger_id < at.ledger_id:
            continue  # its entries are committed, or this was said before and forgotten with them
        if each.last_entry_id < at.entry_id:
            raise InvalidCall(
                f"stream {stream}: ledger {each.ledger_id} ends at entry {each.last_entry_id}, says the broker, and "
                f"{at} was pushed",
                hint="nothing was taken: a closed ledger never changes",
            )
        if each.last_entry_id > at.entry_id:
            raise NotNext(
                f"stream {stream}: ledger {each.ledger_id} ends at entry {each.last_entry_id}, says the broker; the "
                f"newest one pushed is {at}",
                hint="say how a ledger ends with its last entry, or later",
            )
        found.append(Piece(each, None))
    return found
