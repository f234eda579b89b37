"""Every setting that a document names exists."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from offloader.retention.state import Rule
from offloader.settings import Settings
from offloader.settings.layered import ALIASES, SETTINGS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECTIONS = "|".join(section.name for section in fields(Settings))
#: How names of settings that are amounts end.
UNITS = "ms|seconds|minutes|hours|days|bytes|mbytes"


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_setting_that_a_document_names_with_its_section_exists(path: Path) -> None:
    named = set(re.findall(rf"`((?:{SECTIONS})\.[a-z_]+)(?:`| = )", path.read_text(encoding="utf-8")))
    assert named <= set(SETTINGS) | ALIASES


@pytest.mark.parametrize(
    "name",
    [
        "explanation/retention.md",
        "how-to/subscribers.md",
        "how-to/deleting.md",
        "tutorials/sidecar.md",
        "how-to/offloading.md",
    ],
)
def test_an_amount_that_a_document_names_is_a_setting(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    amounts = set(re.findall(rf"`((?!offloader_)[a-z_]+_(?:{UNITS}))`", text))
    known = {each.partition(".")[2] for each in {*SETTINGS, *ALIASES}}
    assert amounts - known - {rule.name.lower() for rule in Rule} == set()
