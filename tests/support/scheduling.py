"""The order of tests among the workers of pytest-xdist: modules as a whole, the longest first.

Durations are recorded in the cache folder at the end of each complete run. They change only the order: without them a
run takes longer. Modules below a folder ``spark`` share one worker, and with it one Spark session.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from services.binaries import cache_directory

__all__ = ["Durations", "ModuleScheduling", "scope_of"]

#: Below the folder of built servers.
FILE = "test-durations.json"


def scope_of(nodeid: str) -> str:
    """The name shared by all tests that run on one worker: a module's path, or its folder ``spark``."""
    module = nodeid.partition("::")[0]
    before, spark, _ = module.partition("/spark/")
    return f"{before}{spark}" if spark else module


class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out scopes in the order of the collection."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # xdist's own order is by number of tests

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


class Durations:
    """A plugin: sorts scopes by their recorded durations, and records the durations of this run in seconds."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        # The controller reads the file for all workers, which must agree on the order.
        given = getattr(config, "workerinput", None)
        self._known: dict[str, float] = _recorded() if given is None else given["durations"]
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["durations"] = self._known

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: -self._known.get(scope_of(item.nodeid), 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[scope_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        option = self._config.option
        is_partial = (
            option.keyword or option.markexpr or option.collectonly or any("::" in arg for arg in self._config.args)
        )
        if hasattr(self._config, "workerinput") or is_partial:
            return
        with contextlib.suppress(OSError):  # a cache that can't be written costs only time
            _record({**_recorded(), **{scope: round(seconds, 2) for scope, seconds in self._seconds.items()}})


def _recorded() -> dict[str, float]:
    try:
        found = json.loads((cache_directory() / FILE).read_text("utf-8"))
        return {str(scope): float(seconds) for scope, seconds in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _record(seconds: dict[str, float]) -> None:
    cache_directory().mkdir(parents=True, exist_ok=True)
    made = cache_directory() / f"{FILE}.{os.getpid()}"
    made.write_text(json.dumps(seconds, indent=0, sort_keys=True), "utf-8")
    made.replace(cache_directory() / FILE)
