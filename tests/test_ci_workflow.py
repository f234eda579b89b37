"""The hosted workflow provides programs and servers, and then runs the commands of README and ``.ci/run``."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.binaries import GO_VERSION_MIN, cache_directory
from services.pulsar.build import JAVA_VERSION_MIN

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
((_, JOB),) = WORKFLOW["jobs"].items()
STEPS: list[dict[str, Any]] = JOB["steps"]
RUNS = [step["run"] for step in STEPS if "run" in step]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci/run").read_text(encoding="utf-8")


def action(name: str) -> dict[str, Any]:
    """Inputs of the one step that uses an action."""
    (step,) = [step for step in STEPS if step.get("uses", "").startswith(f"{name}@")]
    inputs: dict[str, Any] = step.get("with", {})
    return inputs


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_last_ci_step_is_the_command_of_every_other_machine() -> None:
    assert RUNS[-1] == ".ci/run"
    assert STEPS[-1]["run"] == RUNS[-1]
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_project_commands_are_those_that_readme_and_ci_name() -> None:
    """No step tests or checks by a command of its own; before ``.ci/run`` the servers are built, and nothing else."""
    own = [run for run in RUNS if re.search(r"\./|\.ci/|\bpytest\b|\bruff\b|\bmypy\b|\bpip\b", run)]
    assert own == ["./dev services build", ".ci/run"]
    in_ci = re.findall(r"^\./dev (\w+)", CI, re.M)
    assert in_ci == ["check", "test"]
    assert "./dev test" in README
    assert set(in_ci) | {"services"} <= set(
        re.findall(r"^  ([a-z]+)  ", (ROOT / "dev").read_text(encoding="utf-8"), re.M)
    )


def test_a_failing_step_fails_the_job() -> None:
    assert [step for step in STEPS if "continue-on-error" in step] == []
    assert "continue-on-error" not in JOB
    assert [step["name"] for step in STEPS if "if" in step] == ["Save the built servers, also when tests fail later"]


def test_programs_are_new_enough() -> None:
    assert version(action("actions/setup-go")["go-version"]) >= GO_VERSION_MIN
    assert version(action("actions/setup-java")["java-version"]) >= (JAVA_VERSION_MIN,)
    assert version(action("actions/setup-node")["node-version"]) >= (20,)
    assert any("mvn" in run for run in RUNS)


def test_ci_pythons_are_the_oldest_and_newest_supported_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
    supported = sorted(declared, key=version)
    assert JOB["strategy"]["matrix"]["python"] == [supported[0], supported[-1]]
    assert action("actions/setup-python")["python-version"] == "${{ matrix.python }}"
    assert JOB["env"]["OFFLOADER_PYTHON"] == "python${{ matrix.python }}"


def test_ci_caches_the_folder_of_built_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    restore, save = action("actions/cache/restore"), action("actions/cache/save")
    assert Path(restore["path"]).expanduser() == cache_directory().parent
    assert save["path"] == restore["path"]
    assert save["key"] == "${{ steps.servers.outputs.cache-primary-key }}"
    (key,) = re.findall(r"hashFiles\((.*?)\)", restore["key"])
    patterns = re.findall(r"'([^']+)'", key)
    assert "services/binaries.py" in patterns
    assert [pattern for pattern in patterns if not list(ROOT.glob(pattern))] == []
    named = [step.get("uses", step.get("run", "")).partition("@")[0] for step in STEPS]
    assert (
        named.index("actions/cache/restore") < named.index("./dev services build") < named.index("actions/cache/save")
    )


def test_workflow_asks_for_read_access_only_and_ends() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert 0 < JOB["timeout-minutes"] <= 180
    triggers = WORKFLOW[True]  # YAML 1.1 takes the key "on" for true
    assert set(triggers) == {"push", "pull_request"}
