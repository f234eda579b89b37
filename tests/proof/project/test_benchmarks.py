"""Every benchmark runs, in a size that measures nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SMALL = {
    "adopt": "--ledgers 500 --streams 5",
    "append": "--seconds 0.3 --rounds 1",
    "backfill": "--mb 8",
    "cleanup": "--segments 200 --objects 1000 --orphans 10",
    "demo": "",
    "flight": "--seconds 0.3 --rounds 1",
    "formats": "--mebibytes 4 --rounds 1",
    "ledgers": "--mb 8",
    "manifest": "--segments 200 --tail 5 --server file",
    "memory": "--mb-per-s 0 --budget-mb 32",
    "messages": "--messages 2000 --rounds 1",
    "metrics": "--streams 20",
    "offload": "--segment-mb 16 --delay-ms 0 --mb 16",
    "read": "--store memory --mib 8 --delay-ms 0",
    "readers": "--mib 8 --delay-ms 0 --in-flight 2",
    "retention": "--streams 5 --records 10 --subscribers 2",
    "store": "--parts 4 --rounds 1",
    "streams": "--streams 100 --memory-mb 64",
    "waits": "--mib 16 --rounds 1 --delay-ms 0",
}
#: Those that need a broker or Spark for minutes.
LARGE = {"peers", "plugin", "pulsar", "spark"}


def test_every_benchmark_is_named() -> None:
    assert {path.stem.removeprefix("bench_") for path in BENCHMARKS.glob("bench_*.py")} == {*SMALL, *LARGE}


@pytest.mark.parametrize("name", SMALL)
def test_benchmark_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / f"bench_{name}.py"), *SMALL[name].split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr if done.returncode else "") == (0, "")
    assert done.stdout
