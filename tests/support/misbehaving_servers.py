"""Small servers on loopback sockets that misbehave on purpose, below any HTTP client."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Answer", "LosingProxy", "ScriptedServer", "silent_server", "slow_server"]

_BUFFER_BYTES = 64 * 1024
_HOST = "127.0.0.1"


class LosingProxy:
    """Between a client and ``(host, port)``: passes everything on, and loses answers when told to.

    A lost answer is read from the server to its first bytes, so the request took effect; the client's connection is
    then reset.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._losses: list[tuple[bytes, int]] = []
        self._lost: list[bytes] = []
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    @property
    def lost(self) -> Sequence[bytes]:
        """First lines of the requests whose answers were lost."""
        with self._lock:
            return list(self._lost)

    def lose(self, request_part: bytes, count: int = 1) -> None:
        """Loses the answers to the next ``count`` requests whose first line contains ``request_part``."""
        with self._lock:
            self._losses.append((request_part, count))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                self._start(client, server)

    def _start(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self._sockets |= {client, server}
        request = [b""]
        threading.Thread(target=self._pass_requests, args=(client, server, request), daemon=True).start()
        threading.Thread(target=self._pass_answers, args=(server, client, request), daemon=True).start()

    def _pass_requests(self, client: socket.socket, server: socket.socket, request: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_BUFFER_BYTES):
                line = data.split(b"\r\n", 1)[0]
                if b" HTTP/1." in line:
                    request[0] = line
                server.sendall(data)
        self._close(client, server)

    def _pass_answers(self, server: socket.socket, client: socket.socket, request: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_BUFFER_BYTES):
                while data.startswith(b"HTTP/1.1 100"):  # "go on", maybe twice; the answer right behind
                    go_on, end, data = data.partition(b"\r\n\r\n")
                    client.sendall(go_on + end)
                if data and self._is_to_be_lost(request[0]):
                    # Closing with nothing left to linger for sends a reset.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                client.sendall(data)
        self._close(client, server)

    def _is_to_be_lost(self, line: bytes) -> bool:
        with self._lock:
            for number, (part, count) in enumerate(self._losses):
                if part in line:
                    self._losses[number : number + 1] = [(part, count - 1)] if count > 1 else []
                    self._lost.append(line)
                    return True
        return False

    def _close(self, *both: socket.socket) -> None:
        with self._lock:
            self._sockets -= set(both)
        for one in both:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """Stops listening and closes every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            left = list(self._sockets)
        self._close(*left)


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted answer. ``announced_bytes`` above the body's length makes it a torn one."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    announced_bytes: int | None = None


class ScriptedServer:
    """Answers requests with ``answers``, in order, whatever they are; then with 404.

    ``requests`` are their first lines.
    """

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._answers = list(answers)
        self._lock = threading.Lock()
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer((_HOST, 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._server.server_address[1]}"

    def _next(self, line: str) -> Answer:
        with self._lock:
            self.requests.append(line)
            return self._answers.pop(0) if self._answers else Answer(404)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = outer._next(self.requestline)
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                announced = len(answer.body) if answer.announced_bytes is None else answer.announced_bytes
                self.send_header("Content-Length", str(announced))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)
                if announced != len(answer.body):
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        return Handler

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers; its URL."""
    with _serving(lambda _, stopped: stopped.wait(60)) as url:
        yield url


@contextlib.contextmanager
def slow_server(bytes_per_s: int, answer: bytes) -> Iterator[str]:
    """A server that reads at ``bytes_per_s`` and, once a body has come whole, sends ``answer``; its URL."""
    with _serving(lambda connection, stopped: _read_slowly(connection, stopped, bytes_per_s, answer)) as url:
        yield url


def _read_slowly(connection: socket.socket, stopped: threading.Event, bytes_per_s: int, answer: bytes) -> None:
    piece = 16 * 1024
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(_BUFFER_BYTES)
    head, _, body = head.partition(b"\r\n\r\n")
    if b"100-continue" in head:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    left = int(fields[b"content-length"]) - len(body)
    while left > 0 and not stopped.wait(piece / bytes_per_s):
        received = connection.recv(piece)
        if not received:
            return
        left -= len(received)
    connection.sendall(answer)


@contextlib.contextmanager
def _serving(serve: Callable[[socket.socket, threading.Event], object]) -> Iterator[str]:
    stopped = threading.Event()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        listener.bind((_HOST, 0))
        listener.listen(16)

        def run(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                serve(connection, stopped)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=run, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://{_HOST}:{listener.getsockname()[1]}"
        finally:
            stopped.set()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
