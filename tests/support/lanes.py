"""Which worker gets which tests, and in what order, when several run at once (pytest-xdist, ``--dist loadscope``).

It doesn't decide whether a test runs, or what it sees.

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
SPARK_ALSO = (
    "tests/docs/test_messages_document.py",
    "tests/docs/test_streaming_queries_document.py",
    "tests/interop/test_real_broker.py",
    "tests/interop/test_pulsar_offload.py",
)
#: Modules beside them whose Sparks are processes of their own.
SPARK_APART = ("tests/spark/test_spark_cluster.py",)
#: What takes more than half a minute on two busy cores, or more than eight seconds in few tests, the longest first. It
#: may grow old: then a run takes longer.
LONGEST_FIRST = (
    SPARK,
    *SPARK_APART,
    "tests/upgrade/test_rolling_upgrade.py",
    "tests/demo/test_demo_flights.py",
    "tests/plugin/test_plugin_java.py",
    "tests/plugin/test_plugin_policies.py",
    "tests/plugin/test_plugin_chaos.py",
    "tests/plugin/test_plugin_migration.py",
    "tests/docs/test_spark_document.py",
    "tests/browser/test_page.py",
    "tests/plugin/test_plugin_faults.py",
    "tests/plugin/test_plugin_topics.py",
    "tests/docs/test_consumers_document.py",
    "tests/test_distribution.py",
    "tests/interop/test_broker_outage.py",
    "tests/chaos/test_chaos_round.py",
    "tests/browser/test_page_broker.py",
    "tests/chaos/test_readiness.py",
    "tests/cli/test_follow_owner.py",
    "tests/service/test_serve_command.py",
    "tests/plugin/test_broker_reads_cold.py",
    "tests/service/test_broker_outage_lines.py",
    "tests/interop/test_pulsar_gaps.py",
    "tests/plugin/test_plugin_two_brokers.py",
    "tests/browser/test_page_outage.py",
    "tests/interop/test_pulsar_made_anew.py",
    "tests/test_readme.py",
    "tests/simulation/test_simulation.py",
    "tests/write/test_stream_model.py",
    "tests/cli/test_verify_every_byte.py",
    "tests/test_retention_end_to_end.py",
    "tests/simulation/test_tended.py",
    "tests/test_upkeep.py",
    "tests/chaos/test_database_run.py",
    "tests/fuzz/test_fuzz.py",
    "tests/docs/test_first_day_document.py",
    "tests/contracts/test_contracts.py",
    "tests/interop/test_compose_broker.py",
    "tests/interop/test_serve_beside_broker.py",
    "tests/ledgers/test_ledgers_model.py",
    "tests/chaos/test_partitions.py",
    "tests/write/test_pulsar_simulation.py",
    "tests/docs/test_inspecting_document.py",
    "tests/demo/test_demo_cli.py",
    "tests/demo/test_demo_run.py",
    "tests/manifest/test_manifest_processes.py",
    "tests/write/test_streaming.py",
    "tests/simulation/test_hot_tier_draws.py",
    "tests/store/test_conformance.py",
    "tests/write/test_kill.py",
    "tests/cleanup/test_killed_cleanup.py",
    "tests/test_end_to_end.py",
    "tests/manifest/test_checkpoints.py",
    "tests/store/test_completion_looks.py",
    "tests/interop/test_pulsar_replay.py",
    "tests/store/test_clouds.py",
    "tests/cleanup/test_retention_left.py",
    "tests/simulation/test_tended_sweep.py",
    "tests/write/test_memory.py",
    "tests/test_quick.py",
    "tests/simulation/test_sweep.py",
    "tests/interop/test_services_pulsar.py",
    "tests/cleanup/test_leaks.py",
    "tests/retention/test_decide_properties.py",
    "tests/service/test_ledgers_feed.py",
    "tests/cleanup/test_held_meanwhile.py",
    "tests/interop/test_pulsar_served.py",
    "tests/write/test_switching.py",
    "tests/peers/test_peers_command.py",
    "tests/service/test_pulsar_turns.py",
    "tests/interop/test_pulsar_segments.py",
    "tests/docs/test_extending_document.py",
    "tests/mutants/test_mutants.py",
    "tests/simulation/test_topics.py",
    "tests/write/test_stream_backfill.py",
    "tests/manifest/test_named_uuids.py",
    "tests/test_against.py",
    "tests/retention/test_publish_processes.py",
    "tests/service/test_pulsar_recreated.py",
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
