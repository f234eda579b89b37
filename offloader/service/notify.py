"""What a service manager is told of the process's life: ready, reloading, stopping (systemd's protocol).

Owns the datagrams. Must never fail the process because nobody listens.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

__all__ = ["Notifier"]

_log = logging.getLogger("offloader.service")


class Notifier:
    """Sends to the socket that the environment names; does nothing where it names none.

    Args:
        environ: of the process.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the zero byte of an abstract address.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path

    def ready(self, status: str) -> None:
        """It does its work; ``status`` says which, for people."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self, monotonic_s: float) -> None:
        """It reads its settings again; ``ready`` says when that is done."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_s * 1_000_000)}")

    def stopping(self, status: str) -> None:
        """It ends."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(message.encode(), self._address)
            except OSError as error:
                _log.debug("the service manager wasn't told: %s", error)
