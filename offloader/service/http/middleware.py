"""Request checks before the application, and headers of every response."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import urlsplit

from offloader.runtime.clock import Clock
from offloader.service.auth import Caller, Guard, NotAuthenticated
from offloader.service.http.connection import CERTIFICATE_NAMES
from offloader.service.http.problems import BUG, PROBLEM_JSON, problem_document, problem_headers, problem_of
from offloader.service.listen import ListenAddress
from offloader.settings import HttpSettings
from offloader.telemetry.recorder import Recorder

__all__ = ["CALLER", "SHORT", "Gate", "Head", "HeadRules", "is_other_site", "is_our_host"]

#: Short responses without authentication.
SHORT = frozenset({"/healthz", "/readyz"})
_READ_ONLY = frozenset({"GET", "HEAD", "OPTIONS"})
#: Headers that may appear only once.
_SINGLE = frozenset({"authorization", "content-length", "content-type", "host", "origin"})


@dataclass(frozen=True, slots=True)
class Head:
    """A request's head.

    Attributes:
        path: percent-encoded, as sent.
        headers: by lower-case name; of several the last.
        doubled: whether a header that may appear once was repeated.
        size_bytes: of the whole head.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    doubled: bool
    size_bytes: int

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> Head:
        """From uvicorn's scope."""
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        names = [name for name, _ in pairs if name in _SINGLE]
        size_bytes = sum(len(name) + len(value) + len(": \r\n") for name, value in pairs)
        return cls(
            scope["method"],
            scope["raw_path"].decode("ascii"),
            dict(pairs),
            len(names) > len(set(names)),
            size_bytes + len(scope["raw_path"]) + len(scope["query_string"]),
        )

    @property
    def has_body(self) -> bool:
        return bool(self.body_bytes) or "transfer-encoding" in self.headers

    @property
    def body_bytes(self) -> int:
        """Announced length; 0 if absent."""
        return int(self.headers.get("content-length") or 0)


class HeadRules:
    """Rules of a listener.

    Args:
        settings: sizes.
        address: of the listener.
        is_trusting: whether unknown callers have any permission.
        is_page: whether a path is one of the page's own files.
        names: further host names, besides IP addresses, ``localhost`` and the name in ``address``.
    """

    def __init__(
        self,
        settings: HttpSettings,
        address: ListenAddress,
        *,
        is_trusting: bool,
        is_page: Callable[[str], bool],
        names: Collection[str] = (),
    ) -> None:
        self._settings, self._is_page, self._is_trusting = settings, is_page, is_trusting
        self._names = frozenset(name.lower() for name in (*names, address.host) if name)

    def is_open(self, path: str) -> bool:
        """Whether the path needs no authentication."""
        return path in SHORT or self._is_page(path)

    def problem(self, head: Head) -> dict[str, Any] | None:
        """The problem of a head; ``None``: none."""
        # uvicorn checks only heads that arrive in pieces.
        if head.size_bytes > self._settings.header_bytes_max:
            return problem_document(431, f"a head of more than {self._settings.header_bytes_max} bytes")
        if head.doubled:
            return problem_document(400, "a header is there twice that can be there once")
        if "content-length" in head.headers and "transfer-encoding" in head.headers:
            return problem_document(400, "the body's length is said in two ways")
        if self._is_trusting and not is_our_host(head.headers.get("host", ""), self._names):
            # DNS rebinding: a web page whose name resolves to our address would have an anonymous caller's permissions.
            hint = "ask by this process's address, or list the name in access.hosts"
            return problem_document(421, "the header Host names somebody else", hint=hint)
        changes = head.method not in _READ_ONLY
        if is_other_site(head.headers) and (changes or not self.is_open(head.path)):
            return problem_document(403, "a web page of another site may ask for nothing here")
        media = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if changes and head.has_body and media != "application/json":
            return problem_document(415, "the body isn't application/json", hint="Content-Type: application/json")
        return self.too_long() if head.body_bytes > self._settings.body_bytes_max else None

    def too_long(self) -> dict[str, Any]:
        """The problem of a body that is too long."""
        return problem_document(413, f"a body of more than {self._settings.body_bytes_max} bytes")


def is_our_host(host: str, names: Collection[str]) -> bool:
    """Whether ``Host: host`` is an IP address, ``localhost``, or one of ``names`` (lower case)."""
    name = _name_of(f"http://{host}") if host else None
    if name is None:
        return False
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_other_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser marks the request as cross-site. Other clients send no mark."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:
        return True


def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


_log = logging.getLogger("offloader.service.http")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Key of the ``Caller`` in a request's state.
CALLER = "caller"
#: Monitoring paths: they have their own concurrency limit, so that a busy process still responds.
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
PROBES_MAX = 4
#: Status of a refused caller -> label of its metric.
_REFUSALS = {401: "unknown", 403: "role"}
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class Gate:
    """ASGI middleware.

    Args:
        app: the application.
        guard: authenticates.
        settings: sizes, numbers and times.
        address: of the listener.
        clock: for the date of a response.
        recorder: counts responses and refusals.
        is_page: paths without authentication: the page's own files.
        unsent_bytes: of all responses that clients haven't read yet.
        names: further host names, see ``HeadRules``.
    """

    def __init__(
        self,
        app: App,
        *,
        guard: Guard,
        settings: HttpSettings,
        address: ListenAddress,
        clock: Clock,
        recorder: Recorder,
        is_page: Callable[[str], bool],
        unsent_bytes: Callable[[], int],
        names: Collection[str] = (),
    ) -> None:
        self._app, self._guard, self._settings = app, guard, settings
        self._clock, self._recorder, self._unsent_bytes = clock, recorder, unsent_bytes
        self._rules = HeadRules(
            settings, address, is_trusting=guard.anonymous is not None, is_page=is_page, names=names
        )
        self._working = {True: 0, False: 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer(send, self._clock)
        started_s = self._clock.monotonic_s()
        # Still percent-encoded: a slash in a stream's name must not separate parts of the path.
        scope["path"] = scope["raw_path"].decode("ascii")
        try:
            await self._pass(scope, receive, answer)
        except Exception as error:
            await self._failed(scope, answer, error)
        finally:
            self._recorder.add("http_requests_total", label=f"{answer.status // 100}xx" if answer.status else "none")
            if answer.status in _REFUSALS:
                self._recorder.add("http_refusals_total", label=_REFUSALS[answer.status])
            self._recorder.observe("http_seconds", self._clock.monotonic_s() - started_s)

    async def _pass(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        head = Head.of(scope)
        problem = self._rules.problem(head)
        if problem is not None:
            await answer.problem(problem)
            return
        path = head.path
        scope["state"][CALLER] = self._caller(head, scope["state"].get(CERTIFICATE_NAMES))
        body = await _body(receive, self._settings.body_bytes_max)
        if body is None:
            return
        if len(body) > self._settings.body_bytes_max:
            await answer.problem(self._rules.too_long())
            return
        is_probe = path in PROBES
        most = PROBES_MAX if is_probe else self._settings.requests_max
        unsent = path not in SHORT and self._unsent_bytes() > self._settings.unsent_bytes_max
        if unsent or self._working[is_probe] >= most:
            busy = problem_document(503, "as much is asked for as is worked on at once", hint="come again in a second")
            await answer.problem(busy)
            return
        await self._work(scope, _replay(body, receive), answer, is_probe=is_probe)

    async def _work(self, scope: Scope, receive: Receive, answer: _Answer, *, is_probe: bool) -> None:
        """Runs the application up to the response deadline; a thread that continues keeps its slot."""
        self._working[is_probe] += 1
        task = asyncio.ensure_future(self._app(scope, receive, answer))

        def ended(_: object) -> None:
            self._working[is_probe] -= 1

        task.add_done_callback(ended)
        done, _ = await asyncio.wait([task], timeout=self._settings.answer_seconds_max)
        if done:
            await task
            return
        late = problem_document(
            504,
            f"no answer within {self._settings.answer_seconds_max:g} s",
            hint="what was begun may go on: look first",
        )
        if answer.status:
            answer.cut()
        else:
            await answer.problem(late)
        task.add_done_callback(_forget)
        answer.close()

    def _caller(self, head: Head, certificate_names: Collection[str] | None) -> Caller:
        try:
            return self._guard.caller(head.headers.get("authorization"), certificate_names)
        except NotAuthenticated:
            if self._rules.is_open(head.path):
                return Caller("anyone", None)
            raise

    async def _failed(self, scope: Scope, answer: _Answer, error: Exception) -> None:
        problem = problem_of(error)
        if problem is None:
            # The path may contain anything; the method and the time identify the request.
            extra = {"event": "http_failed", "method": scope["method"]}
            _log.error("a request failed unexpectedly", exc_info=error, extra=extra)
            problem = BUG
        if answer.status:
            answer.cut()
        else:
            await answer.problem(problem)


class _Answer:
    """Receives an application's response: adds the headers, and can be closed."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send, self._clock = send, clock
        self._closed = False
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if self._closed:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", []))
            names = {name.lower() for name, _ in given}
            date = (b"date", formatdate(self._clock.now_ms() / 1000, usegmt=True).encode())
            message["headers"] = [*given, *(each for each in (*_HEADERS, date) if each[0] not in names)]
        await self._send(message)

    async def problem(self, document: Mapping[str, Any]) -> None:
        """Responds with a problem."""
        body = json.dumps(document, ensure_ascii=False).encode()
        headers = [(b"content-type", PROBLEM_JSON.encode()), (b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in problem_headers(document).items()]
        await self({"type": "http.response.start", "status": document["status"], "headers": headers})
        await self({"type": "http.response.body", "body": body})

    def close(self) -> None:
        """Drops the rest of the application's response."""
        self._closed = True

    def cut(self) -> None:
        """Aborts a begun response: uvicorn closes the connection of one that ends early."""
        self._closed = True


async def _body(receive: Receive, bytes_max: int) -> bytes | None:
    """The whole body, or enough to see that it is too long; ``None``: the client disconnected."""
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        found += message.get("body", b"")
        if not message.get("more_body", False) or len(found) > bytes_max:
            return bytes(found)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Replays a body that was already read."""
    left = [body]

    async def replayed() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replayed


def _forget(task: asyncio.Future[None]) -> None:
    """Consumes the error of an abandoned task."""
    with contextlib.suppress(asyncio.CancelledError):
        if task.exception() is not None:
            _log.warning("a request failed after its client was told that it takes too long: %s", task.exception())
