"""Where HTTP's connections come in: as many as are allowed, and of one client not all of them.

Owns accepting and that count. Must never wait for a client, nor accept one that it has no room for.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial

from offloader.settings import HttpSettings

__all__ = ["Door", "client_of"]

#: How long accepting rests when the process has no file descriptors left.
_REST_S = 0.2
#: Of an IPv6 address, what a provider gives to one customer at least.
_NETWORK_BITS = 64


class Door:
    """Accepts what comes, as many connections at once as are allowed; more are closed at once.

    Args:
        listener: a socket that listens.
        settings: how many; those in their handshake count too.
        connect: lasts as long as a connection.
        refused: hears why one wasn't taken.
    """

    def __init__(
        self,
        listener: socket.socket,
        settings: HttpSettings,
        connect: Callable[[socket.socket], Coroutine[None, None, None]],
        refused: Callable[[str], None],
    ) -> None:
        self._listener, self._settings = listener, settings
        self._connect, self._refused = connect, refused
        self._loop = asyncio.get_running_loop()
        self.connections: set[asyncio.Task[None]] = set()
        self._of_client: Counter[str] = Counter()
        self._open()

    def close(self) -> None:
        """Accepts no more."""
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _open(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # At once, and not as a task: one that is cancelled loses the connection that it was about to get.
        try:
            accepted, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._refused("no_descriptors")
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_REST_S, self._open)
            return
        client = client_of(address[0])
        if reason := self._why_not(client):
            accepted.close()
            self._refused(reason)
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._connect(accepted))
        self.connections.add(task)
        self._of_client[client] += 1
        task.add_done_callback(partial(self._ended, client))

    def _why_not(self, client: str) -> str:
        if len(self.connections) >= self._settings.connections_max:
            return "connections"
        return "client_connections" if self._of_client[client] >= self._settings.client_connections_max else ""

    def _ended(self, client: str, task: asyncio.Task[None]) -> None:
        self.connections.discard(task)
        self._of_client[client] -= 1
        if not self._of_client[client]:
            del self._of_client[client]


def client_of(host: str) -> str:
    """Who counts as one client: an address, and of IPv6 its network, of which a client may have all addresses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False)) if mapped is None else str(mapped)
