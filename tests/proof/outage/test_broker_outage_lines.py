"""A sidecar of fifty topics whose broker refuses connections, or says nothing: readiness, states, lag, log lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.servers import free_port
from tests.support.pulsar_cluster import Cluster, fake_cluster
from tests.support.serving_processes import Serving
from tests.support.sidecar_outage import Sidecar, write_settings

pytestmark = pytest.mark.process

TOPICS = 50


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fake_cluster() as made:
        made.make(*(f"outage-{number:02}" for number in range(TOPICS)), entries=2)
        yield made


def test_refusing_and_silent_broker_are_an_outage_each(cluster: Cluster, tmp_path: Path) -> None:
    port = free_port()
    config = write_settings(tmp_path, cluster.broker.url, cluster.admin.url, "t/n", port)

    def stop() -> None:
        cluster.broker.stop()
        cluster.admin.is_up = False

    def start() -> None:
        cluster.admin.is_up = True
        cluster.broker.start()

    with Serving(config) as process:
        sidecar = Sidecar(process, f"http://127.0.0.1:{port}", cluster.broker.url, "t/n", TOPICS)
        sidecar.check_working()
        sidecar.check_outage(stop, start, "connection refused")

        def say_nothing() -> None:
            cluster.broker.is_silent = True

        def answer_again() -> None:
            cluster.broker.is_silent = False

        sidecar.check_outage(say_nothing, answer_again, "no answer within 5 s")
