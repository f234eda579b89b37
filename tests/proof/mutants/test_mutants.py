"""The list of mutants: each line exists in the product, and each mutated module parses."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.proof.mutants.mutants import AREAS, Mutant, NotFoundError, load, mutated, place_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_every_mutant_has_its_line_in_the_product() -> None:
    """Where a function was renamed or a line changed, ``mutants.jsonl`` follows, or another mutant takes its number."""
    mutants = load()
    assert len(set(mutants)) == len(mutants) == 100
    assert Counter(mutant.area for mutant in mutants) == dict.fromkeys(AREAS, 20)
    for mutant in mutants:
        place = place_of(mutant, ROOT)
        text = mutated(mutant, place, ROOT)
        ast.parse(text)
        assert text != (ROOT / place.path).read_text(encoding="utf-8")


def test_missing_or_repeated_mutant_line_is_reported(tmp_path: Path) -> None:
    for package in ("formats", "offloader"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text("class A:\n    def one(self):\n        return 1\n", encoding="utf-8")
    twice = Mutant("read", "formats/moved.py", "A.one", "return 1", "return 2")
    with pytest.raises(NotFoundError, match=r"^2 places: .*A\.one"):
        place_of(twice, tmp_path)
    here = Mutant("read", "formats/a.py", "A.one", "return 1", "return 2")
    assert mutated(here, place_of(here, tmp_path), tmp_path) == "class A:\n    def one(self):\n        return 2\n"
    with pytest.raises(NotFoundError, match=r"^0 places"):
        place_of(Mutant("read", "formats/a.py", "A.two", "return 1", "return 2"), tmp_path)
