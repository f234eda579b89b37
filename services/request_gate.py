"""A gate before an S3 server: it tells who listens about each request while it passes, refuses some with 503, and lets
the answers of some get lost.

It doesn't change a byte that passes (but where a client takes it for its HTTP proxy, and names the server in the
request line), or hold more than a piece of a body.

A listener hears of a request three times: before the server gets any of it, when half of its body is with the server,
and when the server has answered and the client doesn't know yet. What it does takes place at that very moment.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

__all__ = ["Moment", "Passing", "RequestGate"]

_HOST = "127.0.0.1"
_PIECE_BYTES = 64 * 1024
_HEAD_BYTES_MAX = 256 * 1024
_CONNECT_TIMEOUT_S = 60.0
#: What a client that is refused may still send before its connection ends.
_UNREAD_TIMEOUT_S = 2.0
_BODY = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
_REFUSAL = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    % len(_BODY)
)

Moment = Literal["before", "half", "answered"]


@dataclass(frozen=True, slots=True)
class Passing:
    """One request at one moment: its method, its path with the query, as the client sent them."""

    method: str
    target: str
    moment: Moment


class RequestGate:
    """Passes HTTP/1.1 connections on to ``target_url``; a context.

    Args:
        target_url: of a server on this machine; it may be away for a while.
        heard: the listener, called in the threads of connections.
        seed: of the choice which requests are refused, and which answers get lost.

    Attributes:
        url: where clients go, as to the server or as to a proxy.
        refused_share: of the requests from now on that are answered with 503, 0 to 1.
        lost_share: of the requests from now on that the server answers, after which their client hears nothing for
            ``lost_after_s``, and then that the connection ends.
        requests: how many came.
        refused, lost: to how many of them that happened.
        cut: how many ended within their body.
    """

    def __init__(self, target_url: str, heard: Callable[[Passing], None], *, seed: int = 0) -> None:
        at = urlsplit(target_url)
        self._target = (at.hostname or _HOST, at.port or 80)
        self._heard = heard
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self.refused_share = self.lost_share = self.lost_after_s = 0.0
        self.requests = self.refused = self.lost = self.cut = 0
        self._ended = threading.Event()
        self._listener = socket.create_server((_HOST, 0), backlog=128)
        self.url = f"http://{_HOST}:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name="request gate", daemon=True)

    def __enter__(self) -> RequestGate:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._lock:
            still_open = dict(self._open)
        for client, thread in still_open.items():
            _end(client)
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serving = threading.Thread(target=self._serve, args=(client,), daemon=True)
            with self._lock:
                self._open[client] = serving
                serving.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError), _Connection(client, self._target, self) as connection:
                while (request := connection.next_request()) is not None:
                    if self._refuses():
                        connection.refuse()
                        return
                    connection.pass_on(request)
        finally:
            with self._lock:
                self._open.pop(client, None)
            client.close()

    def heard(self, passing: Passing) -> None:
        """For its connections: tells who listens."""
        self._heard(passing)

    def loses(self) -> bool:
        """For its connections: whether an answer gets lost; says so when its client has waited long enough."""
        with self._lock:
            if not self.lost_share or self._random.random() >= self.lost_share:
                return False
            self.lost += 1
        self._ended.wait(self.lost_after_s)
        return True

    def count_cut(self) -> None:
        """For its connections: a request ended within its body."""
        with self._lock:
            self.cut += 1

    def _refuses(self) -> bool:
        with self._lock:
            self.requests += 1
            if not self.refused_share or self._random.random() >= self.refused_share:
                return False
            self.refused += 1
            return True


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: str
    head: bytes
    body_bytes: int


class _Connection:
    """One client, and its connection to the server once there is something to pass on."""

    def __init__(self, client: socket.socket, target: tuple[str, int], gate: RequestGate) -> None:
        self._client = client
        self._target = target
        self._gate = gate
        self._server: socket.socket | None = None
        self._answering: threading.Thread | None = None
        self._unread = b""
        #: The request that waits for its answer; the next one begins after it.
        self._waiting: _Request | None = None

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._client)
        if self._server is not None:
            _end(self._server)
            if self._answering is not None:
                self._answering.join()
            self._server.close()

    def next_request(self) -> _Request | None:
        """The head of the next request; ``None`` when the client has ended the connection."""
        while b"\r\n\r\n" not in self._unread:
            more = self._client.recv(_PIECE_BYTES)
            if not more or len(self._unread) > _HEAD_BYTES_MAX:
                return None
            self._unread += more
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        fields = dict(line.lower().split(b":", 1) for line in lines[1:])
        if b"transfer-encoding" in fields:
            raise OSError("a body of unknown length")
        method, target, version = lines[0].decode("latin-1").split(" ", 2)
        if target.startswith("http://"):
            target = "/" + target.removeprefix("http://").partition("/")[2]
            head = b"\r\n".join([f"{method} {target} {version}".encode("latin-1"), *lines[1:]])
        found = _Request(method, target, head + b"\r\n\r\n", int(fields.get(b"content-length", b"0")))
        self._tell(found, "before")
        return found

    def refuse(self) -> None:
        """503, and the end of the connection once the client has read it."""
        self._client.sendall(_REFUSAL + _BODY)
        self._client.shutdown(socket.SHUT_WR)
        self._client.settimeout(_UNREAD_TIMEOUT_S)
        while self._client.recv(_PIECE_BYTES):
            pass

    def pass_on(self, request: _Request) -> None:
        """Sends all of it to the server; answers go back by themselves."""
        if self._server is None:
            self._server = socket.create_connection(self._target, _CONNECT_TIMEOUT_S)
            self._server.settimeout(None)
            self._server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._answering = threading.Thread(target=self._answers, args=(self._server,), daemon=True)
            self._answering.start()
        self._waiting = request
        self._server.sendall(request.head)
        left = request.body_bytes
        half_told = left == 0
        while left:
            piece = self._unread or self._received(min(_PIECE_BYTES, max(1, left // 2)))
            now, self._unread = piece[:left], piece[left:]
            self._server.sendall(now)
            left -= len(now)
            if not half_told and left <= request.body_bytes // 2:
                half_told = True
                self._tell(request, "half")

    def _received(self, most: int) -> bytes:
        """More of a body that isn't complete."""
        try:
            if piece := self._client.recv(most):
                return piece
        except OSError:
            self._gate.count_cut()
            raise
        self._gate.count_cut()
        raise OSError("the client ended within a body")

    def _answers(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := server.recv(_PIECE_BYTES):
                waiting = self._waiting
                answer = piece
                while answer.startswith(b"HTTP/1.1 100"):  # only "go on"; the answer may come together with it
                    answer = answer.partition(b"\r\n\r\n")[2]
                if waiting is not None and answer:
                    self._waiting = None
                    self._tell(waiting, "answered")
                    if self._gate.loses():
                        break
                self._client.sendall(piece)
        _end(self._client)
        _end(server)

    def _tell(self, request: _Request, moment: Moment) -> None:
        self._gate.heard(Passing(request.method, request.target, moment))


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
