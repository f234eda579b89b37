"""The files that run the sidecar, checked without systemd and Docker: they parse, and their commands exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from offloader.cli.main import main
from offloader.errors import ErrorKind
from offloader.settings import Settings
from offloader.settings.layered import read_settings_file
from services.servers import ACCESS_KEY, BUCKET, SECRET_KEY, free_port
from tests.support.serving_processes import Serving
from tests.support.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "offloader.service"
IMAGE = ROOT / "deploy" / "Containerfile"
COMPOSE = ROOT / "docker-compose.yml"
SIDECAR = ROOT / "services" / "sidecar" / "offloader.toml"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compose file gives to the sidecar."""
    monkeypatch.setenv("OFFLOADER_READ_TOKEN", "only-for-this-machine")


@pytest.fixture
def unit() -> dict[str, str]:
    parsed = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(UNIT.read_text(encoding="utf-8"))
    assert set(parsed) == {"DEFAULT", "Unit", "Service", "Install"}
    return dict(parsed["Service"])


def test_the_unit_calls_what_there_is(unit: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ExecStart", "ExecStartPre"):
        program, *words = shlex.split(unit[name])
        assert program == "/opt/offloader/bin/offloader"
        words = [str(SIDECAR) if word.endswith("offloader.toml") else word for word in words]
        # What only checks is called as it is; what serves, with that option.
        assert main([*words, *({"--check"} - set(words))]) == 0, capsys.readouterr().err
    assert unit["Type"] == "notify"
    assert unit["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_unit_waits_for_the_drain_and_does_not_restart_permanent_errors(
    unit: dict[str, str],
) -> None:
    settings = Settings()
    assert int(unit["TimeoutStopSec"]) > settings.offload.drain_timeout + settings.serve.stop_timeout
    assert [int(code) for code in unit["RestartPreventExitStatus"].split()] == [
        ErrorKind.INVALID_REQUEST.value,
        ErrorKind.DENIED.value,
    ]
    assert unit["Restart"] == "on-failure"


def instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


@pytest.mark.parametrize("path", [IMAGE, SIDECAR.parent / "Containerfile.spark"])
def test_image_uses_existing_files_and_extras(path: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = instructions(path)
    copied = {word for name, rest in found if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]}
    assert {"formats", "offloader", "pyproject.toml", "constraints.txt"} <= copied
    assert all((ROOT / word).exists() for word in copied)
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied <= {line.removeprefix("!") for line in sent if line.startswith("!")}, "what the builder gets"
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {package_data["readme"], *package_data["license-files"]} <= copied, "what building it needs"
    (listed,) = [each for name, rest in found if name == "RUN" for each in re.findall(r"'\.\[([\w,]+)\]'", rest)]
    named = listed.split(",")
    assert "s3" in named
    assert set(named) <= set(extras)
    assert all(re.search(r":3\.\d+-slim-\w+$", rest.partition(" AS ")[0]) for name, rest in found if name == "FROM")


def test_image_runs_the_sidecar_as_an_unprivileged_user(capsys: pytest.CaptureFixture[str]) -> None:
    found = dict(instructions(IMAGE))
    assert found["USER"] == "offloader"
    assert found["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(found["ENTRYPOINT"]) == ["offloader"]
    words = [str(SIDECAR) if word.endswith("offloader.toml") else word for word in json.loads(found["CMD"])]
    assert main([*words, "--check"]) == 0, capsys.readouterr().err


@pytest.mark.process
def test_the_health_check_asks_a_process_that_serves(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "offloader.toml"
    config.write_text(f'[serve]\nstore = "file://{tmp_path}/store"\n[http]\nlisten = "127.0.0.1:{port}"\n')
    found = dict(instructions(IMAGE))
    listen = read_settings_file(str(SIDECAR)).settings_of("").http.listen
    assert listen == f":{found['EXPOSE']}"
    command = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
    check = [sys.executable, *(word.replace(f":{found['EXPOSE']}/", f":{port}/") for word in command[1:])]
    with Serving(config):
        eventually(lambda: subprocess.run(check, capture_output=True, check=False).returncode == 0)
    assert subprocess.run(check, capture_output=True, timeout=PATIENCE_S, check=False).returncode != 0


def unit_steps() -> list[str]:
    """The commands in the unit's head."""
    head = UNIT.read_text(encoding="utf-8").partition("[Unit]")[0]
    return [line.removeprefix("#   ") for line in head.splitlines() if line.startswith("#   ")]


def test_unit_names_only_what_its_own_steps_create(unit: dict[str, str]) -> None:
    words = [shlex.split(step) for step in unit_steps()]
    (account,) = [step for step in words if step[0] == "useradd"]
    environment = words[0][words[0].index("venv") + 1]
    files = [step[-1] for step in words if step[0] == "install"]
    created = [*files, f"{environment}/bin/offloader", f"/var/lib/{unit['StateDirectory']}"]
    body = UNIT.read_text(encoding="utf-8").partition("[Unit]")[2]
    lines = [line for line in body.splitlines() if not line.startswith("#")]
    named = {path for line in lines for path in re.findall(r"(?<![\w.])/[\w./-]+", line)}
    assert named <= {*created, "/bin/kill"}
    assert named >= {unit["EnvironmentFile"], unit["WorkingDirectory"], "/etc/offloader/offloader.toml"}
    assert account[-1] == unit["User"] == unit["Group"]
    assert "--user-group" in account
    assert account[account.index("--home-dir") + 1] == unit["WorkingDirectory"]
    assert "/etc/systemd/system/" in files


def test_install_document_has_the_steps_of_the_unit() -> None:
    text = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    (fence,) = [body for body in re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S) if "useradd" in body]
    assert fence.splitlines() == unit_steps()
    assert "serve.store" in text.partition("useradd")[2]


@pytest.mark.process
def test_steps_of_the_unit_install_existing_files(tmp_path: Path) -> None:
    """All but the account and systemd, below another folder."""
    for step in unit_steps():
        words = shlex.split(step)
        if words[0] == "install":
            *given, source, target = words
            kept = [word for at, word in enumerate(given) if word != "-g" and given[at - 1] != "-g"]
            (tmp_path / "etc/systemd/system").mkdir(parents=True, exist_ok=True)
            source = source if source == "/dev/null" else str(ROOT / source)
            subprocess.run([*kept, source, f"{tmp_path}{target}"], check=True, timeout=PATIENCE_S)
    assert (tmp_path / "etc/systemd/system/offloader.service").read_bytes() == UNIT.read_bytes()
    assert (tmp_path / "etc/offloader/environment").stat().st_mode & 0o777 == 0o600
    sample = read_settings_file(str(tmp_path / "etc/offloader/offloader.toml")).settings_of("")
    assert sample.serve.store == "s3://BUCKET/ROOT"  # what remains to be set


def test_monitoring_profile_has_the_shipped_rules_and_dashboard() -> None:
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    prometheus, grafana, sidecar = services["prometheus"], services["grafana"], services["sidecar"]
    mounted: dict[str, Path] = {}
    for each in (prometheus, grafana):
        assert each["profiles"] == ["monitoring"]
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", each["image"])
        assert all(port.startswith("127.0.0.1:") for port in each["ports"])
        mounted |= {to: ROOT / here for here, to, _ in (volume.split(":") for volume in each["volumes"])}
    assert all(path.is_file() for path in mounted.values())
    config = yaml.safe_load(mounted["/etc/prometheus/prometheus.yml"].read_text())
    assert [mounted[rules] for rules in config["rule_files"]] == [ROOT / "deploy" / "alerts.yml"]
    (scraped,) = config["scrape_configs"]
    listen = read_settings_file(str(SIDECAR)).settings_of("").http.listen
    assert scraped["static_configs"] == [{"targets": [f"sidecar{listen}"]}]
    assert scraped["authorization"]["credentials"] == sidecar["environment"]["OFFLOADER_READ_TOKEN"]
    source = yaml.safe_load(mounted["/etc/grafana/provisioning/datasources/offloader.yml"].read_text())["datasources"]
    assert [(each["type"], each["url"]) for each in source] == [("prometheus", "http://prometheus:9090")]
    assert prometheus["ports"] == ["127.0.0.1:9090:9090"]
    provided = yaml.safe_load(mounted["/etc/grafana/provisioning/dashboards/offloader.yml"].read_text())["providers"]
    (shown,) = [path for to, path in mounted.items() if to.startswith(f"{provided[0]['options']['path']}/")]
    assert shown == ROOT / "deploy" / "grafana-dashboard.json"


def test_published_port_of_the_broker_sends_clients_to_an_address_of_this_machine() -> None:
    broker: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["broker"]
    given = {name.removeprefix("PULSAR_PREFIX_"): value for name, value in broker["environment"].items()}
    listeners = dict(each.split(":", 1) for each in given["advertisedListeners"].split(","))
    settings = read_settings_file(str(SIDECAR)).settings_of("")
    assert listeners[given["internalListenerName"]] == settings.pulsar.service_url
    name, bound = given["bindAddresses"].split(":", 1)
    port = bound.rpartition(":")[2]
    assert listeners[name] == f"pulsar://localhost:{port}"
    assert f"127.0.0.1:{port}:{port}" in broker["ports"]
    assert all(each.startswith("127.0.0.1:") for each in broker["ports"])


def test_compose_profile_joins_existing_services() -> None:
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    sidecar, broker, spark = services["sidecar"], services["broker"], services["spark"]
    assert all(each["profiles"] == ["sidecar"] for each in (sidecar, broker, spark))
    for each in (sidecar, spark):
        assert (ROOT / each["build"]["dockerfile"]).exists()
        assert each["environment"]["AWS_ACCESS_KEY_ID"] == ACCESS_KEY
        assert each["environment"]["AWS_SECRET_ACCESS_KEY"] == SECRET_KEY
    assert broker["image"].partition(":")[2] == services["pulsar"]["image"].partition(":")[2]
    settings = read_settings_file(str(SIDECAR)).settings_of("public/default/persistent/orders")
    assert settings.serve.store.startswith(f"s3://{BUCKET}/")
    assert settings.serve.endpoint_url == spark["environment"]["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert settings.pulsar.service_url == f"pulsar://{broker['environment']['PULSAR_PREFIX_advertisedAddress']}:6650"
    assert settings.pulsar.admin_url == "http://broker:8080"
    assert settings.offload.method == "streaming"
    [published] = sidecar["ports"]
    assert published == f"127.0.0.1{settings.http.listen}{settings.http.listen}"
    named = {source.partition(":")[2] for source in settings.access.read_tokens}
    assert named <= set(sidecar["environment"]), "where its token is"
    seconds = int(sidecar["stop_grace_period"].removesuffix("m")) * 60
    assert seconds > settings.offload.drain_timeout + settings.serve.stop_timeout
    assert sidecar["restart"] == "on-failure", "killed, it begins again"
    mounted = [volume.partition(":")[0] for volume in sidecar["volumes"] if volume.startswith("./")]
    assert [ROOT / each for each in mounted] == [SIDECAR]
