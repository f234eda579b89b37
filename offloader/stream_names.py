"""The check of a stream's name at every place where entries come in, before the first of them is taken."""

from __future__ import annotations

from formats.errors import FormatError
from formats.keys import encode_stream
from offloader.errors import InvalidCall

__all__ = ["name_clash", "require_stream_name"]


def require_stream_name(stream: str) -> None:
    """Refuses a name under which nothing can be kept.

    Raises:
        InvalidCall: as ``encode_stream`` says; names what is wrong with it.
    """
    try:
        if not isinstance(stream, str):
            raise InvalidCall(f"{stream!r:.100} is no stream name", hint=_HINT)
        encode_stream(stream)
    except FormatError as error:
        raise InvalidCall(str(error), hint=_HINT) from error


def name_clash(stream: str, other: str) -> InvalidCall:
    """The refusal of a new stream because of one whose name begins with its levels, or the other way round."""
    return InvalidCall(
        f"stream {stream} can't be created: stream {other} exists, and one name begins with the other",
        hint="choose a name beside it",
    )


_HINT = "names look like public/default/persistent/orders"
