"""docs/decisions: pages are numbered without gaps and have context, decision and consequences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


def test_decision_numbers_are_consecutive() -> None:
    assert [path.name[:5] for path in PAGES] == [f"{number:04d}-" for number in range(1, len(PAGES) + 1)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_has_its_number_and_three_sections(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {int(path.name[:4])}. ")
    assert re.findall(r"^## (.*)$", text, re.M) == ["Context", "Decision", "Consequences"]
    assert "" not in [part.strip() for part in re.split(r"^## .*$", text, flags=re.M)]
