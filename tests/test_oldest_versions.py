"""The list of the oldest releases that pyproject.toml allows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.oldest_versions import NOT_FOR_TESTS, oldest

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]


def test_runtime_requirements_are_pinned_to_lower_bounds_and_test_ones_are_not() -> None:
    lines = list(oldest(PROJECT))
    needed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["spark"]]
    assert {f"{text.partition('>=')[0]}=={text.partition('>=')[2].partition(',')[0]}" for text in needed} <= set(lines)
    assert any(line.startswith("pytest>=") for line in lines)
    assert not [line for line in lines if line.startswith(("offloader", *NOT_FOR_TESTS))]


def test_a_requirement_without_a_lower_bound_is_named() -> None:
    extras = {"dev": ["pytest"], "serve": ["fastapi<1"]}
    with pytest.raises(ValueError, match="fastapi<1 has no lower bound"):
        list(oldest({"name": "p", "dependencies": ["a>=1,<2", "b~=1.0,>=1.2"], "optional-dependencies": extras}))
