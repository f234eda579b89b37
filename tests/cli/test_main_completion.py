"""A shell that asks for completions gets commands, actions and options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("offloader st", {"status", "stream"}),
        ("offloader stream tr", {"truncate"}),
        ("offloader stream truncate --ap", {"--apply"}),
        ("offloader ls --pre", {"--prefix"}),
    ],
)
def test_bash_completes(typed: str, found: set[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_OFFLOADER_COMPLETE": "complete_bash"}
    program = "import sys; from offloader.cli.main import main; sys.exit(main([]))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **words}
    )
    assert set(done.stdout.split()) == found
