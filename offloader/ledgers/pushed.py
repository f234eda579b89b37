"""A hot tier that is somewhere else: a broker pushes its entries, and keeps its own copy until they are durable.

Owns the few entries between the broker and the segments, and where the broker has to go on. Must never pass over an
entry, nor answer for one that only the broker has: then the broker is asked to push it again.

Entries stay here until a segment has taken them. When a segment fails, what it had taken is nowhere but at the broker:
``taken`` goes back to the committed end, and until the broker has pushed from there again this source can't be reached.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.clock import Clock
from offloader.errors import SourceMismatch, StoreUnavailable
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener
from offloader.ledgers.listening import Listeners, ListenerSubscription
from offloader.ledgers.push_news import Offered, Pushed, PushNews
from offloader.ledgers.push_order import LedgerEnd, NotNext, Piece, new_pieces, new_size
from offloader.ledgers.push_window import PushMemory, PushWindow
from offloader.ledgers.tailing import kept_bytes

__all__ = ["Offered", "PushNews", "Pushed", "PushedLedgers"]

#: How many times a window and a push may be held until the broker has pushed what the manifest promised. It was held
#: once before, in a window and two pushes; these may have been cut otherwise.
_PROMISED_FACTOR = 4
#: Longest sleep of who waits for room or news before they look again whether the stream was stopped.
_WAIT_S_MAX = 0.5


class PushedLedgers:
    """One stream whose entries are pushed: a ``LedgerSource``. One broker pushes at a time.

    Args:
        stream: its name.
        committed: the manifest's committed end, ``None``: nothing is.
        closed: what the manifest knows of closed ledgers: id -> last entry id.
        promised: the highest position that the manifest ever promised: until the broker pushed up to it this source
            can't be reached, because what it doesn't have yet must not look lost.
        window_bytes_max: memory for entries that no segment took yet; one push more may be held.
        push_bytes_max: the largest push there is.
        memory: of all such streams of the process.
        clock: for times of ledgers.

    Attributes:
        offered: asks what became of entries; set before the first push. Called without locks of this object.
    """

    def __init__(
        self,
        stream: str,
        *,
        committed: Position | None,
        closed: Mapping[int, int],
        promised: Position | None,
        window_bytes_max: int,
        push_bytes_max: int,
        memory: PushMemory,
        clock: Clock,
    ) -> None:
        self.stream = stream
        self.offered: Callable[[], Offered] = Offered
        self._clock = clock
        self._listeners = Listeners(stream)
        self._changed = threading.Condition()
        self._committed = committed
        self._promised = promised
        self._closed: dict[int, int] = {}
        self._ledgers: dict[int, LedgerInfo] = {}
        self._window = PushWindow(window_bytes_max, memory)
        self._promised_bytes_max = _PROMISED_FACTOR * (window_bytes_max + push_bytes_max)
        #: The newest entry that was let go of because a segment took it.
        self._let_go: Position | None = None
        self._all_read = False
        #: Grows when the broker goes on elsewhere than after what it pushed last.
        self._turns = 0
        self._must_push_again = False
        self._ended = False
        self._end: Position | None = None
        self._begin_after(committed, closed)

    # -- the broker's side

    @property
    def waits_for_broker(self) -> bool:
        """Whether entries are missing that only the broker has."""
        with self._changed:
            return self._must_push_again

    def news(self) -> PushNews:
        """How far entries are taken and durable now."""
        offered = self.offered()
        with self._changed:
            self._note(offered)
            return PushNews(self._end, self._committed)

    def wait_for_news(self, seen: PushNews, within_s: float) -> PushNews:
        """The news when it isn't ``seen`` any more, when something happened, or after ``within_s``."""
        deadline_s = self._clock.monotonic_s() + within_s
        happened = False
        while True:
            found = self.news()
            left_s = deadline_s - self._clock.monotonic_s()
            if found != seen or left_s <= 0 or happened or self._ended:
                return found
            with self._changed:
                if PushNews(self._end, self._committed) == seen:
                    happened = self._changed.wait(min(left_s, _WAIT_S_MAX))

    def wake(self) -> None:
        """Lets everybody who waits look again."""
        with self._changed:
            self._changed.notify_all()

    def push(
        self,
        batches: Sequence[EntryBatch],
        ends: Sequence[LedgerEnd],
        *,
        within_s: float,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Pushed:
        """Takes what is new of a push, all of it or its beginning: ``news`` says where to go on.

        Waits for room: that is the back-pressure.

        Args:
            batches: each of one ledger, in memory that nobody changes any more.
            ends: ledgers that are closed, as the broker says with these entries.
            within_s: longest wait.
            is_wanted: whether whoever pushes still may.

        Raises:
            NotNext, InvalidCall: as ``new_pieces``; nothing was taken.
            SourceMismatch: an entry that is held has other bytes; nothing was taken.
            StoreUnavailable: no room within that time.
            what stopped the stream: Fenced, Corrupt, Closed and others.
        """
        deadline_s = self._clock.monotonic_s() + within_s
        given = sum(map(len, batches))
        self.news()  # what an earlier owner's segment brought may be ahead of the broker
        with self._changed:
            self._require_same(batches)
            turns = self._turns
            try:
                pieces = new_pieces(self.stream, self._end, self._closed, batches, ends)
            except NotNext:
                if self._must_push_again:
                    return Pushed(0, 0)  # pushed before the broker heard that it has to go back
                raise
        taken = 0
        for piece in pieces:
            closed = self._add(piece, turns, deadline_s, is_wanted)
            if closed is None:
                break
            self._listeners.tell_all([] if piece.batch is None else [piece.batch], closed)
            taken += 0 if piece.batch is None else len(piece.batch)
        return Pushed(taken, given - new_size(pieces))

    def end(self) -> None:
        """Nothing is taken any more; lets go of everything. Calling it twice is fine."""
        with self._changed:
            self._ended = True
            self._forget_window()
            self._changed.notify_all()

    # -- LedgerSource

    def ledgers(self) -> list[LedgerInfo]:
        """From the committed end's ledger on.

        Raises:
            StoreUnavailable: something that only the broker has is missing.
        """
        with self._reachable():
            return list(self._ledgers.values())

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        with self._reachable():
            if self._let_go is not None and start <= self._let_go:
                raise StoreUnavailable(f"stream {self.stream}: {start} is on its way into a segment")
            found = self._window.find(start)
            if found is None:
                return None
            skip = max(0, start.entry_id - found.first.entry_id) if start.ledger_id == found.ledger_id else 0
            rest = found.slice(skip, len(found))
            fits = int(np.searchsorted(np.cumsum(rest.lengths, dtype=np.int64), max_bytes, side="right"))
            piece = rest.slice(0, max(1, fits))
            if piece.last == self._end:
                self._all_read = True
                self._changed.notify_all()
            return piece

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> ListenerSubscription:
        return self._listeners.add(listener, closed)

    def release(self, position: Position) -> None:
        offered = Offered(committed=position)
        with self._changed:
            self._note(offered)

    def delete(self, ledger_id: int) -> None:
        """Lists a closed and durable ledger no more; the broker decides about its copy, by what it hears."""
        with self._changed:
            info = self._ledgers.get(ledger_id)
            if info is None or not info.closed or self._committed is None:
                return
            if Position(ledger_id, info.last_entry_id) <= self._committed:
                del self._ledgers[ledger_id]

    # -- what is held

    def _begin_after(self, committed: Position | None, closed: Mapping[int, int]) -> None:
        """Entries come after ``committed`` next, as far as anybody here knows."""
        self._end = committed
        self._closed, self._ledgers = {}, {}
        if committed is None:
            return
        last = closed.get(committed.ledger_id)
        info = LedgerInfo(
            ledger_id=committed.ledger_id,
            closed=last == committed.entry_id,
            entries=committed.entry_id + 1,
            size_bytes=0,
            created_ms=self._clock.now_ms(),
            closed_ms=self._clock.now_ms() if last == committed.entry_id else None,
            is_exact=False,
        )
        self._ledgers[info.ledger_id] = info
        if last is not None:
            self._closed[info.ledger_id] = last

    def _add(
        self, piece: Piece, turns: int, deadline_s: float, is_wanted: Callable[[], bool]
    ) -> list[LedgerInfo] | None:
        """Adds a piece as soon as there is room; which ledgers end with it. ``None``: it wasn't added, where the broker
        goes on has changed meanwhile."""
        size_bytes = 0 if piece.batch is None else kept_bytes(piece.batch)
        while True:
            offered = self.offered()
            with self._changed:
                self._note(offered)
                if offered.error is not None:
                    raise offered.error
                if self._turns != turns or self._ended or not is_wanted():
                    return None
                if self._has_room(size_bytes):
                    return self._append(piece)
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise StoreUnavailable(
                        f"stream {self.stream}: {self._window.held_bytes} bytes wait for a segment, and there was no "
                        f"room for {size_bytes} more in time",
                        hint="go on after what is taken; if this stays, look at the stream's status",
                    )
                self._changed.wait(min(left_s, _WAIT_S_MAX))

    def _has_room(self, size_bytes: int) -> bool:
        """Takes the bytes; an empty window, and one that was read to its end, always takes one push more: the writer
        has nothing else to go on with. So does one that lacks what was promised: without that nothing goes on either.
        """
        must = self._window.is_empty or self._all_read
        if self._is_owed() and self._window.held_bytes < self._promised_bytes_max:
            must = True
        return self._window.take(size_bytes, must=must)

    def _is_owed(self) -> bool:
        return self._promised is not None and (self._end is None or self._end < self._promised)

    def _require_same(self, batches: Sequence[EntryBatch]) -> None:
        for batch in batches:
            other = None if self._end is None or batch.first > self._end else self._window.other_entry(batch)
            if other is not None:
                raise SourceMismatch(
                    f"stream {self.stream}: {other} was pushed again with other bytes: this is another log",
                    hint="nothing was taken: go on with the log that was pushed before, or push to another stream",
                )

    def _append(self, piece: Piece) -> list[LedgerInfo]:
        closed: list[LedgerInfo] = []
        if piece.closed is not None:
            self._closed[piece.closed.ledger_id] = piece.closed.last_entry_id
            closed.append(self._close(piece.closed.ledger_id))
        batch = piece.batch
        if batch is None:
            return closed
        info = self._ledgers.get(batch.ledger_id) or LedgerInfo(
            ledger_id=batch.ledger_id,
            closed=False,
            entries=0,
            size_bytes=0,
            created_ms=self._clock.now_ms(),
            is_exact=False,
        )
        self._ledgers[batch.ledger_id] = replace(
            info, entries=batch.last.entry_id + 1, size_bytes=info.size_bytes + batch.payload_bytes
        )
        if self._closed.get(batch.ledger_id) == batch.last.entry_id:
            closed.append(self._close(batch.ledger_id))  # known from the manifest, or from before it was pushed again
        self._window.add(batch)
        self._end = batch.last
        self._must_push_again = self._all_read = False
        self._changed.notify_all()
        return closed

    def _close(self, ledger_id: int) -> LedgerInfo:
        info = replace(self._ledgers[ledger_id], closed=True, closed_ms=self._clock.now_ms())
        self._ledgers[ledger_id] = info
        return info

    def _note(self, offered: Offered) -> None:
        """Lets go of what a segment took and of what is committed; under the lock."""
        if offered.committed is not None and (self._committed is None or offered.committed > self._committed):
            self._commit(offered.committed)
        known = _newest(offered.offered, self._committed)
        last = None if known is None else self._window.drop_up_to(known)
        if last is not None:
            if self._committed is None or last > self._committed:
                self._let_go = last
            self._changed.notify_all()

    def _commit(self, committed: Position) -> None:
        self._committed = committed
        if self._let_go is not None and self._let_go <= committed:
            self._let_go = None
        if self._end is None or self._end < committed:
            # An earlier owner's segment was complete after all: the broker may go on behind it.
            self._turns += 1
            self._forget_window()
            self._begin_after(committed, self._closed)
            self._must_push_again = False
        self._ledgers = {each: info for each, info in self._ledgers.items() if each >= committed.ledger_id}
        self._closed = {each: last for each, last in self._closed.items() if each >= committed.ledger_id}
        self._changed.notify_all()

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        """The lock, while nothing is missing that only the broker has.

        Raises:
            StoreUnavailable: the broker has to push again first.
        """
        # In this order: what was let go of had been offered, so that less offered afterwards means a segment failed.
        let_go = self._let_go
        offered = self.offered()
        with self._changed:
            self._note(offered)
            known = _newest(offered.offered, self._committed)
            if let_go is not None and self._let_go is not None and (known is None or known < let_go):
                self._push_again()
            pushed = not self._window.is_empty or self._let_go is not None
            if self._must_push_again or self._ended or (pushed and self._is_owed()):
                raise StoreUnavailable(
                    f"stream {self.stream}: the broker has to push again what comes after {self._end or 'nothing'}",
                    hint="it is asked to; nothing is lost: its copy may go only when entries are durable",
                )
            yield

    def _push_again(self) -> None:
        """A segment failed that had taken entries which aren't here any more."""
        self._turns += 1
        self._must_push_again = True
        self._forget_window()
        self._begin_after(self._committed, self._closed)
        self._changed.notify_all()

    def _forget_window(self) -> None:
        self._window.clear()
        self._let_go = None
        self._all_read = False


def _newest(*positions: Position | None) -> Position | None:
    return max((each for each in positions if each is not None), default=None)
