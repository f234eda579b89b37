"""Brokers read whole ledgers over HTTP: plans, presigned blocks and entries, as a plugin decodes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offloader.read.ledger_plan import CHUNK_BYTES
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from tests.service.test_broker_ledgers_reads import broker as broker
from tests.service.test_broker_ledgers_reads import sent, written
from tests.service.test_broker_ledgers_reads import store as store
from tests.service.test_broker_ledgers_reads import writer as writer
from tests.support.broker_frames import read_range
from tests.support.broker_requests import STREAM, Broker
from tests.support.http_process import ask, http_process, quoted
from tests.support.server_fixtures import S3Place
from tests.support.streams import StreamWriter, batch_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "status", "kind"),
    [
        ("7/entries?from=5&to=4", 400, "invalid_request"),
        ("7/entries?from=-1&to=4", 400, "invalid_request"),
        ("7/entries?from=0&to=x", 400, "invalid_request"),
        ("7/entries?from=0", 400, "invalid_request"),
        (f"7/entries?from=0&to={2**63}", 400, "invalid_request"),
        ("7/entries?from=0&to=10", 404, "not_found"),
        ("-7", 400, "invalid_request"),
        ("seven", 400, "invalid_request"),
        (f"{2**63}", 400, "invalid_request"),
        ("8", 404, "not_found"),
        ("7?uuid=no-uuid", 400, "invalid_request"),
        ("7/else", 404, "not_found"),
    ],
)
def test_wrong_requests_are_refused_by_name(
    store: ObjectStore, tmp_path: Path, query: str, status: int, kind: str
) -> None:
    StreamWriter(store, STREAM).add([batch_of(7, 0, 10)], closes=(7,))
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        answer = ask(f"{http.url}/v1/streams/{quoted(STREAM)}/ledgers/{query}")
    assert (answer.status, answer.json()["kind"], answer.json()["retryable"]) == (status, kind, False)
    assert answer.headers["content-type"] == "application/problem+json"


def test_every_kind_of_ledger_is_read_by_presigned_blocks_and_entries(s3_place: S3Place, tmp_path: Path) -> None:
    store = s3_place.open()
    writer = StreamWriter(store, STREAM)
    written(writer)
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        read: list[str] = []

        def counted(url: str, start: int, stop: int) -> bytes:
            read.append(url)
            return read_range(url, start, stop)

        for ledger_id in (7, 9, 10, 11, 12, 13):
            before = len(read)
            assert broker.whole(ledger_id, read=counted) == sent(writer, ledger_id)
            assert (len(read) > before) == (ledger_id not in (10, 13))
            plan = broker.plan(ledger_id).json()
            assert plan["length"] == sum(len(payload) for _, payload in sent(writer, ledger_id))
            now_ms = SystemClock().now_ms()
            assert plan["expires_ms"] is None or 800_000 < plan["expires_ms"] - now_ms <= 900_000
            assert all(chunk["bytes"] <= CHUNK_BYTES for chunk in plan["chunks"])


def test_process_that_only_reads_gives_the_same_plan(s3_place: S3Place, tmp_path: Path) -> None:
    store = s3_place.open()
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 0, 100)], closes=(7,))
    kept: dict[str, Any] = {"streams": (), "read_only": True, "store": s3_place.open(read_only=True)}
    with http_process(tmp_path, streams=(), store=store) as (http, _), http_process(tmp_path, **kept) as (reader, _):
        assert Broker(reader.url).plan(7).json()["chunks"] == Broker(http.url).plan(7).json()["chunks"]
        assert Broker(reader.url).whole(7) == sent(writer, 7)
        [url] = Broker(reader.url).plan(7).json()["objects"]
        assert url.startswith("http")


def test_log_has_no_presigned_url(s3_place: S3Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = s3_place.open()
    StreamWriter(store, STREAM).add([batch_of(7, 0, 10)], closes=(7,))
    with caplog.at_level("DEBUG", "offloader"), http_process(tmp_path, streams=(), store=store) as (http, _):
        [url] = Broker(http.url).plan(7).json()["objects"]
        Broker(http.url).entries(7, 0, 20)
    assert url.partition("?")[2] not in caplog.text
    assert "Signature=" not in caplog.text
