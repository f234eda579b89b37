"""The admin interface of the fake Pulsar broker: real HTTP, about the topics it was given.

Only this machine reaches it. It doesn't use the client it is to test.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import unquote

from formats.entries import Position

__all__ = ["AdminTopic", "FakeAdmin"]

_HOST = "127.0.0.1"
#: Instead of a document: it was done.
_DONE = "done"
_ROOT = "/admin/v2/"
_PERSISTENT = "persistent://"
_STOP_TIMEOUT_S = 60.0


class AdminTopic(Protocol):
    """A topic as the interface shows it; ``tests.support.pulsar_topics.FakeTopic`` is one."""

    name: str

    def internals(self) -> Mapping[str, Any]:
        """The document ``internalStats``."""

    def stats(self) -> Mapping[str, Any]:
        """The document ``stats``."""

    def entry(self, position: Position) -> tuple[int, Mapping[str, str], bytes]:
        """About one entry: status, headers, body."""

    def trim(self) -> None:
        """Deletes closed ledgers that every subscription has consumed."""

    def unload(self) -> None:
        """Every consumer is sent away."""

    def offload(self, before: Position) -> None:
        """The closed ledgers before a position are offloaded."""

    def subscription_properties(self, subscription: str) -> dict[str, str] | None:
        """``None``: there is no such subscription."""

    def note(self, subscription: str, properties: Mapping[str, str]) -> None:
        """A subscription has these properties from now on."""


class AdminScalable(Protocol):
    """A scalable topic as the interface shows it; ``tests.support.scalable_topic.FakeScalable`` is one."""

    def layout(self) -> Mapping[str, Any]:
        """Its layout; empty: it was deleted."""

    def stats(self) -> Mapping[str, Any]:
        """The document ``stats``."""

    def register(self, subscription: str) -> None:
        """Registers a subscription."""

    def backlog(self, descriptor: str, subscription: str) -> int | None:
        """Entries of a segment that a subscription hasn't acknowledged; ``None``: it isn't there."""


class FakeAdmin:
    """An admin interface on the loopback interface.

    Args:
        topics: what there is; changed by ``add`` and ``remove``.
        partitioned: topic -> how many partitions.
        token: who asks must show this.
        tls: whose certificate it shows.

    Attributes:
        policies: namespace -> its policies; a namespace with topics is there anyway.
        version, settings: of the broker.
        asked: method and path of each request.
        answers: path -> (status, body) instead of the truth, while they are there.
        refuses_entries: status of each answer about a single entry; 0: it tells the truth.
        is_up: else every connection is closed without an answer.
        hold: while it isn't set, nothing is answered.
        elsewhere: topic -> the interface of the broker that has it, which is named instead of an answer.
        scalable: the scalable topics that there are, also deleted ones without a layout.
    """

    def __init__(
        self,
        *topics: AdminTopic,
        partitioned: Mapping[str, int] | None = None,
        token: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.partitioned = dict(partitioned or {})
        self.token = token
        self.policies: dict[str, Mapping[str, Any]] = {}
        self.version, self.settings = "4.0.7", dict[str, Any]()
        self.asked: list[tuple[str, str]] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.refuses_entries = 0
        self.is_up = True
        self.elsewhere: dict[str, FakeAdmin] = {}
        self.hold = threading.Event()
        self.hold.set()
        self.scalable: dict[str, AdminScalable] = {}
        self._topics = {topic.name: topic for topic in topics}
        self._lock = threading.Lock()
        admin = self

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # in two pieces an answer waits 40 ms for the other side's system

            def do_GET(self) -> None:
                admin._serve(self)

            do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer((_HOST, 0), _Handler)
        self._server.daemon_threads = True
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-pulsar-admin")
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://{_HOST}:{self._server.server_port}"

    def add(self, *topics: AdminTopic) -> None:
        with self._lock:
            self._topics |= {topic.name: topic for topic in topics}

    def remove(self, *names: str) -> None:
        with self._lock:
            for name in names:
                self._topics.pop(name, None)
                self.partitioned.pop(name, None)

    def of(self, method: str, ending: str) -> list[str]:
        """The paths that were asked for with a method and that end so."""
        with self._lock:
            return [path for asked, path in self.asked if asked == method and path.endswith(ending)]

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hold.set()
        self._server.shutdown()
        self._thread.join(_STOP_TIMEOUT_S)
        self._server.server_close()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        sent = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        with self._lock:
            self.asked.append((request.command, request.path))
        self.hold.wait(_STOP_TIMEOUT_S)
        if not self.is_up:
            request.close_connection = True
            return
        status, headers, body = self._answer(request, sent)
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        if status != 204:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if status != 204:
            request.wfile.write(body)

    def _answer(self, request: BaseHTTPRequestHandler, sent: bytes) -> tuple[int, Mapping[str, str], bytes]:
        if request.path in self.answers:
            status, body = self.answers[request.path]
            return status, {}, body
        if self.token and request.headers["Authorization"] != f"Bearer {self.token}":
            return 401, {}, b"HTTP 401 Unauthorized"
        parts = [unquote(part) for part in request.path[len(_ROOT) :].split("/")]
        owner = self.elsewhere.get(f"{_PERSISTENT}{'/'.join(parts[1:4])}") if parts[0] == "persistent" else None
        if owner is not None:
            return 307, {"Location": f"{owner.url}{request.path}"}, b""
        if (entry := self._entry(request.command, parts)) is not None:
            return entry
        found = self._changed(request.command, parts, sent) or self._document(request.command, parts)
        if found is None:
            return 404, {}, json.dumps({"reason": f"{request.path} not found"}).encode()
        return (204, {}, b"") if found in ("", _DONE) else (200, {}, json.dumps(found).encode())

    def _changed(self, method: str, parts: list[str], sent: bytes) -> str:
        """Empty: it is no request with a document."""
        with self._lock:
            topic = self._topics.get(f"{_PERSISTENT}{'/'.join(parts[1:4])}")
        match method, parts:
            case "PUT", ["persistent", _, _, _, "offload"] if topic is not None:
                asked = json.loads(sent)
                topic.offload(Position(asked["ledgerId"], asked["entryId"]))
                return _DONE
            case "PUT", ["scalable", *name, "subscriptions", subscription]:
                self.scalable[f"topic://{'/'.join(name)}"].register(subscription.partition("?")[0])
                return _DONE
            case "PUT", ["persistent", _, _, _, "subscription", name, "properties"] if topic is not None:
                topic.note(name, json.loads(sent))
                return _DONE
        return ""

    def _entry(self, method: str, parts: list[str]) -> tuple[int, Mapping[str, str], bytes] | None:
        match method, parts:
            case "GET", ["persistent", tenant, name, topic, "ledger", ledger_id, "entry", entry_id]:
                if self.refuses_entries:
                    return self.refuses_entries, {}, b""
                with self._lock:
                    found = self._topics.get(f"{_PERSISTENT}{tenant}/{name}/{topic}")
                return None if found is None else found.entry(Position(int(ledger_id), int(entry_id)))
        return None

    def _document(self, method: str, parts: list[str]) -> Any:
        """``None``: it isn't there; an empty text: done, and there is nothing to say."""
        with self._lock:
            topics = dict(self._topics)
            names = {name.removeprefix(_PERSISTENT) for name in (*topics, *self.partitioned)}
            namespaces = {name.rpartition("/")[0] for name in names} | set(self.policies)
        match method, parts:
            case "GET", ["persistent", *name, "subscription", subscription, "properties"]:
                topic = topics.get(f"{_PERSISTENT}{'/'.join(name)}")
                return None if topic is None else topic.subscription_properties(subscription)
            case "GET", ["brokers", "version"]:
                return self.version
            case "GET", ["brokers", "configuration", "runtime"]:
                return self.settings
            case "GET", ["tenants"]:
                return sorted({namespace.split("/")[0] for namespace in namespaces})
            case "GET", ["namespaces", tenant]:
                return sorted(each for each in namespaces if each.split("/")[0] == tenant) or None
            case "GET", ["namespaces", tenant, name] if f"{tenant}/{name}" in namespaces:
                return self.policies.get(f"{tenant}/{name}", {})
            case "GET", ["persistent", tenant, name] if f"{tenant}/{name}" in namespaces:
                return sorted(topic for topic in topics if topic.startswith(f"{_PERSISTENT}{tenant}/{name}/"))
            case "GET", ["segments", tenant, name, topic, descriptor, "subscription", subscription, "backlog"]:
                scalable = self.scalable.get(f"topic://{tenant}/{name}/{topic}")
                return None if scalable is None else scalable.backlog(descriptor, subscription)
            case "GET", ["scalable", tenant, name]:
                return [topic for topic in self.scalable if topic.startswith(f"topic://{tenant}/{name}/")] or None
            case "GET", ["scalable", tenant, name, topic, *verb]:
                scalable = self.scalable.get(f"topic://{tenant}/{name}/{topic}")
                return scalable and ((scalable.stats() if verb == ["stats"] else scalable.layout()) or None)
            case _, ["persistent", tenant, name, topic, verb]:
                return self._of_topic(method, topics, f"{_PERSISTENT}{tenant}/{name}/{topic}", verb)
        return None

    def _of_topic(self, method: str, topics: Mapping[str, AdminTopic], name: str, verb: str) -> Any:
        topic = topics.get(name)
        if (method, verb) == ("GET", "partitions"):
            known = name in self.partitioned or topic is not None
            return {"partitions": self.partitioned.get(name, 0), "deleted": False} if known else None
        if topic is None:
            return None
        match method, verb:
            case "GET", "internalStats":
                return topic.internals()
            case "GET", "stats":
                return topic.stats()
            case "POST", "trim":
                topic.trim()
                return ""
            case "PUT", "unload":
                topic.unload()
                return ""
        return None
