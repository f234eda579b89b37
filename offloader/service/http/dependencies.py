"""What the routes take from a request: the caller, and names in its path."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Request

from formats.keys import STREAM_BYTES_MAX
from offloader.errors import InvalidCall
from offloader.service.auth import OPERATION_OF_ROUTE, Caller
from offloader.service.http.middleware import CALLER
from offloader.stream_names import require_stream_name

#: A name in a path, percent-encoded once more than in keys.
_PART_CHARS_MAX = 3 * STREAM_BYTES_MAX


def caller_of(request: Request) -> Caller:
    """The caller, set by the middleware."""
    caller: Caller = request.scope["state"][CALLER]
    return caller


def require_allowed(request: Request) -> None:
    """Checks the caller against the table of operations, by the request's path and method. Raises ``NotAuthenticated``,
    ``NotAllowed``: the caller may not."""
    operation = OPERATION_OF_ROUTE[f"{request.method} {request.scope['route'].path}"]
    subscriber = request.path_params.get("subscriber")
    named = None if subscriber is None else decoded(subscriber, "subscriber's name")
    caller_of(request).may(operation, subscriber=named)


Known = Annotated[Caller, Depends(caller_of)]


def decoded(part: str, what: str) -> str:
    """A part of a path. Raises ``InvalidCall``: it isn't UTF-8."""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise InvalidCall(f"the {what} in the path isn't UTF-8", hint="percent-encode its UTF-8 bytes") from None


def _stream_name(
    stream: Annotated[
        str,
        Path(
            description="The stream's name, percent-encoded as one part: `public%2Fdefault%2Fpersistent%2Forders`.",
            max_length=_PART_CHARS_MAX,
        ),
    ],
) -> str:
    name = decoded(stream, "stream's name")
    require_stream_name(name)
    return name


def _subscriber_name(
    subscriber: Annotated[str, Path(description="Percent-encoded.", max_length=_PART_CHARS_MAX)],
) -> str:
    return decoded(subscriber, "subscriber's name")


StreamName = Annotated[str, Depends(_stream_name)]
SubscriberName = Annotated[str, Depends(_subscriber_name)]
