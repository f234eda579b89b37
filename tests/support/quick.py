"""The quick part of the tests (``pytest --quick``): tests that start no process, and the guard that holds them to it.

What a test needs follows from its fixtures (``@needs`` on a fixture) and its own marker:

* ``process``: it starts a server, a browser, a JVM or any other process;
* ``java``: one of those processes runs on Java; implies ``process``;
* ``slow``: with all its parameters it takes more than about a tenth of a second of one core, waits for half a second,
  or sweeps over seeds.

A test with none of them is quick. ``Guard`` fails a quick test that starts a process all the same, so that a missing
marker shows in the next quick run. Sockets within the process are allowed.
"""

from __future__ import annotations

import multiprocessing.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

__all__ = ["EXAMPLES_MAX", "Guard", "fewer_examples", "is_quick", "is_wholly_excluded", "mark_needs", "needs"]

#: Audit events of the interpreter that come before a new process.
STARTS = frozenset({"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})
#: Examples of one property in the gate.
EXAMPLES_MAX = 25
#: Runs of one state machine, which are of dozens of steps each.
MACHINE_RUNS_MAX = 5
EXCLUDING = ("process", "java", "slow")
_OF_MODULE = re.compile(rf"^pytestmark = .*\bpytest\.mark\.({'|'.join(EXCLUDING)})\b", re.MULTILINE)
_Fixture = TypeVar("_Fixture", bound=Callable[..., Any])


def needs(what: str) -> Callable[[_Fixture], _Fixture]:
    """Marks a fixture function, below ``@pytest.fixture``: each test that takes it gets the marker ``what``."""
    assert what in EXCLUDING

    def mark(function: _Fixture) -> _Fixture:
        function.needs = what  # type: ignore[attr-defined]
        return function

    return mark


def mark_needs(items: list[pytest.Item]) -> None:
    """Adds to each test the markers of the fixtures that it takes, directly or through others."""
    for item in items:
        found = getattr(item, "_fixtureinfo", None)
        for definitions in found.name2fixturedefs.values() if found else ():
            what = getattr(definitions[-1].func, "needs", None)
            if what is not None and item.get_closest_marker(what) is None:
                item.add_marker(what)


def is_quick(item: pytest.Item) -> bool:
    return all(item.get_closest_marker(name) is None for name in EXCLUDING)


def is_wholly_excluded(module: Path) -> bool:
    """Whether the module's own ``pytestmark`` excludes all of its tests, so that it need not be imported."""
    return _OF_MODULE.search(module.read_text(encoding="utf-8")) is not None


def fewer_examples(item: pytest.Item) -> None:
    """Limits the examples of a property to ``EXAMPLES_MAX``, and draws the same ones in each run."""
    if not isinstance(item, pytest.Function):
        return
    machine = getattr(item.cls, "settings", None)
    if isinstance(machine, hypothesis.settings):
        item.cls.settings = _limited(machine, MACHINE_RUNS_MAX)
    function: Any = getattr(item.obj, "__func__", item.obj)
    if getattr(function, "is_hypothesis_test", False):
        name = "_hypothesis_internal_use_settings"
        setattr(function, name, _limited(getattr(function, name, None) or hypothesis.settings()))


def _limited(settings: hypothesis.settings, examples_max: int = EXAMPLES_MAX) -> hypothesis.settings:
    examples = min(settings.max_examples, examples_max)
    return hypothesis.settings(settings, max_examples=examples, derandomize=True, database=None)


class Guard:
    """A pytest plugin: a test that starts a process fails with the test's name and the program's."""

    def __init__(self) -> None:
        self._running: str | None = None
        self._started: list[str] = []
        sys.addaudithook(self._audit)
        spawn = multiprocessing.util.spawnv_passfds

        def spawned(path: Any, *arguments: Any) -> Any:  # reports no event before Python 3.13
            self._audit("subprocess.Popen", (path,))
            return spawn(path, *arguments)

        multiprocessing.util.spawnv_passfds = spawned  # type: ignore[assignment]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._running = item.nodeid
        try:
            return (yield)
        finally:
            self._running = None
            self._started.clear()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Any:
        """Fails a test whose attempt went unseen: in another thread, or swallowed by what it tests."""
        done = yield
        if self._started:
            pytest.fail("; ".join(self._started), pytrace=False)
        return done

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._running is not None and event in STARTS:
            program = arguments[0] if arguments else "a fork"
            why = f"{self._running} starts {program} and has neither marker: process, java (tests/support/quick.py)"
            self._started.append(why)
            pytest.fail(why)
