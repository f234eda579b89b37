"""A process with streams in an embedded database and a store in memory, served over real sockets.

Everything is real but for what puts it together; ``ask`` is urllib, so that the client shares nothing with the server.
"""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from offloader.errors import NotFoundError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.runtime.clock import SystemClock
from offloader.service.auth import Credentials, open_credentials
from offloader.service.broker_ledgers import BrokerLedgers
from offloader.service.http.server import OffloadHttp
from offloader.service.process import RecentErrors, ServingProcess
from offloader.service.queries import ServiceControl, ServiceView
from offloader.service.streams import ProviderProblem
from offloader.settings import Settings
from offloader.settings.layered import SettingsFile
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.telemetry.prometheus import Metrics
from offloader.write.backfill_service import BackfillService
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from tests.support.waiting import PATIENCE_S

__all__ = ["Answer", "HttpProcess", "ask", "exchange", "http_process", "http_stage", "quoted"]

ORDERS = "shop/eu/persistent/orders"
PAYMENTS = "shop/eu/persistent/payments"
_names = itertools.count()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class _Streams(dict[str, StreamOffload]):
    """What a view and the commands ask ``ServedStreams`` for."""

    def __init__(self, file: SettingsFile) -> None:
        super().__init__()
        self.file, self.settings_of = file, file.settings_of
        self.sources: dict[str, Any] = {}
        self.source_of = self.sources.get

    def require(self, stream: str) -> StreamOffload:
        if stream not in self:
            raise NotFoundError(f"stream {stream} isn't offloaded by this process", hint="`/v1/streams?served=true`")
        return self[stream]


@dataclass
class HttpProcess:
    """See the module; ``found`` may be changed by tests. ``credentials`` are the listener's."""

    store: ObjectStore
    database: EmbeddedLedgers
    offloader: LedgerOffloader
    streams: _Streams
    found: list[ProviderProblem] = field(default_factory=list)
    recent: RecentErrors = field(default_factory=RecentErrors)
    started_ms: int = 0
    upkeep: None = None
    credentials: Credentials = field(default_factory=Credentials)

    def add(self, name: str, entries: int = 20) -> None:
        source = self.database.open_stream(name)
        source.append([f"{name} {number}".encode() for number in range(entries)], [1_700_000_000_000] * entries)
        self.sources[name] = source
        self.streams[name] = self.offloader.offload_stream(source, name)
        self.streams[name].offload(timeout_s=PATIENCE_S)

    # what a view and the commands ask for

    @property
    def sources(self) -> dict[str, Any]:
        return self.streams.sources

    @property
    def served(self) -> ServingProcess:
        return cast("ServingProcess", self)

    @property
    def history(self) -> BackfillService:
        return self.offloader.history

    def document(self) -> Mapping[str, Any]:
        found = self.offloader.status()
        rows = [{**row, "feed": "ledgers", "active": True, "method": "streaming"} for row in found["streams"]]
        return {**found, "streams": rows}

    def problems(self) -> Sequence[ProviderProblem]:
        return self.found

    def health(self) -> Mapping[str, Any]:
        return {"store": None, "sources": {}}


@contextmanager
def http_process(
    folder: Path,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    streams: Sequence[str] = (ORDERS,),
    environ: Mapping[str, str] | None = None,
    view: Any = None,
    control: Any = None,
    store: ObjectStore | None = None,
    read_only: bool = False,
    writer_url: str = "",
) -> Iterator[tuple[OffloadHttp, HttpProcess]]:
    """Serves HTTP on a free port of loopback until the end.

    Args:
        sections: settings; ``http.listen`` is the free port unless given.
        environ: where tokens are looked up.
        view, control: instead of the real ones.
        store: instead of one in memory.
        read_only: brokers are answered as by ``serve --read-only``.
        writer_url: its address in the manifests of its streams.
    """
    with http_stage(folder, sections, streams=streams, store=store, writer_url=writer_url) as (
        settings,
        process,
        metrics,
    ):
        process.credentials = open_credentials(settings.access, environ or {})
        commands = control or ServiceControl(process.store, clock=SystemClock(), process=process.served)
        http = OffloadHttp(
            view
            or ServiceView(process.store, clock=SystemClock(), process=process.served, last_hour=metrics.last_hour),
            commands,
            ledgers=BrokerLedgers(
                process.store,
                settings=settings,
                clock=SystemClock(),
                recorder=metrics,
                control=None if read_only else commands,
                environ=environ or {},
            ),
            settings=settings,
            credentials=process.credentials,
            clock=SystemClock(),
            exposition=metrics.exposition,
            recorder=metrics,
        )
        try:
            http.start()
            yield http, process
        finally:
            http.stop()


@contextmanager
def http_stage(
    folder: Path,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    streams: Sequence[str] = (ORDERS,),
    store_url: str = "",
    store: ObjectStore | None = None,
    writer_url: str = "",
) -> Iterator[tuple[Settings, HttpProcess, Metrics]]:
    """What an HTTP server shows and commands, without one; see ``http_process``.

    Args:
        store_url: default: a store in memory; ``store``: instead of it.
    """
    given = {name: dict(values) for name, values in (sections or {}).items()}
    # Nothing is late because the machine has other things to do: tests of deadlines set theirs.
    patient = {"request_timeout": 300, "answer_timeout": 300, "idle_timeout": 300}
    given["http"] = {"listen": "127.0.0.1:0", **patient, **given.get("http", {})}
    settings = Settings.of(given)
    clock = SystemClock()
    layer = {f"{section}.{name}": value for section, values in given.items() for name, value in values.items()}
    metrics = Metrics(settings.telemetry, clock=clock)
    store = store or open_store(store_url or f"memory://http-{next(_names)}", recorder=metrics)
    database = EmbeddedLedgers(str(folder / f"ledgers-{next(_names)}.db"))
    offloader = LedgerOffloader(store, settings, observe=True, writer_url=writer_url)
    streams_here = _Streams(SettingsFile("test.toml", {"": layer}))
    process = HttpProcess(store, database, offloader, streams_here, started_ms=clock.now_ms())
    try:
        for name in streams:
            process.add(name)
        yield settings, process, metrics
    finally:
        for stream in process.streams.values():
            stream.stop()
        offloader.close()
        database.close()


def quoted(name: str) -> str:
    """A name as one part of a path."""
    return "".join(chr(b) if chr(b).isalnum() or chr(b) in "-_.~" else f"%{b:02X}" for b in name.encode())


def ask(
    url: str,
    *,
    method: str = "GET",
    body: object = None,
    token: str = "",
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """One request; a body that isn't bytes is sent as JSON."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    if data is not None:
        request.add_header("Content-Type", "application/json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=300, context=tls) as answer:
            return Answer(answer.status, dict(answer.headers.items()), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, dict(error.headers.items()), error.read())


def _secured(plain: socket.socket, host: str, tls: ssl.SSLContext | None) -> socket.socket:
    return plain if tls is None else tls.wrap_socket(plain, server_hostname=host)


def exchange(http: OffloadHttp, raw: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Everything that is answered to these bytes, until the other side closes."""
    where = (http.address.host, http.address.port)
    with socket.create_connection(where, timeout=300) as plain, _secured(plain, http.address.host, tls) as connection:
        connection.sendall(raw)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found
