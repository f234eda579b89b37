"""The TCP connections of a server of this process, by the port it listens on.

Owns ending them: Flight's server waits for every open call to end by itself, and a producer's call is open for as long
as the producer likes. Must never touch a socket that belongs to another port.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from offloader.errors import InvalidCall, StoreUnavailable
from offloader.service.listen import ListenAddress

__all__ = ["cut_connections", "require_free"]

#: Names of the process's open files, on Linux and elsewhere.
_OPEN_FILES = Path("/dev/fd")


def require_free(address: ListenAddress) -> None:
    """Checks that nobody listens there: gRPC would share the port silently, and calls would go to either.

    Raises:
        StoreUnavailable: somebody does, perhaps a process that is ending.
        InvalidCall: it is no address of this machine.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as cause:
        text = f"flight.listen: can't listen on {address}: {cause.strerror or cause}"
        if cause.errno == errno.EADDRINUSE:
            raise StoreUnavailable(text, hint="another process listens there") from cause
        raise InvalidCall(text, hint="give an address of this machine") from cause


def cut_connections(port: int) -> int:
    """Ends every connection that was accepted on ``port``, in both directions; how many there were."""
    count = 0
    for connection in _accepted(port):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def _accepted(port: int) -> Iterator[socket.socket]:
    for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 - one name after another may be gone by now
        try:
            # A copy: closing it leaves the server's own open.
            candidate = socket.socket(fileno=os.dup(int(name)))
        except (OSError, ValueError):
            continue  # no socket, or closed meanwhile
        with candidate, contextlib.suppress(OSError):
            if candidate.family in (socket.AF_INET, socket.AF_INET6) and candidate.getsockname()[1] == port:
                candidate.getpeername()  # fails for the one that listens
                yield candidate
