"""``python -m offloader`` is the command ``offloader``."""

from __future__ import annotations

import gc
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import offloader

#: Lists a store, and prints the collector's state when the store's folder is looked into, and the number of objects
#: that each collection left aside.
_WATCHED = """
import gc, json, sys
url = sys.argv.pop()
sys.argv = ["offloader", "ls", "--store", url]
looks, aside = [], []
gc.callbacks.append(lambda phase, _: aside.append(gc.get_freeze_count()) if "offloader.cli" in sys.modules else None)
sys.addaudithook(lambda event, given: looks.append(gc.isenabled()) if event == "os.scandir" and given[0] else None)
from offloader.__main__ import main
code = main()
print(json.dumps({"code": code, "enabled": looks, "aside": aside}))
"""


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("no-such-verb", 2)])
def test_the_package_runs_as_the_command(
    argument: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["-m", argument])
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("offloader", run_name="__main__")
    finally:
        gc.enable()
    assert ended.value.code == code
    assert (offloader.__version__ in capsys.readouterr().out) == (code == 0)


@pytest.mark.process
def test_garbage_is_collected_only_among_what_comes_after_the_imports(tmp_path: Path) -> None:
    line = [sys.executable, "-c", _WATCHED, f"file://{tmp_path}"]
    found = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    assert found["code"] == 0
    assert found["enabled"]
    assert all(found["enabled"])
    assert all(count > 10_000 for count in found["aside"])
