"""docs/how-to/consumers.md: its steps lead to a consumer that reads ledgers which the bookie no longer has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offloader.settings.layered import parse_settings
from services.servers import free_port
from tests.support.serving_processes import Serving
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.java

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "consumers.md").read_text(encoding="utf-8")
#: Ports in the text: the broker's two and the sidecar's.
PORTS = ("6650", "8080", "8750")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


class Terminals:
    """What a reader of the text types, with other ports than the text's.

    Args:
        folder: the current one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {port: str(free_port()) for port in PORTS}
        self.environment: dict[str, str] = {}

    def here(self, text: str) -> str:
        for port, own in self.ports.items():
            text = text.replace(f":{port}", f":{own}")
        return text

    def python(self, name: str) -> str:
        """What a block prints."""
        [block] = blocks(f"python {name}")
        done = subprocess.run(
            [sys.executable, "-c", self.here(block)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def curl(self) -> None:
        for method, url in re.findall(r"^curl -X (\w+) (\S+)$", TEXT, re.M):
            request = urllib.request.Request(self.here(url), data=b"", method=method)
            urllib.request.urlopen(request, timeout=PATIENCE_S).close()


@contextmanager
def broker(terminals: Terminals) -> Iterator[subprocess.Popen[str]]:
    """``./dev services run pulsar-plugin``; its lines that begin with ``export`` are pasted."""
    port, admin_port, sidecar_port = terminals.ports.values()
    sidecar = f"http://127.0.0.1:{sidecar_port}"
    options = ["--plugin", "--port", port, "--admin-port", admin_port, "--sidecar", sidecar]
    with subprocess.Popen(
        [sys.executable, "-m", "services.pulsar", *options],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(5)]
            terminals.environment |= dict(re.findall(r"^export (\w+)=(.*)$", "".join(lines), re.M))
            assert lines[4] in [terminals.here(each) for each in blocks("text")]
            yield process
        finally:
            process.terminate()


def typed(process: subprocess.Popen[str], line: str) -> str:
    """The broker's answer in its terminal."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_settings_of_the_text_are_valid() -> None:
    for block in blocks("toml"):
        assert parse_settings(block, "consumers.md").settings_of("").pulsar.broker_plugin


def test_steps_end_with_a_consumer_that_reads_ledgers_the_bookie_no_longer_has(tmp_path: Path) -> None:
    terminals = Terminals(tmp_path)
    with broker(terminals) as process:
        [settings] = blocks("toml")
        config = tmp_path / "offloader.toml"
        config.write_text(terminals.here(settings))
        with Serving(config, terminals.environment):
            terminals.python("send")
            looked: list[list[str]] = []

            def are_offloaded() -> bool:
                looked[:] = [line.split() for line in terminals.python("look").splitlines()]
                return [line[1:] for line in looked] == [["300", "True"]] * 3 + [["0", "False"]]

            eventually(are_offloaded)
            [_, refusal] = next(each for each in blocks("text") if each.startswith("ledger ")).splitlines()

            def is_gone() -> bool:
                terminals.curl()
                return typed(process, f"ledger {looked[0][0]}") == refusal

            eventually(is_gone)
            printed = terminals.python("receive").splitlines()  # among what Pulsar's client logs
            assert any(f"{line}\n" in blocks("text") for line in printed), printed
            [counted] = json.loads(typed(process, "beans offloader:*")).values()
    assert counted["ReadBytes"] > 0
    named = set(re.findall(r"`([A-Z][A-Za-z]+(?:Bytes|Entries))`", TEXT))
    assert {"ReadBytes", "PresignedBytes", "MissingEntries"} == named
    assert named <= set(counted)
