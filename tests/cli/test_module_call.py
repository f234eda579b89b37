"""``python -m offloader`` is the command ``offloader``."""

from __future__ import annotations

import runpy
import sys

import pytest

import offloader


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("no-such-verb", 2)])
def test_the_package_runs_as_the_command(
    argument: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["-m", argument])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("offloader", run_name="__main__")
    assert ended.value.code == code
    assert (offloader.__version__ in capsys.readouterr().out) == (code == 0)
