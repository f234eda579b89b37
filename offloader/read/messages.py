"""Pulsar messages out of a stream's entries.

Owns the translation of what is wrong with a message into an error that names stream and position. Must never fetch: it
is given entries.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from formats.errors import FormatError, LimitExceeded, UnsupportedVersion
from formats.pulsar.messages import MessageDecoder, MessageOptions, publish_times_ms
from offloader.errors import Corrupt, LimitReached, OffloaderError, Unsupported

__all__ = ["decode_messages", "published_between"]


def decode_messages(
    batch: EntryBatch, options: MessageOptions, *, source: str, remedy: str
) -> Iterator[pa.RecordBatch]:
    """The messages of ``batch``: see ``MessageDecoder.decode``.

    Args:
        batch: the entries.
        options: columns, limits, and what happens to bad entries.
        source: stream and, if known, object, for error messages.
        remedy: how the caller's user gets past bad entries, for hints.

    Raises:
        Corrupt: an entry isn't a message, or is damaged.
        LimitReached: an entry is larger, once decompressed, than the options allow.
        Unsupported: a compression that this release doesn't know.
    """
    try:
        yield from MessageDecoder(options, source=source).decode(batch)
    except FormatError as error:
        raise _translated(error, remedy) from error


def _translated(error: FormatError, remedy: str) -> OffloaderError:
    if isinstance(error, LimitExceeded):
        return LimitReached(str(error), hint=remedy)
    if isinstance(error, UnsupportedVersion):
        return Unsupported(str(error), hint=f"use a newer release; {remedy}")
    return Corrupt(str(error), hint=f"are these entries that Pulsar wrote? {remedy}")


def published_between(batch: EntryBatch, start_ms: int | None, end_ms: int | None) -> NDArray[np.bool_]:
    """Which entries were published then, by the time recorded for the entry, else by the metadata in it.

    Args:
        batch: the entries.
        start_ms, end_ms: milliseconds since 1970 UTC, the end excluded; ``None`` = no bound.

    Returns:
        bool, shape (n,); true as well where the metadata can't be read: what is damaged isn't passed over in silence.
    """
    times = publish_times_ms(batch)
    mask = np.ones(len(times), dtype=bool)
    if start_ms is not None:
        mask &= times >= start_ms
    if end_ms is not None:
        mask &= times < end_ms
    result: NDArray[np.bool_] = mask | (times == TIME_UNKNOWN_MS)
    return result
