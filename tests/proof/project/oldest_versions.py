"""The oldest releases that pyproject.toml allows, as a list for pip (``python -m``, see ./dev oldest)."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["oldest"]

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
#: Extras for development; ``docs`` has an environment of its own.
NOT_FOR_USERS = {"dev", "docs"}
#: Of the extra ``dev``: tools that no test runs.
NOT_FOR_TESTS = {"mypy", "ruff"}


def oldest(project: dict[str, object]) -> Iterator[str]:
    """A line for each requirement of a ``[project]`` table; extras within extras are those of the project itself.

    Raises:
        ValueError: a requirement of the package or of an extra for users has no lower bound.
    """
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    users = [
        *_texts(project["dependencies"]),
        *(text for name in extras if name not in NOT_FOR_USERS for text in extras[name]),
    ]
    for requirement in _foreign(users, project):
        lowest = [each.version for each in requirement.specifier if each.operator == ">="]
        if len(lowest) != 1:
            raise ValueError(f"{requirement} has no lower bound")
        extras_of_it = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        yield f"{requirement.name}{extras_of_it}=={lowest[0]}"
    for requirement in _foreign(extras["dev"], project):
        if requirement.name not in NOT_FOR_TESTS:
            yield str(requirement)


def _foreign(texts: Iterable[str], project: dict[str, object]) -> Iterator[Requirement]:
    return (each for each in map(Requirement, texts) if each.name != project["name"])


def _texts(value: object) -> list[str]:
    assert isinstance(value, list)
    return value


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in oldest(tomllib.loads(PYPROJECT.read_text())["project"]))
