"""An answer's body straight from its connection into memory.

Owns the way past the SDK's layers while a body comes, each of which copies it. Must never decide what a failure means,
nor give a connection back from which more may come.
"""

from __future__ import annotations

from http.client import HTTPException, HTTPResponse
from typing import Any

from botocore import exceptions as sdk

__all__ = ["read_into"]

_ENDED = "the connection ended before the body"


def read_into(stream: Any, room: memoryview) -> int:
    """Fills ``room`` from an answer's body.

    The HTTP client below the SDK reads into memory that is there; the layers above it only know new memory for each
    piece, and the copy out of it. They have no public name for it; should a later release move it, pieces are copied.

    Args:
        stream: the body of an answer of the SDK's, of which nothing was read in other ways.
        room: not empty.

    Returns:
        How many bytes came, at least one; fewer than ``room`` has where the body or its connection ends.

    Raises:
        sdk.HTTPClientError: the connection broke, or ended before the body did.
    """
    raw = getattr(stream, "_raw_stream", None)
    response = getattr(raw, "_fp", None)
    if isinstance(response, HTTPResponse):
        return _from_connection(raw, response, room)
    piece = stream.read(len(room))
    if not piece:
        raise sdk.ResponseStreamingError(error=_ENDED)
    room[: len(piece)] = piece
    return len(piece)


def _from_connection(raw: Any, response: HTTPResponse, room: memoryview) -> int:
    try:
        came = response.readinto(room)
    except TimeoutError as error:
        raise sdk.ReadTimeoutError(endpoint_url=None, error=error) from error
    except (HTTPException, OSError) as error:
        raise sdk.ResponseStreamingError(error=error) from error
    if not came:
        raise sdk.ResponseStreamingError(error=_ENDED)
    if response.isclosed():  # all of it came: the connection serves the next request
        raw.release_conn()
    return came
