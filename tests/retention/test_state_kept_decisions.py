"""Kept decisions of a stream: each that truncated, and the first of equal ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from formats.entries import Position
from formats.manifest import Hold
from offloader.errors import OffloaderError
from offloader.retention.state import read_decisions
from offloader.retention.subscribers import open_retention
from offloader.settings import Settings
from tests.retention.retained_streams import STREAM, Bench


def kept(bench: Bench) -> list[Mapping[str, Any]]:
    """The oldest first."""
    retention = open_retention(bench.memory, STREAM, clock=bench.clock)
    return list(reversed(read_decisions(retention, retention.scope())))


@pytest.mark.slow
def test_each_loss_is_kept_though_the_same_rule_took_it() -> None:
    bench = Bench(policy="consumption", min_size="10KiB", max_size="30KiB")
    bench.grow()
    bench.subscribe("slow")
    bench.publish("slow", Position(1, 2))
    lost = []
    for _ in range(6):
        outcome = bench.grow_and_run(1)
        assert outcome.decision is not None
        if outcome.decision.overridden:
            lost.append(outcome.decision.as_json())
    assert len(lost) > 2
    assert len({each["rule"] for each in lost}) < len(lost)
    assert [each for each in kept(bench) if each["overridden"]] == lost


def test_reason_for_no_deletion_is_kept_once_per_reason() -> None:
    bench = Bench(policy="size", min_size="500KiB")
    bench.grow_and_run(3)
    (found,) = kept(bench)
    assert (found["rule"], found["cut"], found["limits"]["min"]) == ("below_min", None, 500 * 1024)
    bench.settings = Settings.of({"retention": {"record_interval": "0.5m", "policy": "size", "min_size": "900KiB"}})
    bench.grow_and_run(3)
    assert [(each["rule"], each["limits"]["min"]) for each in kept(bench)] == [
        ("below_min", 500 * 1024),
        ("below_min", 900 * 1024),
    ]


def test_another_rule_is_kept_and_so_is_another_cut_that_a_hold_puts_off() -> None:
    bench = Bench(policy="size", min_size="20KiB")
    bench.grow_and_run(2)
    bench.writers[STREAM].log.commit_as_maintainer([Hold(on=True, reason="audit")])
    for _ in range(4):
        bench.grow()
        with pytest.raises(OffloaderError, match="hold"):
            bench.run()
    rules = ["below_min", "no_cut_keeps_min"] + ["min_without_bound"] * 4
    cuts = [None, None, *({"0.0": f"{number}:0"} for number in range(2, 6))]
    assert [(each["rule"], each["cut"]) for each in kept(bench)] == list(zip(rules, cuts, strict=True))


@pytest.mark.slow
def test_decision_delayed_by_a_hold_is_kept_with_cut_and_losing_subscribers() -> None:
    bench = Bench(policy="consumption", min_size="10KiB", max_size="30KiB")
    bench.grow()
    bench.subscribe("slow")
    bench.publish("slow", Position(1, 2))
    bench.grow_and_run(1)
    bench.grow(ledgers=3)
    log = bench.writers[STREAM].log
    log.commit_as_maintainer([Hold(on=True, reason="audit")])

    def refused() -> Mapping[str, Any]:
        with pytest.raises(OffloaderError, match="hold"):
            bench.run()
        return kept(bench)[-1]

    first = refused()
    bench.subscribe("late")
    bench.publish("late", Position(1, 5))
    second = refused()
    assert second["cut"] == first["cut"]
    assert [[each["name"] for each in one["overridden"]] for one in (first, second)] == [["slow"], ["late", "slow"]]
    bench.grow()
    assert refused()["cut"] != second["cut"]
    log.commit_as_maintainer([Hold(on=False, reason="audit is over")])
    outcome = bench.run()
    assert outcome.truncations
    assert outcome.decision is not None
    last, done = kept(bench)[-1], outcome.decision.as_json()
    assert (last["cut"], last["overridden"]) == (done["cut"], done["overridden"])
