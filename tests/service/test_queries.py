"""The service view: facts about streams that the process itself knows little of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from offloader.errors import NotFoundError, StoreUnavailableError
from offloader.monitor import idle_document
from offloader.runtime.clock import SystemClock
from offloader.service.process import ServingProcess
from offloader.service.queries import ONE_AGE_S_MAX, ROW_AGE_S_MAX, ServiceView
from offloader.settings import Duration, StoreSettings
from offloader.store.open import open_store
from offloader.store.wrappers import RetryingStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.http_process import ORDERS, PAYMENTS, HttpProcess, http_process
from tests.support.waiting import PATIENCE_S

NEW = "shop/eu/persistent/new"


class _Idle:
    """A process that serves some streams without streaming them."""

    def __init__(self, process: HttpProcess, rows: list[dict[str, Any]]) -> None:
        self._process, self._rows = process, rows

    @property
    def served(self) -> ServingProcess:
        return cast("ServingProcess", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def document(self) -> Mapping[str, Any]:
        return {**self._process.document(), "streams": self._rows}


@pytest.mark.slow
def test_streams_not_served_here_are_shown_from_their_cached_manifest(tmp_path: Path) -> None:
    clock = ManualClock()
    with http_process(tmp_path, streams=(ORDERS, PAYMENTS)) as (_, process):
        rows = [idle_document(ORDERS, "ledger", error=None), idle_document(NEW, "starting", error="the store is away")]
        view = ServiceView(process.store, clock=clock, process=_Idle(process, rows).served)

        def listed() -> dict[str, dict[str, Any]]:
            return {row["stream"]: row for row in view.streams().items}

        found = listed()
        assert (found[ORDERS]["mode"], found[ORDERS]["entries_offloaded"]) == ("ledger", 20)
        assert (found[PAYMENTS]["mode"], found[PAYMENTS]["entries_offloaded"]) == (None, 20)
        assert (found[NEW]["mode"], found[NEW]["last_error"]) == ("starting", "the store is away")
        assert found[NEW]["entries_offloaded"] is None

        process.sources[ORDERS].append([b"one more"])
        process.streams[ORDERS].offload(timeout_s=PATIENCE_S)
        assert listed()[ORDERS]["entries_offloaded"] == 20
        clock.advance(ONE_AGE_S_MAX)
        assert listed()[ORDERS]["entries_offloaded"] == 20
        assert view.stream(ORDERS)["entries_offloaded"] == 21, "of one stream people want to know sooner"
        assert listed()[ORDERS]["entries_offloaded"] == 21, "and then it is known"
        process.sources[PAYMENTS].append([b"one more"])
        process.streams[PAYMENTS].offload(timeout_s=PATIENCE_S)
        clock.advance(ROW_AGE_S_MAX)
        assert listed()[PAYMENTS]["entries_offloaded"] == 21


@pytest.mark.slow
def test_served_streams_are_shown_while_the_store_is_unreachable(tmp_path: Path) -> None:
    """The request doesn't wait for as many attempts as an upload."""
    clock = ManualClock()
    away = FaultyStore(open_store("memory://view-without-store"), [Fault(call=1, calls=10**6)], clock=clock)
    patient = RetryingStore(away, StoreSettings(retries_max=50, retry_total=Duration(3600)), clock)
    with http_process(tmp_path, streams=(ORDERS,)) as (_, process):
        view = ServiceView(patient, clock=clock, process=process.served)
        with pytest.raises(StoreUnavailableError):
            view.streams()
        (row,) = view.streams(served_only=True).items
        assert row["stream"] == ORDERS
        found = view.stream(ORDERS)
        assert found["mode"] == row["mode"]
        assert found["store_error"]
        with pytest.raises(StoreUnavailableError):
            view.stream(PAYMENTS)
        assert len(away.calls) == 6, "each question was asked twice"


@pytest.mark.slow
def test_topic_is_known_by_the_partitions_that_are_served_before_the_store_has_them(tmp_path: Path) -> None:
    topic, clock = "shop/eu/persistent/events", ManualClock()
    partitions = [f"{topic}-partition-{number}" for number in (0, 1)]
    away = FaultyStore(open_store("memory://topic-without-store"), [Fault(call=1, calls=10**6)], clock=clock)
    with http_process(tmp_path, streams=(ORDERS,)) as (_, process):
        rows = [{**idle_document(each, "starting", error=None), "active": True} for each in partitions]
        for store in (process.store, away):
            view = ServiceView(store, clock=clock, process=_Idle(process, rows).served)
            found = view.stream(topic)
            assert (found["mode"], [row["stream"] for row in found["partitions"]]) == ("starting", partitions)
            assert bool(found.get("store_error")) is (store is away)
        # Those of the store and of another process are partitions as well.
        process.add(f"{topic}-partition-2")
        view = ServiceView(process.store, clock=clock, process=_Idle(process, rows).served)
        assert [row["partition"] for row in view.stream(topic)["partitions"]] == [0, 1, 2]
        with pytest.raises(NotFoundError):
            view.stream("shop/eu/persistent/nothing")


@pytest.mark.slow
def test_state_of_the_process_needs_no_answer_of_the_store(tmp_path: Path) -> None:
    """What was offloaded is by the manifest as the process knows it; the store isn't asked."""
    with http_process(tmp_path, streams=(ORDERS,)) as (_, process):
        away = FaultyStore(open_store("memory://view-asks-nobody"), [Fault(call=1, calls=10**6)])
        view = ServiceView(away, clock=SystemClock(), process=process.served)
        process.sources[ORDERS].append([b"one more"])
        process.streams[ORDERS].offload(timeout_s=PATIENCE_S)
        overview = view.overview()
        assert overview["seen_ms"] <= overview["now_ms"]
        (row,) = view.streams(served_only=True).items
        for found in (row, view.stream(ORDERS, served_only=True)):
            assert (found["entries_offloaded"], found["segments"]["offloaded"]) == (21, 2)
        with pytest.raises(NotFoundError):
            view.stream(PAYMENTS, served_only=True)
        view.errors(), view.recent_decisions(), view.orphans()
        assert away.calls == []


@pytest.mark.slow
def test_offloaded_counts_what_an_earlier_process_offloaded(tmp_path: Path) -> None:
    with http_process(tmp_path, streams=(ORDERS,)) as (_, process):
        process.streams[ORDERS].stop()
        process.streams[ORDERS] = process.offloader.offload_stream(process.sources[ORDERS], ORDERS)
        view = ServiceView(process.store, clock=SystemClock(), process=process.served)
        process.sources[ORDERS].append([b"one more"])
        process.streams[ORDERS].offload(timeout_s=PATIENCE_S)
        (row,) = view.streams(served_only=True).items
        assert row["entries_offloaded"] == 21
        assert process.streams[ORDERS].status().entries_committed == 1
