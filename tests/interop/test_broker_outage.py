"""A sidecar of fifty topics whose broker is killed, started again and frozen: readiness, states, lag, log lines."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pulsar
import pytest

from services.pulsar.broker import start_broker
from services.servers import free_port
from tests.support.http_process import ask
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

TOPICS = 50
#: Lines of a whole outage, of which one says that it began and one that it ended.
LINES_MAX = 6


def produce(url: str) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for number in range(TOPICS):
        producer = client.create_producer(f"persistent://public/default/outage-{number:02}")
        producer.send(b"one")
        producer.close()
    client.close()


def settings(folder: Path, broker: Any, port: int) -> Path:
    config = folder / "offloader.toml"
    config.write_text(
        f'[serve]\nstore = "file://{folder}/store"\nmaintenance = false\n'
        f'[pulsar]\nservice_url = "{broker.service_url}"\nadmin_url = "{broker.admin_url}"\n'
        'topics = ["public/default"]\ndiscovery_interval = "1s"\n'
        '[offload]\nsegment_age_max = "1s"\n'
        '[telemetry]\nstatus_interval = "1s"\n'
        f'[http]\nlisten = "127.0.0.1:{port}"\n[access]\nanonymous = "read"\n'
    )
    return config


def warnings_of(process: Serving) -> list[str]:
    return [line.get("message", line.get("text", "")) for line in process.lines if line.get("level") != "info"]


def modes(url: str) -> dict[str, int]:
    found: dict[str, int] = ask(f"{url}/v1/overview").json()["streams"]["modes"]
    return found


def rows(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(f"{url}/v1/status").json()["streams"]
    return found


def is_all_offloaded(url: str) -> bool:
    found = rows(url)
    return len(found) == TOPICS and all(row["mode"] == "live" and row["lag"]["entries"] == 0 for row in found)


def metric(url: str, line: str) -> bool:
    return line.encode() in ask(f"{url}/metrics").body


def lag_seconds(url: str) -> float:
    return float(min(row["lag"]["seconds"] for row in rows(url)))


def test_killed_broker_is_one_outage(tmp_path: Path, exercises: Any) -> None:
    exercises("pulsar")
    ports = {"brokerServicePort": str(free_port()), "webServicePort": str(free_port())}
    broker, port = start_broker(tmp_path / "broker", ports), free_port()
    url = f"http://127.0.0.1:{port}"
    try:
        produce(broker.service_url)
        with Serving(settings(tmp_path, broker, port)) as process:
            eventually(lambda: is_all_offloaded(url))
            eventually(lambda: metric(url, 'offloader_source_up{feed="pulsar"} 1.0'))
            assert ask(f"{url}/readyz").status == 200
            before = len(warnings_of(process))

            broker.kill()
            eventually(lambda: ask(f"{url}/readyz").status == 503)
            problem = next(each for each in ask(f"{url}/readyz").json()["problems"] if each["blocks_ready"])
            assert problem["what"] == f"the broker {broker.service_url} doesn't answer: connection refused"
            eventually(lambda: modes(url) == {"disconnected": TOPICS})
            assert metric(url, 'offloader_source_up{feed="pulsar"} 0.0')
            assert metric(url, f'offloader_streams{{mode="disconnected",namespace="public/default"}} {TOPICS}.0')
            first_s = lag_seconds(url)
            eventually(lambda: lag_seconds(url) > first_s + 20)
            assert not metric(url, 'offloader_lag_seconds{namespace="public/default"} 0.0')
            assert all(row["lag_known_ms"] and row["disconnected"] for row in rows(url))

            broker = start_broker(tmp_path / "broker", ports)
            eventually(lambda: ask(f"{url}/readyz").status == 200)
            eventually(lambda: is_all_offloaded(url))
            assert all(row["lag_known_ms"] is None and row["lag"]["seconds"] == 0 for row in rows(url))
            process.logged("outage_over")
            told = warnings_of(process)[before:]
            assert len(told) <= LINES_MAX, told
            assert sum("doesn't answer: connection refused" in line for line in told) == 1, told
            assert not any("Errno" in line or "HTTPConnectionPool" in line for line in told), told

            os.kill(broker.process.pid, signal.SIGSTOP)
            try:
                eventually(lambda: ask(f"{url}/readyz").status == 503)
                eventually(lambda: modes(url) == {"disconnected": TOPICS})
            finally:
                os.kill(broker.process.pid, signal.SIGCONT)
            eventually(lambda: ask(f"{url}/readyz").status == 200)
            eventually(lambda: is_all_offloaded(url))
    finally:
        broker.close()
