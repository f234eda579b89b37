"""Backfills of topics with entries that no reader receives, which only reading shows: planned again around them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from formats.entries import Position
from offloader.coverage import GapReason
from offloader.ledgers.pulsar.views import PulsarTopics, TopicView
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.write.backfill import HistoryResult
from offloader.write.offloader import LedgerOffloader, offload_manually
from tests.ledgers.pulsar_bench import PulsarBench
from tests.support.readback import stored_entries

STREAM = "public/default/persistent/orders"
pytestmark = pytest.mark.slow
_names = itertools.count()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"backfill-undelivered-{next(_names)}", "", SystemClock())


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    """Two closed ledgers and an open one, with markers at the begin, in the middle, and at the end of ledgers."""
    made = PulsarBench()
    made.broker.is_prompt = True
    made.topic.append_marker()
    made.fill(10)
    made.topic.append_marker()
    made.topic.append_marker()
    made.fill(10)
    made.topic.append_marker()
    made.topic.roll()
    made.fill(5)
    made.topic.roll()
    made.fill(3)
    made.topic.append_marker()
    made.fill(4)
    yield made
    made.close()


@pytest.fixture
def view(bench: PulsarBench) -> Iterator[TopicView]:
    with closing(PulsarTopics(bench.settings)) as topics:
        yield topics.view_stream(STREAM)


def run(store: MemoryStore, view: TopicView, method: str, **changes: object) -> HistoryResult:
    settings = Settings()
    offload = replace(settings.offload, **changes)  # type: ignore[arg-type]
    with closing(LedgerOffloader(store, replace(settings, offload=offload))) as offloader:
        return offload_manually(offloader.history, view, STREAM, method)


def gaps(store: MemoryStore) -> dict[Position, Position]:
    state = load_manifest(store, STREAM)
    assert {gap.reason for gap in state.gaps} <= {GapReason.UNDELIVERED}
    return {gap.first: gap.last for gap in state.gaps}


def test_streaming_backfill_records_undelivered_entries_and_continues_in_one_call(
    store: MemoryStore, bench: PulsarBench, view: TopicView
) -> None:
    result = run(store, view, "streaming")
    assert result.errors == []
    assert stored_entries(store, STREAM) == bench.stored()
    assert gaps(store) == {
        Position(1, 0): Position(1, 0),
        Position(1, 11): Position(1, 12),
        Position(1, 23): Position(1, 23),
        Position(3, 3): Position(3, 3),
    }
    state = load_manifest(store, STREAM)
    assert result.committed == bench.stored()[-1][0]
    assert state.assigned() == []
    with closing(PulsarTopics(bench.settings)) as topics:  # another process
        again = run(store, topics.view_stream(STREAM), "streaming")
    assert (again.errors, again.offloaded) == ([], [])
    assert load_manifest(store, STREAM).record_id == state.record_id


def test_ledger_method_writes_a_ledger_with_undelivered_entries_in_pieces(
    store: MemoryStore, bench: PulsarBench, view: TopicView
) -> None:
    result = run(store, view, "ledger")
    assert result.errors == []
    assert stored_entries(store, STREAM) == [each for each in bench.stored() if each[0].ledger_id < 3]
    assert [(each.begin.ledger_id, each.layout) for each in load_manifest(store, STREAM).offloaded()] == [
        (1, 2),
        (1, 2),
        (2, 1),
    ]
    assert load_manifest(store, STREAM).assigned() == []


def test_entries_lost_by_the_bookies_block_where_the_policy_says_so(
    store: MemoryStore, bench: PulsarBench, view: TopicView
) -> None:
    lost = Position(2, 1)
    bench.topic.lost.add(lost)
    result = run(store, view, "streaming", on_gap="block")
    assert [str(error).partition(":")[0] for error in result.errors] == [f"stream {STREAM}"]
    assert result.committed == Position(2, 0)
    recorded = run(store, view, "streaming", on_gap="record", takeover_after=0.0)
    assert recorded.errors == []
    assert stored_entries(store, STREAM) == [each for each in bench.stored() if each[0] != lost]
