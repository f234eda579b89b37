"""Reader groups where little is read: nothing at a checkpoint, a reader that never comes, a silent application."""

from __future__ import annotations

from formats.entries import Position
from formats.manifest import Truncate
from offloader.manifest.log import ManifestLog
from offloader.retention.cuts import Cut
from offloader.retention.reader_groups import RetentionType
from offloader.retention.stream_retention import open_retention
from tests.retention.grouped_streams import ONE, TWO, Bench, at


def test_a_checkpoint_at_which_nothing_was_read_says_so() -> None:
    bench = Bench()
    bench.groups.start_checkpoint("rg", "c1")
    bench.reach("c1", {ONE: Cut()}, {TWO: at(7)})
    outcome = bench.pass_all("c1")
    assert (outcome.group.to_do, outcome.refused, outcome.failed) == ((), [], [])
    assert bench.cuts() == {ONE: "0.0=1:0", TWO: "0.0=1:7"}, "all there is is needed"


def test_cuts_of_nothing_are_published_too() -> None:
    bench = Bench(RetentionType.MANUAL)
    outcome = bench.groups.update_truncation_cuts("rg", {ONE: Cut(), TWO: at(3)})
    assert (outcome.group.to_do, outcome.refused, outcome.failed) == ((), [], [])
    assert bench.cuts() == {ONE: "0.0=1:0", TWO: "0.0=1:3"}


def test_a_checkpoint_that_waits_for_a_reader_stays_though_the_head_has_passed_it() -> None:
    bench = Bench()
    for name in ("kept", "waits"):
        bench.groups.start_checkpoint("rg", name)
    bench.reach("kept", {ONE: at(5)}, {TWO: at(5)})
    bench.groups.reach_checkpoint("rg", "waits", "r1", {ONE: at(6)})
    for stream in (ONE, TWO):
        log = ManifestLog(bench.memory, stream, clock=bench.clock)
        log.load()
        log.amend([Truncate(Position(1, 9))])
    bench.groups.start_checkpoint("rg", "later")
    bench.reach("later", {ONE: at(10)}, {TWO: at(10)})
    assert [row.name for row in bench.groups.get("rg").checkpoints] == ["waits", "later"]


def test_somebody_has_to_tell_that_a_manual_group_lives() -> None:
    bench = Bench(RetentionType.MANUAL, automatic_checkpoint_ms=10**9)
    bench.groups.update_truncation_cuts("rg", {ONE: at(5)})
    before = open_retention(bench.memory, ONE, clock=bench.clock).registry().subscribers["rg"]
    bench.clock.advance(60)
    bench.groups.tick("rg", renew_ms=20_000)
    assert open_retention(bench.memory, ONE, clock=bench.clock).registry().subscribers["rg"] == before
