"""Contradictory policies are refused, each contradiction by name."""

from __future__ import annotations

from typing import Any

import pytest

from offloader.errors import InvalidCallError
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit

SIZE, AGE = Limits(Unit.SIZE, 1, 5), Limits(Unit.TIME, 1, 5)
X_Y: dict[str, Any] = {"subscriber_timeout_ms": 10, "fallback_after_ms": 20}


@pytest.mark.parametrize("high", [None, 0])
def test_a_missing_or_zero_max_is_no_limit(high: int | None) -> None:
    limits = Limits(Unit.SIZE, 7, high)
    assert limits.max is None
    assert limits == Limits(Unit.SIZE, 7)
    assert Limits(Unit.SIZE, 7, 7).max == 7


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-1, None, ["min = -1 is negative"]),
        (0, -1, ["max = -1 is negative"]),
        (-2, -1, ["min = -2 is negative", "max = -1 is negative"]),
        (6, 5, ["min = 6 is above max = 5"]),
    ],
)
@pytest.mark.parametrize("unit", Unit)
def test_limits_that_contradict_themselves(unit: Unit, low: int, high: int | None, words: list[str]) -> None:
    with pytest.raises(InvalidCallError) as caught:
        Limits(unit, low, high)
    assert f"by {unit.value}" in caught.value.message
    assert all(word in caught.value.message for word in words)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"kind": PolicyKind.SIZE}, ["by size: it needs limits"]),
        ({"kind": PolicyKind.TIME}, ["by time: it needs limits"]),
        ({"kind": PolicyKind.SIZE, "limits": AGE}, ["its limits are by time"]),
        ({"kind": PolicyKind.TIME, "limits": SIZE}, ["its limits are by size"]),
        ({"kind": PolicyKind.SIZE, "limits": SIZE, "fallback": AGE, **X_Y},
         ["only one by consumption can have a fallback"]),
        ({"kind": PolicyKind.CONSUMPTION, "subscriber_timeout_ms": 0}, ["subscriber_timeout_ms = 0 isn't a time"]),
        ({"kind": PolicyKind.SIZE, "limits": SIZE, "subscriber_timeout_ms": 5, "fallback_after_ms": -5},
         ["fallback_after_ms = -5 isn't a time"]),
        ({"kind": PolicyKind.SIZE, "limits": SIZE, "fallback_after_ms": 5}, ["no subscriber ever times out"]),
        ({"kind": PolicyKind.SIZE, "limits": SIZE, "subscriber_timeout_ms": 9, "fallback_after_ms": 8},
         ["fallback_after_ms is shorter than subscriber_timeout_ms"]),
        ({"kind": PolicyKind.CONSUMPTION, **X_Y}, ["fallback_after_ms without a fallback"]),
        ({"kind": PolicyKind.CONSUMPTION, "fallback": SIZE}, ["a fallback without fallback_after_ms"]),
        ({"kind": PolicyKind.TIME, "fallback": SIZE, "fallback_after_ms": 3, "subscriber_timeout_ms": -1},
         ["it needs limits", "only one by consumption", "subscriber_timeout_ms = -1 isn't a time"]),
    ],
)  # fmt: skip
def test_policies_that_contradict_themselves(policy: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidCallError) as caught:
        Policy(**policy)
    assert [word for word in words if word not in caught.value.message] == []


@pytest.mark.parametrize(
    "policy",
    [
        {"kind": PolicyKind.SIZE, "limits": SIZE},
        {"kind": PolicyKind.TIME, "limits": AGE, "subscriber_timeout_ms": 10},
        {"kind": PolicyKind.SIZE, "limits": SIZE, "subscriber_timeout_ms": 10, "fallback_after_ms": 10},
        {"kind": PolicyKind.CONSUMPTION},
        {"kind": PolicyKind.CONSUMPTION, "limits": AGE, "fallback": SIZE, **X_Y},
        {"kind": PolicyKind.CONSUMPTION, "limits": SIZE, "protect_unpublished": True, "subscriber_timeout_ms": 1},
    ],
)
def test_policies_that_do_not(policy: dict[str, Any]) -> None:
    assert Policy(**policy) == Policy(**policy)
