"""Streams of an embedded ledger database that other processes append to, followed by looking.

Owns what was told of a stream and what comes next. Must never own a stream, nor tell of an entry before it is durable,
twice or out of order.
"""

from __future__ import annotations

import threading

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener, Subscription
from offloader.ledgers.listening import Listeners
from offloader.ledgers.stream import EmbeddedStream

__all__ = ["FollowedStream"]

#: Payload bytes of one batch that is told.
BATCH_BYTES = 4 * 1024 * 1024
#: And of one look: a stream that is far behind is no reason for the others to wait.
LOOK_BYTES_MAX = 64 * 1024 * 1024


class FollowedStream:
    """A ``LedgerSource`` over a view, whose listeners hear of appends when ``look`` finds them. Thread-safe.

    Args:
        view: opened with ``may_delete``, so that hot copies can be released.
    """

    def __init__(self, view: EmbeddedStream) -> None:
        self._view = view
        self._listeners = Listeners(view.stream)
        # Held during a look: what is told is told in order.
        self._looking = threading.Lock()
        self._told: Position | None = None
        #: Ledgers up to this one have ended, and that was told.
        self._ended = -1
        self._is_heard = False

    @property
    def inner(self) -> EmbeddedStream:
        """The view; one that may delete records starts too."""
        return self._view

    def ledgers(self) -> list[LedgerInfo]:
        return self._view.ledgers()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        return self._view.read(start, max_bytes)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        with self._looking:
            if not self._is_heard:
                # What is there by now the listener learns from ``ledgers``.
                self._is_heard = True
                infos = self._view.ledgers()
                filled = [info for info in infos if info.entries]
                self._told = Position(filled[-1].ledger_id, filled[-1].last_entry_id) if filled else None
                self._ended = max((info.ledger_id for info in infos if info.closed), default=-1)
            return self._listeners.add(listener, closed)

    def release(self, position: Position) -> None:
        """Nothing: a view can't tell the database, and only whoever appends would look there."""

    def delete(self, ledger_id: int) -> None:
        self._view.delete(ledger_id)

    def look(self) -> bool:
        """Tells what came since the last look; whether there is more, because it was too much for one.

        Raises: as ``EmbeddedStream.read``.
        """
        with self._looking:
            if not self._is_heard:
                return False
            if not self._listeners.want_entries:
                self._told = self._view.last_position() or self._told
            left_bytes = LOOK_BYTES_MAX
            while left_bytes > 0:
                start = (
                    Position(0, 0) if self._told is None else Position(self._told.ledger_id, self._told.entry_id + 1)
                )
                batch = self._view.read(start, BATCH_BYTES)
                if batch is None:
                    self._tell_ends(None)
                    return False
                if self._told is None or batch.ledger_id != self._told.ledger_id:
                    self._tell_ends(batch.ledger_id)
                self._listeners.tell(batch)
                self._told = batch.last
                left_bytes -= max(batch.payload_bytes, 1)
            return True

    def _tell_ends(self, before: int | None) -> None:
        """Of ledgers that were told to their ends: those before ``before``, or all of them."""
        for info in self._view.ledgers():
            if info.ledger_id <= self._ended or not info.closed or (before is not None and info.ledger_id >= before):
                continue
            told = self._told is not None and Position(info.ledger_id, info.last_entry_id) <= self._told
            if not told and info.entries:
                return  # appended to and closed since: its entries come first
            self._ended = info.ledger_id
            self._listeners.tell_closed(info)
