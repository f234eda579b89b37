"""Pulsar client: topic lookup, and one connection per broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from formats.pulsar.commands import CommandType
from offloader.errors import AccessDenied, Closed, LimitReached, OffloaderError, StoreUnavailable
from offloader.ledgers.pulsar.protocol import ClientLimits, Connection, open_connection, refusal
from offloader.ledgers.pulsar.transport import BrokerAddress, Security, parse_service_url
from offloader.runtime.clock import Clock, SystemClock

_Result = TypeVar("_Result")

#: Redirects to another broker before a lookup fails.
REDIRECTS_MAX = 20
#: Connections of one client: one per broker.
CONNECTIONS_MAX = 256
#: More partitions than any topic has.
PARTITIONS_MAX = 100_000

_REDIRECT, _CONNECT = 0, 1


class _Line:
    """The connection to one broker, or when to retry."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None
        self.error: OffloaderError | None = None
        self.delay_s = 0.0
        self.not_before_s = 0.0
        self.is_forgotten = False


class PulsarClient:
    """Client of one cluster. Thread-safe.

    Args:
        service_url: of brokers or proxies; of several, the first that responds is used. ``InvalidCall``: it isn't one.
    """

    def __init__(
        self,
        service_url: str,
        *,
        security: Security | None = None,
        limits: ClientLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.service_url = service_url
        self._service = parse_service_url(service_url)
        self._security, self._limits = security or Security(), limits or ClientLimits()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._lines: dict[tuple[BrokerAddress, str], _Line] = {}
        self._closed = threading.Event()

    def __enter__(self) -> PulsarClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def greet(self) -> str:
        """Connects and authenticates to a broker or proxy; returns its name. Raises as ``connection``."""
        return self._retrying(self._service_connection).name

    def ping(self) -> None:
        """Waits for a sign of life of a broker or proxy, connected and authenticated to. Raises as ``connection``."""
        self._retrying(lambda: self._service_connection().ping())

    def partitions(self, topic: str) -> int:
        """Number of partitions of ``persistent://tenant/namespace/topic``; 0 if it isn't partitioned, or doesn't exist.

        Raises as ``connection``; ``LimitReached``: the broker's number is impossible.
        """
        kind = CommandType.PARTITIONED_METADATA
        found = self._retrying(lambda: int(self._service_connection().request(kind, topic=topic).partitions))
        if found > PARTITIONS_MAX:
            raise LimitReached(f"{topic} has {found} partitions, above {PARTITIONS_MAX}")
        return found

    def connection(self, topic: str) -> Connection:
        """The connection to the broker that owns ``topic`` now; shared by the topics of one broker.

        Call again when that connection is lost, or the broker released the topic.

        Raises:
            AccessDenied, InvalidCall, NotFound, StoreUnavailable: no broker has it.
            Closed: this client was closed.
        """
        return self._retrying(lambda: self._look_up(topic))

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        self._closed.set()
        with self._lock:
            lines, self._lines = self._lines, {}
        for line in lines.values():
            with line.lock:
                if line.connection is not None:
                    line.connection.close()

    def _retrying(self, call: Callable[[], _Result]) -> _Result:
        deadline_s = self._clock.monotonic_s() + self._limits.retry_s
        delay_s = self._limits.delay_first_s
        while True:
            try:
                return call()
            except OffloaderError as error:
                left_s = deadline_s - self._clock.monotonic_s()
                if not error.retryable or left_s <= 0:
                    raise
            self._clock.wait(self._closed, min(delay_s, left_s))
            delay_s = min(2 * delay_s, self._limits.delay_s_max)

    def _look_up(self, topic: str) -> Connection:
        asked = service = self._service_connection()
        authoritative = False
        for _ in range(REDIRECTS_MAX + 1):
            body = asked.request(CommandType.LOOKUP, topic=topic, authoritative=authoritative)
            if body.response not in (_REDIRECT, _CONNECT):
                raise refusal(asked.name, CommandType.LOOKUP.name, body.error, body.message)
            named = self._named(asked, body)
            # Behind a proxy only the proxy is reachable; a broker that names itself is no proxy.
            through = next(address for address in self._service if str(address) == service.name)
            is_behind = body.proxy_through_service_url and named != through
            asked = self._connection_to(through, named.host_and_port) if is_behind else self._connection_to(named)
            if body.response == _CONNECT:
                return asked
            authoritative = body.authoritative
        raise StoreUnavailable(f"{topic}: more than {REDIRECTS_MAX} brokers in a row name another one")

    def _named(self, asked: Connection, body: Any) -> BrokerAddress:
        """The broker named in a lookup response; ``AccessDenied``: it lacks the TLS that the service has."""
        has_tls = self._service[0].tls
        url = body.broker_url_tls if has_tls else body.broker_url
        if not url:
            raise refusal(asked.name, CommandType.LOOKUP.name, 0, "the answer names no broker that can be used")
        named = parse_service_url(url)[0]
        if has_tls and not named.tls:
            raise AccessDenied(
                f"{asked.name} sends us on to {named}, where everything could be read on the way",
                hint="give the brokers pulsar+ssl addresses: brokerServicePortTls, and advertisedListeners",
            )
        return named

    def _service_connection(self) -> Connection:
        for address in self._service[:-1]:
            with suppress(StoreUnavailable):
                return self._connection_to(address)
        return self._connection_to(self._service[-1])

    def _connection_to(self, address: BrokerAddress, proxy_to: str = "") -> Connection:
        """The open connection, or a new one; backs off from a broker that failed just now."""
        while True:
            line = self._line(address, proxy_to)
            with line.lock:
                if not line.is_forgotten:
                    return self._connection_of(line, address, proxy_to)

    def _connection_of(self, line: _Line, address: BrokerAddress, proxy_to: str) -> Connection:
        """Call with the line's lock held."""
        if self._closed.is_set():
            raise Closed(f"the client of {self.service_url} was closed")
        if line.connection is not None and line.connection.is_open:
            return line.connection
        now_s = self._clock.monotonic_s()
        if line.error is not None and now_s < line.not_before_s:
            raise StoreUnavailable(line.error.message, hint=line.error.hint) from line.error
        try:
            line.connection = open_connection(
                address, security=self._security, limits=self._limits, clock=self._clock, proxy_to=proxy_to
            )
        except StoreUnavailable as error:
            line.delay_s = min(max(2 * line.delay_s, self._limits.delay_first_s), self._limits.delay_s_max)
            line.not_before_s = self._clock.monotonic_s() + line.delay_s
            line.error = error
            raise
        line.error, line.delay_s = None, 0.0
        return line.connection

    def _line(self, address: BrokerAddress, proxy_to: str) -> _Line:
        with self._lock:
            if (address, proxy_to) not in self._lines:
                if len(self._lines) >= CONNECTIONS_MAX:
                    self._forget_lost()
                if len(self._lines) >= CONNECTIONS_MAX:
                    raise LimitReached(f"more than {CONNECTIONS_MAX} brokers behind {self.service_url}")
                self._lines[address, proxy_to] = _Line()
            return self._lines[address, proxy_to]

    def _forget_lost(self) -> None:
        for key, line in list(self._lines.items()):
            if line.lock.acquire(blocking=False):
                if line.connection is None or not line.connection.is_open:
                    line.is_forgotten = True
                    del self._lines[key]
                line.lock.release()
