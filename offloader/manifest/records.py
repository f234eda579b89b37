"""A manifest's records one by one, for people and for rows.

Owns reading those that are kept. Must never fold them: that is ``load``.
"""

from __future__ import annotations

from collections.abc import Iterator

from formats.errors import FormatError
from formats.keys import record_key
from formats.manifest import Record, decode_record
from offloader.manifest.boundary import read_boundary
from offloader.manifest.load import View
from offloader.manifest.unreadable import unreadable
from offloader.store.base import ObjectStore

__all__ = ["kept_records"]


def kept_records(
    store: ObjectStore, state: View, *, newest_first: bool = False, count: int | None = None
) -> Iterator[Record]:
    """Records of a manifest up to the one ``state`` ends at, as far as they are kept.

    Args:
        store: where it is.
        state: the view, which says how far.
        newest_first: the order; default: the oldest first.
        count: at most so many, the newest.

    Raises:
        Corrupt: one of them is damaged.
    """
    first = read_boundary(store, state.stream, state.incarnation).boundary.first_kept_id
    first = first if count is None else max(first, state.record_id - count + 1)
    numbers = range(first, state.record_id + 1)
    for number in reversed(numbers) if newest_first else numbers:
        key = record_key(state.stream, state.incarnation, number)
        try:
            yield decode_record(store.get(key)[0], object_name=key)
        except FormatError as error:
            raise unreadable(f"manifest of stream {state.stream}, record {number}", error) from error
