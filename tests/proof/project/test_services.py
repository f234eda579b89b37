"""The servers without containers: found, started, stopped, and the errors when one is missing."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.binaries import BINARIES
from services.broker_plugin import nar_place
from services.iceberg_reader import reader_place
from services.pulsar.build import place
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.servers", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def exports(text: str) -> Mapping[str, str]:
    return dict(re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE))


def answers(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except OSError:
        return False
    return True


def test_up_starts_a_server_once_prints_how_to_use_it_and_down_ends_it(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    try:
        first = run("up", "moto", **cache)
        assert first.returncode == 0, first.stderr
        found = exports(first.stdout)
        assert answers(found["AWS_ENDPOINT_URL"])
        assert found["OFFLOADER_TEST_MOTO"] == found["AWS_ENDPOINT_URL"]
        assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"} <= set(found)
        again = run("up", "moto", **cache)
        assert "running already" in again.stdout
        assert exports(again.stdout) == found
    finally:
        down = run("down", **cache)
    assert down.stdout == "moto stopped\n"
    assert not answers(found["AWS_ENDPOINT_URL"])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert run("down", **cache).returncode == 0


def test_run_prints_the_lines_and_ends_with_the_terminal() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "services.servers", "run", "moto"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(6)]
    url = exports("".join(lines))["AWS_ENDPOINT_URL"]
    assert answers(url)
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert not answers(url)


@pytest.mark.parametrize("name", BINARIES)
def test_a_server_that_cannot_be_had_is_named_with_the_reason(name: str, tmp_path: Path) -> None:
    """No cache, no binary on PATH, no Node.js; Go isn't searched for where an endpoint is given."""
    (tmp_path / "go").write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    found = run("build", name, XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path))
    assert found.returncode == 1
    needed = "Go 1.24 or newer is needed" if BINARIES[name].go_package else "install Node.js 20 or newer"
    assert needed in found.stderr
    assert len(found.stderr.splitlines()) == 1


PROBE = """
from services.servers import running
with running("minio") as endpoint:
    print(endpoint.url, endpoint.access_key, endpoint.secret_key)
"""


def test_endpoint_from_the_environment_takes_precedence() -> None:
    given = {"OFFLOADER_TEST_MINIO": "http://minio.example:9000", "OFFLOADER_TEST_MINIO_ACCESS_KEY": "a"}
    found = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=ROOT,
        env={**os.environ, **given, "OFFLOADER_TEST_MINIO_SECRET_KEY": "b", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert found.stdout.split() == ["http://minio.example:9000", "a", "b"]


INNER = """
import pytest

@pytest.mark.parametrize("name", ["moto", "minio"])
def test_it(name, servers):
    servers.place(name).open().put("k", b"")
"""


def test_missing_server_fails_its_tests_and_says_what_is_needed(tmp_path: Path) -> None:
    """In an environment without built servers, with a Go that is too old to build them."""
    (tmp_path / "test_inner.py").write_text(INNER)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OFFLOADER_")}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    (tmp_path / "go").write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.server_fixtures"]
    found = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 failed, 1 passed" in found.stdout
    assert "Go 1.24 or newer is needed" in found.stdout


@pytest.mark.parametrize("missing", ["java", "mvn"])
def test_a_broker_that_cannot_be_had_is_named_with_the_reason(missing: str, tmp_path: Path) -> None:
    """No cache; on PATH is one of the two programs that it needs."""
    (tmp_path / "java").write_text('#!/bin/sh\necho openjdk version \\"17.0.1\\" 2021-10-19 >&2\n')
    (tmp_path / "mvn").write_text("#!/bin/sh\nexit 1\n")
    for name in {"java", "mvn"} - {missing}:
        (tmp_path / name).chmod(0o755)
    found = run("build", "pulsar", XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path), JAVA_HOME="")
    assert found.returncode == 1
    assert (
        found.stderr
        == {
            "java": "there is no Java to run the broker with: install Java 17 or newer\n",
            "mvn": "there is no Maven to build the Pulsar broker with: install Maven 3.8 or newer\n",
        }[missing]
    )


def test_services_without_names_means_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place().mkdir(parents=True)
    reader_place().mkdir(parents=True)
    nar_place().parent.mkdir(parents=True)
    nar_place().touch()
    for binary in BINARIES.values():
        file = binary.built_name if binary.npm_package else binary.name
        built = tmp_path / "offloader" / "bin" / f"{binary.name}-{binary.version}" / file
        built.parent.mkdir(parents=True)
        built.write_text("#!/bin/sh\n")
        built.chmod(0o755)

    found = run("build", XDG_CACHE_HOME=str(tmp_path))

    assert found.returncode == 0, found.stderr
    assert [line.partition(":")[0] for line in found.stdout.splitlines()] == [
        *BINARIES,
        "pulsar",
        "plugin",
        "iceberg-reader",
    ]


def test_a_server_that_does_not_exist_is_refused_with_those_that_do() -> None:
    found = run("up", "swift")

    assert found.returncode == 2
    assert "no such server: swift" in found.stderr
    assert "minio" in found.stderr
