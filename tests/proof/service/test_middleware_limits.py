"""Limits of one HTTP client: sizes, numbers, times; broken and slow clients are cut, others are served."""

from __future__ import annotations

import json
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.service.http.test_middleware_limits import BEGUN_WITHIN_S, HEAD, connected, refused, rest_of
from tests.support.certificates import Authority
from tests.support.http_process import ask, exchange, http_process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40 + b"\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n", 421),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (HEAD + b"Host: twice\r\n\r\n", 400),
        (HEAD + b"A b: c\r\n\r\n", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /healthz\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 431),
    ],
)
def test_malformed_request_gets_a_problem_response_and_is_closed(tmp_path: Path, raw: bytes, status: int) -> None:
    with http_process(tmp_path, {"http": {"request_timeout": 30}}, streams=()) as (http, _):
        head, _, body = exchange(http, raw).partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
        assert b"application/problem+json" in head
        assert json.loads(body)["status"] == status
        assert ask(f"{http.url}/healthz").status == 200


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /" + b"a" * 4_000_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (HEAD + b"Connection: close\r\nContent-Length: 4000000\r\n\r\n" + b" " * 4_000_000, 413),
    ],
)
def test_client_that_sends_more_than_is_read_gets_the_answer(
    tmp_path: Path, raw: bytes, status: int, secure: bool
) -> None:
    authority = Authority(tmp_path)
    tls = ssl.create_default_context(cafile=authority.ca_file) if secure else None
    access = {"certificate_file": str(authority.issue("127.0.0.1"))} if secure else {}
    with http_process(tmp_path, {"access": access}, streams=()) as (http, _):
        assert exchange(http, raw, tls).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET /heal", HEAD, HEAD + b"Content-Length: 1000\r\n\r\n12345"])
def test_a_slow_sender_is_cut(tmp_path: Path, sent: bytes) -> None:
    """However often another byte arrives: the deadline is the request's."""
    with http_process(tmp_path, {"http": {"request_timeout": BEGUN_WITHIN_S}}, streams=()) as (http, _):
        with connected(http) as connection:
            connection.sendall(sent)
            stop = threading.Event()

            def drip() -> None:
                try:
                    while sent and not stop.wait(0.05):
                        connection.sendall(b"a")
                except OSError:
                    pass

            dripping = threading.Thread(target=drip)
            dripping.start()
            found = rest_of(connection)
            stop.set()
            dripping.join()
        assert found.startswith(b"HTTP/1.1 408 ") if sent else found == b""
        assert refused(http, "slow_request") >= (1 if sent else 0)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x00\xa5\x01"])
def test_missing_tls_handshake_is_cut_and_counts_as_a_connection(tmp_path: Path, sent: bytes) -> None:
    authority = Authority(tmp_path)
    sections: dict[str, dict[str, Any]] = {
        "access": {"certificate_file": str(authority.issue("127.0.0.1"))},
        "http": {"request_timeout": BEGUN_WITHIN_S, "connections_max": 2},
    }
    tls = ssl.create_default_context(cafile=authority.ca_file)
    with http_process(tmp_path, sections, streams=()) as (http, _):
        with connected(http) as one, connected(http) as other:
            for connection in (one, other):
                connection.sendall(sent)
            with connected(http) as third:
                assert rest_of(third) == b""
            assert [rest_of(each) for each in (one, other)] == [b"", b""]
        # At least: our own handshakes may be late, too.
        assert refused(http, "handshake", tls) >= 2
        assert refused(http, "connections", tls) >= 1
