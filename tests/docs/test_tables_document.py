"""docs/how-to/tables.md: its samples print what the page shows, its arguments are the functions'."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from offloader.iceberg import ExportedRange
from offloader.read.arrow import ArrowOptions, read_arrow
from tests.support.documents import run_samples

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "tables.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_samples_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_samples(TEXT, "/data", tmp_path, monkeypatch, capsys) == 5


def test_the_arguments_are_those_of_every_function() -> None:
    parameters: list[Any] = list(inspect.signature(read_arrow).parameters.values())
    keywords = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert keywords == set(ArrowOptions.__annotations__)
    (table,) = re.findall(r"^\| argument \| means \|\n(.*?)\n\n", TEXT, re.M | re.S)
    listed = set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines())))
    assert listed == keywords - {"clock"}


def test_the_properties_are_those_of_a_commit() -> None:
    facts = ExportedRange(
        stream="s",
        incarnation="i",
        manifest=1,
        first=Position(1, 0),
        last=Position(1, 9),
        after=None,
        entries=10,
        rows=10,
        lost=False,
    )
    (table,) = re.findall(r"^\| property \| value \|\n(.*?)\n\n", TEXT, re.M | re.S)
    assert set(re.findall(r"`(offloader\.[\w-]+)`", table)) == set(facts.encode())
