"""docs/explanation/fault-testing.md: its tables name all roles and faults, and its commands and files exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos.chaos_schedule import FAULTS, ROLES

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "explanation" / "fault-testing.md").read_text(encoding="utf-8")
CHAOS = TEXT.partition("## Kills and faults")[2].partition("\n## ")[0]


def first_column(header: str) -> set[str]:
    """The words of the first column of the table that begins with ``header``."""
    rows = CHAOS.partition(f"| {header} |")[2].split("\n\n")[0].splitlines()[2:]
    return {word.strip() for row in rows for word in row.split("|")[1].split(",")}


def test_tables_name_all_roles_and_faults() -> None:
    assert first_column("process") == set(ROLES)
    assert first_column("fault") == set(FAULTS)


def test_commands_and_files_exist() -> None:
    usage = (ROOT / "dev").read_text(encoding="utf-8").partition("usage() {")[2].partition("\n}\n")[0]
    verbs = set(re.findall(r"^  ([a-z]+)  ", usage, re.M))
    assert set(re.findall(r"\./dev ([a-z]+)", TEXT)) <= verbs
    for name in re.findall(r"`((?:tests|docs|services)/[^`]+)`", TEXT):
        assert (ROOT / name).exists(), name
