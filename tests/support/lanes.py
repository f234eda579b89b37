"""Which worker gets which tests, and in what order, when several run at once (pytest-xdist, ``--dist loadscope``).

Owns two rules: all tests in the process's own Spark go to one worker, and what takes long begins first. Must never
decide whether a test runs, or what it sees.

Without the first rule each worker starts a Spark and warms it up; without the second the last minutes belong to one
worker, which has just begun with what takes longest: xdist sorts modules by how many tests they have.
"""

from __future__ import annotations

from collections import Counter

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

__all__ = ["LONGEST_FIRST", "SPARK_ALSO", "SPARK_APART", "Lanes", "in_order_of_length", "scope_of"]

SPARK = "Spark"
#: Modules elsewhere that take the fixture ``spark``.
SPARK_ALSO = ("tests/interop/test_real_broker.py", "tests/interop/test_pulsar_offload.py")
#: Modules beside them whose Sparks are processes of their own.
SPARK_APART = ("tests/spark/test_spark_cluster.py",)
#: What takes more than twenty seconds on two cores, the longest first. It may grow old: then a run takes longer.
LONGEST_FIRST = (
    SPARK,
    *SPARK_APART,
    "tests/demo/test_demo_flights.py",
    "tests/docs/test_spark_document.py",
    "tests/chaos/test_chaos_round.py",
    "tests/cleanup/test_killed_cleanup.py",
    "tests/interop/test_serve_beside_broker.py",
    "tests/docs/test_messages_document.py",
    "tests/docs/test_streaming_queries_document.py",
    "tests/browser/test_page.py",
    "tests/test_distribution.py",
    "tests/test_readme.py",
    "tests/interop/test_pulsar_gaps.py",
    "tests/replay/test_replayer.py",
    "tests/write/test_kill.py",
    "tests/demo/test_demo_run.py",
    "tests/demo/test_demo_cli.py",
    "tests/service/test_serve_command.py",
    "tests/test_end_to_end.py",
    "tests/manifest/test_manifest_processes.py",
    "tests/simulation/test_simulation.py",
    "tests/simulation/test_tended.py",
)


def scope_of(nodeid: str) -> str:
    """What goes to one worker together: a class, the rest of a module, or all that shares the process's Spark."""
    module = nodeid.partition("::")[0]
    if module in SPARK_ALSO or (module.startswith("tests/spark/") and module not in SPARK_APART):
        return SPARK
    return nodeid.partition("[")[0].rpartition("::")[0]


def in_order_of_length(items: list[pytest.Item]) -> None:
    """Sorts scopes in place: those of ``LONGEST_FIRST``, then those of many tests; whatever order there was is kept
    within a scope, and among scopes that nothing distinguishes."""
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    tests = Counter(scope_of(item.nodeid) for item in items)

    def key(item: pytest.Item) -> tuple[int, int]:
        scope = scope_of(item.nodeid)
        return place.get(scope.partition("::")[0], len(place)), -tests[scope]

    items.sort(key=key)


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out scopes in the order in which they were collected, one after another."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by how many tests they have

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
