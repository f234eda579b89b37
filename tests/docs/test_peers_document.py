"""docs/PEERS.md: what the results say that are kept beside the benchmark, and all of them."""

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


def test_the_document_says_what_the_results_say() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "PEERS.md").read_text(encoding="utf-8")
    assert text == rendered(document), "./dev bench peers --only --no-report keeps results, without it they become this"
    assert (ROOT / "docs" / "peers.png").is_file()


def test_every_peer_is_in_it_at_both_distances() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {name: set(cells) for name, cells in document["cells"].items()} == {name: {"0", "30"} for name in KINDS}
    assert {name: set(cells) for name, cells in document["readable"].items()} == {name: {"0", "30"} for name in TIERS}
    assert "not measured" not in rendered(document)
