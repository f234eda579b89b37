"""What time it is for whatever deletes: the earlier of the local clock and the store's.

Owns reading the store's clock. Must never be asked whether something is right, only whether it is old enough.
"""

from __future__ import annotations

import contextlib

from offloader.clock import Clock
from offloader.errors import ErrorKind, NotFound, OffloaderError, StoreUnavailable
from offloader.store.base import ObjectStore

__all__ = ["TIME_KEY", "ClockSkew", "store_time_ms", "time_for_deletion_ms"]

#: A scratch object whose modification time is read: no stream's name begins like this.
TIME_KEY = "_time/now"
#: How often it is written again because somebody else who wanted to know the time removed it.
ATTEMPTS_MAX = 10


class ClockSkew(OffloaderError):
    """The local clock and the store's differ too much to call anything old."""

    kind = ErrorKind.RETRY_LATER


def store_time_ms(store: ObjectStore) -> int:
    """The store's clock, ms since 1970 UTC: the modification time of a fresh object, which is removed again."""
    for _ in range(ATTEMPTS_MAX):
        store.put(TIME_KEY, b"")
        try:
            return store.head(TIME_KEY).modified_ms
        except NotFound:
            continue
        finally:
            # What can't be removed stays as one empty object.
            with contextlib.suppress(OffloaderError):
                store.delete([TIME_KEY])
    raise StoreUnavailable(f"{TIME_KEY} vanished {ATTEMPTS_MAX} times from {store.url} before its time could be read")


def time_for_deletion_ms(store: ObjectStore, clock: Clock, *, skew_ms_max: float, ask_store: bool = True) -> int:
    """The earlier of both clocks.

    Args:
        skew_ms_max: by which they may differ.
        ask_store: False: only the local one, for who deletes nothing and so may write nothing either.

    Raises:
        ClockSkew: they differ by more than ``skew_ms_max``.
    """
    before_ms = clock.now_ms()
    if not ask_store:
        return before_ms
    theirs_ms = store_time_ms(store)
    after_ms = clock.now_ms()
    # Stores cut to whole seconds, and the request takes its time: neither is a difference between the clocks.
    skew_ms = max(before_ms - theirs_ms - 1000, theirs_ms - after_ms, 0)
    if skew_ms > skew_ms_max:
        raise ClockSkew(
            f"the local clock and that of {store.url} differ by {skew_ms / 1000:.0f} s: nothing is deleted",
            hint="set this machine's clock, or the store's; clock_skew_seconds_max is the limit",
        )
    return min(before_ms, theirs_ms)
