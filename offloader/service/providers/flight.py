"""Streams that producers push through Arrow Flight, for the serving process, and the Flight server with its calls."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from formats.entries import EntryBatch, Position
from offloader.errors import InvalidCallError, NotFoundError, StoreUnavailableError
from offloader.ledgers.base import LedgerSource
from offloader.ledgers.pushed import PushedLedgers
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import ManifestLog, list_streams
from offloader.read.reader import Reader, load_stream, open_stream_reader
from offloader.retention.truncate import truncate_stream
from offloader.runtime.clock import Clock
from offloader.service.auth import (
    OPERATION_OF_ACTION,
    Caller,
    Credentials,
    Guard,
    ListenAddress,
    guard_for,
    parse_listen,
    server_tls,
)
from offloader.service.flight.messages import (
    ENTRY_SCHEMA,
    Answer,
    BatchNote,
    Fields,
    GetRequest,
    batch_note,
    encoded,
    fields_of,
    get_request,
    pushed_batches,
    put_request,
    refusal,
    refusing,
    require_columns,
    sent_payloads,
)
from offloader.service.flight.sessions import (
    FEED,
    Answers,
    AppendedLedgers,
    FlightStream,
    ProducerSession,
    ProducerSessions,
    Proof,
)
from offloader.service.queries import ServiceControl
from offloader.service.streams import ProviderProblem, ServedStreams
from offloader.settings import AccessSettings, FlightSettings, Settings
from offloader.store.base import ObjectStore

#: Maximum wait of one ``offload``.
OFFLOAD_WAIT_S_MAX = 3600.0


#: Action -> description with its arguments; the table of operations has the roles.
ACTIONS = {
    "status": 'status of a pushed or appended stream, {"stream": NAME}, or of all of them',
    "offload": 'close the current segment and wait until it is durable: {"stream", "until", "timeout_s"}',
    "close-ledger": 'close the open ledger of an appended stream: {"stream"}',
    "publish": 'publish a subscriber\'s position: {"stream", "subscriber", "at", "generation"}',
    "subscribe": 'register a subscriber: {"stream", "subscriber", "start", "generation"}',
    "truncate": 'move a stream\'s start position forward: {"stream", "before"}',
}
_MAYBE_EMPTY = partial(Fields.text, default="")
#: Fields of each action with their parsers.
_FIELDS: Mapping[str, Mapping[str, Callable[[Fields, str], Any]]] = {
    "status": {"stream": _MAYBE_EMPTY},
    "offload": {"stream": Fields.text, "until": _MAYBE_EMPTY, "timeout_s": partial(Fields.seconds, default=60.0)},
    "close-ledger": {"stream": Fields.text},
    "publish": {"stream": Fields.text, "subscriber": Fields.text, "at": Fields.any, "generation": Fields.whole},
    "subscribe": {
        "stream": Fields.text,
        "subscriber": Fields.text,
        "start": Fields.any,
        "generation": partial(Fields.whole, default=0),
    },
    "truncate": {"stream": Fields.text, "before": Fields.position},
}


class Actions:
    """Executes Flight actions. Thread-safe.

    Args:
        control: executes commands for every served stream.
    """

    def __init__(self, store: ObjectStore, seats: ProducerSessions, control: ServiceControl, clock: Clock) -> None:
        self._store, self._seats, self._clock = store, seats, clock
        self._run: dict[str, Callable[..., dict[str, Any]]] = {
            "status": self._status,
            "offload": lambda by, stream, until, timeout_s: control.offload(
                stream, until=until, timeout_s=min(timeout_s or 0.0, OFFLOAD_WAIT_S_MAX), by=by.name
            ),
            "close-ledger": self._close_ledger,
            "publish": lambda by, stream, **given: control.publish(stream, by=by.name, **given),
            "subscribe": lambda by, stream, generation, **given: control.subscribe(
                stream, generation=generation or 0, by=by.name, **given
            ),
            "truncate": self._truncate,
        }

    def run(self, name: str, body: bytes, caller: Caller) -> bytes:
        """Executes an action, if ``caller`` may, and returns a document.

        Raises:
            NotAuthenticated, NotAllowed: the caller isn't allowed to.
            InvalidCallError: no such action, or the action's own error.
        """
        caller.require_known()
        if name not in ACTIONS:
            raise InvalidCallError(
                f"no such action: {ascii(name)[:80]}", hint=f"available actions: {', '.join(ACTIONS)}"
            )
        operation = OPERATION_OF_ACTION[name]
        if not (operation.is_of_subscriber and caller.subscribers):  # only the body names a token's subscriber
            caller.may(operation)
        fields = fields_of(body, f"action {name}")
        given = {field: read(fields, field) for field, read in _FIELDS[name].items()}
        fields.end()
        caller.may(operation, subscriber=given.get("subscriber"), stream=given["stream"] or None)
        return encoded(caller.told(self._run[name](caller, **given)))

    def _status(self, caller: Caller, stream: str) -> dict[str, Any]:
        if not stream:
            return {"streams": [_document(each) for each in self._seats.held() if caller.sees(each.name)]}
        return _document(self._there(stream))

    def _close_ledger(self, _: Caller, stream: str) -> dict[str, Any]:
        source = self._there(stream).source
        if not isinstance(source, AppendedLedgers):
            raise InvalidCallError(
                f"stream {stream} is pushed: the broker owns its ledgers",
                hint="send the ends of ledgers in a batch's metadata",
            )
        closed = source.close_ledger()
        return {"stream": stream, "closed": None if closed is None else closed.ledger_id}

    def _truncate(self, _: Caller, stream: str, before: Position | None) -> dict[str, Any]:
        if before is None:
            raise InvalidCallError("action truncate: before is missing", hint="give the new start position")
        found = self._seats.find(stream)
        done = truncate_stream(
            ManifestLog(self._store, stream, clock=self._clock),
            before,
            clock=self._clock,
            source=self._seats.appended(stream),  # a pushed stream has no hot tier here whose ledgers could be deleted
            method="streaming" if found is None else found.control.settings.offload.method,
        )
        return {
            "stream": stream,
            "head": str(done.head),
            "moved": done.moves,
            "ledgers": list(done.ledgers),
            "segments": done.segments,
            "entries": done.entries,
        }

    def _there(self, name: str) -> FlightStream:
        if (found := self._seats.find(name)) is None:
            raise NotFoundError(
                f"stream {name} is not a Flight stream of this process",
                hint="list these streams with the action status",
            )
        return found


def _document(stream: FlightStream) -> dict[str, Any]:
    news, seat, status = stream.source.news(), stream.seat, stream.control.status()
    return {
        "stream": stream.name,
        "mode": stream.mode,
        "producer": None if seat is None else seat.producer,
        "peer": None if seat is None else seat.peer,
        "taken": news.taken and str(news.taken),
        "durable": news.durable and str(news.durable),
        "offloading": "starting" if status is None else status.mode.value,
        "error": "" if status is None else status.error,
    }


#: Lease of a DoGet against cleanup; renewed while it reads.
LEASE_S = 3600
#: Rows and bytes that haven't been counted.
_UNKNOWN = -1


class Gets:
    """Reads from one store. Thread-safe.

    Args:
        store: open for writing, for the leases.
        settings_of: a stream's settings, which a reload may change.
        source_of: the hot tier of a stream with local ledgers: its newest entries are read from there.
    """

    def __init__(
        self,
        store: ObjectStore,
        settings_of: Callable[[str], Settings],
        source_of: Callable[[str], LedgerSource | None],
    ) -> None:
        self._store, self._settings_of, self._source_of = store, settings_of, source_of

    def entries(self, request: GetRequest, told: Callable[[str], str] = str) -> fl.FlightDataStream:
        """The entries of a ticket, a batch at a time; ``told`` as for ``refusing``.

        Raises ``NotFoundError``, ``TrimmedError``, ``BeyondEndError``, ``InvalidCallError`` and other errors of a
        reader, if possible before the first batch.
        """
        with contextlib.ExitStack() as stack:
            reader = stack.enter_context(
                open_stream_reader(
                    self._store,
                    request.stream,
                    settings=self._settings_of(request.stream).read,
                    source=self._source_of(request.stream),
                    lease_seconds=LEASE_S,
                )
            )
            batches = self._scan(reader, request)
            stack.pop_all()
        return fl.GeneratorStream(request.schema, _sent(reader, batches, request.schema.names, told))

    def info(self, name: str) -> fl.FlightInfo:
        """One stream's first and last position, entries and bytes in the cold tier. Raises ``NotFoundError``: no such
        stream."""
        source = self._source_of(name)
        state = load_stream(self._store, name, may_be_absent=source is not None)
        settings = self._settings_of(name).read
        with open_stream_reader(self._store, name, settings=settings, source=source, state=state) as reader:
            first, last = reader.first_position, reader.last_position
        known = {"first": first and str(first), "last": last and str(last)}
        return _info(name, state.sums.entries, state.sums.payload_bytes, encoded(known))

    def infos(self, prefix: str, caller: Caller) -> Iterator[fl.FlightInfo]:
        """All streams with a name prefix that the caller may see, without reading their manifests."""
        with refusing("ListFlights", caller.told):
            for name in list_streams(self._store):
                if name.startswith(prefix) and caller.sees(name):
                    yield _info(name, _UNKNOWN, _UNKNOWN, b"")

    def _scan(self, reader: Reader, request: GetRequest) -> Iterator[EntryBatch]:
        chosen = reader.range_of(request.first, request.last, request.since_ms, request.until_ms)
        if chosen is None or (chosen == (None, None) and reader.last_position is None):
            return iter(())
        most = self._settings_of(request.stream).read.batch_size
        return reader.scan(*chosen, min(request.batch_bytes or most, most))


def _sent(
    reader: Reader, batches: Iterator[EntryBatch], columns: Sequence[str], told: Callable[[str], str]
) -> Iterator[pa.RecordBatch]:
    with contextlib.closing(reader), refusing("DoGet", told):
        for batch in batches:
            yield batch.to_arrow().select(columns)


def _info(name: str, entries: int, size_bytes: int, known: bytes) -> fl.FlightInfo:
    endpoint = fl.FlightEndpoint(GetRequest(name).encode(), [])
    return fl.FlightInfo(
        ENTRY_SCHEMA, fl.FlightDescriptor.for_path(name), [endpoint], entries, size_bytes, app_metadata=known
    )


def take_batches(
    seat: ProducerSession,
    reader: fl.MetadataRecordBatchReader,
    writer: fl.FlightMetadataWriter,
    settings: FlightSettings,
) -> None:
    """Receives batches until the producer ends the call, or loses its session.

    Raises:
        InvalidCallError, LimitReachedError: an invalid batch; none of it was accepted, all earlier ones were.
        SourceMismatchError: the pushed log isn't the stored one; none of the batch was accepted.
        StoreUnavailableError: no room for it in time.
        ClosedError: another producer took over the session. FencedError, Corrupt and others: the stream was stopped.
    """
    stream = seat.stream
    require_columns(reader.schema, stream.mode)
    source = stream.source
    if isinstance(source, AppendedLedgers):
        with contextlib.closing(Answers(writer, source, seat.trouble)) as answers:
            _take_appended(seat, source, reader, answers, settings)
        return
    assert seat.proof is not None, "a seat at a pushed stream has one"
    with contextlib.closing(Answers(writer, seat.proof, seat.trouble)) as answers:
        _take_pushed(seat, source, seat.proof, reader, answers, settings)


def _take_pushed(
    seat: ProducerSession,
    source: PushedLedgers,
    proof: Proof,
    reader: fl.MetadataRecordBatchReader,
    answers: Answers,
    settings: FlightSettings,
) -> None:
    answers.write(Answer())
    for number, (data, note) in enumerate(_batches(seat, reader), 1):
        batches = []
        if data is not None:
            batches = pushed_batches(
                data, bytes_max=settings.batch_size_max, entry_bytes_max=seat.stream.entry_bytes_max
            )
            proof.compare(batches)
        pushed = source.push(batches, note.ends, within_s=settings.wait_max, is_wanted=lambda: seat.is_held)
        seat.require_held()
        answers.write(Answer(batch=number, entries=pushed.taken, repeated=pushed.repeated))


def _take_appended(
    seat: ProducerSession,
    source: AppendedLedgers,
    reader: fl.MetadataRecordBatchReader,
    answers: Answers,
    settings: FlightSettings,
) -> None:
    answers.write(Answer(sequence=source.sequence(seat.producer)))
    for number, (data, note) in enumerate(_batches(seat, reader), 1):
        if data is None:
            continue
        payloads, times_ms = sent_payloads(
            data, bytes_max=settings.batch_size_max, entry_bytes_max=seat.stream.entry_bytes_max
        )
        written = source.append(payloads, times_ms, producer=seat.producer, sequence=note.sequence)
        entries = sum(map(len, written))
        answers.write(
            Answer(
                batch=number,
                entries=entries,
                repeated=len(data) - entries,
                positions=tuple((each.first, each.last) for each in written),
                sequence=source.sequence(seat.producer),
            )
        )


def _batches(
    seat: ProducerSession, reader: fl.MetadataRecordBatchReader
) -> Iterator[tuple[pa.RecordBatch | None, BatchNote]]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except OSError as error:  # Arrow's error for bytes that are no Arrow message
            raise InvalidCallError(
                f"a batch can't be read: {str(error)[:200]}", hint="send Arrow's own messages"
            ) from error
        seat.require_held()
        metadata = None if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
        yield chunk.data, batch_note(metadata, seat.stream.mode)


_log = logging.getLogger("offloader.service.flight")

#: The process's open files, on Linux and elsewhere.
_OPEN_FILES = Path("/dev/fd")


def require_free(address: ListenAddress) -> None:
    """Checks that the address is free: gRPC would share the port silently, and calls would reach either process.

    Raises:
        StoreUnavailableError: another process listens there, perhaps one that is ending.
        InvalidCallError: not an address of this machine.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as cause:
        text = f"flight.listen: can't listen on {address}: {cause.strerror or cause}"
        if cause.errno == errno.EADDRINUSE:
            raise StoreUnavailableError(text, hint="another process listens there") from cause
        raise InvalidCallError(text, hint="give an address of this machine") from cause


def cut_connections(port: int) -> int:
    """Shuts down every connection accepted on ``port``, in both directions; returns their number."""
    count = 0
    for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 - one name after another may be gone by now
        try:
            # A duplicate: closing it leaves the server's own open.
            candidate = socket.socket(fileno=os.dup(int(name)))
        except (OSError, ValueError):
            continue  # not a socket, or already closed
        with candidate, contextlib.suppress(OSError):
            if candidate.family in (socket.AF_INET, socket.AF_INET6) and candidate.getsockname()[1] == port:
                candidate.getpeername()  # fails for the listening socket
                candidate.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


#: Name of the middleware.
CALL = "call"
#: Methods without a role: the handshake, which is not a call of this service, and a response that is equal for all.
_FOR_EVERYBODY = frozenset({fl.FlightMethod.HANDSHAKE, fl.FlightMethod.GET_SCHEMA})
#: The operation of each call. Actions have their own.
_OPERATIONS = {
    fl.FlightMethod.DO_PUT: OPERATION_OF_ACTION["DoPut"],
    fl.FlightMethod.DO_GET: OPERATION_OF_ACTION["DoGet"],
    fl.FlightMethod.LIST_FLIGHTS: OPERATION_OF_ACTION["ListFlights"],
    fl.FlightMethod.GET_FLIGHT_INFO: OPERATION_OF_ACTION["GetFlightInfo"],
    fl.FlightMethod.LIST_ACTIONS: OPERATION_OF_ACTION["ListActions"],
    fl.FlightMethod.DO_EXCHANGE: OPERATION_OF_ACTION["DoExchange"],
}


class Calls(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Middleware that admits calls.

    Args:
        calls_max: concurrent calls; further ones are refused.

    Attributes:
        open: current calls.
        is_closing: whether all further calls are refused.
    """

    def __init__(self, guard: Guard, calls_max: int) -> None:
        self.guard = guard
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self.open = 0
        self.is_closing = False

    def start_call(self, info: fl.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Call:
        """Called before any message of a stream is read, so that a refused caller's data isn't received. (gRPC has
        received single messages, tickets and actions by now.)"""
        text = next((values[0] for name, values in headers.items() if name.lower() == "authorization" and values), None)
        with refusing(info.method.name):
            caller = self._known(info.method, text.decode("latin-1") if isinstance(text, bytes) else text)
        with self._lock:
            if self.is_closing or self.open >= self._calls_max:
                why = "the process is stopping" if self.is_closing else f"flight.calls_max = {self._calls_max} are open"
                raise refusal(StoreUnavailableError(f"no further call: {why}", hint="try again later"))
            self.open += 1
        return _Call(self, caller)

    def _known(self, method: fl.FlightMethod, authorization: str | None) -> Caller | None:
        """The caller, by the headers; ``None``: a certificate may identify it, which only the call itself has. Raises
        ``NotAuthenticated``, ``NotAllowed``: an unknown caller, or an insufficient role."""
        if method in _FOR_EVERYBODY or (authorization is None and self.guard.credentials.has_certificates):
            return None
        caller = self.guard.caller(authorization)
        caller.require_known()
        if method in _OPERATIONS:
            caller.may(_OPERATIONS[method])
        return caller

    def ended(self) -> None:
        with self._lock:
            self.open -= 1


class _Call(fl.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, calls: Calls, caller: Caller | None) -> None:
        self._calls = calls
        self._caller = caller

    def call_completed(self, exception: Exception | None) -> None:  # noqa: ARG002 - Flight's
        self._calls.ended()

    def caller(self, identity: str) -> Caller:
        """The caller; ``identity``: of the client's certificate, empty: it presented none."""
        return self._caller or self._calls.guard.caller(None, [identity] if identity else None)


@contextlib.contextmanager
def admitted(context: fl.ServerCallContext, call: str, *, has_role: bool = True) -> Iterator[Caller]:
    """The caller of this call, checked for its operation (``has_role``), or to be known; translates errors of the call.
    Raises ``FlightError``: an unknown caller, or an insufficient role; an error of the call."""
    with refusing(call):
        identity = context.peer_identity()
        text = identity.decode(errors="replace") if isinstance(identity, bytes) else identity
        caller: Caller = context.get_middleware(CALL).caller(text)
        caller.require_known()
        with refusing(call, caller.told):
            if has_role:
                caller.may(OPERATION_OF_ACTION[call])
            yield caller


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    """Serves from its construction on, on gRPC's threads.

    Args:
        location: ``grpc://`` or ``grpc+tls://``, host and port.
        tls: TLS options of ``FlightServerBase``.
    """

    def __init__(
        self,
        location: str,
        calls: Calls,
        seats: ProducerSessions,
        gets: Gets,
        actions: Actions,
        settings: FlightSettings,
        **tls: object,
    ) -> None:
        self._seats, self._gets, self._actions, self._settings = seats, gets, actions, settings
        super().__init__(location, middleware={CALL: calls}, **tls)

    def do_put(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        with admitted(context, "DoPut") as caller:
            request = put_request(descriptor.path, descriptor.command)
            seat = self._seats.take(request, context.peer())
            _log.info(
                "stream %s: %s sends from %s",
                request.stream,
                caller.name,
                context.peer(),
                extra={
                    "event": "flight_put",
                    "stream": request.stream,
                    "producer": request.producer,
                    "by": caller.name,
                },
            )
            with contextlib.closing(seat):
                take_batches(seat, reader, writer, self._settings)

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        with admitted(context, "DoGet") as caller:
            request = get_request(ticket.ticket)
            caller.may(OPERATION_OF_ACTION["DoGet"], stream=request.stream)
            return self._gets.entries(request, caller.told)

    def list_flights(self, context: fl.ServerCallContext, criteria: bytes) -> Iterator[fl.FlightInfo]:
        with admitted(context, "ListFlights") as caller:
            return self._gets.infos(criteria.decode(errors="replace"), caller)

    def get_flight_info(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        with admitted(context, "GetFlightInfo") as caller:
            name = put_request(descriptor.path, descriptor.command).stream
            caller.may(OPERATION_OF_ACTION["GetFlightInfo"], stream=name)
            return self._gets.info(name)

    def get_schema(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.SchemaResult:  # noqa: ARG002
        # Equal for every caller and stream: an error in this call would expose a traceback to refused callers.
        return fl.SchemaResult(ENTRY_SCHEMA)

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        with admitted(context, "ListActions"):
            return list(ACTIONS.items())

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[fl.Result]:
        with admitted(context, "DoAction", has_role=False) as caller:
            return [fl.Result(pa.py_buffer(self._actions.run(action.type, action.body.to_pybytes(), caller)))]

    def do_exchange(self, context: fl.ServerCallContext, *_: object) -> None:
        with admitted(context, "DoExchange"):
            raise InvalidCallError("DoExchange is not supported", hint="use DoPut to send entries, DoGet to read them")


#: On a stop, callers get this long to end their calls before their connections are closed.
GRACE_S_MAX = 1.0


class FlightProvider:
    """See ``offloader.service.streams.StreamProvider``.

    Args:
        settings: of the process: ``flight``, ``access``, ``ledgers`` and ``read``.
        store: of the streams, open for writing.
        credentials: accepted tokens and certificates. The server's own are read at the start only: gRPC can't replace
            them.
        control: executes commands for every served stream.

    Raises:
        InvalidCallError, AccessDeniedError: unsafe or contradictory settings, see ``guard_for`` and ``server_tls``.
    """

    name = FEED

    def __init__(
        self,
        settings: Settings,
        store: ObjectStore,
        *,
        credentials: Credentials,
        control: ServiceControl,
        clock: Clock,
    ) -> None:
        self._settings, self._store, self._control, self._clock = settings, store, control, clock
        if settings.flight.ledgers and settings.flight.ledgers == settings.serve.ledgers:
            raise InvalidCallError(
                "flight.ledgers and serve.ledgers name the same database: its streams would be added twice",
                hint="configure a separate database for Flight",
            )
        self._wanted = parse_listen(settings.flight.listen, setting="flight.listen")
        guard = guard_for(
            self._wanted,
            credentials,
            settings.access,
            has_tls=server_tls(settings.access) is not None,  # also validates the files, which gRPC doesn't report
            setting="flight.listen",
        )
        self._calls = Calls(guard, settings.flight.calls_max)
        self._ledgers: EmbeddedLedgers | None = None
        self._seats: ProducerSessions | None = None
        self._server: FlightServer | None = None

    @property
    def address(self) -> ListenAddress:
        """Its listen address; port 0 until it listens, if any port will do."""
        return self._wanted if self._server is None else ListenAddress(self._wanted.host, self._server.port)

    def start(self, streams: ServedStreams) -> None:
        """Listens.

        Raises:
            InvalidCallError: the address can't be used, or the file is not a ledger database.
            StoreUnavailableError: another process listens there.
        """
        flight = self._settings.flight
        require_free(self._wanted)
        if flight.ledgers and self._ledgers is None:
            self._ledgers = EmbeddedLedgers(flight.ledgers, settings=self._settings.ledgers, clock=self._clock)
        seats = ProducerSessions(streams, self._store, flight, self._ledgers, self._clock)
        gets = Gets(self._store, streams.settings_of, seats.appended)
        actions = Actions(self._store, seats, self._control, self._clock)
        tls = _tls_of(self._settings.access)
        location = f"{'grpc+tls' if tls else 'grpc'}://{self._wanted}"
        try:
            self._server = FlightServer(location, self._calls, seats, gets, actions, flight, **tls)
        except (pa.ArrowException, fl.FlightError, OSError) as cause:
            raise StoreUnavailableError(f"flight.listen: can't listen on {self._wanted}: {str(cause)[:200]}") from cause
        self._seats = seats
        seats.open_appended()
        _log.info(
            "Arrow Flight listens on %s",
            self.address,
            extra={"event": "flight_listens", "address": str(self.address), "tls": bool(tls)},
        )

    def stop(self, within_s: float) -> None:
        server, seats = self._server, self._seats
        if server is None or seats is None:
            return
        self._calls.is_closing = True
        seats.stop()
        # Waits for every call without a limit; calls that haven't ended by then are cut.
        ending = threading.Thread(target=server.shutdown, name="offloader-flight-end", daemon=True)
        ending.start()
        deadline_s = self._clock.monotonic_s() + within_s
        ending.join(min(within_s / 2, GRACE_S_MAX))
        if ending.is_alive():
            count = cut_connections(self.address.port)
            _log.info(
                "%d connections were closed: their calls didn't end in time", count, extra={"event": "flight_cut"}
            )
        ending.join(max(deadline_s - self._clock.monotonic_s(), 0.0))

    def close(self) -> None:
        if self._seats is not None:
            self._seats.close()
        if self._ledgers is not None:
            self._ledgers.close()

    def problems(self) -> Sequence[ProviderProblem]:
        """Pushed streams whose broker is disconnected while entries aren't durable."""
        held = [] if self._seats is None else self._seats.held()
        return [
            ProviderProblem(
                where=f"stream {stream.name}",
                what=f"its broker isn't connected, and entries after {stream.source.news().durable or 'none'} aren't "
                "durable",
                hint="nothing is lost: the broker has them; they become durable when the segment is complete",
            )
            for stream in held
            if stream.mode == "push" and stream.seat is None and not stream.is_done
        ]


def _tls_of(settings: AccessSettings) -> dict[str, Any]:
    """TLS options of ``FlightServerBase``: a client certificate is required, or none is requested.

    With tokens none is requested: gRPC's Python interface can't make it optional.
    """
    if not settings.certificate_file:
        return {}
    certificate = Path(settings.certificate_file).read_bytes()
    key = Path(settings.key_file or settings.certificate_file).read_bytes()
    found: dict[str, Any] = {"tls_certificates": [(certificate, key)]}
    if settings.client_authorities_file and not settings.has_tokens:
        if settings.anonymous != "loopback":
            raise InvalidCallError(
                "access.anonymous permits unauthenticated callers, but Flight can only require certificates of all "
                "callers",
                hint="leave out access.anonymous or access.certificates",
            )
        found |= {"verify_client": True, "root_certificates": Path(settings.client_authorities_file).read_bytes()}
    return found
