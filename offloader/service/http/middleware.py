"""Request checks before the application, headers of every response, and errors as problem details (RFC 9457).

A response never contains a traceback, a code path of this machine or a client's secret: unknown errors only refer to
the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ipaddress
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from formats.errors import FormatError, InconsistentError
from formats.frames import FRAMES_BYTES_MAX
from offloader.errors import (
    AccessDeniedError,
    ClosedError,
    ErrorKind,
    LimitReachedError,
    OffloaderError,
    PreconditionFailedError,
    UnsupportedError,
)
from offloader.manifest.state import StreamPaused
from offloader.owner_client import NotOwnerError
from offloader.read.ledger_plan import LedgerMismatch, LedgerTrimmed
from offloader.runtime.clock import Clock
from offloader.service.auth import OPERATIONS, Caller, Guard, ListenAddress, NotAllowed, NotAuthenticated
from offloader.settings import BrokerSettings, HttpSettings
from offloader.telemetry.recorder import Recorder

#: Media type of every error.
PROBLEM_JSON = "application/problem+json"

#: Status of an error; the first match counts. An access error of the store isn't the caller's fault.
_STATUS: tuple[tuple[type[OffloaderError], int], ...] = (
    (NotAuthenticated, 401),
    (NotAllowed, 403),
    (LedgerTrimmed, 410),
    (LedgerMismatch, 409),
    (NotOwnerError, 421),
    (AccessDeniedError, 502),
    (PreconditionFailedError, 409),
    (StreamPaused, 409),
    (ClosedError, 503),
    (LimitReachedError, 409),
    (UnsupportedError, 501),
)
_STATUS_OF_KIND = {
    ErrorKind.BUG: 500,
    ErrorKind.INVALID_REQUEST: 400,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.RETRY_LATER: 503,
    ErrorKind.FENCED: 409,
    ErrorKind.DATA_CORRUPTION: 500,
    ErrorKind.OUTCOME_UNKNOWN: 503,
    ErrorKind.DENIED: 502,
}
#: Kinds that only brokers' requests have, each with its own remedy.
_BROKER_KINDS: tuple[tuple[type[OffloaderError], str], ...] = (
    (LedgerTrimmed, "trimmed"),
    (LedgerMismatch, "source_mismatch"),
    (NotOwnerError, "not_owner"),
)
#: Kinds of errors by status, for errors without a kind; others are invalid requests.
_KIND_OF_STATUS = {
    **dict.fromkeys((401, 403), ErrorKind.DENIED),
    404: ErrorKind.NOT_FOUND,
    **dict.fromkeys((408, 503, 504), ErrorKind.RETRY_LATER),
    500: ErrorKind.BUG,
}


def problem_document(
    status: int, detail: str, *, kind: ErrorKind | None = None, hint: str = "", **more: Any
) -> dict[str, Any]:
    """The members of a problem.

    Args:
        detail: one line: what failed, on which object, why.
        kind: kind of error, which determines the remedy; default: by the status.
        hint: the remedy as text, one line.
        more: further members.
    """
    kind = kind or _KIND_OF_STATUS.get(status, ErrorKind.INVALID_REQUEST)
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": " ".join(detail.split()),
        "kind": kind.name.lower(),
        "hint": hint,
        "retryable": kind is ErrorKind.RETRY_LATER,
        **more,
    }


#: Status of a problem -> its headers; others have none.
PROBLEM_HEADERS: Mapping[int, Mapping[str, str]] = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}


def problem_of(error: Exception) -> dict[str, Any] | None:
    """The problem document of a package error; ``None``: another error, which is a bug."""
    if isinstance(error, InconsistentError) and str(error).startswith("stream name"):
        return problem_document(400, str(error), hint="request /v1/streams to list the streams")
    if isinstance(error, FormatError):
        return problem_document(500, str(error), kind=ErrorKind.DATA_CORRUPTION, hint="stored bytes are damaged")
    if not isinstance(error, OffloaderError):
        return None
    status = next((each for kind, each in _STATUS if isinstance(error, kind)), _STATUS_OF_KIND[error.kind])
    more = {
        name: str(value)
        for name in ("first_available", "last_available", "owner")
        if (value := getattr(error, name, None)) is not None
    }
    found = problem_document(
        status, error.message, kind=error.kind, hint=error.hint, error=type(error).__name__, **more
    )
    of_broker = next((name for kind, name in _BROKER_KINDS if isinstance(error, kind)), found["kind"])
    return {**found, "kind": of_broker}


#: For an unexpected error; its details are only in the log.
BUG = problem_document(
    500, "internal error: this is a bug; the process's log has the details", hint="report the log lines of the error"
)


#: Short responses without authentication.
SHORT = frozenset({"/healthz", "/readyz"})
_READ_ONLY = frozenset({"GET", "HEAD", "OPTIONS"})
#: Headers that may appear only once.
_SINGLE = frozenset({"authorization", "content-length", "content-type", "host", "origin"})


class Head:
    """The head of a request in uvicorn's scope.

    Attributes:
        path: percent-encoded, as sent.
        headers: by lower-case name; of several the last.
        doubled: whether a header that may appear once was repeated.
        size_bytes: of the whole head.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        names = [name for name, _ in pairs if name in _SINGLE]
        self.method: str = scope["method"]
        self.path: str = scope["raw_path"].decode("ascii")
        self.headers = dict(pairs)
        self.doubled = len(names) > len(set(names))
        headers_bytes = sum(len(name) + len(value) + len(": \r\n") for name, value in pairs)
        self.size_bytes = headers_bytes + len(scope["raw_path"]) + len(scope["query_string"])

    @property
    def body_bytes(self) -> int:
        """Announced length; 0 if absent."""
        return int(self.headers.get("content-length") or 0)


def is_our_host(host: str, names: Collection[str]) -> bool:
    """Whether ``Host: host`` is an IP address, ``localhost``, or one of ``names`` (lower case)."""
    try:
        name = urlsplit(f"http://{host}").hostname or ""
        if name != "localhost" and name not in names:
            ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_other_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser marks the request as cross-site. Other clients send no such header."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    with contextlib.suppress(ValueError):
        return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    return True


_log = logging.getLogger("offloader.service.http")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Key of the ``Caller`` in a request's state.
CALLER = "caller"
#: Key of the client's certificate names in a request's state; ``None`` there: it presented none.
CERTIFICATE_NAMES = "certificate_names"
#: Separate limits for monitoring requests, so that a busy process still responds to them. Scrapes don't delay probes,
#: which are ``SHORT``.
PROBES_MAX, SCRAPES_MAX = 4, 2
#: Paths of broker requests, which have separate limits; the last part, if any.
_LEDGER = re.compile(r"/v1/streams/[^/]+/ledgers/[^/]+(?:/(?P<what>[a-z]+))?")
#: Maximum time a request for entries waits for others to end, so that a broker's read-ahead isn't refused immediately.
STREAM_WAIT_S = 5.0


class Work(enum.Enum):
    """Kinds of requests, each with a limit of concurrent requests."""

    PROBE = "probe"
    SCRAPE = "scrape"
    OTHER = "other"
    BROKER = "broker"
    BROKER_WAIT = "broker wait"
    BROKER_STREAM = "broker stream"

    @classmethod
    def of(cls, head: Head) -> Work:
        """The kind of a request."""
        if head.path in SHORT:
            return cls.PROBE
        if head.path == "/metrics":
            return cls.SCRAPE
        if (found := _LEDGER.fullmatch(head.path)) is None:
            return cls.OTHER
        kinds = {("POST", "offload"): cls.BROKER_WAIT, ("GET", "entries"): cls.BROKER_STREAM}
        return kinds.get((head.method, found["what"] or ""), cls.BROKER)


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
        pages: paths of the dashboard's files, which need no authentication.
        unsent_bytes: returns the size of all responses that clients haven't read yet.
        names: further host names, besides IP addresses, ``localhost`` and the name in ``address``.
    """

    def __init__(
        self,
        app: App,
        *,
        guard: Guard,
        settings: HttpSettings,
        brokers: BrokerSettings,
        address: ListenAddress,
        clock: Clock,
        recorder: Recorder,
        pages: Collection[str],
        unsent_bytes: Callable[[], int],
        names: Collection[str] = (),
    ) -> None:
        self._app, self._guard, self._settings = app, guard, settings
        self._clock, self._recorder, self._unsent_bytes = clock, recorder, unsent_bytes
        self._open = SHORT.union(pages)
        self._names = frozenset(name.lower() for name in (*names, address.host) if name)
        #: Free slots by kind of request.
        self._free = {
            Work.PROBE: asyncio.Semaphore(PROBES_MAX),
            Work.SCRAPE: asyncio.Semaphore(SCRAPES_MAX),
            Work.OTHER: asyncio.Semaphore(settings.requests_max),
            Work.BROKER: asyncio.Semaphore(brokers.requests_max),
            Work.BROKER_WAIT: asyncio.Semaphore(brokers.waits_max),
            Work.BROKER_STREAM: asyncio.Semaphore(brokers.streams_max),
        }

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
            self._recorder.observe("http_request_duration_seconds", self._clock.monotonic_s() - started_s)

    async def _pass(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        head = Head(scope)
        if problem := self._problem(head):
            # After an ambiguous head the rest of the connection is ambiguous too.
            await answer.problem(problem, closes=problem["status"] == HTTPStatus.BAD_REQUEST)
            return
        scope["state"][CALLER] = caller = self._caller(head, scope["state"].get(CERTIFICATE_NAMES))
        if is_frames(head):
            caller.may(OPERATIONS["offload-ledger"])  # only brokers may send a long body
        body = await _body(receive, self._body_bytes_max(head))
        if body is None:
            return
        work = Work.of(head)
        unsent = head.path not in SHORT and self._unsent_bytes() > self._settings.unsent_size_max
        if len(body) > self._body_bytes_max(head):
            await answer.problem(self._too_long(head))
        elif unsent or not await self._begins(work):
            await answer.problem(problem_document(503, "too many concurrent requests", hint="retry after 1 second"))
        else:
            await self._work(scope, _replay(body, receive), answer, work)

    async def _begins(self, work: Work) -> bool:
        """Takes a free slot of the kind; returns whether there was one."""
        if work is not Work.BROKER_STREAM and self._free[work].locked():
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STREAM_WAIT_S):
                return await self._free[work].acquire()
        return False

    def _problem(self, head: Head) -> dict[str, Any] | None:
        """The problem of a head; ``None``: the head is valid."""
        # uvicorn checks only heads that arrive in pieces.
        if head.size_bytes > self._settings.header_size_max:
            return problem_document(431, f"a head of more than {self._settings.header_size_max} bytes")
        if head.doubled:
            return problem_document(400, "a header is repeated that may occur only once")
        if "content-length" in head.headers and "transfer-encoding" in head.headers:
            return problem_document(400, "the body's length is said in two ways")
        if self._guard.anonymous is not None and not is_our_host(head.headers.get("host", ""), self._names):
            # DNS rebinding: a web page whose name resolves to this address would get an anonymous caller's permissions.
            return problem_document(
                421,
                "the header Host names another server",
                hint="use this process's address, or add the name to access.hosts",
            )
        changes = head.method not in _READ_ONLY
        if is_other_site(head.headers) and (changes or head.path not in self._open):
            return problem_document(403, "a web page of another site may ask for nothing here")
        media = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = bool(head.body_bytes) or "transfer-encoding" in head.headers
        if changes and has_body and media != "application/json" and not is_frames(head):
            return problem_document(415, "the body isn't application/json", hint="Content-Type: application/json")
        return self._too_long(head) if head.body_bytes > self._body_bytes_max(head) else None

    def _body_bytes_max(self, head: Head) -> int:
        return FRAMES_BYTES_MAX if is_frames(head) else self._settings.body_size_max

    def _too_long(self, head: Head) -> dict[str, Any]:
        return problem_document(413, f"a body of more than {self._body_bytes_max(head)} bytes")

    async def _work(self, scope: Scope, receive: Receive, answer: _Answer, work: Work) -> None:
        """Runs the application up to the response deadline; a thread that continues keeps its slot. For a response with
        entries the deadline applies to each piece."""
        task = asyncio.ensure_future(self._app(scope, receive, answer))
        task.add_done_callback(lambda _: self._free[work].release())
        is_stream = work is Work.BROKER_STREAM
        while True:
            before = answer.pieces
            done, _ = await asyncio.wait([task], timeout=self._settings.answer_timeout)
            if done:
                await task
                return
            if not is_stream or answer.pieces == before:
                break
        if is_stream:
            task.cancel()  # otherwise it would produce pieces without a receiver
        if not answer.status:
            await answer.problem(
                problem_document(
                    504,
                    f"no response within {self._settings.answer_timeout:g} s",
                    hint="the operation may still be running: check its result before you retry",
                )
            )
        task.add_done_callback(_forget)
        answer.is_closed = True

    def _caller(self, head: Head, certificate_names: Collection[str] | None) -> Caller:
        try:
            return self._guard.caller(head.headers.get("authorization"), certificate_names)
        except NotAuthenticated:
            if head.path not in self._open:
                raise
            return Caller("anyone", None)

    async def _failed(self, scope: Scope, answer: _Answer, error: Exception) -> None:
        if (problem := problem_of(error)) is None:
            # The path may contain anything; the method and the time identify the request.
            _log.error(
                "a request failed unexpectedly",
                exc_info=error,
                extra={"event": "http_failed", "method": scope["method"]},
            )
            problem = BUG
        if not answer.status:
            await answer.problem(problem)
        answer.is_closed = True


class _Answer:
    """Receives an application's response: adds the headers, and can be closed."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send, self._clock = send, clock
        #: Drops the rest of the application's response: uvicorn closes the connection of one that ends early.
        self.is_closed = False
        self.status = 0
        #: Messages that were sent.
        self.pieces = 0

    async def __call__(self, message: Message) -> None:
        if self.is_closed:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", []))
            names = {name.lower() for name, _ in given}
            date = (b"date", formatdate(self._clock.now_ms() / 1000, usegmt=True).encode())
            message["headers"] = [*given, *(each for each in (*_HEADERS, date) if each[0] not in names)]
        await self._send(message)
        self.pieces += 1

    async def problem(self, document: Mapping[str, Any], *, closes: bool = False) -> None:
        """Sends a problem document.

        Args:
            closes: the connection after it.
        """
        body = json.dumps(document, ensure_ascii=False).encode()
        headers = {
            "content-type": PROBLEM_JSON,
            "content-length": str(len(body)),
            **PROBLEM_HEADERS.get(document["status"], {}),
            **({"connection": "close"} if closes else {}),
        }
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": document["status"], "headers": pairs})
        await self({"type": "http.response.body", "body": body})


def is_frames(head: Head) -> bool:
    """Whether the body has entries as frames, which may be longer than any other body."""
    found = _LEDGER.fullmatch(head.path)
    return head.method == "PUT" and found is not None and found["what"] == "missing"


async def _body(receive: Receive, bytes_max: int) -> bytes | None:
    """The whole body, or a prefix that exceeds the limit; ``None``: the client disconnected."""
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
    first = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed() -> Message:
        return next(first, None) or await receive()

    return replayed


def _forget(task: asyncio.Future[None]) -> None:
    """Consumes the error of an abandoned task."""
    with contextlib.suppress(asyncio.CancelledError):
        if task.exception() is not None:
            _log.warning("a request failed after its deadline response was sent: %s", task.exception())
