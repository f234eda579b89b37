"""Public contracts equal their snapshots: names, options, fields, columns. A change is reviewed as a diff."""

from __future__ import annotations

import pytest

from tests.contracts.contracts import CONTRACTS, REWRITE, SNAPSHOTS, difference


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "json-output" else name for name in CONTRACTS]
)
def test_contract_equals_its_snapshot(name: str) -> None:
    found = difference(name, CONTRACTS[name]())
    assert not found, f"the contract {name} changed\n{found}\nif that is meant: {REWRITE}"


def test_every_snapshot_has_a_contract() -> None:
    assert {path.name for path in SNAPSHOTS.iterdir()} == {f"{name}.txt" for name in CONTRACTS}


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_snapshot_names_no_module_of_the_packages(name: str) -> None:
    """Modules may be moved without a change of any contract."""
    lines = (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "offloader.store." in line or "formats." in line or "<function" in line] == []


def test_a_change_is_shown_as_a_diff() -> None:
    text = (SNAPSHOTS / "errors.txt").read_text(encoding="utf-8")
    changed = text.replace("retryable", "maybe")
    assert difference("errors", text) == ""
    shown = [line for line in difference("errors", changed).splitlines() if line[:1] in "+-"]
    assert any("maybe" in line for line in shown if line.startswith("+"))
    assert any("retryable" in line for line in shown if line.startswith("-"))
