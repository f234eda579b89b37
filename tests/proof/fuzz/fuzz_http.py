"""Requests over HTTP as bytes of a connection: each is answered as it should, and none reaches beyond the store.

Whatever comes: an answer in time, never one that says "bug", always with the headers that keep browsers safe.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import random
import re
import tempfile
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from offloader.runtime.clock import SystemClock
from offloader.service.auth import Credentials, Guard, Role, parse_listen
from offloader.service.broker_ledgers import BrokerLedgers
from offloader.service.http.broker_routes import BrokerThreads
from offloader.service.http.middleware import Gate
from offloader.service.http.routes import DESCRIPTION, make_application, page_files
from offloader.service.http.schemas import write_cursor
from offloader.service.http.server import Connection
from offloader.service.queries import ServiceControl, ServiceView
from tests.proof.fuzz.fuzz_engine import Outcome, Target
from tests.proof.fuzz.fuzz_mutation import STRANGE, mutate_json, mutate_text
from tests.support.http_process import ORDERS, PAYMENTS, http_stage, quoted

TOKENS = {role: f"{role.name.lower()}-secret-0123456789" for role in Role}
#: Beside the store, where a path that leaves it would find it.
OUTSIDE = "what lies outside of the store"
STREAM = quoted(ORDERS)
#: Seconds until a request that nobody answers counts as hanging, whatever else the machine does.
HANGS_S = 120
#: What may be answered: 500 and 502 would be a bug, or a store that refuses.
_MAY_FAIL = (501, 503, 504)
_HTTP = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class _Wire(asyncio.Transport):
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self._closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50000) if name in ("peername", "sockname") else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """A client that has the end closes."""
        self._closing = True

    def pause_reading(self) -> None:
        """Everything was read."""

    resume_reading = pause_reading


class _Process:
    """A gate with its application over a real store in a folder, and a loop for its connections."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ends = contextlib.ExitStack()
        limits = {"body_size_max": 16384, "header_size_max": 8192}
        settings, process, metrics = self._ends.enter_context(
            http_stage(folder, {"http": limits}, streams=(ORDERS, PAYMENTS), store_url=f"file://{folder}/store")
        )
        (folder / "outside").write_text(OUTSIDE)
        clock, address = SystemClock(), parse_listen("127.0.0.1:8750")
        environ = {role.name: token for role, token in TOKENS.items()}
        credentials = Credentials(tokens={role: [f"env:{role.name}"] for role in Role}, environ=environ)
        control = ServiceControl(process.store, clock=clock, process=process.served)
        ledgers = BrokerLedgers(
            process.store, settings=settings, clock=clock, recorder=metrics, control=control, environ={}
        )
        threads = BrokerThreads(settings.broker)
        self._ends.callback(threads.close)
        self._ends.callback(ledgers.close)
        app = make_application(
            ServiceView(process.store, clock=clock, process=process.served),
            control,
            metrics.exposition,
            ledgers=ledgers,
            threads=threads,
            answer_s=0.05,  # of which an offload waits for what never comes
        )
        self._gate = Gate(
            app,
            guard=Guard(credentials, Role.ADMIN),
            settings=settings.http,
            brokers=settings.broker,
            address=address,
            clock=clock,
            recorder=metrics,
            pages=page_files(),
            unsent_bytes=lambda: 0,
        )
        self._config = Config(
            self._heard, ws="none", http="h11", interface="asgi3", lifespan="off", log_config=None, access_log=False,
            proxy_headers=False, server_header=False, date_header=False, h11_max_incomplete_event_size=8192,
        )  # fmt: skip
        self._config.load()
        self._settings = settings.http
        self._runner = self._ends.enter_context(asyncio.Runner())
        self.answers: list[tuple[str, str, int]] = []
        self.failures: list[str] = []
        logger = logging.getLogger("offloader")
        logger.propagate = False
        logger.addHandler(_Failures(self.failures))
        self.beside = sorted(folder.iterdir())

    async def _heard(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """The gate, and what it answered."""
        body = bytearray()
        started: dict[str, Any] = {}

        async def heard(message: MutableMapping[str, Any]) -> None:
            started.update(message) if message["type"] == "http.response.start" else body.extend(message["body"])
            await send(message)

        await self._gate(scope, receive, heard)
        if started:
            self._require_sound(scope, started, bytes(body))
            self.answers.append((scope["method"], scope["path"], started["status"]))

    @staticmethod
    def _require_sound(scope: MutableMapping[str, Any], started: MutableMapping[str, Any], body: bytes) -> None:
        status, headers = started["status"], dict(started["headers"])
        assert status < 500 or status in _MAY_FAIL, f"{scope['method']} {scope['path']}: {status} {body[:500]!r}"
        for name in (b"x-content-type-options", b"content-security-policy", b"referrer-policy", b"cache-control"):
            assert name in {each.lower() for each in headers}, f"no {name!r} in an answer {status}"
        assert OUTSIDE.encode() not in body, "an answer holds what lies outside of the store"
        if headers.get(b"content-type", b"").startswith(b"application/problem+json") and body:
            problem = json.loads(body)
            assert problem["status"] == status
            assert problem["detail"].strip()
            assert problem["detail"].isprintable(), problem

    def exchange(self, data: bytes) -> bytes:
        """Everything that is answered to these bytes; then the client goes away."""
        return self._runner.run(asyncio.wait_for(self._exchanged(data), HANGS_S))

    async def _exchanged(self, data: bytes) -> bytes:
        state, wire = ServerState(), _Wire()
        connection = Connection(self._config, state, self._settings, lambda _: None)
        connection.connection_made(wire)
        if data:  # asyncio never hands over nothing
            connection.data_received(data)
        while state.tasks and not (connection.cycle and connection.cycle.more_body):
            await asyncio.wait(list(state.tasks))
        connection.connection_lost(None)
        while state.tasks:
            await asyncio.wait(list(state.tasks))
        return bytes(wire.sent)

    def close(self) -> None:
        self._ends.close()


class _Failures(logging.Handler):
    """Keeps what the process couldn't explain."""

    def __init__(self, failures: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        self._failures.append(logging.Formatter().format(record))


@cache
def _process() -> _Process:
    place = tempfile.TemporaryDirectory()
    found = _Process(Path(place.name))
    atexit.register(place.cleanup)
    atexit.register(found.close)
    return found


def seeds() -> list[bytes]:
    """Every path of the description with each of its methods, bodies that are right, and odd requests."""
    _process()  # its memory is what the process begins with
    paths = [
        "/", "/dashboard/page.js", "/healthz", "/readyz", "/metrics", DESCRIPTION, "/v1/overview", "/v1/status",
        "/v1/config?topic=shop%2Feu%2Fpersistent%2Forders", "/v1/errors?limit=5", "/v1/decisions", "/v1/orphans",
        "/v1/streams?order=lag&contains=o&served=true&limit=1", f"/v1/streams/{STREAM}",
        *(f"/v1/streams/{STREAM}/{name}" for name in (
            "segments?limit=1", "ledgers", "timeline", "retention", "decisions", "subscribers", "cleanup", "orphans",
        )),
    ]  # fmt: skip
    found = [b"GET " + path.encode() + _HTTP + b"\r\n" for path in paths]
    bodies: list[tuple[str, str, Any]] = [
        ("POST", "offload", {"until": "0:3", "wait_seconds": 1.5}),
        ("POST", "offload", {}),
        ("POST", "pause", {"reason": "because"}),
        ("POST", "resume", {}),
        ("PUT", "subscribers/billing", {"start": "latest", "generation": 1}),
        ("PUT", "subscribers/billing/position", {"at": {"0": "0:7"}, "generation": 1}),
        ("DELETE", "subscribers/billing?generation=1", None),
    ]
    for method, path, body in bodies:
        found.append(_request(method, f"/v1/streams/{STREAM}/{path}", body))
    token = f"Authorization: Bearer {TOKENS[Role.READ]}\r\n".encode()
    chunked = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    beyond = f"/v1/streams/{quoted('../../outside')}/segments".encode()
    return [
        *found,
        b"GET /v1/streams/..%2f..%2foutside" + _HTTP + b"\r\n",
        b"GET " + beyond + _HTTP + b"\r\n",
        b"GET /v1/overview" + _HTTP + token + b"\r\n",
        b"POST /v1/streams/" + STREAM.encode() + b"/pause" + _HTTP + chunked,
        b"GET /healthz" + _HTTP + b"\r\nGET /readyz" + _HTTP + b"Connection: close\r\n\r\n",
        b"HEAD /" + _HTTP + b"\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: http://elsewhere\r\n\r\n",
    ]


def _request(method: str, path: str, body: Any) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    return f"{method} {path}".encode() + _HTTP + head + data


WORDS = [
    "/", "//", "..", "%2F", "%2e%2e", "%252F", "%00", "%", "%ff", "%ED%A0%80", "?", "&", "=", "#", "\\", ":", "@",
    "*", "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "HTTP/1.0", "\r\n",
    "\r\n\r\n", "\n", "Host: elsewhere\r\n", "Content-Length: 5\r\n", "Content-Length: 99999999999999999999\r\n",
    "Connection: close\r\n", "Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n",
    "Upgrade: websocket\r\nConnection: upgrade\r\n", "Origin: null\r\n", "Origin: http://[\r\n",
    "Sec-Fetch-Site: cross-site\r\n", "Cookie: a=b\r\n", "Range: bytes=0-\r\n", "Authorization: Bearer x\r\n",
    "Authorization: Basic eDp5\r\n", "If-None-Match: *\r\n", "X: " + "a" * 9000 + "\r\n",
    f"Authorization: Bearer {TOKENS[Role.WRITE]}\r\n", "limit=0", "limit=-1", "limit=1e9", "cursor=", "order=trouble",
    "a" * 900, "9" * 30, "٣", "é", "manifest", "_catalog", "outside", "-index", "NaN", "null", "{}", "[[[[", "0:0",
    "-1:0",
]  # fmt: skip


def change(rng: random.Random, pool: list[bytes]) -> bytes:
    """A request with words changed; of one with a body, often the body as JSON; sometimes a cursor of any place."""
    if rng.random() < 0.05:
        return _page_at_any_place(rng)
    if rng.random() < 0.3:
        head, _, body = rng.choice(pool).partition(b"\r\n\r\n")
        with contextlib.suppress(ValueError, RecursionError):
            changed = json.dumps(mutate_json(rng, json.loads(body), [])).encode()
            length = b"Content-Length: %d" % len(changed)
            return re.sub(rb"Content-Length: \d+", length, head) + b"\r\n\r\n" + changed
    return mutate_text(rng, pool, WORDS)


def _page_at_any_place(rng: random.Random) -> bytes:
    """A page that goes on at a place nobody gave out: a cursor's check is no secret."""
    order = rng.choice(["name", "lag", "trouble", "rate"])
    place = [order, rng.choice(STRANGE), rng.choice(STRANGE), rng.choice(STRANGE), rng.choice(["", ORDERS, 7])]
    text = rng.choice([json.dumps(place), "[" * 2900, "0:0 " + str(rng.choice(STRANGE)), rng.choice(WORDS)])
    of: tuple[str, ...] = ("streams", order, "", "False")
    path = "/v1/streams?order=" + order + "&"
    if rng.random() < 0.4:
        of, path = ("segments", ORDERS), f"/v1/streams/{STREAM}/segments?"
    elif rng.random() < 0.3:
        of, path = ("entries", ORDERS), f"/v1/streams/{STREAM}/entries?"
        columns: list[list[Any]] = [
            [rng.choice([None, 0, 7, 1 << 70, "1:0", []])] * rng.choice([1, 1, 1, 400]) for _ in range(3)
        ]
        text = rng.choice([text, json.dumps(columns), json.dumps([[None], [1], [5]]), json.dumps({"0": "1:0"})])
    cursor = write_cursor(text.encode("utf-8", "replace").decode()[:3000], *of)
    return f"GET {path}cursor={cursor}".encode() + _HTTP + b"\r\n"


def check(data: bytes) -> Outcome:
    """The invariant for the bytes of one connection."""
    process = _process()
    process.answers.clear()
    process.failures.clear()
    sent = process.exchange(data)
    assert not process.failures, process.failures[0]
    assert sent.startswith(b"HTTP/1.1 ") or not sent, f"no answer of HTTP: {sent[:100]!r}"
    assert OUTSIDE.encode() not in sent
    # A path, a cursor or a body may name what happens to be a token; a header's must never come back.
    elsewhere = re.sub(rb"(?i)authorization:[^\n]*", b"", data)
    if b"secret" not in elsewhere and b"cursor=" not in elsewhere:
        assert not [token for token in TOKENS.values() if token.encode() in sent], "an answer shows a token"
    beside = sorted(process.folder.iterdir())
    assert beside == process.beside, f"something new beside the store: {beside}"
    statuses = tuple(int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", sent)[:3])
    return (statuses, tuple((method, path.split("/")[-1][:12]) for method, path, _ in process.answers[:1]))


TARGETS = [Target("http", seeds, check, change, per_s=600)]
