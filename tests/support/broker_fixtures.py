"""A Pulsar broker that the tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.pulsar.broker import Broker, running_broker
from tests.support.quick import needs


@pytest.fixture(scope="session")
@needs("java")
def plain_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """For tests that share it: each has topics of its own.

    It knows transactions, and passes over what its bookies have lost.
    """
    settings = {"transactionCoordinatorEnabled": "true", "autoSkipNonRecoverableData": "true"}
    with running_broker(tmp_path_factory.mktemp("plain-broker"), settings) as broker:
        yield broker
