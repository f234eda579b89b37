"""Objects whose key all incarnations of a name share: a catalogue entry, a topic's entry, a topic's last truncation.

Owns how one is let go of, made anew and, at last, removed. Must never remove what may be the next incarnation's, nor
let a clock decide whether something may be created.

* Let go of: replaced by an empty object, by If-Match on what was read. Such a *void* counts as nothing.
* Made: by If-None-Match where nothing is, by If-Match over a void.
* Removed: a void is first replaced by a *mark* with a number drawn for it, by If-Match. While the mark stands, nobody
  makes anything under the key. Then one request, which nobody repeats, deletes the mark, on the condition that it is
  that one. Where the server knows the condition (S3, versitygw, a directory), nothing else can ever be deleted, however
  late the request arrives. Where it doesn't (MinIO), a request that arrives late finds the mark still there: only
  another removal replaces it, and not before it is ``MARK_MS_MIN`` old.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from offloader.clock import Clock
from offloader.errors import NotFound, PreconditionFailed, StoreUnavailable
from offloader.store.base import CREATE, IfMatch, ObjectInfo, ObjectStore, PutMode

__all__ = [
    "MARK_MS_MIN",
    "REMOVAL_S_MAX",
    "VOID",
    "is_void_size",
    "let_go",
    "mode_of_new",
    "read_shared",
    "remove_void",
]

#: What an object is after it was let go of.
VOID = b""
#: Age after which a mark may be another removal's: whoever set it has long sent its request, or never will.
MARK_MS_MIN = 3_600_000
#: Time between deciding to set a mark and sending the request; whoever takes longer takes the mark back.
REMOVAL_S_MAX = 60.0
_MARK = re.compile(rb"gone [0-9a-f]{11}")
_MARK_BYTES = 16


def is_void_size(size_bytes: int) -> bool:
    """Whether a listed object of that size is a void or a mark: no entry is that small."""
    return size_bytes in (len(VOID), _MARK_BYTES)


def read_shared(store: ObjectStore, key: str) -> tuple[bytes, ObjectInfo | None]:
    """What stands there, ``VOID`` for nothing that counts; and its description where there is an object."""
    try:
        data, info = store.get(key)
    except NotFound:
        return VOID, None
    return (VOID if _MARK.fullmatch(data) else data), info


def mode_of_new(store: ObjectStore, key: str, info: ObjectInfo | None) -> PutMode:
    """How something new is written where ``info`` was read, be that nothing, a void or what it takes the place of.

    Raises:
        StoreUnavailable: the void there is just being removed.
    """
    if info is None:
        return CREATE
    if info.size_bytes == _MARK_BYTES:
        raise StoreUnavailable(
            f"{key} in {store.url} is just being removed, after a deletion",
            hint="try again; where the removal was interrupted, `offloader cleanup run` finishes it an hour later",
        )
    return IfMatch(info.etag)


def let_go(store: ObjectStore, key: str, etag: str) -> bool:
    """Replaces what has that ETag by a void; False: something else stands there by now."""
    try:
        store.put(key, VOID, mode=IfMatch(etag))
    except PreconditionFailed:
        return False
    return True


def remove_void(
    store: ObjectStore,
    key: str,
    *,
    clock: Clock,
    now_ms: int,
    is_unused: Callable[[], bool],
    entropy: Callable[[int], bytes] = os.urandom,
) -> bool:
    """Removes a void that nobody needs; whether nothing is there any more.

    A mark that an interrupted removal left becomes a void again where the void is needed after all: while the mark
    stands, nobody can make the name anew.

    Args:
        clock: measures how long this takes.
        now_ms: the earlier of both clocks, for the age of a mark that somebody left.
        is_unused: whether nothing is left that the void has to tell about; asked before and after the mark is set.

    Raises:
        OutcomeUnknown, StoreUnavailable: a mark may stand there; an hour later another call removes it.
    """
    data, info = read_shared(store, key)
    if info is None:
        return True
    if data != VOID or (info.size_bytes and info.modified_ms > now_ms - MARK_MS_MIN):
        return False
    try:
        if not is_unused():
            if info.size_bytes:
                store.put(key, VOID, mode=IfMatch(info.etag))
            return False
        began_s = clock.monotonic_s()
        marked = store.put(key, b"gone " + entropy(6).hex()[:11].encode(), mode=IfMatch(info.etag))
        if not is_unused() or clock.monotonic_s() - began_s > REMOVAL_S_MAX:
            # Nobody writes below a name that can't be made, but who is late by days: then the void has to stay.
            store.put(key, VOID, mode=IfMatch(marked.etag))
            return False
        store.delete_if_match(key, marked.etag)
    except PreconditionFailed:
        return False  # made anew, or somebody else removes it
    return True
