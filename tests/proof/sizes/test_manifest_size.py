"""Cost of a manifest with many segments, as measured by its benchmark, with fewer segments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
SEGMENTS = 300_000


def test_large_manifest_opens_and_commits_in_few_requests() -> None:
    """Bytes per segment prove columns: a Python object for each would take more than ten times as much."""
    done = subprocess.run(
        [sys.executable, "benchmarks/bench_manifest.py", "--segments", str(SEGMENTS), "--tail", "5", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["segments"] == SEGMENTS + 5
    assert found["open_rss_growth_mb"] < 200 * SEGMENTS / 1_000_000 + 10
    assert found["open_requests"] <= 20
    assert (found["commit_requests"], found["commit_with_checkpoint_requests"]) == (2, 4)
