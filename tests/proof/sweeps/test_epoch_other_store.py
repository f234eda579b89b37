"""A store in whose place another one is, from any request on: no entry is lost or repeated, no read is incomplete."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import pytest

from offloader.errors import ErrorKind, OffloaderError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.read.partitions import open_reader
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from tests.support.swapped_store import SwappedStore, memory_store

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


class Place:
    def __init__(self, folder: Path) -> None:
        self.store: ObjectStore = memory_store(SystemClock())
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

    def read(self, store: ObjectStore) -> list[str]:
        """The entries that a reader of both tiers gets."""
        with (
            closing(EmbeddedLedgers(self.database, create=False)) as ledgers,
            open_reader(store, STREAM, source=ledgers.view_stream(STREAM)) as reader,
        ):
            return [entry.decode() for batch in reader.scan() for entry in batch.payloads.to_pylist()]

    def read_unless_damaged(self) -> list[str] | None:
        """The entries; ``None``: the reader reports damage."""
        try:
            return self.read(self.store)
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
        swapped = SwappedStore(place.store, memory_store(SystemClock()), first=first, number_of=number_of)
        place.session(swapped)
        place.session(place.store)
        found = place.read_unless_damaged()
        damaged += found is None
        assert found in (place.appended, None), f"another store from request {first} on"
        if swapped.requests < first:
            break
    assert first > 10
    assert damaged == 0 or number_of < REQUESTS_MAX


@pytest.mark.slow
@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("number_of", [1, 3, REQUESTS_MAX])
def test_reader_gets_all_entries_or_an_error_wherever_another_store_takes_the_place(
    tmp_path: Path, number_of: int, is_older: bool
) -> None:
    """The other store is empty, or a copy from before the last entries were offloaded and released."""
    place = Place(tmp_path)
    place.session(place.store)
    other = memory_store(SystemClock(), copied=place.store if is_older else None)
    for _ in range(3):
        place.session(place.store)
    refused = 0
    for first in range(1, REQUESTS_MAX):
        swapped = SwappedStore(place.store, other, first=first, number_of=number_of)
        try:
            found = place.read(swapped)
        except OffloaderError:
            refused += 1
        else:
            assert found == place.appended, f"another store from request {first} on"
        if swapped.requests < first:
            break
    assert first > 20
    assert refused > 5
