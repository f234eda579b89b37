"""The class paths of real brokers, one a release: in the cache, or fetched and compiled with Maven.

``pom.xml`` beside this file has what a release is made of. Runs nothing of it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.binaries import Unavailable, cache_directory
from services.maven import build_with_maven

__all__ = ["DEFAULT", "RELEASES", "SCALABLE", "SOURCES", "Release", "find_java", "find_place", "place"]

SOURCES = Path(__file__).parent
JAVA_VERSION_MIN = 17


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Pulsar that can be run.

    Attributes:
        version: of the broker.
        is_bare: without Pulsar's own offloader, and only with the program that runs a broker.
        is_scalable: its topics can be scalable ones, and it has the program that produces to them and consumes them.
    """

    version: str
    is_bare: bool = True
    is_scalable: bool = False

    @property
    def properties(self) -> Mapping[str, str]:
        """What ``pom.xml`` needs to know; nothing for the release that it names itself."""
        if not self.is_bare:
            return {}
        properties = {"pulsar.version": self.version, "programs": "Real*.java", "offloader.skip": "true"}
        return {**properties, "scalable": "true"} if self.is_scalable else properties


#: By the minor release's name: the first and the last that the broker plugin supports, the one of all tests, and the
#: first with scalable topics.
RELEASES = {
    "3.0": Release("3.0.7"),
    "4.0": Release("4.0.7", is_bare=False),
    "4.2": Release("4.2.4"),
    "5.0": Release("5.0.0-M1", is_scalable=True),
}
DEFAULT, SCALABLE = "4.0", "5.0"


def place(release: str = DEFAULT) -> Path:
    """Where a release is once it is built; the name changes with everything that it is made of."""
    made_of = b"".join(path.read_bytes() for path in (SOURCES / "pom.xml", *sorted(SOURCES.glob("java/*.java"))))
    made_of += repr(sorted(RELEASES[release].properties.items())).encode()
    return cache_directory() / f"pulsar-{hashlib.sha256(made_of).hexdigest()[:12]}"


def find_place(release: str = DEFAULT, *, build: bool) -> Path:
    """The folder with ``lib`` and ``offloaders``: cached, or, where ``build`` allows it, made and cached.

    Args:
        release: one of ``RELEASES``.

    Raises:
        Unavailable: no Java to run it, or it isn't built and can't be; the text says what to do.
    """
    find_java()
    found = place(release)
    if found.is_dir():
        return found
    if not build:
        name = "pulsar" if release == DEFAULT else f"pulsar-{release}"
        raise Unavailable(f"the Pulsar broker isn't built: `python -m services.servers build {name}` does it (Maven)")
    properties = RELEASES[release].properties
    what = "the Pulsar broker" if release == DEFAULT else f"the broker of Pulsar {release}"
    return build_with_maven(what, SOURCES, found, properties)


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
    text = _version_of(java)
    match = re.search(r'version "(\d+)', text)
    if match is None or int(match[1]) < JAVA_VERSION_MIN:
        first = text.partition("\n")[0]
        raise Unavailable(f"Java {JAVA_VERSION_MIN} or newer is needed to run the broker, there is: {first}")
    return java


@functools.cache
def _version_of(java: str) -> str:
    """What a Java says of itself: each is asked once, as a run of tests looks for one many times."""
    return subprocess.run([java, "-version"], check=True, capture_output=True, text=True, timeout=60).stderr
