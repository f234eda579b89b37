"""What comes from Maven: fetched, compiled and put in the cache once, whoever asks first.

It doesn't leave half of it under its final name.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from services.binaries import Unavailable

__all__ = ["build_with_maven"]

#: The broker is 280 MB of downloads in 1,200 files, minutes on a slow line. Maven keeps what it has: a second try goes
#: on.
_TIMEOUT_S = 900


def build_with_maven(what: str, sources: Path, target: Path, properties: Mapping[str, str] | None = None) -> Path:
    """``target``, made by ``sources/pom.xml``, which puts everything into the folder that its property ``place`` names.

    Args:
        what: it is, for messages.
        sources: are copied, so that nothing is written beside them.
        target: in the cache; its name changes with what it is made of.
        properties: of ``pom.xml``, other than what it says itself.

    Raises:
        Unavailable: there is no Maven, or it failed; the text says what to do.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"there is no Maven to build {what} with: install Maven 3.8 or newer")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs build it once
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            copied, made = Path(folder) / "sources", Path(folder) / "made"
            shutil.copytree(sources, copied)
            given = [f"-D{name}={value}" for name, value in {"place": str(made), **(properties or {})}.items()]
            command = [maven, "--batch-mode", "--quiet", "--no-transfer-progress", *given, "package"]
            try:
                subprocess.run(command, cwd=copied, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
            except subprocess.CalledProcessError as error:
                lines = [line for line in error.stdout.splitlines() if line.startswith("[ERROR]")] or ["no output"]
                raise Unavailable(f"building {what} failed: {lines[0]}") from error
            except subprocess.TimeoutExpired as error:
                raise Unavailable(
                    f"building {what} took longer than {_TIMEOUT_S} s: try again, Maven goes on"
                ) from error
            made.replace(target)
    return target
