"""What is done to a run, as data: which process is killed when, and what is wrong with its world meanwhile.

It starts, stops and waits for nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from services.request_gate import Moment

__all__ = ["FAULTS", "KILLS_A_ROUND", "ROLES", "SERVERS", "Fault", "Kill", "Role", "Round", "Step", "round_of"]

Role = Literal["sidecar", "appender", "backfill", "cleaner", "reader", "spark", "spark-backfill"]
ROLES: tuple[Role, ...] = ("sidecar", "appender", "backfill", "cleaner", "reader", "spark", "spark-backfill")
#: Round by round in turns.
SERVERS = ("minio", "versitygw")
#: Kills in a world of its own, after which the oracle looks.
KILLS_A_ROUND = 20

#: How often each is killed, among a hundred kills without Spark.
_WEIGHTS: Mapping[Role, int] = {"sidecar": 44, "appender": 16, "backfill": 14, "cleaner": 14, "reader": 12}
#: And with it.
_SPARK_WEIGHTS: Mapping[Role, int] = {"spark": 5, "spark-backfill": 5}
#: Who may run beside what always runs and the one that is killed, until it ends by itself.
_BESIDE: Sequence[Role] = ("backfill", "cleaner", "reader")
#: Requests of a role at which it dies: method and what it is about ("" any), and how many of them may pass before.
_REQUESTS: Mapping[Role, Sequence[tuple[str, str, int]]] = {
    "sidecar": (
        ("PUT", "record", 6),
        ("PUT", "data", 4),
        ("PUT", "index", 4),
        ("PUT", "checkpoint", 1),
        ("", "boundary", 4),
        ("", "catalog", 1),
        ("", "lease", 1),
        ("PUT", "retention", 3),
        ("DELETE", "", 2),
        ("POST", "", 2),
        ("", "", 60),
    ),
    "backfill": (
        ("PUT", "record", 2),
        ("POST", "", 1),
        ("PUT", "part", 2),
        ("PUT", "data", 1),
        ("PUT", "index", 1),
        ("", "", 20),
    ),
    "cleaner": (
        ("PUT", "record", 1),
        ("PUT", "retention", 1),
        ("DELETE", "", 2),
        ("POST", "", 1),
        ("", "", 20),
    ),
    "reader": (("GET", "data", 3), ("", "lease", 1), ("", "", 10)),
    "spark": (("GET", "", 12), ("", "", 5)),
    "spark-backfill": (
        ("PUT", "record", 2),
        ("POST", "", 1),
        ("PUT", "part", 2),
        ("PUT", "index", 0),
        ("", "", 20),
    ),
    "appender": (("", "ack", 20),),
}
_MOMENTS: tuple[Moment, ...] = ("before", "half", "answered")
#: Kind of fault -> what it may be like, each number from a range; "share" is of connections or requests.
FAULTS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "latency": {"latency": (20, 300), "jitter": (0, 100), "share": (0.5, 1)},
    "little bandwidth": {"rate": (100, 2000), "share": (0.5, 1)},
    "cut requests": {"bytes": (200, 40_000), "share": (0.1, 0.4)},
    "cut answers": {"bytes": (200, 20_000), "share": (0.1, 0.4)},
    "resets": {"timeout": (5, 200), "share": (0.1, 0.4)},
    "lost answers": {"timeout": (300, 3000), "share": (0.1, 0.4)},
    "partition": {},
    "503 storm": {"share": (0.2, 0.8)},
    "server killed": {},
    "store's disk full": {},
    "ledgers' disk full": {},
    "clock jump": {"hours": (-30, 0.01)},
    "clock jump ahead": {"hours": (0.1, 30)},
}
#: After a jump ahead nothing may be deleted until the time comes: such rounds say nothing about leaks.
_SELDOM: Mapping[str, float] = {"clock jump ahead": 0.2}
#: Of them, those that concern one role's way to the store or one role's clock; the others everybody.
_OF_ROLES = frozenset(FAULTS) - {"server killed", "store's disk full", "ledgers' disk full"}
#: Those after which nothing goes on until they end: they end with the step.
_BLOCKING = frozenset({"partition", "server killed", "store's disk full", "ledgers' disk full"})
_STEPS_MAX = 3
#: Of the steps, with which each of ``_BESIDE`` begins.
_BESIDE_SHARE = 0.2
#: Whom they concern, where not everybody.
_CONCERNED: Sequence[Role] = ("sidecar", "sidecar", "backfill", "cleaner", "reader")


@dataclass(frozen=True, slots=True)
class Kill:
    """``kill -9`` of a role's process.

    Attributes:
        method, about: the request at which; ``about`` "ack": an append that was acknowledged.
        after: how many such requests (or appends) pass before.
        moment: of the request.
    """

    role: Role
    method: str
    about: str
    after: int
    moment: Moment


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong for a while.

    Attributes:
        kind: of ``FAULTS``.
        roles: whom it concerns; empty: everybody.
        steps: how many it lasts.
        amounts: what it is like.
    """

    kind: str
    roles: tuple[Role, ...]
    steps: int
    amounts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Step:
    """One kill, the faults that begin before it, and who begins to run beside."""

    kill: Kill
    faults: tuple[Fault, ...]
    beside: tuple[Role, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """What is done to one world. ``server`` is the S3 server that it has."""

    seed: int
    server: str
    steps: tuple[Step, ...]


def round_of(seed: int, kills: int = KILLS_A_ROUND, *, with_spark: bool = False, server: str = "") -> Round:
    """The round of a seed. Equal arguments give an equal round.

    Args:
        seed: any number.
        kills: how many.
        with_spark: Spark's jobs are among those that are killed.
        server: which one; empty: the seed says.
    """
    dice = random.Random(seed)
    steps = []
    for _ in range(kills):
        faults = tuple(_fault(dice) for _ in range(dice.choice((0, 1, 1, 2))))
        beside = tuple(role for role in _BESIDE if dice.random() < _BESIDE_SHARE)
        steps.append(Step(_kill(dice, with_spark=with_spark), faults, beside))
    return Round(seed, server or SERVERS[seed % len(SERVERS)], tuple(steps))


def _kill(dice: random.Random, *, with_spark: bool) -> Kill:
    weights = {**_WEIGHTS, **_SPARK_WEIGHTS} if with_spark else _WEIGHTS
    [role] = dice.choices(list(weights), list(weights.values()))
    method, about, most = dice.choice(_REQUESTS[role])
    moments: tuple[Moment, ...] = (
        _MOMENTS if method in ("", "PUT", "POST") and about != "ack" else ("before", "answered")
    )
    return Kill(role, method, about, dice.randint(0, most), dice.choice(moments))


def _fault(dice: random.Random) -> Fault:
    [kind] = dice.choices(list(FAULTS), [_SELDOM.get(kind, 1.0) for kind in FAULTS])
    amounts = {name: round(dice.uniform(*ends), 2) for name, ends in FAULTS[kind].items()}
    roles: tuple[Role, ...] = ()
    if kind in _OF_ROLES and dice.random() < 0.5:
        roles = (dice.choice(_CONCERNED),)
    return Fault(kind, roles, 1 if kind in _BLOCKING else dice.randint(1, _STEPS_MAX), amounts)
