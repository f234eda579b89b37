"""Stream names and their percent-encoded form, which is what keys begin with.

``encode_stream`` is the one rule of which names a stream may have; ``levels_above`` which names can't stand beside it.
Whatever takes entries calls it first (``offloader.stream_names``): nothing can be kept under another name.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

from formats.errors import Inconsistent

__all__ = [
    "LEVEL_BYTES_MAX",
    "RESERVED_FIRST_LEVEL",
    "RESERVED_LEVELS",
    "STREAM_BYTES_MAX",
    "decode_stream",
    "encode_stream",
    "levels_above",
]

#: Levels that a stream name may not have: they are folders of the stream itself.
RESERVED_LEVELS = frozenset({"manifest", "retention", "leases"})
#: First level that a stream name may not have: the folder that a local store keeps beside its objects.
RESERVED_FIRST_LEVEL = ".offloader"
#: File systems take 255 bytes per name.
LEVEL_BYTES_MAX = 255
#: Keys end at 1,024 bytes in S3; the rest is for what comes after the stream.
STREAM_BYTES_MAX = 800
#: Every key begins with a name, and a process has few of them.
_NAMES_CACHED = 4096


@lru_cache(_NAMES_CACHED)
def encode_stream(stream: str) -> str:
    """A stream's name as the beginning of its keys: levels between ``/``, each percent-encoded.

    Letters, digits and ``_ . - ~`` stay, so that Pulsar's names stay as they are; a level of dots only is
    encoded too, because a file system would take it for a folder of its own.

    Raises:
        Inconsistent: an empty name or level, a reserved level, a first level that begins with ``_`` or is
            ``.offloader``, a name that is too long or isn't text (spec: names of streams).
    """
    levels = stream.split("/")
    encoded = "/".join(_encode_level(stream, level) for level in levels)
    if levels[0].startswith("_"):
        raise _bad_stream(stream, "a first level that doesn't begin with _", levels[0])
    if levels[0] == RESERVED_FIRST_LEVEL:
        raise _bad_stream(stream, f"a first level other than {RESERVED_FIRST_LEVEL}", levels[0])
    if len(encoded) > STREAM_BYTES_MAX:
        raise _bad_stream(stream, f"at most {STREAM_BYTES_MAX} bytes when encoded", len(encoded))
    return encoded


def levels_above(stream: str) -> list[str]:
    """The names above a stream's: their streams' keys would lie around its own, so only one of two such can exist."""
    levels = stream.split("/")
    return ["/".join(levels[:count]) for count in range(1, len(levels))]


def _encode_level(stream: str, level: str) -> str:
    if not level:
        raise _bad_stream(stream, "levels that aren't empty, separated by /", "an empty level")
    if level in RESERVED_LEVELS:
        raise _bad_stream(stream, f"no level named {', '.join(sorted(RESERVED_LEVELS))}", level)
    try:
        encoded = quote(level, safe="")
    except UnicodeEncodeError as cause:
        raise _bad_stream(stream, "text", "a lone surrogate") from cause
    if not level.strip("."):
        encoded = encoded.replace(".", "%2E")
    if len(encoded) > LEVEL_BYTES_MAX:
        raise _bad_stream(stream, f"levels of at most {LEVEL_BYTES_MAX} bytes when encoded", len(encoded))
    return encoded


def _bad_stream(stream: str, expected: str, found: object) -> Inconsistent:
    shown = ascii(stream if len(stream) <= 100 else stream[:100] + "...")
    return Inconsistent(f"stream name {shown} can't be used", expected=expected, found=found)


def decode_stream(encoded: str) -> str:
    """The stream whose ``encode_stream`` is ``encoded``; ``Inconsistent`` when there is none."""
    try:
        stream = "/".join(unquote(level, errors="strict") for level in encoded.split("/"))
    except UnicodeDecodeError as cause:
        raise Inconsistent("not an encoded stream name", expected="UTF-8", found=ascii(encoded)) from cause
    if encode_stream(stream) != encoded:
        raise Inconsistent("not an encoded stream name", expected=encode_stream(stream), found=ascii(encoded))
    return stream
