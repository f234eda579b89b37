"""Running the verbs that read, in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from offloader.cli.main import main


@dataclass(frozen=True)
class Done:
    """What a command left: exit code, both outputs."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.split("\n") if line]


class Offloader:
    """``offloader VERB ...``"""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        code = main(arguments)
        printed = self._capsys.readouterr()
        return Done(code, printed.out, printed.err)

    def refuses(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, the line and the hint of a command that must fail without printing anything else."""
        done = self(*arguments)
        assert done.out == ""
        assert "Traceback" not in done.err
        line, hint = done.err.splitlines()
        assert line.startswith("offloader: ")
        assert hint.startswith("hint: ")
        return done.code, line.removeprefix("offloader: "), hint.removeprefix("hint: ")
