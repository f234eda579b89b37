"""What processes use, once a second: from the system and from what the sidecar exposes.

It doesn't ask more of a process than an operator's monitoring would.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tests.proof.soak.soak_flatness import Series

__all__ = ["Sampler", "of_process", "summed"]

_MIB = 1024 * 1024
_SAMPLE_LINE = re.compile(rb"^offloader_(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_SCRAPE_TIMEOUT_S = 20.0


def of_process(pid: int) -> dict[str, float]:
    """Resident memory in MiB, threads and open descriptors of a process.

    Raises:
        OSError: it isn't there any more.
    """
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    if "VmRSS" not in lines:
        raise ProcessLookupError(f"process {pid} has ended")
    return {
        "memory": int(lines["VmRSS"].split()[0]) / 1024,
        "threads": float(lines["Threads"]),
        "descriptors": float(len(os.listdir(f"/proc/{pid}/fd"))),  # noqa: PTH208 - names only
    }


def summed(exposition: bytes) -> dict[str, float]:
    """Metric -> the sum over its labels, of what ``/metrics`` answers."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE_LINE.findall(exposition):
        found[name.decode()] = found.get(name.decode(), 0.0) + float(value)
    return found


class Sampler:
    """Samples by name, all taken at the same times.

    Args:
        pids: name -> process.
        metrics_url: of the sidecar.
        metrics: those of its metrics that are kept.
        sizes: further values, by name, asked for every ``sizes_every_s``.
    """

    def __init__(
        self,
        pids: Mapping[str, int],
        metrics_url: str,
        metrics: tuple[str, ...],
        sizes: Callable[[], Mapping[str, float]],
        *,
        sizes_every_s: float = 15.0,
    ) -> None:
        self._pids, self._url, self._metrics = pids, metrics_url, metrics
        self._sizes, self._sizes_every_s = sizes, sizes_every_s
        self._sizes_at_s = -sizes_every_s
        self._began_s = time.monotonic()
        self.rows: list[dict[str, float]] = []

    def sample(self) -> dict[str, float]:
        """Takes one and keeps it.

        Raises:
            OSError: a process is gone.
        """
        now_s = time.monotonic() - self._began_s
        row = {"time_s": now_s}
        for name, pid in self._pids.items():
            row |= {f"{name} {what}": value for what, value in of_process(pid).items()}
        # As a monitoring does: one that isn't answered is left out, and the next one tells.
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(self._url, timeout=_SCRAPE_TIMEOUT_S) as answer:
                exposed = summed(answer.read())
            row |= {name: exposed.get(name, 0.0) for name in self._metrics}
        if now_s - self._sizes_at_s >= self._sizes_every_s:
            self._sizes_at_s = now_s
            row |= self._sizes()
        self.rows.append(row)
        return row

    def series(self, name: str, title: str, unit: str, *, factor: float = 1.0) -> Series:
        """All samples of one name."""
        times_s = np.array([row["time_s"] for row in self.rows])
        return Series(title, unit, times_s, np.array([row.get(name, np.nan) for row in self.rows]) * factor)

    def save(self, path: Path) -> None:
        """Everything, as CSV."""
        names = sorted({name for row in self.rows for name in row}, key=lambda name: (name != "time_s", name))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.rows)
