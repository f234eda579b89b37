"""Commits of an export that follows a stream for hundreds of ranges."""

from __future__ import annotations

import pytest

from tests.iceberg.lake import Lake
from tests.iceberg.test_commits import lake as lake
from tests.iceberg.test_commits import require_steady
from tests.iceberg.test_commits import writer as writer
from tests.iceberg.test_iceberg_export import require_proven
from tests.support.streams import StreamWriter

pytestmark = pytest.mark.slow


def test_four_hundredth_commit_costs_as_much_as_an_early_one(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_steady(lake, writer, 400, monkeypatch)
    require_proven(lake, writer)
