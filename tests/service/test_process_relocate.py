"""``read.relocate`` in a serving process, before and after a reload."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from offloader.errors import InvalidCallError
from offloader.runtime.clock import SystemClock
from offloader.service.broker_ledgers import BrokerCaller
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import FaultyStore
from tests.support.served import HeldFeed, serving, settings_file
from tests.support.streams import StreamWriter, batch_of

OLD = {"managedLedgerOffloadDriver": "aws-s3", "bucket": "old", "region": "", "serviceEndpoint": "https://a"}
STREAM = "public/default/persistent/orders"
_names = itertools.count()


@pytest.mark.slow
def test_reload_relocates_pages_and_brokers() -> None:
    store = FaultyStore(MemoryStore(f"relocated-{next(_names)}", "", SystemClock()))
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(1, 0, 10)], closes=[1], driver=OLD)
    with serving(store, settings_file(), HeldFeed()) as assembled:
        reads: list[Callable[[], object]] = [
            lambda: assembled.view.entries(STREAM),
            lambda: assembled.ledgers.plan(STREAM, 1, uuid=None, caller=BrokerCaller(name="b")),
        ]
        for each in reads:
            with pytest.raises(InvalidCallError, match="was written to"):
                each()
        assembled.process.reload(settings_file(read__relocate={"old": store.driver_metadata["bucket"]}))
        for each in reads:
            assert each()
        assert len(assembled.view.entries(STREAM)[0]) == 10
