"""Output and exit code of a failed command: one line, one hint, by kind; no traceback unless requested."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import offloader.errors
from formats.errors import FormatError
from offloader.cli.errors import failure_of, report
from offloader.cli.main import main
from offloader.errors import ErrorKind, OffloaderError
from tests.support.ctrl_c import heed_ctrl_c
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
VERBS = ("fail", "flood", "wait")
PROGRAM = f"""
import sys
from offloader.cli.main import main
from offloader.cli.tree import Command
tree = {{"Verbs": {{name: Command(f"{{name}}.", f"{{name}}:run") for name in {VERBS!r}}}}}
sys.exit(main(tree=tree, package='cli_verbs'))
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, env=environment(), timeout=PATIENCE_S
    )


def kinds_of_errors() -> list[type[OffloaderError]]:
    found = [getattr(offloader.errors, name) for name in offloader.errors.__all__]
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, OffloaderError)]


@pytest.mark.parametrize("kind", kinds_of_errors(), ids=lambda kind: kind.__name__)
def test_error_is_one_line_and_a_hint_with_exit_code_of_its_kind(kind: type[OffloaderError]) -> None:
    stream = io.StringIO()
    code = report(kind("stream a/b:\n  not there", hint="look\nelsewhere"), stream)
    assert code == kind.kind.value
    assert stream.getvalue() == "offloader: stream a/b: not there\nhint: look elsewhere\n"


def test_an_error_without_hint_prints_none() -> None:
    stream = io.StringIO()
    report(offloader.errors.NotFoundError("no stream a/b"), stream)
    assert stream.getvalue() == "offloader: no stream a/b\n"


@pytest.mark.parametrize("kind", [FormatError, *FormatError.__subclasses__()])
def test_damaged_bytes_have_the_exit_code_for_repair(kind: type[FormatError]) -> None:
    error = kind("bad header", object_name="a/b", offset=128, expected=1, found=2)
    failure = failure_of(error)
    assert failure.exit_code == ErrorKind.DATA_CORRUPTION.value == 6
    assert failure.message == "bad header in a/b at byte 128: expected 1, found 2"


def test_exit_codes_are_distinct_and_stay_clear_of_the_shells() -> None:
    codes = [kind.value for kind in ErrorKind]
    assert len(set(codes)) == len(codes)
    assert all(1 <= code < 64 for code in codes)


@pytest.mark.process
def test_a_failing_verb_prints_two_lines_and_nothing_on_standard_output() -> None:
    done = run("fail", "ObjectMissingError", "--hint", "offloader verify a/b")
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr == "offloader: stream a/b: segment 7 is gone\nhint: offloader verify a/b\n"


@pytest.mark.process
def test_after_two_dashes_debug_is_an_argument_like_any_other() -> None:
    assert "'--debug'" in run("fail", "--", "--debug").stderr


@pytest.mark.process
def test_with_json_an_error_is_one_object_on_standard_error() -> None:
    done = run("fail", "NotFoundError", "--hint", "offloader ls", "--json")
    assert (done.returncode, done.stdout) == (3, "")
    assert json.loads(done.stderr) == {
        "error": {
            "kind": "not_found",
            "error": "NotFoundError",
            "message": "stream a/b: segment 7 is gone",
            "hint": "offloader ls",
            "exit_code": 3,
        }
    }


@pytest.mark.process
def test_the_unexpected_is_called_a_bug_without_traceback() -> None:
    done = run("fail", "KeyError", "--text", "x")
    assert done.returncode == 1
    assert done.stderr == (
        "offloader: this is a bug: KeyError: 'x'\nhint: run the same command with --debug and report what it prints\n"
    )


@pytest.mark.process
def test_command_lowers_thread_switch_interval_and_import_does_not() -> None:
    program = """
import sys
before = sys.getswitchinterval()
import offloader.managed_ledger
from offloader.cli.main import main
from offloader.runtime.system import THREAD_SWITCH_S
assert sys.getswitchinterval() == before
code = main(["--version"])
assert abs(sys.getswitchinterval() - THREAD_SWITCH_S) < 1e-6 < before
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_ctrl_c_is_one_line_and_130() -> None:
    process = subprocess.Popen(
        command("wait"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=heed_ctrl_c,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stderr) == (130, "offloader: interrupted\n")


@pytest.mark.process
def test_closed_output_pipe_is_no_printed_error() -> None:
    process = subprocess.Popen(
        command("flood"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=PATIENCE_S) == 141


@pytest.mark.process
@pytest.mark.parametrize("verb", ["flood", "wait --code 0", "--version"], ids=["much", "little", "without a verb"])
def test_output_that_finds_no_space_says_so_and_is_no_bug(verb: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*verb.split()),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment(),
            timeout=PATIENCE_S,
        )
    assert (done.returncode, done.stderr.splitlines()) == (
        4,
        [
            "offloader: the output can't be written: No space left on device",
            "hint: free disk space, or write to another place",
        ],
    )


@pytest.mark.process
def test_a_verb_can_answer_an_exit_code() -> None:
    assert run("wait", "--code", "9").returncode == 9


@pytest.mark.process
@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_verbs_with_one_line_each(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    for verb in VERBS:
        assert f"{verb:5}  {verb}." in done.stdout


@pytest.mark.process
def test_help_of_a_verb_is_its_docstring() -> None:
    assert "Raise an error." in run("fail", "--help").stdout


@pytest.mark.parametrize("columns", [60, 100, 160])
def test_help_is_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["read", "--help"]) == 0
    widest = max(map(len, capsys.readouterr().out.splitlines()))
    assert columns - 15 < widest <= columns


def test_help_names_every_kind_of_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for scheme in ("file://", "s3://", "gs://", "az://", "catalogue://"):
        assert scheme in text
