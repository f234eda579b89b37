"""A gateway before an admin interface that refuses some of its paths and passes everything else on."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.waiting import PATIENCE_S

__all__ = ["RefusingAdmin"]


class RefusingAdmin:
    """A context.

    Args:
        target_url: of the admin interface.
        part: of the paths that are refused.
        status: of the refusals.

    Attributes:
        url: where clients go.
        refused: how many requests were.
    """

    def __init__(self, target_url: str, part: str, status: int) -> None:
        self.refused = 0
        gateway = self

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if part in self.path:
                    gateway.refused += 1
                    self._answer(status, b"refused")
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                kind = {"Content-Type": self.headers["Content-Type"]} if "Content-Type" in self.headers else {}
                asked = urllib.request.Request(target_url + self.path, body or None, kind, method=self.command)
                try:
                    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
                        self._answer(answer.status, answer.read())
                except urllib.error.HTTPError as error:
                    self._answer(error.code, error.read())

            do_POST = do_PUT = do_GET  # noqa: N815 - http.server's names

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if status != 204:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if status != 204:
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> RefusingAdmin:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
