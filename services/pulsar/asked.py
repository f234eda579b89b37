"""A process of Pulsar's classes that answers questions, one line of JSON for each.

It doesn't wait for it without a limit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from services.answering import AnsweringProcess, Refused
from services.pulsar.build import SOURCES, find_java

__all__ = ["JAVA_OPTIONS", "AskedProcess", "Refused"]

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0

#: What Pulsar's classes need of any Java.
JAVA_OPTIONS = [
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    f"-Dlog4j.configurationFile={SOURCES / 'log4j2.xml'}",
]
#: What Java itself logs isn't an answer.
_QUIET = ["-Xlog:disable", "-Xlog:all=error:stderr"]
_SMALL = [
    "-Xms256m",
    "-Xmn160m",
    "-Xmx640m",
    "-XX:MaxDirectMemorySize=384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
]


class AskedProcess(AnsweringProcess):
    """One of the programs in ``java``: it says when it is ready, then answers; the end of its input ends it."""

    @classmethod
    def started(
        cls,
        program: str,
        built: Path,
        folder: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        java_options: Sequence[str] = (),
    ) -> Self:
        """Starts ``program`` in ``folder``, which is made when it isn't there.

        Args:
            built: what ``find_place`` gave.
            environment: added to this process's.
            java_options: of the Java machine; they win over those of every program.

        Raises:
            Unavailable: there is no Java.
        """
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{program}.log"
        options = [*_SMALL, *_QUIET, *JAVA_OPTIONS, *java_options]
        command = [find_java(), *options, "-cp", f"{built / 'lib'}/*", program, *arguments]
        return cls.start("Pulsar", command, folder, {**os.environ, **environment}, log)

    def await_ready(self) -> Any:
        """What it says of itself when it takes questions.

        Raises:
            Unavailable: it ended, or isn't ready within ``START_TIMEOUT_S``.
        """
        return self.next_answer(START_TIMEOUT_S)

    def ask(self, question: str, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """The answer to ``question``; raises as any ``AnsweringProcess``."""
        return super().ask(question, timeout_s)
