"""The order of tests among workers: existing names, one worker for Spark, unchanged order within a module."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.lanes import LONGEST_FIRST, SPARK_ALSO, SPARK_APART, in_order_of_length, scope_of

ROOT = Path(__file__).resolve().parents[1]


def test_named_modules_exist() -> None:
    named = {*LONGEST_FIRST, *SPARK_ALSO, *SPARK_APART} - {"Spark"}
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


@pytest.mark.slow
def test_tests_with_the_spark_fixture_share_one_worker() -> None:
    def takes_spark(path: Path) -> bool:
        functions = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)]
        return any(
            "spark" in {argument.arg for argument in each.args.args}
            and (each.name.startswith("test_") or any("fixture" in ast.unparse(mark) for mark in each.decorator_list))
            for each in functions
        )

    takers = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py") if takes_spark(path)]
    assert len(takers) > 5
    assert [name for name in takers if scope_of(f"{name}::test_it") != "Spark"] == []


def test_classes_are_scheduled_apart_and_modules_as_a_whole() -> None:
    assert scope_of("tests/store/test_local.py::test_it[a::b]") == "tests/store/test_local.py"
    assert scope_of("tests/store/test_local.py::TestIt::test_it[::]") == "tests/store/test_local.py::TestIt"


def test_longest_modules_are_moved_to_the_front_only() -> None:
    ids = ["a.py::x", "b.py::y", "b.py::x", f"{LONGEST_FIRST[2]}::z", "tests/spark/q.py::b", "tests/spark/r.py::a", "c.py::z"]  # fmt: skip  # noqa: E501
    items: list[Any] = [SimpleNamespace(nodeid=each) for each in ids]
    in_order_of_length(items)
    assert [each.nodeid for each in items] == [ids[n] for n in (4, 5, 3, 1, 2, 0, 6)]
