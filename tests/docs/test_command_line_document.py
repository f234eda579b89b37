"""docs/reference/command-line.md: it lists every verb, and its exit codes are the program's."""

from __future__ import annotations

import re
from pathlib import Path

from offloader.cli.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from offloader.cli.main import VERBS
from offloader.errors import ErrorKind

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_verb_has_one_place_in_the_table() -> None:
    first_cells = re.findall(r"^\| (`[^|]*?) \|", section("Verbs"), re.M)
    assert sorted(re.findall(r"`([a-z-]+)`", " ".join(first_cells))) == sorted(VERBS)


def test_exit_codes_are_the_programs() -> None:
    rows = re.findall(r"^\| (\d+) \| ?([a-z_]*) ?\|", section("Errors and exit codes"), re.M)
    named = {int(code): kind for code, kind in rows}
    expected = {0: "", **{kind.value: kind.name.lower() for kind in ErrorKind}}
    assert len(named) == len(rows)
    assert named == {**expected, EXIT_INTERRUPTED: "interrupted", EXIT_BROKEN_PIPE: ""}
