"""Connections to brokers: service URLs, TLS, and credentials."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from offloader.errors import AccessDeniedError, InvalidCallError, StoreUnavailableError, plain_reason
from offloader.runtime.clock import Clock
from offloader.settings import PulsarSettings

#: Environment variable with a token for the admin interface, for programs without a settings file.
ADMIN_TOKEN_VARIABLE = "OFFLOADER_ADMIN_TOKEN"  # noqa: S105 - a name
#: Scheme -> default port, whether it uses TLS.
_SCHEMES = {"pulsar": (6650, False), "pulsar+ssl": (6651, True)}
#: Addresses in one service URL: more than any cluster lists; the URL may come from a broker.
ADDRESSES_MAX = 100


class BrokerAddress(NamedTuple):
    """One broker, or a proxy."""

    host: str
    port: int
    tls: bool = False

    @property
    def host_and_port(self) -> str:
        """``host:port``, as sent to a proxy."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'pulsar+ssl' if self.tls else 'pulsar'}://{self.host_and_port}"


def parse_service_url(url: str) -> tuple[BrokerAddress, ...]:
    """Parses ``pulsar://broker:6650``, ``pulsar+ssl://broker:6651``, or several ``host:port`` separated by commas.

    ``InvalidCallError``: not such a URL.
    """
    scheme, separator, rest = url.partition("://")
    hosts = rest.rstrip("/").split(",")
    try:
        port, tls = _SCHEMES[scheme.lower()]
        if not separator or len(hosts) > ADDRESSES_MAX:
            raise ValueError
        return tuple(_address(host, port, tls) for host in hosts)
    except (KeyError, ValueError) as cause:
        raise InvalidCallError(
            f"{ascii(without_credentials(url))[:200]} is no Pulsar service URL",
            hint="give pulsar://broker:6650 or pulsar+ssl://broker:6651",
        ) from cause


def without_credentials(url: str) -> str:
    """A URL for display, without what stands before an ``@``."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _address(text: str, default_port: int, tls: bool) -> BrokerAddress:
    parts = urlsplit(f"//{text}")
    more = parts.path or parts.query or parts.fragment
    if more or parts.username is not None or not parts.hostname or parts.port == 0:
        raise ValueError
    parts.hostname.encode("idna")  # as the resolver does; ``UnicodeError``: no host has such a name
    return BrokerAddress(parts.hostname, parts.port or default_port, tls)


TOKEN_VARIABLE = "OFFLOADER_PULSAR_TOKEN"  # noqa: S105 - the name of a variable
#: Longer files aren't tokens.
TOKEN_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Security:
    """Credentials and TLS of connections.

    Attributes:
        token: called at each connection and when a broker asks for a fresh one; ``None``: no authentication.
        tls: checks the broker's certificate and name; ``None``: the system's authorities.
    """

    token: Callable[[], str] | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def current_token(self) -> str:
        """The token; empty without authentication."""
        return self.token() if self.token else ""

    def without_token(self, text: str) -> str:
        """A peer's text, without the token that it may repeat."""
        token = self.current_token() if text else ""
        return text.replace(token, "...") if token else text

    def context(self) -> ssl.SSLContext:
        """The context for a TLS connection; checks certificate and host name."""
        return self.tls or ssl.create_default_context()


def open_security(
    *,
    token_file: Path | None = None,
    token_variable: str = TOKEN_VARIABLE,
    ca_file: str = "",
    certificate_file: str = "",
    key_file: str = "",
) -> Security:
    """Credentials from a token's file or environment variable, certificate authorities and a client certificate.

    Files are read again each time, so that a renewed token is used. No file and no variable: no authentication.

    Raises:
        InvalidCallError: a certificate file isn't one.
        AccessDeniedError: ``token_file`` has no token.
    """
    tls = None
    if ca_file:
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except OSError as cause:
            raise InvalidCallError(f"{ca_file} holds no certificate authorities: {cause}") from cause
    if certificate_file:
        tls = tls or ssl.create_default_context()
        try:
            tls.load_cert_chain(certificate_file, key_file or None, password="")
        except OSError as cause:
            raise InvalidCallError(f"{certificate_file} holds no certificate with its key: {cause}") from cause
    if token_file is not None:
        _token_in(token_file)
        return Security(partial(_token_in, token_file), tls)
    value = os.environ.get(token_variable, "").strip()
    return Security((lambda: value) if value else None, tls)


def security_of(settings: PulsarSettings) -> Security:
    """Credentials from the section ``[pulsar]``.

    Raises:
        InvalidCallError: a certificate file isn't one, or ``token`` names no location.
        AccessDeniedError: there is no token at ``token``.
    """
    kind, _, place = settings.token.partition(":")
    if settings.token and (kind not in ("file", "env") or not place):
        # The value may be a token by mistake: it isn't repeated.
        raise InvalidCallError("pulsar.token names no place of a token", hint="write file:PATH or env:NAME")
    security = open_security(
        token_file=Path(place) if kind == "file" else None,
        token_variable=place if kind == "env" else TOKEN_VARIABLE,
        ca_file=settings.ca_file,
        certificate_file=settings.certificate_file,
        key_file=settings.key_file,
    )
    if kind == "env" and security.token is None:
        raise AccessDeniedError(f"no token in the environment variable {place}, which pulsar.token names")
    return security


def _token_in(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            token = opened.read(TOKEN_BYTES_MAX + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as cause:
        # The content may be the token: the cause of a UnicodeDecodeError would show it.
        raise AccessDeniedError(
            f"no token in {file}: {cause.strerror if isinstance(cause, OSError) else 'not ASCII'}"
        ) from None
    if not token or len(token) > TOKEN_BYTES_MAX:
        raise AccessDeniedError(f"no token in {file}: {'empty' if not token else 'too long'}")
    return token


RECEIVE_BYTES_MAX = 256 * 1024


class Transport:
    """A connected socket. One thread may receive while others send.

    A TLS session takes one caller at a time, so it doesn't get the socket: under a lock, and without blocking, it
    decrypts received bytes and encrypts bytes to send.

    Args:
        connected: owned by this object from here on.
        session: of TLS with its incoming and outgoing bytes, before the handshake; ``None``: plain.
        receive_timeout_s: longest wait for any byte.
        send_timeout_s: longest time for one ``send``.
    """

    def __init__(
        self,
        connected: socket.socket,
        session: tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO] | None,
        *,
        receive_timeout_s: float,
        send_timeout_s: float,
    ) -> None:
        # Two objects for one socket, with separate timeouts.
        self._in, self._out = connected, connected.dup()
        self._in.settimeout(receive_timeout_s)
        self._out.settimeout(send_timeout_s)
        self._session = session
        self._session_lock = threading.Lock()
        self._send_lock = threading.Lock()

    def set_receive_timeout(self, seconds: float) -> None:
        self._in.settimeout(seconds)

    def receive(self) -> bytes:
        """At least one byte; none at the connection's end. ``TimeoutError``: nothing arrived; ``OSError``: broken."""
        if self._session is None:
            return self._in.recv(RECEIVE_BYTES_MAX)
        session, incoming, _ = self._session
        while True:
            try:
                with self._session_lock, contextlib.suppress(ssl.SSLWantReadError):
                    return session.read(RECEIVE_BYTES_MAX)
            except ssl.SSLZeroReturnError:
                return b""
            self._send_waiting()
            if not (data := self._in.recv(RECEIVE_BYTES_MAX)):
                return b""
            with self._session_lock:
                incoming.write(data)

    def send(self, data: bytes) -> None:
        """Sends all bytes, and the TLS session's own. ``OSError``: nothing can be sent any more."""
        with self._send_lock:
            if self._session is not None:
                session, _, outgoing = self._session
                with self._session_lock:
                    if data:
                        session.write(data)
                    data = outgoing.read()
            self._out.sendall(data)

    def _send_waiting(self) -> None:
        if self._session is not None and self._session[2].pending:
            self.send(b"")

    def shake_hands(self, clock: Clock, deadline_s: float) -> None:
        """Runs the TLS handshake, if there is a session.

        ``ssl.SSLError``: the certificate is rejected, or the peer doesn't speak TLS; ``OSError``: broken, or too slow.
        """
        if self._session is None:
            return
        session, incoming, _ = self._session
        while True:
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                self._send_waiting()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._send_waiting()  # sends the TLS alert with the reason
                raise
            else:
                self._send_waiting()
                return
            if clock.monotonic_s() >= deadline_s:
                raise TimeoutError("timed out")
            if not (data := self._in.recv(RECEIVE_BYTES_MAX)):
                raise ConnectionResetError("closed while the TLS session began")
            incoming.write(data)

    def shut_down(self) -> None:
        """Shuts the connection down for both directions. Idempotent, from any thread."""
        with contextlib.suppress(OSError):
            self._in.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Closes the socket; for the receiving thread, at its end. Nothing can be sent any more."""
        self.shut_down()
        with self._send_lock:
            self._in.close()
            self._out.close()


def open_transport(
    address: BrokerAddress, security: Security, *, clock: Clock, connect_s: float, send_timeout_s: float
) -> Transport:
    """Opens a connection.

    Args:
        connect_s: for the connection, and for the TLS session, each.

    Raises:
        AccessDeniedError: the broker's certificate is rejected.
        StoreUnavailableError: it can't be reached.
    """
    try:
        connected = socket.create_connection((address.host, address.port), connect_s)
    except OSError as cause:
        raise StoreUnavailableError(
            f"{address} can't be reached: {plain_reason(cause, connect_s)}", hint="check the service URL, or try later"
        ) from cause
    with contextlib.ExitStack() as undo:
        undo.callback(connected.close)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = None
        if address.tls:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            session = security.context().wrap_bio(incoming, outgoing, server_hostname=address.host), incoming, outgoing
        opened = Transport(connected, session, receive_timeout_s=connect_s, send_timeout_s=send_timeout_s)
        undo.callback(opened.release)
        try:
            opened.shake_hands(clock, clock.monotonic_s() + connect_s)
        except ssl.SSLCertVerificationError as cause:
            raise AccessDeniedError(
                f"{address} shows a certificate that isn't good: {cause.verify_message}",
                hint="give the file of its certificate authority, and the name that is in its certificate",
            ) from cause
        except OSError as cause:
            raise StoreUnavailableError(
                f"{address} can't be reached with TLS: {plain_reason(cause, connect_s)}"
            ) from cause
        undo.pop_all()
    return opened
