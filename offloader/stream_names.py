"""Names of streams and topics: the check of every input before its first entry is accepted, partitions, patterns."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_plus

from formats.errors import FormatError
from formats.keys import encode_stream
from offloader.errors import InvalidCallError


def require_stream_name(stream: str) -> None:
    """Refuses an invalid stream name.

    Raises:
        InvalidCallError: as ``encode_stream``; names the fault.
    """
    try:
        if not isinstance(stream, str):
            raise InvalidCallError(f"{stream!r:.100} is no stream name", hint=_HINT)
        encode_stream(stream)
    except FormatError as error:
        raise InvalidCallError(str(error), hint=_HINT) from error


_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})")


def partition_of(stream: str) -> tuple[str, int] | None:
    """Topic and number of a stream named like a partition; ``None`` for any other name."""
    match = _PARTITION.fullmatch(stream)
    return None if match is None else (match[1], int(match[2]))


def is_segment(stream: str) -> bool:
    """Whether a stream is named like a segment of a scalable topic, ``t/n/segment/orders/0000-7fff-1``."""
    levels = stream.split("/")
    return len(levels) == 5 and levels[2] == "segment"


def is_place(name: str) -> bool:
    """Whether a name can be that of a scalable topic's documents, ``t/n/topic/orders``."""
    levels = name.split("/")
    return len(levels) == 4 and levels[2] == "topic" and all(levels)


_PLACE = re.compile(r"([^/]+/[^/]+)/(?:segment/([^/]+)/[^/]+|persistent/([^/]+))")


def place_of(stream: str) -> str | None:
    """The place of the scalable topic that a stream may be a segment of: ``t/n/segment/orders/0000-7fff-1`` ->
    ``t/n/topic/orders``, and ``t/n/persistent/orders`` or a partition of it likewise, which may have been migrated.

    ``None``: of no scalable topic. Its layout tells whether the stream is one of its segments.
    """
    if (match := _PLACE.fullmatch(stream)) is None:
        return None
    name = match[2]
    if not name:
        split = partition_of(match[3])
        # Pulsar encodes the names of regular topics.
        name = unquote_plus(match[3] if split is None else split[0])
    place = f"{match[1]}/topic/{name}"
    try:
        encode_stream(place)
    except FormatError:
        return None
    return place if is_place(place) else None


#: Patterns that are kept compiled.
_COMPILED_MAX = 4096
_WILD = re.compile(r"[*?]")


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern of names: ``*`` stands for any characters, ``?`` for one. All others stand for
    themselves, also ``[``, which names of topics may have."""
    return _WILD.search(text) is not None


def literal_prefix(pattern: str) -> str:
    """The characters in front of the first ``*`` or ``?``, with which every name begins that the pattern matches."""
    return _WILD.split(pattern, maxsplit=1)[0]


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, or a name, means ``name``. Capital and small letters differ."""
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(_COMPILED_MAX)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    # Several * in a row are one: else each more multiplies the time of a name that doesn't match.
    return re.compile("".join(parts.get(each) or re.escape(each) for each in re.sub(r"\*+", "*", pattern)), re.DOTALL)


def name_clash(stream: str, other: str) -> InvalidCallError:
    """The error for a new stream whose name is a prefix of another's levels, or the reverse."""
    return InvalidCallError(
        f"stream {stream} can't be created: stream {other} exists, and one name begins with the other",
        hint="choose a name beside it",
    )


_HINT = "names look like public/default/persistent/orders"
