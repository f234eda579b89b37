"""docs/how-to/offloading.md: its samples print the documented output in order; its table has every setting."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from docs.make_reference import type_of
from offloader.cli.main import main
from offloader.settings import Settings
from offloader.settings.fields import allowed
from offloader.settings.layered import PROCESS_SECTIONS, PROCESS_SETTINGS, key_of, shown

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "offloading.md").read_text(encoding="utf-8")
#: Where the text's samples are.
PLACE = "/srv/orders"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
WRITER = re.compile(r"is owned by \S+, which wrote its last record \d+ s ago")


def _fences() -> Iterator[tuple[str, str]]:
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S):
        yield found[1], found[2]


def _in_this_process(code: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "sample", "exec"), {})
    return out.getvalue()


def _session(text: str) -> Iterator[tuple[str, list[str]]]:
    """Commands and what each prints."""
    for line in text.splitlines():
        if line.startswith("$ "):
            command: tuple[str, list[str]] = (line[2:], [])
            yield command
        else:
            command[1].append(line)


@pytest.mark.slow
def test_samples_run_in_order_and_print_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    printed, code = "", 0
    for language, text in _fences():
        here = text.replace(PLACE, str(tmp_path))
        if language == "toml":
            (tmp_path / "offloader.toml").write_text(here)
        elif language == "python":
            printed = _in_this_process(here)
        elif language == "text":
            assert printed == here, "what the sample before printed"
        elif language == "console":
            sessions = list(_session(here))
            for command, expected in sessions:
                words = shlex.split(command)
                if words[0] == "export":
                    monkeypatch.setenv(*words[1].split("=", 1))
                    continue
                if command == "echo $?":
                    assert expected == [str(code)]
                    continue
                assert words[0] == "offloader"
                capsys.readouterr()
                code = main(words[1:])
                both = capsys.readouterr()
                printed_lines = _comparable([*both.out.splitlines(), *both.err.splitlines()])
                wanted = _comparable(expected)
                if wanted[-1:] and wanted[-1].endswith("..."):  # a line that is too long for a text
                    wanted[-1] = wanted[-1].removesuffix("...")
                    printed_lines = [line[: len(wanted[-1])] for line in printed_lines]
                assert printed_lines == wanted, command


def _comparable(lines: list[str]) -> list[str]:
    """What differs from run to run isn't compared."""
    return [WRITER.sub("is owned by somebody", UUID.sub("0" * 36, line)) for line in lines]


def _row(section: str, field: Field[Any]) -> str:
    name = f"{section}.{field.name}"
    value = shown(name, field.default)
    default = str(value).lower() if isinstance(value, bool) else str(value)
    default = "(empty)" if default in ("", "()") else default
    of_process = section in PROCESS_SECTIONS or name in PROCESS_SETTINGS
    cells = (
        f"`{key_of(name)}`", default, type_of(field.metadata, field.default), allowed(field.metadata),
        "process" if of_process else "stream", field.metadata["doc"],
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def test_tables_list_every_setting_with_its_default() -> None:
    """Each section's in one document of docs/, all of it in order; the process's own without type, values and place."""
    found: dict[str, list[str]] = {}
    generated = ROOT / "docs" / "reference" / "settings.md"
    for path in sorted(set((ROOT / "docs").rglob("*.md")) - {generated}):
        for line in path.read_text(encoding="utf-8").splitlines():
            if row := re.match(r"\| `(\w+)\.\w+` \| .*\|$", line):
                found.setdefault(row[1], []).append(line)
    for section in fields(Settings):
        wanted = [_row(section.name, each) for each in fields(getattr(Settings(), section.name))]
        cells = [row.split(" | ") for row in wanted]
        short = [" | ".join([row[0], row[1], row[-1]]) for row in cells]
        assert found[section.name] == wanted or found[section.name] == short, section.name


def test_every_option_that_the_text_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    helps = ""
    for verb in ("offload", "pause", "rollback apply", "config explain", "config check", "status"):
        main([*verb.split(), "--help"])
        helps += capsys.readouterr().out
    named = set(re.findall(r"(--[a-z][a-z-]+)", TEXT))
    assert {option for option in named if option not in helps} <= {"--debug"}
