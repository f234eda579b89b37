"""A broker of some other make, as far as pushing goes: it keeps every entry until it is told that it is durable."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from formats.entries import EntryBatch, Position
from offloader.ledgers.pushed import LedgerEnd

__all__ = ["Broker", "Next"]


@dataclass(frozen=True)
class Next:
    """What a broker pushes in one go: entries, each batch of one ledger, and the ledgers that ended before or there."""

    batches: list[EntryBatch]
    ends: list[LedgerEnd]

    @property
    def closed(self) -> Mapping[str, int]:
        return {str(each.ledger_id): each.last_entry_id for each in self.ends}


@dataclass
class Broker:
    """Ledgers of one stream. ``next_after`` is all the state a push needs: no session, no cursor."""

    seed: int = 1
    size_max: int = 200
    ledgers: dict[int, list[bytes]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def entries(self) -> list[tuple[Position, bytes]]:
        return [
            (Position(ledger_id, entry_id), payload)
            for ledger_id, payloads in self.ledgers.items()
            for entry_id, payload in enumerate(payloads)
        ]

    @property
    def end(self) -> Position | None:
        filled = [(each, payloads) for each, payloads in self.ledgers.items() if payloads]
        return Position(filled[-1][0], len(filled[-1][1]) - 1) if filled else None

    def append(self, count: int) -> None:
        open_ledger = max(self.ledgers, default=0)
        if open_ledger not in self.ledgers or open_ledger in self.closed:
            open_ledger += self._random.randint(1, 3)  # ids aren't dense
            self.ledgers[open_ledger] = []
        payloads = self.ledgers[open_ledger]
        for _ in range(count):
            stamp = f"{open_ledger}:{len(payloads)} ".encode()
            payloads.append(stamp + self._random.randbytes(self._random.randint(0, self.size_max)))

    def close_ledger(self) -> None:
        if self.ledgers:
            self.closed.add(max(self.ledgers))

    def next_after(self, taken: Position | None, count: int) -> Next:
        """Up to ``count`` entries after ``taken``, over ledgers."""
        batches: list[EntryBatch] = []
        ends: list[LedgerEnd] = []
        for ledger_id, payloads in self.ledgers.items():
            if taken is not None and ledger_id < taken.ledger_id:
                continue
            first = taken.entry_id + 1 if taken is not None and ledger_id == taken.ledger_id else 0
            part = payloads[first : first + count]
            if part:
                batches.append(EntryBatch.build(ledger_id, first, part, 1_700_000_000_000 + first))
                count -= len(part)
            if first + len(part) < len(payloads):
                break
            if ledger_id in self.closed:
                ends.append(LedgerEnd(ledger_id, len(payloads) - 1))
            if count == 0:
                break
        return Next(batches, ends)
