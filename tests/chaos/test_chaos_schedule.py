"""The plan of a chaos round follows from its seed, and every fault and kill occurs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.__main__ import main as chaos
from tests.chaos.chaos_schedule import FAULTS, ROLES, SERVERS, round_of
from tests.chaos.chaos_world import about


@given(st.integers(0, 2**32), st.integers(1, 40), st.booleans())
def test_seed_determines_the_round(seed: int, kills: int, with_spark: bool) -> None:
    planned = round_of(seed, kills, with_spark=with_spark)
    assert planned == round_of(seed, kills, with_spark=with_spark)
    assert len(planned.steps) == kills
    assert planned.server == SERVERS[seed % 2]
    for step in planned.steps:
        assert with_spark or step.kill.role != "spark"
        assert all(fault.steps >= 1 for fault in step.faults)


def test_in_200_kills_every_role_dies_and_every_fault_begins() -> None:
    steps = [step for seed in range(1, 11) for step in round_of(seed, with_spark=True).steps]
    assert len(steps) == 200
    assert {step.kill.role for step in steps} == set(ROLES)
    assert {fault.kind for step in steps for fault in step.faults} == set(FAULTS)
    assert {step.kill.moment for step in steps} == {"before", "half", "answered"}


def test_requests_are_classified_by_their_target() -> None:
    uuid = "0f6b7c3e-16b8-8f62-8f7b-6c0a6f3f0a55"
    folder = "/chaos/below/chaos/live"
    assert {
        about(target): target
        for target in (
            f"{folder}/manifest/{uuid}/00000000000000000042.json",
            f"{folder}/manifest/{uuid}/00000000000000000040.checkpoint.parquet",
            f"{folder}/manifest/{uuid}/boundary",
            "/chaos/below/_catalog/chaos/live",
            f"{folder}/leases/{uuid}",
            f"{folder}/retention/{uuid}/records",
            f"{folder}/{uuid}?uploadId=a&partNumber=2",
            f"{folder}/{uuid}-index",
            f"{folder}/{uuid}",
            "/chaos?list-type=2&prefix=below",
        )
    }.keys() == {"record", "checkpoint", "boundary", "catalog", "lease", "retention", "part", "index", "data", ""}


@pytest.mark.process
@pytest.mark.parametrize("wrong", [["--kills", "0"], ["--kills", "-1"], ["--round", "0"]])
def test_a_run_that_would_try_nothing_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        chaos(wrong)
    assert ended.value.code == 2
    assert "at least 1, or nothing is tried" in capsys.readouterr().err
