"""An HTTP proxy that keeps requests back: to their sender they are lost, and the server gets them later, or never.

Takes one request a connection. What it lets through or sends late are the very bytes that the client signed.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S

_READ_BYTES = 65_536
#: Ends a body in chunks; the bodies that come here, JSON and parts, don't end like it.
_LAST_CHUNK = b"0\r\n\r\n"


class HoldingProxy:
    """A server beside ``endpoint_url``; a context.

    Attributes:
        url: where it is.
        held: requests kept back, oldest first.
    """

    def __init__(self, endpoint_url: str) -> None:
        place = urlsplit(endpoint_url)
        assert place.hostname is not None
        self._target = place.hostname, place.port or 80
        self._hold: tuple[bytes, bytes] | None = None
        self.held: list[bytes] = []
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="holding proxy", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def hold(self, method: str, path_end: str) -> None:
        """Keeps back every such request from now on; its sender sees the connection end."""
        self._hold = method.encode(), path_end.encode()

    def let_through(self) -> None:
        """Keeps nothing back any more; what is held stays held."""
        self._hold = None

    def land(self) -> bytes:
        """The oldest held request arrives; the server's answer, which its sender never hears."""
        return self._sent(self.held.pop(0))

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(PATIENCE_S)
        request = _request(client)
        if not request:
            return
        method, target, _ = request.split(b" ", 2)
        path = target.partition(b"?")[0]
        if self._hold is not None and method == self._hold[0] and path.endswith(self._hold[1]):
            self.held.append(request)
            return
        self._answer(client, request)

    def _answer(self, client: socket.socket, request: bytes) -> None:
        client.sendall(self._sent(request))

    def _sent(self, request: bytes) -> bytes:
        with socket.create_connection(self._target, PATIENCE_S) as server:
            server.sendall(request)
            return b"".join(iter(lambda: server.recv(_READ_BYTES), b""))


def _request(client: socket.socket) -> bytes:
    """One whole request, asking for the connection to end after it."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(_READ_BYTES)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    if headers.get(b"expect", b"").lower() == b"100-continue":
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    is_chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
    while not body.endswith(_LAST_CHUNK) if is_chunked else len(body) < int(headers.get(b"content-length", b"0")):
        more = client.recv(_READ_BYTES)
        if not more:
            return b""
        body += more
    # Neither is signed: they are about this connection.
    kept = [line for line in lines if not line.lower().startswith((b"expect:", b"connection:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", body])
