"""A network that does damage: Shopify's toxiproxy between clients and servers on this machine.

It doesn't leave the process behind, or listen where other machines reach it.

    with toxiproxy() as faults:
        between = faults.proxy("s3", endpoint.url)      # clients use between.url
        with between.toxic("latency", latency=200):     # milliseconds, each piece of each answer
            ...
        between.cut_off()                               # open connections end, new ones are refused
        between.let_through()
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import urllib3

from services.binaries import find_binary
from services.servers import free_port, launch

__all__ = ["Direction", "FaultyProxy", "Toxiproxy", "toxiproxy"]

_HOST = "127.0.0.1"
_TIMEOUT_S = 60.0

#: Requests go upstream, answers downstream.
Direction = Literal["upstream", "downstream"]


class Toxiproxy:
    """The running program, by its HTTP interface at ``url``. Threads may share it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False)

    def proxy(self, name: str, target_url: str) -> FaultyProxy:
        """A new proxy ``name`` before the HTTP server at ``target_url``, on a port of its own, without faults yet.

        Raises:
            RuntimeError: there is one of that name.
        """
        at = urlsplit(target_url)
        made = self.ask(
            "POST", "/proxies", {"name": name, "listen": f"{_HOST}:0", "upstream": f"{at.hostname}:{at.port}"}
        )
        return FaultyProxy(self, name, f"http://{made['listen']}")

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request to its interface; the answer's JSON, ``{}`` where there is none.

        Raises:
            RuntimeError: it refused, with its own words.
        """
        answer = self._http.request(method, self.url + path, body=None if body is None else json.dumps(body))
        if answer.status >= 300:
            raise RuntimeError(f"toxiproxy answers {answer.status} to {method} {path}: {answer.data.decode()}")
        found: dict[str, Any] = json.loads(answer.data) if answer.data else {}
        return found

    def close(self) -> None:
        """Closes the connections to it."""
        self._http.clear()


class FaultyProxy:
    """One way to one server: clients use ``url``."""

    def __init__(self, program: Toxiproxy, name: str, url: str) -> None:
        self._program = program
        self._path = f"/proxies/{name}"
        self.url = url

    def add(
        self, kind: str, direction: Direction = "downstream", *, share: float = 1.0, **attributes: int | float
    ) -> None:
        """One fault more, from now on and for connections that are open already.

        Args:
            kind: ``latency`` (``latency``, ``jitter``: milliseconds), ``bandwidth`` (``rate``: KB a second),
                ``timeout`` (``timeout``: milliseconds until the connection is closed, 0: never; nothing goes through
                meanwhile: downstream, the request has its effect and the answer is lost), ``reset_peer``
                (``timeout``: milliseconds until the reset), ``limit_data`` (``bytes`` that go through, then the
                connection is closed), ``slicer`` and ``slow_close``.
            direction: of the bytes that it is done to; one fault of a kind each.
            share: of the connections, 0 to 1.

        Raises:
            RuntimeError: no such kind, or there is one.
        """
        body = {
            "name": f"{kind}-{direction}",
            "type": kind,
            "stream": direction,
            "toxicity": share,
            "attributes": attributes,
        }
        self._program.ask("POST", f"{self._path}/toxics", body)

    def take_away(self, kind: str, direction: Direction = "downstream") -> None:
        """Ends one fault.

        Raises:
            RuntimeError: there is none of that kind.
        """
        self._program.ask("DELETE", f"{self._path}/toxics/{kind}-{direction}")

    def heal(self) -> None:
        """Ends all faults, and lets connections through."""
        for toxic in self._program.ask("GET", self._path)["toxics"]:
            self.take_away(toxic["type"], toxic["stream"])
        self.let_through()

    @contextlib.contextmanager
    def toxic(
        self, kind: str, direction: Direction = "downstream", *, share: float = 1.0, **attributes: int | float
    ) -> Iterator[None]:
        """The same as ``add`` for the length of a block."""
        self.add(kind, direction, share=share, **attributes)
        try:
            yield
        finally:
            self.take_away(kind, direction)

    def cut_off(self) -> None:
        """Ends all connections and refuses new ones, until ``let_through``."""
        self._program.ask("POST", self._path, {"enabled": False})

    def let_through(self) -> None:
        """Takes connections again, at the same ``url``."""
        self._program.ask("POST", self._path, {"enabled": True})

    def remove(self) -> None:
        """Ends it and its connections."""
        self._program.ask("DELETE", self._path)


@contextlib.contextmanager
def toxiproxy() -> Iterator[Toxiproxy]:
    """The program for the length of a block.

    Raises:
        Unavailable: it can't be built or started here.
    """
    binary = find_binary("toxiproxy", build=True)
    with tempfile.TemporaryDirectory(prefix="offloader-toxiproxy-", ignore_cleanup_errors=True) as data:
        port = free_port()
        command = [str(binary), "-host", _HOST, "-port", str(port)]
        started = launch("toxiproxy", command, Path(data), port)
        program = Toxiproxy(f"http://{_HOST}:{port}")
        try:
            yield program
        finally:
            program.close()
            started.stop()
