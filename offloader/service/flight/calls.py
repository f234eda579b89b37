"""Who calls, and how many do at once.

Owns the look at a call's headers, before anything else of it is looked at. Must never keep a token beyond the call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pyarrow.flight as fl

from offloader.errors import OffloaderError, StoreUnavailable
from offloader.service.auth import Caller, Guard, Role
from offloader.service.flight.refusals import refusal

__all__ = ["CALL", "Calls", "caller_of"]

#: The name of the middleware.
CALL = "call"
#: Health checks of load balancers and the like look for it.
_AUTHORIZATION = "authorization"


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

    def start_call(self, info: fl.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Call:  # noqa: ARG002 - Flight's
        given = next((values for name, values in headers.items() if name.lower() == _AUTHORIZATION and values), None)
        text = None if given is None else given[0]
        with self._lock:
            if self._closing or self.open >= self._calls_max:
                why = "the process is stopping" if self._closing else f"flight.calls_max = {self._calls_max} are open"
                raise refusal(StoreUnavailable(f"no further call: {why}", hint="try again later"))
            self.open += 1
        return _Call(self, text.decode("latin-1") if isinstance(text, bytes) else text)

    def ended(self) -> None:
        with self._lock:
            self.open -= 1


class _Call(fl.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, calls: Calls, authorization: str | None) -> None:
        self._calls = calls
        self._authorization = authorization

    def call_completed(self, exception: Exception | None) -> None:  # noqa: ARG002 - Flight's
        self._calls.ended()

    def caller(self, identity: str) -> Caller:
        """Who calls; ``identity``: of the client's certificate, empty: none was shown."""
        return self._calls.guard.caller(self._authorization, [identity] if identity else None)


def caller_of(context: fl.ServerCallContext, role: Role) -> Caller:
    """Who makes this call, who has ``role`` or more.

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
    caller.require(role)
    return caller
