"""A broker has a closed ledger offloaded: waits, comparisons, what readers aren't given, owners and other processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore
from tests.service.test_broker_ledgers_offload import MARKERS, SLOW, closed_ledger, facts, with_gaps
from tests.service.test_broker_ledgers_offload import store as store
from tests.support.broker_frames import frames_of
from tests.support.broker_requests import STREAM, Broker
from tests.support.http_process import ORDERS, ask, http_process, quoted
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "last", "body"),
    [
        (0, 12, b""),
        (0, 12, frames_of(MARKERS[:3])[:-1]),
        (0, 12, frames_of(MARKERS[:3])[:-12]),
        (0, 12, frames_of(MARKERS[:3])[:-1] + b"\0"),
        (0, 12, frames_of(MARKERS[:2])),
        (0, 12, frames_of(MARKERS[1:3])),
        (0, 12, frames_of(MARKERS)),
        (0, 13, frames_of([*MARKERS[:3], (13, b"x")])),
        (0, 12, frames_of(MARKERS[2::-1])),
        (12, 0, frames_of(MARKERS[:3])),
        (-1, 12, frames_of(MARKERS[:3])),
        (0, 2**63, frames_of(MARKERS)),
    ],
)
def test_wrong_frames_store_nothing(store: ObjectStore, tmp_path: Path, first: int, last: int, body: bytes) -> None:
    with_gaps(store)
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        answer = Broker(http.url).fill(7, first, last, body)
        assert (answer.status, answer.json()["kind"]) == (400, "invalid_request")
    assert load_manifest(store, STREAM).fills == ()


@pytest.mark.slow
def test_two_hundred_topics_wait_at_once_and_nobody_else(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "offload": {"segment_age_max": "60.0m"},
        "http": {"client_connections_max": 256},
    }
    with http_process(tmp_path, sections) as (http, process):
        broker = Broker(http.url, ORDERS)
        source = process.sources[ORDERS]
        settled = closed_ledger(process)
        assert broker.offload(settled.ledger_id, **facts(settled)).json()["committed"]
        source.append([b"open"])
        info = source.ledgers()[-1]
        answered = []
        begun = threading.Barrier(201)

        def wait() -> None:
            begun.wait(PATIENCE_S)
            # More entries than there are: it waits as long as it may.
            asked = {"last": info.entries + 5, "length": 1, "entries": info.entries + 6, "wait_seconds": 4}
            answered.append(broker.offload(info.ledger_id, **asked).json())

        with ThreadPoolExecutor(200) as threads:
            waiting = [threads.submit(wait) for _ in range(200)]
            begun.wait(PATIENCE_S)
            while not all(each.done() for each in waiting):
                assert ask(f"{http.url}/v1/streams/{quoted(ORDERS)}").status == 200
                assert broker.plan(settled.ledger_id).status == 200
                assert ask(f"{http.url}/healthz").status == 200
        assert answered == [{"committed": False, "missing": []}] * 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"length": 1}, "exposingBrokerEntryMetadataToClientEnabled"),
        ({"last": 8, "entries": 9}, "another cluster"),
        ({"entries": 9}, "another cluster"),
    ],
)
def test_ledger_that_differs_is_refused_and_both_sides_are_named(
    tmp_path: Path, changed: dict[str, int], why: str
) -> None:
    with http_process(tmp_path, SLOW) as (http, process):
        broker = Broker(http.url, ORDERS)
        info = closed_ledger(process)
        assert broker.offload(info.ledger_id, **facts(info)).json()["committed"]
        answer = broker.offload(info.ledger_id, **facts(info, **changed))
        found = answer.json()
        assert (answer.status, found["kind"], found["retryable"]) == (409, "source_mismatch", False)
        assert why in found["hint"]
        assert str(next(iter(changed.values()))) in found["detail"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        {"last": -1}, {"length": -1}, {"entries": 0}, {"wait_seconds": 26}, {"wait_seconds": -1}, {"uuid": "no"},
        {"last": "9"}, {"more": 1}, {"last": 2**63},
    ],
)  # fmt: skip
def test_wrong_offload_requests_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with http_process(tmp_path) as (http, _):
        asked = {"last": 9, "length": 100, "entries": 10, **wrong}
        answer = Broker(http.url, ORDERS).offload(7, **asked)
    assert (answer.status, answer.json()["kind"]) == (400, "invalid_request")


class HangingControl:
    """Commands of a stream whose offload takes as long as the test says."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def complete(self, name: str, until: Position, *, timeout_s: float) -> None:
        self.over.wait(PATIENCE_S)


@pytest.mark.slow
def test_offload_that_takes_longer_than_asked_is_answered_in_time(store: ObjectStore, tmp_path: Path) -> None:
    StreamWriter(store, STREAM).add([batch_of(7, 0, 10)])
    control = HangingControl()
    asked = {"last": 19, "length": 400, "entries": 20, "wait_seconds": 0.1}
    with http_process(tmp_path, streams=(), store=store, control=control) as (http, _):
        try:
            answer = Broker(http.url).offload(7, **asked)
            assert (answer.status, answer.json()) == (200, {"committed": False, "missing": []})
        finally:
            control.over.set()
