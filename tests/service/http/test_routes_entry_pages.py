"""Entries over HTTP: pages of both tiers, topics and times; and a follower that reads an owner's hot tier."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offloader.manifest.log import ManifestLog, load_manifest
from offloader.retention.truncate import truncate_stream
from offloader.runtime.clock import SystemClock
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
    assert text_of(entries(http, topic, "?since=2023-11-14T22:14:00Z")) == ["later 1", "later 0"]
    page = entries(http, topic, "?until=2023-11-14T22:14:00Z&limit=25")
    assert [row["partition"] for row in page["items"]] == [0] * 20 + [1] * 5
    assert page["items"][0]["stream"] == COUNTED[0]
    rest = entries(http, topic, f"?until=2023-11-14T22:14:00Z&cursor={page['next_cursor']}")
    assert [row["partition"] for row in rest["items"]] == [1] * 15
    assert entries(http, topic, "?since=-1h")["items"] == []
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


@pytest.mark.slow
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


def of_topic(http: OffloadHttp, what: str = "", topic: str = "persistent://shop/eu/events") -> Any:
    answer = ask(f"{http.url}/v1/streams/{quoted(topic)}{what}")
    assert answer.status == 200, answer.body
    return answer.json()


def of_each(http: OffloadHttp, what: str = "") -> list[Any]:
    return [ask(f"{http.url}/v1/streams/{quoted(each)}{what}").json() for each in PARTITIONS]


@pytest.mark.slow
def test_status_of_a_topic_is_the_sum_of_its_partitions(served: Served) -> None:
    http, _ = served
    for query in ("", "?served=true"):
        found, alone = of_topic(http, query), of_each(http, query)
        assert [(row["stream"], row["partition"]) for row in found["partitions"]] == [
            (stream, number) for number, stream in enumerate(PARTITIONS)
        ]
        assert (found["stream"], found["namespace"], found["active"]) == ("shop/eu/persistent/events", "shop/eu", True)
        assert (found["mode"], found["feed"]) == (alone[0]["mode"], "ledgers")
        assert found["lag"] == {"entries": 0, "bytes": 0, "seconds": 0.0}
        for key in ("entries_offloaded", "bytes_offloaded"):
            assert found[key] == sum(row[key] for row in alone) > 0
        assert found["segments"]["offloaded"] == sum(row["segments"]["offloaded"] for row in alone)
        assert found["last_progress_ms"] == max(row["last_progress_ms"] for row in alone)
        assert [row["committed"] for row in found["partitions"]] == [row["committed"] for row in alone]


def test_timeline_and_ledgers_of_a_topic_are_those_of_its_partitions(served: Served) -> None:
    http, _ = served
    shapes = of_topic(http, "/timeline")["partitions"]
    alone = of_each(http, "/timeline")
    assert [
        {**shape, "stream": PARTITIONS[number], "partition": number} for number, shape in enumerate(alone)
    ] == shapes
    assert all(shape["segments"] for shape in shapes)
    ledgers = of_topic(http, "/ledgers")["items"]
    assert [(row["stream"], row["partition"], row["ledger_id"]) for row in ledgers] == [
        (PARTITIONS[number], number, row["ledger_id"])
        for number, found in enumerate(of_each(http, "/ledgers"))
        for row in found["items"]
    ]


def test_orphans_of_a_topic_are_those_of_its_partitions(served: Served) -> None:
    http, process = served
    keys = [f"{stream}/data/left-{number}" for number, stream in enumerate(PARTITIONS)]
    for key in keys:
        process.store.put(key, b"foreign")
    assert [row["key"] for row in of_topic(http, "/orphans")["items"]] == keys
    assert [row["key"] for row in of_topic(http, "/orphans?limit=1")["items"]] == keys[:1]
    for key in keys:
        process.store.delete([key])


def test_plan_of_cleanup_of_a_topic_is_of_all_its_partitions(served: Served) -> None:
    (http, process), clock = served, SystemClock()
    for number, stream in enumerate(PARTITIONS):  # partition 0 loses more than partition 1
        for _ in range(2):
            process.sources[stream].append([b"more"], [1_700_000_000_000])
            process.streams[stream].offload(timeout_s=PATIENCE_S)
        segments = load_manifest(process.store, stream).offloaded()
        truncate_stream(ManifestLog(process.store, stream, clock=clock), segments[2 - number].begin, clock=clock)
    found, alone = of_topic(http, "/cleanup"), of_each(http, "/cleanup")
    assert [plan["segments"] for plan in alone] == [2, 1]
    for key in ("segments", "bytes", "bytes_stored"):
        assert found[key] == sum(plan[key] for plan in alone) > 0
    assert [line["stream"] for line in found["lines"]] == [PARTITIONS[0], PARTITIONS[0], PARTITIONS[1]]
    assert [(row["stream"], row["partition"], row["plan"]) for row in found["partitions"]] == [
        (stream, number, alone[number]["plan"]) for number, stream in enumerate(PARTITIONS)
    ]
    assert found["plan"] not in (None, alone[0]["plan"], alone[1]["plan"])
    few = of_topic(http, "/cleanup?limit=1")
    assert (few["plan"], len(few["lines"]), few["is_whole"]) == (found["plan"], 1, False)


@pytest.mark.slow
def test_every_route_of_a_stream_takes_a_topic_with_partitions(served: Served) -> None:
    """Routes of brokers are of a managed ledger, whose name isn't a topic's."""
    http, _ = served
    paths = ask(f"{http.url}/v1/openapi.json").json()["paths"]
    routes = [path for path, methods in paths.items() if path.startswith("/v1/streams/{stream}") and "get" in methods]
    routes = [path for path in routes if "{ledger}" not in path]
    assert len(routes) >= 10
    for path in routes:
        of_topic(http, path.removeprefix("/v1/streams/{stream}"))
    for query in ("/v1/errors?stream=", "/v1/config?topic="):
        assert ask(f"{http.url}{query}{quoted('persistent://shop/eu/events')}").status == 200


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("persistent://shop/eu/events", PARTITIONS),
        ("persistent://shop/eu/EVENTS-partition-1", PARTITIONS[1:]),
        ("persistent://shop/e", [ORDERS, PAYMENTS, *PARTITIONS, *COUNTED]),
        ("persistent://shop/eu/nothing", []),
    ],
)
def test_streams_are_found_by_a_part_of_a_topics_name(served: Served, text: str, found: list[str]) -> None:
    rows = ask(f"{served[0].url}/v1/streams?contains={quoted(text)}").json()["items"]
    assert sorted(row["stream"] for row in rows) == sorted(found)


@pytest.mark.parametrize(
    ("stream", "query", "status", "said"),
    [
        (ORDERS, "?from=x", 400, "from: a position is written LEDGER:ENTRY"),
        (ORDERS, "?since=1h", 400, "since: '1h' is not a time"),
        (ORDERS, "?from=1:0&since=5", 400, "from and since exclude each other"),
        (ORDERS, "?from=99:0", 404, "is beyond the last readable entry"),
        (ORDERS, "?cursor=abc", 400, "cursor: not a cursor of this list"),
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
    assert first.startswith(f"note: stream {ORDERS}: its owner can't provide entries that aren't offloaded: no answer")
    assert second.startswith(f"note: stream {ORDERS}: following offloaded entries only: up to ")
