"""A process of Pulsar's classes that answers questions, one line of JSON for each.

Owns how it is started, asked and ended. Must never leave it behind, nor wait for it without a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from services.binaries import Unavailable
from services.pulsar.build import SOURCES, find_java
from services.servers import RunningProcess

__all__ = ["AskedProcess", "Refused"]

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0

_JAVA_OPTIONS = [
    "-Xms128m",
    "-Xmx640m",
    "-XX:MaxDirectMemorySize=384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    f"-Dlog4j.configurationFile={SOURCES / 'log4j2.xml'}",
]


class Refused(Exception):
    """The process answered a question with an error."""


class AskedProcess(RunningProcess):
    """One of the programs in ``java``: it says when it is ready, then answers; the end of its input ends it."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        super().__init__(process, log)
        self._lock = threading.Lock()
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="pulsar-answers", daemon=True)
        self._reader.start()

    @classmethod
    def started(
        cls, program: str, built: Path, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Self:
        """Starts ``program`` in ``folder``, which is made when it isn't there.

        Args:
            built: what ``find_place`` gave.
            environment: added to this process's.

        Raises:
            Unavailable: there is no Java.
        """
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{program}.log"
        command = [find_java(), *_JAVA_OPTIONS, "-cp", f"{built / 'lib'}/*", program, *arguments]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        return cls(process, log)

    def await_ready(self) -> Any:
        """What it says of itself when it takes questions.

        Raises:
            Unavailable: it ended, or isn't ready within ``START_TIMEOUT_S``.
        """
        return self._next(START_TIMEOUT_S)

    def ask(self, question: str) -> Any:
        """The answer to ``question``.

        Raises:
            Refused: it is an error.
            Unavailable: it ended, or didn't answer within ``ANSWER_TIMEOUT_S``.
        """
        with self._lock:
            assert self.process.stdin is not None
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
            answer = self._next(ANSWER_TIMEOUT_S)
        if isinstance(answer, dict) and "error" in answer:
            raise Refused(answer["error"])
        return answer

    def _next(self, timeout_s: float) -> Any:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise Unavailable(f"Pulsar didn't answer within {timeout_s:g} s; its log is {self.log}") from None
        if line is None:
            last = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Unavailable(f"Pulsar ended: {' | '.join(last) or 'no output'}")
        return json.loads(line)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def close(self) -> None:
        """Ends it in order, so that the same folder can be used again; insists after ``STOP_TIMEOUT_S``."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(STOP_TIMEOUT_S)
        self.stop()
        self._reader.join(STOP_TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
