"""The tests that docs/explanation/pip-76.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


def test_each_sentence_names_a_test_that_exists() -> None:
    rows = [
        line
        for line in (ROOT / "docs/explanation/pip-76.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith(("| ---", "| PIP-76 asks"))
    ]
    assert len(rows) > 25
    for row in rows:
        named = _TEST.findall(row)
        assert named, f"no test in: {row}"
        for path, name in named:
            text = (ROOT / path).read_text()
            assert f"def {name or 'test_'}" in text, f"{path} has no {name}"
