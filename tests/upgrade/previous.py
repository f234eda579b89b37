"""The product of an earlier commit, run as a process of its own beside this release."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

__all__ = ["ARCHIVED", "PACKED", "PREVIOUS", "Forks", "MissingRelease", "Side", "previous_release"]

ROOT = Path(__file__).resolve().parents[2]
#: The release before this one: what runs beside it in a rolling upgrade. Set anew with each release.
PREVIOUS = "249d0f07707c891f1d926ddb630b2f7ae947accc"
#: The release that wrote the newest archive beside this file.
ARCHIVED = "336464982f5fcd541c8eca72cc1b766e946d6415"
_PRODUCT = ("formats", "offloader", "pyspark_offloader.py")


#: Their code, one folder each, so that a clone needs no history. Made by ``python -m tests.upgrade.previous``.
PACKED = Path(__file__).with_name("earlier-releases.txz")


class MissingRelease(Exception):
    """The code of an earlier release isn't packed."""


def previous_release(commit: str, folder: Path, packed: Path = PACKED) -> Path:
    """A folder with the product of ``commit``, to be put on the path.

    Raises:
        MissingRelease: it isn't packed.
    """
    with tarfile.open(packed) as archive:
        wanted = [each for each in archive.getmembers() if each.name.startswith(f"{commit}/")]
        if not wanted:
            raise MissingRelease(f"{packed} lacks release {commit}: pack it by python -m tests.upgrade.previous")
        archive.extractall(folder, wanted, filter="data")
    return folder / commit


def pack(commits: Sequence[str], packed: Path) -> None:
    """Packs the code of releases, which have to be in this clone, into one archive."""
    with tarfile.open(packed, "w:xz", preset=9) as archive:
        for commit in commits:
            command = ["git", "-C", str(ROOT), "archive", "--format=tar", f"--prefix={commit}/", commit, *_PRODUCT]
            tar = subprocess.run(command, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(tar)) as release:
                for member in release:
                    archive.addfile(member, release.extractfile(member) if member.isfile() else None)


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


class Forks:
    """Short processes of releases, as ``Side`` has them, without the time that each takes to load its modules.

    A context that ends what they are forked from.
    """

    def __init__(self) -> None:
        self._sides: dict[Path, Side] = {}

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for side in self._sides.values():
            side.__exit__(None, None, None)

    def code(self, release: Path, *words: str) -> int:
        """Its exit code."""
        return int(self._ended(release, *words)["code"])

    def said(self, release: Path, *words: str) -> list[dict[str, Any]]:
        """Its answers; it ended well."""
        ended = self._ended(release, *words)
        assert ended["code"] == 0, words
        return [json.loads(line) for line in ended["printed"].splitlines()]

    def _ended(self, release: Path, *words: str) -> dict[str, Any]:
        if release not in self._sides:
            self._sides[release] = Side(release, "fork")
        side = self._sides[release]
        stdin = cast("IO[str]", side.process.stdin)
        stdin.write(json.dumps(words) + "\n")
        stdin.flush()
        return side.said()


if __name__ == "__main__":
    pack((PREVIOUS, ARCHIVED), PACKED)
