"""The product of an earlier commit, run as a process of its own beside this release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

__all__ = ["ARCHIVED", "PREVIOUS", "MissingCommit", "Side", "previous_release"]

ROOT = Path(__file__).resolve().parents[2]
#: The release before this one: what runs beside it in a rolling upgrade. Set anew with each release.
PREVIOUS = "249d0f07707c891f1d926ddb630b2f7ae947accc"
#: The release that wrote the newest archive beside this file.
ARCHIVED = "336464982f5fcd541c8eca72cc1b766e946d6415"
_PRODUCT = ("formats", "offloader", "pyspark_offloader.py")


class MissingCommit(Exception):
    """The clone lacks the commit of an earlier release."""


def previous_release(commit: str, folder: Path, root: Path = ROOT) -> Path:
    """A folder with the product of ``commit``, to be put on the path.

    Raises:
        MissingCommit: the checkout is no clone, or a shallow one without that commit.
    """
    packed = folder / "release.tar"
    command = ["git", "-C", str(root), "archive", "--format=tar", f"--output={packed}", commit, *_PRODUCT]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise MissingCommit(
            f"the code of the earlier release {commit[:12]} isn't in {root}: {done.stderr.strip()}; it is in a full "
            "clone: git fetch --unshallow (in a workflow: fetch-depth: 0)"
        )
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "release", filter="data")
    return folder / "release"


class Side:
    """One process that runs a release; a context.

    Args:
        release: folder of its product; this checkout: this release.
        words: of ``beside.py``.
    """

    def __init__(self, release: Path, *words: str) -> None:
        environ = {**os.environ, "PYTHONPATH": f"{release}{os.pathsep}{ROOT}"}
        environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environ.pop("OFFLOADER_STORE", None)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("beside.py")), *words],
            cwd=release,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def said(self) -> dict[str, Any]:
        """Its next answer."""
        line = cast("IO[str]", self.process.stdout).readline()
        assert line, f"the process ended with {self.process.wait()}"
        return cast("dict[str, Any]", json.loads(line))

    def append(self, first: int, count: int) -> dict[str, Any]:
        """Has an owner append and offload entries; its answer."""
        stdin = cast("IO[str]", self.process.stdin)
        stdin.write(f"{first} {count}\n")
        stdin.flush()
        return self.said()

    def ended(self) -> int:
        """Ends its input; its exit code."""
        self.process.communicate()
        return self.process.returncode
