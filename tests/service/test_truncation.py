"""Truncation over HTTP: what it moves, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from formats.entries import Position
from offloader.manifest.log import load_manifest
from offloader.service.http.server import OffloadHttp
from tests.support.http_process import ORDERS, HttpProcess, ask, http_process, quoted

Served = tuple[OffloadHttp, HttpProcess]
TOPIC = "shop/eu/persistent/events"
PARTITIONS = [f"{TOPIC}-partition-{number}" for number in (0, 1)]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with http_process(tmp_path_factory.mktemp("http"), streams=(ORDERS, *PARTITIONS)) as found:
        yield found


def truncated(http: OffloadHttp, stream: str, before: object) -> tuple[int, dict[str, Any]]:
    answer = ask(f"{http.url}/v1/streams/{quoted(stream)}/truncate", method="POST", body={"before": before})
    return answer.status, answer.json()


def first_ledger(process: HttpProcess, stream: str) -> int:
    return int(process.sources[stream].ledgers()[0].ledger_id)


def test_stream_begins_at_the_position_and_never_earlier_again(served: Served) -> None:
    http, process = served
    head = Position(first_ledger(process, ORDERS), 5)
    status, found = truncated(http, ORDERS, str(head))
    assert (status, found["head"], found["moved"]) == (200, str(head), True)
    status, found = truncated(http, ORDERS, str(Position(head.ledger_id, 3)))
    assert (status, found["moved"]) == (200, False)
    assert load_manifest(process.store, ORDERS).head == head


def test_each_named_partition_of_a_topic_begins_at_its_position(served: Served) -> None:
    http, process = served
    head = Position(first_ledger(process, PARTITIONS[1]), 7)
    status, found = truncated(http, TOPIC, {"1": str(head)})
    assert (status, found["moved"], [row["head"] for row in found["partitions"]]) == (200, True, [str(head)])
    assert [load_manifest(process.store, each).head for each in PARTITIONS] == [None, head]


@pytest.mark.parametrize(
    ("stream", "before", "words"),
    [
        (ORDERS, "nonsense", "before"),
        (ORDERS, {"0": "1:1"}, "has no partitions"),
        (TOPIC, "1:1", "has 2 partitions"),
        (TOPIC, {"7": "1:1"}, "no partition 7"),
        (ORDERS, "99:0", "99:0"),
    ],
)
def test_wrong_position_changes_nothing(served: Served, stream: str, before: object, words: str) -> None:
    http, process = served
    heads = [load_manifest(process.store, each).head for each in (ORDERS, *PARTITIONS)]
    status, found = truncated(http, stream, before)
    assert (status, found["kind"]) == (400, "invalid_request")
    assert words in found["detail"]
    assert heads == [load_manifest(process.store, each).head for each in (ORDERS, *PARTITIONS)]


def test_truncation_needs_to_know_what_the_broker_lists(served: Served) -> None:
    http, process = served
    process.streams.file.layers[""]["pulsar.broker_plugin"] = True  # type: ignore[index]
    source = process.sources.pop(ORDERS)
    try:
        before = load_manifest(process.store, ORDERS).head
        status, found = truncated(http, ORDERS, str(Position(1, 6)))
        assert (status, found["kind"]) == (503, "retry_later")
        assert "the ledgers that its broker lists" in found["detail"]
        assert load_manifest(process.store, ORDERS).head == before
    finally:
        process.sources[ORDERS] = source
        del process.streams.file.layers[""]["pulsar.broker_plugin"]  # type: ignore[attr-defined]
