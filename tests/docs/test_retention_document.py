"""docs/explanation/retention.md: its example prints the documented output; it names every rule."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from offloader.retention.policy import Limits, Unit, policy_of
from offloader.retention.state import Rule
from offloader.settings.layered import read_settings_file
from tests.retention.test_explain import EXPECTED

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "explanation" / "retention.md").read_text(encoding="utf-8")


@pytest.mark.process
def test_the_example_prints_what_the_text_shows() -> None:
    samples = re.findall(r"^```python\n(.*?)^```\n\nprints\n\n```text\n(.*?)^```$", TEXT, re.M | re.S)
    assert len(samples) == TEXT.count("```python")
    script = "\nprint('--end--')\n".join(code for code, _ in samples)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [shown for _, shown in samples] == done.stdout.split("--end--\n")


def test_the_picture_is_the_one_that_a_test_of_the_command_sees() -> None:
    """tests/retention/test_explain.py makes it."""
    assert EXPECTED.strip("\n") in TEXT


def test_documented_settings_are_valid(tmp_path: Path) -> None:
    keep, sample = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.M | re.S)
    path = tmp_path / "offloader.toml"
    path.write_text(keep, encoding="utf-8")
    kept = policy_of("orders", read_settings_file(str(path)).settings_of("orders").retention)
    assert kept is not None
    assert kept.all_limits == (Limits(Unit.TIME, 0, 86_400_000), Limits(Unit.SIZE, 0, 10**9))
    path.write_text(sample, encoding="utf-8")
    file = read_settings_file(str(path))
    audit = policy_of("audit", file.settings_of("public/default/persistent/audit").retention)
    assert audit is not None
    assert audit.limits == Limits(Unit.TIME, 525600 * 60_000)


def test_every_rule_is_explained() -> None:
    named = set(re.findall(r"`(\w+)`", TEXT))
    assert {rule.name.lower() for rule in Rule} <= named
    named = set(re.findall(r"`retention\.(\w+)`", TEXT))
    assert {"subscriber_timeout", "fallback_after", "protect_unpublished"} <= named
