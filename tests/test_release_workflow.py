"""The hosted workflow that makes a release: the broker's plugin is one of its files, under the project's version."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import yaml

from services.broker_plugin import JAVA_RELEASE, nar_place, plugin_version

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
((_, JOB),) = WORKFLOW["jobs"].items()
STEPS: list[dict[str, Any]] = JOB["steps"]
RUNS = [step["run"] for step in STEPS if "run" in step]


def test_release_is_made_of_a_tag_and_stops_at_the_first_failure() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 takes the key "on" for true
    assert WORKFLOW["permissions"] == {"contents": "write"}
    assert [step for step in STEPS if "continue-on-error" in step or "if" in step] == []


def test_plugin_is_built_by_the_projects_command_and_is_a_file_of_the_release() -> None:
    build = RUNS.index("./dev plugin")
    [release] = [run for run in RUNS if "gh release create" in run]
    assert build < RUNS.index(release)
    attached = [word.removeprefix("dist/") for word in release.split() if word.startswith("dist/")]
    assert any(fnmatch.fnmatch(nar_place().name, pattern) for pattern in attached)
    assert 'default=ROOT / "dist"' in (ROOT / "services/broker_plugin.py").read_text(encoding="utf-8")


def test_release_checks_that_the_plugin_has_the_version_of_the_tag() -> None:
    [check] = [run for run in RUNS if run.startswith("version=")]
    [name] = re.findall(r"dist/(offloader-pulsar-plugin-\$version\.nar)", check)
    assert name.replace("$version", plugin_version()) == nar_place().name


def test_java_of_the_release_compiles_the_plugin() -> None:
    [java] = [step["with"] for step in STEPS if step.get("uses", "").startswith("actions/setup-java@")]
    assert int(java["java-version"]) >= JAVA_RELEASE
