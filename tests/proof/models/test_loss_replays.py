"""Every counterexample of the model's second part, as a schedule against the product.

Each file in ``model_traces/losses`` is the shortest way to a loss without the rules that it is named after. Each is
followed twice: with the product as it is, where the invariant that the trace breaks holds at the end; and with the
rules switched off in the product, where it breaks.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection
from pathlib import Path

import pytest

from formats.entries import Position
from offloader.ledgers.sqlite.database import Database
from tests.proof.models.loss_hosts import Host, HostWorld, InvariantBroken
from tests.proof.models.loss_rules import switch_off
from tests.proof.models.loss_traces import LOSSES, LossTrace, Step

HOSTS = [path for path in LOSSES if LossTrace.read(path).breaks[0] == "H"]


class HostReplay:
    """Follows a trace of hosts and databases; what a host doesn't do because it was refused is left out."""

    def __init__(self, trace: LossTrace, folder: Path, checks: Collection[str]) -> None:
        self.steps = trace.steps
        self.world = HostWorld(folder, checks)
        self.followed = 0
        #: The product's positions of the model's entries.
        self._places: dict[str, Position | None] = {}

    def run(self, *, finishes: bool) -> None:
        try:
            self._run(finishes=finishes)
        finally:
            self.world.close()

    def _run(self, *, finishes: bool) -> None:
        for step in self.steps:
            if step.actor == "operator":
                self.world.operate(step.what)
                self.followed += 1
            else:
                self.followed += self._follow(self.world.host(step.actor), step)
            self.world.judge()
        self.world.settle(finishes=finishes)

    def _follow(self, host: Host, step: Step) -> bool:
        """Whether the host did what the line says."""
        what, world = step.what, self.world
        if what == "crash or stop":
            world.crash(host)
            return True
        if what.startswith(("start, load", "--new-source")):
            world.crash(host)
            world.start(host, new_source=what[0] == "-")
            if what[0] == "s":
                return self._until(host, "record_start|put .*json") or "refused" in what
            return self._until(host, "grant_ledgers")
        if host.error is not None:
            return False
        if what.startswith("append"):
            self._places[what[7 : what.index(")") + 1]] = place = world.append(host)
            return place is not None
        if what.startswith("database: roll over"):
            assert host.source is not None
            return host.source.close_ledger() is not None
        if what.startswith("load, offload"):
            world.offload(host, self._places[what[14:]])
            return self._until(host, "put .*json")
        if what.startswith("record offloaded"):
            return self._commits(host, what[17 : what.index(")") + 1])
        if what == "load: fenced":
            world.offload(host)
            world.finish(host)
            return host.error is not None
        if what.startswith("truncate"):
            world.truncate(host)
            return self._until(host, "put .*json")
        return self._goes_on(host, what)

    def _goes_on(self, host: Host, what: str) -> bool:
        """A further step of what the host has begun."""
        for begin, wanted, until in (
            ("database: generation", "record_start", ""),
            ("record open_epoch", "put .*json", "record_start|grant_ledgers"),
            ("record hot_released", "put .*json", "delete"),
            ("database: new ledger", "grant_ledgers", None),
            ("database: delete", "delete", None),
        ):
            if what.startswith(begin):
                if not self._until(host, wanted):
                    return False
                self.world.step(host)
                if until is None:
                    self.world.finish(host)
                elif until:
                    self._until(host, until)
                return True
        raise AssertionError(f"no host does this: {what}")

    def _commits(self, host: Host, entry: str) -> bool:
        """Lets the host go on until the manifest has the entry; False: it never has."""
        place = self._places[entry]
        assert place is not None
        while self.world.pending(host) is not None:
            self.world.step(host)
            end = self.world.state().committed_end()
            if end is not None and end >= place:
                return True
        return False

    def _until(self, host: Host, requests: str) -> bool:
        """Lets the host go on until it stands before such a request; False: it was over before."""
        while (pending := self.world.pending(host)) is not None:
            if re.match(requests, " ".join(pending)):
                return True
            self.world.step(host)
        return False


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only processes die here: databases needn't wait for the disk."""
    connect = Database._connect

    def connected(self: Database) -> sqlite3.Connection:
        connection = connect(self)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    monkeypatch.setattr(Database, "_connect", connected)


@pytest.mark.slow
@pytest.mark.parametrize("finishes", [False, True], ids=["hosts crash", "hosts finish"])
@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_no_acknowledged_entry_is_lost_where_the_model_loses_one(path: Path, finishes: bool, tmp_path: Path) -> None:
    trace = LossTrace.read(path)
    # What a restore within one start takes with it nobody can tell, unless a record came after it.
    replay = HostReplay(trace, tmp_path, {"H1", "H2", "H4", "H5", trace.breaks})
    replay.run(finishes=finishes)
    assert replay.followed >= len(trace.steps) // 2, "the product goes another way: the trace proves nothing"


@pytest.mark.slow
@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_an_acknowledged_entry_is_lost_without_the_rule(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = LossTrace.read(path)
    for rule in trace.rules:
        switch_off(rule, monkeypatch)
    broken = set()
    for finishes in (False, True):
        folder = tmp_path / str(finishes)
        folder.mkdir()
        try:
            HostReplay(trace, folder, {trace.breaks}).run(finishes=finishes)
        except InvariantBroken as error:
            broken.add(error.invariant)
    assert trace.breaks in broken, "the replay doesn't see what the rule prevents"
