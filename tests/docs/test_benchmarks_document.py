"""docs/explanation/benchmarks.md equals the results that are kept beside the benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.bench_peers import RESULTS
from benchmarks.peers.kinds import KINDS
from benchmarks.peers.readable import TIERS
from benchmarks.peers.report import rendered

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


def test_document_matches_the_kept_results() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text(encoding="utf-8")
    assert text == rendered(document), "./dev bench peers --only --no-report keeps results, without it they become this"
    assert (ROOT / "docs" / "explanation" / "benchmarks.png").is_file()


def test_every_peer_is_measured_at_both_distances() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {name: set(cells) for name, cells in document["cells"].items()} == {name: {"0", "30"} for name in KINDS}
    assert {name: set(cells) for name, cells in document["readable"].items()} == {name: {"0", "30"} for name in TIERS}
    assert "not measured" not in rendered(document)
