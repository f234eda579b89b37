"""CONTRIBUTING.md: its commands, files, limits and servers exist. The first pages name their actors."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from services.binaries import BINARIES, GO_VERSION_MIN
from tests.test_architecture import FUNCTION_LINES_MAX, MODULE_LINES_MAX

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
USAGE = (ROOT / "dev").read_text(encoding="utf-8").partition("usage() {")[2].partition("\n}\n")[0]
#: Pages for readers who don't know the project yet.
FIRST_PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/README.md",
    "docs/how-to/install.md",
    "docs/tutorials/demo.md",
    "docs/reference/command-line.md",
]
#: Words for an actor without a name, and the formula for what a module doesn't do.
FORBIDDEN = re.compile(r"\b(?:whoever|somebody|who\s+reads|must\s+never)\b", re.I)
#: Commands of the table of longer runs -> what parses their options.
LONGER_RUNS = {
    "soak --seeds 10000": ["tests.simulation.soak", "--seeds", "10000"],
    "soak --real --minutes 15": ["tests.soak", "--minutes", "15"],
    "chaos --seed 7 --kills 20": ["tests.chaos", "--seed", "7", "--kills", "20"],
    "fuzz objects --inputs 100000": ["tests.fuzz", "objects", "--inputs", "100000"],
    "bench offload --rounds 3": [str(ROOT / "benchmarks/bench_offload.py"), "--rounds", "3"],
}


def commands() -> list[str]:
    return re.findall(r"\./dev ([a-z][^`\n]*)", TEXT)


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_first_pages_name_their_actors(page: str) -> None:
    assert FORBIDDEN.findall((ROOT / page).read_text(encoding="utf-8")) == []


def test_forbidden_words_are_found_across_lines_and_in_capitals() -> None:
    text = "Whoever asks. It must\nnever. Who  reads it; somebody's."
    assert len(FORBIDDEN.findall(text)) == 4
    assert FORBIDDEN.findall("a reader who read it must not") == []


def test_dev_verbs_exist() -> None:
    known = set(re.findall(r"^  ([a-z]+)  ", USAGE, re.M))
    assert {command.split()[0] for command in commands() if command[0] != "V"} <= known


def test_files_and_folders_exist() -> None:
    named = re.findall(r"`((?:\.github|docs|formats|offloader|services|tests|benchmarks|\.ci)/[\w./-]*)`", TEXT)
    named += re.findall(r"^\.venv/bin/python -m pytest (.*)$", TEXT, re.M)[0].split()
    paths = [name for name in named if "NAME" not in name]
    assert len(paths) > 20
    assert [name for name in paths if not (ROOT / name).exists()] == []


def test_table_of_longer_runs_has_the_manual_verbs() -> None:
    table = TEXT.partition("## Longer runs")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `\./dev ([^`]*)`", table, re.M)) == {*LONGER_RUNS, "audit"}


@pytest.mark.parametrize("command", LONGER_RUNS)
def test_options_of_a_longer_run_are_parsed_by_its_program(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = LONGER_RUNS[command]
    # --help at the end: everything before it is parsed, nothing is run.
    monkeypatch.setattr(sys, "argv", [program, *words, "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in (program, f"{program}.__main__"):  # runpy warns of a module that another test has imported
        if not hasattr(sys.modules.get(name), "__path__"):
            monkeypatch.delitem(sys.modules, name, raising=False)
    run = runpy.run_path if program.endswith(".py") else runpy.run_module
    with pytest.raises(SystemExit) as ended:
        run(program, run_name="__main__")
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", printed.out))


def test_programs_and_limits_are_the_projects() -> None:
    assert f"Go {GO_VERSION_MIN[0]}.{GO_VERSION_MIN[1]}" in TEXT
    assert f"modules ({MODULE_LINES_MAX} lines) and functions ({FUNCTION_LINES_MAX})" in TEXT
    assert [name for name in BINARIES if name.casefold() not in TEXT.casefold()] == []
    assert set(re.findall(r"`(OFFLOADER_[A-Z_]+)`", TEXT)) <= set(
        re.findall(r"OFFLOADER_[A-Z_]+", (ROOT / "dev").read_text(encoding="utf-8"))
    ) | {"OFFLOADER_SEEDS_FIRST"}
