"""A proxy in front of a server that can keep back all answers, and counts the requests that wait and that end."""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S

_READ_BYTES = 65_536


class FreezingProxy:
    """Passes bytes both ways until it is frozen; a context.

    A request waits from its first byte to the first byte of its answer. While the proxy is frozen no answer comes, so a
    request ends only by its client, which gives up.

    Attributes:
        url: where it is.
    """

    def __init__(self, endpoint_url: str) -> None:
        place = urlsplit(endpoint_url)
        assert place.hostname is not None
        self._target = place.hostname, place.port or 80
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, bytes] = {}
        self._given_up: list[bytes] = []
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    proxy._pass(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flows.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def freeze(self) -> None:
        """Keeps back every answer from now on."""
        self._flows.clear()

    def thaw(self) -> None:
        """Lets through what was kept back, and all that follows."""
        self._flows.set()

    @property
    def waiting(self) -> list[bytes]:
        """First lines of the requests that wait for an answer."""
        with self._lock:
            return list(self._waiting.values())

    @property
    def given_up(self) -> list[bytes]:
        """First lines of requests whose client closed the connection before an answer."""
        with self._lock:
            return list(self._given_up)

    def _pass(self, client: socket.socket) -> None:
        with socket.create_connection(self._target, PATIENCE_S) as server:
            server.settimeout(None)
            answers = threading.Thread(target=self._pass_answers, args=(client, server), daemon=True)
            answers.start()
            while data := client.recv(_READ_BYTES):
                with self._lock:
                    self._waiting.setdefault(client, data.partition(b"\r\n")[0])
                server.sendall(data)
            with self._lock:
                self._given_up += [self._waiting.pop(client)] if client in self._waiting else []
            server.shutdown(socket.SHUT_RDWR)
            answers.join()

    def _pass_answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(_READ_BYTES):
                self._flows.wait()
                with self._lock:
                    self._waiting.pop(client, None)
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
