"""Protection against deletion: readers' leases, holds on a stream and the global hold on a store."""

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
from offloader.errors import ErrorKind, InvalidCall, NotFound, OffloaderError, StoreUnavailable
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
        self._write()

    def __enter__(self) -> HeldLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def renew_if_due(self) -> None:
        """Renews the lease after a third of its time; call it regularly while reading.

        Raises:
            OffloaderError: it couldn't be renewed and has expired.
        """
        with self._lock:
            age_s = self._clock.monotonic_s() - self._written_s
            if age_s < self.lease.seconds * RENEW_AFTER:
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
        """Removes the lease; one that can't be removed expires."""
        with suppress(OffloaderError):
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
        InvalidCall: not between 1 second and ``LEASE_SECONDS_MAX``.
        Unsupported: the store is opened for reading only.
    """
    if not 1 <= seconds <= LEASE_SECONDS_MAX:
        raise InvalidCall(
            f"a lease of {seconds} s on stream {stream}", hint=f"between 1 and {LEASE_SECONDS_MAX}; readers renew it"
        )
    uuid = UUID(bytes=entropy(16), version=4)
    return HeldLease(store, Lease(uuid, stream, reader or user_at_host(), seconds), clock)


def leases_of(store: ObjectStore, stream: str) -> Sequence[LeaseInfo]:
    """Every lease on a stream, expired ones included."""
    found = []
    for info in listed(store, lease_prefix(stream)):
        if (uuid := lease_uuid(info.key, stream)) is not None:
            with suppress(NotFound):
                data, now = store.get(info.key)
                try:
                    lease = Lease.decode(data, object_name=info.key)
                except FormatError:
                    found.append(LeaseInfo(uuid=uuid, reader="", ends_ms=None))
                else:
                    ends_ms = now.modified_ms + lease.seconds * 1000
                    found.append(LeaseInfo(uuid=uuid, reader=lease.reader, ends_ms=ends_ms))
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


class DeletionStopped(OffloaderError):
    """A global hold stops all deletion in the store. Nothing was deleted."""

    kind = ErrorKind.INVALID_REQUEST


def global_hold(store: ObjectStore) -> GlobalHold | None:
    """The global hold, ``None`` if there is none. An unreadable one counts."""
    with suppress(NotFound):
        data, info = store.get(GLOBAL_HOLD_KEY)
        with suppress(FormatError):
            return GlobalHold.decode(data, object_name=GLOBAL_HOLD_KEY)
        return GlobalHold("an unknown user", info.modified_ms, f"{GLOBAL_HOLD_KEY} can't be read")
    return None


def require_no_global_hold(store: ObjectStore) -> None:
    """Raises ``DeletionStopped`` while the global hold is set."""
    if (found := global_hold(store)) is not None:
        raise DeletionStopped(
            f"all deletion in {store.url} is stopped by {found.by}: {found.reason}",
            hint="`offloader cleanup hold --all --off` lifts that",
        )


def set_global_hold(store: ObjectStore, *, by: str, reason: str, now_ms: int) -> None:
    """Sets the global hold; running deletions stop before their next step."""
    store.put(GLOBAL_HOLD_KEY, GlobalHold(by, now_ms, reason).encode())


def lift_global_hold(store: ObjectStore) -> None:
    """Lifts the global hold, if there is one."""
    delete_keys(store, [GLOBAL_HOLD_KEY])


def set_hold(store: ObjectStore, stream: str, *, on: bool, reason: str, clock: Clock) -> bool:
    """Sets or lifts a stream's hold; False if it was so already.

    Raises:
        NotFound: no such stream.
        Fenced: it was deleted. OutcomeUnknown, StoreUnavailable: call again.
    """
    log = ManifestLog(store, stream, clock=clock)
    was = log.load().held
    if was != on:
        log.commit_as_maintainer([Hold(on, reason)])
    # Also if it was so already: the call that set it may have failed before this step. A later loss of the record is
    # then detected.
    if log.name_newest().held != on:
        raise StoreUnavailable(f"stream {stream}: another process changed its hold meanwhile", hint="try again")
    return was != on
