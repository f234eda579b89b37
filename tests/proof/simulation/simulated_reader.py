"""A reader with a lease that goes through a stream slowly, in a simulated world.

It doesn't count on an object after its lease had ended once.
"""

from __future__ import annotations

from collections.abc import Callable

from formats.documents import lease_key
from offloader.errors import NotFoundError
from offloader.manifest.catalog import read_entry
from offloader.manifest.load import load_manifest_view
from offloader.manifest.protection import take_lease
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore

__all__ = ["SimulatedReader"]


class SimulatedReader:
    """Opens when it is made: first the lease, then the manifest.

    Args:
        store: its way to the store.
        stream: what it reads.
        seconds: of its lease.
        clock: the store's as well.

    Attributes:
        planned: keys of the objects that it hasn't read yet.
        incarnation: of the stream.

    Raises:
        OffloaderError: it couldn't be opened.
    """

    def __init__(
        self, store: ObjectStore, stream: str, seconds: int, *, clock: Clock, entropy: Callable[[int], bytes]
    ) -> None:
        self._clock = clock
        self._ends_ms = clock.now_ms() + seconds * 1000
        self._has_lapsed = False
        self._lease = take_lease(store, stream, seconds, clock=clock, reader="simulated", entropy=entropy)
        entry = read_entry(store, stream)
        if entry is None:
            raise NotFoundError(f"stream {stream} is gone")
        self.incarnation = entry.incarnation
        state = load_manifest_view(store, stream, entry.incarnation, requests_max=1).state
        self.planned = [key for segment in state.offloaded() for key in segment.object_keys(stream)]

    def is_protected(self, bucket: ObjectStore) -> bool:
        """Whether its lease has held ever since it was taken.

        Raises:
            NotFoundError: somebody deleted it before it ended.
        """
        lease, now_ms = self._lease.lease, self._clock.now_ms()
        self._has_lapsed |= now_ms > self._ends_ms
        if self._has_lapsed:
            return False
        self._ends_ms = bucket.head(lease_key(lease.stream, lease.uuid)).modified_ms + lease.seconds * 1000
        return True

    def read_one(self, bucket: ObjectStore) -> None:
        """Reads the next object, and renews the lease when that is due.

        Raises:
            NotFoundError: it isn't there, although the lease held.
        """
        if not self.is_protected(bucket):
            self.planned.clear()
            return
        self._lease.renew_if_due()
        bucket.get(self.planned.pop(0))

    def close(self) -> None:
        """It needs nothing more."""
        self.planned.clear()
        self._lease.end()
