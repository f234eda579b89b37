"""A store in whose place another one is, from any request of a writer on: nothing acknowledged is lost or repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from offloader.errors import ErrorKind, OffloaderError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.read.partitions import open_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper

STREAM = "public/default/persistent/orders"
SETTINGS = Settings.of(
    {
        "offload": {
            "deletion_lag": "0m",
            "drain_timeout": 1.0,
            "retry_delay_max": 0.1,
            "takeover_after": 0.1,
        }
    }
)
#: More requests than a session sends.
REQUESTS_MAX = 200
_names = count()
_Answer = TypeVar("_Answer")


class SwappedStore(StoreWrapper):
    """From one request on, ``number_of`` requests go to an empty store."""

    def __init__(self, inner: ObjectStore, first: int, number_of: int) -> None:
        super().__init__(inner)
        self.empty: ObjectStore = MemoryStore(f"swapped-{next(_names)}", "", SystemClock())
        self._first, self._end = first, first + number_of
        self._lock, self._chosen = threading.Lock(), threading.local()
        self.requests = 0

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        with self._lock:
            self.requests += 1
            is_swapped = self._first <= self.requests < self._end
        self._chosen.store = self.empty if is_swapped else self.inner
        return call()

    def _of(self, key: str) -> ObjectStore:
        store: ObjectStore = self._chosen.store
        return store


class Place:
    def __init__(self, folder: Path) -> None:
        self.store: ObjectStore = MemoryStore(f"swapped-{next(_names)}", "", SystemClock())
        self.database, self.appended = str(folder / "ledgers.db"), list[str]()

    def session(self, store: ObjectStore) -> None:
        """Appends, offloads and releases, as far as the store allows."""
        with suppress(OffloaderError):
            topic = open_managed_ledger(STREAM, ledgers=self.database, store=store, settings=SETTINGS)
            try:
                self._work(topic)
            finally:
                with suppress(OffloaderError):
                    topic.close()

    def _work(self, topic: ManagedLedger) -> None:
        words = [f"{len(self.appended) + number}" for number in range(5)]
        topic.append_batch([word.encode() for word in words])
        self.appended += words
        with suppress(OffloaderError):
            topic.offload(timeout_s=2.0)
        topic.close_ledger()
        topic.release_hot()

    def read(self) -> list[str] | None:
        """What readers of both tiers get; ``None``: they name damage."""
        try:
            with (
                closing(EmbeddedLedgers(self.database, create=False)) as ledgers,
                open_reader(self.store, STREAM, source=ledgers.view_stream(STREAM)) as reader,
            ):
                return [entry.decode() for batch in reader.scan() for entry in batch.payloads.to_pylist()]
        except OffloaderError as error:
            if error.kind is not ErrorKind.DATA_CORRUPTION:
                raise
            return None


@pytest.mark.slow
@pytest.mark.parametrize("number_of", [1, 3, REQUESTS_MAX])
def test_nothing_is_lost_or_repeated_wherever_another_store_takes_the_place(tmp_path: Path, number_of: int) -> None:
    """For a few requests in between, what they wrote is in the other store: that is damage, which a reader names."""
    damaged = 0
    for first in range(1, REQUESTS_MAX):
        (folder := tmp_path / f"{first}").mkdir()
        place = Place(folder)
        place.session(place.store)
        swapped = SwappedStore(place.store, first, number_of)
        place.session(swapped)
        place.session(place.store)
        found = place.read()
        damaged += found is None
        assert found in (place.appended, None), f"another store from request {first} on"
        if swapped.requests < first:
            break
    assert first > 10
    assert damaged == 0 or number_of < REQUESTS_MAX
