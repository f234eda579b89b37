"""Streams that producers push through Arrow Flight, for the serving process, and the Flight server."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from offloader.errors import InvalidCall, StoreUnavailable
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
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
from offloader.service.flight.handlers import ACTIONS, ENTRY_SCHEMA, Actions, Gets, take_batches
from offloader.service.flight.messages import get_request, put_request, refusal, refusing
from offloader.service.flight.sessions import FEED, ProducerSessions
from offloader.service.queries import ServiceControl
from offloader.service.streams import ProviderProblem, ServedStreams
from offloader.settings import AccessSettings, FlightSettings, Settings
from offloader.store.base import ObjectStore

_log = logging.getLogger("offloader.service.flight")

#: The process's open files, on Linux and elsewhere.
_OPEN_FILES = Path("/dev/fd")


def require_free(address: ListenAddress) -> None:
    """Checks that the address is free: gRPC would share the port silently, and calls would reach either process.

    Raises:
        StoreUnavailable: another process listens there, perhaps one that is ending.
        InvalidCall: no address of this machine.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as cause:
        text = f"flight.listen: can't listen on {address}: {cause.strerror or cause}"
        if cause.errno == errno.EADDRINUSE:
            raise StoreUnavailable(text, hint="another process listens there") from cause
        raise InvalidCall(text, hint="give an address of this machine") from cause


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
#: Header of the token.
_AUTHORIZATION = "authorization"
#: Methods without a role: the handshake, which begins no call of ours, and a response that is the same for all.
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
    """

    def __init__(self, guard: Guard, calls_max: int) -> None:
        self.guard = guard
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self.open = 0
        self._closing = False

    def close(self) -> None:
        """Refuses all further calls."""
        self._closing = True

    def start_call(self, info: fl.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Call:
        """Called before any message of a stream is read, so that a refused caller's data isn't received. (gRPC has
        received single messages, tickets and actions by now.)"""
        text = next((values[0] for name, values in headers.items() if name.lower() == _AUTHORIZATION and values), None)
        with refusing(info.method.name):
            caller = self._known(info.method, text.decode("latin-1") if isinstance(text, bytes) else text)
        with self._lock:
            if self._closing or self.open >= self._calls_max:
                why = "the process is stopping" if self._closing else f"flight.calls_max = {self._calls_max} are open"
                raise refusal(StoreUnavailable(f"no further call: {why}", hint="try again later"))
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
            extra = {"event": "flight_put", "stream": request.stream, "producer": request.producer, "by": caller.name}
            _log.info("stream %s: %s sends from %s", request.stream, caller.name, context.peer(), extra=extra)
            try:
                take_batches(seat, reader, writer, self._settings)
            finally:
                seat.leave()

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        with admitted(context, "DoGet"):
            return self._gets.entries(get_request(ticket.ticket))

    def list_flights(self, context: fl.ServerCallContext, criteria: bytes) -> Iterator[fl.FlightInfo]:
        with admitted(context, "ListFlights"):
            return self._gets.infos(criteria.decode(errors="replace"))

    def get_flight_info(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        with admitted(context, "GetFlightInfo"):
            return self._gets.info(put_request(descriptor.path, descriptor.command).stream)

    def get_schema(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.SchemaResult:  # noqa: ARG002
        # The same for every caller and stream: an error in this call would show our traceback to refused callers.
        return fl.SchemaResult(ENTRY_SCHEMA)

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        with admitted(context, "ListActions"):
            return list(ACTIONS.items())

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[fl.Result]:
        with admitted(context, "DoAction", has_role=False) as caller:
            answer = self._actions.run(action.type, action.body.to_pybytes(), caller)
            return [fl.Result(pa.py_buffer(answer))]

    def do_exchange(self, context: fl.ServerCallContext, *_: object) -> None:
        with admitted(context, "DoExchange"):
            raise InvalidCall("there is nothing to exchange", hint="DoPut brings entries, DoGet reads them")


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
        InvalidCall, AccessDenied: unsafe or contradictory settings, see ``guard_for`` and ``server_tls``.
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
            raise InvalidCall(
                "flight.ledgers and serve.ledgers name one database: its streams would be brought twice",
                hint="give Flight a database of its own",
            )
        self._wanted = parse_listen(settings.flight.listen, setting="flight.listen")
        # Also validates the files, which gRPC doesn't report.
        has_tls = server_tls(settings.access) is not None
        guard = guard_for(self._wanted, credentials, settings.access, has_tls=has_tls, setting="flight.listen")
        self._calls = Calls(guard, settings.flight.calls_max)
        self._ledgers: EmbeddedLedgers | None = None
        self._seats: ProducerSessions | None = None
        self._server: FlightServer | None = None

    @property
    def address(self) -> ListenAddress:
        """Its listen address; port 0 until it listens, if any port will do."""
        server = self._server
        return self._wanted if server is None else ListenAddress(self._wanted.host, server.port)

    def start(self, streams: ServedStreams) -> None:
        """Listens.

        Raises:
            InvalidCall: the address can't be used, or the file is no ledger database.
            StoreUnavailable: another process listens there.
        """
        flight = self._settings.flight
        require_free(self._wanted)
        if flight.ledgers and self._ledgers is None:
            self._ledgers = EmbeddedLedgers(flight.ledgers, settings=self._settings.ledgers, clock=self._clock)
        seats = ProducerSessions(streams, self._store, flight, self._ledgers, self._clock)
        gets = Gets(self._store, self._settings.read, seats.appended)
        actions = Actions(self._store, seats, self._control, self._clock)
        tls = _tls_of(self._settings.access)
        scheme = "grpc+tls" if tls else "grpc"
        try:
            self._server = FlightServer(f"{scheme}://{self._wanted}", self._calls, seats, gets, actions, flight, **tls)
        except (pa.ArrowException, fl.FlightError, OSError) as cause:
            raise StoreUnavailable(f"flight.listen: can't listen on {self._wanted}: {str(cause)[:200]}") from cause
        self._seats = seats
        seats.open_appended()
        extra = {"event": "flight_listens", "address": str(self.address), "tls": bool(tls)}
        _log.info("Arrow Flight listens on %s", self.address, extra=extra)

    def stop(self, within_s: float) -> None:
        server, seats = self._server, self._seats
        if server is None or seats is None:
            return
        self._calls.close()
        seats.stop()
        # Waits for every call without a limit; calls that haven't ended by then are cut.
        ending = threading.Thread(target=server.shutdown, name="offloader-flight-end", daemon=True)
        ending.start()
        deadline_s = self._clock.monotonic_s() + within_s
        ending.join(min(within_s / 2, GRACE_S_MAX))
        if ending.is_alive():
            count = cut_connections(self.address.port)
            _log.info("%d connections were cut: their calls didn't end", count, extra={"event": "flight_cut"})
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
                hint="nothing is lost: the broker has them; they are durable when the segment is complete",
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
            raise InvalidCall(
                "access.anonymous lets anyone in, and Flight can ask for certificates only where everybody has one",
                hint="leave out access.anonymous or access.certificates",
            )
        found |= {"verify_client": True, "root_certificates": Path(settings.client_authorities_file).read_bytes()}
    return found
