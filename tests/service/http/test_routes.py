"""Every HTTP path over real sockets against a real process: responses and effects."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from offloader.monitor import idle_document
from offloader.read.reader import load_stream
from offloader.service.http.schemas import write_cursor
from offloader.service.http.server import OffloadHttp
from offloader.service.streams import ProviderProblem
from tests.support.http_process import ORDERS, PAYMENTS, HttpProcess, ask, http_process, quoted
from tests.support.staged_view import lively

Served = tuple[OffloadHttp, HttpProcess]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with http_process(tmp_path_factory.mktemp("http"), streams=(ORDERS, PAYMENTS)) as found:
        yield found


def of(http: OffloadHttp, stream: str, rest: str = "") -> str:
    return f"{http.url}/v1/streams/{quoted(stream)}{rest}"


def test_health_and_readiness_report_missing_parts(served: Served) -> None:
    http, process = served
    assert ask(f"{http.url}/healthz").json() == {"status": "ok"}
    ready = ask(f"{http.url}/readyz")
    assert (ready.status, ready.json()) == (200, {"ready": True, "problems": []})
    process.found.append(
        ProviderProblem(where="feed pulsar", what="no broker answers", hint="start one", blocks_ready=True)
    )
    try:
        ready = ask(f"{http.url}/readyz")
        assert ready.status == 503
        assert ready.json()["problems"] == [
            {"where": "feed pulsar", "what": "no broker answers", "hint": "start one", "since_ms": None,
             "blocks_ready": True}
        ]  # fmt: skip
    finally:
        process.found.clear()


def test_metrics_are_prometheus_text(served: Served) -> None:
    http, _ = served
    ask(f"{http.url}/healthz")
    answer = ask(f"{http.url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    [entries] = [line for line in lines if line.startswith('offloader_entries_offloaded_total{namespace="shop/eu"}')]
    assert float(entries.rpartition(" ")[2]) >= 40
    assert any(line.startswith('offloader_http_requests_total{status="2xx"}') for line in lines)


@pytest.mark.slow
def test_streams_are_listed_in_pages_with_cursors(served: Served) -> None:
    http, _ = served
    first = ask(f"{http.url}/v1/streams?limit=1").json()
    assert [row["stream"] for row in first["items"]] == [ORDERS]
    assert first["total"] == 2
    second = ask(f"{http.url}/v1/streams?limit=1&cursor={first['next_cursor']}").json()
    assert [row["stream"] for row in second["items"]] == [PAYMENTS]
    assert second["next_cursor"] is None
    assert second["items"][0]["mode"] in ("live", "catch-up")
    for wrong in (f"limit=1&order=lag&cursor={first['next_cursor']}", "cursor=eA", "cursor=%21", "limit=0", "order=x"):
        answer = ask(f"{http.url}/v1/streams?{wrong}")
        assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")


@pytest.mark.parametrize(
    "place", ["[" * 3000, '["name", 1e999, 0, 0, "x"]', f'["name", 0, 1{"0" * 400}, 0, "x"]', "[]", "7"]
)
def test_invalid_cursor_is_refused(served: Served, place: str) -> None:
    http, _ = served
    cursor = write_cursor(place, "streams", "name", "", "False")
    answer = ask(f"{http.url}/v1/streams?cursor={cursor}")
    assert (answer.status, answer.json()["kind"]) == (400, "invalid_request")


@pytest.mark.slow
def test_stream_resource_lists_its_segments_ledgers_and_source(served: Served) -> None:
    http, process = served
    process.sources[ORDERS].append([b"one more"], [1_700_000_000_001])
    committed = ask(of(http, ORDERS, "/offload"), method="POST", body={"wait_seconds": 30}).json()["committed"]
    one = ask(of(http, ORDERS)).json()
    assert (one["stream"], one["committed"], one["source"]) == (ORDERS, committed, "process and manifest")
    page = ask(of(http, ORDERS, "/segments?limit=1")).json()
    assert page["total"] == 2
    rest = ask(of(http, ORDERS, f"/segments?limit=5&cursor={page['next_cursor']}")).json()
    assert [row["uuid"] for row in page["items"] + rest["items"]] == [
        str(record.uuid) for record in load_stream(process.store, ORDERS).offloaded()
    ]
    assert rest["items"][0]["last"] == committed
    assert ask(of(http, ORDERS, "/ledgers")).json()["items"][0]["entries"] == 21
    shape = ask(of(http, ORDERS, "/timeline")).json()
    assert [span["stop"] for span in shape["segments"]] == [20, 21]
    assert ask(of(http, ORDERS, "/graph")).json() == {"topic": None, "epoch": None, "hashes": 65536, "levels": []}
    assert ask(of(http, ORDERS, "/cleanup")).json()["lines"] == []
    assert ask(of(http, ORDERS, "/orphans")).json() == {"items": []}
    assert ask(of(http, ORDERS, "/decisions")).json() == {"items": []}
    assert "policy" in ask(of(http, ORDERS, "/retention")).json()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["overview", "status", "config", "errors", "decisions", "orphans", "openapi.json"])
def test_process_resources_are_served_uncached(served: Served, path: str) -> None:
    http, _ = served
    answer = ask(f"{http.url}/v1/{path}")
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["date"].endswith("GMT")
    if path == "status":
        assert [row["stream"] for row in answer.json()["streams"]] == [ORDERS, PAYMENTS]
    if path == "overview":
        assert answer.json()["streams"]["served"] == 2


def test_stream_is_paused_and_resumed(served: Served) -> None:
    http, process = served
    paused = ask(of(http, PAYMENTS, "/pause"), method="POST", body={"reason": "moving the store"})
    assert (paused.status, paused.json()["paused"], paused.json()["changed"]) == (200, True, True)
    assert load_stream(process.store, PAYMENTS).paused
    assert ask(of(http, PAYMENTS, "/pause"), method="POST").json()["changed"] is False
    process.sources[PAYMENTS].append([b"waits"], [1_700_000_000_001])
    refused = ask(of(http, PAYMENTS, "/offload"), method="POST")
    assert refused.status == 409
    assert "paused" in refused.json()["detail"]
    assert ask(of(http, PAYMENTS, "/resume"), method="POST").json()["paused"] is False
    assert ask(of(http, PAYMENTS, "/offload"), method="POST").json()["committed"] == "2:20"


@pytest.mark.slow
def test_subscribers_register_publish_and_are_removed(served: Served) -> None:
    http, _ = served
    subscriber = of(http, ORDERS, "/subscribers/billing%20%C3%A9")
    missing = ask(f"{subscriber}/position", method="PUT", body={"at": "1:5"})
    assert (missing.status, missing.json()["kind"]) == (404, "not_found")
    assert ask(subscriber, method="PUT", body={"generation": 2}).json()["generation"] == 2
    assert ask(f"{subscriber}/position", method="PUT", body={"at": "1:5", "generation": 1}).status == 400
    for at in ("1:5", {"0": "1:6"}, "latest"):
        assert ask(f"{subscriber}/position", method="PUT", body={"at": at}).status == 200
    [row] = ask(of(http, ORDERS, "/subscribers")).json()["items"]
    assert (row["subscriber"], row["lag_entries"]) == ("billing é", 0)
    back = ask(f"{subscriber}/position", method="PUT", body={"at": "1:2"})
    assert (back.status, back.json()["kind"]) == (400, "invalid_request")
    assert ask(f"{subscriber}?generation=1", method="DELETE").json()["removed"] is False
    assert ask(subscriber, method="DELETE").json()["removed"] is True
    assert ask(subscriber, method="DELETE").status == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/streams/no%2Fsuch%2Fstream", 404),
        ("/v1/streams/shop/eu/persistent/orders", 404),
        ("/v1/streams/..%2F..%2Fetc%2Fpasswd", 404),
        ("/v1/streams/%2E%2E", 404),
        ("/v1/streams/shop%2Feu%2Fpersistent%2Forders%2F..%2Fpayments", 404),
        ("/v1/streams/shop%252Feu%252Fpersistent%252Forders", 404),
        ("/v1/streams/shop%2Feu%2F%2Fpersistent", 400),
        ("/v1/streams/shop%2Feu%2Fmanifest", 400),
        ("/v1/streams/_catalog", 400),
        ("/v1/streams/_catalog%2Fx", 400),
        ("/v1/streams/%00", 404),
        ("/v1/streams/%FF%FE", 400),
        ("/v1/streams/%2Fetc%2Fpasswd", 400),
        ("/v1/streams/" + "a" * 3000, 400),
        ("/v1/streams/", 404),
        ("/v1//streams", 404),
        ("/nothing", 404),
        ("/dashboard/../../../pyproject.toml", 404),
        ("/dashboard/%2e%2e/files.py", 404),
        ("/docs", 404),
    ],
)
def test_invalid_and_unknown_stream_paths_get_a_problem_response(served: Served, path: str, status: int) -> None:
    http, _ = served
    answer = ask(f"{http.url}{path}")
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    problem = answer.json()
    assert problem["status"] == status
    assert {"type", "title", "detail", "kind", "hint"} <= problem.keys()


@pytest.mark.slow
def test_path_traversal_is_treated_as_a_stream_name(tmp_path: Path) -> None:
    """Names that look like paths are names: their objects stay below the root."""
    strange = "..", "a/../../b", "%2e%2e/x", "a\\..\\b", "x?y#z"
    with http_process(tmp_path, streams=strange) as (http, _):
        assert {row["stream"] for row in ask(f"{http.url}/v1/streams").json()["items"]} == set(strange)
        for name in strange:
            assert ask(of(http, name)).json()["stream"] == name


def test_page_and_its_files_are_served_with_security_headers_and_etag(served: Served) -> None:
    http, _ = served
    page = ask(f"{http.url}/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    again = ask(f"{http.url}/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.slow
def test_wrong_methods_bodies_and_content_types_are_refused(served: Served) -> None:
    http, _ = served
    answer = ask(f"{http.url}/v1/streams", method="DELETE")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    bodies: list[Any] = [b"{", b"[]", b"\xff", {"until": 3}, {"untli": "1:0"}, {"wait_seconds": "9"}, {"until": "x"}]
    for body in bodies:
        answer = ask(of(http, ORDERS, "/offload"), method="POST", body=body)
        assert (answer.status, answer.json()["kind"]) == (400, "invalid_request"), body
    form = ask(of(http, ORDERS, "/pause"), method="POST", body=b"a=b", headers={"Content-Type": "text/plain"})
    assert form.status == 415
    unknown = ask(of(http, ORDERS, "/offload"), method="POST", body={"untli": "1:0"}).json()
    assert unknown["problems"] == [{"where": "body.untli", "what": "Extra inputs are not permitted"}]


@pytest.mark.slow
def test_place_in_a_partition_that_no_topic_has_is_refused(tmp_path: Path) -> None:
    topic = "shop/eu/persistent/events"
    with http_process(tmp_path, streams=(f"{topic}-partition-0",)) as (http, _):
        cursor = write_cursor(f"{'9' * 5000} 1:0 {UUID(int=7)}", "segments", topic)
        answer = ask(of(http, topic, f"/segments?cursor={cursor}"))
        assert (answer.status, answer.json()["kind"]) == (400, "invalid_request")


@pytest.mark.slow
def test_every_kind_of_row_matches_its_described_shape(tmp_path: Path) -> None:
    """A staged process with every kind of row, including streams of which only the name is known."""
    view = lively(30)
    with http_process(tmp_path, streams=(), view=view) as (http, _):
        overview = ask(f"{http.url}/v1/overview").json()
        assert overview.pop("may"), "what the caller may do is said beside it"
        assert overview == view.overview()
        unknown = {"namespace": "a/b", "feed": None, "active": False, "mode": None, "last_error": "the store is away"}
        view.rows.append({"stream": "a/b/persistent/x", "lag": None, "stalled": None, **unknown})
        view.rows.append({**idle_document("a/b/persistent/y", "standby", error=None), **unknown})
        page = ask(f"{http.url}/v1/streams?limit=100").json()["items"]
        assert sorted(page, key=lambda row: row["stream"]) == sorted(view.rows, key=lambda row: row["stream"])
        for row in view.rows[:-2]:
            assert ask(of(http, row["stream"])).json() == view.stream(row["stream"])
            if row["segments"]["offloaded"] is not None:
                found = ask(of(http, row["stream"], "/segments")).json()["items"]
                assert found == list(view.segments(row["stream"]).items)
        assert ask(of(http, ORDERS, "/subscribers")).json()["items"] == view.subscriber_rows


@pytest.mark.slow
def test_response_outside_its_description_is_still_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    view = lively()
    view.rows[0]["committed"] = 7
    with http_process(tmp_path, streams=(), view=view) as (http, _), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pydantic, which tells it too
        assert ask(of(http, view.rows[0]["stream"])).json()["committed"] == 7
    assert [getattr(each, "event", "") for each in caplog.records] == ["http_shape"]
