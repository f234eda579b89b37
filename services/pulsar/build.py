"""The class path of a real broker: in the cache, or fetched and compiled with Maven.

Owns where it is kept and which versions it has: ``pom.xml`` beside this file. Must never run anything of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from services.binaries import Unavailable, cache_directory
from services.maven import build_with_maven

__all__ = ["SOURCES", "find_java", "find_place", "place"]

SOURCES = Path(__file__).parent
JAVA_VERSION_MIN = 17


def place() -> Path:
    """Where it is once it is built; the name changes with everything that it is made of."""
    made_of = b"".join(path.read_bytes() for path in (SOURCES / "pom.xml", *sorted(SOURCES.glob("java/*.java"))))
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
    return build_with_maven("the Pulsar broker", SOURCES, found)


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
