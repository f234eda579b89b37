"""The hot tier seam: where a stream's entries come from.

Owns the protocol between a source of ledgers (embedded, Pulsar) and the write and read sides. Must
never know how or where entries are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from formats.entries import EntryBatch, Position

__all__ = ["ClosedListener", "LedgerInfo", "LedgerSource", "Ledgers", "Listener", "Subscription", "newest_given"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """What a source knows of one ledger.

    Attributes:
        ledger_id: ascends along the stream.
        closed: whether no entry will ever be added.
        entries: how many entries it holds now; the ids are 0 .. entries - 1.
        size_bytes: payload bytes of those entries.
        created_ms: when it was opened, ms since 1970 UTC.
        closed_ms: when it was closed, ``None`` while open.
        holes: runs of ids, first and last, ascending, that the source stores and will never give to anybody (a broker's
            markers, aborted transactions); they count in ``entries``.
        lost: runs of ids that the source lists and has no more itself (a broker whose bookies lost them); likewise.
        unconfirmed: runs of ids that the source lists, gives to nobody and doesn't explain, so that they may be lost;
            likewise.
    """

    ledger_id: int
    closed: bool
    entries: int
    size_bytes: int
    created_ms: int
    closed_ms: int | None = None
    holes: tuple[tuple[int, int], ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    unconfirmed: tuple[tuple[int, int], ...] = ()

    @property
    def not_given(self) -> tuple[tuple[int, int], ...]:
        """All runs that can't be read, ascending."""
        if not (self.lost or self.unconfirmed):
            return self.holes
        return tuple(sorted((*self.holes, *self.lost, *self.unconfirmed)))

    @property
    def last_entry_id(self) -> int:
        """-1 for an empty ledger."""
        return self.entries - 1


def newest_given(infos: Sequence[LedgerInfo]) -> Position | None:
    """The newest entry that somebody gets; ``None``: there is none.

    Args:
        infos: all ledgers, ascending.
    """
    for info in reversed(infos):
        at = info.last_entry_id
        for first, last in reversed(info.not_given):
            if first <= at <= last:
                at = first - 1
        if at >= 0:
            return Position(info.ledger_id, at)
    return None


#: Called after entries became durable in the hot tier, in order, once per appended batch. Must return quickly and
#: must not call back into the source. Nobody changes the batch's memory afterwards: who hears of it may keep it.
#: False: it wasn't taken as it came and will be read, so that a source which can hold entries back may do so.
Listener = Callable[[EntryBatch], bool | None]


#: Called with a ledger that was closed, under the same rules.
ClosedListener = Callable[[LedgerInfo], None]


class Subscription(Protocol):
    def cancel(self) -> None:
        """No call of the listener begins after this returns."""
        ...


class LedgerSource(Protocol):
    """One stream's ledgers. All methods are thread-safe."""

    def ledgers(self) -> list[LedgerInfo]:
        """All ledgers that still exist, ascending, empty ones included."""
        ...

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """Entries of one ledger, from the first one at or after ``start`` on.

        At least one entry (even above ``max_bytes``), then as many as fit into ``max_bytes`` of payload.
        ``None``: nothing at or after ``start`` now. Only durable entries are answered, in memory that nobody changes
        afterwards.
        """
        ...

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        """Calls ``listener`` for each batch appended after this returns; ``None``: nobody wants the entries.

        ``closed`` hears of the end of each ledger, before ``listener`` hears of the next one's first batch. A source
        that only learns of ends from entries tells them only to who wants those; ``ledgers`` has them anyway.
        """
        ...

    def release(self, position: Position) -> None:
        """Everything up to ``position`` is committed in the cold tier (an acknowledgement; deletes nothing).

        Raises:
            Fenced: the source knows that another writer is the active one.
        """
        ...

    def delete(self, ledger_id: int) -> None:
        """Removes a closed ledger's entries; one that isn't there counts as removed."""
        ...


class Ledgers(Protocol):
    """A hot tier: many streams, each a ``LedgerSource`` to be read."""

    def streams(self) -> list[str]:
        """Names of all streams, ascending."""
        ...

    def view_stream(self, stream: str) -> LedgerSource:
        """The stream, to read only; disturbs no owner.

        Raises:
            NotFound: no such stream.
        """
        ...

    def close(self) -> None:
        """Nothing is read any more."""
        ...
