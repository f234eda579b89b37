"""A network that is farther away: between clients and a server on this machine, in a process of its own.

It doesn't change a byte, copy one into Python, or wait for ever.

    python -m services.slow_proxy 127.0.0.1:9000 --delay-ms 30 --mb-per-s 20     # prints its port, until it is ended

Bytes go from socket to socket inside the kernel (splice), so that the proxy takes little of a core that the client and
the server share with it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["SlowProxy", "slowed"]

_HOST = "127.0.0.1"
#: Bytes in a pipe between two sockets; Linux lets everybody have that much.
_PIPE_BYTES = 1024 * 1024
#: With a limited bandwidth, bytes that are passed on at once.
_PIECE_BYTES = 64 * 1024
#: How an answer begins that asks for the request's body.
_CONTINUE = b"HTTP/1.1 100"
_F_SETPIPE_SZ = 1031
_READY_TIMEOUT_S = 120.0


class SlowProxy:
    """Passes connections on to ``target``.

    The first bytes of each request wait for ``delay_s``; the body after an ``Expect: 100-continue`` doesn't again.

    Args:
        target: host and port.
        delay_s: added to every request.
        bytes_per_s: of all requests together, 0: as fast as it goes. Answers aren't limited.
        sleep: how it waits.

    Attributes:
        requests: how many have begun.
    """

    def __init__(
        self,
        target: tuple[str, int],
        delay_s: float,
        bytes_per_s: float = 0.0,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._target = target
        self._sleep = sleep
        self._delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0
        self.requests = 0
        self._listener = socket.create_server((_HOST, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]

    def set_delay(self, delay_s: float) -> None:
        """Of every request from now on."""
        self._delay_s = delay_s

    def serve(self) -> None:
        """Takes connections until ``close``."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answered = threading.Event()
            answered.set()
            threading.Thread(target=self._pass_requests, args=(client, server, answered), daemon=True).start()
            threading.Thread(target=self._pass_answers, args=(server, client, answered), daemon=True).start()

    def close(self) -> None:
        """Takes no more connections; those that are open end when either side ends them."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _pass_requests(self, client: socket.socket, server: socket.socket, answered: threading.Event) -> None:
        piece = _PIECE_BYTES if self._bytes_per_s else _PIPE_BYTES
        with _closing(client, server), _pipe() as (out, into):
            while count := os.splice(client.fileno(), into, piece):
                if answered.is_set():
                    answered.clear()
                    with self._lock:
                        self.requests += 1
                    if self._delay_s:
                        self._sleep(self._delay_s)
                self._wait_for_turn(count)
                _drain(out, server, count)

    def _pass_answers(self, server: socket.socket, client: socket.socket, answered: threading.Event) -> None:
        with _closing(server, client), _pipe() as (out, into):
            # A few bytes are looked at, of each piece: a request may have begun since the last one was looked for.
            while head := server.recv(len(_CONTINUE), socket.MSG_PEEK):
                if head != _CONTINUE:
                    answered.set()
                _drain(out, client, os.splice(server.fileno(), into, _PIPE_BYTES))

    def _wait_for_turn(self, count: int) -> None:
        """Sleeps until ``count`` bytes may go on; whoever comes later waits behind."""
        if not self._bytes_per_s:
            return
        with self._lock:
            now_s = time.monotonic()
            self._free_at_s = max(self._free_at_s, now_s) + count / self._bytes_per_s
            wait_s = self._free_at_s - now_s
        self._sleep(wait_s)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    out, into = os.pipe()
    try:
        fcntl.fcntl(into, _F_SETPIPE_SZ, _PIPE_BYTES)
        yield out, into
    finally:
        os.close(out)
        os.close(into)


@contextlib.contextmanager
def _closing(*ends: socket.socket) -> Iterator[None]:
    """Ends both connections when either ends, so that whoever is on the other side notices; gives the first back."""
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        ends[0].close()


def _drain(pipe: int, end: socket.socket, count: int) -> None:
    while count > 0:
        count -= os.splice(pipe, end.fileno(), count)


@contextlib.contextmanager
def slowed(url: str, *, delay_ms: float = 0.0, mb_per_s: float = 0.0) -> Iterator[str]:
    """The URL of a proxy before ``url``, in a process of its own, for the length of a block.

    Args:
        url: of an HTTP server on this machine.
        delay_ms: added to every request.
        mb_per_s: megabytes (10^6) per second of all requests together, 0: no limit.
    """
    at = urlsplit(url)
    options = ["--delay-ms", str(delay_ms), "--mb-per-s", str(mb_per_s)]
    with subprocess.Popen(
        [sys.executable, "-m", "services.slow_proxy", f"{at.hostname}:{at.port}", *options],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline() or 0)
            if not port:
                raise RuntimeError(f"the proxy before {url} ended with {process.wait(_READY_TIMEOUT_S)}")
            yield f"http://{_HOST}:{port}"
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="HOST:PORT of the server")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--mb-per-s", type=float, default=0.0)
    given = parser.parse_args()
    host, _, port = given.target.rpartition(":")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    proxy = SlowProxy((host, int(port)), given.delay_ms / 1000, given.mb_per_s * 1e6)
    print(proxy.port, flush=True)
    proxy.serve()


if __name__ == "__main__":
    main()
