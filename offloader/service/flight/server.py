"""The Arrow Flight server: dispatch, authentication and call limits."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl

from offloader.errors import InvalidCall, OffloaderError, StoreUnavailable
from offloader.service.auth import OPERATION_OF_ACTION, Caller, Guard
from offloader.service.flight.handlers import ACTIONS, ENTRY_SCHEMA, Actions, Gets, take_batches
from offloader.service.flight.messages import get_request, put_request, refusal, refusing
from offloader.service.flight.sessions import ProducerSessions
from offloader.service.listen import ListenAddress
from offloader.settings import FlightSettings

__all__ = ["CALL", "Calls", "FlightServer", "ServerParts", "caller_of", "cut_connections", "require_free"]

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
    for connection in _accepted(port):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def _accepted(port: int) -> Iterator[socket.socket]:
    for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 - one name after another may be gone by now
        try:
            # A duplicate: closing it leaves the server's own open.
            candidate = socket.socket(fileno=os.dup(int(name)))
        except (OSError, ValueError):
            continue  # not a socket, or already closed
        with candidate, contextlib.suppress(OSError):
            if candidate.family in (socket.AF_INET, socket.AF_INET6) and candidate.getsockname()[1] == port:
                candidate.getpeername()  # fails for the listening socket
                yield candidate


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
        guard: authenticates.
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
        given = next((values for name, values in headers.items() if name.lower() == _AUTHORIZATION and values), None)
        text = None if given is None else given[0]
        with refusing(info.method.name):
            caller = self._known(info.method, text.decode("latin-1") if isinstance(text, bytes) else text)
        with self._lock:
            if self._closing or self.open >= self._calls_max:
                why = "the process is stopping" if self._closing else f"flight.calls_max = {self._calls_max} are open"
                raise refusal(StoreUnavailable(f"no further call: {why}", hint="try again later"))
            self.open += 1
        return _Call(self, caller)

    def _known(self, method: fl.FlightMethod, authorization: str | None) -> Caller | None:
        """The caller, by the headers; ``None``: a certificate may identify it, which only the call itself has.

        Raises:
            NotAuthenticated, NotAllowed: an unknown caller, or an insufficient role.
        """
        if method in _FOR_EVERYBODY or (authorization is None and self.guard.credentials.has_certificates):
            return None
        try:
            caller = self.guard.caller(authorization)
        except OffloaderError as error:
            raise error from None  # without its cause, which has the compared values
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


def caller_of(context: fl.ServerCallContext, name: str = "") -> Caller:
    """The caller of this call, checked for operation ``name``, or to be known.

    Raises:
        NotAuthenticated, NotAllowed: an unknown caller, or an insufficient role.
    """
    call = context.get_middleware(CALL)
    identity = context.peer_identity()
    text = identity.decode(errors="replace") if isinstance(identity, bytes) else identity
    try:
        caller: Caller = call.caller(text)
    except OffloaderError as error:
        raise error from None  # without its cause, which has the compared values
    caller.require_known()
    if name:
        caller.may(OPERATION_OF_ACTION[name])
    return caller


_log = logging.getLogger("offloader.service.flight")


@dataclass(frozen=True, slots=True)
class ServerParts:
    """Parts of a server."""

    calls: Calls
    seats: ProducerSessions
    gets: Gets
    actions: Actions
    settings: FlightSettings


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    """Serves from its construction on, on gRPC's threads.

    Args:
        location: ``grpc://`` or ``grpc+tls://``, host and port.
        parts: handle the calls.
        tls: TLS options of ``FlightServerBase``.
    """

    def __init__(self, location: str, parts: ServerParts, **tls: object) -> None:
        self._parts = parts
        super().__init__(location, middleware={CALL: parts.calls}, **tls)

    def do_put(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        with refusing("DoPut"):
            caller = caller_of(context, "DoPut")
            request = put_request(descriptor.path, descriptor.command)
            seat = self._parts.seats.take(request, context.peer())
            extra = {"event": "flight_put", "stream": request.stream, "producer": request.producer, "by": caller.name}
            _log.info("stream %s: %s sends from %s", request.stream, caller.name, context.peer(), extra=extra)
            try:
                take_batches(seat, reader, writer, self._parts.settings)
            finally:
                seat.leave()

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        with refusing("DoGet"):
            caller_of(context, "DoGet")
            return self._parts.gets.entries(get_request(ticket.ticket))

    def list_flights(self, context: fl.ServerCallContext, criteria: bytes) -> Iterator[fl.FlightInfo]:
        with refusing("ListFlights"):
            caller_of(context, "ListFlights")
            return self._parts.gets.infos(criteria.decode(errors="replace"))

    def get_flight_info(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        with refusing("GetFlightInfo"):
            caller_of(context, "GetFlightInfo")
            return self._parts.gets.info(put_request(descriptor.path, descriptor.command).stream)

    def get_schema(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.SchemaResult:  # noqa: ARG002
        # The same for every caller and stream: an error in this call would show our traceback to refused callers.
        return fl.SchemaResult(ENTRY_SCHEMA)

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        with refusing("ListActions"):
            caller_of(context, "ListActions")
            return list(ACTIONS.items())

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[fl.Result]:
        with refusing("DoAction"):
            caller = caller_of(context)
            answer = self._parts.actions.run(action.type, action.body.to_pybytes(), caller)
            return [fl.Result(pa.py_buffer(answer))]

    def do_exchange(self, context: fl.ServerCallContext, *_: object) -> None:
        with refusing("DoExchange"):
            caller_of(context, "DoExchange")
            raise InvalidCall("there is nothing to exchange", hint="DoPut brings entries, DoGet reads them")
