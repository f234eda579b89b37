"""The HTTP server of a process: bounded connections, on its own thread and event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from urllib.parse import urlsplit

import anyio.to_thread
from uvicorn.config import Config
from uvicorn.server import ServerState

from offloader.errors import InvalidCall
from offloader.runtime.clock import Clock
from offloader.service.auth import Credentials, guard_for
from offloader.service.commands import ServiceControl
from offloader.service.dashboard.routes import is_page
from offloader.service.http.connection import Connection, ConnectionLimits
from offloader.service.http.middleware import PROBES_MAX, Gate
from offloader.service.http.routes import make_application
from offloader.service.listen import ListenAddress, parse_listen, renew_certificate, server_tls
from offloader.service.queries import ServiceView
from offloader.settings import Settings
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

__all__ = ["OffloadHttp", "client_of"]

_log = logging.getLogger("offloader.service.http")

#: Connections waiting to be accepted.
BACKLOG = 128
#: Time for cut connections to close; unfinished handshakes are then abandoned.
_CUT_S = 0.5
#: Pause of accepting when the process has no file descriptors left.
_REST_S = 0.2
#: The smallest IPv6 network that a provider assigns to one customer.
_NETWORK_BITS = 64


class OffloadHttp:
    """Serves until it is stopped.

    Args:
        view, control: queries and commands.
        settings: of the process: ``http`` and ``access``.
        credentials: accepted tokens and certificates.
        clock: for dates.
        exposition: the metrics in Prometheus' format.
        recorder: counts requests.

    Raises:
        InvalidCall, AccessDenied: unsafe or contradictory settings, see ``guard_for`` and ``server_tls``.
    """

    def __init__(
        self,
        view: ServiceView,
        control: ServiceControl,
        *,
        settings: Settings,
        credentials: Credentials,
        clock: Clock,
        exposition: Callable[[], bytes],
        recorder: Recorder = NO_TELEMETRY,
    ) -> None:
        self._settings, self._credentials, self._recorder = settings, credentials, recorder
        wanted = parse_listen(settings.http.listen, setting="http.listen")
        self._tls = server_tls(settings.access)
        has_tls = self._tls is not None
        guard = guard_for(wanted, credentials, settings.access, has_tls=has_tls, setting="http.listen")
        answer_s = settings.http.answer_seconds_max
        application = make_application(view, control, exposition, answer_s=answer_s)
        gate = Gate(
            application,
            guard=guard,
            settings=settings.http,
            address=wanted,
            clock=clock,
            recorder=recorder,
            is_page=is_page,
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
            timeout_keep_alive=settings.http.idle_seconds_max,  # type: ignore[arg-type]  # asyncio takes fractions
            h11_max_incomplete_event_size=settings.http.header_bytes_max,
        )
        self._limits = ConnectionLimits(settings.http.request_seconds_max, answer_s, self._refused)
        self._wanted = wanted
        self._state = ServerState()
        self._connections: set[asyncio.Task[None]] = set()
        self._of_client: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._within_s = 0.0
        self._address: ListenAddress | None = None

    @property
    def name(self) -> str:
        """For people."""
        return "http"

    @property
    def address(self) -> ListenAddress:
        """Its listen address, with the actual port.

        Raises:
            InvalidCall: it wasn't started.
        """
        if self._address is None:
            raise InvalidCall("HTTP isn't served yet", hint="start it")
        return self._address

    @property
    def url(self) -> str:
        """The prefix of every path."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    def start(self) -> None:
        """Listens; connections are accepted on return.

        Raises:
            InvalidCall: the address can't be listened on.
        """
        listener = _listener(self._wanted)
        host, port = listener.getsockname()[:2]
        self._address = ListenAddress(host, port)
        began = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listener, began), name="offloader-http", daemon=True)
        self._thread.start()
        began.wait()
        _log.info("HTTP is served at %s", self.url, extra={"event": "http_started", "url": self.url})

    def stop(self, within_s: float = 5.0) -> None:
        """Accepts no more connections, lets requests end, and cuts late ones. Idempotent; never raises.

        Args:
            within_s: seconds for requests to end.
        """
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        self._within_s = within_s
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(stopping.set)
        thread.join()
        self._thread = None

    def reload(self) -> None:
        """Reloads tokens and certificate for new connections and requests.

        Raises:
            InvalidCall, AccessDenied: invalid ones; the old ones stay.
        """
        use_tokens = self._credentials.read()
        if self._tls is not None:
            renew_certificate(self._tls, self._settings.access)
        use_tokens()

    # --- loop thread ---------------------------------------------------------------------------------------------

    def _serve(self, listener: socket.socket, began: threading.Event) -> None:
        # uvicorn logs each malformed request; these are counted, and the middleware logs errors.
        logging.getLogger("offloader.service.http.wire").setLevel(logging.CRITICAL)
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
        anyio.to_thread.current_default_thread_limiter().total_tokens = self._settings.http.requests_max + PROBES_MAX
        self._config.load()
        loop.add_reader(listener, self._accept, listener)
        began.set()
        await self._stopping.wait()
        loop.remove_reader(listener)
        listener.close()
        tasks = self._connections
        for connection in list(self._state.connections):
            connection.shutdown()
        if tasks:
            await asyncio.wait(tasks, timeout=self._within_s)
        for connection in list(self._state.connections):
            connection.transport.abort()
        handshakes = [task for task in tasks if not task.done()]
        if handshakes:
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
        client = client_of(address[0])
        if reason := self._why_not(client):
            accepted.close()
            self._refused(reason)
            return
        accepted.setblocking(False)
        task = loop.create_task(self._connect(accepted))
        self._connections.add(task)
        self._of_client[client] += 1
        task.add_done_callback(partial(self._ended, client))

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _why_not(self, client: str) -> str:
        settings = self._settings.http
        if len(self._connections) >= settings.connections_max:
            return "connections"
        return "client_connections" if self._of_client[client] >= settings.client_connections_max else ""

    def _ended(self, client: str, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._of_client[client] -= 1
        if not self._of_client[client]:
            del self._of_client[client]

    async def _connect(self, accepted: socket.socket) -> None:
        """One connection, from its handshake to its end."""
        loop = asyncio.get_running_loop()
        connection = Connection(self._config, self._state, self._limits)
        timeout_s = self._limits.request_s if self._tls is not None else None
        try:
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=timeout_s
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
        raise InvalidCall(
            f"http.listen {address}: {cause.strerror or cause}", hint="is something else listening there?"
        ) from cause
    found.setblocking(False)
    return found


def client_of(host: str) -> str:
    """Key of a client for its limits: an IPv4 address or an IPv6 network, as a client may use all of its addresses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False)) if mapped is None else str(mapped)


def _own_names(settings: Settings) -> Collection[str]:
    """Host names of this process: the settings' ones, and the machine's, which manifests contain."""
    try:
        served = urlsplit(settings.serve.url).hostname or ""
    except ValueError:
        raise InvalidCall(f"serve.url: {settings.serve.url[:200]!r} is no URL", hint="http://host:port") from None
    return {*settings.access.hosts, served, socket.gethostname()} - {""}
