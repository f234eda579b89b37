"""The HTTP server of a process, on a separate thread and event loop, with bounded connections and deadlines.

The time to send a request and to read a response is bounded, so that slow clients can't occupy connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import logging
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import anyio.to_thread
import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from offloader.errors import InvalidCallError, parsing
from offloader.runtime.clock import Clock
from offloader.service.auth import Credentials, ListenAddress, certificate_names, guard_for, parse_listen, server_tls
from offloader.service.broker_ledgers import BrokerLedgers
from offloader.service.http.broker_routes import BrokerThreads
from offloader.service.http.middleware import (
    CERTIFICATE_NAMES,
    PROBES_MAX,
    PROBLEM_JSON,
    SCRAPES_MAX,
    Gate,
    problem_document,
)
from offloader.service.http.routes import make_application, page_files
from offloader.service.queries import ServiceControl, ServiceView
from offloader.settings import HttpSettings, Settings
from offloader.telemetry.prometheus import Exposition
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

_log = logging.getLogger("offloader.service.http")

#: Connections waiting to be accepted.
BACKLOG = 128
#: Time for cut connections to close; unfinished handshakes are then abandoned.
_CUT_S = 0.5
#: Delay before the next accept when the process has no file descriptors left.
_REST_S = 0.2
#: The smallest IPv6 network that a provider assigns to one customer.
_NETWORK_BITS = 64
#: Limits for reading and discarding the rest of a request that was answered before its end.
_DRAIN_BYTES_MAX, _DRAIN_S = 16 * 2**20, 2.0
_HEAD_TOO_LONG = 431
#: uvicorn logs every malformed request, so any client could fill the log. Malformed requests are counted instead.
_wire_log = logging.getLogger("offloader.service.http.wire")
_wire_log.setLevel(logging.CRITICAL)


class _DrainedTransport:
    """A transport that on close first reads and discards the rest of a request, up to a limit of seconds and bytes.

    Closing with unread bytes resets a connection, and the client loses the answer (RFC 9112, section 9.6).

    Args:
        has_rest: returns whether a request was received only in part.
    """

    def __init__(
        self, transport: asyncio.Transport, has_rest: Callable[[], bool], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport, self._has_rest, self._loop = transport, has_rest, loop
        self._bytes_left = _DRAIN_BYTES_MAX
        self._is_draining = False

    def close(self) -> None:
        if self.is_closing() or not self._has_rest():
            self._transport.close()
            return
        self._is_draining = True
        self._loop.call_later(_DRAIN_S, self._transport.close)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()

    def drop(self, size_bytes: int) -> None:
        self._bytes_left -= size_bytes
        if self._bytes_left < 0:
            self._transport.close()

    def is_closing(self) -> bool:
        return self._is_draining or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(H11Protocol):
    """One client's connection; runs on the loop's thread.

    Args:
        server_state: uvicorn's list of connections and tasks.
        told: called with the reason of each cut: ``slow_request``, ``slow_reader``, ``broken_request``.
    """

    def __init__(
        self, config: Config, server_state: ServerState, settings: HttpSettings, told: Callable[[str], None]
    ) -> None:
        super().__init__(config, server_state, {})
        self.logger = _wire_log
        self.access_log = False
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self._settings, self._told = settings, told
        self._receiving: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None

    # --- asyncio callbacks ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._drained = _DrainedTransport(transport, self._has_rest, self.loop)
        super().connection_made(cast("asyncio.Transport", self._drained))
        self.app_state = {CERTIFICATE_NAMES: certificate_names(transport.get_extra_info("ssl_object"))}
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_came()
        self._answer_went()
        super().connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self._drained.drop(len(data))
            return
        if self._receiving is None and self.conn.their_state is h11.IDLE:
            self._expect_request()
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._answer_went()
        super().resume_writing()

    # --- uvicorn callbacks ---------------------------------------------------------------------------------------

    def handle_events(self) -> None:
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            # A malformed request after one whose response is in progress: no response is possible.
            self._cut("broken_request")
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._request_came()

    def _get_upgrade(self) -> bytes | None:
        return None  # no upgrade: the request is answered as it is

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the problem document has more detail
        self._told("broken_request")
        cause = sys.exception()
        status = cause.error_status_hint if isinstance(cause, h11.RemoteProtocolError) else 400
        self._give_up(
            status, "the request's head is too long" if status == _HEAD_TOO_LONG else "not a valid HTTP request"
        )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reading()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_reading()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._expect_reading()

    def _has_rest(self) -> bool:
        state = self.conn.their_state
        return state in (h11.SEND_BODY, h11.ERROR) or (state is h11.IDLE and bool(self.conn.trailing_data[0]))

    def _expect_request(self) -> None:
        """Starts the deadline of a whole request, independent of its number of chunks."""
        self._request_came()
        self._receiving = self.loop.call_later(self._settings.request_timeout, self._request_is_late)

    def _request_came(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _request_is_late(self) -> None:
        self._receiving = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._close()  # no byte was received
            return
        self._told("slow_request")
        self._give_up(408, f"the request wasn't received within {self._settings.request_timeout:g} s")

    def _give_up(self, status: int, detail: str) -> None:
        """Responds to a partial request, unless a response was sent, and closes."""
        if self.cycle is not None and not self.cycle.response_complete:
            # Disconnects the application, which waits for the rest.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._answer(status, detail)
        self._close()

    def _expect_reading(self) -> None:
        """Starts the deadline for reading the response."""
        if self._sending is None:
            self._sending = self.loop.call_later(self._settings.answer_timeout, self._cut, "slow_reader")

    def _answer_went(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _answer(self, status: int, detail: str) -> None:
        body = json.dumps(problem_document(status, detail)).encode()
        headers = [
            (b"content-type", PROBLEM_JSON.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
        self._expect_reading()

    def _cut(self, reason: str) -> None:
        self._sending = None
        self._told(reason)
        self.transport.abort()


class OffloadHttp:
    """Serves until it is stopped.

    Args:
        ledgers: for brokers.
        settings: of the process: ``http``, ``access`` and ``broker``.
        exposition: the metrics in Prometheus' format.

    Raises:
        InvalidCallError, AccessDeniedError: unsafe or contradictory settings, see ``guard_for`` and ``server_tls``.
    """

    def __init__(
        self,
        view: ServiceView,
        control: ServiceControl,
        *,
        ledgers: BrokerLedgers,
        settings: Settings,
        credentials: Credentials,
        clock: Clock,
        exposition: Exposition,
        recorder: Recorder = NO_TELEMETRY,
    ) -> None:
        self._settings, self._recorder = settings, recorder
        self._wanted = parse_listen(settings.http.listen, setting="http.listen")
        self._tls = server_tls(settings.access)
        guard = guard_for(
            self._wanted, credentials, settings.access, has_tls=self._tls is not None, setting="http.listen"
        )
        self._ledgers, self._threads = ledgers, BrokerThreads(settings.broker)
        application = make_application(
            view,
            control,
            exposition,
            ledgers=ledgers,
            threads=self._threads,
            answer_s=settings.http.answer_timeout,
        )
        gate = Gate(
            application,
            guard=guard,
            settings=settings.http,
            brokers=settings.broker,
            address=self._wanted,
            clock=clock,
            recorder=recorder,
            pages=page_files(),
            unsent_bytes=self._unsent_bytes,
            names=_own_names(settings),
        )
        self._config = Config(
            gate,
            ws="none",
            http="h11",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=settings.http.idle_timeout,  # type: ignore[arg-type]  # asyncio takes fractions
            h11_max_incomplete_event_size=settings.http.header_size_max,
        )
        self._state = ServerState()
        self._connections: set[asyncio.Task[None]] = set()
        self._of_client: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._within_s = 0.0
        self._address: ListenAddress | None = None

    @property
    def address(self) -> ListenAddress:
        """Its listen address, with the actual port. Raises ``InvalidCallError``: it wasn't started."""
        if self._address is None:
            raise InvalidCallError("HTTP isn't served yet", hint="start the server")
        return self._address

    @property
    def url(self) -> str:
        """The prefix of every path."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    def start(self) -> None:
        """Listens; connections are accepted on return.

        Raises ``InvalidCallError``: the address can't be listened on.
        """
        listener = _listener(self._wanted)
        self._address = ListenAddress(*listener.getsockname()[:2])
        began = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listener, began), name="offloader-http", daemon=True)
        self._thread.start()
        began.wait()
        _log.info("HTTP is served at %s", self.url, extra={"event": "http_started", "url": self.url})

    def stop(self, within_s: float = 5.0) -> None:
        """Stops accepting connections, waits for requests to end, and aborts late ones. Idempotent; never raises.

        Args:
            within_s: seconds for requests to end.
        """
        self._ledgers.close()
        self._threads.close()
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        self._within_s = within_s
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(stopping.set)
        thread.join()
        self._thread = None

    def prepare_reload(self) -> Callable[[], None]:
        """Reads certificate, key and authorities again; the returned function puts them in force for new connections
        and can't fail.

        Raises:
            InvalidCallError, AccessDeniedError: invalid files; the old ones remain in force.
        """
        return partial(setattr, self, "_tls", server_tls(self._settings.access))

    # --- loop thread ---------------------------------------------------------------------------------------------

    def _serve(self, listener: socket.socket, began: threading.Event) -> None:
        try:
            with listener, asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                runner.run(self._accept_until_stopped(listener, began))
        except Exception:
            _log.exception("serving HTTP ended", extra={"event": "http_ended"})
        finally:
            began.set()

    async def _accept_until_stopped(self, listener: socket.socket, began: threading.Event) -> None:
        self._stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        anyio.to_thread.current_default_thread_limiter().total_tokens = (
            self._settings.http.requests_max + self._settings.broker.requests_max + PROBES_MAX + SCRAPES_MAX
        )
        self._config.load()
        loop.add_reader(listener, self._accept, listener)
        began.set()
        await self._stopping.wait()
        loop.remove_reader(listener)
        listener.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._connections:
            await asyncio.wait(self._connections, timeout=self._within_s)
        for connection in list(self._state.connections):
            connection.transport.abort()
        if handshakes := [task for task in self._connections if not task.done()]:
            _, handshakes_left = await asyncio.wait(handshakes, timeout=_CUT_S)
            for task in handshakes_left:
                task.cancel()

    def _accept(self, listener: socket.socket) -> None:
        # Accept in the loop, not in a task: a cancelled task would lose an accepted connection.
        loop = asyncio.get_running_loop()
        try:
            accepted, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._refused("no_descriptors")
                loop.remove_reader(listener)
                loop.call_later(_REST_S, self._accept_again, listener)
            return
        client, settings = client_of(address[0]), self._settings.http
        is_full = len(self._connections) >= settings.connections_max
        if is_full or self._of_client[client] >= settings.client_connections_max:
            accepted.close()
            self._refused("connections" if is_full else "client_connections")
            return
        accepted.setblocking(False)
        task = loop.create_task(self._connect(accepted))
        self._connections.add(task)
        self._of_client[client] += 1
        task.add_done_callback(partial(self._ended, client))

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _ended(self, client: str, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._of_client[client] -= 1
        if not self._of_client[client]:
            del self._of_client[client]

    async def _connect(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection = Connection(self._config, self._state, self._settings.http, self._refused)
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._settings.http.request_timeout,
            )
        except (OSError, TimeoutError):  # includes ssl.SSLError
            self._refused("handshake")
            return
        await connection.lost

    def _unsent_bytes(self) -> int:
        return sum(each.transport.get_write_buffer_size() for each in self._state.connections)

    def _refused(self, reason: str) -> None:
        self._recorder.add("http_refusals_total", label=reason)


def _listener(address: ListenAddress) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.create_server(where, family=family, backlog=BACKLOG)
    except OSError as cause:
        raise InvalidCallError(
            f"http.listen {address}: {cause.strerror or cause}", hint="check whether another process listens there"
        ) from cause
    found.setblocking(False)
    return found


def client_of(host: str) -> str:
    """Key of a client for its limits: an IPv4 address or an IPv6 network, as a client may use all of its addresses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address if address.version == 4 else ipaddress.ip_network((address, _NETWORK_BITS), strict=False))


def _own_names(settings: Settings) -> Collection[str]:
    """Host names of this process: those of the settings, and the machine's, which manifests contain."""
    with parsing(f"serve.url: {settings.serve.url[:200]!r} is no URL", hint="http://host:port"):
        served = urlsplit(settings.serve.url).hostname or ""
    return {*settings.access.hosts, served, socket.gethostname()} - {""}
