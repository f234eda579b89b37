"""docs/how-to/restoring.md: its samples run in order and print the documented output, apart from uuids."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from offloader.cli.main import main

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "restoring.md").read_text(encoding="utf-8")
#: Where the text's samples are.
PLACE = "/srv/orders"


def told(text: str) -> list[list[str]]:
    """Lines as words, without uuids."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    return [line.split() for line in text.splitlines()]


@pytest.mark.slow
def test_steps_run_in_order_and_print_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count, printed, names = 0, "", dict[str, object]()
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S):
        here = text.replace(PLACE, str(tmp_path))
        if language == "python":
            exec(compile(here, "sample", "exec"), names)
            printed += capsys.readouterr().out
            continue
        for block in re.split(r"^\$ ", here, flags=re.M)[1:]:
            command, _, expected = block.partition("\n")
            words = shlex.split(command)
            if words[0] == "export":
                monkeypatch.setenv(*words[1].split("=", 1))
                continue
            capsys.readouterr()
            main(words[1:])
            found = capsys.readouterr()
            assert told(found.out + found.err) == told(expected), command
            count += 1
    assert count == 9
    assert printed == "SourceMismatch\n" * 2, "once without the database, once in the drill"


def test_every_option_that_the_text_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("accept-source", "accept-loss"):
        main([verb, "--help"])
        assert "--dry-run" in capsys.readouterr().out
