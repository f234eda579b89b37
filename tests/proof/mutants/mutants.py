"""A fixed list of small faults in the product, each anchored by the function and the text of its line.

The list is ``mutants.jsonl``. A function is found by its qualified name in any module of the product, so that an entry
survives the move of a module; where several functions of that name have the line, ``module`` decides.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["AREAS", "FOLDERS", "LIST", "Mutant", "NotFoundError", "Place", "load", "mutated", "place_of"]

LIST = Path(__file__).with_name("mutants.jsonl")
#: Packages of the product.
PACKAGES = ("formats", "offloader")
#: Area of the product -> the folders of its tests.
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "formats": ("tests/formats", "tests/read"),
    "manifest": ("tests/manifest", "tests/gc"),
    "write": ("tests/write", "tests/ledgers"),
    "retention": ("tests/retention",),
    "read": ("tests/read", "tests/cli"),
}
AREAS = tuple(FOLDERS)


class NotFoundError(LookupError):
    """No function of the product has the mutant's line, or more than one."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line of one function, and what stands there instead."""

    area: str
    module: str
    function: str
    line: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.module}: {self.function}: {self.line} -> {self.replacement}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a mutant's line is now: a file below the root and the number of the line."""

    path: Path
    number: int


def load() -> list[Mutant]:
    return [Mutant(**json.loads(line)) for line in LIST.read_text(encoding="utf-8").splitlines()]


def place_of(mutant: Mutant, root: Path) -> Place:
    """Raises ``NotFoundError`` where the line has changed, so that the list has to follow."""
    found = [
        Place(path, number)
        for path, start, stop in _functions(root).get(mutant.function, ())
        for number, text in enumerate(_lines(root / path)[start - 1 : stop], start)
        if text.strip() == mutant.line
    ]
    chosen = found if len(found) == 1 else [place for place in found if place.path.as_posix() == mutant.module]
    if len(chosen) != 1:
        raise NotFoundError(f"{len(found)} places: {mutant}")
    return chosen[0]


def mutated(mutant: Mutant, place: Place, root: Path) -> str:
    """The text of the mutant's module with its line replaced."""
    lines = list(_lines(root / place.path))
    text = lines[place.number - 1]
    lines[place.number - 1] = text.replace(mutant.line, mutant.replacement)
    return "\n".join(lines)


@cache
def _lines(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8").split("\n"))


@cache
def _functions(root: Path) -> dict[str, list[tuple[Path, int, int]]]:
    """Qualified name -> file, first and last line of each function of that name in the product."""
    found: dict[str, list[tuple[Path, int, int]]] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            tree = ast.parse("\n".join(_lines(path)))
            for name, node in _walk(tree, ""):
                found.setdefault(name, []).append((path.relative_to(root), node.lineno, node.end_lineno or node.lineno))
    return found


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from _walk(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler):  # not expressions: no function is in one
            yield from _walk(child, prefix)
