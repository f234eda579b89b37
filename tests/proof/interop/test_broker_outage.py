"""A sidecar of fifty topics whose real broker is killed, started again and frozen."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pulsar
import pytest

from services.pulsar.broker import start_broker
from services.servers import free_port
from tests.support.serving_processes import Serving
from tests.support.sidecar_outage import Sidecar, write_settings

pytestmark = pytest.mark.java

TOPICS = 50


def produce(url: str) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for number in range(TOPICS):
        producer = client.create_producer(f"persistent://public/default/outage-{number:02}")
        producer.send(b"one")
        producer.close()
    client.close()


def test_killed_and_frozen_broker_are_an_outage_each(tmp_path: Path) -> None:
    ports = {"brokerServicePort": str(free_port()), "webServicePort": str(free_port())}
    broker, port = start_broker(tmp_path / "broker", ports), free_port()

    def start_again() -> None:
        nonlocal broker
        broker = start_broker(tmp_path / "broker", ports)

    try:
        produce(broker.service_url)
        config = write_settings(tmp_path, broker.service_url, broker.admin_url, "public/default", port)
        with Serving(config) as process:
            sidecar = Sidecar(process, f"http://127.0.0.1:{port}", broker.service_url, "public/default", TOPICS)
            sidecar.check_working()
            sidecar.check_outage(lambda: broker.kill(), start_again, "connection refused")
            sidecar.check_outage(
                lambda: os.kill(broker.process.pid, signal.SIGSTOP),
                lambda: os.kill(broker.process.pid, signal.SIGCONT),
                "no answer within 5 s",
            )
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
        broker.end()
