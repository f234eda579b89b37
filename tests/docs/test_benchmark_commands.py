"""docs/explanation/benchmarks.md: each command it names is a benchmark that takes these options."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"\./dev bench (\w+)((?: -[^\n`]*)?)", TEXT)))
#: Runs programs one after the other in one process, since importing what they need takes over a second each.
PROGRAM = """
import contextlib, io, json, runpy, sys

sys.path.insert(0, "benchmarks")
answers = []
for sys.argv in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = "it ended without --help"
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            code = repr(error)
    answers.append([code, said.getvalue()])
json.dump(answers, sys.stdout)
"""


def test_the_document_names_the_benchmarks_of_the_write_side() -> None:
    assert {name for name, _ in COMMANDS} >= {"offload", "memory", "append", "streams", "store"}


@pytest.mark.process
def test_a_command_of_the_document_is_one() -> None:
    # --help at the end: everything before it is parsed, nothing is run.
    calls = [[f"benchmarks/bench_{name}.py", *options.split(), "--help"] for name, options in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(calls),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [call for call, (code, _) in zip(calls, answers, strict=True) if code != 0] == [], answers
    for call, (_, said) in zip(calls, answers, strict=True):
        known = set(re.findall(r"--[a-z-]+", said))
        assert {word for word in call if word.startswith("--")} <= known, call
