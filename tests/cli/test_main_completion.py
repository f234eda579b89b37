"""A shell that asks for completions gets commands, actions and options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from offloader.cli.main import main


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


def test_script_for_zsh_completes_at_its_first_call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("zsh", "/bin/zsh"))
    with pytest.raises(SystemExit):
        main(["--show-completion"])
    script = capsys.readouterr().out
    assert script.index("compdef _offloader_completion offloader\n") < script.index('_offloader_completion "$@"')
