"""Stream names and their percent-encoded form, which is what keys begin with.

Owns which names a stream may have. Must never look at what comes after the stream in a key.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

from formats.errors import Inconsistent

__all__ = ["LEVEL_BYTES_MAX", "RESERVED_LEVELS", "STREAM_BYTES_MAX", "decode_stream", "encode_stream"]

#: Levels that a stream name may not have: they are folders of the stream itself.
RESERVED_LEVELS = frozenset({"manifest", "retention", "leases"})
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
        Inconsistent: an empty name or level, a reserved level, a first level that begins with ``_``, a name that
            is too long or isn't text (spec: names of streams).
    """
    levels = stream.split("/")
    encoded = "/".join(_encode_level(stream, level) for level in levels)
    if levels[0].startswith("_"):
        raise _bad_stream(stream, "a first level that doesn't begin with _", levels[0])
    if len(encoded) > STREAM_BYTES_MAX:
        raise _bad_stream(stream, f"at most {STREAM_BYTES_MAX} bytes when encoded", len(encoded))
    return encoded


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
