"""A bounded run of the fuzz target, in a process of its own with little memory."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

TARGET = Path(__file__).with_name("fuzz_formats.py")


@pytest.mark.parametrize("seed", [1, 2**31 + secrets.randbelow(2**31)], ids=["fixed seed", "fresh seed"])
def test_garbage_decodes_or_raises_format_errors_within_the_limits(seed: int) -> None:
    """The seed of a failure is in the output, with the bytes."""
    command = [sys.executable, str(TARGET), "--runs", "2500", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    accepted = re.search(r"(\d+) times accepted", done.stdout)
    assert accepted is not None
    assert int(accepted[1]) > 2500, f"mutations destroy everything: {done.stdout}"
