"""``./dev test --all``: all tests and all longer runs one after another, then a summary by group with times.

A group is a folder of tests, or a run of its own. The exit code is 1 if anything failed. ``--only NAME`` repeats one
run; further arguments go to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.proof.simulation.seeds import first_seed

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests"
#: Of the tests. Each may start brokers and a Spark session.
WORKERS_MAX = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the summary."""

    group: str
    seconds: float
    passed: int
    failed: int


def runs(seed: int, more: Sequence[str], report: Path) -> dict[str, list[str]]:
    """Name of each run -> its command. The seeds are those of the day."""
    python, dev = [sys.executable, "-m"], str(ROOT / "dev")
    # Most wait for servers, but brokers that are killed side by side hold each other up.
    workers = ["-n", str(min(WORKERS_MAX, (os.cpu_count() or 1) + 1)), "--dist", "loadscope"]
    kept = ["-o", "tmp_path_retention_policy=failed"]
    return {
        TESTS: [*python, "pytest", "--all", "--brokers", "all", *kept, *workers, f"--junitxml={report}", *more],
        "mutants": [*python, "tests.proof.mutants", "--gate"],
        "oldest versions": [dev, "oldest", "--quick"],
        "simulations": [*python, "tests.proof.simulation.soak", "--seeds", "2000", "--first", str(seed)],
        "fuzz": [*python, "tests.proof.fuzz", "--inputs", "2000000", "--seed", str(seed)],
        "kills": [*python, "tests.proof.chaos", "--kills", "60", "--seed", str(seed)],
        "partitions": [*python, "tests.proof.chaos.partition_run", "--seeds", "6", "--first", str(seed)],
        "databases": [*python, "tests.proof.chaos.database_run", "--seeds", "6", "--first", str(seed)],
        "broker plugin": [*python, "tests.proof.chaos.plugin_run", "--kills", "20", "--seed", str(seed)],
        "restarts": [*python, "tests.proof.chaos.restart_run"],
        "soak": [*python, "tests.proof.soak", "--minutes", "10"],
    }


def rows_of(report: Path) -> list[Row]:
    """The groups of a run of tests: folders below ``tests`` and below ``tests/proof``."""
    seconds: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for case in ElementTree.parse(report).iter("testcase"):
        parts = case.get("classname", "").split(".")
        folders = [part for part in parts[: 3 if parts[1:2] == ["proof"] else 2] if not part.startswith("test_")]
        group = "/".join(folders)
        has_failed = case.find("failure") is not None or case.find("error") is not None
        counts[group][has_failed] += 1
        seconds[group] += float(case.get("time", 0))
    return [Row(group, seconds[group], *counts[group]) for group in sorted(counts)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev test --all", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="one run of the summary, e.g. mutants")
    options, more = parser.parse_known_args()
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        chosen = runs(first_seed(), more, report)
        if options.only and options.only not in chosen:
            parser.error(f"--only: there is no run {options.only!r}: {', '.join(chosen)}")
        for name, command in chosen.items():
            if options.only in (None, name):
                print(f"\n=== {name}: {' '.join(command)}", flush=True)
                started_s = time.monotonic()
                # On the disk: all temporary files of 11,000 tests, with those of brokers, don't fit into memory.
                environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": folder}
                failed = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0
                rows.append(Row(name, time.monotonic() - started_s, not failed, failed))
                rows += rows_of(report) if name == TESTS and report.exists() else []
    print(f"\n{'group':30} {'seconds':>9} {'passed':>7} {'failed':>7}")
    for row in rows:
        print(f"{row.group:30} {row.seconds:9.1f} {row.passed:7} {row.failed:7}")
    return any(row.failed for row in rows)


if __name__ == "__main__":
    sys.exit(main())
