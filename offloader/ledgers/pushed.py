"""Hot tier at a remote broker, which pushes entries and keeps its own copy until they are durable."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from formats.entries import EntryBatch, Position
from offloader.errors import (
    InvalidCallError,
    OffloaderError,
    SourceMismatchError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener, newest
from offloader.ledgers.tail_buffer import CHUNK_BYTES, Listeners, ListenerSubscription, kept_bytes, part_to_read
from offloader.runtime.clock import Clock
from offloader.stream_names import require_stream_name


class Offered(NamedTuple):
    """Offload progress of the pushed entries.

    Attributes:
        offered: the newest entry in a segment; moves back when a segment failed.
        committed: the newest durable entry.
        error: why the stream was stopped, ``None`` if it wasn't.
    """

    offered: Position | None = None
    committed: Position | None = None
    error: OffloaderError | None = None


class PushNews(NamedTuple):
    """Progress reported to the broker.

    Attributes:
        taken: the newest accepted entry: continue after it. Moves back when entries have to be pushed again.
        durable: the newest entry committed in the cold tier: the broker may delete its copy up to it.
    """

    taken: Position | None
    durable: Position | None


class Pushed(NamedTuple):
    """Result of one push: entries accepted, and entries that were there already."""

    taken: int
    repeated: int


class OutOfOrderError(InvalidCallError):
    """The pushed entries don't follow the accepted ones; none of them were accepted."""


class LedgerEnd(NamedTuple):
    """A ledger that the broker closed at ``last_entry_id`` (-1: empty)."""

    ledger_id: int
    last_entry_id: int


def new_pieces(
    stream: str,
    end: Position | None,
    closed: Mapping[int, int],
    batches: Sequence[EntryBatch],
    ends: Sequence[LedgerEnd],
) -> list[EntryBatch | LedgerEnd]:
    """The new part of a push, in order: entries of one ledger each, and ledgers' ends; empty if all of it is known.

    Args:
        end: the newest accepted entry, ``None``: none yet.
        closed: ledgers known to be closed -> last entry id.
        batches: pushed entries, each batch of one ledger and not empty.

    Raises:
        OutOfOrderError: entries are missing before them or between them, or a ledger's end wasn't pushed.
        InvalidCallError: ids descend or are negative, or the broker contradicts itself.
    """
    told = _told(stream, closed, ends)
    pieces: list[EntryBatch | LedgerEnd] = []
    at, before = end, None
    for batch in batches:
        _require_ascending(stream, before, batch)
        before = batch.last
        if at is not None and batch.last <= at:
            continue
        if at is not None and batch.ledger_id == at.ledger_id:
            pieces.append(_rest_of_ledger(stream, at, batch, told))
        elif batch.first.entry_id != 0:
            raise OutOfOrderError(
                f"stream {stream}: {batch.first} was pushed after {at or 'nothing'}: a ledger begins with entry 0",
                hint=f"push {batch.ledger_id}:0 first",
            )
        else:
            pieces += [batch] if at is None else [*_end_before(stream, at, batch.first, told, closed), batch]
        at = batch.last
    known = {*closed, *(each.ledger_id for each in pieces if isinstance(each, LedgerEnd))}
    return [*pieces, *_last_end(stream, at, [each for each in ends if each.ledger_id not in known])]


def _told(stream: str, closed: Mapping[int, int], ends: Sequence[LedgerEnd]) -> dict[int, int]:
    told = dict(closed)
    for each in ends:
        if each.ledger_id < 0 or each.last_entry_id < -1:
            raise InvalidCallError(f"stream {stream}: ledger {each.ledger_id} can't end at {each.last_entry_id}")
        if told.setdefault(each.ledger_id, each.last_entry_id) != each.last_entry_id:
            raise InvalidCallError(
                f"stream {stream}: ledger {each.ledger_id} ends at entry {each.last_entry_id}, according to the "
                f"broker; it reported {told[each.ledger_id]} earlier",
                hint="nothing was accepted: a closed ledger never changes",
            )
    return told


def _require_ascending(stream: str, before: Position | None, batch: EntryBatch) -> None:
    if batch.ledger_id < 0 or int(batch.entry_ids[0]) < 0:
        raise InvalidCallError(
            f"stream {stream}: {batch.first} is not a position", hint="use LEDGER:ENTRY, both 0 or more"
        )
    if before is not None and batch.first <= before:
        raise InvalidCallError(
            f"stream {stream}: {batch.first} was pushed after {before}", hint="ids ascend along a stream"
        )
    is_wrong = np.diff(batch.entry_ids) != 1
    # Differences of 64-bit numbers may wrap around; those of Python's don't.
    if not is_wrong.any() and int(batch.entry_ids[-1]) - int(batch.entry_ids[0]) == len(batch) - 1:
        return
    wrong = int(np.argmax(is_wrong))
    low, high = (Position(batch.ledger_id, int(batch.entry_ids[at])) for at in (wrong, wrong + 1))
    text = f"stream {stream}: {high} was pushed right after {low}"
    if high <= low:
        raise InvalidCallError(text, hint="ids ascend along a stream, one after the other")
    raise OutOfOrderError(text, hint="entries are missing between them: a ledger has no gaps")


def _rest_of_ledger(stream: str, at: Position, batch: EntryBatch, told: Mapping[int, int]) -> EntryBatch:
    if told.get(at.ledger_id, batch.last.entry_id) < batch.last.entry_id:
        raise InvalidCallError(
            f"stream {stream}: {batch.last} was pushed, but ledger {at.ledger_id} ends at entry {told[at.ledger_id]}",
            hint="nothing was accepted: a closed ledger never grows",
        )
    if batch.first.entry_id > at.entry_id + 1:
        raise OutOfOrderError(
            f"stream {stream}: {batch.first} was pushed after {at}",
            hint=f"push {at.next()} first: the entries in between are missing",
        )
    return batch.slice(at.entry_id + 1 - batch.first.entry_id, len(batch))


def _end_before(
    stream: str, at: Position, first: Position, told: Mapping[int, int], closed: Mapping[int, int]
) -> list[LedgerEnd]:
    """The end of the ledger of ``at``, unless known already; ``first`` begins another ledger."""
    if (last := told.get(at.ledger_id)) is None:
        raise OutOfOrderError(
            f"stream {stream}: {first} was pushed after {at}, but the end of ledger {at.ledger_id} wasn't reported",
            hint=f'send the fact with the batch, as application metadata: {{"closed": {{"{at.ledger_id}": '
            f"{at.entry_id}}}}}",
        )
    if last != at.entry_id:
        raise OutOfOrderError(
            f"stream {stream}: {first} was pushed after {at}, but ledger {at.ledger_id} ends at entry {last}",
            hint=f"push {at.next()} first: the entries in between are missing",
        )
    if skipped := [each for each, end in told.items() if at.ledger_id < each < first.ledger_id and end >= 0]:
        raise OutOfOrderError(
            f"stream {stream}: {first} was pushed after {at}, but ledger {min(skipped)} between them has entries",
            hint=f"push {min(skipped)}:0 first",
        )
    return [] if at.ledger_id in closed else [LedgerEnd(at.ledger_id, last)]


def _last_end(stream: str, at: Position | None, ends: Sequence[LedgerEnd]) -> Iterator[LedgerEnd]:
    """The end of the newest entry's ledger, if pushed now; checks the other pushed ends."""
    for each in ends:
        said = f"stream {stream}: ledger {each.ledger_id} ends at entry {each.last_entry_id}, according to the broker"
        if at is None or each.ledger_id > at.ledger_id:
            if each.last_entry_id < 0:
                continue  # empty: no entries of it will follow
            raise OutOfOrderError(f"{said}; none of its entries was pushed", hint=f"push {each.ledger_id}:0 first")
        if each.ledger_id < at.ledger_id:
            continue  # its entries are committed, or the repeated end was forgotten with them
        if each.last_entry_id < at.entry_id:
            raise InvalidCallError(
                f"{said}, but {at} was pushed", hint="nothing was accepted: a closed ledger never changes"
            )
        if each.last_entry_id > at.entry_id:
            raise OutOfOrderError(
                f"{said}; the newest pushed entry is {at}",
                hint="report the end of a ledger with its last entry, or later",
            )
        yield each


class PushMemory:
    """Bytes in all push windows of a process, ``held_bytes`` now. Thread-safe.

    Args:
        limit_bytes: above it, only streams that can't progress otherwise get memory, for one push each.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int, *, must: bool) -> bool:
        """Reserves ``size_bytes``; False if there is no room and the stream can wait (``must`` is off)."""
        with self._lock:
            if not must and self.held_bytes + size_bytes > self.limit_bytes:
                return False
            self.held_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Releases ``size_bytes``."""
        with self._lock:
            self.held_bytes -= size_bytes
            assert self.held_bytes >= 0, "more bytes given back than were held"


class PushWindow:
    """One stream's window: its ``batches`` in order, ``held_bytes`` of memory. The caller holds the stream's lock."""

    def __init__(self, limit_bytes: int, memory: PushMemory) -> None:
        self._limit_bytes, self._memory = limit_bytes, memory
        self.batches: deque[EntryBatch] = deque()
        self.held_bytes = 0

    def take(self, size_bytes: int, *, must: bool) -> bool:
        """Reserves memory for the next batch, of its ``kept_bytes``; False if there is no room."""
        has_room = must or self.held_bytes + size_bytes <= self._limit_bytes
        if not has_room or not self._memory.take(size_bytes, must=must):
            return False
        self.held_bytes += size_bytes
        return True

    def add(self, batch: EntryBatch) -> None:
        """Adds a batch whose memory is reserved. Joins small batches, whose overhead exceeds their payload."""
        newest = self.batches[-1] if self.batches else None
        apart_bytes = kept_bytes(batch) + (0 if newest is None else kept_bytes(newest))
        if newest is None or newest.ledger_id != batch.ledger_id or apart_bytes > CHUNK_BYTES:
            self.batches.append(batch)
            return
        self.batches[-1] = joined = EntryBatch.concat([newest, batch])
        self._give_back(apart_bytes - kept_bytes(joined))

    def other_entry(self, batch: EntryBatch) -> Position | None:
        """The first entry of ``batch`` that the window holds with different bytes."""
        for held in self.batches:
            first = max(held.first.entry_id, batch.first.entry_id)
            count = min(held.last.entry_id, batch.last.entry_id) + 1 - first
            if held.ledger_id != batch.ledger_id or count <= 0:
                continue
            ours, theirs = (each.payloads.slice(first - each.first.entry_id, count) for each in (held, batch))
            if (at := first_difference(ours, theirs)) is not None:
                return Position(held.ledger_id, first + at)
        return None

    def drop_up_to(self, position: Position) -> Position | None:
        """Drops whole batches up to ``position``; returns the newest dropped entry, ``None`` if none."""
        last: Position | None = None
        while self.batches and self.batches[0].last <= position:
            last = self.batches[0].last
            self._give_back(kept_bytes(self.batches.popleft()))
        return last

    def clear(self) -> None:
        """Drops everything."""
        self.batches.clear()
        self._give_back(self.held_bytes)

    def _give_back(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self._memory.give_back(size_bytes)


def first_difference(one: pa.BinaryArray, other: pa.BinaryArray) -> int | None:
    """Index of the first value that differs between two arrays of the same length."""
    return None if one.equals(other) else int(pc.index(pc.not_equal(one, other), True).as_py())


#: While the broker pushes what the manifest promised, the limit is this many times a window and a push. These entries
#: fitted into one window and two pushes before, but may have been batched differently.
_PROMISED_FACTOR = 4
#: Longest wait for room or news before checking again whether the stream was stopped.
_WAIT_S_MAX = 0.5


class PushedLedgers:
    """One stream of pushed entries: a ``LedgerSource``. One broker pushes at a time.

    Args:
        committed: the manifest's committed end, ``None``: nothing is committed.
        closed: closed ledgers in the manifest: id -> last entry id.
        promised: the highest position that the manifest ever promised. Until the broker has pushed up to it, this
            source raises ``StoreUnavailableError``: entries that it doesn't have yet aren't lost.
        window_bytes_max: memory for entries that are in no segment yet; one more push may be held.
        push_bytes_max: size of the largest push.
        memory: of all such streams of the process.

    Attributes:
        offered: returns the offload progress; set before the first push. Called without locks of this object.
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
        require_stream_name(stream)
        self.stream = stream
        self.offered: Callable[[], Offered] = Offered
        self._clock, self._committed, self._promised = clock, committed, promised
        self._listeners = Listeners(stream)
        self._changed = threading.Condition()
        self._closed: dict[int, int] = {}
        self._ledgers: dict[int, LedgerInfo] = {}
        self._window = PushWindow(window_bytes_max, memory)
        self._promised_bytes_max = _PROMISED_FACTOR * (window_bytes_max + push_bytes_max)
        #: Incremented when the broker has to continue elsewhere than after its last push.
        self._turns = 0
        #: The newest entry that was dropped because a segment took it.
        self._let_go: Position | None = None
        #: The first entry that the broker has to push again; ``None``: it continues after its last push.
        self._again: Position | None = None
        self._ended = False
        self._begin_after(committed, closed)

    @property
    def waits_for_broker(self) -> bool:
        """Whether entries are missing that only the broker has."""
        with self._changed:
            return self._again is not None

    def news(self) -> PushNews:
        """The accepted and durable ends now."""
        offered = self.offered()
        with self._changed:
            self._note(offered)
            return PushNews(self._end, self._committed)

    def wait_for_news(self, seen: PushNews, within_s: float) -> PushNews:
        """Returns the news when it differs from ``seen``, after an event, or after ``within_s``."""
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
        """Wakes all waiting threads."""
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
        """Accepts the new entries of a push, or a prefix of them: ``news`` tells where to continue.

        Waits for room: that is the back-pressure.

        Args:
            batches: each of one ledger, in immutable memory.
            ends: ledgers that the broker closed with these entries.
            within_s: longest wait.
            is_wanted: whether the producer may still push.

        Raises:
            OutOfOrderError, InvalidCallError: as ``new_pieces``; nothing was accepted.
            SourceMismatchError: a held entry has different bytes; nothing was accepted.
            StoreUnavailableError: no room within that time.
            the error that stopped the stream: FencedError, CorruptError, Closed and others.
        """
        deadline_s = self._clock.monotonic_s() + within_s
        given = sum(map(len, batches))
        self.news()  # an earlier owner's segment may be ahead of the broker
        with self._changed:
            self._require_same(batches)
            turns = self._turns
            try:
                pieces = new_pieces(self.stream, self._end, self._closed, batches, ends)
            except OutOfOrderError:
                if self._again is None:
                    raise
                return Pushed(0, 0)  # pushed before the broker received the order to go back
            first = next((piece.first for piece in pieces if isinstance(piece, EntryBatch)), None)
            if self._again is not None and first is not None and first > self._again:
                return Pushed(0, 0)  # likewise: it begins a later ledger
        new = sum(len(piece) for piece in pieces if isinstance(piece, EntryBatch))
        taken = 0
        if new < given:
            # Otherwise the repeated entries would remain in memory without being counted.
            pieces = [piece.copy() if isinstance(piece, EntryBatch) else piece for piece in pieces]
        for piece in pieces:
            if (closed := self._add(piece, turns, deadline_s, is_wanted)) is None:
                break
            added = [piece] if isinstance(piece, EntryBatch) else []
            self._listeners.tell_all(added, closed)
            taken += sum(map(len, added))
        return Pushed(taken, given - new)

    def end(self) -> None:
        """Accepts no more entries and drops the window. Idempotent."""
        with self._changed:
            self._ended = True
            self._drop_window()
            self._changed.notify_all()

    def ledgers(self) -> list[LedgerInfo]:
        """All ledgers from the committed end's on; ``StoreUnavailableError``: the broker has to push again first."""
        with self._reachable():
            return list(self._ledgers.values())

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        with self._reachable():
            if self._let_go is not None and start <= self._let_go:
                raise StoreUnavailableError(f"stream {self.stream}: {start} is being written to a segment")
            if (found := next((batch for batch in self._window.batches if batch.last >= start), None)) is None:
                return None
            piece = part_to_read(found, start, max_bytes)
            if piece.last == self._end:
                self._all_read = True
                self._changed.notify_all()
            return piece

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> ListenerSubscription:
        return self._listeners.add(listener, closed)

    def release(self, position: Position) -> None:
        with self._changed:
            self._note(Offered(committed=position))

    def delete(self, ledger_id: int) -> None:
        """Stops listing a closed, durable ledger; the broker decides about its copy from the news."""
        with self._changed:
            info, end = self._ledgers.get(ledger_id), self._committed or Position(-1, -1)
            if info is not None and info.closed and Position(ledger_id, info.last_entry_id) <= end:
                del self._ledgers[ledger_id]

    def _begin_after(self, committed: Position | None, closed: Mapping[int, int]) -> None:
        """Drops the held entries, and expects the next entries after ``committed``."""
        self._turns += 1
        self._drop_window()
        self._end = committed
        self._closed, self._ledgers = {}, {}
        if committed is None:
            return
        last = closed.get(committed.ledger_id)
        self._ledgers[committed.ledger_id] = self._new_ledger(committed.ledger_id, committed.entry_id + 1)
        if last is not None:
            self._closed[committed.ledger_id] = last
        if last == committed.entry_id:
            self._close(committed.ledger_id)

    def _new_ledger(self, ledger_id: int, entries: int = 0) -> LedgerInfo:
        return LedgerInfo(
            ledger_id=ledger_id,
            closed=False,
            entries=entries,
            size_bytes=0,
            created_ms=self._clock.now_ms(),
            is_exact=False,
        )

    def _add(
        self, piece: EntryBatch | LedgerEnd, turns: int, deadline_s: float, is_wanted: Callable[[], bool]
    ) -> list[LedgerInfo] | None:
        """Adds a piece once there is room; returns the ledgers it ends, ``None`` if the broker was sent back."""
        size_bytes = kept_bytes(piece) if isinstance(piece, EntryBatch) else 0
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
                    raise StoreUnavailableError(
                        f"stream {self.stream}: {self._window.held_bytes} bytes wait for a segment, and there was no "
                        f"room for {size_bytes} more in time",
                        hint="continue after the accepted entries; if the error persists, check the stream's status",
                    )
                self._changed.wait(min(left_s, _WAIT_S_MAX))

    def _has_room(self, size_bytes: int) -> bool:
        """Reserves memory for a piece.

        An empty window, and one read to its end, always accepts one more push: the writer has no other entries. So does
        a window that lacks promised entries: the stream can't progress without them.
        """
        lacks_promised = self._is_owed() and self._window.held_bytes < self._promised_bytes_max
        return self._window.take(size_bytes, must=not self._window.batches or self._all_read or lacks_promised)

    def _is_owed(self) -> bool:
        return self._promised is not None and (self._end is None or self._end < self._promised)

    def _require_same(self, batches: Sequence[EntryBatch]) -> None:
        for batch in batches:
            if (
                self._end is None
                or batch.first > self._end
                or len(batch) != batch.last.entry_id + 1 - batch.first.entry_id
            ):
                continue  # new, or with a gap: refused when it is accepted
            if (other := self._window.other_entry(batch)) is not None:
                raise SourceMismatchError(
                    f"stream {self.stream}: {other} was pushed again with other bytes: this is a different log",
                    hint="nothing was accepted: continue with the log that was pushed before, or push to "
                    "another stream",
                )

    def _append(self, piece: EntryBatch | LedgerEnd) -> list[LedgerInfo]:
        ledger_id = piece.ledger_id
        if isinstance(piece, LedgerEnd):
            self._closed[ledger_id] = piece.last_entry_id
            return [self._close(ledger_id)]
        info = self._ledgers.get(ledger_id) or self._new_ledger(ledger_id)
        self._ledgers[ledger_id] = replace(
            info, entries=piece.last.entry_id + 1, size_bytes=info.size_bytes + piece.payload_bytes
        )
        self._window.add(piece)
        self._end = piece.last
        self._again, self._all_read = None, False
        self._changed.notify_all()
        # The end may be known from the manifest, or from before it was pushed again.
        return [self._close(ledger_id)] if self._closed.get(ledger_id) == piece.last.entry_id else []

    def _close(self, ledger_id: int) -> LedgerInfo:
        info = self._ledgers[ledger_id] = replace(self._ledgers[ledger_id], closed=True, closed_ms=self._clock.now_ms())
        return info

    def _note(self, offered: Offered) -> None:
        """Drops entries that are in segments or committed. Call with the lock held."""
        if offered.committed is not None and (self._committed is None or offered.committed > self._committed):
            self._commit(offered.committed)
        known = newest(offered.offered, self._committed)
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
            # An earlier owner's segment turned out complete: the broker may continue after it.
            self._begin_after(committed, self._closed)
            self._again = None
        self._ledgers = {each: info for each, info in self._ledgers.items() if each >= committed.ledger_id}
        self._closed = {each: last for each, last in self._closed.items() if each >= committed.ledger_id}
        self._changed.notify_all()

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        """Holds the lock; ``StoreUnavailableError``: entries are missing that only the broker has."""
        # Read in this order: if less is offered than was dropped, a segment failed in between.
        let_go = self._let_go
        offered = self.offered()
        with self._changed:
            self._note(offered)
            known = newest(offered.offered, self._committed)
            if let_go is not None and self._let_go is not None and (known is None or known < let_go):
                self._again = self._first_not_committed()
                self._begin_after(self._committed, self._closed)
                self._changed.notify_all()
            pushed = bool(self._window.batches) or self._let_go is not None
            if self._again is not None or self._ended or (pushed and self._is_owed()):
                raise StoreUnavailableError(
                    f"stream {self.stream}: the broker has to push the entries after "
                    f"{self._end or 'the beginning'} again",
                    hint="the broker is asked to do so; nothing is lost: it deletes its copy only of durable entries",
                )
            yield

    def _first_not_committed(self) -> Position:
        """The first accepted entry that isn't durable; there is one."""
        after = self._committed or Position(-1, -1)
        begins = (max(Position(each, 0), after.next()) for each in self._ledgers)
        return next(each for each in begins if each.entry_id < self._ledgers[each.ledger_id].entries)

    def _drop_window(self) -> None:
        self._window.clear()
        self._let_go, self._all_read = None, False


class IdentifiedLedgers(PushedLedgers):
    """Pushed ledgers with the identity of the producer's log, its uuid ``source``: an ``IdentifiedSource``.

    The log is remote: it records no starts, and its producer picks the ledger ids. Its entries are compared with the
    stored ones before any are accepted.
    """

    def __init__(self, stream: str, source: UUID, **given: Any) -> None:
        super().__init__(stream, **given)
        self._source = source

    def source_id(self) -> UUID:
        """The id of the producer's log."""
        return self._source

    def has_start(self, token: str) -> bool:  # noqa: ARG002 - nothing is recorded here
        """Always true: the entries identify the log."""
        return True

    def record_start(self, token: str) -> None:
        """Does nothing: see ``has_start``."""

    def reached(self) -> Position | None:
        """``None``: the producer's log may have more than was pushed."""
        return None

    def next_ledger(self) -> int:
        """0: the producer picks the ids."""
        return 0

    def grant_ledgers(self, first: int, end: int) -> None:
        """Raises ``UnsupportedError``: the producer picks the ids."""
        raise UnsupportedError(f"stream {self.stream}: the producer picks the ids of ledgers, not {first} up to {end}")

    def ledgers_left(self) -> int | None:
        """``None``: the producer picks the ids."""
        return None

    def seed_ledgers(self, above: int) -> None:
        """Nothing: the producer picks the ids."""

    def noted_remedy(self) -> str:
        """Empty: nothing is noted."""
        return ""

    def note_manifest(self, incarnation: UUID, record_id: int) -> None:
        """Does nothing: a producer keeps no notes for its consumer."""

    def noted_manifests(self) -> list[tuple[UUID, int]]:
        """Empty: nothing is noted."""
        return []

    def note_store(self, store_id: UUID) -> None:
        """Does nothing, likewise."""

    def noted_store(self) -> UUID | None:
        """``None``: nothing is noted."""
        return None
