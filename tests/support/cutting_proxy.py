"""An HTTP proxy that breaks answers off: so many bytes of a body come, then the connection ends.

Says what was asked of it and how much it passed on.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.holding_proxy import HoldingProxy
from tests.support.waiting import eventually


@dataclass(frozen=True, slots=True)
class Passed:
    """One GET: its ``Range`` and ``If-Match`` (empty: none), and how many bytes of the answer's body went on."""

    byte_range: str
    if_match: str
    body_bytes: int


@dataclass(slots=True)
class _Cut:
    after_bytes: int
    times: int
    reset: bool
    then: Callable[[], object]


class CuttingProxy(HoldingProxy):
    """A server beside ``endpoint_url``; a context.

    Attributes:
        gets: what it answered, in order.
    """

    def __init__(self, endpoint_url: str) -> None:
        super().__init__(endpoint_url)
        self._cut: _Cut | None = None
        self.gets: list[Passed] = []

    def cut(
        self, after_bytes: int, *, times: int = 1, reset: bool = False, then: Callable[[], object] = lambda: None
    ) -> None:
        """Breaks off the answers to the next ``times`` GETs.

        Args:
            after_bytes: bytes of the body that are passed on.
            times: how many; one that has no more bytes than that isn't cut, and doesn't count.
            reset: whether the connection is reset, and not closed in good order.
            then: called before the connection ends.
        """
        self._cut = _Cut(after_bytes, times, reset, then)

    def _answer(self, client: socket.socket, request: bytes) -> None:
        answer = self._sent(request)
        if not request.startswith(b"GET "):
            client.sendall(answer)
            return
        head, _, body = answer.partition(b"\r\n\r\n")
        cut = self._cut
        if cut is None or not cut.times or len(body) <= cut.after_bytes:
            self._note(request, len(body))
            client.sendall(answer)
            return
        cut.times -= 1
        self._note(request, cut.after_bytes)
        client.sendall(head + b"\r\n\r\n" + body[: cut.after_bytes])
        cut.then()
        if cut.reset:
            eventually(lambda: _unsent_bytes(client) == 0)  # a reset drops what is still on its way
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    def _note(self, request: bytes, body_bytes: int) -> None:
        lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.gets.append(Passed(headers.get("range", ""), headers.get("if-match", ""), body_bytes))


def _unsent_bytes(end: socket.socket) -> int:
    return int(struct.unpack("i", fcntl.ioctl(end, termios.TIOCOUTQ, b"\0" * 4))[0])
