"""docs/OBSERVING.md names every metric and every setting with its default, and nothing else."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from offloader.settings import LimitSettings, TelemetrySettings
from offloader.telemetry import METRICS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "OBSERVING.md").read_text(encoding="utf-8")


def test_every_metric_is_in_the_table_as_it_is() -> None:
    expected = [
        f"| `offloader_{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.help} |"
        for metric in METRICS.values()
    ]
    assert [line for line in TEXT.splitlines() if line.startswith("| `offloader_")] == expected


@pytest.mark.parametrize(("section", "kind"), [("limits", LimitSettings), ("telemetry", TelemetrySettings)])
def test_every_setting_is_in_the_table_as_it_is(section: str, kind: type) -> None:
    expected = [
        f"| `{section}.{field.name}` | {field.default if field.default != '' else '(empty)'} "
        f"| {field.metadata['doc']} |"
        for field in fields(kind)
    ]
    assert [line for line in TEXT.splitlines() if line.startswith(f"| `{section}.")] == expected


def test_every_setting_that_the_text_names_exists() -> None:
    known = {f"limits.{field.name}" for field in fields(LimitSettings)}
    known |= {f"telemetry.{field.name}" for field in fields(TelemetrySettings)}
    assert set(re.findall(r"`((?:limits|telemetry)\.[a-z0-9_]+)", TEXT)) <= known
