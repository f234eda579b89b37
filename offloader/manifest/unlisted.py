"""Finds streams with objects but without a catalogue entry, which operations based on the catalogue don't find.

One short listing passes each stream that has an entry, so that the search costs about a request a stream, however many
objects these have. Objects that are no stream's are listed in whole pages, up to ``OTHERS_MAX`` of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from formats.errors import FormatError
from formats.keys import RESERVED_LEVELS, decode_stream, encode_stream, parse_object_key
from offloader.errors import CorruptError, InvalidCallError
from offloader.manifest.catalog import require_can_create
from offloader.store.base import ObjectStore

#: Objects of others that are passed before the search ends; ``cleanup orphans`` looks at all of them.
OTHERS_MAX = 100_000
#: Objects of one listing among objects of others.
PAGE = 1000
#: The character after ``/``: no key below a folder sorts after the folder's name with it.
_AFTER_SLASH = "0"


def unlisted_streams(
    store: ObjectStore, known: Collection[str], *, prefix: str = ""
) -> Iterator[tuple[str, CorruptError]]:
    """Streams whose manifest or segments are in the store and that no entry names, each with its error.

    Args:
        known: names of all streams with an entry or a tombstone.
        prefix: only streams whose name begins with it.
    """
    folders = {encode_stream(name) for name in known}
    begin = "/".join(map(encode_stream, filter(None, prefix.split("/")[:-1])))
    begin = f"{begin}/" if begin else ""
    after, limit, others = "", 1, 0
    while objects := store.list(begin, after=after, limit=limit).objects:
        limit = PAGE
        for info in objects:
            if info.key <= after:
                continue  # below a folder that was passed
            levels = info.key.split("/")[:-1]
            passed = levels[0] if levels and levels[0].startswith("_") else None
            above = ("/".join(levels[:count]) for count in range(1, len(levels) + 1))
            passed = passed or next((each for each in above if each in folders), None)
            if passed is None and (name := _stream_of(levels, info.key)) is not None:
                passed = encode_stream(name)
                if name.startswith(prefix) and (error := _error(store, name)) is not None:
                    yield name, error
            if passed is None:
                after, others = info.key, others + 1
            else:
                after, limit = passed + _AFTER_SLASH, 1
        if others > OTHERS_MAX:
            return


def _stream_of(levels: list[str], key: str) -> str | None:
    """The stream that an object would belong to, by its key; ``None``: none."""
    inner = next((number for number, level in enumerate(levels) if level in RESERVED_LEVELS), len(levels))
    with suppress(FormatError):
        name = decode_stream("/".join(levels[:inner]))
        if inner < len(levels) or parse_object_key(key, name) is not None:
            return name
    return None


def _error(store: ObjectStore, name: str) -> CorruptError | None:
    """The error for a name that lacks a needed entry; ``None``: its remaining objects are no whole stream."""
    with suppress(InvalidCallError):
        try:
            require_can_create(store, name, look_for_remains=True, over_segments=False)
        except CorruptError as error:
            return error
    return None
