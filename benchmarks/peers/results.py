"""What was measured, kept in a file: parts that are measured by themselves become one table.

It doesn't put figures of different sizes beside each other.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.bench_offload import limits
from benchmarks.peers.bill import GET_USD, PRICES_FROM, PUT_USD
from benchmarks.peers.measure import Size
from services.binaries import BINARIES
from services.pulsar.build import SOURCES

__all__ = ["Results"]

_PACKAGES = ("boto3", "s3transfer", "obstore", "pyarrow", "pyspark")
_FIGURES = 4


class Results:
    """A document of plain values; what is added to it is in its file at once.

    Attributes:
        document: the conditions, the machine, ``cells`` (peer -> milliseconds added -> what was found) and ``readable``
            (the same).
    """

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self._path = path
        self.document = document

    @classmethod
    def of(cls, path: Path, size: Size, trickle_s: float) -> Results:
        """What ``path`` has already.

        Raises:
            ValueError: that was measured with other sizes or prices.
        """
        conditions = {
            **asdict(size),
            "trickle_s": trickle_s,
            "put_usd": PUT_USD,
            "get_usd": GET_USD,
            "prices_from": PRICES_FROM,
        }
        kept: dict[str, Any] = {"conditions": conditions, "machine": {}, "cells": {}, "readable": {}}
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["conditions"] != conditions:
            raise ValueError(f"{path} has results of other sizes: name another file with --results, or delete it")
        return cls(path, kept)

    def add(self, name: str, delay_ms: int, found: Mapping[str, Any]) -> None:
        self._put("cells", name, delay_ms, found)

    def add_readable(self, name: str, delay_ms: int, found: Mapping[str, Any]) -> None:
        self._put("readable", name, delay_ms, found)

    def add_machine(self, directory: Path) -> None:
        """What this machine has and does at best; ``directory`` is on the disk of the server."""
        self.document["machine"] = {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
            "kernel": platform.release().partition("-")[0],
            "limits": {name: round(rate) for name, rate in limits(directory).items()},
            "versions": {
                "Python": platform.python_version(),
                **{name: version(name) for name in _PACKAGES},
                "MinIO": BINARIES["minio"].version.removeprefix("v0.0.0-")[:8],
                "Pulsar": re.findall(r"<(?:pulsar|offloader).version>(.+?)<", (SOURCES / "pom.xml").read_text())[1],
            },
        }
        self._save()

    def _put(self, part: str, name: str, delay_ms: int, found: Mapping[str, Any]) -> None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        self.document[part].setdefault(name, {})[str(delay_ms)] = {**_rounded(found), "measured": today}
        self._save()

    def _save(self) -> None:
        self._path.write_text(json.dumps(self.document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_FIGURES}g}")
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()
