"""moto's S3 server with one conditional write at a time; moto itself checks and writes in two steps.

It doesn't serve other interfaces of AWS: to look for the one that a request means took longer than most answers.
"""

from __future__ import annotations

import argparse
import io
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from moto.core import serialize
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class AtomicConditions:
    """A WSGI application around moto's: without it two creators at once are both told that they won."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        is_conditional = "HTTP_IF_MATCH" in environ or "HTTP_IF_NONE_MATCH" in environ
        if not is_conditional or environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._inner(environ, start_response)  # type: ignore[no-any-return]
        # A slow client sends its body before it holds up the others.
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        with self._lock:
            return list(self._inner(environ, start_response))


def main() -> None:
    """Serves until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    # Each listing parses the times of all its keys anew.
    serialize.parse_to_aware_datetime = lru_cache(10_000)(serialize.parse_to_aware_datetime)  # type: ignore[attr-defined]
    app = AtomicConditions(create_backend_app("s3"))
    run_simple(options.host, options.port, app, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
