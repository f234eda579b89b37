"""docs/how-to/first-day.md: its commands run in order against a real S3 server, which is frozen for a while."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offloader.cli.main import main
from services.servers import RunningServer, free_port, make_bucket, start
from tests.support.serving_processes import Serving
from tests.support.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "first-day.md").read_text(encoding="utf-8")
#: What the page has, and another machine has otherwise.
PLACE, ENDPOINT, LISTEN = "/srv/first", "http://127.0.0.1:9000", "127.0.0.1:8750"


@pytest.fixture
def server(tmp_path: Path, one_server: str) -> Iterator[RunningServer]:
    """An S3 server of this test alone: it is frozen."""
    found = start(one_server, tmp_path / "s3")
    try:
        make_bucket(found.endpoint, "cold-tier")
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(found.process.pid, signal.SIGCONT)
        found.stop()


class Shell:
    """What the page types: our commands, one of them in the background, curl, jq and kill."""

    def __init__(self, server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
        self._server, self._capsys = server, capsys
        self._stack = contextlib.ExitStack()
        self._background: Serving | None = None

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, command: str) -> list[str]:
        """The lines that a command prints."""
        if command.startswith("kill -"):
            number = signal.SIGSTOP if "-STOP" in command else signal.SIGCONT
            os.killpg(self._server.process.pid, number)
            return []
        if command.endswith(" &"):
            self._background = self._stack.enter_context(Serving(Path(shlex.split(command)[3])))
            return []
        if command.startswith(("kill %1", "wait %1")):
            assert self._background is not None
            if command == "kill %1":
                self._background.signal(signal.SIGTERM)
                return []
            return [str(self._background.ended())]
        line, _, query = command.partition(" | jq ")
        words = shlex.split(line)
        printed = curl(words) if words[0] == "curl" else self._offloader(words[1:])
        return [picked(json.loads(each), query) for each in printed] if query else printed

    def _offloader(self, words: list[str]) -> list[str]:
        self._capsys.readouterr()
        code = main(words)
        found = self._capsys.readouterr()
        # A refusal is what the page shows; anything else that ends so is damage.
        assert code == 0 or found.err.startswith("offloader: "), (words, found)
        return [*found.out.splitlines(), *found.err.splitlines()]


def curl(words: list[str]) -> list[str]:
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    request = urllib.request.Request(words[-1], method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return [str(answer.read().decode())]
    except urllib.error.HTTPError as error:
        with error:
            return [str(error.read().decode())]


def picked(document: Any, query: str) -> str:
    """``.items[0].lag.entries``; texts without quotation marks."""
    for name, number in re.findall(r"\.([a-z_]+)|\[(\d+)\]", query):
        document = document[name] if name else document[int(number)]
    return document if isinstance(document, str) else json.dumps(document)


def told(line: str) -> list[str]:
    """Columns are as wide as their widest cell, which is another one here."""
    return line.partition("...")[0].split()


def fits(found: list[list[str]], expected: list[str]) -> bool:
    """Whether the lines are there that the page shows; ``...`` stands for further ones, or the rest of a line."""
    shown = [told(line) for line in expected if line != "..."]
    is_whole = len(found) == len(expected) or "..." in expected
    return is_whole and all(any(each[: len(line)] == line for each in found) for line in shown)


@pytest.mark.process
def test_commands_run_in_order_and_print_documented_output(
    tmp_path: Path,
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    exercises: Any,
) -> None:
    exercises(server.endpoint.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    keys = {"AWS_ACCESS_KEY_ID": server.endpoint.access_key, "AWS_SECRET_ACCESS_KEY": server.endpoint.secret_key}
    ours = {PLACE: str(tmp_path), ENDPOINT: server.endpoint.url, LISTEN: f"127.0.0.1:{free_port()}"}
    ran, names = 0, dict[str, object]()
    with Shell(server, capsys) as shell:
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S):
            here = re.sub("|".join(map(re.escape, ours)), lambda found: ours[found[0]], text)
            if language == "toml":
                (tmp_path / "offloader.toml").write_text(here)
                continue
            if language == "python":
                exec(compile(here, "sample", "exec"), names)
                continue
            assert language == "console"
            for block in re.split(r"^\$ ", here, flags=re.M)[1:]:
                command, *expected = block.splitlines()
                if command.startswith("export "):
                    name, value = command.removeprefix("export ").split("=", 1)
                    monkeypatch.setenv(name, keys.get(name, value))
                    continue
                found = list[list[str]]()

                def is_so(command: str = command, expected: list[str] = expected, found: Any = found) -> bool:
                    found[:] = [told(line) for line in shell.run(command)]
                    return fits(found, expected)

                if command.startswith("curl -s ") and "-X" not in command:
                    # A person looks again: the process reads its hot tier now and then.
                    eventually(is_so)
                assert is_so(), (command, found)
                ran += 1
    assert ran == 38


def test_pictures_are_small_enough_to_load_with_the_page() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    assert len(pictures) == 2
    for each in (ROOT / "docs" / "how-to" / "pictures").glob("*.png"):
        assert each.stat().st_size < 120_000, each.name
