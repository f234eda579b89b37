"""The class path of a real broker: in the cache, or fetched and compiled with Maven.

Owns where it is kept and which versions it has: ``pom.xml`` beside this file. Must never leave half of it under its
final name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from services.binaries import Unavailable, cache_directory

__all__ = ["BUILD_TIMEOUT_S", "SOURCES", "find_java", "find_place", "place"]

SOURCES = Path(__file__).parent
#: 280 MB of downloads in 1,200 files, minutes on a slow line. Maven keeps what it has, so a second try goes on.
BUILD_TIMEOUT_S = 900
JAVA_VERSION_MIN = 17


def place() -> Path:
    """Where it is once it is built; the name changes with everything that it is made of."""
    made_of = b"".join(path.read_bytes() for path in [SOURCES / "pom.xml", *sorted(SOURCES.glob("java/*.java"))])
    return cache_directory() / f"pulsar-{hashlib.sha256(made_of).hexdigest()[:12]}"


def find_place(*, build: bool) -> Path:
    """The folder with ``lib`` and ``offloaders``: cached, or, where ``build`` allows it, made and cached.

    Raises:
        Unavailable: no Java to run it, or it isn't built and can't be; the text says what to do.
    """
    find_java()
    found = place()
    if found.is_dir():
        return found
    if not build:
        raise Unavailable("the Pulsar broker isn't built: `python -m services.servers build pulsar` does it (Maven)")
    return _build(found)


def find_java() -> str:
    """A Java runtime that is new enough; a compiler isn't needed.

    Raises:
        Unavailable: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise Unavailable(f"there is no Java to run the broker with: install Java {JAVA_VERSION_MIN} or newer")
    text = subprocess.run([java, "-version"], check=True, capture_output=True, text=True, timeout=60).stderr
    match = re.search(r'version "(\d+)', text)
    if match is None or int(match[1]) < JAVA_VERSION_MIN:
        first = text.partition("\n")[0]
        raise Unavailable(f"Java {JAVA_VERSION_MIN} or newer is needed to run the broker, there is: {first}")
    return java


def _build(target: Path) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("there is no Maven to build the Pulsar broker with: install Maven 3.8 or newer")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs build it once
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            sources, made = Path(folder) / "sources", Path(folder) / "made"
            shutil.copytree(SOURCES, sources)
            command = [maven, "--batch-mode", "--quiet", "--no-transfer-progress", f"-Dplace={made}", "package"]
            try:
                subprocess.run(
                    command, cwd=sources, check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
                )
            except subprocess.CalledProcessError as error:
                lines = [line for line in error.stdout.splitlines() if line.startswith("[ERROR]")] or ["no output"]
                raise Unavailable(f"building the Pulsar broker failed: {lines[0]}") from error
            except subprocess.TimeoutExpired as error:
                raise Unavailable(
                    f"building the Pulsar broker took longer than {BUILD_TIMEOUT_S} s: try again, Maven goes on"
                ) from error
            made.replace(target)
    return target
