"""``offloader demo`` as a command: its output and its errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo.demo_cases import write_events

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


def demo(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "OFFLOADER_"))}
    return subprocess.run(
        [sys.executable, "-m", "offloader.cli.main", "demo", "--no-spark", "--no-picture", *map(str, arguments)],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def failed(done: subprocess.CompletedProcess[str], code: int, pattern: str) -> None:
    """One line and a hint on standard error, no traceback."""
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2, done.stderr
    assert re.match(f"offloader: .*{pattern}", lines[0]), lines[0]
    assert lines[1].startswith("hint: ")


@pytest.fixture
def input_file(tmp_path: Path) -> Path:
    return write_events(tmp_path / "my events.ndjson", 20_000)


def test_json_is_one_object_only(tmp_path: Path, input_file: Path) -> None:
    done = demo("--input", input_file, "--json", "--time-field", "t", "--picture", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    result = json.loads(line)
    assert result["verification"]["ok"]
    assert result["events_appended"] == result["input"]["events"] == 20_000
    assert result["spark"] is None
    assert Path(tmp_path, result["picture"]).exists()
