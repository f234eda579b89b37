"""docs/RETENTION.md: its example runs and prints what it shows; it names every rule that decides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from offloader.retention.decision import Rule

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "RETENTION.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_text_shows() -> None:
    samples = re.findall(r"^```python\n(.*?)^```\n\nprints\n\n```text\n(.*?)^```$", TEXT, re.M | re.S)
    assert len(samples) == TEXT.count("```python")
    script = "\nprint('--end--')\n".join(code for code, _ in samples)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [shown for _, shown in samples] == done.stdout.split("--end--\n")


def test_every_rule_is_explained() -> None:
    named = set(re.findall(r"`(\w+)`", TEXT))
    assert {rule.name.lower() for rule in Rule} <= named
    assert {"subscriber_timeout_ms", "fallback_after_ms", "protect_unpublished"} <= named
