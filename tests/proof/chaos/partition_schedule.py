"""Which ways are cut, how and for how long, while two processes share a stream: values, out of a seed.

It doesn't touch a process or a proxy.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["PATTERNS", "Cut", "Plan", "Role", "Step", "Way", "plan"]

#: To the object store; to the broker's binary protocol, and to its admin interface.
Way = Literal["store", "broker", "admin"]
#: ``down``: open connections end and new ones are refused. Of the others nobody is told: ``lost``, nothing arrives on
#: the other side; ``mute``, requests arrive and have their effect, answers don't come back; ``silent``, both.
Kind = Literal["down", "lost", "mute", "silent"]
KINDS: tuple[Kind, ...] = ("down", "lost", "mute", "silent")
#: The process that has the stream when the step begins, and the one that stands by.
Role = Literal["owner", "other"]
ROLES: tuple[Role, ...] = ("owner", "other")
#: What is cut together: (whose way, to what).
PATTERNS: tuple[tuple[tuple[Role, Way], ...], ...] = (
    (("owner", "store"),),
    (("other", "store"),),
    (("owner", "store"), ("other", "store")),
    (("owner", "broker"),),
    (("other", "broker"),),
    (("owner", "broker"), ("owner", "admin")),
    (("owner", "broker"), ("other", "broker")),
    (("owner", "store"), ("owner", "broker")),
    (("owner", "store"), ("other", "broker"), ("other", "admin")),
    (("other", "store"), ("other", "broker")),
)


@dataclass(frozen=True, slots=True)
class Cut:
    """One way of one process, for the length of a step, or, ``is_short``, its first half."""

    whose: Role
    way: Way
    kind: Kind
    is_short: bool = False

    def __str__(self) -> str:
        return f"{self.whose} {self.kind} to the {self.way}{' at first' if self.is_short else ''}"


@dataclass(frozen=True, slots=True)
class Step:
    """What happens next: ``cuts`` hold for ``seconds``, during which ``entries`` are produced.

    Attributes:
        killed: this process is killed in the middle and started again.
        heals: everything produced by then is offloaded before the next step; else the cuts only end.
        closes_ledger: the broker begins a ledger.
    """

    cuts: tuple[Cut, ...]
    seconds: float
    entries: int
    killed: Role | None = None
    heals: bool = False
    closes_ledger: bool = False

    def __str__(self) -> str:
        words = [str(cut) for cut in self.cuts] + ([] if self.killed is None else [f"{self.killed} killed"])
        return f"{' and '.join(words)}, {self.seconds:.1f} s, {self.entries} entries{', healed' if self.heals else ''}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A run.

    Attributes:
        steps: one after the other; after the last one everything is healed.
        segment_s: age at which segments close: below, and above, the time in which another process takes over.
        keep_alive_s: silence after which the processes ask whether the broker is there.
        hand_over_s: silence of the store after which a process leaves the topic to the other: shorter, and longer, than
            a step.
    """

    steps: tuple[Step, ...]
    segment_s: float = 0.12
    keep_alive_s: float = 0.5
    hand_over_s: float = 60.0


def plan(seed: int, steps: int, *, seconds: float = 1.5) -> Plan:
    """The same for the same arguments.

    Args:
        steps: how many; every pattern comes as soon as there are as many as patterns.
        seconds: the longest a step's cuts hold; the shortest is a third of it.
    """
    choices = random.Random(seed)
    patterns: list[tuple[tuple[Role, Way], ...]] = []
    while len(patterns) < steps:
        patterns += choices.sample(PATTERNS, len(PATTERNS))
    found = []
    for number, pattern in enumerate(patterns[:steps]):
        cuts = tuple(Cut(whose, way, choices.choice(KINDS), is_short=choices.random() < 0.3) for whose, way in pattern)
        found.append(
            Step(
                cuts,
                seconds=choices.uniform(seconds / 3, seconds),
                entries=choices.randrange(5, 60),
                killed=choices.choice(ROLES) if choices.random() < 0.25 else None,
                heals=number == steps - 1 or choices.random() < 0.5,
                closes_ledger=choices.random() < 0.4,
            )
        )
    return Plan(
        tuple(found),
        segment_s=choices.choice((0.12, 1.0)),
        keep_alive_s=choices.choice((0.5, 2.0)),
        hand_over_s=choices.choice((0.4, 60.0)),
    )
