"""Entries over HTTP: pages of both tiers, topics and times; and a follower that reads an owner's hot tier."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offloader.service.http.server import OffloadHttp
from offloader.store.open import open_store
from services.servers import free_port
from tests.cli.reading_verbs import Offloader
from tests.support.http_process import ORDERS, PAYMENTS, HttpProcess, ask, http_process, quoted
from tests.support.waiting import PATIENCE_S

PARTITIONS = [f"shop/eu/persistent/events-partition-{number}" for number in (0, 1)]
#: Whose entries one test counts.
COUNTED = [f"shop/eu/persistent/counted-partition-{number}" for number in (0, 1)]
Served = tuple[OffloadHttp, HttpProcess]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with http_process(tmp_path_factory.mktemp("entries"), streams=(ORDERS, PAYMENTS, *PARTITIONS, *COUNTED)) as found:
        yield found


def entries(http: OffloadHttp, stream: str, query: str = "") -> Any:
    return ask(f"{http.url}/v1/streams/{quoted(stream)}/entries{query}").json()


def text_of(page: Any) -> list[str]:
    return [base64.b64decode(row["payload_base64"]).decode() for row in page["items"]]


def test_entries_of_both_tiers_come_in_pages(served: Served) -> None:
    http, process = served
    process.sources[ORDERS].append([b"hot"], [1_700_000_000_001])
    page = entries(http, ORDERS, "?limit=15")
    assert text_of(page) == [f"{ORDERS} {number}" for number in range(15)]
    assert page["items"][0] == {
        "position": "1:0",
        "publish_time_ms": 1_700_000_000_000,
        "payload_base64": base64.b64encode(f"{ORDERS} 0".encode()).decode(),
    }
    rest = entries(http, ORDERS, f"?limit=15&cursor={page['next_cursor']}")
    assert text_of(rest) == [*(f"{ORDERS} {number}" for number in range(15, 20)), "hot"]
    assert rest["next_cursor"] is None
    assert text_of(entries(http, ORDERS, "?from=1:19&limit=1")) == [f"{ORDERS} 19"]
    assert entries(http, ORDERS, "?from=1:21") == {"items": [], "next_cursor": None}


def test_topic_names_and_times_are_taken(served: Served) -> None:
    http, process = served
    for number, stream in enumerate(COUNTED):
        process.sources[stream].append([b"later %d" % number], [1_700_000_100_000 - number])
    topic = "persistent://shop/eu/counted"
    assert text_of(entries(http, topic, "?from_time=2023-11-14T22:14:00Z")) == ["later 1", "later 0"]
    page = entries(http, topic, "?to_time=2023-11-14T22:14:00Z&limit=25")
    assert [row["partition"] for row in page["items"]] == [0] * 20 + [1] * 5
    assert page["items"][0]["stream"] == COUNTED[0]
    rest = entries(http, topic, f"?to_time=2023-11-14T22:14:00Z&cursor={page['next_cursor']}")
    assert [row["partition"] for row in rest["items"]] == [1] * 15
    assert entries(http, topic, "?from_time=-1h")["items"] == []
    assert text_of(entries(http, f"persistent://{ORDERS.replace('/persistent', '')}", "?limit=1")) == [f"{ORDERS} 0"]
    assert ask(f"{http.url}/v1/streams/{quoted(f'persistent://{PAYMENTS}')}").status == 404


def test_commands_are_for_all_partitions_of_a_topic(served: Served) -> None:
    http, process = served
    at = f"{http.url}/v1/streams/{quoted('persistent://shop/eu/events')}"
    for command, paused in (("pause", True), ("resume", False)):
        answer = ask(f"{at}/{command}", method="POST").json()
        assert (answer["paused"], answer["changed"]) == (paused, True)
        assert [(row["stream"], row["paused"]) for row in answer["partitions"]] == [
            (each, paused) for each in PARTITIONS
        ]
    ends = [process.sources[each].append([b"last"], [1_700_000_000_000])[-1].last for each in PARTITIONS]
    answer = ask(f"{at}/offload", method="POST", body={"wait_seconds": 60}).json()
    assert [(row["stream"], row["committed"]) for row in answer["partitions"]] == [
        (each, str(end)) for each, end in zip(PARTITIONS, ends, strict=True)
    ]
    refused = ask(f"{at}/offload", method="POST", body={"until": "1:0"})
    assert (refused.status, "a position is of one" in refused.json()["detail"]) == (400, True)


def test_segments_of_a_topic_come_in_pages_partition_by_partition(served: Served) -> None:
    http, process = served
    for number in range(2):  # more than one segment each
        for stream in PARTITIONS:
            process.sources[stream].append([b"more"], [1_700_000_000_000 + number])
            process.streams[stream].offload(timeout_s=PATIENCE_S)
    at = f"{http.url}/v1/streams/{quoted('persistent://shop/eu/events')}/segments"
    whole = ask(at).json()
    assert whole["next_cursor"] is None
    assert whole["total"] == len(whole["items"]) >= 6
    alone = [ask(f"{http.url}/v1/streams/{quoted(each)}/segments").json()["items"] for each in PARTITIONS]
    assert [(row["stream"], row["partition"]) for row in whole["items"]] == [
        (stream, number) for number, stream in enumerate(PARTITIONS) for _ in alone[number]
    ]
    assert [row["uuid"] for row in whole["items"]] == [row["uuid"] for part in alone for row in part]
    for limit in (1, 2, 3, len(alone[0])):
        found, cursor = [], ""
        while cursor is not None:
            page = ask(f"{at}?limit={limit}&cursor={cursor}").json()
            found += page["items"]
            cursor = page["next_cursor"]
        assert found == whole["items"]


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("", 404, "is a topic with 2 partitions, and this is about one stream"),
        ("/timeline", 404, "is a topic with 2 partitions, and this is about one stream"),
        ("/cleanup", 400, "has 2 partitions, and a plan is of one stream"),
    ],
)
def test_what_is_of_one_stream_names_the_partitions_of_a_topic(
    served: Served, what: str, status: int, said: str
) -> None:
    answer = ask(f"{served[0].url}/v1/streams/{quoted('persistent://shop/eu/events')}{what}")
    problem = answer.json()
    assert (answer.status, said in problem["detail"]) == (status, True)
    assert problem["hint"] == f"name {PARTITIONS[0]} or {PARTITIONS[1]}"


@pytest.mark.parametrize("what", ["retention", "decisions", "subscribers", "entries"])
def test_what_is_of_a_topic_takes_one_with_partitions(served: Served, what: str) -> None:
    assert ask(f"{served[0].url}/v1/streams/{quoted('persistent://shop/eu/events')}/{what}").status == 200


@pytest.mark.parametrize(
    ("stream", "query", "status", "said"),
    [
        (ORDERS, "?from=x", 400, "from: a position is written LEDGER:ENTRY"),
        (ORDERS, "?from_time=1h", 400, "from_time: '1h' is not a time"),
        (ORDERS, "?from=1:0&from_time=5", 400, "both say where to begin"),
        (ORDERS, "?from=99:0", 404, "is beyond the last readable entry"),
        (ORDERS, "?cursor=abc", 400, "cursor: no place in this list"),
        ("persistent://shop/eu/events", "?from=1:0", 400, "has 2 partitions, and a position is of one"),
        ("persistent://shop/eu/nothing", "", 404, "shop/eu/persistent/nothing isn't in"),
        ("non-persistent://shop/eu/events", "", 400, "is no persistent topic"),
    ],
)
def test_wrong_queries_are_refused(served: Served, stream: str, query: str, status: int, said: str) -> None:
    answer = ask(f"{served[0].url}/v1/streams/{quoted(stream)}/entries{query}")
    assert (answer.status, said in answer.json()["detail"]) == (status, True), answer.body


@pytest.mark.slow
def test_follower_reads_what_its_owner_has_not_offloaded_yet(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    port = free_port()
    store = open_store(f"file://{tmp_path}/store", create=True)
    listen = {"http": {"listen": f"127.0.0.1:{port}"}}
    with http_process(tmp_path, listen, store=store, writer_url=f"http://127.0.0.1:{port}") as (_, process):
        process.sources[ORDERS].append([b"hot"], [1_700_000_000_001])
        timer = threading.Timer(0.3, lambda: process.sources[ORDERS].append([b"later"], [1_700_000_000_002]))
        timer.start()
        named = ("read", ORDERS, "--store", store.url, "--from", "1:19", "--follow")
        done = Offloader(capsys)(*named, "--limit", "3")
        timer.join()
        assert (done.code, done.out.splitlines(), done.err) == (0, [f"{ORDERS} 19", "hot", "later"], "")
    # The process has ended: what is offloaded is followed, and the notes say why only that.
    done = Offloader(capsys)(*named, "--limit", "1")
    first, second, _ = done.err.splitlines()
    assert first.startswith(f"note: stream {ORDERS}: its owner can't be asked for what isn't offloaded: nobody answers")
    assert second.startswith(f"note: stream {ORDERS}: only what is offloaded is followed: up to ")
