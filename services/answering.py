"""A process of ours that answers each line of its input with a line of JSON.

It doesn't leave the process behind.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from services.binaries import Unavailable
from services.servers import RunningProcess

__all__ = ["AnsweringProcess", "Refused"]

STOP_TIMEOUT_S = 60.0


class Refused(Exception):
    """It answered a question with an error."""


class AnsweringProcess(RunningProcess):
    """One that runs.

    Args:
        name: what it is, for messages.
        process: with pipes of text at its input and output.
        log: where its other output goes.
    """

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path) -> None:
        super().__init__(process, log)
        self._name = name
        self._lock = threading.Lock()
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="answers", daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> Self:
        """Starts ``command`` in ``folder``; its log goes to the end of ``log``."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        return cls(name, process, log)

    def ask(self, question: str, timeout_s: float) -> Any:
        """Its answer.

        Raises:
            Refused: that is an error.
            Unavailable: it ended, or didn't answer in time.
        """
        with self._lock:
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it ended: then there is no answer
                self.process.stdin.write(question + "\n")
                self.process.stdin.flush()
            answer = self.next_answer(timeout_s)
        if isinstance(answer, dict) and "error" in answer:
            raise Refused(answer["error"])
        return answer

    def next_answer(self, timeout_s: float) -> Any:
        """The next line that it says, asked or not; raises as ``ask`` does."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise Unavailable(f"{self._name} didn't answer within {timeout_s:g} s; its log is {self.log}") from None
        if line is None:
            last = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Unavailable(f"{self._name} ended: {' | '.join(last) or 'no output'}")
        return json.loads(line)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def close(self) -> None:
        """Ends it in order, by the end of its input, so that its folder can be used again; insists after a while."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(STOP_TIMEOUT_S)
        self.stop()
        self._reader.join(STOP_TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
