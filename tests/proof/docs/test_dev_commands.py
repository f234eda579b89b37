"""Commands of ``./dev`` in pages that run long: each option is one of the program's."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from tests.docs.test_links import CURRENT
from tests.docs.worlds import ROOT

pytestmark = pytest.mark.process

#: How such a command begins -> the program that takes its other words, as ``dev`` has it.
PROGRAMS = {
    "chaos --partition": "tests.proof.chaos.partition_run",
    "chaos --database": "tests.proof.chaos.database_run",
    "chaos --plugin": "tests.proof.chaos.plugin_run",
    "chaos": "tests.proof.chaos",
    "fuzz": "tests.proof.fuzz",
    "soak --real": "tests.proof.soak",
    "soak": "tests.proof.simulation.soak",
}
#: Runs programs one after the other in one process, since importing what they need takes over a second each.
RUNNER = """
import contextlib, io, json, runpy, sys

sys.path[:0] = ["", "benchmarks"]
answers = []
for sys.argv in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            run = runpy.run_path if sys.argv[0].endswith(".py") else runpy.run_module
            run(sys.argv[0], run_name="__main__")
            code = "it ended without --help"
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            code = repr(error)
    answers.append([code, said.getvalue()])
json.dump(answers, sys.stdout)
"""


def calls() -> list[list[str]]:
    """Programs with the documented options, and ``--help``: what is before it is parsed, nothing is run."""
    text = "".join(path.read_text(encoding="utf-8") for path in CURRENT)
    found = []
    for command in sorted(set(re.findall(r"\./dev ((?:bench|chaos|fuzz|soak) ?[^`\n#|]*)", text))):
        words = shlex.split(command)
        if words[0] == "bench":
            names = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)][:1]
            found += [[f"benchmarks/bench_{name}.py", *words[2:], "--help"] for name in names]
        else:
            begins = next(each for each in PROGRAMS if words[: len(each.split())] == each.split())
            found.append([PROGRAMS[begins], *words[len(begins.split()) :], "--help"])
    return found


def test_options_of_long_runs_are_those_of_their_programs() -> None:
    given = calls()
    assert {call[0] for call in given} >= {*PROGRAMS.values(), "benchmarks/bench_offload.py"}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(given),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [(call, answer) for call, answer in zip(given, answers, strict=True) if answer[0] != 0] == []
    for call, (_, said) in zip(given, answers, strict=True):
        assert {word for word in call if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", said)), call
