"""The broker plugin's own tests in plain Java, and what its build gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from services.binaries import Unavailable
from services.broker_plugin import SOURCES, build_in, built_nar, compile_java, find_javac, interfaces, plugin_version
from services.pulsar.build import find_java

pytestmark = pytest.mark.java

TESTS = SOURCES / "test"
#: Each is a class whose methods are tests.
CLASSES = sorted(path.stem for path in TESTS.glob("**/*Test.java"))
TIMEOUT_S = 280


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``plugin.nar`` and its ``classes``, made of these sources now."""
    folder = tmp_path_factory.mktemp("built")
    build_in(folder, "plugin.nar", interfaces())
    return folder


@pytest.fixture(scope="module")
def class_path(built: Path) -> str:
    """The plugin's classes, those of its tests, and the interfaces."""
    given = [built / "classes", interfaces() / "*"]
    compile_java(sorted(TESTS.glob("**/*.java")), built / "tests", given)
    return os.pathsep.join(map(str, [built / "tests", *given]))


@pytest.mark.parametrize("name", CLASSES)
def test_java_tests_of_the_plugin_pass(name: str, class_path: str) -> None:
    # Each lives for seconds: the optimising compiler costs more than it brings.
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = [find_java(), *options, "-cp", class_path, "offloader.pulsar.Checks", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert f"ok {name}.test" in done.stdout


def test_nar_holds_the_plugin_and_nothing_that_the_broker_has() -> None:
    nar = built_nar()
    assert nar.name == f"offloader-pulsar-plugin-{plugin_version()}.nar"
    with zipfile.ZipFile(nar) as opened:
        names = opened.namelist()
        described = opened.read("META-INF/services/pulsar-offloader.yaml").decode()
    assert "META-INF/bundled-dependencies/" in names
    factory = described.partition("offloaderFactoryClass: ")[2].strip()
    assert f"{factory.replace('.', '/')}.class" in names
    # Pulsar 3.0 lacks this interface; in newer brokers their own one is loaded first
    foreign = [name for name in names if name.endswith(".class") and not name.startswith("offloader/pulsar/")]
    assert foreign == ["org/apache/bookkeeper/mledger/OffloadedLedgerHandle.class"]


def test_equal_sources_give_equal_bytes(built: Path) -> None:
    assert (built / "plugin.nar").read_bytes() == built_nar().read_bytes()


def test_missing_jdk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(Unavailable, match="there is no javac to build the broker plugin with: install a JDK 17"):
        find_javac()


def test_old_jdk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "javac").write_text("#!/bin/sh\necho javac 11.0.2\n")
    (tmp_path / "javac").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(Unavailable, match="is too old to build the broker plugin"):
        find_javac()


def test_what_is_not_built_is_not_built_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match=r"`\./dev plugin` does it"):
        built_nar(build=False)
    assert list(tmp_path.iterdir()) == []


def test_compiler_errors_are_shown(tmp_path: Path) -> None:
    broken = tmp_path / "Broken.java"
    broken.write_text("class Broken { int x = true; }\n")
    with pytest.raises(Unavailable, match="incompatible types"):
        compile_java([broken], tmp_path / "classes", [])


def test_javac_of_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("javac")
    assert real is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/javac").symlink_to(real)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_javac() == str(tmp_path / "bin/javac")
