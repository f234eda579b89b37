"""Limits of one HTTP client: sizes, numbers, times; broken and slow clients are cut, others are served."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from offloader.errors import InvalidCallError
from offloader.service.http.middleware import PROBES_MAX
from offloader.service.http.server import OffloadHttp, client_of
from tests.support.http_process import ORDERS, ask, exchange, http_process, quoted
from tests.support.waiting import PATIENCE_S, eventually

#: A limit that is meant to be reached, and within which a busy machine still gets to send something.
BEGUN_WITHIN_S = 1.5
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
STREAM = f"/v1/streams/{quoted(ORDERS)}"


def connected(http: OffloadHttp) -> socket.socket:
    return socket.create_connection((http.address.host, http.address.port), timeout=PATIENCE_S)


def rest_of(connection: socket.socket) -> bytes:
    """What still comes, until the other side closes or cuts."""
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionError:
        pass
    return found


def metrics_of(http: OffloadHttp, tls: ssl.SSLContext | None = None) -> list[str]:
    """Lines of what a scrape gets: our own requests may be late, too, or one client's too many."""
    found: list[str] = []

    def is_scraped() -> bool:
        with suppress(OSError):
            answer = ask(f"{http.url}/metrics", tls=tls)
            found[:] = answer.body.decode().splitlines() if answer.status == 200 else []
        return bool(found)

    eventually(is_scraped)
    return found


def refused(http: OffloadHttp, reason: str, tls: ssl.SSLContext | None = None) -> float:
    lines = metrics_of(http, tls)
    wanted = f'offloader_http_refusals_total{{reason="{reason}"}} '
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


class Waiting:
    """A view whose answers wait until the test says so."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.asked = threading.Semaphore(0)

    def overview(self) -> dict[str, Any]:
        self.asked.release()
        assert self.go_on.wait(PATIENCE_S)
        return {"late": True}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AssertionError(f"{name} isn't asked for here")


@pytest.mark.slow
def test_noise_gets_a_response_and_affects_no_other_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import random

    draw = random.Random(7)
    limits = {"request_timeout": 0.2, "idle_timeout": 0.1}
    with http_process(tmp_path, {"http": limits}, streams=()) as (http, _):
        for _ in range(40):
            noise = bytearray(HEAD + b"Content-Length: 3\r\n\r\nabc")
            for _ in range(draw.randint(1, 8)):
                noise[draw.randrange(len(noise))] = draw.randrange(256)
            found = exchange(http, bytes(noise[: draw.randint(1, len(noise))]) + b"\r\nConnection: close\r\n\r\n")
            assert not found.startswith(b"HTTP/1.1 5") or found.startswith(b"HTTP/1.1 501"), (bytes(noise), found)
        eventually(lambda: _is_served(http))
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.slow
def test_a_body_is_as_long_as_allowed_and_no_longer(tmp_path: Path) -> None:
    with http_process(tmp_path, {"http": {"body_size_max": 2048}}) as (http, _):
        url = f"{http.url}{STREAM}/pause"
        fits = json.dumps({"reason": "x" * 900}).encode().ljust(2048)
        assert ask(url, method="POST", body=fits).status == 200
        for body in (fits + b" ", b" " * 500_000):
            answer = ask(url, method="POST", body=body)
            assert (answer.status, answer.json()["detail"]) == (413, "a body of more than 2048 bytes")
        chunks = b"".join(b"400\r\n" + b" " * 1024 + b"\r\n" for _ in range(100)) + b"0\r\n\r\n"
        head = (
            f"POST {STREAM}/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        assert exchange(http, head.encode() + chunks).startswith(b"HTTP/1.1 413 ")
        deep = b'{"reason":' + b"[" * 900 + b"]" * 900 + b"}"
        assert ask(url, method="POST", body=deep).status == 400
        digits = ask(url, method="POST", body=b'{"reason": ' + b"9" * 2000 + b"}")
        assert digits.status == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 400\r\n",
        b"Host: 127.0.0.2\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_request_with_two_lengths_is_refused_and_its_connection_closed(tmp_path: Path, headers: bytes) -> None:
    """What follows could be its body, or a request that somebody else put there."""
    with http_process(tmp_path, streams=()) as (http, _):
        start = b"POST /v1/streams/s/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        found = exchange(http, start + headers + b"\r\n0\r\n\r\n" + HEAD + b"\r\n")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in found.lower()
    assert found.count(b"HTTP/1.1 ") == 1


@pytest.mark.slow
def test_a_connection_without_a_request_is_closed_after_its_time(tmp_path: Path) -> None:
    with http_process(tmp_path, {"http": {"idle_timeout": BEGUN_WITHIN_S}}, streams=()) as (http, _):
        with connected(http) as connection:
            connection.sendall(HEAD + b"\r\n" + HEAD + b"\r\n")
            found = rest_of(connection)
        assert found.count(b"HTTP/1.1 200 ") == 2, "both requests of one connection are answered"


@pytest.mark.slow
def test_slow_reader_of_a_response_is_cut(tmp_path: Path) -> None:
    """A response of 16 MiB into a socket that isn't read."""

    class Large(Waiting):
        def overview(self) -> dict[str, Any]:
            return {"much": "x" * (16 * 1024 * 1024)}

    sections = {"http": {"answer_timeout": 3, "idle_timeout": 600, "request_timeout": 600}}
    with http_process(tmp_path, sections, streams=(), view=Large()) as (http, _):
        with connected(http) as connection:
            connection.sendall(b"GET /v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            eventually(lambda: refused(http, "slow_reader") == 1)
            assert len(rest_of(connection)) < 16 * 1024 * 1024
        assert ask(f"{http.url}/healthz").status == 200


@pytest.mark.slow
def test_requests_are_refused_while_too_many_response_bytes_are_unsent(tmp_path: Path) -> None:
    class Large(Waiting):
        def overview(self) -> dict[str, Any]:
            return {"much": "x" * (16 * 1024 * 1024)}

    sections = {"http": {"unsent_size_max": 1024 * 1024}}
    with http_process(tmp_path, sections, streams=(), view=Large()) as (http, _):
        with connected(http) as connection:
            connection.sendall(b"GET /v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            eventually(lambda: ask(f"{http.url}/v1/overview").status == 503)
            assert ask(f"{http.url}/healthz").status == 200
            assert len(rest_of(connection)) > 16 * 1024 * 1024, "who takes it gets it whole"
        eventually(lambda: ask(f"{http.url}/v1/overview").status == 200)


@pytest.mark.slow
def test_concurrent_requests_are_bounded_and_probes_still_answered(tmp_path: Path) -> None:
    view = Waiting()
    with http_process(tmp_path, {"http": {"requests_max": 3}}, streams=(), view=view) as (http, _):
        with ThreadPoolExecutor(3) as pool:
            busy = [pool.submit(ask, f"{http.url}/v1/overview") for _ in range(3)]
            for _ in busy:
                view.asked.acquire()
            more = ask(f"{http.url}/v1/overview")
            assert (more.status, more.headers["retry-after"], more.json()["kind"]) == (503, "1", "retry_later")
            assert [ask(f"{http.url}{path}").status for path in ("/healthz", "/metrics")] == [200, 200]
            view.go_on.set()
            assert [each.result().json()["late"] for each in busy] == [True] * 3
        eventually(lambda: ask(f"{http.url}/v1/overview").status == 200)
    assert PROBES_MAX >= 2


@pytest.mark.slow
def test_timed_out_request_keeps_its_slot_until_its_thread_ends(tmp_path: Path) -> None:
    view = Waiting()
    sections = {"http": {"requests_max": 1, "answer_timeout": 0.3}}
    with http_process(tmp_path, sections, streams=(), view=view) as (http, _):
        late = ask(f"{http.url}/v1/overview")
        assert (late.status, late.json()["kind"]) == (504, "retry_later")
        assert ask(f"{http.url}/v1/overview").status == 503, "its thread still works"
        view.go_on.set()
        eventually(lambda: ask(f"{http.url}/v1/overview").status == 200)


@pytest.mark.slow
def test_connections_above_the_limit_are_closed_at_once(tmp_path: Path) -> None:
    with http_process(tmp_path, {"http": {"connections_max": 4}}, streams=()) as (http, _):
        held = [connected(http) for _ in range(4)]
        try:
            for connection in held:
                connection.sendall(HEAD + b"\r\n")
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            with connected(http) as one_more:
                assert rest_of(one_more) == b""
        finally:
            for connection in held:
                connection.close()
        eventually(lambda: _is_served(http))
        assert refused(http, "connections") >= 1


@pytest.mark.slow
def test_single_client_never_holds_all_connections(tmp_path: Path) -> None:
    limits = {"connections_max": 4, "client_connections_max": 3}
    with http_process(tmp_path, {"http": limits}, streams=()) as (http, _), ExitStack() as stack:
        held = [stack.enter_context(connected(http)) for _ in range(3)]
        for connection in held:
            connection.sendall(HEAD + b"\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        with connected(http) as one_more:
            assert rest_of(one_more) == b""
        there = http.address.host, http.address.port
        with socket.create_connection(there, timeout=PATIENCE_S, source_address=("127.0.0.2", 0)) as other:
            other.sendall(HEAD + b"\r\n")
            assert other.recv(65536).startswith(b"HTTP/1.1 200 ")
        held.pop().close()
        # Whoever left makes room.
        eventually(lambda: _is_served(http))
        for connection in held:
            connection.close()
        assert refused(http, "client_connections") >= 1


def test_addresses_of_one_client_are_one() -> None:
    assert client_of("192.0.2.7") == client_of("::ffff:192.0.2.7") != client_of("192.0.2.8")
    assert client_of("2001:db8:1:2::7") == client_of("2001:db8:1:2:ffff::1%eth0") != client_of("2001:db8:1:3::7")


def _is_served(http: OffloadHttp, tls: ssl.SSLContext | None = None) -> bool:
    try:
        return ask(f"{http.url}/healthz", tls=tls).status == 200
    except OSError:
        return False


@pytest.mark.slow
def test_unexpected_error_is_logged_and_not_sent_to_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Waiting):
        def overview(self) -> dict[str, Any]:
            raise RuntimeError("the secret inside")

    with http_process(tmp_path, streams=(), view=Broken()) as (http, _):
        answer = ask(f"{http.url}/v1/overview")
        assert (answer.status, answer.json()["kind"]) == (500, "bug")
        assert b"secret" not in answer.body
        assert ask(f"{http.url}/healthz").status == 200
        eventually(lambda: any(each.levelno >= logging.ERROR for each in caplog.records))
    [told] = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert told.exc_info is not None


@pytest.mark.slow
def test_stopping_lets_requests_finish_and_cuts_overdue_ones(tmp_path: Path) -> None:
    view = Waiting()
    with http_process(tmp_path, streams=(), view=view) as (http, _), ThreadPoolExecutor(2) as pool:
        under_way = pool.submit(ask, f"{http.url}/v1/overview")
        view.asked.acquire()
        stopping = pool.submit(http.stop, 60.0)
        eventually(lambda: not _is_served(http))
        view.go_on.set()
        assert under_way.result().json()["late"] is True
        stopping.result()
        http.stop()


@pytest.mark.slow
def test_address_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with (
        http_process(tmp_path, streams=()) as (http, _),
        pytest.raises(InvalidCallError, match=rf"http.listen 127.0.0.1:{http.address.port}: Address already in use"),
        http_process(tmp_path, {"http": {"listen": str(http.address)}}, streams=()),
    ):
        pass
