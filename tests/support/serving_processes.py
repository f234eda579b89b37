"""``offloader serve`` as processes of their own, killed at the end whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.waiting import PATIENCE_S, eventually

__all__ = ["Serving"]


class Serving:
    """One process; a context.

    Attributes:
        lines: what it logged, one document each; what isn't JSON as ``{"text": ...}``.
    """

    def __init__(
        self, config: Path, environ: Mapping[str, str] | None = None, *options: str, wait: bool = True
    ) -> None:
        command = [sys.executable, "-m", "offloader.cli.main", "serve", "--config", str(config), *options]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environ or {})}, encoding="utf-8"
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait = wait

    def __enter__(self) -> Serving:
        try:
            if self._wait:
                self.logged("started")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, within_s: float = PATIENCE_S) -> int:
        """Its exit code, once all it said is in ``lines``."""
        code = self.process.wait(within_s)
        self._reader.join(within_s)
        return code

    def logged(self, event: str, count: int = 1) -> dict[str, Any]:
        """The newest line of an event, when there are ``count`` of them."""
        eventually(lambda: self.process.poll() is not None or len(self._of(event)) >= count)
        found = self._of(event)
        assert len(found) >= count, self.lines
        return found[-1]

    def _of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line.get("event") == event]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"text": line.rstrip("\n")})
