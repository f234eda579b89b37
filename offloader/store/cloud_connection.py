"""Connections of the asynchronous clients: each request is sent once, and one that was never sent is told apart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import aiohttp

__all__ = ["AnswerLost", "send_once", "was_never_sent"]

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

#: Raised while the connection is made: name resolution, connection refused, TLS handshake, proxy, connect timeout.
_CONNECTING = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


class AnswerLost(aiohttp.ClientError):
    """A connection that ended after the request began to go out."""


async def send_once(request: _Request, send: Callable[[_Request], Awaitable[_Response]]) -> _Response:
    """Middleware: hides lost connections from aiohttp, which sends PUT and DELETE again on a new connection.

    The second attempt would meet the effect of the first: a create would be refused by the object that it made.
    """
    try:
        return await send(request)
    except _CONNECTING:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise AnswerLost(f"{type(error).__name__} {error}") from error


def was_never_sent(error: BaseException) -> bool:
    """Whether no byte of the request can have reached the service; false where that isn't certain."""
    return any(isinstance(cause, _CONNECTING) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
