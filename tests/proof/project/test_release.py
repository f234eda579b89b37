"""The files of a release: complete, reproducible, with checksums; and the image's steps in a plain folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from services.release import ROOT, SOURCES, TIME_S_MIN, build_release, release_notes, release_time_s
from tests.project.test_deployment import IMAGE, SIDECAR, instructions
from tests.support.quick import needs

TIME_S = TIME_S_MIN + 86_400
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def copied(root: Path, copy: Path) -> Path:
    """What a release is made of, in the new folder ``copy``; that folder."""
    copy.mkdir()
    for name in (*SOURCES, "deploy", ".dockerignore", "CHANGELOG.md"):
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, copy / name)
    return copy


@pytest.fixture(scope="module")
@needs("process")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    plugin = folder / f"offloader-pulsar-plugin-{VERSION}.nar"
    plugin.write_bytes(b"a plugin")
    build_release(copied(ROOT, folder / "source"), folder / "dist", time_s=TIME_S, plugin=plugin)
    return folder / "dist"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_release_has_each_file_and_its_checksum(released: Path) -> None:
    files = contents(released)
    sums = dict(line.split("  ")[::-1] for line in files.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert set(files) == {
        f"offloader-{VERSION}.tar.gz",
        f"offloader-{VERSION}-py3-none-any.whl",
        f"offloader-pulsar-plugin-{VERSION}.nar",
        f"offloader-container-{VERSION}.tar.gz",
        "constraints.txt",
        "RELEASE-NOTES.md",
    }


@pytest.mark.process
@pytest.mark.timeout(600)
def test_equal_sources_give_equal_files_whatever_their_times_and_modes(released: Path, tmp_path: Path) -> None:
    copy = copied(released.parent / "source", tmp_path / "elsewhere")
    for path in copy.rglob("*"):
        if path.is_file():
            os.utime(path, (TIME_S, TIME_S + 7))
            path.chmod(0o600)
    plugin = tmp_path / f"offloader-pulsar-plugin-{VERSION}.nar"
    plugin.write_bytes(b"a plugin")
    before = os.umask(0o077)
    try:
        build_release(copy, tmp_path / "dist", time_s=TIME_S, plugin=plugin)
    finally:
        os.umask(before)
    assert contents(tmp_path / "dist") == contents(released)


def test_wheel_offers_every_extra_of_the_project(released: Path) -> None:
    (wheel,) = released.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        text = packed.read(f"offloader-{VERSION}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(metadata.get_all("Provides-Extra") or ()) == set(extras)
    assert metadata["Version"] == VERSION


def test_time_of_the_archives_is_given_or_that_of_the_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(TIME_S))
    assert release_time_s(tmp_path) == TIME_S
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
    assert release_time_s(tmp_path) == TIME_S_MIN, "no zip file can express earlier times"


def test_notes_have_the_changes_of_the_version_or_the_newest_ones(tmp_path: Path) -> None:
    log = "# Changelog\n\n## [Unreleased]\n\n* Newest.\n\n## [1.0] - 2026-01-02\n\n* First.\n"
    (tmp_path / "CHANGELOG.md").write_text(log)
    assert release_notes(tmp_path, "1.0").endswith("\n\n* First.\n")
    assert release_notes(tmp_path, "1.1").endswith("\n\n* Newest.\n")


@pytest.mark.process
@pytest.mark.timeout(900)  # pip makes an environment
def test_image_is_made_of_the_build_context_by_its_own_steps(released: Path, tmp_path: Path) -> None:
    """The steps of the first stage in a plain folder; the second one copies its result, and runs the entry point."""
    context, made = tmp_path / "context", tmp_path / "image"
    (packed,) = released.glob("offloader-container-*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(context, filter="data")
    assert (context / "deploy" / "Containerfile").read_bytes() == IMAGE.read_bytes()
    build = made / "build"
    build.mkdir(parents=True)
    steps = instructions(context / "deploy" / "Containerfile")
    second = next(number for number, (name, _) in enumerate(steps) if number and name == "FROM")
    for name, rest in steps[:second]:
        if name == "COPY":
            *sources, _ = rest.split()
            for source in sources:
                copy = shutil.copytree if (context / source).is_dir() else shutil.copy
                copy(context / source, build / source)
        elif name == "RUN":
            for line in rest.replace("/opt/", f"{made}/opt/").split(" && "):
                run_step(line, build, made)
    entry, command = (dict(steps)[name] for name in ("ENTRYPOINT", "CMD"))
    assert "ENV PATH=/opt/offloader/bin:$PATH" in IMAGE.read_text()
    words = [str(SIDECAR) if word.endswith("offloader.toml") else word for word in json.loads(command)]
    program = made / "opt" / "offloader" / "bin" / json.loads(entry)[0]
    environment = {"PATH": os.environ["PATH"], "HOME": str(made), "OFFLOADER_READ_TOKEN": "only-for-this-machine"}
    done = subprocess.run(
        [program, *words, "--check"], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr


def run_step(line: str, folder: Path, made: Path) -> None:
    """A line of a RUN step; pip takes from this environment what it would take from an index."""
    line = re.sub(r"^python ", f"{sys.executable} ", line.strip())
    line = line.replace("pip install", "pip install --quiet --no-compile --no-index --no-deps --no-build-isolation")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OFFLOADER_", "COV"))}
    subprocess.run(["bash", "-euc", line], cwd=folder, env=kept, capture_output=True, timeout=600, check=True)
    if " -m venv " in line:
        (site,) = made.glob("opt/offloader/lib/python*/site-packages")
        (site / "here.pth").write_text("\n".join(each for each in sys.path if each.endswith("site-packages")))
        (site / "distutils-precedence.pth").unlink(missing_ok=True)
        for each in site.glob("setuptools*"):
            shutil.rmtree(each)
