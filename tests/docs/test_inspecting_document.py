"""docs/how-to/inspecting.md: its samples run in order and print the documented output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "inspecting.md").read_text(encoding="utf-8")
#: Where the text's samples are.
PLACE = "/srv/orders"


def shell(script: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def is_like(line: str | None, wanted: str | None) -> bool:
    """Whether a printed line is the text's, where ``...`` stands for anything; blanks count as one."""
    if line is None or wanted is None:
        return False
    parts = [re.escape(" ".join(part.split())) for part in wanted.split("...")]
    return re.fullmatch(r"\s?.*?\s?".join(parts), " ".join(line.split())) is not None


def test_samples_run_in_order_and_print_documented_output(tmp_path: Path) -> None:
    exports: list[str] = []
    commands = 0
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S):
        here = text.replace(PLACE, str(tmp_path))
        if language == "python":
            (tmp_path / "sample.py").write_text(here)
            shell("python sample.py", tmp_path)
            continue
        # One shell for each block: `$?` and variables live as they do at a prompt.
        script, wanted = list(exports), list[list[str]]()
        for line in here.splitlines():
            if line.startswith("$ "):
                script += [line[2:], "RESULT=$?; echo '--end--'; (exit $RESULT)"]
                wanted.append([])
                commands += 1
                if re.match(r"export |[A-Z]+=", line[2:]):
                    exports.append(line[2:])
            else:
                wanted[-1].append(line)
        printed = shell("\n".join([*script, "true"]), tmp_path).split("--end--\n")
        assert len(printed) == len(wanted) + 1
        for found, expected in zip(printed, wanted, strict=False):
            for line, like in zip_longest(found.splitlines(), expected):
                assert is_like(line, like), f"printed:\n{found}\nthe text has:\n{like}"
    assert commands > 10
    assert (tmp_path / "orders.svg").read_text().startswith("<?xml")
