"""The broker plugin as one NAR file: compiled with javac, against interfaces that Maven fetches once.

    python -m services.broker_plugin          # or ./dev plugin: builds it into dist/ and prints where it is

The interfaces and the NAR are kept in the cache, so that later builds need no network.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from services.binaries import Unavailable, cache_directory
from services.maven import build_with_maven

__all__ = [
    "SOURCES",
    "build_in",
    "built_nar",
    "compile_java",
    "find_javac",
    "interfaces",
    "nar_place",
    "plugin_version",
]

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "pulsar-plugin"
#: The oldest Java that a supported broker runs on.
JAVA_RELEASE = 17
_COMPILE_TIMEOUT_S = 300
#: The compiler lives for seconds, so compiling it well costs more than that brings.
_SHORT = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")
#: Of every file in the NAR, so that equal sources give equal bytes; the first moment that a zip can express.
_TIME = (1980, 1, 1, 0, 0, 0)


def plugin_version(root: Path = ROOT) -> str:
    """The version of the project, which is the plugin's too."""
    with (root / "pyproject.toml").open("rb") as read:
        return str(tomllib.load(read)["project"]["version"])


def nar_place() -> Path:
    """Where the NAR of these sources is once it is built; the folder's name changes with them."""
    version = plugin_version()
    made_of = hashlib.sha256(version.encode())
    for path in sorted(SOURCES.glob("**/*")):
        if path.is_file() and path.relative_to(SOURCES).parts[0] in ("pom.xml", "src", "resources"):
            made_of.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes() + b"\0")
    folder = cache_directory() / f"broker-plugin-{made_of.hexdigest()[:12]}"
    return folder / f"offloader-pulsar-plugin-{version}.nar"


def built_nar(build: bool = True) -> Path:
    """The NAR of these sources: cached or, where ``build`` allows it, built and cached.

    Raises:
        Unavailable: it isn't built and can't be; the text says what to do.
    """
    nar = nar_place()
    if nar.is_file():
        return nar
    if not build:
        raise Unavailable("the broker plugin isn't built: `./dev plugin` does it (JDK 17, Maven)")
    jars = interfaces()
    with (cache_directory() / "broker-plugin.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs build it once
        if not nar.is_file():
            with tempfile.TemporaryDirectory(dir=cache_directory()) as made:
                build_in(Path(made), nar.name, jars)
                (Path(made) / nar.name).replace(_folder(nar.parent) / nar.name)
    return nar


def interfaces() -> Path:
    """The folder of the jars that ``pom.xml`` pins: cached, or fetched with Maven.

    Raises:
        Unavailable: Maven is missing or failed.
    """
    pinned = hashlib.sha256((SOURCES / "pom.xml").read_bytes()).hexdigest()[:12]
    return build_with_maven("the interfaces of the broker plugin", SOURCES, cache_directory() / f"plugin-jars-{pinned}")


def build_in(folder: Path, name: str, jars: Path) -> None:
    """Compiles the sources into ``folder`` and packs them as the NAR ``name`` there."""
    classes = folder / "classes"
    compile_java(sorted((SOURCES / "src").glob("**/*.java")), classes, [jars / "*"])
    files = {path.relative_to(classes).as_posix(): path for path in sorted(classes.glob("**/*.class"))}
    resources = SOURCES / "resources"
    files |= {path.relative_to(resources).as_posix(): path for path in resources.glob("**/*") if path.is_file()}
    with zipfile.ZipFile(folder / name, "w") as nar:
        _add(nar, "META-INF/MANIFEST.MF", b"Manifest-Version: 1.0\r\nNar-Id: offloader-pulsar-plugin\r\n\r\n")
        # the broker's loader of NARs wants it, though nothing is bundled
        _add(nar, "META-INF/bundled-dependencies/", b"")
        for inside, path in sorted(files.items()):
            _add(nar, inside, path.read_bytes())


def compile_java(sources: Sequence[Path], classes: Path, class_path: Sequence[Path]) -> None:
    """Compiles ``sources`` into the folder ``classes``.

    Raises:
        Unavailable: there is no JDK, or the sources don't compile.
    """
    _folder(classes)
    command = [
        find_javac(),
        *_SHORT,
        "--release",
        str(JAVA_RELEASE),
        "-proc:none",
        "-Xlint:all,-classfile,-path,-processing,-try",
        "-Werror",
    ]
    command += ["-encoding", "UTF-8", "-d", str(classes), "-cp", os.pathsep.join(map(str, class_path))]
    done = subprocess.run(
        [*command, *map(str, sources)], capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise Unavailable(f"the broker plugin doesn't compile:\n{done.stdout}{done.stderr}".rstrip())


def find_javac() -> str:
    """The compiler of a JDK that is new enough.

    Raises:
        Unavailable: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin") if home else None
    javac = javac or shutil.which("javac")
    hint = f"install a JDK {JAVA_RELEASE} or newer (Debian: openjdk-17-jdk-headless), or set JAVA_HOME to one"
    if javac is None:
        raise Unavailable(f"there is no javac to build the broker plugin with: {hint}")
    done = subprocess.run([javac, "-version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"javac (\d+)", done.stdout + done.stderr)
    if found is None or int(found[1]) < JAVA_RELEASE:
        raise Unavailable(f"{javac} is too old to build the broker plugin with: {hint}")
    return javac


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _add(nar: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    is_folder = name.endswith("/")
    entry.external_attr = (0o40755 if is_folder else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_STORED if is_folder else zipfile.ZIP_DEFLATED
    nar.writestr(entry, content)


def main() -> int:
    """Builds the NAR and copies it into the folder that ``--into`` names."""
    parser = argparse.ArgumentParser(prog="python -m services.broker_plugin", description="Build the broker plugin.")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the folder for the NAR (dist)")
    into = parser.parse_args().into
    try:
        nar = built_nar()
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(shutil.copy(nar, _folder(into) / nar.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
