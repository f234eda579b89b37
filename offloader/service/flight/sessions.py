"""Producer sessions of Arrow Flight streams: one producer at a time, each batch acknowledged."""

from __future__ import annotations

import json
import logging
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
from numpy.typing import NDArray

from formats.checksum import crc32c
from formats.entries import ENTRY_HEADER_BYTES, EntryBatch, Position
from offloader import errors
from offloader.errors import ClosedError, InvalidCallError, LimitReachedError, OffloaderError, SourceMismatchError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.pushed import (
    IdentifiedLedgers,
    Offered,
    OutOfOrderError,
    PushedLedgers,
    PushMemory,
    PushNews,
    first_difference,
)
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.ledgers.tail_buffer import TailingSource
from offloader.manifest.catalog import require_free_name
from offloader.read.reader import Reader, load_stream, open_stream_reader
from offloader.runtime.clock import Clock
from offloader.service.flight.messages import Answer, PutRequest
from offloader.service.streams import ServedStreams, StreamSupervisor
from offloader.settings import FlightSettings, ReadSettings, Settings
from offloader.store.base import ObjectStore
from offloader.stream_names import require_stream_name
from offloader.write.stream import Mode


class Proof:
    """Verifies that one call pushes the stored log; also limits the call's news.

    Args:
        store: has the durable entries.
        is_named: whether the producer named its log; otherwise only entries pushed again are compared.
    """

    def __init__(self, source: PushedLedgers, store: ObjectStore, settings: ReadSettings, *, is_named: bool) -> None:
        self._source, self._store, self._settings = source, store, settings
        #: Must be verified before the producer gets all news.
        self._wanted = source.news().durable if is_named else None
        self._proven: Position | None = None
        self._reader: Reader | None = None
        self._seen = PushNews(None, None)

    def begin(self, last: Position, crc32: int) -> None:
        """Compares the newest entry that was acknowledged to the producer as durable. Raises ``SourceMismatchError``:
        it isn't durable, or differs."""
        durable = self._source.news().durable
        if durable is None or last > durable:
            raise another_log(
                self._source.stream, f"the producer knows {last} as durable, and {durable or 'nothing'} is"
            )
        for stored in self._stored(last, last):
            found = zlib.crc32(stored.payloads[0].as_buffer() or b"")
            if found != crc32:
                raise another_log(
                    self._source.stream, f"entry {last} has CRC-32 {crc32:#010x}, stored is {found:#010x}"
                )
        self._proven = last

    def compare(self, batches: Sequence[EntryBatch]) -> None:
        """Compares entries pushed again with the durable ones.

        Raises:
            SourceMismatchError: a durable entry has other bytes.
            OutOfOrderError: new entries before the producer's log was verified.
        """
        durable = self._source.news().durable
        for batch in batches:
            first, last = batch.first, batch.last
            if len(batch) != last.entry_id + 1 - first.entry_id:
                continue  # a gap: refused when it is accepted
            if durable is not None and first <= durable:
                again = batch.between(first, min(last, durable))
                self._compare(again)
                self._proven = max(self._proven or again.last, again.last)
            if self._wanted is not None and last > self._wanted and not self._is_proven:
                raise OutOfOrderError(
                    f"stream {self._source.stream}: {first} was pushed, but it isn't verified that this log has the "
                    f"durable entries up to {self._wanted}",
                    hint=f"push again from after {self._proven or 'the beginning'}, or give last and crc32 of the "
                    "newest entry that was durable",
                )

    def close(self) -> None:
        """Closes the reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def news(self) -> PushNews:
        """Accepted and durable positions, as far as the log is verified."""
        return self._limited(self._source.news())

    def wait_for_news(self, seen: PushNews, within_s: float) -> PushNews:  # noqa: ARG002 - the reported news may be limited
        """The news after a change since the last call, a wake-up, or ``within_s``."""
        self._seen = self._source.wait_for_news(self._seen, within_s)
        return self._limited(self._seen)

    def wake(self) -> None:
        """Wakes all waiting threads."""
        self._source.wake()

    @property
    def _is_proven(self) -> bool:
        return self._wanted is None or (self._proven is not None and self._proven >= self._wanted)

    def _limited(self, news: PushNews) -> PushNews:
        if self._is_proven:
            return news
        return PushNews(*(each and self._proven and min(each, self._proven) for each in news))

    def _compare(self, again: EntryBatch) -> None:
        for stored in self._stored(again.first, again.last):
            at = first_difference(again.between(stored.first, stored.last).payloads, stored.payloads)
            if at is not None:
                other = Position(stored.ledger_id, stored.first.entry_id + at)
                raise another_log(self._source.stream, f"{other} was pushed again with other bytes")

    def _stored(self, first: Position, last: Position) -> list[EntryBatch]:
        """The stored entries of a range; fewer where retention deleted some, or a gap was recorded."""
        if self._reader is None or self._reader.last_position is None or self._reader.last_position < last:
            self.close()
            self._reader = open_stream_reader(self._store, self._source.stream, settings=self._settings)
        begin = self._reader.first_position
        return [] if begin is None or begin > last else list(self._reader.scan(max(first, begin), last))


def another_log(stream: str, why: str, known: UUID | None = None) -> SourceMismatchError:
    """The error for a producer whose log isn't the stored one."""
    return SourceMismatchError(
        f"stream {stream}: the stored log{'' if known is None else f' {known}'} isn't this producer's: {why}. "
        "Nothing was accepted",
        hint="continue with the log that was pushed before, or push this log to another stream",
    )


#: Maximum number of producers of one stream that number their batches; the numbers are kept forever.
PRODUCERS_MAX = 256
#: The note of the newest numbers of all producers.
_NOTE = "flight-producers"
#: Batches of each producer whose checksums are kept, to distinguish a repetition from other entries with the same
#: number.
REPEATS_MAX = 256
#: A batch's number and the checksum of its payloads.
_REPEAT = struct.Struct("<QI")
#: Maximum sleep of a waiter between two polls for news.
_WAIT_S_MAX = 0.5


class AppendedLedgers(TailingSource):
    """An embedded stream as a ``LedgerSource``, with appends of its producers. Thread-safe.

    Args:
        tail_bytes_max: newest entries kept in memory.

    Attributes:
        offered: returns the state of the entries' offload; set before the first append.
    """

    def __init__(self, inner: EmbeddedStream, tail_bytes_max: int, clock: Clock) -> None:
        super().__init__(inner, tail_bytes_max)
        self._stream, self._clock = inner, clock
        self.offered: Callable[[], Offered] = Offered
        self._changed = threading.Condition()
        self._appending = threading.Lock()
        self._sequences: dict[str, int] = {}
        #: Producer -> checksums of its newest batches; read when it sends its first one.
        self._checksums: dict[str, dict[int, int]] = {}
        self._end: Position | None = None
        #: Whether the state must be read from the database, because an append was aborted.
        self._in_doubt = True
        self._look_up()

    def sequence(self, producer: str) -> int | None:
        """The newest durable batch number of a producer. Raises like a database read if the state must be read."""
        with self._appending:
            self._look_up()
            return self._sequences.get(producer)

    def append(
        self, payloads: pa.BinaryArray, times_ms: NDArray[np.int64] | None, *, producer: str, sequence: int | None
    ) -> list[EntryBatch]:
        """Appends a batch; returns what was written, empty if the producer repeats one.

        Args:
            producer, sequence: its name and the batch's number; repetitions are detected only with both.

        Raises:
            InvalidCallError: a number without a producer.
            LimitReachedError: too many producers.
            SourceMismatchError: the number was used for other payloads, or that can't be excluded.
            Like ``EmbeddedStream.append``.
        """
        with self._appending:
            self._look_up()
            notes, checksums = dict[str, bytes](), dict[int, int]()
            if sequence is not None:
                self._require_producer(producer)
                checksums, checksum = self._checksums_of(producer), _payload_checksum(payloads)
                if sequence <= self._sequences.get(producer, -1):
                    self._require_same(producer, sequence, checksums.get(sequence), checksum)
                    return []
                checksums = dict([*checksums.items(), (sequence, checksum)][-REPEATS_MAX:])
                notes = {
                    _NOTE: json.dumps({**self._sequences, producer: sequence}).encode(),
                    _repeats_note(producer): b"".join(_REPEAT.pack(*each) for each in checksums.items()),
                }
            self._in_doubt = True
            written = self._stream.append(payloads, times_ms, notes=notes)
            if sequence is not None:
                self._sequences[producer], self._checksums[producer] = sequence, checksums
            self._end = written[-1].last if written else self._end
            self._in_doubt = False
        self.wake()
        return written

    def news(self) -> PushNews:
        """The newest entry, and the newest that is committed in the cold tier."""
        return PushNews(self._end, self.offered().committed)

    def wait_for_news(self, seen: PushNews, within_s: float) -> PushNews:
        """The news after it differs from ``seen``, a wake-up, or ``within_s``."""
        deadline_s = self._clock.monotonic_s() + within_s
        happened = False
        while True:
            with self._changed:
                found = self.news()
                left_s = deadline_s - self._clock.monotonic_s()
                if found != seen or left_s <= 0 or happened:
                    return found
                happened = self._changed.wait(min(left_s, _WAIT_S_MAX))

    def wake(self) -> None:
        """Wakes all waiting threads."""
        with self._changed:
            self._changed.notify_all()

    def close_ledger(self) -> LedgerInfo | None:
        """Closes the open ledger, so that the next append opens another."""
        return self._stream.close_ledger()

    #: Frees the entries in memory. Idempotent.
    end = TailingSource.close

    def release(self, position: Position) -> None:
        super().release(position)
        self.wake()

    def _look_up(self) -> None:
        """Reads the written entries from the database if the outcome is unknown. Call with the lock held."""
        if self._in_doubt:
            self._sequences = json.loads(self._stream.get_note(_NOTE) or b"{}")
            self._checksums.clear()
            self._end = self._stream.last_position()
            self._in_doubt = False

    def _checksums_of(self, producer: str) -> dict[int, int]:
        """Checksums of the producer's newest batches by their numbers, ascending."""
        if producer not in self._checksums:
            note = self._stream.get_note(_repeats_note(producer)) or b""
            self._checksums[producer] = dict(_REPEAT.iter_unpack(note))
        return self._checksums[producer]

    def _require_producer(self, producer: str) -> None:
        if not producer:
            raise InvalidCallError("a batch has a sequence but no producer", hint="name the producer in the descriptor")
        if producer not in self._sequences and len(self._sequences) >= PRODUCERS_MAX:
            raise LimitReachedError(
                f"{PRODUCERS_MAX} producers have numbered their batches, the maximum; {producer!a} is a new one",
                hint="use the same names again, or send without a sequence",
            )

    def _require_same(self, producer: str, sequence: int, known: int | None, found: int) -> None:
        """Raises an error unless a batch with a used number equals the appended one."""
        if known == found:
            return
        newest = self._sequences[producer]
        why = (
            f"it isn't one of the {REPEATS_MAX} newest numbers, so its payloads can't be compared"
            if known is None
            else "it was used for other payloads"
        )
        error = SourceMismatchError(
            f"stream {self._stream.stream}: producer {producer!a} sent sequence {sequence}, and its newest is "
            f"{newest}: {why}. Nothing was appended",
            hint=f"continue with {newest + 1}; give each producer a different name",
        )
        _log.warning(
            "%s", error,
            extra={
                "event": "flight_sequence_refused", "stream": self._stream.stream, "producer": producer,
                "sequence": sequence,
            },
        )  # fmt: skip
        raise error


def _repeats_note(producer: str) -> str:
    """The note of a producer's newest batches."""
    return f"flight-batches/{producer}"


def _payload_checksum(payloads: pa.BinaryArray) -> int:
    """CRC-32C of the payloads' lengths and bytes, without their times: a repetition may have newer times."""
    lengths = np.asarray(pc.binary_length(payloads), dtype="<i4")
    _, ends, data = payloads.buffers()
    checksum = crc32c(lengths.view(np.uint8))
    if data is None or not len(payloads):
        return checksum
    offsets = np.frombuffer(ends, np.int32, len(payloads) + 1, payloads.offset * 4)
    return crc32c(memoryview(data)[int(offsets[0]) : int(offsets[-1])], checksum)


_log = logging.getLogger("offloader.service.flight")

#: Provider name of these streams.
FEED = "flight"
#: Striped locks for opening streams: different names rarely share one.
_OPENING_LOCKS = 64


@dataclass(slots=True)
class FlightStream:
    """One stream with producers.

    Attributes:
        seat: the current producer session, ``None``: none.
        left_s: when the last session ended, by the monotonic clock.
        is_warned: whether a warning was logged that its producer doesn't name its log.
    """

    name: str
    mode: Literal["push", "append"]
    source: PushedLedgers | AppendedLedgers
    control: StreamSupervisor
    seat: ProducerSession | None = None
    left_s: float = 0.0
    is_warned: bool = False

    @property
    def entry_bytes_max(self) -> int:
        """The largest entry that can be offloaded."""
        offload = self.control.settings.offload
        buffers = min(offload.offload_buffer_size_max, offload.offload_memory_size_max)
        return min(offload.entry_size_max, buffers - ENTRY_HEADER_BYTES)

    @property
    def is_done(self) -> bool:
        """Whether it has no producer and everything is committed."""
        news = self.source.news()
        return self.seat is None and news.taken == news.durable

    def offered(self) -> Offered:
        """State of the entries' offload."""
        if (status := self.control.status()) is None:
            return Offered()
        kind: Callable[[str], OffloaderError] = getattr(errors, status.error_kind, OffloaderError)
        return Offered(status.offered, status.committed, kind(status.error) if status.mode is Mode.STOPPED else None)


class ProducerSession:
    """A producer at a stream, while its call is open.

    Attributes:
        proof: verifies that it pushes the stored log; ``None``: it appends.
    """

    def __init__(
        self, stream: FlightStream, producer: str, peer: str, clock: Clock, proof: Proof | None = None
    ) -> None:
        self.stream, self.producer, self.peer, self.proof = stream, producer, peer, proof
        self._clock = clock
        self._moved_by: str = ""

    @property
    def is_held(self) -> bool:
        return self.stream.seat is self

    def trouble(self) -> str:
        """The reason why the call should end; empty: none."""
        if not self.is_held:
            return str(self._over())
        error = self.stream.offered().error
        return "" if error is None else str(error)

    def require_held(self) -> None:
        """Raises ``ClosedError`` if another producer took over, or the stream was closed."""
        if not self.is_held:
            raise self._over()

    def take_away(self, by: str) -> None:
        """Ends the session; further messages of its call are ignored.

        Args:
            by: the cause, for the error.
        """
        self._moved_by = by
        if self.stream.seat is self:
            self.stream.seat = None
        self.stream.source.wake()

    def close(self) -> None:
        """Ends the session with its call."""
        if self.proof is not None:
            self.proof.close()
        if self.is_held:
            self.stream.seat = None
            self.stream.left_s = self._clock.monotonic_s()

    def _over(self) -> ClosedError:
        return ClosedError(f"stream {self.stream.name}: this call is over: {self._moved_by or 'the stream was closed'}")


class ProducerSessions:
    """The producer sessions of all streams. Thread-safe.

    Args:
        ledgers: for streams in mode append, ``None``: not supported.
    """

    def __init__(
        self,
        streams: ServedStreams,
        store: ObjectStore,
        settings: FlightSettings,
        ledgers: EmbeddedLedgers | None,
        clock: Clock,
    ) -> None:
        self._streams, self._store, self._settings, self._ledgers = streams, store, settings, ledgers
        self._clock = clock
        self._memory = PushMemory(settings.memory_size_max)
        #: Needs no lock: changed by single operations, and copied before a loop.
        self._held: dict[str, FlightStream] = {}
        self._opening = [threading.RLock() for _ in range(_OPENING_LOCKS)]
        # Guards the number of streams that are being opened, which count towards the limit.
        self._counting = threading.Lock()
        self._coming = 0
        self._closing = False

    def held(self) -> list[FlightStream]:
        """The open streams, by name."""
        return [stream for _, stream in sorted(self._held.copy().items())]

    def find(self, name: str) -> FlightStream | None:
        return self._held.get(name)

    def appended(self, name: str) -> AppendedLedgers | None:
        """The hot tier of a stream with local ledgers."""
        stream = self.find(name)
        return stream.source if stream is not None and isinstance(stream.source, AppendedLedgers) else None

    def take(self, request: PutRequest, peer: str) -> ProducerSession:
        """Opens a session at a stream, and the stream if needed.

        Raises:
            InvalidCallError: an invalid or conflicting stream name; another producer has the session; the stream has
                another offload method or mode.
            LimitReachedError: too many streams.
            SourceMismatchError: the stored log isn't the producer's.
            ClosedError: the process is stopping.
            StoreUnavailableError, CorruptError: the stream's manifest can't be read.
        """
        require_stream_name(request.stream)
        with self._opening[hash(request.stream) % _OPENING_LOCKS]:
            if (stream := self.find(request.stream)) is None:
                require_free_name(self._store, request.stream)
            else:
                log = stream.source.source_id() if isinstance(stream.source, IdentifiedLedgers) else None
                _require_log(request, log)
                self._free(stream, request, peer)
                is_new_log = request.source is not None and log is None
                if stream.offered().error is not None or stream.mode != request.mode or is_new_log:
                    # A stopped stream restarts from the manifest, because the producer's process offloads it.
                    self._wind_down(stream, drain=stream.offered().error is None)
                    stream = None
            stream = stream or self._open(request)
            proof = self._proof(stream, request)
            seat = stream.seat = ProducerSession(stream, request.producer, peer, self._clock, proof)
            if self._closing:
                seat.take_away("the process is stopping")
                raise ClosedError("the process is stopping", hint="try again later")
            return seat

    def _proof(self, stream: FlightStream, request: PutRequest) -> Proof | None:
        if isinstance(stream.source, AppendedLedgers):
            return None
        proof = Proof(stream.source, self._store, stream.control.settings.read, is_named=request.source is not None)
        if request.last is not None and request.crc32 is not None:
            try:
                proof.begin(request.last, request.crc32)
            except BaseException:
                proof.close()
                raise
        if request.source is None and not stream.is_warned:
            stream.is_warned = True
            _log.warning(
                "stream %s: the producer doesn't name its log (source), so a different log is only detected when it "
                "pushes durable entries again", stream.name,
                extra={"event": "flight_no_source", "stream": stream.name},
            )  # fmt: skip
        return proof

    def open_appended(self) -> None:
        """Opens every stream of the ledger database, because entries of the last run may not be offloaded yet."""
        for name in [] if self._ledgers is None else self._ledgers.streams():
            try:
                with self._opening[hash(name) % _OPENING_LOCKS]:
                    if self.find(name) is None:
                        self._open(PutRequest(name, "append"))
            except OffloaderError as error:
                _log.warning(
                    "stream %s isn't offloaded before the next append: %s",
                    name,
                    error,
                    extra={"event": "flight_not_opened", "stream": name},
                )

    def stop(self) -> None:
        """Ends all sessions, and refuses new ones."""
        self._closing = True
        for stream in self.held():
            if stream.seat is not None:
                stream.seat.take_away("the process is stopping")
            if isinstance(stream.source, PushedLedgers) and stream.source.waits_for_broker:
                # Without producers it couldn't be drained.
                self._streams.remove(stream.name, drain=False)

    def close(self) -> None:
        """Closes the sources, after the streams have stopped."""
        for stream in self.held():
            stream.source.end()

    def _free(self, stream: FlightStream, request: PutRequest, peer: str) -> None:
        """Ends the previous session of a producer that reconnects early; not another producer's."""
        seat = stream.seat
        if seat is None:
            return
        if not request.producer or seat.producer != request.producer:
            raise InvalidCallError(
                f"stream {stream.name}: {seat.producer or 'an unnamed producer'} at {seat.peer} is already sending it",
                hint="only one producer at a time may send a stream; a producer named in the descriptor may reconnect",
            )
        # Refuse another log first, because the log of the earlier call may be the right one.
        if (proof := self._proof(stream, request)) is not None:
            proof.close()
        seat.take_away(f"{request.producer} reconnected from {peer}")

    def _open(self, request: PutRequest) -> FlightStream:
        with self._counting:
            is_full = len(self._held) + self._coming >= self._settings.streams_max
            self._coming += 1
        try:
            if is_full:
                self._close_one()
            return self._opened(request)
        finally:
            with self._counting:
                self._coming -= 1

    def _opened(self, request: PutRequest) -> FlightStream:
        settings = self._streams.settings_of(request.stream)
        source: PushedLedgers | AppendedLedgers
        source = self._pushed(request, settings) if request.mode == "push" else self._appended(request.stream, settings)
        try:
            control = self._streams.add(request.stream, source, feed=FEED)
        except BaseException:
            source.end()
            raise
        stream = FlightStream(request.stream, request.mode, source, control)
        source.offered = stream.offered
        self._held[request.stream] = stream
        return stream

    def _pushed(self, request: PutRequest, settings: Settings) -> PushedLedgers:
        name = request.stream
        if settings.offload.method != "streaming":
            raise InvalidCallError(
                f"stream {name}: its method is {settings.offload.method}, and pushed entries need the method streaming",
                hint="set offload.method, or append instead of pushing",
            )
        state = load_stream(self._store, name, may_be_absent=True)
        # A manifest with a known hot tier has it as ``source``.
        _require_log(request, None if state.source is None else state.source.uuid)
        kind = PushedLedgers if request.source is None else partial(IdentifiedLedgers, source=request.source)
        return kind(
            name,
            committed=state.committed_end(),
            closed=dict(state.closed_ledgers),
            promised=state.newest_end,
            window_bytes_max=self._settings.window_size_max,
            push_bytes_max=self._settings.batch_size_max,
            memory=self._memory,
            clock=self._clock,
        )

    def _appended(self, name: str, settings: Settings) -> AppendedLedgers:
        if self._ledgers is None:
            raise InvalidCallError(
                f"stream {name}: appends are not supported here",
                hint="set flight.ledgers, or push entries with your own ids",
            )
        return AppendedLedgers(self._ledgers.open_stream(name), settings.offload.tail_cache_size_max, self._clock)

    def _close_one(self) -> None:
        """Closes the stream that has been without a producer longest, of those fully committed."""
        for stream in sorted((each for each in self.held() if each.is_done), key=lambda each: each.left_s):
            opening = self._opening[hash(stream.name) % _OPENING_LOCKS]
            # Don't block: this thread holds another stream's lock, for which the holder of this lock may be waiting.
            if not opening.acquire(blocking=False):
                continue
            try:
                if stream.is_done and self.find(stream.name) is stream:  # it may have got a producer meanwhile
                    self._wind_down(stream, drain=False)
                    return
            finally:
                opening.release()
        raise LimitReachedError(
            f"{self._settings.streams_max} streams are open (flight.streams_max)", hint="end other calls first"
        )

    def _wind_down(self, stream: FlightStream, *, drain: bool) -> None:
        self._streams.remove(stream.name, drain=drain)
        stream.source.end()
        self._held.pop(stream.name, None)


def _require_log(request: PutRequest, log: UUID | None) -> None:
    if request.source is not None and log is not None and request.source != log:
        raise another_log(request.stream, f"it sends log {request.source}", known=log)


#: Maximum sleep of the news thread before it checks whether the call is still open.
_NEWS_WAIT_S_MAX = 1.0


class Answers:
    """Answers to one producer. From the first one until ``close``, a thread sends changes between the batches.

    Args:
        trouble: returns the reason why the producer should end its call; empty: none. Sent once.
    """

    def __init__(
        self, writer: fl.FlightMetadataWriter, source: Proof | AppendedLedgers, trouble: Callable[[], str]
    ) -> None:
        self._writer, self._source, self._trouble = writer, source, trouble
        self._lock = threading.Lock()
        self._open = True
        self._told = PushNews(None, None)
        self._told_trouble = False
        self._thread = threading.Thread(target=self._tell_news, name="offloader-flight-news", daemon=True)

    def close(self) -> None:
        """Ends the thread."""
        self._open = False
        self._source.wake()
        if self._thread.is_alive():
            self._thread.join()

    def write(self, answer: Answer) -> None:
        """Answers a batch, with the newest state; waits until the producer has room for it."""
        with self._lock:
            self._told = self._source.news()
            self._writer.write(
                pa.py_buffer(replace(answer, taken=self._told.taken, durable=self._told.durable).encode())
            )
        if self._thread.ident is None:
            self._thread.start()

    def _tell_news(self) -> None:
        seen = self._told
        while self._open:
            found = self._source.wait_for_news(seen, _NEWS_WAIT_S_MAX)
            trouble = "" if self._told_trouble else self._trouble()
            with self._lock:
                seen = found
                if not self._open or (found == self._told and not trouble):
                    continue
                self._told, self._told_trouble = found, self._told_trouble or bool(trouble)
                try:
                    self._writer.write(
                        pa.py_buffer(Answer(taken=found.taken, durable=found.durable, error=trouble).encode())
                    )
                except (pa.ArrowException, fl.FlightError, OSError):
                    return  # the client is gone; the reading side notices it
