"""docs/how-to/observing.md: its sample prints the documented output; its settings and defaults are the program's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from offloader.settings import LimitSettings, TelemetrySettings
from offloader.settings.layered import SETTINGS, key_of, shown
from tests.contracts.log_events import log_events

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "observing.md").read_text(encoding="utf-8")


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.mark.process
def test_sample_prints_documented_output(tmp_path: Path) -> None:
    code = next(each for each in fences("python") if "metrics.exposition()" in each)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    promised = next(each for each in fences("text") if each.startswith("offloader_")).splitlines()
    assert len(promised) == 5
    assert set(promised) <= set(done.stdout.splitlines())


@pytest.mark.parametrize(("section", "kind"), [("limits", LimitSettings), ("telemetry", TelemetrySettings)])
def test_table_lists_every_setting_with_its_default(section: str, kind: type) -> None:
    expected = [
        f"| `{key_of(name)}` | {shown(name, field.default) if field.default != '' else '(empty)'} "
        f"| {field.metadata['doc']} |"
        for name, field in ((f"{section}.{each.name}", each) for each in fields(kind))
    ]
    assert [line for line in TEXT.splitlines() if line.startswith(f"| `{section}.")] == expected


def test_every_setting_that_the_text_names_exists() -> None:
    assert set(re.findall(r"`((?:limits|telemetry)\.[a-z0-9_]+)", TEXT)) <= set(SETTINGS)


@pytest.mark.slow
def test_documented_log_events_are_exactly_the_logged_ones() -> None:
    logged = {line.partition(":")[0] for line in log_events().partition("\n\n")[2].splitlines()}
    # Put together of what was done.
    logged = logged - {"(...)_failed", "(no event)"} | {
        "cleanup_failed",
        "orphans_failed",
        "segment_offloaded",
        "segment_rewritten",
    }
    rows = [line.split("|")[1] for line in TEXT.partition("## Logs")[2].splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} == logged
