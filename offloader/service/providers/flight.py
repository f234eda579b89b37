"""Streams that producers push through Arrow Flight, for the serving process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from offloader.errors import InvalidCall, StoreUnavailable
from offloader.ledgers.base import LedgerSource
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.runtime.clock import Clock
from offloader.service.auth import Credentials, guard_for
from offloader.service.commands import ServiceControl
from offloader.service.flight.handlers import Actions, Gets
from offloader.service.flight.server import Calls, FlightServer, ServerParts, cut_connections, require_free
from offloader.service.flight.sessions import FEED, AppendedLedgers, ProducerSessions
from offloader.service.listen import ListenAddress, parse_listen, server_tls
from offloader.service.providers.base import ProviderProblem, Streams
from offloader.settings import AccessSettings, Settings
from offloader.store.base import ObjectStore

__all__ = ["FlightProvider"]

_log = logging.getLogger("offloader.service.flight")

#: On a stop, callers get this long to end their calls before their connections are closed.
GRACE_S_MAX = 1.0


class FlightProvider:
    """See ``offloader.service.providers.base.StreamProvider``.

    Args:
        settings: of the process: ``flight``, ``access``, ``ledgers`` and ``read``.
        store: of the streams, open for writing.
        credentials: accepted tokens and certificates. The server's own are read at the start only: gRPC can't replace
            them.
        control: executes commands for every served stream; called on demand.
        clock: for times and waits.

    Raises:
        InvalidCall, AccessDenied: unsafe or contradictory settings, see ``guard_for`` and ``server_tls``.
    """

    name = FEED

    def __init__(
        self,
        settings: Settings,
        store: ObjectStore,
        *,
        credentials: Credentials,
        control: Callable[[], ServiceControl],
        clock: Clock,
    ) -> None:
        self._settings, self._store, self._control, self._clock = settings, store, control, clock
        if settings.flight.ledgers and settings.flight.ledgers == settings.serve.ledgers:
            raise InvalidCall(
                "flight.ledgers and serve.ledgers name one database: its streams would be brought twice",
                hint="give Flight a database of its own",
            )
        self._wanted = parse_listen(settings.flight.listen, setting="flight.listen")
        # Also validates the files, which gRPC doesn't report.
        has_tls = server_tls(settings.access) is not None
        guard = guard_for(self._wanted, credentials, settings.access, has_tls=has_tls, setting="flight.listen")
        self._calls = Calls(guard, settings.flight.calls_max)
        self._ledgers: EmbeddedLedgers | None = None
        self._seats: ProducerSessions | None = None
        self._server: FlightServer | None = None

    @property
    def address(self) -> ListenAddress:
        """Its listen address; port 0 until it listens, if any port will do."""
        server = self._server
        return self._wanted if server is None else ListenAddress(self._wanted.host, server.port)

    def start(self, streams: Streams) -> None:
        """Listens.

        Raises:
            InvalidCall: the address can't be used, or the file is no ledger database.
            StoreUnavailable: another process listens there.
        """
        flight = self._settings.flight
        require_free(self._wanted)
        if flight.ledgers and self._ledgers is None:
            self._ledgers = EmbeddedLedgers(flight.ledgers, settings=self._settings.ledgers, clock=self._clock)
        seats = ProducerSessions(streams, self._store, flight, self._ledgers, self._clock)
        gets = Gets(self._store, self._settings.read, lambda name: _hot_tier(seats, name))
        actions = Actions(self._store, seats, self._control, self._clock)
        parts = ServerParts(self._calls, seats, gets, actions, flight)
        tls = _tls_of(self._settings.access)
        scheme = "grpc+tls" if tls else "grpc"
        try:
            self._server = FlightServer(f"{scheme}://{self._wanted}", parts, **tls)
        except (pa.ArrowException, fl.FlightError, OSError) as cause:
            raise StoreUnavailable(f"flight.listen: can't listen on {self._wanted}: {str(cause)[:200]}") from cause
        self._seats = seats
        seats.open_appended()
        extra = {"event": "flight_listens", "address": str(self.address), "tls": bool(tls)}
        _log.info("Arrow Flight listens on %s", self.address, extra=extra)

    def stop(self, within_s: float) -> None:
        server, seats = self._server, self._seats
        if server is None or seats is None:
            return
        self._calls.close()
        seats.stop()
        ended = threading.Event()

        def shut_down() -> None:
            server.shutdown()
            ended.set()

        # Waits for every call without a limit; calls that haven't ended by then are cut.
        threading.Thread(target=shut_down, name="offloader-flight-end", daemon=True).start()
        deadline_s = self._clock.monotonic_s() + within_s
        if not ended.wait(min(within_s / 2, GRACE_S_MAX)):
            count = cut_connections(self.address.port)
            _log.info("%d connections were cut: their calls didn't end", count, extra={"event": "flight_cut"})
        ended.wait(max(deadline_s - self._clock.monotonic_s(), 0.0))

    def close(self) -> None:
        if self._seats is not None:
            self._seats.close()
        if self._ledgers is not None:
            self._ledgers.close()

    def problems(self) -> Sequence[ProviderProblem]:
        """Pushed streams whose broker is disconnected while entries aren't durable."""
        found = []
        for stream in () if self._seats is None else self._seats.held():
            news = stream.source.news()
            if stream.seat is None and news.taken != news.durable and not isinstance(stream.source, AppendedLedgers):
                found.append(
                    ProviderProblem(
                        where=f"stream {stream.name}",
                        what=f"its broker isn't connected, and entries after {news.durable or 'none'} aren't durable",
                        hint="nothing is lost: the broker has them; they are durable when the segment is complete",
                    )
                )
        return found


def _hot_tier(seats: ProducerSessions, name: str) -> LedgerSource | None:
    """Source of the newest entries, for streams with local ledgers."""
    stream = seats.find(name)
    return stream.source if stream is not None and isinstance(stream.source, AppendedLedgers) else None


def _tls_of(settings: AccessSettings) -> dict[str, Any]:
    """TLS options of ``FlightServerBase``: a client certificate is required, or none is requested.

    With tokens none is requested: gRPC's Python interface can't make it optional.
    """
    if not settings.certificate_file:
        return {}
    certificate = Path(settings.certificate_file).read_bytes()
    key = Path(settings.key_file or settings.certificate_file).read_bytes()
    found: dict[str, Any] = {"tls_certificates": [(certificate, key)]}
    if settings.client_authorities_file and not settings.has_tokens:
        if settings.anonymous != "loopback":
            raise InvalidCall(
                "access.anonymous lets anyone in, and Flight can ask for certificates only where everybody has one",
                hint="leave out access.anonymous or access.certificates",
            )
        found |= {"verify_client": True, "root_certificates": Path(settings.client_authorities_file).read_bytes()}
    return found
