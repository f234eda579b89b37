"""The hosted workflows: the gate on each push, everything at night and before a release."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.binaries import BINARIES, GO_VERSION_MIN, cache_directory
from services.broker_plugin import JAVA_RELEASE
from services.pulsar.build import JAVA_VERSION_MIN

ROOT = Path(__file__).resolve().parents[2]
ON = True  # YAML 1.1 takes the key "on" for true
MACHINE = "./.github/actions/machine"


def load(path: str) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / path).read_text(encoding="utf-8"))
    return found


CI, PROOF, RELEASE = (load(f"workflows/{name}.yml") for name in ("ci", "proof", "release"))
STEPS: list[dict[str, Any]] = load("actions/machine/action.yml")["runs"]["steps"]


def action(name: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Inputs of the one step that uses an action."""
    (step,) = [step for step in steps if step.get("uses", "").partition("@")[0] == name]
    inputs: dict[str, Any] = step.get("with", {})
    return inputs


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_push_runs_the_command_of_every_other_machine() -> None:
    assert set(CI[ON]) == {"push", "pull_request"}
    gate = CI["jobs"]["gate"]
    assert commands(gate) == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert re.findall(r"^\./dev (\w+)", script, re.M) == ["check", "test"]
    built = action(MACHINE, gate["steps"])["servers"].split()
    in_dev = re.findall(r"^GATE_SERVERS=\((.*)\)", (ROOT / "dev").read_text(encoding="utf-8"), re.M)
    assert [built] == [names.split() for names in in_dev]
    assert set(built) <= {*BINARIES, "pulsar", "plugin"}


def test_everything_runs_each_night_and_before_a_release() -> None:
    assert set(PROOF[ON]) == {"schedule", "workflow_dispatch", "workflow_call"}
    assert commands(PROOF["jobs"]["proof"]) == ["./dev test --all"]
    assert RELEASE["jobs"]["proof"]["uses"] == "./.github/workflows/proof.yml"
    assert RELEASE["jobs"]["release"]["needs"] == "proof"


def test_failing_step_fails_its_job() -> None:
    jobs = [*CI["jobs"].values(), *PROOF["jobs"].values(), *RELEASE["jobs"].values()]
    steps = [step for job in jobs for step in job.get("steps", [])]
    assert [each for each in (*jobs, *steps, *STEPS) if "continue-on-error" in each] == []
    conditional = [step["name"] for step in STEPS if "if" in step]
    assert conditional == ["Save the built servers, also when tests fail later"]
    assert [step for step in steps if "if" in step] == []


def test_programs_are_new_enough() -> None:
    assert version(action("actions/setup-go", STEPS)["go-version"]) >= GO_VERSION_MIN
    assert version(action("actions/setup-java", STEPS)["java-version"]) >= (JAVA_VERSION_MIN,)
    assert version(action("actions/setup-node", STEPS)["node-version"]) >= (20,)
    java = action("actions/setup-java", RELEASE["jobs"]["release"]["steps"])
    assert int(java["java-version"]) >= JAVA_RELEASE


def test_gate_runs_on_the_oldest_and_newest_supported_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
    supported = sorted(declared, key=version)
    gate = CI["jobs"]["gate"]
    assert gate["strategy"]["matrix"]["python"] == [supported[0], supported[-1]]
    assert action(MACHINE, gate["steps"])["python"] == "${{ matrix.python }}"
    assert gate["env"]["OFFLOADER_PYTHON"] == "python${{ matrix.python }}"


def test_machine_caches_the_folder_of_built_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    restore, save = action("actions/cache/restore", STEPS), action("actions/cache/save", STEPS)
    assert Path(restore["path"]).expanduser() == cache_directory().parent
    assert save == {"path": restore["path"], "key": "${{ steps.servers.outputs.cache-primary-key }}"}
    (key,) = re.findall(r"hashFiles\((.*?)\)", restore["key"])
    patterns = re.findall(r"'([^']+)'", key)
    assert "services/binaries.py" in patterns
    assert [pattern for pattern in patterns if not list(ROOT.glob(pattern))] == []


def test_workflows_have_the_least_permissions_and_a_time_limit() -> None:
    assert CI["permissions"] == PROOF["permissions"] == {"contents": "read"}
    assert RELEASE["permissions"] == {"contents": "write"}
    for job in (*CI["jobs"].values(), *PROOF["jobs"].values(), RELEASE["jobs"]["release"]):
        assert 0 < job["timeout-minutes"] <= 360


def test_release_attaches_what_the_command_builds_after_checking_it() -> None:
    assert RELEASE[ON] == {"push": {"tags": ["v*"]}}
    runs = commands(RELEASE["jobs"]["release"])
    [check] = [run for run in runs if "sha256sum -c SHA256SUMS" in run]
    [release] = [run for run in runs if "gh release create" in run]
    assert runs.index("./dev release") < runs.index(check) < runs.index(release)
    assert "offloader-${GITHUB_REF_NAME#v}.tar.gz" in check, "the tag is the version"
    assert " dist/* " in release
    assert 'default=ROOT / "dist"' in (ROOT / "services/release.py").read_text(encoding="utf-8")
