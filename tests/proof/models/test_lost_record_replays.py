"""Every counterexample of lost records of the model's second part, as a schedule against the product.

As in ``test_loss_replays``: with the product as it is the invariant that a trace breaks holds for every next process;
with the rules switched off it breaks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from formats.keys import record_number
from tests.proof.models.loss_hosts import InvariantBroken
from tests.proof.models.loss_processes import ProcessWorld
from tests.proof.models.loss_rules import switch_off
from tests.proof.models.loss_traces import LOSSES, LossTrace, Step

TRACES = [path for path in LOSSES if LossTrace.read(path).breaks[0] == "N"]
#: Who goes on after the last line; nobody: those of the trace come to their end first, then R and S do.
NEXT = ((), ("R",), ("S",), ("W", "R"), ("W", "S"))
#: What a line asks for: verb and key of the product's request.
_REQUESTS = (
    (r"GET records", r"get .*\.json"),
    (r"GET record ", r"get .*\.json"),
    (r"GET boundary", r"get .*/boundary"),
    (r"LIST", r"list .*/manifest/"),
    (r"PUT record", r"put .*/manifest/.*\.json"),
    (r"PUT boundary", r"put .*/boundary"),
    (r"PUT checkpoint", r"put .*\.checkpoint\.parquet"),
    (r"PUT data", r"put .*/[0-9a-f-]{36}"),
    (r"DELETE record", r"delete .*\.json"),
)
#: What the product asks for and the model leaves out.
_UNMODELLED = r"get _catalog/|head .*boundary|(get|head) .*parquet|(put|head|delete) _time/|list_uploads "
_UNMODELLED += "|get _hold|(get|put) _store"


class RecordReplay:
    """Follows a trace of processes over one manifest; what a process doesn't do is left out."""

    def __init__(self, trace: LossTrace, checks: Collection[str]) -> None:
        self.steps = trace.steps
        assigned = {found[1] for step in trace.steps if (found := re.search(r"assign \d+ (\d+)", step.what))}
        self.world = ProcessWorld(checks, max(1, len(assigned)), is_retired=trace.scenario == "undo")
        self.followed = 0
        #: The product's numbers of the model's records: it commits more of them.
        self._numbers: dict[int, list[int]] = {}

    def run(self, following: Sequence[str]) -> None:
        try:
            self._run(following)
        finally:
            self.world.close()

    def _run(self, following: Sequence[str]) -> None:
        for step in self.steps:
            if step.actor == "store":
                self.world.lose(self._renumbered(step.what))
                self.followed += 1
            else:
                self.followed += self._follow(step)
            self.world.judge()
        for name in [] if following else [*self.world.started]:
            self.world.finish(name)
            self.world.judge()
        for name in following or ("R", "S"):
            self.world.alone(name)
            self.world.judge()

    def _renumbered(self, what: str) -> str:
        numbers = [number for each in re.findall(r"\d+", what) for number in self._numbers[int(each)]]
        return f"records {numbers} are lost" if numbers else what

    def _follow(self, step: Step) -> bool:
        name, what = step.actor, step.what
        if what == "begin":
            self.world.start(name)
            return True
        if what == "crash, restart":
            self.world.crash(name)
            return True
        wanted = next((pattern for line, pattern in _REQUESTS if what.startswith(line)), None)
        if wanted is None:
            return True  # nothing that a process requests
        self._skip(name, wanted)
        if not self._stands_before(name, wanted):
            return False
        self._step(name, int(found[1]) if (found := re.match(r"PUT record (\d+)", what)) else None)
        while what.startswith("GET records") and self._stands_before(name, wanted):
            self._step(name)
        while (
            name == "K" and what.startswith("PUT boundary") and not self._stands_before(name, "delete .*/manifest/|$")
        ):
            self._step(name)  # two steps of the product, the newest checkpoint and the first kept record, are one
        return True

    def _skip(self, name: str, wanted: str) -> None:
        """Lets the process do what the model leaves out."""
        free = _UNMODELLED
        if not wanted.startswith(("get", "list")):
            # Who sends something next has read what it reads before; hot release and the audit have records of theirs.
            free += "|get |head |list |put .*-index"
            free += "|put .*json" if wanted.endswith("boundary") else r"|put (?!.*/manifest/)"
        while not self._stands_before(name, wanted) and self._stands_before(name, free):
            self._step(name)

    def _step(self, name: str, number: int | None = None) -> None:
        verb, key = self.world.step(name)
        created = record_number(key) if verb == "put" else None
        if created is not None:
            self._numbers.setdefault(number or max(self._numbers, default=0), []).append(created)

    def _stands_before(self, name: str, pattern: str) -> bool:
        pending = self.world.schedule.pending(name)
        return re.match(rf"(?:{pattern})", "" if pending is None else " ".join(pending)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("following", NEXT, ids=lambda names: "".join(names) or "all finish")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_product_reports_every_lost_record_of_a_model_trace(path: Path, following: Sequence[str]) -> None:
    trace = LossTrace.read(path)
    # Nothing tells of the newest records of all, unless something relied on them.
    replay = RecordReplay(trace, {"N1", "N4", trace.breaks})
    replay.run(following)
    assert replay.followed >= len(trace.steps) * 2 // 3, "the product goes another way: the trace proves nothing"


@pytest.mark.slow
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_record_is_lost_silently_without_the_rule(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = LossTrace.read(path)
    for rule in trace.rules:
        switch_off(rule, monkeypatch)
    broken = set()
    for following in NEXT:
        try:
            RecordReplay(trace, {trace.breaks}).run(following)
        except InvariantBroken as error:
            broken.add(error.invariant)
    assert trace.breaks in broken, "the replay doesn't see what the rule prevents"
