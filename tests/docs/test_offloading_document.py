"""docs/OFFLOADING.md: its samples are run in order and print what it says; its table has every setting as it is."""

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

from offloader.cli.main import main
from offloader.settings import Settings
from offloader.settings.layered import PROCESS_SECTIONS, PROCESS_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "OFFLOADING.md").read_text(encoding="utf-8")
#: Where the text's samples are.
PLACE = "/srv/orders"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
WRITER = re.compile(r"is owned by \S+, which wrote its last record \d+ s ago")
#: Endings of names and what is counted.
UNITS = (
    ("_mbytes", "MiB"),
    ("_bytes", "bytes"),
    ("_minutes", "minutes"),
    ("_seconds", "seconds"),
    ("_hours", "hours"),
    ("_s", "seconds"),
)


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
def test_the_samples_run_in_order_and_print_what_the_text_says(
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


def _unit(name: str) -> str:
    plain = re.sub(r"_(max|min)$", "", name)
    return next((unit for ending, unit in UNITS if plain.endswith(ending)), "")


def _range(field: Field[Any]) -> str:
    found = field.metadata
    if "choices" in found:
        return ", ".join(found["choices"])
    if "flag" in found:
        return "true, false"
    if "pairs" in found:
        return "a table of texts"
    if "texts" in found or "places" in found:
        return "a list of texts"
    if "text" in found:
        return "a text"
    return f"{found['low']} to {found['high']}"


def _row(section: str, field: Field[Any]) -> str:
    default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    default = "(empty)" if default in ("", "()") else default
    of_process = section in PROCESS_SECTIONS or f"{section}.{field.name}" in PROCESS_SETTINGS
    cells = (
        f"`{section}.{field.name}`", default, _unit(field.name), _range(field),
        "process" if of_process else "stream", field.metadata["doc"],
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def test_every_setting_is_in_a_table_as_it_is() -> None:
    """Each section's in one document of docs/, all of it in order; the process's own without unit, values and place."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "docs").glob("*.md")):
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
    for verb in ("offload", "pause", "rollback", "config", "status"):
        main([verb, "--help"])
        helps += capsys.readouterr().out
    named = set(re.findall(r"(--[a-z][a-z-]+)", TEXT))
    assert {option for option in named if option not in helps} <= {"--debug"}
