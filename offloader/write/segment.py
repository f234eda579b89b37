"""One open segment: takes entries until it is closed, and ends as two objects.

**The problem.** Entries arrive in a callback of the source, which must not wait for a request. Encoding and sending run
on workers, several parts in parallel. Meanwhile the memory of the stream is bounded, and a failure at any place has to
free every byte once and report one result.

**States.** A handle is open until ``close`` or a failure. The stream closes it at its size and age limits. A closed
handle completes the entries that it has. It ends with exactly one result (``_settled``): both objects are in the store,
or an error. Without entries it ends without objects. ``_assigned`` is independent of these states: before it is set,
entries are taken and encoded, but no request is sent.

**Invariants.**

* Each entry follows the one before it, by entry id or by a known end of its ledger. A refused entry changes nothing.
* A held byte is in one of four places: pending, being encoded, in the open block and part, or in a part that the store
  hasn't acknowledged. The stream's buffer counts their sum. Pending bytes are counted when they are offered, the others
  by ``_count`` after each change.
* One worker at a time encodes. It stops while ``READY_PARTS_MAX`` parts wait for a connection, so that entries wait
  unencoded. Each finished part schedules it again.
* The stream's lock guards counters and queues. Encoding and requests run without it.

**Order of durable steps.**

1. The caller records the segment as assigned (M4), then calls ``start_sending``.
2. Parts are sent in parallel. The first one begins the upload. If the segment ends as one unsent part, that part is a
   single PUT.
3. The index is sent as soon as the last part is made, in parallel with the remaining parts.
4. After the last part the upload is completed, and the length of the data object is compared with the bytes sent.
5. After steps 3 and 4 the caller gets the result and records ``offloaded``. Only then are entries acknowledged (M16).

**After a crash.** No entry of the segment is acknowledged before step 5. Before step 1 the store has nothing of the
segment. A crash before the upload is complete leaves at most an unfinished upload and an index; the next owner fails
the segment and offloads its entries again. From step 4 on the data object is complete: the next owner adopts it, with
the existing index or a new one (``offloader.write.epoch``).

**After a failure** (``_fail``) all held bytes are dropped and the upload is aborted. The stream reads the entries
again, into a segment with another uuid. A fenced writer doesn't abort, because the new owner settles the segment.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias
from uuid import UUID

from formats.block_memory import BlockMemory
from formats.entries import ENTRY_HEADER_BYTES, Entry, EntryBatch, Position
from formats.extension import Codec
from formats.segment import FinishedSegment, LedgerFacts, Part, SegmentBuilder
from formats.summary import Layout, SegmentSummary
from offloader.coverage import KnownEnds, follows
from offloader.errors import ClosedError, InvalidCallError, LimitReachedError, OffloaderError
from offloader.runtime.workers import SerialTask, Workers
from offloader.settings import OffloadSettings
from offloader.write.quota import StreamQuota, part_bytes_for
from offloader.write.upload import SegmentUpload

#: Pending entries: a batch, or single entries, of one ledger or several.
Piece: TypeAlias = EntryBatch | list[Entry]

#: Pending single entries that are encoded whatever their size: as objects they take more memory than counted.
SINGLES_MAX = 2048
#: Pending batches that are encoded whatever their size.
PIECES_MAX = 64
#: Parts made ahead of a connection. Making one takes a fraction of the time to send it; more would need memory that the
#: system has to clear first, and evict the next block from the processor's cache.
READY_PARTS_MAX = 2
#: Pending batches are joined up to this length.
JOINED_BYTES_MIN = 1024 * 1024


@dataclass(slots=True, eq=False)
class PendingEntries:
    """Accepts consecutive entries, single or in batches, and returns them in that order, for ``joined``.

    Args:
        segment: the segment's name, for errors.
        after: the position the first entry has to follow, ``None``: any.
        limits: name of a setting -> its limit of an entry's payload bytes.

    Attributes:
        first: the oldest entry accepted.
        wire_bytes: bytes accepted since the beginning: payloads and a 12-byte header each.
        waiting_bytes: the pending part of them.
        facts: the source's facts about closed ledgers.
        next_ledger_id, next_entry_id: the entry that follows in the same ledger; -1 before the first.
        singles: entries accepted one by one after the last batch.
    """

    _segment: str
    _after: Position | None
    _limits: dict[str, int]
    first: Position | None = field(default=None, init=False)
    wire_bytes: int = field(default=0, init=False)
    waiting_bytes: int = field(default=0, init=False)
    facts: dict[int, LedgerFacts] = field(default_factory=dict, init=False)
    next_ledger_id: int = field(default=-1, init=False)
    next_entry_id: int = field(default=-1, init=False)
    singles: list[Entry] = field(default_factory=list, init=False)
    _closed_ledgers: KnownEnds = field(default_factory=KnownEnds, init=False)
    #: Pieces before ``singles``, each with its bytes; and their total.
    _pieces: deque[tuple[Piece, int]] = field(default_factory=deque, init=False)
    _pieces_bytes: int = field(default=0, init=False)

    @property
    def last(self) -> Position | None:
        """The newest entry accepted."""
        return None if self.first is None else Position(self.next_ledger_id, self.next_entry_id - 1)

    def is_worth_a_turn(self, bytes_min: int) -> bool:
        """Whether pending entries should be encoded: ``bytes_min``, or so many pieces that these take more memory than
        is counted. Less gathers until then, or until the segment closes."""
        return self.waiting_bytes >= bytes_min or len(self._pieces) >= PIECES_MAX or len(self.singles) >= SINGLES_MAX

    def ledger_closed(self, facts: LedgerFacts, last_entry_id: int) -> None:
        """Record that a ledger ends at ``last_entry_id`` (-1: empty), so that the next may follow."""
        self.facts[facts.ledger_id] = facts
        self._closed_ledgers[facts.ledger_id] = last_entry_id

    def check(self, first: Position, payload_bytes_max: int) -> None:
        """Check whether entries from ``first`` on, none larger than ``payload_bytes_max``, are acceptable.

        Raises:
            InvalidCallError: ``first`` doesn't follow the last accepted entry.
            LimitReachedError: an entry above a limit; names the setting.
        """
        for setting, limit_bytes in self._limits.items():
            if payload_bytes_max > limit_bytes:
                raise LimitReachedError(
                    f"segment {self._segment}: an entry of {payload_bytes_max} bytes at {first} or later is above "
                    f"the limit of {limit_bytes} set by {setting}"
                )
        before = self.last or self._after
        if before is not None and not follows(before, first, self._closed_ledgers):
            raise InvalidCallError(
                f"segment {self._segment}: {first} doesn't follow {before}", hint="nothing was accepted"
            )

    def add_entry(self, entry: Entry, wire_bytes: int) -> None:
        """Accept one entry and take ownership of its payload."""
        self.singles.append(entry)
        self._accepted(entry.position, entry.position, wire_bytes)

    def add_batch(self, batch: EntryBatch, wire_bytes: int) -> None:
        """Accept a batch and take ownership of its memory."""
        self._end_singles()
        self._pieces.append((batch, wire_bytes))
        self._pieces_bytes += wire_bytes
        self._accepted(batch.first, batch.last, wire_bytes)

    def take(self) -> tuple[list[Piece], int]:
        """The oldest pending entries, enough for one encoder run, and their bytes; empty when none are pending.

        Copies and builds nothing: the writer waits for the lock meanwhile.
        """
        self._end_singles()
        pieces, taken_bytes = list[Piece](), 0
        while self._pieces and taken_bytes < JOINED_BYTES_MIN:
            piece, size_bytes = self._pieces.popleft()
            pieces.append(piece)
            taken_bytes += size_bytes
        self._pieces_bytes -= taken_bytes
        self.waiting_bytes -= taken_bytes
        return pieces, taken_bytes

    def clear(self) -> None:
        """Drop pending entries."""
        self._pieces.clear()
        self.singles = []
        self._pieces_bytes = self.waiting_bytes = 0

    def _accepted(self, first: Position, last: Position, wire_bytes: int) -> None:
        self.first = self.first or first
        self.next_ledger_id, self.next_entry_id = last.ledger_id, last.entry_id + 1
        self.wire_bytes += wire_bytes
        self.waiting_bytes += wire_bytes

    def _end_singles(self) -> None:
        """Close the current run of single entries as one piece."""
        if self.singles:
            self._pieces.append((self.singles, self.waiting_bytes - self._pieces_bytes))
            self._pieces_bytes, self.singles = self.waiting_bytes, []


def joined(pieces: Sequence[Piece]) -> list[EntryBatch]:
    """Join consecutive pieces into batches, one for each ledger: a small one costs the encoder as much as tens of
    kilobytes."""
    batches = [batch for piece in pieces for batch in ([piece] if isinstance(piece, EntryBatch) else _built(piece))]
    return [EntryBatch.concat(list(same)) for _, same in itertools.groupby(batches, key=lambda batch: batch.ledger_id)]


def _built(singles: Sequence[Entry]) -> Iterator[EntryBatch]:
    for ledger_id, same in itertools.groupby(singles, key=lambda entry: entry.ledger_id):
        run = list(same)
        payloads, times_ms = [entry.payload for entry in run], [entry.publish_time_ms for entry in run]
        yield EntryBatch.build(ledger_id, run[0].entry_id, payloads, times_ms)


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """Content of a finished segment (PIP-76 ``OffloadResult``). Without entries: no objects, no ``summary``."""

    uuid: UUID
    summary: SegmentSummary | None

    @property
    def begin_ledger_id(self) -> int:
        """-1 without entries, like the other three."""
        return self.summary.begin.ledger_id if self.summary else -1

    @property
    def begin_entry_id(self) -> int:
        return self.summary.begin.entry_id if self.summary else -1

    @property
    def end_ledger_id(self) -> int:
        return self.summary.end.ledger_id if self.summary else -1

    @property
    def end_entry_id(self) -> int:
        return self.summary.end.entry_id if self.summary else -1


class OffloadHandle:
    """An open segment that takes entries until it is closed (PIP-76 ``OffloadHandle``).

    Entries are copied when they are offered, encoded and uploaded by workers, and counted in ``buffer`` until their
    part is acknowledged. The result arrives when both objects are in the store; the caller records it in the manifest.

    Args:
        uuid: the segment's name.
        buffer: the stream's count of held bytes.
        settings: block, part, entry and in-flight sizes.
        after: the position the first entry has to follow, ``None``: any.
        sending: whether parts are sent immediately; otherwise after ``start_sending``.
        on_change: called (from a worker) whenever bytes left the buffer or the result arrived.
        memory: allocates blocks; ``None``: new memory for each.
    """

    def __init__(
        self,
        *,
        uuid: UUID,
        upload: SegmentUpload,
        workers: Workers,
        buffer: StreamQuota,
        settings: OffloadSettings,
        after: Position | None = None,
        sending: bool = True,
        on_change: Callable[[], None] = lambda: None,
        memory: BlockMemory | None = None,
    ) -> None:
        self.uuid, self._upload, self._workers, self._buffer = uuid, upload, workers, buffer
        self._settings, self._on_change = settings, on_change
        self._new_builder = partial(
            SegmentBuilder,
            layout=Layout.V2,
            block_bytes=settings.block_size,
            part_bytes=part_bytes_for(settings),
            codec=Codec[settings.codec.upper()],
            memory=memory,
        )
        self._builder = self._new_builder()
        self._encode_task = SerialTask(workers, self._encode)
        self._result: Future[OffloadResult] = Future()
        self._result.set_running_or_notify_cancel()  # a caller may stop waiting, but can't cancel the upload

        # One lock for all segments of a stream and their buffer: an offer takes just that one.
        self._lock = buffer.lock
        self._open, self._settled = True, False
        self._failure: BaseException | None = None
        # Held bytes by place: pending, being encoded, in the open block and part, in unacknowledged parts.
        limits: dict[str, int] = {"entry_size_max": settings.entry_size_max}
        limits |= {name: limit - ENTRY_HEADER_BYTES for name, limit in buffer.limits.items()}
        self._intake = PendingEntries(str(uuid), after, limits)
        self._single_wire_max = min(limits.values()) + ENTRY_HEADER_BYTES
        self._encoding_bytes = self._builder_bytes = self._counted_bytes = 0
        # Parts, under the lock: those that wait for a connection, and the bytes of those that aren't acknowledged.
        self._assigned = sending
        self._ready: deque[Part] = deque()
        self._unsent_bytes = self._parts_in_flight = self._parts_made = 0
        self._multipart = self._index_begun = self._completion_begun = False
        self._objects_missing = 2
        #: The segment, when no more parts follow.
        self._finished: FinishedSegment | None = None

    def __repr__(self) -> str:
        state = "open" if self._open else "failed" if self._failure else "done" if self._result.done() else "closing"
        return f"<OffloadHandle {self.uuid} {state} {self._intake.first or ''}..{self._intake.last or ''}>"

    def last_offered(self) -> Position | None:
        """The newest entry taken, ``None`` before the first."""
        return self._intake.last

    @property
    def wire_bytes(self) -> int:
        """Bytes taken so far: payloads and a 12-byte header each."""
        return self._intake.wire_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of this segment in memory now."""
        with self._lock:
            return self._held()

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def can_drain(self) -> bool:
        """Whether held bytes will be flushed without another offer: parts are being sent or made."""
        with self._lock:
            if not self._assigned:
                return False
            moving = not self._open or self._is_moving() or bool(self._encoding_bytes)
            return moving or self._intake.is_worth_a_turn(self._settings.block_size)

    @property
    def is_leaving(self) -> bool:
        """Whether some held bytes are being sent, or will be without another event, and so are freed eventually. Bytes
        that are only being encoded may remain."""
        with self._lock:
            return self._is_moving() or (not self._open and self._held() > 0)

    def can_offer(self, size: int) -> bool:
        """Whether an entry of ``size`` payload bytes would be taken now."""
        return self._open and self._failure is None and self._buffer.room_bytes >= size + ENTRY_HEADER_BYTES

    def ledger_closed(self, facts: LedgerFacts, last_entry_id: int) -> None:
        """Record that a ledger ends at ``last_entry_id`` (-1: empty), so that the next may follow."""
        with self._lock:
            self._intake.ledger_closed(facts, last_entry_id)

    def offer_entry(self, entry: Entry) -> bool:
        """Take a copy of one entry, or return False when the buffer is full.

        Raises:
            ClosedError: the handle was closed, or its upload failed.
            InvalidCallError: the entry doesn't follow the last one; the segment is unchanged.
            LimitReachedError: the entry is larger than ``entry_size_max``.
        """
        ledger_id, entry_id, payload, _ = entry
        size_bytes = len(payload) + ENTRY_HEADER_BYTES
        intake, buffer = self._intake, self._buffer
        with self._lock:
            held_bytes = buffer.held_bytes + size_bytes
            # Fast path, without a call: the next entry of the ledger, into bytes already granted.
            if (
                entry_id == intake.next_entry_id
                and ledger_id == intake.next_ledger_id
                and size_bytes <= self._single_wire_max
                and held_bytes <= buffer.granted_bytes
                and held_bytes <= buffer.limit_bytes
                and self._open
                and type(payload) is bytes
            ):
                buffer.held_bytes = held_bytes
                intake.singles.append(entry)
                intake.next_entry_id = entry_id + 1
                intake.wire_bytes += size_bytes
                intake.waiting_bytes += size_bytes
            else:
                self._require_takes(Position(ledger_id, entry_id), len(payload))
                own = entry._replace(payload=bytes(payload))
                if not buffer.take(size_bytes):
                    return False
                intake.add_entry(own, size_bytes)
            # Inlined ``is_worth_a_turn`` for single entries.
            if intake.waiting_bytes < self._settings.block_size and len(intake.singles) < SINGLES_MAX:
                return True
        self._encode_task.schedule()
        return True

    def offer_batch(self, batch: EntryBatch, *, own: bool = False) -> int:
        """Take copies of as many leading entries as fit; returns their number.

        Args:
            batch: entries of one ledger, without gaps.
            own: the batch's memory is immutable from now on: then it is kept, unless most of it belongs to other
                entries.

        Raises: like ``offer_entry``, and then nothing of the batch was taken.
        """
        if len(batch) == 0:
            return 0
        if int(batch.entry_ids[-1] - batch.entry_ids[0]) != len(batch) - 1:
            raise InvalidCallError(
                f"a batch of ledger {batch.ledger_id} has gaps between {batch.first} and {batch.last}"
            )
        if len(batch) == 1:
            # Treat a batch of one as an entry, which waits for others: a batch costs more than its content, here and in
            # the encoder.
            return int(self.offer_entry(next(batch.entries())))
        wire_bytes = batch.wire_bytes
        largest_bytes = wire_bytes if wire_bytes <= self._single_wire_max else int(batch.lengths.max())
        with self._lock:
            self._require_takes(batch.first, largest_bytes)
            # Usually all of it fits, and no entry needs a check.
            count = len(batch) if self._buffer.take(wire_bytes) else self._buffer.take_leading(batch.lengths)
            if count == 0:
                return 0
            taken = batch.slice(0, count) if count < len(batch) else batch
            try:
                kept = taken.compact() if own else taken.copy()
            except MemoryError:
                self._buffer.adjust(-taken.wire_bytes)
                raise
            self._intake.add_batch(kept, taken.wire_bytes)
            if self._intake.is_worth_a_turn(self._settings.block_size):
                self._encode_task.schedule()
        return count

    def get_offload_result_async(self) -> Future[OffloadResult]:
        """The result, once both objects are in the store and their lengths verified, or the error."""
        return self._result

    def start_sending(self) -> None:
        """Allow sending: the segment is recorded as assigned now."""
        with self._lock:
            self._assigned = True
        self._launch()

    def close(self) -> bool:
        """Refuse further entries and complete the segment. True if the handle was still open."""
        with self._lock:
            was_open, self._open = self._open, False
        if was_open:
            self._encode_task.schedule()
        return was_open

    def abandon(self, reason: OffloaderError, *, abort: bool) -> None:
        """Give the segment up: drop its bytes and set ``reason`` as the result.

        ``abort``: also abort the unfinished upload. A fenced writer doesn't, as it owns nothing there any more.
        """
        self._fail(reason, abort=abort)

    def _require_takes(self, first: Position, size_max: int) -> None:
        if not self._open:
            raise ClosedError(f"segment {self.uuid} is closed: {first} was offered")
        if self._failure is not None:
            raise ClosedError(f"segment {self.uuid} failed: {self._failure}") from self._failure
        self._intake.check(first, size_max)

    def _held(self) -> int:
        return self._intake.waiting_bytes + self._encoding_bytes + self._builder_bytes + self._unsent_bytes

    def _count(self) -> None:
        """Report this segment's held bytes to the stream's buffer; under the lock, after any change.

        Pending entries were counted when they were offered and aren't part of ``_counted_bytes``.
        """
        held = self._encoding_bytes + self._builder_bytes + self._unsent_bytes
        self._buffer.adjust(held - self._counted_bytes)
        self._counted_bytes = held

    def _encode(self) -> None:
        try:
            builder = self._builder
            while pieces := self._next_pieces():
                parts = [part for batch in joined(pieces) for part in builder.append(batch)]
                with self._lock:
                    if self._failure is not None:
                        return
                    self._encoding_bytes = 0
                    self._builder_bytes = builder.held_bytes
                    self._add(parts)
                self._launch()
            self._finish_if_closed()
            # Encoded bytes may remain in an unfinished part, which a waiter for room has to know.
            self._on_change()
        except BaseException as error:
            # For any error (memory, a bug): the segment fails and reports it to its stream, to avoid a silent stall.
            self._fail(error, abort=True)

    def _next_pieces(self) -> list[Piece]:
        with self._lock:
            # Parts that wait for a connection block the encoder, so that bytes wait unencoded, small and in one place.
            if self._failure is not None or len(self._ready) >= READY_PARTS_MAX:
                return []
            pieces, self._encoding_bytes = self._intake.take()
            # Counted already: it moves from pending to encoding.
            self._counted_bytes += self._encoding_bytes
            return pieces

    def _finish_if_closed(self) -> None:
        with self._lock:
            if self._open or self._intake.waiting_bytes or self._failure or self._finished:
                return
        if self._intake.first is None:
            self._resolve(OffloadResult(self.uuid, None))
            return
        finished = self._builder.finish(self._intake.facts)
        with self._lock:
            if self._failure is not None:
                return
            self._builder_bytes = 0
            # Without the parts: each is freed after its request, even while other threads still refer to the segment.
            self._finished = replace(finished, parts=[])
            self._add(finished.parts)
        self._launch()

    def _is_moving(self) -> bool:
        """Whether parts are in flight or about to be; under the lock."""
        return self._assigned and bool(self._ready or self._parts_in_flight)

    def _add(self, parts: Sequence[Part]) -> None:
        """Take the next parts; under the lock."""
        self._ready.extend(parts)
        self._parts_made += len(parts)
        self._unsent_bytes += sum(part.size_bytes for part in parts)
        self._count()

    def _launch(self) -> None:
        """Start all that may start now: parts up to the limit, the index, the completion after the last part."""
        start: list[Part] = []
        with self._lock:
            if self._failure is not None or not self._assigned:
                return
            while self._ready and self._parts_in_flight < self._settings.parts_in_flight_max:
                start.append(self._ready.popleft())
                self._parts_in_flight += 1
            finished = self._finished
            send_index = finished is not None and not self._index_begun
            is_sent = not self._ready and not self._parts_in_flight
            complete = finished is not None and is_sent and not self._completion_begun
            self._index_begun |= send_index
            self._completion_begun |= complete
            # A segment below one part is a single PUT; a full first part isn't while more entries may follow.
            whole = finished is not None and self._parts_made == 1 and not self._multipart
            self._multipart |= bool(start) and not whole
        for part in start:
            self._workers.submit(partial(self._send, part, whole))
        if finished is not None and send_index:
            self._workers.submit(partial(self._store, finished, lambda: self._upload.send_index(finished.index)))
        if finished is not None and complete:
            self._workers.submit(partial(self._store, finished, lambda: self._complete(finished)))

    def _send(self, part: Part, whole: bool) -> None:
        try:
            (self._upload.send_whole if whole else self._upload.send_part)(part)
        except BaseException as error:
            self._fail(error, abort=True)
            return
        finally:
            with self._lock:
                self._parts_in_flight -= 1
                if self._failure is None:
                    self._unsent_bytes -= part.size_bytes
                    self._count()
        self._launch()
        self._encode_task.schedule()
        self._on_change()

    def _complete(self, finished: FinishedSegment) -> None:
        if self._multipart:
            self._upload.complete()
        self._upload.verify_length(finished.summary.data_bytes)

    def _store(self, finished: FinishedSegment, send: Callable[[], None]) -> None:
        """Finish one of the two objects with ``send``, and report the segment after the second."""
        if self._failure is not None:  # it would only be one more object to sweep
            return
        try:
            send()
        except BaseException as error:
            self._fail(error, abort=True)
            return
        with self._lock:
            self._objects_missing -= 1
            sent = not self._objects_missing and self._failure is None
        if sent:
            self._resolve(OffloadResult(self.uuid, finished.summary))

    def _resolve(self, result: OffloadResult) -> None:
        with self._lock:
            if self._settled:
                return
            self._settled = True
        self._result.set_result(result)
        self._on_change()

    def _fail(self, error: BaseException, *, abort: bool) -> None:
        with self._lock:
            if self._settled:
                return
            self._settled, self._open, self._failure = True, False, error
            self._buffer.adjust(-self._intake.waiting_bytes)
            self._intake.clear()
            self._ready.clear()
            # Release the open block and part: they are no longer counted.
            self._builder = self._new_builder()
            self._encoding_bytes = self._builder_bytes = self._unsent_bytes = 0
            self._count()
        try:
            if abort:
                self._upload.abort()
        except OffloaderError as left:
            # The cause matters more than the remaining parts, which are swept later.
            error.add_note(f"its unfinished upload couldn't be aborted: {left}")
        finally:
            self._result.set_exception(error)
            self._on_change()
