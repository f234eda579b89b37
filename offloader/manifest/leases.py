"""Protection against deletion: readers' leases, holds on a stream and on a whole store."""

from __future__ import annotations

import getpass
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from formats.documents import (
    GLOBAL_HOLD_KEY,
    GlobalHold,
    Lease,
    decode_global_hold,
    decode_lease,
    encode_global_hold,
    encode_lease,
    lease_key,
    lease_prefix,
    lease_uuid,
)
from formats.errors import FormatError
from formats.manifest import Hold
from offloader.errors import ErrorKind, InvalidCall, NotFound, OffloaderError, StoreUnavailable
from offloader.manifest.boundary import listed
from offloader.manifest.log import ManifestLog
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore

__all__ = [
    "LEASE_SECONDS_MAX",
    "DeletionStopped",
    "HeldLease",
    "LeaseInfo",
    "global_hold",
    "leases_of",
    "lift_global_hold",
    "require_no_global_hold",
    "set_global_hold",
    "set_hold",
    "take_lease",
    "user_at_host",
]

#: A reader that needs longer than this renews.
LEASE_SECONDS_MAX = 7 * 24 * 3600
#: A lease is written again when this part of it is over.
RENEW_AFTER = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseInfo:
    """One lease as it is in the store.

    Attributes:
        uuid: its name.
        reader: who holds it; empty for one that can't be read.
        ends_ms: by the store's clock, ms since 1970 UTC; ``None`` for one that can't be read: it never ends by itself.
    """

    uuid: UUID
    reader: str
    ends_ms: int | None


class HeldLease:
    """A lease that this process holds. Thread-safe; as a context it ends with the block."""

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
        """Writes the lease again when a third of it is over; call it now and then while reading.

        Raises:
            OffloaderError: it couldn't be written, and it has ended meanwhile.
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
        """A new lease on the same stream for as long, for a reader that loads the manifest anew."""
        return take_lease(
            self._store, self.lease.stream, self.lease.seconds, clock=self._clock, reader=self.lease.reader
        )

    def end(self) -> None:
        """Removes the lease; one that can't be removed ends by itself."""
        with suppress(OffloaderError):
            self._store.delete([lease_key(self.lease.stream, self.lease.uuid)])

    def _write(self) -> None:
        # The time before the call: the store's is then never earlier than what this side believes.
        began_s = self._clock.monotonic_s()
        self._store.put(lease_key(self.lease.stream, self.lease.uuid), encode_lease(self.lease))
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
    """Writes a lease. Load the manifest afterwards, never before.

    Args:
        store: must be open for writing.
        stream: its name.
        seconds: how long it holds without being renewed.
        reader: who reads, for people; default: user and machine.

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
    """Every lease on a stream, ended ones too."""
    found = []
    for info in listed(store, lease_prefix(stream)):
        uuid = lease_uuid(info.key, stream)
        if uuid is None:
            continue
        try:
            data, now = store.get(info.key)
            lease = decode_lease(data, object_name=info.key)
        except NotFound:
            continue
        except FormatError:
            found.append(LeaseInfo(uuid=uuid, reader="", ends_ms=None))
            continue
        found.append(LeaseInfo(uuid=uuid, reader=lease.reader, ends_ms=now.modified_ms + lease.seconds * 1000))
    return found


def user_at_host() -> str:
    """Who runs this, for people."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


class DeletionStopped(OffloaderError):
    """Somebody stopped all deletion in the store. Nothing was deleted."""

    kind = ErrorKind.FIX_CALL


def global_hold(store: ObjectStore) -> GlobalHold | None:
    """The stop, ``None``: there is none. One that can't be read counts."""
    try:
        data, info = store.get(GLOBAL_HOLD_KEY)
    except NotFound:
        return None
    try:
        return decode_global_hold(data)
    except FormatError:
        return GlobalHold("somebody", info.modified_ms, f"{GLOBAL_HOLD_KEY} can't be read")


def require_no_global_hold(store: ObjectStore) -> None:
    """Raises ``DeletionStopped`` while there is a stop."""
    found = global_hold(store)
    if found is not None:
        raise DeletionStopped(
            f"all deletion in {store.url} is stopped by {found.by}: {found.reason}",
            hint="`offloader cleanup hold --all --off` lifts that",
        )


def set_global_hold(store: ObjectStore, *, by: str, reason: str, now_ms: int) -> None:
    """Stops all deletion from now on; what is under way ends before its next step."""
    store.put(GLOBAL_HOLD_KEY, encode_global_hold(GlobalHold(by, now_ms, reason)))


def lift_global_hold(store: ObjectStore) -> None:
    """Lifts the stop, if there is one."""
    failures = store.delete([GLOBAL_HOLD_KEY])
    if failures:
        raise StoreUnavailable(f"{GLOBAL_HOLD_KEY} in {store.url} wasn't deleted: {failures[0].reason}")


def set_hold(store: ObjectStore, stream: str, *, on: bool, reason: str, clock: Clock) -> bool:
    """Holds everything of a stream, or lets go of it; False: it was so already.

    Args:
        reason: for people.

    Raises:
        NotFound: no such stream.
        Fenced: it was deleted.
        OutcomeUnknown, StoreUnavailable: call it again.
    """
    log = ManifestLog(store, stream, clock=clock)
    was = log.load().held
    if was != on:
        log.commit_as_maintainer([Hold(on, reason)])
    # Also where it was so: who set it may not have come as far. If the record is lost then, everybody notices.
    if log.name_newest().held != on:
        raise StoreUnavailable(f"stream {stream}: somebody else changed its hold meanwhile", hint="look again")
    return was != on
