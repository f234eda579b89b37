"""docs/how-to/first-day.md: its commands run in order against a real S3 server and a real broker; both are frozen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from offloader.cli.main import main
from offloader.spark.session import require_java
from services.pulsar.broker import start_broker
from services.servers import RunningServer, free_port, make_bucket, start
from tests.support.serving_processes import Serving
from tests.support.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "first-day.md").read_text(encoding="utf-8")
MORNING, AFTERNOON = TEXT.split("## With Pulsar")
#: What the page has, and another machine has otherwise.
PLACE, ENDPOINT, LISTEN = "/srv/first", "http://127.0.0.1:9000", "127.0.0.1:8750"
SERVICE, ADMIN = "pulsar://127.0.0.1:6650", "http://127.0.0.1:8080"
FIRST, SECOND = "127.0.0.1:8761", "127.0.0.1:8762"


@pytest.fixture
def server(tmp_path: Path, one_server: str) -> Iterator[RunningServer]:
    """An S3 server of this test alone: it is frozen."""
    found = start(one_server, tmp_path / "s3")
    try:
        for bucket in ("cold-tier", "backup"):
            make_bucket(found.endpoint, bucket)
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(found.process.pid, signal.SIGCONT)
        found.stop()


class Shell:
    """What the page types: our commands, some of them in the background, curl, jq, kill and rclone. A command of the
    new release, ``/srv/new/bin/offloader``, is this one too: ``tests/upgrade`` runs two releases.

    Args:
        freezable: a name in the commands that stop and continue a process -> that process.
    """

    def __init__(self, freezable: Mapping[str, subprocess.Popen[Any]], capsys: pytest.CaptureFixture[str]) -> None:
        self._freezable, self._capsys = freezable, capsys
        self._stack = contextlib.ExitStack()
        self._jobs: list[Serving] = []

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, command: str) -> list[str]:
        """The lines that a command prints."""
        if job := re.match(r"(kill|kill -9|wait) %(\d)", command):
            return self._job(job[1], self._jobs[int(job[2]) - 1])
        if command.startswith("kill -"):
            [process] = [process for name, process in self._freezable.items() if name in command]
            os.killpg(process.pid, signal.SIGSTOP if "-STOP" in command else signal.SIGCONT)
            return []
        if command.endswith(" &"):
            self._jobs.append(self._stack.enter_context(Serving(Path(shlex.split(command)[3]))))
            return []
        line, _, query = command.partition(" | jq ")
        words = shlex.split(line)
        if words[0] == "rclone":
            rclone = [str(Path(sys.executable).parent / words[0]), *words[1:], "--config", os.devnull]
            subprocess.run(rclone, check=True, timeout=PATIENCE_S)
            return []
        printed = curl(words) if words[0] == "curl" else self._offloader(words[1:])
        return [picked(json.loads(each), query) for each in printed] if query else printed

    def _job(self, act: str, job: Serving) -> list[str]:
        if act == "wait":
            return [str(job.ended())]
        job.signal(signal.SIGTERM if act == "kill" else signal.SIGKILL)
        return []

    def _offloader(self, words: list[str]) -> list[str]:
        self._capsys.readouterr()
        code = main(words)
        found = self._capsys.readouterr()
        # A refusal is what the page shows; anything else that ends so is damage.
        assert code == 0 or found.err.startswith("offloader: "), (words, found)
        return [*found.out.splitlines(), *found.err.splitlines()]


def curl(words: list[str]) -> list[str]:
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    headers = dict([words[words.index("-H") + 1].split(": ", 1)]) if "-H" in words else {}
    return [answered(word, method, headers) for word in words if word.startswith("http://")]


def answered(url: str, method: str, headers: dict[str, str]) -> str:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())


def picked(document: Any, query: str) -> str:
    """``.items[0].lag.entries``, ``null`` where there is nothing; texts without quotation marks."""
    for name, number in re.findall(r"\.([a-z_]+)|\[(\d+)\]", query):
        found = document.get(name) if name else document[int(number) :][:1]
        document = found if name else found[0] if found else {}
    return document if isinstance(document, str) else json.dumps(document)


def told(line: str) -> list[str]:
    """Columns are as wide as their widest cell, which is another one here."""
    return line.partition("...")[0].split()


def fits(found: list[list[str]], expected: list[str]) -> bool:
    """Whether the lines are there that the page shows; ``...`` stands for further ones, or the rest of a line."""
    shown = [told(line) for line in expected if line != "..."]
    is_whole = len(found) == len(expected) or "..." in expected
    return is_whole and all(any(each[: len(line)] == line for each in found) for line in shown)


@dataclass
class Walk:
    """One part of the page, typed in a folder by someone whose addresses and keys are others than the page's."""

    shell: Shell
    folder: Path
    ours: Mapping[str, str]
    keys: Mapping[str, str]
    monkeypatch: pytest.MonkeyPatch
    names: dict[str, object] = field(default_factory=dict)
    commands: int = 0

    def take(self, text: str) -> None:
        """Every block of it in order."""
        printed = ""
        for kind, block in re.findall(r"^```([\w ]+)\n(.*?)^```$", text, re.M | re.S):
            here = re.sub("|".join(map(re.escape, self.ours)), lambda found: self.ours[found[0]], block)
            match kind.split():
                case ["toml", *name]:
                    self._write(here, *name)
                case ["python"]:
                    exec(compile(here, "sample", "exec"), self.names)
                case ["python", "spark"]:
                    printed = in_spark(here)
                case ["output"]:
                    assert printed == here
                case ["console"]:
                    for command in re.split(r"^\$ ", here, flags=re.M)[1:]:
                        self._type(*command.splitlines())
                case _:
                    raise AssertionError(kind)

    def _write(self, settings: str, name: str = "offloader") -> None:
        (self.folder / f"{name}.toml").write_text(settings)
        if name == "pulsar":
            (self.folder / "second.toml").write_text(settings.replace(self.ours[FIRST], self.ours[SECOND]))

    def _type(self, command: str, *expected: str) -> None:
        if command.startswith("export "):
            name, value = command.removeprefix("export ").split("=", 1)
            self.monkeypatch.setenv(name, self.keys.get(name, value))
            return
        found = list[list[str]]()

        def is_so() -> bool:
            found[:] = [told(line) for line in self.shell.run(command)]
            return fits(found, list(expected))

        looks = command.startswith("curl -s ") and "-X" not in command
        if looks or command.startswith("offloader read "):
            # Repeated until it fits: the process polls its hot tier and offloads in the background.
            with contextlib.suppress(AssertionError):
                eventually(is_so)
        assert is_so(), (command, found)
        self.commands += 1


def in_spark(program: str) -> str:
    """What a program prints in a Python of its own, with Java."""
    java = require_java().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java)}
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.rstrip("\n") + "\n"


@pytest.fixture
def walk(
    tmp_path: Path, server: RunningServer, monkeypatch: pytest.MonkeyPatch, exercises: Any
) -> Callable[[Shell, Mapping[str, str]], Walk]:
    exercises(server.endpoint.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keys = {"AWS_ACCESS_KEY_ID": server.endpoint.access_key, "AWS_SECRET_ACCESS_KEY": server.endpoint.secret_key}
    ours = {PLACE: str(tmp_path), ENDPOINT: server.endpoint.url}

    def begin(shell: Shell, more: Mapping[str, str]) -> Walk:
        return Walk(shell, tmp_path, {**ours, **more}, keys, monkeypatch)

    return begin


@pytest.mark.process
def test_commands_run_in_order_and_print_documented_output(
    server: RunningServer, walk: Callable[..., Walk], capsys: pytest.CaptureFixture[str]
) -> None:
    with Shell({"minio": server.process}, capsys) as shell:
        day = walk(shell, {LISTEN: f"127.0.0.1:{free_port()}"})
        day.take(MORNING)
        assert day.commands == 53


@pytest.mark.java
def test_commands_with_a_broker_run_in_order_and_print_documented_output(
    tmp_path: Path,
    server: RunningServer,
    walk: Callable[..., Walk],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    exercises: Any,
) -> None:
    exercises("pulsar")
    # The morning's first lines.
    keys = {"AWS_ACCESS_KEY_ID": server.endpoint.access_key, "AWS_SECRET_ACCESS_KEY": server.endpoint.secret_key}
    place = {"OFFLOADER_ENDPOINT_URL": server.endpoint.url, "OFFLOADER_REGION": "us-east-1"}
    for name, value in {**keys, **place}.items():
        monkeypatch.setenv(name, value)
    broker = start_broker(tmp_path / "broker", {})
    try:
        with Shell({"PulsarStandalone": broker.process}, capsys) as shell:
            ours = {SERVICE: broker.service_url, ADMIN: broker.admin_url}
            day = walk(shell, {**ours, FIRST: f"127.0.0.1:{free_port()}", SECOND: f"127.0.0.1:{free_port()}"})
            day.take(AFTERNOON)
            assert day.commands == 36
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
        broker.end()


def test_pictures_are_small_enough_to_load_with_the_page() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    assert len(pictures) == 3
    for each in (ROOT / "docs" / "how-to" / "pictures").glob("*.png"):
        assert each.stat().st_size < 120_000, each.name
