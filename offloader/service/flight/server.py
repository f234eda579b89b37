"""The Arrow Flight server: which call goes where, who may make it.

Owns the calls of the protocol. Must never do anything for a caller before it knows who that is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as fl

from offloader.errors import InvalidCall
from offloader.service.flight.actions import ACTIONS, Actions
from offloader.service.flight.calls import CALL, Calls, caller_of
from offloader.service.flight.columns import ENTRY_SCHEMA
from offloader.service.flight.gets import Gets
from offloader.service.flight.messages import get_request, put_request
from offloader.service.flight.puts import take_batches
from offloader.service.flight.refusals import refusing
from offloader.service.flight.seats import Seats
from offloader.settings import FlightSettings

__all__ = ["FlightServer", "ServerParts"]

_log = logging.getLogger("offloader.service.flight")


@dataclass(frozen=True, slots=True)
class ServerParts:
    """What a server is made of."""

    calls: Calls
    seats: Seats
    gets: Gets
    actions: Actions
    settings: FlightSettings


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    """Serves from its construction on, on threads of gRPC's.

    Args:
        location: ``grpc://`` or ``grpc+tls://``, host and port.
        parts: do the work.
        tls: what ``FlightServerBase`` wants to know for TLS.
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
        # The same for everybody and every stream: of this call alone pyarrow tells whom we refuse our traceback.
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
