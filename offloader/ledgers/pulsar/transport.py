"""Bytes to and from one broker, plain or in TLS.

Owns the socket and the TLS session. Must never know what the bytes mean, nor wait without a deadline.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

from offloader.clock import Clock
from offloader.errors import AccessDenied, StoreUnavailable
from offloader.ledgers.pulsar.addresses import BrokerAddress
from offloader.ledgers.pulsar.security import Security

__all__ = ["Transport", "open_transport"]

RECEIVE_BYTES_MAX = 256 * 1024


class Transport:
    """A connected socket. One thread may receive while others send.

    A TLS session takes one caller at a time, so it isn't given the socket: under a lock, and only for as long as
    nothing waits, it turns received bytes into plain ones and plain ones into bytes to send.

    Args:
        connected: belongs to this object from here on.
        session: of TLS with its incoming and outgoing bytes, not shaken hands yet; ``None``: plain.
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
        # Two objects for one socket: each has a timeout of its own.
        self._in, self._out = connected, connected.dup()
        self._in.settimeout(receive_timeout_s)
        self._out.settimeout(send_timeout_s)
        self._session = session
        self._session_lock = threading.Lock()
        self._send_lock = threading.Lock()

    def set_receive_timeout(self, seconds: float) -> None:
        self._in.settimeout(seconds)

    def receive(self) -> bytes:
        """What arrived, at least a byte; nothing: the other side is done.

        Raises:
            TimeoutError: nothing arrived in time.
            OSError: the connection broke.
        """
        if self._session is None:
            return self._in.recv(RECEIVE_BYTES_MAX)
        session, incoming, _ = self._session
        while True:
            with self._session_lock:
                try:
                    return session.read(RECEIVE_BYTES_MAX)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    return b""
            self._send_waiting()
            if not (data := self._in.recv(RECEIVE_BYTES_MAX)):
                return b""
            with self._session_lock:
                incoming.write(data)

    def send(self, data: bytes) -> None:
        """Sends all of it.

        Raises:
            TimeoutError: it wasn't taken in time; nothing can be sent any more.
            OSError: the connection broke.
        """
        if self._session is None:
            with self._send_lock:
                self._out.sendall(data)
            return
        session, _, outgoing = self._session
        with self._send_lock:
            with self._session_lock:
                session.write(data)
                encrypted = outgoing.read()
            self._out.sendall(encrypted)

    def _send_waiting(self) -> None:
        """What the session itself has to say."""
        assert self._session is not None
        outgoing = self._session[2]
        if outgoing.pending:
            with self._send_lock:
                with self._session_lock:
                    encrypted = outgoing.read()
                self._out.sendall(encrypted)

    def shake_hands(self, clock: Clock, deadline_s: float) -> None:
        """Begins the TLS session, if there is one.

        Raises:
            ssl.SSLError: the certificate isn't good, or it isn't TLS.
            TimeoutError: it took too long.
            OSError: the connection broke.
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
                    self._send_waiting()  # says why to the other side
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
        """Ends it: who receives or sends is told so. Any thread may call it, any number of times."""
        with contextlib.suppress(OSError):
            self._in.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Gives the socket back; for the thread that receives, when it is done. Nothing can be sent any more."""
        self.shut_down()
        with self._send_lock:
            self._in.close()
            self._out.close()


def open_transport(
    address: BrokerAddress, security: Security, *, clock: Clock, connect_s: float, send_timeout_s: float
) -> Transport:
    """Connects.

    Args:
        address: of the broker.
        security: of TLS, when the address says so.
        clock: of the deadline.
        connect_s: for the connection, and for the TLS session, each.
        send_timeout_s: as for ``Transport``.

    Raises:
        AccessDenied: the broker's certificate isn't good.
        StoreUnavailable: it can't be reached.
    """
    try:
        connected = socket.create_connection((address.host, address.port), connect_s)
    except OSError as cause:
        raise StoreUnavailable(
            f"{address} can't be reached: {cause}", hint="check the service URL, or try later"
        ) from cause
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = None
        if address.tls:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            session = security.context().wrap_bio(incoming, outgoing, server_hostname=address.host), incoming, outgoing
        opened = Transport(connected, session, receive_timeout_s=connect_s, send_timeout_s=send_timeout_s)
    except BaseException:
        connected.close()
        raise
    try:
        opened.shake_hands(clock, clock.monotonic_s() + connect_s)
    except ssl.SSLCertVerificationError as cause:
        opened.release()
        raise AccessDenied(
            f"{address} shows a certificate that isn't good: {cause.verify_message}",
            hint="give the file of its certificate authority, and the name that is in its certificate",
        ) from cause
    except OSError as cause:
        opened.release()
        raise StoreUnavailable(f"{address} can't be reached with TLS: {cause}") from cause
    except BaseException:
        opened.release()
        raise
    return opened
