"""Limits on habitual phrases that make sentences hard to read, per 10,000 words: see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PHRASES = {
    "what-clause": r"\bwhat (?:is|isn't|its?|the|an?|was|were|are|aren't|has|had|comes|came|they|no|may|can|must|of)\b",
    "stay": r"\bstay(?:s|ed)?\b",
    "at once": r"\bat once\b",
    "of its own": r"\bof (?:its|their|our) own\b",
    "nobody, somebody, whoever": r"\b(?:nobody|somebody|whoever)\b",
    "as it is, goes on, anew": r"\b(?:as (?:it is|they are)|go(?:es)? on|anew)\b",
}
#: Occurrences per 10,000 words at most.
IN_DOCUMENTS = {
    "what-clause": 5.0,
    "stay": 3.0,
    "at once": 3.0,
    "of its own": 1.5,
    "nobody, somebody, whoever": 1.0,
    "as it is, goes on, anew": 1.0,
}
IN_PRODUCT = IN_DOCUMENTS | {"what-clause": 8.0}
#: Occurrences of "you" and "your" per 10,000 words of tutorials and how-tos at least.
YOU_MIN = 80.0


def page_text(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)


def module_text(path: Path) -> str:
    """The texts of a module: its string literals with a blank, docstrings included."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return "\n".join(text for text in texts if " " in text)


def rates(texts: Iterable[str], phrases: Iterable[str]) -> list[float]:
    """How often each phrase occurs in 10,000 words. A question may begin with "what"."""
    text = "\n".join(texts)
    words = len(re.findall(r"[A-Za-z']+", text))
    found = (len(re.findall(rf"{phrase}(?![^.!?\n]*\?)", text, re.I)) for phrase in phrases)
    return [10_000 * count / words for count in found]


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [
    path for name in ("formats", "offloader") for path in sorted((ROOT / name).rglob("*.py")) if "_pb2" not in path.name
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["documents", "product"])
def test_habitual_phrases_are_rare(kind: str) -> None:
    limits = IN_DOCUMENTS if kind == "documents" else IN_PRODUCT
    texts = map(page_text, DOCUMENTS) if kind == "documents" else map(module_text, MODULES)
    found = dict(zip(limits, rates(texts, PHRASES.values()), strict=True))
    assert {phrase: round(rate, 1) for phrase, rate in found.items() if rate > limits[phrase]} == {}


def test_guides_address_the_reader() -> None:
    guides = [path for name in ("how-to", "tutorials") for path in sorted((ROOT / "docs" / name).glob("*.md"))]
    [rate] = rates(map(page_text, guides), [r"\byour?\b"])
    assert rate >= YOU_MIN
