"""The hosted workflow that makes a release of what ``./dev release`` builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from services.broker_plugin import JAVA_RELEASE

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
((_, JOB),) = WORKFLOW["jobs"].items()
STEPS: list[dict[str, Any]] = JOB["steps"]
RUNS = [step["run"] for step in STEPS if "run" in step]


def test_release_is_made_of_a_tag_and_stops_at_the_first_failure() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 takes the key "on" for true
    assert WORKFLOW["permissions"] == {"contents": "write"}
    assert [step for step in STEPS if "continue-on-error" in step or "if" in step] == []


def test_release_attaches_what_the_projects_command_builds_after_checking_it() -> None:
    build = RUNS.index("./dev release")
    [release] = [run for run in RUNS if "gh release create" in run]
    [check] = [run for run in RUNS if "sha256sum -c SHA256SUMS" in run]
    assert build < RUNS.index(check) < RUNS.index(release)
    assert "offloader-${GITHUB_REF_NAME#v}.tar.gz" in check, "the tag is the version"
    assert " dist/* " in release
    assert 'default=ROOT / "dist"' in (ROOT / "services/release.py").read_text(encoding="utf-8")


def test_java_of_the_release_compiles_the_plugin() -> None:
    [java] = [step["with"] for step in STEPS if step.get("uses", "").startswith("actions/setup-java@")]
    assert int(java["java-version"]) >= JAVA_RELEASE
