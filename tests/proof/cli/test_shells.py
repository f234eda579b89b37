"""Completion in bash, zsh and fish: installed by the command, and used with TAB at a terminal by a new shell."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.process]
#: Colours, cursor movements and other control sequences of a terminal.
_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])|[\r\x07\x08]")


def shell_path(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"this test needs the shell {name}: apt-get install {name}"
    return found


class Terminal:
    """An interactive shell at a terminal."""

    def __init__(self, shell: str, folder: Path, environment: dict[str, str]) -> None:
        self._pid, self._end = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execve(shell, [shell, "-i"], environment)
        self._printed = b""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def shows(self, text: str) -> bool:
        """Whether the output so far, without colours and line breaks, contains the text."""
        with contextlib.suppress(OSError):  # the shell has ended
            while select.select([self._end], [], [], 0.05)[0]:
                self._printed += os.read(self._end, 65536)
        return text in _CONTROL.sub("", self._printed.decode(errors="replace"))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._end)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home folder without settings, and this interpreter's command first on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "OFFLOADER_"))}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "PATH": path, "TERM": "xterm", "PS1": "> "}


@pytest.fixture(params=["bash", "zsh", "fish"])
def terminal(request: pytest.FixtureRequest, tmp_path: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    """A new shell, after another one has installed the completion."""
    shell = shell_path(request.param)
    # A second command keeps the shell from being replaced by the first one: typer looks for a parent that is a shell.
    installed = subprocess.run(
        [shell, "-c", "offloader --install-completion; true"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert f"{request.param} completion installed" in installed.stdout, installed.stderr
    opened = Terminal(shell, tmp_path, environment)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("offloader stream tr", "truncate"),
        ("offloader sub", "subscriber"),
        ("offloader stream truncate --before-t", "--before-time"),
    ],
)
def test_first_tab_completes_a_command_an_action_and_an_option(terminal: Terminal, typed: str, completed: str) -> None:
    whole = typed[: typed.rindex(" ") + 1] + completed
    terminal.type(f"{typed}\t")
    # zsh prints only the characters that it adds, fish prints the whole line again.
    eventually(lambda: terminal.shows(whole) or terminal.shows(f"{completed} "))
