"""A REST catalogue for tests: Iceberg's protocol over HTTP, kept by pyiceberg's SQL catalogue."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table

_CODES = {
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class _Handler(BaseHTTPRequestHandler):
    catalog: SqlCatalog
    #: Tables that are created by their first commit.
    staged: dict[str, Table]

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            code, text = 200, self._done(self.path.partition("?")[0].strip("/").split("/")[1:], body)
        except tuple(_CODES) as error:
            code = next(number for kind, number in _CODES.items() if isinstance(error, kind))
            text = json.dumps({"error": {"message": str(error), "type": type(error).__name__, "code": code}})
        self.send_response(code)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def _done(self, parts: list[str], body: bytes) -> str:
        match parts:
            case ["config"]:
                return json.dumps({"defaults": {}, "overrides": {}})
            case ["namespaces"]:
                namespace = json.loads(body)["namespace"]
                self.catalog.create_namespace(tuple(namespace))
                return json.dumps({"namespace": namespace, "properties": {}})
            case ["namespaces", namespace, "tables"]:
                asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
                assert asked.stage_create
                self.staged[asked.name] = self.catalog._create_staged_table(
                    (namespace, asked.name), asked.table_schema, properties=asked.properties
                )
                return _text(self.staged[asked.name])
            case ["namespaces", namespace, "tables", name] if self.command == "GET":
                return _text(self.catalog.load_table((namespace, name)))
            case ["namespaces", namespace, "tables", name]:
                given = CommitTableRequest.model_validate_json(body)
                table = self.staged.pop(name, None) or self.catalog.load_table((namespace, name))
                return self.catalog.commit_table(table, given.requirements, given.updates).model_dump_json(
                    by_alias=True
                )
        raise AssertionError(f"{self.command} {self.path}")


def _text(table: Table) -> str:
    facts: dict[str, Any] = {"metadata-location": table.metadata_location, "metadata": table.metadata}
    return TableResponse(**facts).model_dump_json(by_alias=True)


@contextmanager
def rest_catalog(uri: str, warehouse: str) -> Iterator[str]:
    """The URL of a server over the SQL catalogue at ``uri``."""
    catalog = SqlCatalog("offloader", uri=uri, warehouse=warehouse)
    handler = type("Handler", (_Handler,), {"catalog": catalog, "staged": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="rest catalogue")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
