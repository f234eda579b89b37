"""docs/explanation/benchmarks.md: each command it names is a benchmark that takes these options."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"\./dev bench (\w+)((?: -[^\n`]*)?)", TEXT)))


def test_the_document_names_the_benchmarks_of_the_write_side() -> None:
    assert {name for name, _ in COMMANDS} >= {"offload", "memory", "append", "streams", "store"}


@pytest.mark.process
@pytest.mark.parametrize(("name", "options"), COMMANDS, ids=[" ".join(command) for command in COMMANDS])
def test_a_command_of_the_document_is_one(name: str, options: str) -> None:
    # --help at the end: everything before it is parsed, nothing is run.
    done = subprocess.run(
        [sys.executable, f"benchmarks/bench_{name}.py", *options.split(), "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    known = set(re.findall(r"--[a-z-]+", done.stdout))
    assert {option for option in options.split() if option.startswith("--")} <= known
