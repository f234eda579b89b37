"""The files of a release, built reproducibly: equal sources give equal bytes.

    python -m services.release          # or ./dev release: builds them into dist/ and prints their names

Wheel, source distribution, the plugin for Pulsar's broker, the container's build context, the pinned versions of what
the package needs, the notes of the release and the checksums of all of these.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from services.binaries import Unavailable
from services.broker_plugin import built_nar, plugin_version

__all__ = ["ROOT", "build_packages", "build_release", "pack", "release_notes", "release_time_s"]

ROOT = Path(__file__).parent.parent
#: What the source distribution is made of.
SOURCES = (
    *("formats", "offloader", "tests"),
    *("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "pyspark_offloader.py"),
)
#: The first moment that a zip file can express, in seconds since 1970 UTC.
TIME_S_MIN = 315_532_800
_BUILD_TIMEOUT_S = 300
_BUILD = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"


def release_time_s(root: Path = ROOT) -> int:
    """The time of every file in the archives: ``SOURCE_DATE_EPOCH``, by default the time of the commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        given = done.stdout.strip() or "0"
    return max(int(given), TIME_S_MIN)


def pack(target: Path, files: Mapping[str, bytes], time_s: int) -> None:
    """Writes ``files`` (name inside -> content) as ``target``, a .tar.gz whose bytes depend on nothing else."""
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=time_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), time_s, 0o644
            archive.addfile(entry, io.BytesIO(content))


def build_packages(root: Path, into: Path, time_s: int) -> tuple[Path, Path]:
    """Builds the source distribution from the checkout ``root``, and the wheel from that alone; needs no network.

    Returns:
        Both files, in ``into``.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, content in _files(root, SOURCES).items():
            _write(folder / "source" / name, content)
        made = _build("build_sdist", folder / "source", folder, time_s)
        with tarfile.open(made) as archive:
            bodies = {each.name: archive.extractfile(each) for each in archive.getmembers() if each.isfile()}
            files = {name: body.read() for name, body in bodies.items() if body is not None}
        sdist = into / made.name
        pack(sdist, files, time_s)
        for name, content in files.items():
            _write(folder / "unpacked" / name, content)
        (unpacked,) = (folder / "unpacked").iterdir()
        built = _build("build_wheel", unpacked, folder, time_s)
        return sdist, Path(shutil.copy(built, into / built.name))


def _build(verb: str, source: Path, into: Path, time_s: int) -> Path:
    # The build tool takes times from this variable.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time_s), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, verb, str(into)],
        cwd=source,
        env=environment,
        umask=0o022,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"setuptools: {verb} failed:\n{done.stderr[-2000:]}")
    return into / done.stdout.splitlines()[-1]


def _files(root: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Name below ``root`` -> content, without what Python compiled."""
    paths = [
        path for name in names for path in ([root / name] if (root / name).is_file() else (root / name).rglob("*"))
    ]
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    }


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o644)  # a wheel records modes


def container_files(root: Path) -> dict[str, bytes]:
    """The build context: what ``.dockerignore`` lets through, and the folder ``deploy``."""
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return _files(root, [".dockerignore", "deploy", *(line[1:] for line in lines if line.startswith("!"))])


def release_notes(root: Path, version: str) -> str:
    """The changes of this version, or those that no version has yet, and how to install the release."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections: dict[str, str] = dict(re.findall(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.M | re.S))
    changes = sections.get(version, sections.get("Unreleased", "")).strip()
    return f"""# offloader {version}

```text
sha256sum -c SHA256SUMS --ignore-missing
python3 -m venv ~/offloader
~/offloader/bin/pip install -c constraints.txt "$(ls ./offloader-{version}-py3-none-any.whl)[cli,s3]"
docker build -f deploy/Containerfile -t offloader - < "$(ls offloader-container-{version}.tar.gz)"
```

`offloader-pulsar-plugin-{version}.nar` goes into a broker's `offloaders` folder.

{changes}
"""


def build_release(root: Path, into: Path, *, time_s: int, plugin: Path | None) -> list[Path]:
    """Builds every file of the release into ``into``; the last one has the checksums of the others.

    Args:
        time_s: of every file in the archives, seconds since 1970 UTC.
        plugin: the built plugin; ``None``: a release without it.

    Raises:
        Unavailable: the build tool failed.
    """
    version = plugin_version(root)
    into.mkdir(parents=True, exist_ok=True)
    made = [*build_packages(root, into, time_s)]
    context = into / f"offloader-container-{version}.tar.gz"
    pack(context, container_files(root), time_s)
    notes = into / "RELEASE-NOTES.md"
    notes.write_text(release_notes(root, version), encoding="utf-8")
    made += [context, notes, Path(shutil.copy(root / "constraints.txt", into))]
    if plugin is not None:
        made.append(Path(shutil.copy(plugin, into / plugin.name)))
    sums = into / "SHA256SUMS"
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made))
    sums.write_text("".join(lines), encoding="utf-8")
    return [*made, sums]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m services.release", description="Build the files of a release.")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the folder for them (dist)")
    parser.add_argument("--without-plugin", action="store_true", help="leave the broker's plugin out: it needs a JDK")
    options = parser.parse_args()
    try:
        plugin = None if options.without_plugin else built_nar()
        made = build_release(ROOT, options.into, time_s=release_time_s(), plugin=plugin)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(map(str, made)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
