"""Lag of streaming queries: numbers in the progress, by stream, and the listener that reports them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import Position
from offloader.spark import LagListener, lag_of
from offloader.spark.stream import behind
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    pass

SIZE = 20


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/orders")


def test_what_is_behind_a_position_is_what_was_committed_after_it(writer: StreamWriter) -> None:
    assert behind(writer.log.state, None) == (0, 0)
    writer.add([batch_of(1, 0, 100, size=SIZE)], closes=[1])
    writer.add([batch_of(4, 0, 50, size=SIZE)])
    writer.add([batch_of(4, 50, 30, size=SIZE)])
    state = writer.log.state
    places = [None, *(entry.position for entry in writer.entries), Position(2, 0), Position(9, 0)]
    for place in places:
        after = [entry for entry in writer.entries if place is None or entry.position > place]
        assert behind(state, place) == (len(after), SIZE * len(after)), place


def test_listener_logs_what_is_behind_and_passes_over_other_sources(caplog: pytest.LogCaptureFixture) -> None:
    own = '{"a/b": {"entriesBehind": 7, "bytesBehind": 140}, "c": {"entriesBehind": 0, "bytesBehind": 0}}'
    others = [{"latestOffset": text} for text in ("12", "null", "no JSON", None, '{"topic": {"0": 5}}')]
    progress: Any = {"id": "x", "name": "index", "batchId": 4, "sources": [*others, {"latestOffset": own}]}
    event: Any = type("Event", (), {"progress": progress})()
    with caplog.at_level(logging.INFO, "offloader.spark"):
        LagListener().onQueryProgress(event)
    assert caplog.messages == ["query index, batch 4: stream a/b has 7 unread entries, 140 unread bytes"]
    assert lag_of({"sources": others}) == {}
