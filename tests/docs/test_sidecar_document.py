"""docs/tutorials/sidecar.md: its settings are valid, its samples print the documented output, its links resolve."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import signal
from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.settings.layered import SETTINGS, read_settings_file
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "tutorials" / "sidecar.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
#: Where the text's samples are.
PLACE = "/srv/orders"


class Shell:
    """What the samples type: our commands, one of them in the background, and what shells know."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._background: Serving | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, command: str) -> list[str]:
        """The lines that a command prints."""
        if command.endswith(" &"):
            words = shlex.split(command.removesuffix(" &"))
            assert words[:3] == ["offloader", "serve", "--config"]
            self._background = self._stack.enter_context(Serving(Path(words[3]), wait=False))
            lines = self._background.lines
            # A person types the next command later: the stream is opened by then.
            eventually(lambda: any("serving" in str(line) for line in lines) and any(Path("store").rglob("*.json")))
            return []
        if command == "kill %1":
            assert self._background is not None
            self._background.signal(signal.SIGTERM)
            return []
        if command == "wait %1; echo $?":
            assert self._background is not None
            return [str(self._background.ended())]
        line, _, query = command.partition(" | jq .")
        words = shlex.split(line)
        assert words[0] == "offloader"
        self._capsys.readouterr()
        main(words[1:])
        printed = self._capsys.readouterr().out.splitlines()
        return [str(json.loads(each)[query]) for each in printed] if query else printed


def comparable(line: str) -> list[str]:
    """Columns are as wide as the widest path, which is another one here."""
    return line.split()


@pytest.mark.process
def test_samples_run_in_order_and_print_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran, printed = 0, ""
    with Shell(capsys) as shell:
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S):
            here = text.replace(PLACE, str(tmp_path))
            match language:
                case "toml":
                    path = tmp_path / ("offloader.toml" if not ran else "another.toml")
                    path.write_text(here)
                    read_settings_file(str(path))
                case "python":
                    with contextlib.redirect_stdout(io.StringIO()) as out:
                        exec(compile(here, "sample", "exec"), {})
                    printed = out.getvalue()
                case "text":
                    assert printed == here
                case "console":
                    for block in re.split(r"^\$ ", here, flags=re.M)[1:]:
                        command, *expected = block.splitlines()
                        found = [comparable(line) for line in shell.run(command)]
                        for line in (each for each in expected if each != "..."):
                            assert comparable(line) in found, (command, found)
                        assert len(found) == len(expected) or "..." in expected
                        ran += 1
    assert ran == 5


def test_every_setting_that_the_text_names_exists() -> None:
    known = set(SETTINGS)
    named = set(re.findall(r"`((?:serve|offload|http|access|telemetry|pulsar)\.[a-z_]+)`", TEXT))
    assert named
    assert named <= known


def test_every_link_leads_somewhere() -> None:
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link}
    assert [link for link in sorted(links) if not (DOCUMENT.parent / link).exists()] == []
