"""What rounds came to, as values: added up into a table, and kept in a file, so that a run can be gone on with.

It judges nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

__all__ = ["Kept", "NotKept", "Outcome", "code_version", "table"]

ROOT = Path(__file__).resolve().parents[3]
#: Moments of a kill, in the table's order; "time": its moment didn't come.
MOMENTS = ("before", "half", "answered", "time")


@dataclass(slots=True)
class Outcome:
    """What a round came to.

    Attributes:
        findings: what is wrong; empty: nothing.
        killed: "role moment" -> kills at the moment that the schedule named; moment "time": because that didn't come.
        injected: kind of fault -> how often it began; those that couldn't be had here are in ``skipped``.
        beside: role -> how often it ran beside, unharmed by us.
        exits: "role code" -> how often processes ended by themselves.
        touched: what became of requests.
        entries, acknowledged: read from both tiers; appended.
        segments, purged, records, epochs: of the manifests.
        ahead: a clock was so far ahead that nothing may be deleted for long: leaks weren't judged.
    """

    seed: int
    server: str
    findings: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    beside: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    touched: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    entries: int = 0
    segments: int = 0
    purged: int = 0
    records: int = 0
    epochs: int = 0
    ahead: bool = False


_COUNTERS = tuple(name for name, kind in get_type_hints(Outcome).items() if kind == Counter[str])


def table(outcomes: Sequence[Outcome]) -> Iterable[str]:
    """What was injected and what was found, in lines."""
    sums = {name: _sum(getattr(outcome, name) for outcome in outcomes) for name in _COUNTERS}
    killed, injected, skipped = sums["killed"], sums["injected"], sums["skipped"]
    yield f"{'KILLED':<18} {'BEFORE':>8} {'HALF':>8} {'ANSWERED':>8} {'BY TIME':>8}   a request that the seed chose"
    for role in sorted({key.partition(" ")[0] for key in killed}):
        yield f"{role:<18} " + " ".join(f"{killed[f'{role} {moment}']:>8}" for moment in MOMENTS)
    yield f"{'FAULT':<18} {'BEGUN':>8} {'NOT':>8}"
    for kind in sorted({*injected, *skipped}):
        yield f"{kind:<18} {injected[kind]:>8} {skipped[kind]:>8}"
    for words, name in (("", "touched"), ("ran beside: ", "beside"), ("ended by themselves: ", "exits")):
        yield words + (", ".join(f"{count:,} {each}" for each, count in sorted(sums[name].items())) or "none")
    totals = {
        name: sum(getattr(outcome, name) for outcome in outcomes)
        for name in ("acknowledged", "entries", "segments", "purged", "records", "epochs")
    }
    yield ", ".join(f"{total:,} {name}" for name, total in totals.items())
    found = sum(len(outcome.findings) for outcome in outcomes)
    yield f"{sum(killed.values())} kills in {len(outcomes)} rounds: {found or 'no'} findings"


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total += counter
    return total


def code_version() -> str:
    """The commit that is tried, with a "+" where files differ from it; "unknown" without git."""
    try:
        said = [
            subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said[0] + "+" * bool(said[1])


class NotKept(ValueError):
    """There is no such run to go on with."""


class Kept:
    """The outcomes of a run so far, a line each, below one line that says which run it is.

    Args:
        path: the file.
        run: what makes the run this one: its options and the version of the code.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self.path, self._run = path, run

    def begin(self) -> None:
        """A new run: what the file held is forgotten."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f"{json.dumps(self._run)}\n")

    def add(self, outcome: Outcome) -> None:
        with self.path.open("a") as file:
            file.write(f"{json.dumps({each.name: getattr(outcome, each.name) for each in fields(Outcome)})}\n")

    def first(self, rounds: int) -> list[Outcome]:
        """The outcomes of the first ``rounds`` rounds; those of later ones are forgotten.

        Raises:
            NotKept: another run is there, or fewer rounds.
        """
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        if not lines or json.loads(lines[0]) != self._run:
            raise NotKept(f"{self.path} isn't of this run, with these options, of this version of the code")
        if len(lines) - 1 < rounds:
            raise NotKept(f"{self.path} has {len(lines) - 1} rounds of this run")
        self.path.write_text("".join(f"{line}\n" for line in lines[: rounds + 1]))
        return [_outcome(json.loads(line)) for line in lines[1 : rounds + 1]]


def _outcome(values: Mapping[str, Any]) -> Outcome:
    known: dict[str, Any] = {name: Counter(value) if name in _COUNTERS else value for name, value in values.items()}
    return Outcome(**known)
