"""The staged view has every member of the real one that the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.service.queries import ServiceView
from tests.support.http_process import ORDERS, http_process
from tests.support.staged_view import StagedView, lively, stream_row


@pytest.fixture
def both(tmp_path: Path) -> Any:
    with http_process(tmp_path) as (_, process):
        real = ServiceView(process.store, clock=SystemClock(), process=process.served)
        staged = lively()
        staged.rows[0] = stream_row(ORDERS)
        staged.shapes[ORDERS] = next(iter(staged.shapes.values()))
        yield real, staged


def members(value: Any) -> dict[str, Any]:
    """Names, and names below them; lists are what their first item is."""
    if isinstance(value, dict):
        return {name: members(each) for name, each in value.items()}
    return {}


@pytest.mark.slow
def test_staged_responses_have_the_members_of_real_ones(both: tuple[ServiceView, StagedView]) -> None:
    real, staged = both
    assert members(staged.overview()).keys() == members(real.overview()).keys()
    assert members(staged.overview())["streams"] == {
        **members(real.overview())["streams"], "modes": members(staged.overview())["streams"]["modes"]
    }  # fmt: skip
    assert staged.overview()["buffer"].keys() == real.overview()["buffer"].keys()
    assert staged.stream(ORDERS).keys() <= real.stream(ORDERS).keys()
    (row,) = real.streams().items
    assert stream_row(ORDERS).keys() <= row.keys()
    assert staged.segments(ORDERS).items[0].keys() == real.segments(ORDERS).items[0].keys()
    shown, drawn = staged.timeline(ORDERS), real.timeline(ORDERS)
    assert shown.keys() == drawn.keys()
    assert shown["segments"][0].keys() == drawn["segments"][0].keys() == drawn["ledgers"][0].keys()
    assert staged.retention(ORDERS).keys() <= real.retention(ORDERS).keys()
    assert staged.cleanup_plan(ORDERS).keys() == real.cleanup_plan(ORDERS).keys()
    assert staged.orphans().keys() == real.orphans().keys()


def test_staged_list_rows_have_the_members_of_real_ones(both: tuple[ServiceView, StagedView]) -> None:
    real, staged = both
    retention = open_retention(real._store, ORDERS)
    retention.add("billing")
    (subscriber,) = real.subscribers(ORDERS)
    assert staged.subscribers(ORDERS)[0].keys() == subscriber.keys()
