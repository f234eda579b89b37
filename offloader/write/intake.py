"""Entries that a segment took and didn't encode yet.

Owns which entry may come next, and the order in which entries go to the encoder. Must never count a buffer or do I/O;
its caller holds the segment's lock.
"""

from __future__ import annotations

from collections import deque

from formats.entries import Entry, EntryBatch, Position
from formats.segment import LedgerFacts
from offloader.errors import InvalidCall, LimitReached
from offloader.manifest.state import follows

__all__ = ["SINGLES_MAX", "Intake"]

#: Single entries that wait before they are encoded whatever their size: as objects they take more than is counted.
SINGLES_MAX = 2048
#: Batches that wait before they are encoded whatever their size.
PIECES_MAX = 64
#: Waiting batches are joined until they are as long as this.
JOINED_BYTES_MIN = 256 * 1024


class Intake:
    """Accepts consecutive entries, single or in batches, and gives them out as batches of one ledger each.

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
        singles: entries accepted one by one, not gathered into a batch yet.
    """

    __slots__ = (
        "_after",
        "_batches",
        "_closed_ledgers",
        "_limits",
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
        self._batches: deque[EntryBatch] = deque()
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
        return self.waiting_bytes >= bytes_min or len(self._batches) >= PIECES_MAX or len(self.singles) >= SINGLES_MAX

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
        self._gather()
        self._batches.append(batch)
        self._accepted(batch.first, batch.last, wire_bytes)

    def take(self) -> EntryBatch | None:
        """The oldest entries that wait, ``None`` when none do."""
        self._gather()
        if not self._batches:
            return None
        batches = [self._batches.popleft()]
        size_bytes = batches[0].wire_bytes
        # Small batches are encoded as one: each costs the encoder as much as tens of kilobytes.
        while self._batches and size_bytes < JOINED_BYTES_MIN and self._batches[0].ledger_id == batches[0].ledger_id:
            batches.append(self._batches.popleft())
            size_bytes += batches[-1].wire_bytes
        self.waiting_bytes -= size_bytes
        return EntryBatch.concat(batches)

    def clear(self) -> None:
        """Forgets what waits."""
        self._batches.clear()
        self.singles = []
        self.waiting_bytes = 0

    def _accepted(self, first: Position, last: Position, wire_bytes: int) -> None:
        self.first = self.first or first
        self.next_ledger_id, self.next_entry_id = last.ledger_id, last.entry_id + 1
        self.wire_bytes += wire_bytes
        self.waiting_bytes += wire_bytes

    def _gather(self) -> None:
        """Turns single entries into batches, one for each ledger."""
        singles, self.singles = self.singles, []
        start = 0
        for stop in range(1, len(singles) + 1):
            if stop == len(singles) or singles[stop].ledger_id != singles[start].ledger_id:
                run = singles[start:stop]
                payloads = [entry.payload for entry in run]
                times_ms = [entry.publish_time_ms for entry in run]
                self._batches.append(EntryBatch.build(run[0].ledger_id, run[0].entry_id, payloads, times_ms))
                start = stop
