"""What a request asks for: its operation and who may, the stream in the path.

Owns how names travel in paths. Must never decode a name twice, or split one that was one part of a path.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Request

from formats.stream_names import STREAM_BYTES_MAX
from offloader.errors import InvalidCall
from offloader.service.http.gate import CALLER
from offloader.service.roles import OPERATION_OF_ROUTE, Caller
from offloader.stream_names import require_stream_name

__all__ = ["Known", "StreamName", "SubscriberName", "caller_of", "require_allowed"]

#: A name in a path, percent-encoded once more than in keys.
_PART_CHARS_MAX = 3 * STREAM_BYTES_MAX


def caller_of(request: Request) -> Caller:
    """Who calls, as the gate found."""
    caller: Caller = request.scope["state"][CALLER]
    return caller


def require_allowed(request: Request) -> None:
    """Passes whoever may do what the request's path and method are, by the table of operations.

    Raises:
        NotAuthenticated, NotAllowed: who may not.
    """
    operation = OPERATION_OF_ROUTE[f"{request.method} {request.scope['route'].path}"]
    subscriber = request.path_params.get("subscriber")
    named = None if subscriber is None else _decoded(subscriber, "subscriber's name")
    caller_of(request).may(operation, subscriber=named)


Known = Annotated[Caller, Depends(caller_of)]


def _decoded(part: str, what: str) -> str:
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
    name = _decoded(stream, "stream's name")
    require_stream_name(name)
    return name


def _subscriber_name(
    subscriber: Annotated[str, Path(description="Percent-encoded.", max_length=_PART_CHARS_MAX)],
) -> str:
    return _decoded(subscriber, "subscriber's name")


StreamName = Annotated[str, Depends(_stream_name)]
SubscriberName = Annotated[str, Depends(_subscriber_name)]
