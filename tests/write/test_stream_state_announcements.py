"""Segments in metrics and log lines, by how they ended."""

from __future__ import annotations

from uuid import UUID

import pytest

from formats.manifest import Failed
from offloader.manifest.state import ManifestState
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.telemetry.prometheus import Metrics
from offloader.write.stream_state import INTERRUPTED, OWNER_REPLACED, announce
from tests.support.metrics import exposed


@pytest.mark.parametrize(
    ("reason", "status", "level"),
    [
        (OWNER_REPLACED, "abandoned", "INFO"),
        (INTERRUPTED, "abandoned", "INFO"),
        (f"{OWNER_REPLACED}, and its objects aren't whole", "failed", "WARNING"),
        ("no such bucket", "failed", "WARNING"),
    ],
)
def test_segment_that_only_its_restart_ended_is_abandoned(
    reason: str, status: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics(Settings().telemetry, SystemClock())
    with caplog.at_level("INFO", "offloader.segments"):
        announce([Failed(UUID(int=1), reason)], ManifestState(stream="a/b", incarnation=UUID(int=2)), metrics)
    found = {name: value for name, value in exposed(metrics).items() if name.startswith("segments_total") and value}
    assert list(found) == [f'segments_total{{namespace="a",status="{status}"}}']
    [line] = caplog.records
    assert (line.levelname, line.__dict__["event"]) == (level, f"segment_{status}")
