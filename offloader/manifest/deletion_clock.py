"""The time that deletions rely on: the earlier of the local clock and the store's."""

from __future__ import annotations

import contextlib
import threading

from offloader.errors import ErrorKind, NotFound, OffloaderError, StoreUnavailable
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore

__all__ = ["TIME_KEY", "ClockSkew", "DeletionClock", "store_time_ms", "time_for_deletion_ms"]

#: A scratch object whose modification time is read: no stream's name begins like this.
TIME_KEY = "_time/now"
#: How often it is written again because somebody else who wanted to know the time removed it.
ATTEMPTS_MAX = 10
#: Time after which a ``DeletionClock`` asks the store again.
ASK_AGAIN_S = 10.0


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


class DeletionClock:
    """Says what time it is for whatever deletes, as long as time goes on as it should.

    A clock that jumps makes everything look old at once, also where it is the store's as well (a local directory). So
    what both clocks say is compared with what has passed since the first question. Keep one for the whole process.
    """

    def __init__(self, store: ObjectStore, clock: Clock, *, skew_ms_max: float) -> None:
        self._store, self._clock, self._skew_ms_max = store, clock, skew_ms_max
        self._lock = threading.Lock()
        self._base: tuple[int, float] | None = None
        self._asked: tuple[int, float] | None = None

    def now_ms(self, *, newest_ms: int = 0, ask_store: bool = True) -> int:
        """The earlier of both clocks.

        Args:
            newest_ms: a time that has passed already, by any clock; 0: none is known.
            ask_store: as for ``time_for_deletion_ms``.

        Raises:
            ClockSkew: the clocks differ too much, one of them jumped, or it is earlier than ``newest_ms``.
        """
        with self._lock:
            now_ms, passed_s = self._ask(ask_store=ask_store), self._clock.monotonic_s()
            if self._base is None:
                self._base = now_ms, passed_s
            base_ms, base_s = self._base
        jump_ms = now_ms - base_ms - (passed_s - base_s) * 1000
        # The store's clock may count whole seconds, and be asked once and not asked the other time.
        if abs(jump_ms) > self._skew_ms_max + 1000:
            raise ClockSkew(
                f"the clock jumped by {jump_ms / 1000:+.0f} s since this process began: nothing is deleted",
                hint="start again when the clock is right",
            )
        if newest_ms - now_ms > self._skew_ms_max + 1000:
            raise ClockSkew(
                f"the clock is {(newest_ms - now_ms) / 1000:.0f} s behind what was written already: nothing is deleted",
                hint="set this machine's clock, or the store's; clock_skew_seconds_max is the limit",
            )
        return now_ms

    def _ask(self, *, ask_store: bool) -> int:
        """What both clocks say; the store's costs three requests, so that it is asked now and then only."""
        passed_s = self._clock.monotonic_s()
        if ask_store and self._asked is not None and passed_s - self._asked[1] <= ASK_AGAIN_S:
            expected_ms = self._asked[0] + int((passed_s - self._asked[1]) * 1000)
            if abs(self._clock.now_ms() - expected_ms) <= self._skew_ms_max + 1000:
                return min(self._clock.now_ms(), expected_ms)
        now_ms = time_for_deletion_ms(self._store, self._clock, skew_ms_max=self._skew_ms_max, ask_store=ask_store)
        self._asked = (now_ms, passed_s) if ask_store else self._asked
        return now_ms
