"""Behind an HTTP proxy and over TLS: only a request that can't have arrived is reported as unsent."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from offloader.errors import OutcomeUnknownError, StoreUnavailableError
from offloader.settings import StoreSettings
from offloader.store.base import CREATE, ObjectStore
from offloader.store.open import open_store
from services.request_gate import Passing, RequestGate
from services.servers import free_port
from tests.support.certificates import Authority

ONCE = StoreSettings(retries_max=0)


def opened(url: str) -> ObjectStore:
    keys: dict[str, Any] = {"access_key": "offloader", "secret_key": "wJalrXUtnFEMI-very-secret"}
    return open_store("s3://bucket/root", endpoint_url=url, region="us-east-1", settings=ONCE, **keys)


def test_response_lost_behind_a_proxy_is_an_unknown_outcome(s3_place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy's connection ends after the server's response: urllib3 reports it as a failed connection."""
    armed = threading.Event()

    def break_off(passing: Passing) -> None:
        if armed.is_set() and passing.moment == "answered":
            raise OSError("the answer gets lost")

    with RequestGate(s3_place.endpoint.url, break_off) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        with closing(s3_place.open(settings=ONCE)) as store:
            armed.set()
            with pytest.raises(OutcomeUnknownError):
                store.put("k", b"body", mode=CREATE)
            armed.clear()
            assert store.get("k")[0] == b"body"


@pytest.mark.process
def test_unreachable_proxy_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "")
    with closing(opened("http://127.0.0.1:9")) as store, pytest.raises(StoreUnavailableError):
        store.put("k", b"body")


@contextmanager
def one_connection(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that takes one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_proxy_refusing_to_connect_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with one_connection(refuse) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "")
        with closing(opened("https://127.0.0.1:9")) as store, pytest.raises(StoreUnavailableError):
            store.put("k", b"body")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda store: store.get("k"), StoreUnavailableError),
        (lambda store: store.put("k", b"body"), OutcomeUnknownError),
    ],
    ids=["get", "put"],
)
def test_refusal_reset_in_the_middle_is_no_bug(call: Callable[[ObjectStore], Any], expected: type[Exception]) -> None:
    """The SDK reads the body of such a response itself, and passes on errors of its HTTP library."""

    def break_off(connection: socket.socket) -> None:
        while b"\r\n\r\n" not in connection.recv(65536):
            pass
        connection.sendall(
            b"HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\nContent-Length: 900\r\n\r\n<Err"
        )
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with one_connection(break_off) as port, closing(opened(f"http://127.0.0.1:{port}")) as store:
        with pytest.raises(expected) as found:
            call(store)
        assert type(found.value) is expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trusted", "expected"),
    [(True, OutcomeUnknownError), (False, StoreUnavailableError)],
    ids=["an answer", "the handshake"],
)
def test_tls_failure_in_a_response_but_not_in_the_handshake_is_unknown(
    trusted: bool, expected: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    context = authority.server()

    def damage_the_answer(connection: socket.socket) -> None:
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                secure.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                while b"body" not in secure.recv(65536):
                    pass
                with socket.socket(fileno=os.dup(secure.fileno())) as below:
                    below.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))  # a record that nobody encrypted
        except ssl.SSLError:
            assert not trusted

    if trusted:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca_file))
    with one_connection(damage_the_answer) as port, closing(opened(f"https://127.0.0.1:{port}")) as store:
        with pytest.raises(expected) as found:
            store.put("k", b"body")
        assert type(found.value) is expected
