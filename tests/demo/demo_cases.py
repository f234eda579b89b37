"""What the tests of the demo share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offloader.demo.run import DemoRequest, DemoResult, Observer, Progress, run_demo
from offloader.runtime.clock import SystemClock


def events(count: int, *, start: int = 0) -> list[bytes]:
    """NDJSON lines that differ; a minute apart by their field ``t``."""
    return [
        json.dumps({"n": n, "t": 1_700_000_000 + 60 * n, "text": f"event number {n} " * 3}).encode()
        for n in range(start, start + count)
    ]


def write_events(path: Path, count: int, *, start: int = 0) -> Path:
    path.write_bytes(b"\n".join(events(count, start=start)) + b"\n")
    return path


class Watching(Observer):
    """Keeps what it hears, and calls ``at_progress`` with each moment."""

    def __init__(self, at_progress: Callable[[Progress], None] = lambda now: None) -> None:
        self.steps: list[str] = []
        self.moments: list[Progress] = []
        self._at_progress = at_progress

    def step(self, text: str) -> None:
        self.steps.append(text)

    def progress(self, now: Progress) -> None:
        self.moments.append(now)
        self._at_progress(now)


def run(directory: Path, observer: Watching | None = None, **request: Any) -> DemoResult:
    """The demo without Spark and picture."""
    return run_demo(
        DemoRequest(directory=str(directory), **{"spark": False, "picture": False, **request}),
        observer or Watching(),
        SystemClock(),
    )


def files_in(directory: Path) -> dict[str, bytes]:
    """Everything below a directory but SQLite's and the picture's files, which change by being looked at."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and ".db" not in path.name and path.suffix != ".png"
    }
