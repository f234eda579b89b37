"""Output and exit code of a failed command: one line, one hint, by kind; no traceback unless requested."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.test_errors import run
from tests.support.waiting import PATIENCE_S


@pytest.mark.process
def test_command_with_a_budget_sets_allocator_purge_delay_before_arrow_loads() -> None:
    program = """
import os, sys
from offloader.cli.main import main
from offloader.runtime.system import ALLOCATOR
assert "pyarrow" not in sys.modules
main([*sys.argv[1:], "--help"])
print({name: os.environ.get(name) for name in ALLOCATOR})
"""
    told = {"MIMALLOC_PURGE_DELAY": "7"}
    ours: tuple[tuple[str, dict[str, str], str | None], ...] = (
        ("offload", {}, "0"),
        ("offload", told, "7"),
        ("read", {}, None),
        ("spark", {}, None),
        ("verify", told, "7"),
    )
    for verb, given, seen in ours:
        env = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"} | given
        done = subprocess.run(
            [sys.executable, "-c", program, verb],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env=env,
        )
        assert done.stdout.splitlines()[-1] == str({"MIMALLOC_PURGE_DELAY": seen})


@pytest.mark.process
@pytest.mark.parametrize("place", [["--debug", "fail", "FencedError"], ["fail", "FencedError", "--debug"]])
def test_debug_adds_the_traceback_before_or_after_the_verb(place: list[str]) -> None:
    done = run(*place)
    assert done.returncode == 5
    assert done.stderr.startswith("Traceback (most recent call last)")
    assert "cli_verbs/fail.py" in done.stderr
    assert done.stderr.endswith("\noffloader: stream a/b: segment 7 is gone\n")


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sail"], "no such command 'sail'. Did you mean 'fail'?"),
        (["fail"], "missing argument 'NAME'"),
        (["fail", "NotFoundError", "--nope"], "no such option: --nope"),
        (
            ["fail", "NotFoundError", "--count", "0"],
            "invalid value for '--count': Input should be greater than or equal to 1",
        ),
        (["--nope", "fail"], "no such option: --nope"),
    ],
)
def test_usage_error_is_formatted_like_other_errors(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    line, hint = done.stderr.splitlines()
    assert line == f"offloader: {message}"
    assert hint.startswith("hint: see `offloader")
    assert hint.endswith(" --help`")


@pytest.mark.process
def test_a_missing_extra_is_named_with_what_to_install() -> None:
    done = run("fail", "ModuleNotFoundError", "--text", "pyspark.sql")
    assert done.returncode == 2
    hint = "in a checkout of offloader: pip install -c constraints.txt '.[spark]'"
    assert done.stderr == f"offloader: the package pyspark is not installed\nhint: {hint}\n"
    assert run("fail", "ModuleNotFoundError", "--text", "offloader.nowhere").returncode == 1
