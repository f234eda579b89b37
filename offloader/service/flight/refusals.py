"""Errors as Arrow Flight has them: what a caller hears, and the code that its own language makes an error of.

Owns that translation. Must never tell a caller of an error that wasn't raised on purpose more than that there was one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl

from offloader.errors import ErrorKind, OffloaderError
from offloader.service.auth import NotAuthenticated
from offloader.service.flight.messages import encoded

__all__ = ["refusal", "refusing"]

_KINDS: dict[ErrorKind, type[fl.FlightError]] = {
    ErrorKind.DENIED: fl.FlightUnauthorizedError,
    ErrorKind.RETRY_LATER: fl.FlightUnavailableError,
}
_log = logging.getLogger("offloader.service.flight")


def refusal(error: OffloaderError) -> fl.FlightError:
    """What is raised to the caller: ``Kind: what, where, why (what to do)``, and the same as JSON in ``extra_info``.

    | error               | gRPC code         | in Python                      |
    | ------------------- | ----------------- | ------------------------------ |
    | nobody known        | UNAUTHENTICATED   | ``FlightUnauthenticatedError`` |
    | not allowed         | PERMISSION_DENIED | ``FlightUnauthorizedError``    |
    | try again later     | UNAVAILABLE       | ``FlightUnavailableError``     |
    | everything else     | UNKNOWN           | ``FlightServerError``          |

    Only Flight's own errors: of any other one pyarrow tells the caller the whole traceback.
    """
    kind = _KINDS.get(error.kind, fl.FlightServerError)
    if isinstance(error, NotAuthenticated):
        kind = fl.FlightUnauthenticatedError
    facts = {"error": type(error).__name__, "kind": error.kind.name.lower(), "what": error.message, "hint": error.hint}
    return kind(f"{type(error).__name__}: {error}", encoded(facts))


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Around everything that is done for a caller.

    Args:
        what: the call, for the log.
    """
    try:
        yield
    except OffloaderError as error:
        _log.info("%s refused: %s", what, error, extra={"event": "flight_refused", "call": what})
        raise refusal(error) from error
    except (fl.FlightError, StopIteration, GeneratorExit):
        raise
    except pa.ArrowException as error:
        _log.info("%s broke off: %s", what, error, extra={"event": "flight_broken", "call": what})
        raise fl.FlightServerError(
            f"{what}: {str(error).splitlines()[0][:200] if str(error) else 'broke off'}"
        ) from None
    except Exception as error:
        _log.exception("%s failed", what)
        raise fl.FlightInternalError(f"{what} failed; the log of the process has the cause") from error
