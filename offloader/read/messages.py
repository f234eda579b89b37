"""Decode the Pulsar messages of entries, with errors for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from formats.errors import ChecksumMismatchError, FormatError, LimitExceededError, UnsupportedVersionError, one_line
from offloader.errors import CorruptError, InvalidCallError, LimitReachedError, UnsupportedError

if TYPE_CHECKING:
    from formats.pulsar.messages import MessageDecoder

#: Number of entries of a batch that decide whether the entries are Pulsar's.
FOREIGN_ENTRIES_MAX = 100


def decode_messages(batch: EntryBatch, decoder: MessageDecoder, *, remedy: str) -> Iterator[pa.RecordBatch]:
    """Messages of ``batch``: see ``MessageDecoder.decode``. ``remedy``: the errors' hint on skipping damaged entries.

    Raises:
        InvalidCallError: the entries are not Pulsar's: none of the first ones is a message, not even a damaged one.
        CorruptError: an entry is damaged.
        LimitReachedError: a decompressed entry exceeds the limit in the options.
        UnsupportedError: this release does not know the compression.
    """
    try:
        yield from decoder.decode(batch)
    except LimitExceededError as error:
        raise LimitReachedError(str(error), hint=remedy) from error
    except UnsupportedVersionError as error:
        raise UnsupportedError(str(error), hint=f"use a newer release; {remedy}") from error
    except FormatError as error:
        if _is_foreign(batch):
            raise InvalidCallError(
                one_line(f"{error.object_name} isn't a message of Pulsar's: {error.described()}"),
                hint=f"read the entries without decoding messages, or {remedy}",
            ) from error
        raise CorruptError(str(error), hint=f"check that Pulsar wrote these entries, or {remedy}") from error


def _is_foreign(entries: EntryBatch) -> bool:
    """Whether none of the first entries was stored by Pulsar, not even a damaged one."""
    from formats.pulsar.entry import decode_frame  # protobuf, which most readers don't need

    for entry in entries.slice(0, min(len(entries), FOREIGN_ENTRIES_MAX)).entries():
        try:
            decode_frame(entry.payload)
        except ChecksumMismatchError:
            return False
        except FormatError:
            continue
        return False
    return True


def published_between(batch: EntryBatch, start_ms: int | None, end_ms: int | None) -> NDArray[np.bool_]:
    """Select the entries published in an interval, by the entry's recorded time, else by its metadata.

    The bounds are milliseconds since 1970 UTC, the end excluded; ``None`` = no bound.

    Returns:
        bool, shape (n,); also true for unreadable metadata, so that damage is not hidden.
    """
    from formats.pulsar.messages import publish_times_ms  # protobuf and codecs, which most readers don't need

    times = publish_times_ms(batch)
    mask = np.ones(len(times), dtype=bool)
    if start_ms is not None:
        mask &= times >= start_ms
    if end_ms is not None:
        mask &= times < end_ms
    result: NDArray[np.bool_] = mask | (times == TIME_UNKNOWN_MS)
    return result
