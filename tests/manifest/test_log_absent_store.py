"""A store that is empty for a while under a running writer: emptied and restored, or another one behind its address."""

from __future__ import annotations

from itertools import count

import pytest

from formats.keys import record_key
from formats.manifest import LedgerClosed
from offloader.errors import FencedError
from offloader.manifest.boundary import LostRecordsError
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock

STREAM = "public/default/persistent/orders"
_names = count()


def closed(ledger_id: int) -> list[LedgerClosed]:
    return [LedgerClosed(ledger_id, 9)]


@pytest.fixture
def stores() -> tuple[ObjectStore, ObjectStore]:
    """The store, and an empty one."""
    one, other = (MemoryStore(f"absent-{next(_names)}", "", SystemClock()) for _ in range(2))
    return one, other


@pytest.fixture
def log(stores: tuple[ObjectStore, ObjectStore]) -> ManifestLog:
    opened = ManifestLog(stores[0], STREAM, clock=ManualClock())
    opened.open_epoch()
    opened.commit(closed(1))
    return opened


def test_writer_goes_on_in_its_store_and_writes_nothing_into_the_empty_one_once_it_has_looked(
    log: ManifestLog, stores: tuple[ObjectStore, ObjectStore]
) -> None:
    store, empty = stores
    log.store = empty
    with pytest.raises(FencedError):
        log.commit(closed(2))
    strayed = [info.key for info in empty.list("").objects]
    for _ in range(3):
        with pytest.raises(FencedError):
            log.load(create=True)
    assert [info.key for info in empty.list("").objects] == strayed == [record_key(STREAM, log.state.incarnation, 3)]
    log.store = store
    log.load()
    log.commit(closed(2))
    assert load_manifest(store, STREAM).closed_ledgers == {1: 9, 2: 9}


def test_record_that_went_to_the_empty_store_is_missed_when_the_store_is_back(
    log: ManifestLog, stores: tuple[ObjectStore, ObjectStore]
) -> None:
    """The writer takes record 2 for committed; it isn't in the store that comes back."""
    store, empty = stores
    store.delete([record_key(STREAM, log.state.incarnation, 2)])
    log.store = empty
    with pytest.raises(FencedError):
        log.commit(closed(2))
    log.store = store
    with pytest.raises(LostRecordsError, match="it ends with record 1, but record 2 was read earlier"):
        log.load()
    assert load_manifest(store, STREAM).record_id == 1
