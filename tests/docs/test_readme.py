"""README.md: measured figures, defaults and limits."""

from __future__ import annotations

import json
import re

from benchmarks.bench_peers import RESULTS
from benchmarks.peers.kinds import KINDS
from benchmarks.peers.readable import TIERS
from benchmarks.peers.report import rendered, with_figures
from offloader.settings import Settings
from offloader.settings.layered import SettingsFile
from tests.docs.worlds import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text(encoding="utf-8")


def test_readme_has_the_kept_results() -> None:
    assert with_figures(TEXT, json.loads(RESULTS.read_text(encoding="utf-8"))) == TEXT, "./dev bench peers"
    assert "not measured" not in TEXT


def test_benchmarks_page_is_rendered_from_the_kept_results_of_every_peer() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert rendered(results) == BENCHMARKS, "./dev bench peers --only --no-report keeps results, without it makes this"
    assert {name: set(cells) for name, cells in results["cells"].items()} == {name: {"0", "30"} for name in KINDS}
    assert {name: set(cells) for name, cells in results["readable"].items()} == {name: {"0", "30"} for name in TIERS}
    assert "not measured" not in BENCHMARKS


def test_readme_limits_are_the_settings() -> None:
    (mebibytes,) = re.findall(r"An entry is at most (\d+) MiB \(`entry_size_max`\)", TEXT)
    assert Settings().offload.entry_size_max == int(mebibytes) * 1024 * 1024


def test_readme_names_the_deletion_defaults() -> None:
    """Nothing from the store; hot copies after four hours; segments can be restored for a day."""
    rows = [each.as_json() for each in SettingsFile().values_of("").values()]
    defaults = {row["name"]: row["value"] for row in rows}
    section = TEXT.partition("\n## Deletion\n")[2].partition("\n## ")[0]
    assert {name: defaults.get(name) for name in re.findall(r"`([a-z]+\.[a-z_]+)(?: = true)?`", section)} == {
        "cleanup.delete": False,
        "retention.policy": "keep",
        "retention.keep": "0s",
        "retention.keep_size": "0B",
        "offload.deletion_lag": "4h",
    }
    assert defaults["cleanup.grace_period"] == "1d"
