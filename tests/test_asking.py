"""Asking a stream's owner: what its answers mean, where a token goes, and what silence means."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from formats.entries import Position
from offloader.asking import Owner, OwnerSilent
from offloader.clock import SystemClock
from offloader.errors import AccessDenied, Corrupt, Fenced, InvalidCall, NotFound, OffloaderError, StoreUnavailable
from tests.support.waiting import PATIENCE_S

STREAM = "a/b c/persistent/orders"


class Answering:
    """A server that answers what it is told to, one answer a request, the last one for ever.

    Attributes:
        asked: path, body and authorization of each request.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, Any, str | None]] = []
        bench = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                bench.asked.append((self.path, json.loads(body), self.headers.get("Authorization")))
                status, found = bench.answers.pop(0) if len(bench.answers) > 1 else bench.answers[0]
                raw = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def answering() -> Iterator[Answering]:
    bench = Answering()
    thread = threading.Thread(target=bench.server.serve_forever)
    thread.start()
    yield bench
    bench.server.shutdown()
    bench.server.server_close()
    thread.join()


def owner(url: str, **environ: str) -> Owner:
    return Owner(url, clock=SystemClock(), environ=environ)


def test_it_is_asked_until_it_is_done(answering: Answering) -> None:
    not_yet = (503, {"detail": "not committed yet", "kind": "retry_later"})
    answering.answers = [not_yet, (200, {"stream": STREAM, "committed": "7:12"})]
    asked = owner(answering.url, OFFLOADER_TOKEN="secret-of-sixteen")
    found = asked.offload(STREAM, Position(7, 12), within_s=PATIENCE_S)
    assert found == Position(7, 12)
    assert [each[0] for each in answering.asked] == ["/v1/streams/a%2Fb%20c%2Fpersistent%2Forders/offload"] * 2
    assert answering.asked[0][1] == {"wait_seconds": 20.0, "until": "7:12"}
    assert answering.asked[0][2] == "Bearer secret-of-sixteen"


def test_a_stream_without_entries_has_no_committed_end(answering: Answering) -> None:
    answering.answers = [(200, {"committed": None})]
    assert owner(answering.url).offload(STREAM, None, within_s=18) is None
    assert answering.asked[0][1:] == ({"wait_seconds": pytest.approx(9, abs=9)}, None)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((503, {"detail": "1:5 isn't offloaded", "kind": "retry_later"}), StoreUnavailable, "1:5 isn't offloaded"),
        ((404, {"detail": "isn't offloaded here", "kind": "not_found"}), NotFound, "isn't offloaded here"),
        ((409, {"detail": "stands by", "kind": "fenced", "hint": "ask that one"}), Fenced, "ask that one"),
        ((400, {"detail": "no position", "kind": "fix_call"}), InvalidCall, "no position"),
        ((401, {"detail": "needs a token"}), AccessDenied, "OFFLOADER_TOKEN"),
        ((403, {"detail": "the role is read"}), AccessDenied, "OFFLOADER_TOKEN"),
        ((500, {"detail": "a bug", "kind": "bug"}), OffloaderError, "a bug"),
        ((200, b"<html>"), Corrupt, "no JSON"),
        ((200, {"committed": "x"}), Corrupt, "'x' instead of a position"),
        ((302, {"detail": "elsewhere"}), OffloaderError, "elsewhere"),
    ],
)
def test_its_answers_mean_here_what_they_mean_there(
    answering: Answering, answer: tuple[int, Any], error: type[OffloaderError], said: str
) -> None:
    answering.answers = [answer]
    with pytest.raises(error, match=said) as raised:
        owner(answering.url).offload(STREAM, None, within_s=0)
    assert type(raised.value) is error


def test_nobody_there_is_told_apart_from_one_that_cannot(answering: Answering) -> None:
    answering.server.shutdown()
    answering.server.server_close()
    with pytest.raises(OwnerSilent, match=r"nobody answers at .*refused"):
        owner(answering.url).offload(STREAM, None, within_s=5)


def test_a_token_goes_nowhere_in_plain_and_no_error_shows_it() -> None:
    asked = owner("http://192.0.2.1:8750", OFFLOADER_TOKEN="secret-of-sixteen")
    with pytest.raises(AccessDenied, match="isn't sent there") as raised:
        asked.offload(STREAM, None, within_s=5)
    assert "secret-of" not in f"{raised.value!r} {asked!r}"


@pytest.mark.parametrize("url", ["ftp://x", "x", "http://", "file:///etc/passwd"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidCall, match="no HTTP address"):
        owner(url)


def test_authorities_that_cannot_be_read_are_named() -> None:
    with pytest.raises(AccessDenied, match=r"OFFLOADER_CA_FILE: nowhere\.pem can't be read"):
        owner("https://host", OFFLOADER_CA_FILE="nowhere.pem")
