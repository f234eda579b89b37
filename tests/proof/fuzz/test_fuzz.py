"""Twenty seconds of what ``./dev fuzz`` does for longer, each target in a process of its own with little memory."""

from __future__ import annotations

import os
import secrets

import pytest

from tests.proof.fuzz.__main__ import CHUNK_S, orders_of
from tests.proof.fuzz.fuzz_engine import run
from tests.proof.fuzz.fuzz_targets import TARGETS

#: Seconds for all targets together.
SECONDS = 20.0
#: Of each target, also where that takes longer: the unchanged inputs that come first end at few places.
INPUTS_MIN = 1024
#: A run that decides whether a change lands tries the same inputs each time.
SEED = 1 if os.environ.get("CI") else 2**31 + secrets.randbelow(2**31)


@pytest.mark.process
@pytest.mark.parametrize("name", list(TARGETS))
def test_random_bytes_are_decoded_or_refused_by_name(name: str) -> None:
    report = run(name, seed=SEED, inputs=10**9, seconds=SECONDS / len(TARGETS), least=INPUTS_MIN)
    assert not report.failure, f"seed {SEED}, input {report.inputs}: {report.failure}\n{report.culprit.hex()}"
    assert report.inputs >= INPUTS_MIN
    assert report.outcomes > 5, "the inputs all end at the same few places"


def test_inputs_are_shared_among_targets_by_equal_time() -> None:
    orders = orders_of(list(TARGETS), 10_000_000)
    assert 10_000_000 <= sum(size for _, size in orders) < 10_001_000
    assert all(size <= TARGETS[name].per_s * CHUNK_S for name, size in orders)
    seconds = {name: sum(size for each, size in orders if each == name) / TARGETS[name].per_s for name in TARGETS}
    assert max(seconds.values()) / min(seconds.values()) < 1.01
    assert len({name for name, _ in orders[: len(TARGETS)]}) == len(TARGETS), "some target waits for the others"
    few = orders_of(["objects", "cuts"], 100)
    assert {name for name, _ in few} == {"objects", "cuts"}
