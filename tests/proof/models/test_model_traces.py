"""Every counterexample of the protocol's model, as a schedule against the product.

Each file in ``model_traces`` is the shortest way to a loss without the rule that it is named after: one line, one
request of one process, in order. With the rule, some process doesn't send the harmful request; what it sends instead is
sent after all lines. Then requests in flight land, and a lone owner and a cleanup run over the result.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

from tests.proof.models.model_world import OVERTAKEN, World
from tests.support.schedule import Fate

TRACES = sorted((Path(__file__).parent / "model_traces").glob("*.txt"))
#: What the product asks for and the model leaves out: it changes nothing that anybody else sees.
_UNMODELLED = r"get _catalog/|head .*boundary|(get|head) .*parquet|(put|head|delete) _time/|list .*/manifest/"
_UNMODELLED += "|list_uploads |list .*/leases/|get _hold|(get|put) _store"
_DELETES = r"delete (?!_time/)"
#: What a line of a trace asks for: verb and key of the product's request.
_REQUESTS = [
    (r"GET records", r"get .*\.json"),
    (r"GET record ", r"get .*\.json"),
    (r"GET boundary", r"get .*/boundary"),
    (r"PUT record", r"put .*\.json"),
    (r"DELETE record", r"delete .*\.json"),
    (r"PUT checkpoint", r"put .*\.checkpoint\.parquet"),
    (r"PUT boundary", r"put .*/boundary"),
    (r"DELETE checkpoints, boundary", r"delete .*(boundary|parquet)"),
    (r"PUT data", r"put .*/[0-9a-f-]{36}"),
    (r"HEAD data", r"head .*/[0-9a-f-]{36}"),
    (r"PUT index", r"put .*-index"),
    (r"DELETE data", r"delete .*/[0-9a-f-]{36}"),
    (r"create upload", r"begin_upload .*"),
    (r"complete upload", r"complete_upload .*"),
    (r"LIST leases", r"list .*/leases/"),
    (r"LIST", r"list [^ ]*/"),
    (r"PUT lease", r"put .*/leases/.*"),
]


class Replay:
    def __init__(self, trace: Path) -> None:
        self.lines = [line for line in trace.read_text(encoding="ascii").splitlines() if line and line[0] != "#"]
        backfill = ".backfill" in trace.name
        self.world = World(tail=2 if backfill else 1, multipart="-mpu" in trace.name, backfill=backfill)
        self.started: list[str] = []
        self.followed = self.in_flight = 0

    def run(self) -> None:
        for line in self.lines:
            name, _, what = line.partition(": ")
            if name not in self.started:
                self.started.append(name)
                self.world.start(name)
            if what == "re-create the stream":
                self.finish(name)
            else:
                self.follow(name, what)
            self.world.check()
        for name in self.started:
            self.finish(name)
            self.world.check()

    def follow(self, name: str, what: str) -> None:
        """The process sends the request that the line names, unless it stands before another one."""
        wanted = next(pattern for line, pattern in _REQUESTS if what.startswith(line))
        fate = Fate.DONE
        if "[" in what and "reply lost]" in what:
            fate = Fate.IN_FLIGHT if "[in flight" in what else Fate.REPLY_LOST
        self.skip_unmodelled(name, wanted)
        if not self.stands_before(name, wanted):
            return
        self.world.schedule.step(name, fate)
        self.followed += 1
        self.in_flight += fate is Fate.IN_FLIGHT
        while what.startswith("GET records") and self.stands_before(name, wanted):
            self.world.schedule.step(name)
        if "boundary first kept" in what:
            # Two steps of the product, the newest checkpoint and the first kept record, are one of the model.
            while self.world.schedule.pending(name) is not None and not self.stands_before(name, _DELETES):
                self.world.schedule.step(name)

    def skip_unmodelled(self, name: str, wanted: str) -> None:
        free = _UNMODELLED
        if not wanted.startswith(("get", "head", "list")):
            free += "|(get|head|list) "  # who sends something next has read what it reads before
        if wanted.startswith("delete") and name[0] in "KD":
            free += r"|put .*(parquet|boundary)"  # and here the rule may be to write something else first
        while not self.stands_before(name, wanted) and self.stands_before(name, free):
            self.world.schedule.step(name)

    def stands_before(self, name: str, pattern: str) -> bool:
        pending = self.world.schedule.pending(name)
        return pending is not None and re.match(rf"(?:{pattern})", " ".join(pending)) is not None

    def finish(self, name: str) -> None:
        with suppress(*OVERTAKEN):
            self.world.schedule.finish(name)


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["lands before", "lands after"])
@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.stem)
def test_the_loss_that_a_rule_prevents_doesn_t_happen(trace: Path, late: bool) -> None:
    replay = Replay(trace)
    replay.run()
    assert replay.followed >= len(replay.lines) // 2, "the product goes another way: the trace proves nothing"
    if late:
        replay.world.quiet()
    for _ in range(replay.in_flight):
        replay.world.schedule.land()
    replay.world.quiet()


def test_every_rule_of_the_manifest_that_the_model_needs_has_a_trace() -> None:
    rules = {path.name.partition(".")[0] for path in TRACES}
    assert rules == {
        "assigned-any-epoch",
        "delete-below-boundary",
        "fail-assign-one-record",
        "get-boundary",
        "incarnation",
        "incarnation-in-keys",
        "index-if-absent",
        "one-epoch-uuid",
        "purge-names-retirement",
        "purged-before-delete",
        "repeat-identical",
        "reread-boundary",
    }
