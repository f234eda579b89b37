"""The admin client against a scripted server."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
)
from offloader.ledgers.pulsar import admin
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.discovery import TopicPatterns, survey
from offloader.ledgers.pulsar.transport import Security, parse_service_url
from tests.support.certificates import Authority

SECRET = Security(lambda: "secret")
LEDGERS = "/admin/v2/persistent/t/n/a%20b/internalStats"
BODY = json.dumps({"ledgers": [{"ledgerId": 7, "entries": 5, "size": 50}]}).encode()


class Server(ThreadingHTTPServer):
    """Answers from a table: path -> (status, body, headers); a list of answers is used up one after the other."""

    answers: dict[str, Any]
    asked: list[tuple[str, str | None]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        answer = self.server.answers.get(self.path, (404, b""))
        if isinstance(answer, list):
            answer = answer.pop(0)
        status, body, *headers = answer
        self.send_response(status)
        for name, value in headers[0].items() if headers else ():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.answers, running.asked = {}, []
        thread = Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def client(server: Server) -> Iterator[AdminClient]:
    with AdminClient(f"http://127.0.0.1:{server.server_port}/", security=SECRET) as client:
        yield client


def test_topics_ledgers_and_namespaces(server: Server, client: AdminClient) -> None:
    server.answers = {
        "/admin/v2/tenants": (200, b'["t", "u v"]'),
        "/admin/v2/namespaces/t": (200, b'["t/n"]'),
        "/admin/v2/namespaces/u%20v": (200, b"[]"),
        "/admin/v2/persistent/t/n": (200, b'["persistent://t/n/a b"]'),
        LEDGERS: (200, BODY),
    }
    assert client.namespaces() == ["t/n"]
    [topic] = client.topics("t/n")
    found = client.ledgers(topic)
    assert (found.topic, [ledger.ledger_id for ledger in found.ledgers]) == (topic, [7])
    assert {token for _, token in server.asked} == {"Bearer secret"}


def test_another_host_that_a_broker_sends_us_to_does_not_get_the_token(server: Server, client: AdminClient) -> None:
    other = f"http://localhost:{server.server_port}/elsewhere"
    server.answers = {LEDGERS: (307, b"", {"Location": other}), "/elsewhere": (200, BODY)}
    error: OffloaderError | None = None
    try:
        client.ledgers("persistent://t/n/a b")
    except AccessDeniedError as refused:
        error = refused
    assert server.asked == [(LEDGERS, "Bearer secret")]
    assert error is not None
    assert "pulsar.admin_hosts" in error.hint


@pytest.mark.parametrize("hosts", [["localhost"], ["other", "LOCAL*"]])
def test_a_broker_that_the_settings_name_gets_the_token_too(server: Server, hosts: list[str]) -> None:
    other = f"http://localhost:{server.server_port}/elsewhere"
    server.answers = {LEDGERS: (307, b"", {"Location": other}), "/elsewhere": (200, BODY)}
    with AdminClient(f"http://127.0.0.1:{server.server_port}/", security=SECRET, hosts=hosts) as client:
        client.ledgers("persistent://t/n/a b")
    assert server.asked == [(LEDGERS, "Bearer secret"), ("/elsewhere", "Bearer secret")]


def test_without_a_token_any_broker_may_be_asked(server: Server) -> None:
    other = f"http://localhost:{server.server_port}/elsewhere"
    server.answers = {LEDGERS: (307, b"", {"Location": other}), "/elsewhere": (200, BODY)}
    with AdminClient(f"http://127.0.0.1:{server.server_port}/") as client:
        client.ledgers("persistent://t/n/a b")
    assert server.asked == [(LEDGERS, None), ("/elsewhere", None)]


def test_endless_redirects_are_given_up(server: Server, client: AdminClient) -> None:
    server.answers = {LEDGERS: (307, b"", {"Location": LEDGERS})}
    with pytest.raises(StoreUnavailableError, match="redirects between brokers"):
        client.ledgers("persistent://t/n/a b")
    assert len(server.asked) == admin.REDIRECTS_MAX + 1


@pytest.mark.parametrize("address", ["http://[", "http://[fe80::1/ledgers"])
def test_redirect_to_no_address_is_an_error_that_is_tried_again(
    server: Server, client: AdminClient, address: str
) -> None:
    server.answers = {LEDGERS: (307, b"", {"Location": address})}
    found: Exception | None = None
    try:
        client.ledgers("persistent://t/n/a b")
    except Exception as error:
        found = error
    assert isinstance(found, StoreUnavailableError)


def test_token_is_not_sent_on_redirect_from_https_to_http(server: Server, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server.socket = authority.server().wrap_socket(server.socket, server_side=True)
    elsewhere = f"http://localhost:{server.server_port}/elsewhere"
    server.answers = {LEDGERS: (307, b"", {"Location": elsewhere})}
    security = Security(lambda: "secret", ssl.create_default_context(cafile=str(authority.ca_file)))
    with (
        AdminClient(f"https://127.0.0.1:{server.server_port}", security=security) as client,
        pytest.raises(AccessDeniedError, match="is not encrypted"),
    ):
        client.ledgers("persistent://t/n/a b")
    assert [path for path, _ in server.asked] == [LEDGERS]


@pytest.mark.slow
def test_busy_broker_is_asked_again(server: Server, client: AdminClient) -> None:
    server.answers = {LEDGERS: [(503, b""), (429, b""), (200, BODY)]}
    assert client.ledgers("persistent://t/n/a b").ledgers


def test_a_broker_that_wants_to_be_left_alone_for_hours_does_not_hold_the_caller_up(
    server: Server, client: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", slept.append)
    server.answers = {LEDGERS: (503, b"", {"Retry-After": "20000"})}
    with pytest.raises(StoreUnavailableError, match="returned status 503"):
        client.ledgers("persistent://t/n/a b")
    assert max(slept, default=0.0) < 60


@pytest.mark.slow
def test_a_broker_at_an_ipv6_address_that_the_settings_name_gets_the_token_too(server: Server) -> None:
    server.answers = {"/admin/v2/tenants": (307, b"", {"Location": "http://[::1]:9/admin/v2/tenants"})}
    named = AdminClient(f"http://127.0.0.1:{server.server_port}", security=SECRET, hosts=["[::1]"])
    with named, pytest.raises(StoreUnavailableError, match="doesn't answer"):
        named.namespaces()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, b"", AccessDeniedError),
        (403, b"", AccessDeniedError),
        (404, b"", NotFoundError),
        (500, b"broken", StoreUnavailableError),
        (500, b"no such token: secret", StoreUnavailableError),
        (503, b"", StoreUnavailableError),
        (200, b"<html>", CorruptError),
        (200, b'{"ledgers": 7}', CorruptError),
        (200, b"[" * 100_000, CorruptError),
        (200, b"x" * 190 + b" secret", CorruptError),
        (500, b"x" * 197 + b"secret", StoreUnavailableError),
        (200, BODY.replace(b"5,", b"-5,"), CorruptError),
        (200, BODY.replace(b"5,", b"1e999,"), CorruptError),
        (200, BODY.replace(b"7,", b"18446744073709551616,"), CorruptError),
        (200, b'{"partitions": {"persistent://t/n/other": %s}}' % BODY, CorruptError),
        (200, b'{"ledgers": [%s]}' % b",".join([b'{"ledgerId": 7, "entries": 5, "size": 50}'] * 2), CorruptError),
    ],
)
def test_every_other_answer_is_a_named_error_without_the_token(
    server: Server, client: AdminClient, status: int, body: bytes, error: type[OffloaderError]
) -> None:
    server.answers = {LEDGERS: (status, body)}
    with pytest.raises(error) as raised:
        client.ledgers("persistent://t/n/a b")
    assert "secret" not in str(raised.value)
    assert "xsec" not in str(raised.value), "half a token"


@pytest.mark.parametrize("body", [b'{"a": 1}', b'["public", 7]', b'["\\ud800"]'])
def test_a_list_must_be_one(server: Server, client: AdminClient, body: bytes) -> None:
    server.answers = {"/admin/v2/tenants": (200, body)}
    with pytest.raises(CorruptError, match="list of names"):
        client.namespaces()


def test_no_topic_counts_as_deleted_while_the_list_of_tenants_is_not_found(server: Server, client: AdminClient) -> None:
    look, error = survey(client, TopicPatterns.of(["*/*"]))
    assert (look.is_whole, isinstance(error, NotFoundError)) == (False, True)


def test_a_tenant_that_is_deleted_while_the_cluster_is_listed_hides_no_other(
    server: Server, client: AdminClient
) -> None:
    server.answers = {
        "/admin/v2/tenants": (200, b'["gone", "t"]'),
        "/admin/v2/namespaces/t": (200, b'["t/n"]'),
        "/admin/v2/persistent/t/n": (200, b'["persistent://t/n/a"]'),
    }
    look, error = survey(client, TopicPatterns.of(["*/*"]))
    assert (look.topics, look.is_whole, error) == ({"t/n": frozenset({"persistent://t/n/a"})}, True, None)


def test_an_answer_has_a_limit(server: Server, client: AdminClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "ANSWER_BYTES_MAX", 10)
    server.answers = {LEDGERS: (200, BODY)}
    with pytest.raises(CorruptError, match="more than 10 bytes"):
        client.ledgers("persistent://t/n/a b")


@pytest.mark.slow
def test_silent_server_runs_into_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "READ_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = AdminClient(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with client, pytest.raises(StoreUnavailableError, match="doesn't answer"):
            client.namespaces()


def test_only_http_admin_urls_are_accepted() -> None:
    with pytest.raises(InvalidCallError, match="not an admin URL"):
        AdminClient("pulsar://broker:6650")


@pytest.mark.parametrize(
    "url", ["http://ops:hunter2@127.0.0.1:1", "https://ops:hunter2@[", "pulsar://ops:hunter2@broker:6650"]
)
def test_credentials_in_an_admin_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidCallError) as refused:
        AdminClient(url)
    assert "hunter2" not in str(refused.value)


def test_credentials_in_a_service_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidCallError, match="is no Pulsar service URL") as refused:
        parse_service_url("pulsar://ops:hunter2@one:6650,ops:hunter2@two:6650")
    assert "hunter2" not in str(refused.value)
