"""Who calls, and how many do at once.

Owns the look at a call's headers, before anything else of it is looked at. Must never keep a token beyond the call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pyarrow.flight as fl

from offloader.errors import OffloaderError, StoreUnavailable
from offloader.service.auth import Guard
from offloader.service.flight.refusals import refusal, refusing
from offloader.service.roles import OPERATION_OF_ACTION, Caller

__all__ = ["CALL", "Calls", "caller_of"]

#: The name of the middleware.
CALL = "call"
#: Health checks of load balancers and the like look for it.
_AUTHORIZATION = "authorization"
#: What begins a call that isn't one of ours, and what has the same answer for all.
_FOR_EVERYBODY = frozenset({fl.FlightMethod.HANDSHAKE, fl.FlightMethod.GET_SCHEMA})
#: What each call is. Of actions only their names tell.
_OPERATIONS = {
    fl.FlightMethod.DO_PUT: OPERATION_OF_ACTION["DoPut"],
    fl.FlightMethod.DO_GET: OPERATION_OF_ACTION["DoGet"],
    fl.FlightMethod.LIST_FLIGHTS: OPERATION_OF_ACTION["ListFlights"],
    fl.FlightMethod.GET_FLIGHT_INFO: OPERATION_OF_ACTION["GetFlightInfo"],
    fl.FlightMethod.LIST_ACTIONS: OPERATION_OF_ACTION["ListActions"],
    fl.FlightMethod.DO_EXCHANGE: OPERATION_OF_ACTION["DoExchange"],
}


class Calls(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls in.

    Args:
        guard: knows whose token or certificate it is.
        calls_max: more at once are refused.

    Attributes:
        open: calls under way.
    """

    def __init__(self, guard: Guard, calls_max: int) -> None:
        self.guard = guard
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self.open = 0
        self._closing = False

    def close(self) -> None:
        """No call is let in any more."""
        self._closing = True

    def start_call(self, info: fl.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Call:
        """Called before anything of a stream is read: whom it refuses, no message is taken in from. (What comes as a
        single message, a ticket or an action, gRPC has taken in by now.)"""
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
        """Who calls, as far as the headers tell; ``None``: a certificate may say, which only the call itself shows.

        Raises:
            NotAuthenticated, NotAllowed: nobody known, or the role doesn't reach.
        """
        if method in _FOR_EVERYBODY or (authorization is None and self.guard.credentials.has_certificates):
            return None
        try:
            caller = self.guard.caller(authorization)
        except OffloaderError as error:
            raise error from None  # what was compared isn't anybody's business
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
        """Who calls; ``identity``: of the client's certificate, empty: none was shown."""
        return self._caller or self._calls.guard.caller(None, [identity] if identity else None)


def caller_of(context: fl.ServerCallContext, name: str = "") -> Caller:
    """Who makes this call, who may make the one of that name; without one, who is known at all.

    Raises:
        NotAuthenticated, NotAllowed: nobody known, or the role doesn't reach.
    """
    call = context.get_middleware(CALL)
    identity = context.peer_identity()
    text = identity.decode(errors="replace") if isinstance(identity, bytes) else identity
    try:
        caller: Caller = call.caller(text)
    except OffloaderError as error:
        raise error from None  # what was compared isn't anybody's business
    caller.require_known()
    if name:
        caller.may(OPERATION_OF_ACTION[name])
    return caller
