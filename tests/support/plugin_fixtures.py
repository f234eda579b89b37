"""A broker with the plugin for each release that a run asks for, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from services.pulsar.build import DEFAULT, RELEASES
from tests.plugin.plugin_world import LEDGER_ENTRIES, PluginWorld
from tests.support.quick import needs
from tests.support.waiting import PATIENCE_S

#: What a test's usual time limit is enough for, and the limit above it.
MESSAGES_QUICK, LONG_S = 10_000, 3_600


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take ``release`` run with one broker, and by ``--brokers all`` with each."""
    if "release" in metafunc.fixturenames:
        releases = list(RELEASES) if metafunc.config.getoption("brokers") == "all" else [DEFAULT]
        metafunc.parametrize("release", releases, scope="module")


@pytest.fixture(scope="session")
def count(pytestconfig: pytest.Config) -> int:
    """Messages of a topic; ``--messages 200000`` is for ``test_broker_reads_cold.py``, of which each test may then take
    an hour."""
    given: int = pytestconfig.getoption("messages")
    return given


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of that many messages have that much more time."""
    given: int = config.getoption("messages")
    if given > MESSAGES_QUICK:
        for item in items:
            if "count" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.timeout(LONG_S))


@pytest.fixture(scope="module")
@needs("java")
def world(release: str, servers: Any, tmp_path_factory: pytest.TempPathFactory, count: int) -> Iterator[PluginWorld]:
    """A broker, a sidecar and MinIO; each test has topics of its own.

    They end with the module, since they take processor also while nothing is sent.
    """
    is_long = count > MESSAGES_QUICK
    with PluginWorld(
        tmp_path_factory.mktemp("plugin"),
        servers["minio"],
        release=release,
        ledger_entries=count // 40 if is_long else LEDGER_ENTRIES,
        patience_s=LONG_S / 2 if is_long else PATIENCE_S,
    ) as made:
        yield made
