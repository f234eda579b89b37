"""Protection against deletion: leases, holds on a stream, the global hold, and the time by which ages are judged."""

from __future__ import annotations

import getpass
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from formats.documents import GLOBAL_HOLD_KEY, GlobalHold, Lease, lease_key, lease_prefix, lease_uuid
from formats.errors import FormatError
from formats.manifest import Hold
from offloader.errors import ErrorKind, InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.manifest.boundary import delete_keys, listed
from offloader.manifest.log import ManifestLog
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore

#: Longest lease; a reader that needs more time renews it.
LEASE_SECONDS_MAX = 7 * 24 * 3600
#: Fraction of a lease after which it is renewed.
RENEW_AFTER = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseInfo:
    """One lease as stored.

    Attributes:
        reader: its holder; empty if unreadable.
        ends_ms: by the store's clock, ms since 1970 UTC; ``None`` if unreadable: such a lease doesn't expire.
    """

    uuid: UUID
    reader: str
    ends_ms: int | None


class HeldLease:
    """A lease that this process holds. Thread-safe; as a context manager it ends with the block."""

    def __init__(self, store: ObjectStore, lease: Lease, clock: Clock) -> None:
        self.lease = lease
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._written_s = 0.0
        self._has_ended = False
        self._write()

    def __enter__(self) -> HeldLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def renew_if_due(self) -> None:
        """Renews the lease after a third of its time, unless it ended; call it regularly while reading.

        Raises:
            OffloaderError: it couldn't be renewed and has expired.
        """
        with self._lock:
            age_s = self._clock.monotonic_s() - self._written_s
            if self._has_ended or age_s < self.lease.seconds * RENEW_AFTER:
                return
            try:
                self._write()
            except OffloaderError:
                if age_s >= self.lease.seconds:
                    raise

    def another(self) -> HeldLease:
        """A new lease of the same length on the same stream, for a reader that reloads the manifest."""
        return take_lease(
            self._store, self.lease.stream, self.lease.seconds, clock=self._clock, reader=self.lease.reader
        )

    def end(self) -> None:
        """Removes the lease, after a renewal that is under way; one that can't be removed expires."""
        with self._lock, suppress(OffloaderError):
            self._has_ended = True
            self._store.delete([lease_key(self.lease.stream, self.lease.uuid)])

    def _write(self) -> None:
        # Measured before the call, so that this side never assumes a later end than the store.
        began_s = self._clock.monotonic_s()
        self._store.put(lease_key(self.lease.stream, self.lease.uuid), self.lease.encode())
        self._written_s = began_s


def take_lease(
    store: ObjectStore,
    stream: str,
    seconds: int,
    *,
    clock: Clock,
    reader: str = "",
    entropy: Callable[[int], bytes] = os.urandom,
) -> HeldLease:
    """Writes a lease. Load the manifest only after this.

    Args:
        store: must be open for writing.
        seconds: how long it protects without renewal.
        reader: identifies the reader to operators; default: user and machine.

    Raises:
        InvalidCallError: not between 1 second and ``LEASE_SECONDS_MAX``.
        UnsupportedError: the store is opened for reading only.
    """
    if not 1 <= seconds <= LEASE_SECONDS_MAX:
        raise InvalidCallError(
            f"stream {stream}: invalid lease of {seconds} s", hint=f"use 1 to {LEASE_SECONDS_MAX} s; readers renew it"
        )
    return HeldLease(store, Lease(UUID(bytes=entropy(16), version=4), stream, reader or user_at_host(), seconds), clock)


def leases_of(store: ObjectStore, stream: str) -> Sequence[LeaseInfo]:
    """Every lease on a stream, expired ones included."""
    found = []
    for info in listed(store, lease_prefix(stream)):
        if (uuid := lease_uuid(info.key, stream)) is not None:
            with suppress(NotFoundError):
                data, now = store.get(info.key)
                reader, ends_ms = "", None
                with suppress(FormatError):
                    lease = Lease.decode(data, object_name=info.key)
                    reader, ends_ms = lease.reader, now.modified_ms + lease.seconds * 1000
                found.append(LeaseInfo(uuid=uuid, reader=reader, ends_ms=ends_ms))
    return found


def live_readers(store: ObjectStore, stream: str, now_ms: int) -> dict[UUID, str]:
    """Holders of the leases that haven't expired at ``now_ms``, by the earlier clock; unreadable ones don't expire."""
    return {
        lease.uuid: lease.reader or f"the unreadable lease {lease.uuid}"
        for lease in leases_of(store, stream)
        if lease.ends_ms is None or lease.ends_ms >= now_ms
    }


def user_at_host() -> str:
    """This process's user and machine, for display."""
    with suppress(OSError, KeyError):
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return socket.gethostname()


class DeletionStoppedError(OffloaderError):
    """A global hold stops all deletion in the store. Nothing was deleted."""

    kind = ErrorKind.INVALID_REQUEST


def global_hold(store: ObjectStore) -> GlobalHold | None:
    """The global hold, ``None`` if there is none. An unreadable one counts."""
    with suppress(NotFoundError):
        data, info = store.get(GLOBAL_HOLD_KEY)
        with suppress(FormatError):
            return GlobalHold.decode(data, object_name=GLOBAL_HOLD_KEY)
        return GlobalHold("an unknown user", info.modified_ms, f"{GLOBAL_HOLD_KEY} can't be read")
    return None


def require_no_global_hold(store: ObjectStore) -> None:
    """Raises ``DeletionStoppedError`` while the global hold is set."""
    if (found := global_hold(store)) is not None:
        raise DeletionStoppedError(
            f"all deletion in {store.url} is stopped by {found.by}: {found.reason}",
            hint="`offloader cleanup hold --all --off` lifts the hold",
        )


def set_global_hold(store: ObjectStore, *, by: str, reason: str, now_ms: int) -> None:
    """Sets the global hold; running deletions stop before their next step."""
    store.put(GLOBAL_HOLD_KEY, GlobalHold(by, now_ms, reason).encode())


def lift_global_hold(store: ObjectStore) -> None:
    """Lifts the global hold, if there is one."""
    delete_keys(store, [GLOBAL_HOLD_KEY])


def set_hold(store: ObjectStore, stream: str, *, on: bool, reason: str, clock: Clock) -> bool:
    """Sets or lifts a stream's hold; False if nothing changed.

    Raises:
        NotFoundError: no such stream.
        FencedError: it was deleted. OutcomeUnknownError, StoreUnavailableError: call again.
    """
    log = ManifestLog(store, stream, clock=clock)
    was = log.load().held
    if was != on:
        log.commit_as_maintainer([Hold(on, reason)])
    # Also if nothing changed: the call that set it may have failed before this step. A later loss of the record is
    # then detected.
    if log.name_newest().held != on:
        raise StoreUnavailableError(f"stream {stream}: another process changed its hold", hint="try again")
    return was != on


#: A scratch object whose modification time is read; no stream can have this name.
TIME_KEY = "_time/now"
#: Attempts to read the scratch object while other processes remove it.
TIME_ATTEMPTS_MAX = 10
#: Time after which a ``DeletionClock`` queries the store again.
ASK_AGAIN_S = 10.0


class ClockSkewError(OffloaderError):
    """The local clock and the store's differ too much to trust any age."""

    kind = ErrorKind.RETRY_LATER


def store_time_ms(store: ObjectStore) -> int:
    """The store's clock, ms since 1970 UTC: the modification time of a fresh object, which is removed again."""
    for _ in range(TIME_ATTEMPTS_MAX):
        store.put(TIME_KEY, b"")
        try:
            return store.head(TIME_KEY).modified_ms
        except NotFoundError:
            continue
        finally:
            # If it can't be removed, one empty object remains.
            with suppress(OffloaderError):
                store.delete([TIME_KEY])
    raise StoreUnavailableError(
        f"{TIME_KEY} was deleted from {store.url} {TIME_ATTEMPTS_MAX} times before its time could be read"
    )


def time_for_deletion_ms(store: ObjectStore, clock: Clock, *, skew_ms_max: float, ask_store: bool = True) -> int:
    """The earlier of both clocks.

    Args:
        skew_ms_max: by which they may differ.
        ask_store: False: only the local one, for a caller that neither deletes nor writes.

    Raises:
        ClockSkewError: they differ by more than ``skew_ms_max``.
    """
    before_ms = clock.now_ms()
    if not ask_store:
        return before_ms
    theirs_ms = store_time_ms(store)
    after_ms = clock.now_ms()
    # Stores cut to whole seconds, and the request takes its time: neither is a difference between the clocks.
    skew_ms = max(before_ms - theirs_ms - 1000, theirs_ms - after_ms, 0)
    if skew_ms > skew_ms_max:
        raise ClockSkewError(
            f"the local clock and that of {store.url} differ by {skew_ms / 1000:.0f} s: nothing is deleted",
            hint="set this machine's clock, or the store's; `manifest.clock_skew_max` is the limit",
        )
    return min(before_ms, theirs_ms)


def age_limit_ms(now_ms: int, age_s: float) -> int:
    """The latest time, ms since 1970 UTC, of an object that is that old at ``now_ms``."""
    return now_ms - int(age_s * 1000)


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
            ClockSkewError: the clocks differ too much, one of them jumped, or it is earlier than ``newest_ms``.
        """
        with self._lock:
            now_ms, passed_s = self._ask(ask_store=ask_store), self._clock.monotonic_s()
            if self._base is None:
                self._base = now_ms, passed_s
            base_ms, base_s = self._base
        jump_ms = now_ms - base_ms - (passed_s - base_s) * 1000
        # The store's clock may count whole seconds, and only some calls query it.
        if abs(jump_ms) > self._skew_ms_max + 1000:
            raise ClockSkewError(
                f"the clock jumped by {jump_ms / 1000:+.0f} s since this process began: nothing is deleted",
                hint="correct the clock and restart the process",
            )
        if newest_ms - now_ms > self._skew_ms_max + 1000:
            raise ClockSkewError(
                f"the clock is {(newest_ms - now_ms) / 1000:.0f} s behind existing records: nothing is deleted",
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
