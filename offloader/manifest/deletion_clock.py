"""The time that deletions rely on: the earlier of the local clock and the store's."""

from __future__ import annotations

import contextlib
import threading

from offloader.errors import ErrorKind, NotFound, OffloaderError, StoreUnavailable
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore

#: A scratch object whose modification time is read; no stream can have this name.
TIME_KEY = "_time/now"
#: Attempts to read the scratch object while other processes remove it.
ATTEMPTS_MAX = 10
#: Time after which a ``DeletionClock`` queries the store again.
ASK_AGAIN_S = 10.0
MS_PER_HOUR = 3_600_000


class ClockSkew(OffloaderError):
    """The local clock and the store's differ too much to trust any age."""

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
            # If it can't be removed, one empty object stays.
            with contextlib.suppress(OffloaderError):
                store.delete([TIME_KEY])
    raise StoreUnavailable(f"{TIME_KEY} vanished {ATTEMPTS_MAX} times from {store.url} before its time could be read")


def time_for_deletion_ms(store: ObjectStore, clock: Clock, *, skew_ms_max: float, ask_store: bool = True) -> int:
    """The earlier of both clocks.

    Args:
        skew_ms_max: by which they may differ.
        ask_store: False: only the local one, for a caller that neither deletes nor writes.

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
            hint="set this machine's clock, or the store's; `manifest.clock_skew_max` is the limit",
        )
    return min(before_ms, theirs_ms)


def age_limit_ms(now_ms: int, hours: float) -> int:
    """The latest time, ms since 1970 UTC, of an object that is that old at ``now_ms``."""
    return now_ms - int(hours * MS_PER_HOUR)


class DeletionClock:
    """The time for deletions, checked against the monotonic clock.

    A clock that jumps makes every object look old, also if it is the store's as well (a local directory). So both
    clocks are compared with the time passed since the first call. Keep one instance for the whole process.
    """

    def __init__(self, store: ObjectStore, clock: Clock, *, skew_ms_max: float) -> None:
        self._store, self._clock, self._skew_ms_max = store, clock, skew_ms_max
        self._lock = threading.Lock()
        self._base: tuple[int, float] | None = None
        self._asked: tuple[int, float] | None = None

    def now_ms(self, *, newest_ms: int = 0, ask_store: bool = True) -> int:
        """The earlier of both clocks.

        Args:
            newest_ms: a time that is known to have passed, by any clock; 0: none.
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
        # The store's clock may count whole seconds, and only some calls query it.
        if abs(jump_ms) > self._skew_ms_max + 1000:
            raise ClockSkew(
                f"the clock jumped by {jump_ms / 1000:+.0f} s since this process began: nothing is deleted",
                hint="start again when the clock is right",
            )
        if newest_ms - now_ms > self._skew_ms_max + 1000:
            raise ClockSkew(
                f"the clock is {(newest_ms - now_ms) / 1000:.0f} s behind what was written already: nothing is deleted",
                hint="set this machine's clock, or the store's; `manifest.clock_skew_max` is the limit",
            )
        return now_ms

    def _ask(self, *, ask_store: bool) -> int:
        """Reads both clocks; the store's takes three requests, so it is read only now and then."""
        passed_s = self._clock.monotonic_s()
        if ask_store and self._asked is not None and passed_s - self._asked[1] <= ASK_AGAIN_S:
            expected_ms = self._asked[0] + int((passed_s - self._asked[1]) * 1000)
            if abs(self._clock.now_ms() - expected_ms) <= self._skew_ms_max + 1000:
                return min(self._clock.now_ms(), expected_ms)
        now_ms = time_for_deletion_ms(self._store, self._clock, skew_ms_max=self._skew_ms_max, ask_store=ask_store)
        self._asked = (now_ms, passed_s) if ask_store else self._asked
        return now_ms
