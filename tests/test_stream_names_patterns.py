"""Patterns of names: ``*`` and ``?`` are special, and no other character."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from offloader.manifest.names import matching_streams
from offloader.runtime.clock import SystemClock
from offloader.spark.options import SourceOptions
from offloader.spark.scan import streams_named
from offloader.store.memory import MemoryStore
from offloader.stream_names import is_pattern, literal_prefix, matches
from tests.support.streams import StreamWriter, batch_of

PRODUCT = Path(__file__).parent.parent / "offloader"


@pytest.mark.parametrize(
    ("pattern", "meant", "not_meant"),
    [
        ("orders[1]", ["orders[1]"], ["orders1", "orders[1]x"]),
        ("[!a]*", ["[!a]", "[!a]b"], ["b", "a"]),
        ("a?c*", ["abc", "a/cde", "a\nc"], ["ac", "Abc", "xabc"]),
        ("a.c(d)+^$|\\", ["a.c(d)+^$|\\"], ["abc(d)+^$|\\"]),
        ("***", ["", "anything"], []),
    ],
)
def test_only_star_and_question_mark_are_special(pattern: str, meant: list[str], not_meant: list[str]) -> None:
    assert [each for each in meant if not matches(each, pattern)] == []
    assert [each for each in not_meant if matches(each, pattern)] == []


def test_names_with_brackets_are_no_patterns() -> None:
    assert [each for each in ("a[1]", "a]", "a*", "a?", "a") if is_pattern(each)] == ["a*", "a?"]
    assert [literal_prefix(each) for each in ("t/n[1]/*", "a?b*", "plain")] == ["t/n[1]/", "a", "plain"]


def test_commands_and_spark_select_names_with_brackets() -> None:
    store = MemoryStore("brackets", "", SystemClock())
    names = [f"t/n/persistent/{each}" for each in ("orders1", "orders[1]", "orders[1]x", "other")]
    for name in names:
        StreamWriter(store, name).add([batch_of(1, 0, 1)])
    for wanted, found in (("orders[1]", names[1:2]), ("orders[1]*", names[1:3]), ("orders?1]", names[1:2])):
        pattern = f"t/n/persistent/{wanted}"
        assert streams_named(SourceOptions.of({"store": "file:///x", "stream": pattern}), store) == found
        assert matching_streams(pattern, names) == found


@pytest.mark.slow
def test_one_function_matches_patterns() -> None:
    """``fnmatch`` has classes of characters, which no page names and names of topics may look like."""
    for path in PRODUCT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [node.module] if isinstance(node, ast.ImportFrom) else []
            imported += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            assert "fnmatch" not in imported, path
