"""An HTTP server that gives the answers that a test chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Answering", "answering_server"]


class Answering:
    """A server that gives the chosen answers, one for each request; the last one is repeated.

    Attributes:
        asked: path, body and authorization of each request.
        drips_for_s: how long each answer takes to come, piece by piece.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.drips = False
        self.asked: list[tuple[str, Any, str | None]] = []
        self.ended = threading.Event()
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
                sent = 0
                while bench.drips and not bench.ended.wait(0.05):
                    self.wfile.write(raw[sent : sent + 1])
                    self.wfile.flush()
                    sent += 1
                self.wfile.write(raw[sent:])

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def answering_server() -> Iterator[Answering]:
    bench = Answering()
    thread = threading.Thread(target=bench.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield bench
    finally:
        bench.ended.set()
        bench.server.shutdown()
        bench.server.server_close()
        thread.join()
