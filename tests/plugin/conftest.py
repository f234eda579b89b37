"""A broker with the plugin for each release that a run asks for, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from services.pulsar.build import DEFAULT, RELEASES
from tests.plugin.plugin_world import PluginWorld
from tests.support.quick import needs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take ``release`` run with one broker, and by ``--brokers all`` with each."""
    if "release" in metafunc.fixturenames:
        releases = list(RELEASES) if metafunc.config.getoption("brokers") == "all" else [DEFAULT]
        metafunc.parametrize("release", releases, scope="module")


@pytest.fixture(scope="module")
@needs("java")
def world(release: str, servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginWorld]:
    """A broker, a sidecar and MinIO; each test has topics of its own.

    They end with the module, since they take processor also while nothing is sent.
    """
    with PluginWorld(tmp_path_factory.mktemp("plugin"), servers["minio"], release=release) as made:
        yield made
