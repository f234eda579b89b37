"""The streams that come in through Arrow Flight, and who sits at each: one producer at a time.

Owns opening and closing them. Must never let two producers at one stream, nor open more streams than the limit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import UUID

from formats.entries import ENTRY_HEADER_BYTES
from offloader import errors
from offloader.clock import Clock
from offloader.errors import Closed, InvalidCall, LimitReached, OffloaderError
from offloader.ledgers.embedded import EmbeddedLedgers
from offloader.ledgers.push_window import PushMemory
from offloader.ledgers.pushed import Offered, PushedLedgers
from offloader.ledgers.pushed_source import IdentifiedLedgers
from offloader.manifest.catalog import require_free_name
from offloader.read.streams import load_stream
from offloader.service.feeds import StreamControl, Streams
from offloader.service.flight.appended import AppendedLedgers
from offloader.service.flight.messages import PutRequest
from offloader.service.flight.proof import Proof, another_log
from offloader.settings import FlightSettings, Settings
from offloader.store.base import ObjectStore
from offloader.stream_names import require_stream_name
from offloader.write.stream.status import Mode

__all__ = ["FEED", "FlightStream", "Seat", "Seats"]

_log = logging.getLogger("offloader.service.flight")

#: What these streams are said to be brought by.
FEED = "flight"
#: Locks around the opening of streams: two of different names rarely wait for each other.
_OPENING_LOCKS = 64


@dataclass(slots=True)
class FlightStream:
    """One stream that came in.

    Attributes:
        settings: its effective ones.
        seat: who sends now, ``None``: nobody.
        left_s: when the last one left, by the monotonic clock.
        is_warned: whether it was said that its producer doesn't name its log.
    """

    name: str
    mode: Literal["push", "append"]
    source: PushedLedgers | AppendedLedgers
    control: StreamControl
    settings: Settings
    seat: Seat | None = None
    left_s: float = 0.0
    is_warned: bool = False

    @property
    def entry_bytes_max(self) -> int:
        """The largest entry that can be offloaded."""
        offload = self.settings.offload
        buffers = min(offload.offload_buffer_bytes_max, offload.offload_memory_bytes_max)
        return min(offload.entry_bytes_max, buffers - ENTRY_HEADER_BYTES)

    @property
    def is_done(self) -> bool:
        """Whether nobody sends and everything is committed."""
        news = self.source.news()
        return self.seat is None and news.taken == news.durable

    def offered(self) -> Offered:
        """What became of its entries."""
        status = self.control.status()
        if status is None:
            return Offered(None, self.control.committed)
        error = _error_of(status.error_kind, status.error) if status.mode is Mode.STOPPED else None
        return Offered(status.offered, status.committed, error)


class Seat:
    """A producer at a stream, for as long as its call is open.

    Attributes:
        proof: whether what it pushes is what is stored; ``None``: it appends.
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
        """Why the call is of no use any more; empty: it is."""
        if not self.is_held:
            return str(self._over())
        error = self.stream.offered().error
        return "" if error is None else str(error)

    def require_held(self) -> None:
        """Raises ``Closed`` when somebody else sits here, or nobody may any more."""
        if not self.is_held:
            raise self._over()

    def take_away(self, by: str) -> None:
        """The call is over, whatever it still sends.

        Args:
            by: who or what did that, for the error.
        """
        self._moved_by = by
        if self.stream.seat is self:
            self.stream.seat = None
        self.stream.source.wake()

    def leave(self) -> None:
        """The call has ended."""
        if self.proof is not None:
            self.proof.close()
        if self.is_held:
            self.stream.seat = None
            self.stream.left_s = self._clock.monotonic_s()

    def _over(self) -> Closed:
        return Closed(f"stream {self.stream.name}: this call is over: {self._moved_by or 'the stream was closed'}")


class Seats:
    """All of them. Thread-safe.

    Args:
        streams: where streams are added.
        store: has their manifests.
        settings: limits.
        ledgers: of streams that are appended to, ``None``: there are none.
        clock: for times.
    """

    def __init__(
        self,
        streams: Streams,
        store: ObjectStore,
        settings: FlightSettings,
        ledgers: EmbeddedLedgers | None,
        clock: Clock,
    ) -> None:
        self._streams, self._store, self._settings, self._ledgers = streams, store, settings, ledgers
        self._clock = clock
        self._memory = PushMemory(settings.memory_bytes_max)
        self._lock = threading.Lock()
        self._held: dict[str, FlightStream] = {}
        self._opening = [threading.Lock() for _ in range(_OPENING_LOCKS)]
        self._closing = False

    def held(self) -> list[FlightStream]:
        """The streams that came in, by name."""
        with self._lock:
            return [self._held[name] for name in sorted(self._held)]

    def find(self, name: str) -> FlightStream | None:
        with self._lock:
            return self._held.get(name)

    def take(self, request: PutRequest, peer: str) -> Seat:
        """A seat at a stream, which is opened if need be.

        Raises:
            InvalidCall: no stream's name, or one that can't stand beside another's; somebody else sits there; it is
                offloaded by another method, or sent in the other mode.
            LimitReached: too many streams.
            SourceMismatch: what is stored is of another log than the producer's.
            Closed: the process is stopping.
            StoreUnavailable, Corrupt: the stream's manifest can't be read.
        """
        require_stream_name(request.stream)
        with self._opening[hash(request.stream) % _OPENING_LOCKS]:
            stream = self.find(request.stream)
            if stream is None:
                require_free_name(self._store, request.stream)
            else:
                log = stream.source.source_id() if isinstance(stream.source, IdentifiedLedgers) else None
                _require_log(request, log)
                self._free(stream, request, peer)
                is_new_log = request.source is not None and log is None
                if stream.offered().error is not None or stream.mode != request.mode or is_new_log:
                    # A stopped one begins again from the manifest: who is connected is the one to offload it.
                    self._wind_down(stream, drain=stream.offered().error is None)
                    stream = None
            if stream is None:
                stream = self._open(request)
            proof = self._proof(stream, request)
            seat = stream.seat = Seat(stream, request.producer, peer, self._clock, proof)
            if self._closing:
                seat.take_away("the process is stopping")
                raise Closed("the process is stopping", hint="try again later")
            return seat

    def _proof(self, stream: FlightStream, request: PutRequest) -> Proof | None:
        """Raises ``SourceMismatch`` when the producer's log isn't the one that is stored."""
        if isinstance(stream.source, AppendedLedgers):
            return None
        proof = Proof(stream.source, self._store, stream.settings.read, is_named=request.source is not None)
        if request.last is not None and request.crc32 is not None:
            try:
                proof.begin(request.last, request.crc32)
            except BaseException:
                proof.close()
                raise
        if request.source is None and not stream.is_warned:
            stream.is_warned = True
            _log.warning(
                "stream %s: its producer doesn't name its log (source): whether a log that begins anew is another one "
                "is only found where it pushes again what is durable", stream.name,
                extra={"event": "flight_no_source", "stream": stream.name},
            )  # fmt: skip
        return proof

    def open_appended(self) -> None:
        """Opens every stream of the ledger database: what was appended before the last end may not be offloaded yet."""
        for name in [] if self._ledgers is None else self._ledgers.streams():
            try:
                with self._opening[hash(name) % _OPENING_LOCKS]:
                    if self.find(name) is None:
                        self._open(PutRequest(name, "append"))
            except OffloaderError as error:
                extra = {"event": "flight_not_opened", "stream": name}
                _log.warning("stream %s isn't offloaded until somebody appends to it: %s", name, error, extra=extra)

    def stop(self) -> None:
        """Nobody sits anywhere any more, and nobody takes a seat."""
        self._closing = True
        for stream in self.held():
            if stream.seat is not None:
                stream.seat.take_away("the process is stopping")
            if isinstance(stream.source, PushedLedgers) and stream.source.waits_for_broker:
                # Nobody brings what it would need to be drained.
                self._streams.remove(stream.name, drain=False)

    def close(self) -> None:
        """Closes the sources: the streams were wound down."""
        for stream in self.held():
            stream.source.end()

    def _free(self, stream: FlightStream, request: PutRequest, peer: str) -> None:
        """Makes the seat free for who comes again before its last call is over; nobody else."""
        seat = stream.seat
        if seat is None:
            return
        if not request.producer or seat.producer != request.producer:
            raise InvalidCall(
                f"stream {stream.name}: {seat.producer or 'somebody without a name'} at {seat.peer} sends it already",
                hint="one producer sends a stream at a time; one that names itself in the descriptor may come again",
            )
        seat.take_away(f"{request.producer} came again, from {peer}")

    def _open(self, request: PutRequest) -> FlightStream:
        settings = self._streams.settings_of(request.stream)
        with self._lock:
            is_full = len(self._held) >= self._settings.streams_max
        if is_full:
            self._close_one()
        source: PushedLedgers | AppendedLedgers
        source = self._pushed(request, settings) if request.mode == "push" else self._appended(request.stream, settings)
        try:
            control = self._streams.add(request.stream, source, feed=FEED)
        except BaseException:
            source.end()
            raise
        stream = FlightStream(request.stream, request.mode, source, control, settings)
        source.offered = stream.offered
        with self._lock:
            self._held[request.stream] = stream
        return stream

    def _pushed(self, request: PutRequest, settings: Settings) -> PushedLedgers:
        name = request.stream
        if settings.offload.method != "streaming":
            raise InvalidCall(
                f"stream {name}: its method is {settings.offload.method}, and what is pushed needs streaming",
                hint="set offload.method, or append instead of pushing",
            )
        state = load_stream(self._store, name, may_be_absent=True)
        # A manifest that knows its hot tier has it as ``source``.
        known = state.source
        _require_log(request, None if known is None else known.uuid)
        kind = PushedLedgers if request.source is None else partial(IdentifiedLedgers, source=request.source)
        return kind(
            name,
            committed=state.committed_end(),
            closed=dict(state.closed_ledgers),
            promised=state.newest_end,
            window_bytes_max=self._settings.window_bytes_max,
            push_bytes_max=self._settings.batch_bytes_max,
            memory=self._memory,
            clock=self._clock,
        )

    def _appended(self, name: str, settings: Settings) -> AppendedLedgers:
        if self._ledgers is None:
            raise InvalidCall(
                f"stream {name}: nothing can be appended here", hint="set flight.ledgers, or push with ids of your own"
            )
        return AppendedLedgers(self._ledgers.open_stream(name), settings.offload.tail_cache_bytes_max, self._clock)

    def _close_one(self) -> None:
        """Closes the stream that nobody has sent for longest and that has nothing left to do."""
        done = sorted((each for each in self.held() if each.is_done), key=lambda each: each.left_s)
        if not done:
            raise LimitReached(
                f"{self._settings.streams_max} streams are open (flight.streams_max)", hint="end calls of others first"
            )
        self._wind_down(done[0], drain=False)

    def _wind_down(self, stream: FlightStream, *, drain: bool) -> None:
        self._streams.remove(stream.name, drain=drain)
        stream.source.end()
        with self._lock:
            self._held.pop(stream.name, None)


def _require_log(request: PutRequest, log: UUID | None) -> None:
    """Raises ``SourceMismatch`` when the producer names another log than the one that is known."""
    if request.source is not None and log is not None and request.source != log:
        raise another_log(request.stream, f"it sends log {request.source}", known=log)


def _error_of(kind: str, text: str) -> OffloaderError:
    """The error that a status names."""
    found: Callable[[str], OffloaderError] = getattr(errors, kind, OffloaderError)
    return found(text)
