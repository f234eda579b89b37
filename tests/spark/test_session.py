"""Finding a working Java, and a session that runs this Python."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloader.errors import UnsupportedError
from offloader.spark.session import find_java, require_java, work_begins

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_home(folder: Path, version: str, *, broken: bool = False) -> Path:
    """A directory with a ``java`` that says it is of that version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    answer = "exit 1" if broken else f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"
    java.write_text(f"#!/bin/sh\n{answer}\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without any Java; where installations are looked for."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    (tmp_path / "jvm").mkdir()
    return tmp_path / "jvm"


@pytest.mark.process
def test_java_is_taken_from_java_home_then_path_then_installations(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = java_home(bare / "java-17", "17.0.15")
    assert find_java(bare) == installed
    on_path = java_home(tmp_path / "path", "21.0.1")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_java(bare) == on_path
    chosen = java_home(tmp_path / "chosen", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "chosen"))
    assert find_java(bare) == chosen


@pytest.mark.process
@pytest.mark.parametrize(("version", "fits"), [("1.8.0_392", False), ("11.0.2", False), ("17", True), ("25.0.3", True)])
def test_only_java_17_and_later_will_do(bare: Path, version: str, fits: bool) -> None:
    java = java_home(bare / "java", version)
    assert find_java(bare) == (java if fits else None)


@pytest.mark.process
def test_an_old_java_home_does_not_hide_a_good_installation(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_home(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert find_java(bare) is None
    good = java_home(bare / "java-21", "21.0.1")
    assert find_java(bare) == good


@pytest.mark.process
def test_lowest_suitable_installation_is_taken_and_broken_ones_skipped(bare: Path) -> None:
    java_home(bare / "a-25", "25.0.3")
    java_home(bare / "b-17-broken", "17", broken=True)
    (bare / "c-17-without-java").mkdir()
    expected = java_home(bare / "d-21", "21.0.1")
    java_home(bare / "e-11", "11.0.2")
    assert find_java(bare) == expected


@pytest.mark.process
def test_link_to_java_is_resolved(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = java_home(bare / "java-17", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java(tmp_path / "nothing") == java


def test_missing_java_is_one_line_with_the_package_to_install(bare: Path) -> None:
    assert find_java(bare) is None
    with pytest.raises(UnsupportedError, match="no Java 17 or later in JAVA_HOME, PATH or") as caught:
        require_java(bare)
    assert "apt-get install openjdk-17-jre-headless" in caught.value.hint
    assert "\n" not in str(caught.value)


def test_the_session_runs_this_python_listens_on_loopback_and_shows_no_page(spark: SparkSession) -> None:
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert os.environ["SPARK_LOCAL_IP"], "a host name without an address must not keep Spark from starting"
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.slow
def test_other_processes_than_workers_are_left_unchanged() -> None:
    before = gc.get_freeze_count(), sys.getswitchinterval()
    for _ in range(3):
        work_begins()
    assert (gc.get_freeze_count(), sys.getswitchinterval()) == before
