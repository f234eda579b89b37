"""docs/how-to/deleting.md: its samples run in order and print the documented output, apart from names and times."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.settings import CleanupSettings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "deleting.md").read_text(encoding="utf-8")
#: Where the text's samples are.
PLACE = "/srv/deleting"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What the page says is there: two settings files."""
    (tmp_path / "settings.toml").write_text("[ledgers]\nledger_entries_max = 100\n")
    (tmp_path / "soon.toml").write_text("[cleanup]\ngrace_period = '0s'\n")
    return tmp_path


def sessions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Commands and what each prints."""
    for block in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *expected = block.splitlines()
        yield command, expected


def told(lines: list[str]) -> list[list[str]]:
    """Lines as words, without what is another one each time."""
    text = "\n".join(lines)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"\S+@\S+", "WHO", text)
    text = re.sub(r"\b\d+ s\b", "AGE", text)
    text = re.sub(r"\([\d.]+ \w+\) are needed", "(SIZE) are needed", text)
    return [line.split() for line in text.splitlines()]


@pytest.mark.slow
def test_samples_run_in_order_and_print_documented_output(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    count, names = 0, dict[str, object]()
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S):
        here = text.replace(PLACE, str(place))
        if language == "python":
            exec(compile(here, "sample", "exec"), names)
            continue
        assert language == "console"
        for command, expected in sessions(here):
            words = shlex.split(command)
            if words[0] == "export":
                monkeypatch.setenv(*words[1].split("=", 1))
                continue
            capsys.readouterr()
            main(words[1:])
            found = capsys.readouterr()
            assert told((found.out + found.err).splitlines()) == told(expected), command
            count += 1
    assert count == 19


def test_documented_defaults_are_the_programs() -> None:
    settings = CleanupSettings()
    assert "`cleanup.grace_period` (1 day)" in TEXT
    assert settings.grace_hours == 24
    assert f"`cleanup.audit_period`\n({settings.audit_days:.0f} days)" in TEXT


def test_every_option_that_the_text_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (
        ["read"],
        ["truncate"],
        ["delete-stream"],
        *(["cleanup", each] for each in ("run", "orphans", "undo", "hold", "audit")),
    ):
        main([*verb, "--help"])
    helps = capsys.readouterr().out
    named = set(re.findall(r"`[^`\n]*?(--[a-z-]+)", TEXT))
    assert named
    assert {option for option in named if option not in helps} == set()
