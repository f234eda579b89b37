"""The files with which Spark starts sooner: an archive of classes and a home of links; broken ones break nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from offloader.spark.launch import (
    _CLASS_PATH_VARIABLES,
    _JVM_VARIABLES,
    ARCHIVES_MAX,
    RECORDING_S_MAX,
    SETTLED_S,
    Launch,
    prepare_launch,
)
from offloader.spark.session import require_java
from tests.support.quick import needs

SPARK = Path(pyspark.__path__[0])
#: A program of Spark's that ends at once; its class path is that of the JVM of a session.
PROGRAM = ("org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "--version")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_CLASS_PATH_VARIABLES, *_JVM_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def prepared(folder: Path, *, later_s: float = 0.0, record: bool = True, spark: Path = SPARK) -> Launch:
    return prepare_launch(spark, "4", require_java(), folder, time.time() + later_s, record=record)


def run_java(launch: Launch, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``PROGRAM`` as the launch says; its output ends with the file that classes came from."""
    assert launch.home is not None
    options = [each.strip('"') for each in launch.java_options]
    log = f"-Xlog:class+load:file={folder}/classes.log"
    command = [str(require_java()), *options, log, "-cp", f"{launch.home}/jars/*", *PROGRAM]
    environment = {**os.environ, "SPARK_HOME": str(launch.home), "SPARK_SCALA_VERSION": "2.13"}
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment, cwd=folder)


def archived_classes(folder: Path) -> int:
    """Classes of Spark's that the last program took from the archive."""
    lines = (folder / "classes.log").read_text().splitlines()
    return sum("org.apache.spark" in line and "shared objects file (top)" in line for line in lines)


@dataclass(frozen=True)
class Recorded:
    """A folder with an archive that a start has recorded, and the archive's bytes."""

    folder: Path
    launch: Launch
    whole: bytes

    @property
    def archive(self) -> Path:
        assert self.launch.archive is not None
        return self.launch.archive

    def put(self, content: bytes) -> None:
        """In place of the archive, which an earlier test may have had removed."""
        self.archive.unlink(missing_ok=True)
        self.archive.write_bytes(content)


@pytest.fixture(scope="module")
@needs("java")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Recorded once: it takes a start of Java."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patched:
        for name in (*_CLASS_PATH_VARIABLES, *_JVM_VARIABLES):
            patched.delenv(name, raising=False)
        prepared(folder / "kept")
        run_java(prepared(folder / "kept"), folder)
        launch = prepared(folder / "kept", later_s=SETTLED_S + 1)
    assert launch.archive is not None
    return Recorded(folder / "kept", launch, launch.archive.read_bytes())


def files(folder: Path) -> Mapping[str, int]:
    return {each.name: each.stat().st_size for each in folder.iterdir() if each.suffix in (".jsa", ".new")}


@needs("java")
@pytest.mark.process
def test_one_recording_at_a_time_and_a_dead_one_is_removed(tmp_path: Path) -> None:
    prepared(tmp_path)
    [recorded] = [each for each in prepared(tmp_path).java_options if "ArchiveClassesAtExit" in each]
    path = Path(recorded.strip('"').partition("=")[2])
    path.write_bytes(bytes(1000))  # the header comes last
    assert prepared(tmp_path, later_s=SETTLED_S + 1).java_options == ()
    assert files(tmp_path) == {path.name: 1000}
    again = prepared(tmp_path, later_s=RECORDING_S_MAX + 1)
    assert files(tmp_path) == {}
    assert any("ArchiveClassesAtExit" in each for each in again.java_options)


@needs("java")
@pytest.mark.process
def test_two_recordings_at_once_leave_one_archive(tmp_path: Path) -> None:
    prepared(tmp_path)
    for launch in [prepared(tmp_path), prepared(tmp_path)]:
        [recorded] = [each for each in launch.java_options if "ArchiveClassesAtExit" in each]
        Path(recorded.strip('"').partition("=")[2]).write_bytes(b"\xf0\x0b\xab\xa8" + bytes(1000))
    archive = prepared(tmp_path, later_s=SETTLED_S + 1).archive
    assert archive is not None
    assert files(tmp_path) == {archive.name: 1004}


@needs("java")
@pytest.mark.process
def test_archives_are_bounded_and_homes_of_gone_installations_removed(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / "kept" / f"classes-3.{number}-0.jsa"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"old")
        os.utime(path, (number, number))
    gone = tmp_path / "gone"
    (gone / "jars").mkdir(parents=True)
    home = prepared(tmp_path / "kept", spark=gone).home
    assert home is not None
    (gone / "jars").rmdir()
    assert prepared(tmp_path / "kept").home != home
    assert not home.exists()
    assert sorted(files(tmp_path / "kept")) == [f"classes-3.{number}-0.jsa" for number in range(4 - ARCHIVES_MAX, 4)]


@needs("java")
@pytest.mark.process
def test_shared_unwritable_or_configured_places_get_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    assert prepared(tmp_path / "shared") == Launch()
    (tmp_path / "file").write_text("")
    assert prepared(tmp_path / "file" / "kept") == Launch()
    prepared(tmp_path / "kept")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert prepared(tmp_path / "kept").java_options == ()


@needs("java")
@pytest.mark.process
@pytest.mark.parametrize("name", _JVM_VARIABLES)
def test_options_that_a_user_gives_the_jvm_get_no_archive_beside_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = prepared(tmp_path / "kept").home
    monkeypatch.setenv(name, "-XX:SharedArchiveFile=/archive.jsa -XX:+UseParallelGC")
    assert prepared(tmp_path / "kept") == Launch(home)
