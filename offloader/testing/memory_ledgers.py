"""In-memory hot tier: one stream's ledgers, which outlive their writers.

Keeps the contract of a ``LedgerSource`` and a record of appends and acknowledgements. Entries disappear only with a
deleted ledger.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener
from offloader.ledgers.tail_buffer import Listeners, ListenerSubscription, part_to_read
from offloader.runtime.clock import Clock


@dataclass(slots=True)
class _Ledger:
    info: LedgerInfo
    batches: list[EntryBatch] = field(default_factory=list)


class MemoryLedgers:
    """See ``LedgerSource``. ``appended`` has position and payload of every entry, ``released`` the last
    acknowledgement."""

    def __init__(self, stream: str, clock: Clock) -> None:
        self.stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._ledgers: dict[int, _Ledger] = {}
        self._next_id = 1
        self._listeners = Listeners(stream)
        self.appended: list[tuple[Position, bytes]] = []
        self.released: Position | None = None

    @property
    def tail(self) -> Position | None:
        """The newest entry."""
        return self.appended[-1][0] if self.appended else None

    def append(self, payloads: Sequence[bytes]) -> EntryBatch:
        """Appends entries to the open ledger; opens one if none is open."""
        with self._lock:
            newest = self._ledgers[max(self._ledgers)] if self._ledgers else None
            if newest is None or newest.info.closed:
                info = LedgerInfo(
                    ledger_id=self._next_id, closed=False, entries=0, size_bytes=0, created_ms=self._clock.now_ms()
                )
                newest = self._ledgers[self._next_id] = _Ledger(info)
                self._next_id += 1
            info = newest.info
            batch = EntryBatch.build(info.ledger_id, info.entries, payloads, self._clock.now_ms())
            newest.batches.append(batch)
            newest.info = replace(
                info, entries=info.entries + len(batch), size_bytes=info.size_bytes + batch.payload_bytes
            )
            self.appended += [(entry.position, entry.payload) for entry in batch.entries()]
        self._listeners.tell(batch)
        return batch

    def close_ledger(self) -> LedgerInfo | None:
        """Closes the open ledger, ``None`` if none is open."""
        with self._lock:
            newest = self._ledgers[max(self._ledgers)] if self._ledgers else None
            if newest is None or newest.info.closed:
                return None
            info = newest.info = replace(newest.info, closed=True, closed_ms=self._clock.now_ms())
        self._listeners.tell_closed(info)
        return info

    def ledgers(self) -> list[LedgerInfo]:
        with self._lock:
            return [self._ledgers[ledger_id].info for ledger_id in sorted(self._ledgers)]

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        with self._lock:
            for ledger_id in sorted(self._ledgers):
                ledger = self._ledgers[ledger_id]
                first = start.entry_id if ledger_id == start.ledger_id else 0
                if ledger_id >= start.ledger_id and first < ledger.info.entries:
                    wanted = Position(ledger_id, first)
                    at = bisect_right(ledger.batches, wanted, key=lambda batch: batch.first) - 1
                    return part_to_read(ledger.batches[at], wanted, max_bytes)
        return None

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> ListenerSubscription:
        return self._listeners.add(listener, closed)

    def release(self, position: Position) -> None:
        with self._lock:
            self.released = position if self.released is None else max(self.released, position)

    def delete(self, ledger_id: int) -> None:
        with self._lock:
            self._ledgers.pop(ledger_id, None)
