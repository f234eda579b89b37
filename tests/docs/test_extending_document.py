"""docs/how-to/extending.md: its store and source pass their suites and are offloaded as documented."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's files."""
    for name, code in re.findall(r"^```python file=(\w+\.py)\n(.*?)^```$", TEXT, re.M | re.S):
        (tmp_path / name).write_text(code, encoding="utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.process
def test_the_store_and_the_source_pass_their_suites(folder: Path) -> None:
    assert "$ python -m pytest -q" in TEXT
    out = run(folder, "-m", "pytest", "-q", "-W", "error", "-p", "no:randomly", "-p", "no:cacheprovider")
    passed = re.search(r"^(\d+) passed(?:, (\d+) skipped)? in", out, re.M)
    assert passed is not None, out
    assert int(passed[1]) > 60


@pytest.mark.process
def test_source_is_offloaded_and_read_back_as_documented(folder: Path) -> None:
    (promised,) = re.findall(r"^```text\n(.*?)^```$", TEXT, re.M | re.S)
    assert run(folder, "-W", "error", "use.py") == promised


def test_modules_named_by_the_page_exist() -> None:
    for name in re.findall(r"`(offloader/[\w/]+\.py)`", TEXT):
        assert (ROOT / name).exists(), name
