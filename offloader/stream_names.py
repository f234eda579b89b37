"""Stream name check of every input, before its first entry is accepted."""

from __future__ import annotations

import re

from formats.errors import FormatError
from formats.keys import encode_stream
from offloader.errors import InvalidCall


def require_stream_name(stream: str) -> None:
    """Refuses an invalid stream name.

    Raises:
        InvalidCall: as ``encode_stream``; names the fault.
    """
    try:
        if not isinstance(stream, str):
            raise InvalidCall(f"{stream!r:.100} is no stream name", hint=_HINT)
        encode_stream(stream)
    except FormatError as error:
        raise InvalidCall(str(error), hint=_HINT) from error


_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})")


def partition_of(stream: str) -> tuple[str, int] | None:
    """Topic and number of a stream named like a partition; ``None`` for any other name."""
    match = _PARTITION.fullmatch(stream)
    return None if match is None else (match[1], int(match[2]))


def name_clash(stream: str, other: str) -> InvalidCall:
    """The error for a new stream whose name is a prefix of another's levels, or the reverse."""
    return InvalidCall(
        f"stream {stream} can't be created: stream {other} exists, and one name begins with the other",
        hint="choose a name beside it",
    )


_HINT = "names look like public/default/persistent/orders"
