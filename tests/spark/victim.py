"""A program with a Spark of its own, as a process to kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.waiting import eventually

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: A JVM's start on a machine that is busy.
START_S = 240.0


class Victim:
    """Runs a program of this folder; what it prints is in ``folder``.

    Args:
        program: its name.
        folder: for its log.
        arguments: of the program.
        environment: besides this process's.
    """

    def __init__(self, program: str, folder: Path, *arguments: object, **environment: str) -> None:
        self._log = (folder / "victim.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / program), *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def await_that(self, is_so: Callable[[], object]) -> None:
        """Waits until it is so while the program lives."""

        def looked() -> object:
            assert self.process.poll() is None, Path(self._log.name).read_text()
            return is_so()

        eventually(looked, within_s=START_S)

    def kill(self) -> None:
        """SIGKILL to it, its JVM and its workers at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()
