"""Entries that a segment took and didn't encode yet.

Owns which entry may come next, and the order in which entries go to the encoder. Must never count a buffer or do I/O;
its caller holds the segment's lock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from formats.entries import Entry, EntryBatch, Position
from formats.segment import LedgerFacts
from offloader.errors import InvalidCall, LimitReached
from offloader.manifest.state import follows

__all__ = ["SINGLES_MAX", "Intake", "Piece", "joined"]

#: What waits: a batch, or entries that came one by one, of one ledger or several.
Piece: TypeAlias = EntryBatch | list[Entry]

#: Single entries that wait before they are encoded whatever their size: as objects they take more than is counted.
SINGLES_MAX = 2048
#: Batches that wait before they are encoded whatever their size.
PIECES_MAX = 64
#: Waiting batches are joined until they are as long as this.
JOINED_BYTES_MIN = 1024 * 1024


class Intake:
    """Accepts consecutive entries, single or in batches, and gives them out in that order, for ``joined``.

    Args:
        segment: the segment's name, for errors.
        after: the position the first entry has to follow, ``None``: any.
        limits: name of a setting -> payload bytes that an entry must not exceed because of it.

    Attributes:
        first: the oldest entry accepted.
        wire_bytes: bytes accepted since the beginning: payloads and a 12-byte header each.
        waiting_bytes: those of them that weren't given out yet.
        facts: what the source said of closed ledgers.
        next_ledger_id, next_entry_id: the entry that follows in the same ledger; -1 before the first.
        singles: entries accepted one by one after the last batch.
    """

    __slots__ = (
        "_after",
        "_closed_ledgers",
        "_limits",
        "_pieces",
        "_pieces_bytes",
        "_segment",
        "facts",
        "first",
        "next_entry_id",
        "next_ledger_id",
        "singles",
        "waiting_bytes",
        "wire_bytes",
    )

    def __init__(self, segment: str, after: Position | None, limits: dict[str, int]) -> None:
        self._segment = segment
        self._after = after
        self._limits = limits
        self._closed_ledgers: dict[int, int] = {}
        #: What came before ``singles``, each with its bytes; and all of those.
        self._pieces: deque[tuple[Piece, int]] = deque()
        self._pieces_bytes = 0
        self.singles: list[Entry] = []
        self.facts: dict[int, LedgerFacts] = {}
        self.first: Position | None = None
        self.next_ledger_id = self.next_entry_id = -1
        self.wire_bytes = 0
        self.waiting_bytes = 0

    @property
    def last(self) -> Position | None:
        """The newest entry accepted."""
        return None if self.first is None else Position(self.next_ledger_id, self.next_entry_id - 1)

    def is_worth_a_turn(self, bytes_min: int) -> bool:
        """Whether an encoder should begin with what waits: ``bytes_min``, or so many pieces that these take more memory
        than is counted. Less gathers until it is, or until the segment closes."""
        return self.waiting_bytes >= bytes_min or len(self._pieces) >= PIECES_MAX or len(self.singles) >= SINGLES_MAX

    def ledger_closed(self, facts: LedgerFacts, last_entry_id: int) -> None:
        """Takes the source's word that a ledger ends at ``last_entry_id`` (-1: empty), so that the next may follow."""
        self.facts[facts.ledger_id] = facts
        self._closed_ledgers[facts.ledger_id] = last_entry_id

    def check(self, first: Position, payload_bytes_max: int) -> None:
        """Whether entries from ``first`` on, none larger than ``payload_bytes_max``, may be accepted.

        Raises:
            InvalidCall: ``first`` doesn't follow what was accepted last.
            LimitReached: an entry above a limit; names the setting.
        """
        for setting, limit_bytes in self._limits.items():
            if payload_bytes_max > limit_bytes:
                raise LimitReached(
                    f"segment {self._segment}: an entry of {payload_bytes_max} bytes at {first} or after it is above "
                    f"the {limit_bytes} that {setting} allows"
                )
        before = self.last or self._after
        if before is not None and not follows(before, first, self._closed_ledgers):
            raise InvalidCall(
                f"segment {self._segment}: {first} doesn't follow {before}", hint="nothing of it was taken"
            )

    def add_entry(self, entry: Entry, wire_bytes: int) -> None:
        """Accepts one entry; the payload is the intake's own from here on."""
        self.singles.append(entry)
        self._accepted(entry.position, entry.position, wire_bytes)

    def add_batch(self, batch: EntryBatch, wire_bytes: int) -> None:
        """Accepts a batch; its memory is the intake's own from here on."""
        self._end_singles()
        self._pieces.append((batch, wire_bytes))
        self._pieces_bytes += wire_bytes
        self._accepted(batch.first, batch.last, wire_bytes)

    def take(self) -> tuple[list[Piece], int]:
        """The oldest entries that wait, enough to be worth a turn of the encoder, and their bytes; none when none do.

        Nothing is copied or built here: whoever offers waits for the lock meanwhile.
        """
        self._end_singles()
        pieces: list[Piece] = []
        taken_bytes = 0
        while self._pieces and taken_bytes < JOINED_BYTES_MIN:
            piece, size_bytes = self._pieces.popleft()
            pieces.append(piece)
            taken_bytes += size_bytes
        self._pieces_bytes -= taken_bytes
        self.waiting_bytes -= taken_bytes
        return pieces, taken_bytes

    def clear(self) -> None:
        """Forgets what waits."""
        self._pieces.clear()
        self.singles = []
        self._pieces_bytes = self.waiting_bytes = 0

    def _accepted(self, first: Position, last: Position, wire_bytes: int) -> None:
        self.first = self.first or first
        self.next_ledger_id, self.next_entry_id = last.ledger_id, last.entry_id + 1
        self.wire_bytes += wire_bytes
        self.waiting_bytes += wire_bytes

    def _end_singles(self) -> None:
        """Entries that came one by one so far are a piece from here on."""
        if not self.singles:
            return
        self._pieces.append((self.singles, self.waiting_bytes - self._pieces_bytes))
        self._pieces_bytes = self.waiting_bytes
        self.singles = []


def joined(pieces: Sequence[Piece]) -> list[EntryBatch]:
    """Pieces that follow each other as batches, one for each ledger: small ones cost the encoder as much as tens of
    kilobytes."""
    batches = [batch for piece in pieces for batch in ([piece] if isinstance(piece, EntryBatch) else _built(piece))]
    by_ledger = itertools.groupby(batches, key=lambda batch: batch.ledger_id)
    return [EntryBatch.concat(list(same)) for _, same in by_ledger]


def _built(singles: Sequence[Entry]) -> Iterator[EntryBatch]:
    for ledger_id, same in itertools.groupby(singles, key=lambda entry: entry.ledger_id):
        run = list(same)
        payloads, times_ms = [entry.payload for entry in run], [entry.publish_time_ms for entry in run]
        yield EntryBatch.build(ledger_id, run[0].entry_id, payloads, times_ms)
