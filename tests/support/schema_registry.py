"""A Pulsar's admin interface that knows the schemas of topics, and nothing else."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class SchemaRegistry:
    """``asked``: the paths, in order."""

    url: str
    asked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def schema_registry(
    topic: str, versions: Mapping[int, Mapping[str, Any]], *, newest: Mapping[str, Any] | None = None
) -> Iterator[SchemaRegistry]:
    """Answers with Avro schemas of ``tenant/namespace/topic`` by version; 404 to everything else."""
    path = f"/admin/v2/schemas/{topic}/schema"
    schemas = {f"{path}/{version}": schema for version, schema in versions.items()}
    if newest is not None:
        schemas[path] = newest
    known = {
        path: json.dumps({"type": "AVRO", "data": json.dumps(schema)}).encode() for path, schema in schemas.items()
    }
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if self.path in known else 404)
            self.end_headers()
            self.wfile.write(known.get(self.path, b"{}"))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield SchemaRegistry(f"http://127.0.0.1:{server.server_address[1]}", asked)
        finally:
            server.shutdown()
            thread.join()
