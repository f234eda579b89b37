"""The compose file without Docker: it parses, and its command lines run with a local MinIO."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from offloader.settings.layered import parse_settings
from offloader.store.open import open_store
from offloader.store.probe import require_conditional_puts
from services.binaries import find_binary
from services.pulsar.broker import offload_settings, plugin_settings
from services.pulsar.build import SOURCES
from services.servers import ACCESS_KEY, BUCKET, SECRET_KEY, free_port, stop_group
from tests.support.quick import needs
from tests.support.waiting import PATIENCE_S

FILE = Path(__file__).parents[3] / "docker-compose.yml"


@pytest.fixture
def minio() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]["minio"]
    return service


def test_the_image_is_pinned_and_reachable_from_this_machine_only(minio: dict[str, Any]) -> None:
    assert re.fullmatch(r"minio/minio:RELEASE\.\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ", minio["image"])
    assert minio["ports"] == ["127.0.0.1:9000:9000"]


def test_keys_and_bucket_are_those_of_the_services_without_docker(minio: dict[str, Any]) -> None:
    assert minio["environment"]["MINIO_ROOT_USER"] == ACCESS_KEY
    assert minio["environment"]["MINIO_ROOT_PASSWORD"] == SECRET_KEY
    assert f"mkdir -p /data/{BUCKET} &&" in minio["command"][0]


def test_the_broker_is_the_one_of_the_tests_and_offloads_to_that_server(minio: dict[str, Any]) -> None:
    """Docker isn't used here: the version, the settings, the keys and the ports are checked."""
    pulsar: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]["pulsar"]
    [version] = re.findall(r"<pulsar.version>(.*)</pulsar.version>", (SOURCES / "pom.xml").read_text())
    given = {name.removeprefix("PULSAR_PREFIX_"): value for name, value in pulsar["environment"].items()}
    assert pulsar["image"] == f"apachepulsar/pulsar-all:{version}"
    assert offload_settings("http://minio:9000", "pulsar").items() <= given.items()
    assert (given["ACCESS_KEY_ID"], given["ACCESS_KEY_SECRET"]) == (ACCESS_KEY, SECRET_KEY)
    assert "mkdir -p /data/pulsar &&" in minio["command"][0]
    assert all(port.startswith("127.0.0.1:") for port in pulsar["ports"])
    known = [line.partition("=")[0] for line in (SOURCES / "broker.conf").read_text().splitlines()]
    kept = {"managedLedgerOffloadAutoTriggerSizeThresholdBytes", "ACCESS_KEY_ID", "ACCESS_KEY_SECRET"}
    assert set(given) <= {*known, *offload_settings("", ""), *kept}


def test_broker_with_the_plugin_has_the_settings_of_the_tests_broker() -> None:
    """Docker isn't used here: settings, mounted files and tokens of both sides are checked."""
    services: dict[str, Any] = yaml.safe_load((FILE.parent / "deploy" / "compose-plugin.yml").read_text())["services"]
    broker, sidecar = services["broker"], services["sidecar"]
    given = {name.removeprefix("PULSAR_PREFIX_"): value for name, value in broker["environment"].items()}
    wanted = plugin_settings(Path("plugin.nar"), "http://sidecar:8750", 0, 0)
    own = {"brokerServicePort", "webServicePort", "offloadersDirectory"}
    assert {name: value for name, value in wanted.items() if name not in own}.items() <= given.items()
    mounted = {to: FILE.parent / here for here, to, _ in (each.split(":") for each in broker["volumes"])}
    assert given["offloadersDirectory"] in mounted
    plugin = dict(re.findall(r"^(\w+) = (.*)$", mounted[given["OFFLOADER_PLUGIN_CONFIG"]].read_text(), re.M))
    assert plugin["endpoints"] == given["managedLedgerOffloadServiceEndpoint"]
    token = mounted[plugin["token_file"]].read_text().strip()
    assert sidecar["environment"]["OFFLOADER_BROKER_TOKEN"] == token
    here, to, _ = sidecar["volumes"][0].split(":")
    assert f"{to}:ro" in "".join(yaml.safe_load(FILE.read_text())["services"]["sidecar"]["volumes"])
    settings = parse_settings((FILE.parent / here).read_text(), here).settings_of("")
    assert settings.pulsar.broker_plugin
    assert settings.access.broker_tokens == ("env:OFFLOADER_BROKER_TOKEN",)


def test_compose_header_names_keys_and_bucket(minio: dict[str, Any]) -> None:
    head = FILE.read_text().partition("services:")[0]
    for part in (f"AWS_ACCESS_KEY_ID={ACCESS_KEY}", f"AWS_SECRET_ACCESS_KEY={SECRET_KEY}", f"s3://{BUCKET}/"):
        assert part in head


@pytest.fixture
@needs("process")
def started(minio: dict[str, Any], tmp_path: Path) -> Iterator[tuple[int, list[str]]]:
    """The service's own command line with another port and data folder; its port and its health check."""
    port = free_port()
    binary = find_binary("minio", build=True)
    line = minio["command"][0].replace("/data", str(tmp_path / "data")).replace(":9000", f"127.0.0.1:{port}")
    # Not MINIO_CI_CD, which lets requests pass that the image refuses: those that name no host.
    environment = {**os.environ, **minio["environment"]}
    environment.pop("MINIO_CI_CD", None)
    environment["PATH"] = f"{binary.parent}:{environment['PATH']}"
    process = subprocess.Popen(
        [*minio["entrypoint"], line],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    check = minio["healthcheck"]["test"]
    assert check[0] == "CMD"
    script = check[-1].replace("/9000", f"/{port}").replace("$$", "$")
    yield port, [*check[1:-1], script]
    stop_group(process.pid, lambda: process.poll() is not None)
    process.wait(PATIENCE_S)


def test_compose_command_starts_a_server_with_the_bucket_and_health_check(
    started: tuple[int, list[str]],
) -> None:
    port, check = started
    deadline_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while subprocess.run(check, capture_output=True, timeout=PATIENCE_S, check=False).returncode != 0:
        assert time.monotonic() < deadline_s, "the health check never succeeded"
        pause.wait(0.05)
    keys: dict[str, Any] = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    store = open_store(f"s3://{BUCKET}/demo", endpoint_url=f"http://127.0.0.1:{port}", **keys)
    assert require_conditional_puts(store).conditional
    store.close()


@pytest.mark.process
def test_health_check_fails_without_a_server(minio: dict[str, Any]) -> None:
    check = minio["healthcheck"]["test"]
    script = check[-1].replace("/9000", f"/{free_port()}").replace("$$", "$")
    assert subprocess.run([*check[1:-1], script], capture_output=True, timeout=PATIENCE_S, check=False).returncode != 0
