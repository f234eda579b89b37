"""The broker of docker-compose.yml without Docker: its listeners' settings, with the ports of this machine."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest
import yaml

from services.pulsar.broker import running_broker
from services.servers import free_port
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

COMPOSE = Path(__file__).parents[3] / "docker-compose.yml"


def test_clients_send_through_the_published_port_and_through_the_inner_one(tmp_path: Path) -> None:
    given = yaml.safe_load(COMPOSE.read_text())["services"]["broker"]["environment"]
    inner, published = free_port(), free_port()
    settings = {"brokerServicePort": str(inner), "webServicePort": str(free_port()), "bindAddress": "0.0.0.0"}
    for name in ("advertisedAddress", "advertisedListeners", "internalListenerName", "bindAddresses"):
        text = given[f"PULSAR_PREFIX_{name}"].replace("6650", str(inner)).replace("6651", str(published))
        settings[name] = text.replace("broker:", "127.0.0.1:") if ":" in text else text.replace("broker", "127.0.0.1")
    with running_broker(tmp_path, settings) as broker:
        assert broker.service_url == f"pulsar://127.0.0.1:{inner}"
        for number, url in enumerate([broker.service_url, f"pulsar://localhost:{published}"]):
            client = pulsar.Client(url, operation_timeout_seconds=int(PATIENCE_S))
            sent = client.create_producer("persistent://public/default/orders").send(b"hello")
            assert sent.entry_id() == number
            client.close()
