"""The records after a view, and the proof that the log ends with the last of them.

Absent numbers are the end only if a listing, asked for after the last of them, shows no higher one, and the boundary,
read after that, names no higher one either, nor another record under a number that was read. Before a record is called
lost the boundary, the record and the boundary again are read: when the boundary passed what was read, nothing is lost
but the race with whoever deletes old records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from formats.checkpoint import Checkpoint
from formats.checkpoint_columns import SegmentColumns
from formats.errors import FormatError
from formats.keys import manifest_prefix, record_key
from formats.manifest import Record, decode_record
from offloader.errors import NotFound, OffloaderError
from offloader.manifest.boundary import StoredBoundary, read_boundary
from offloader.manifest.objects import number_in
from offloader.manifest.state import EditRefused
from offloader.manifest.unreadable import REBUILD, LostRecords, Unreadable, unreadable
from offloader.store.base import ObjectStore

__all__ = ["Passed", "Reading", "View", "folded", "with_tail"]

#: Records of the tail asked for together: the first time, then doubling up to this many.
WINDOW_MIN, WINDOW_MAX = 1, 16
#: A few are asked for one after the other: threads cost more than they save.
SEQUENTIAL_RECORDS_MAX = 4
#: Names looked at that come behind the last record: the first decides, the others are for stores that don't sort.
LISTED_MAX = 10


class View(Protocol):
    """What a manifest's records add up to, up to one of them."""

    @property
    def stream(self) -> str: ...
    @property
    def incarnation(self) -> UUID: ...
    @property
    def record_id(self) -> int: ...
    @property
    def nonce(self) -> str: ...


_View = TypeVar("_View", bound=View)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[_View]):
    """What is made of a manifest while it is read: all that it says, or a part.

    Attributes:
        begin: the view of an incarnation without records.
        restore: the view that a checkpoint holds, given its header and its own segments; reads the runs that it needs.
        fold: the view after one more record; raises ``EditRefused`` when the record doesn't follow.
        settle: called now and then between records.
    """

    begin: Callable[[str, UUID], _View]
    restore: Callable[[ObjectStore, str, Checkpoint, SegmentColumns], _View]
    fold: Callable[[_View, Record], _View]
    settle: Callable[[_View], _View]


class Passed(Exception):
    """The boundary has passed what was read."""


def with_tail(
    store: ObjectStore, view: _View, reading: Reading[_View], requests_max: int, records_max: int | None = None
) -> tuple[_View, StoredBoundary | None]:
    """``view`` and every record after it, and the boundary after that; ``None``: there is none.

    Args:
        requests_max: records asked for at once; 1: one after the other, on this thread.
        records_max: more of them raise ``Passed``.

    Raises:
        Passed: the boundary has left some of them behind.
        LostRecords: a record existed and isn't there.
        Corrupt, Unsupported: one can't be read, or doesn't follow.
    """
    first = view.record_id + 1
    nonces = {view.record_id: view.nonce}
    while True:
        problem: OffloaderError | None = None
        listed = 0
        try:
            view = _tail(store, view, reading, requests_max, records_max, nonces)
            listed = _highest_listed(store, view)
        except Unreadable as error:
            problem = error  # or only a record that was deleted, or deleted and created again: the boundary knows
        stored = _boundary(store, view, first)
        if problem is not None:
            if stored is None:
                raise Passed from problem  # the stream was deleted while it was read
            raise problem
        if stored is None:
            return view, None
        boundary = stored.boundary
        newest = max(listed, boundary.newest_id, boundary.checkpoint_id)
        if newest <= view.record_id:
            named = nonces.get(boundary.newest_id)
            if boundary.newest_id and named is not None and named != boundary.newest_nonce:
                raise LostRecords(
                    f"manifest of stream {view.stream}: record {boundary.newest_id} is another one than the boundary "
                    "names: that one was lost, and its number created again",
                    hint=REBUILD,
                )
            return view, stored
        if _record(store, record_key(view.stream, view.incarnation, view.record_id + 1)) is None:
            if _boundary(store, view, first) is None:
                return view, None
            raise _lost(view, view.record_id + 1, newest)


def _boundary(store: ObjectStore, view: View, first: int) -> StoredBoundary | None:
    """The boundary now; raises ``Passed`` when it doesn't keep record ``first`` any more."""
    try:
        stored = read_boundary(store, view.stream, view.incarnation)
    except NotFound:
        return None
    if stored.boundary.first_kept_id > first:
        raise Passed
    return stored


def _highest_listed(store: ObjectStore, view: View) -> int:
    """The highest number among the names that come behind the last record read; 0: there is none."""
    prefix = manifest_prefix(view.stream, view.incarnation)
    after = record_key(view.stream, view.incarnation, view.record_id)
    page = store.list(prefix, after=after, limit=LISTED_MAX)
    return max((number_in(info.key[len(prefix) :]) or 0 for info in page.objects), default=0)


def _lost(view: View, record_id: int, newest: int) -> LostRecords:
    return LostRecords(
        f"manifest of stream {view.stream}: record {record_id} is missing, later ones are there: record {newest} "
        "certainly existed",
        hint=REBUILD,
    )


def _tail(
    store: ObjectStore,
    view: _View,
    reading: Reading[_View],
    requests_max: int,
    records_max: int | None,
    nonces: dict[int, str],
) -> _View:
    """Record after record until one isn't there; the nonce of each goes into ``nonces``."""
    start = view.record_id
    window = WINDOW_MIN
    while True:
        first = view.record_id + 1
        keys = [record_key(view.stream, view.incarnation, first + offset) for offset in range(window)]
        bodies = _records(store, keys, requests_max)
        absent = bodies.index(None) if None in bodies else len(bodies)
        while any(body is not None for body in bodies[absent:]):
            # Created after it was asked for, like the ones behind it; or lost.
            again = _record(store, keys[absent])
            if again is None:
                behind = max(number for number, body in enumerate(bodies) if body is not None)
                raise _lost(view, first + absent, first + behind)
            bodies[absent] = again
            absent = bodies.index(None) if None in bodies else len(bodies)
        for key, body in zip(keys[:absent], bodies[:absent], strict=True):
            assert body is not None
            view = folded(view, body, key, reading)
            nonces[view.record_id] = view.nonce
        if absent < window:
            return view
        if records_max is not None and view.record_id - start > records_max:
            raise Passed
        view = reading.settle(view)
        window = min(window * 2, WINDOW_MAX)


def _records(store: ObjectStore, keys: Sequence[str], requests_max: int) -> list[bytes | None]:
    """The records under the keys; of a few only up to the first that isn't there."""
    if len(keys) <= SEQUENTIAL_RECORDS_MAX or requests_max == 1:
        found: list[bytes | None] = []
        while len(found) < len(keys) and (not found or found[-1] is not None):
            found.append(_record(store, keys[len(found)]))
        return found
    with ThreadPoolExecutor(min(len(keys), requests_max)) as threads:
        # Whatever this thread's requests are marked with (their priority) goes with them.
        return list(threads.map(lambda pair: pair[0].run(_record, store, pair[1]), [(copy_context(), k) for k in keys]))


def _record(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)[0]
    except NotFound:
        return None


def folded(view: _View, body: bytes, key: str, reading: Reading[_View]) -> _View:
    """The view after the record in ``body``; raises ``Corrupt`` or ``Unsupported``."""
    try:
        return reading.fold(view, decode_record(body, object_name=key))
    except (FormatError, EditRefused) as error:
        raise unreadable(f"manifest of stream {view.stream}, record {view.record_id + 1}", error) from error
