"""Writes that a gateway forwarded and then refused with 503 or 507 may have happened."""

from __future__ import annotations

import base64
import contextlib
import itertools
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from offloader.errors import (
    BucketMissingError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
    ThrottledError,
)
from offloader.settings import Duration, LimitSettings, StoreSettings
from offloader.store.base import CREATE, ByteRange, ObjectStore, PartInfo
from offloader.store.clouds.gcs import DELETES_AT_ONCE_MAX
from offloader.store.open import open_store
from offloader.store.wrappers import limits_of
from tests.support.holding_proxy import HoldingProxy
from tests.support.misbehaving_servers import Answer, ScriptedServer
from tests.support.waiting import PATIENCE_S

ONCE = StoreSettings(retries_max=0)
FAST = StoreSettings(retries_max=3, retry_delay_first=Duration(0.001))
PART = PartInfo(1, '"0123456789abcdef0123456789abcdef"', 5, 1234)
WRITES: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("k", b"body"),
    "create": lambda store: store.put("k", b"body", mode=CREATE),
    "delete": lambda store: store.delete(["k"]),
    "delete_if_match": lambda store: store.delete_if_match("k", '"1"'),
    "begin": lambda store: store.begin_upload("k"),
    "part": lambda store: store.upload_part("k", "u", 1, b"body"),
    "complete": lambda store: store.complete_upload("k", "u", [PART]),
    "abort": lambda store: store.abort_upload("k", "u"),
}


def s3(url: str, settings: StoreSettings = ONCE) -> ObjectStore:
    keys: dict[str, Any] = {"access_key": "offloader", "secret_key": "secret"}
    return open_store("s3://bucket/root", endpoint_url=url, region="us-east-1", settings=settings, **keys)


def azure(url: str, settings: StoreSettings = ONCE) -> ObjectStore:
    key = base64.b64encode(b"secret").decode()
    account: dict[str, Any] = {"access_key": "account", "secret_key": key}
    return open_store("az://container/root", endpoint_url=f"{url}/account", settings=settings, **account)


def gcs(url: str, settings: StoreSettings = ONCE) -> ObjectStore:
    return open_store("gs://bucket/root", endpoint_url=url, settings=settings)


CLOUDS = {"azure": azure, "gcs": gcs}


def raised_by(call: Callable[[], object]) -> OffloaderError:
    with pytest.raises(OffloaderError) as caught:
        call()
    return caught.value


def error_body(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>says the server</Message></Error>'.encode()


# -- answers of a gateway

GATEWAY = [
    (503, b""),
    (503, b"<html><body>503 Service Temporarily Unavailable</body></html>"),
    (503, error_body("ServiceUnavailable")),
    (503, error_body("SlowDownWrite")),
    (503, error_body("RequestTimeout")),
    (503, error_body("XMinioServerNotInitialized")),
    (507, b""),
    (507, error_body("XMinioStorageFull")),
]

GATEWAY_NAMES = ["503", "503 page", "503 code", "write quorum", "lock", "starting", "507", "full"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(("status", "body"), GATEWAY, ids=GATEWAY_NAMES)
def test_s3_write_that_a_gateway_refuses_may_have_happened(name: str, status: int, body: bytes) -> None:
    with ScriptedServer([Answer(status, body)]) as server, closing(s3(server.url)) as store:
        assert isinstance(raised_by(lambda: WRITES[name](store)), OutcomeUnknownError)


def test_s3_completion_with_503_in_its_body_may_have_happened() -> None:
    with ScriptedServer([Answer(200, error_body("ServiceUnavailable"))]) as server, closing(s3(server.url)) as store:
        assert isinstance(raised_by(lambda: WRITES["complete"](store)), OutcomeUnknownError)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITES)
def test_s3_write_refused_by_s3_itself_changed_nothing(name: str) -> None:
    with ScriptedServer([Answer(503, error_body("SlowDown"))]) as server, closing(s3(server.url)) as store:
        assert type(raised_by(lambda: WRITES[name](store))) is ThrottledError


@pytest.mark.slow
@pytest.mark.parametrize(("status", "body"), GATEWAY, ids=GATEWAY_NAMES)
def test_s3_read_that_a_gateway_refuses_is_tried_again(status: int, body: bytes) -> None:
    with ScriptedServer([Answer(status, body)]) as server, closing(s3(server.url)) as store:
        assert isinstance(raised_by(lambda: store.get("k")), StoreUnavailableError)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["put", "create", "delete_if_match", "begin"])
@pytest.mark.parametrize("status", [503, 507])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_cloud_write_refused_with_503_or_507_may_have_happened(cloud: str, status: int, name: str) -> None:
    with ScriptedServer([Answer(status)]) as server, closing(CLOUDS[cloud](server.url)) as store:
        assert isinstance(raised_by(lambda: WRITES[name](store)), OutcomeUnknownError)


def test_gcs_object_that_is_missing_in_a_bucket_called_bucket_is_no_missing_bucket() -> None:
    body = b'{"error": {"code": 404, "message": "No such object: my-bucket/objects/k", "errors": []}}'
    with ScriptedServer([Answer(404, body)] * 2) as server, closing(gcs(server.url)) as store:
        store.delete_if_match("k", '"1"')  # counts as removed
        assert isinstance(raised_by(lambda: store.get("k")), NotFoundError)


def test_gcs_bucket_that_is_missing_is_named() -> None:
    body = b'{"error": {"code": 404, "message": "The specified bucket does not exist.", "errors": []}}'
    with ScriptedServer([Answer(404, body)]) as server, closing(gcs(server.url)) as store:
        assert isinstance(raised_by(lambda: store.put("k", b"body")), BucketMissingError)


class Forwarding(HoldingProxy):
    """A gateway that forwards writes and answers the next ``refused`` of them with 503 itself."""

    refused = 0

    def _answer(self, client: socket.socket, request: bytes) -> None:
        answer = self._sent(request)
        if request.startswith(b"PUT ") and self.refused:
            self.refused -= 1
            answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        client.sendall(answer)


def test_create_that_a_gateway_forwarded_is_recognised_as_our_own(s3_place: Any) -> None:
    with Forwarding(s3_place.endpoint.url) as gateway:
        options = {**s3_place.options, "endpoint_url": gateway.url, "settings": FAST}
        with closing(open_store(s3_place.url, **options)) as store:
            gateway.refused = 1
            try:
                created = store.put("k", b"body", mode=CREATE)
            except PreconditionFailedError:
                pytest.fail("our own object was taken for another writer's")
            assert created.etag == store.head("k").etag


def test_gateway_that_refuses_writes_slows_requests_down() -> None:
    with ScriptedServer([Answer(503)]) as server:
        keys: dict[str, Any] = {"access_key": "offloader", "secret_key": "secret"}
        limits = LimitSettings(requests_per_s=1000.0)
        store = open_store(
            "s3://bucket/root", endpoint_url=server.url, region="us-east-1", settings=ONCE, limits=limits, **keys
        )
        with closing(store):
            assert isinstance(raised_by(lambda: store.put("k", b"body")), OutcomeUnknownError)
            status = limits_of(store)
            assert status is not None
            assert status.slowdowns == 1


# -- connections that end


class Connections:
    """A server whose connections each run ``serve`` with their number; ``requests`` are the first lines they read."""

    def __init__(self, serve: Callable[[Connections, socket.socket, int], None]) -> None:
        self.requests: list[bytes] = []
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def read(self, connection: socket.socket) -> bytes:
        """One whole request, noted; empty: there is none."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return b""
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        self.requests.append(head.split(b"\r\n")[0])
        length = re.search(rb"(?i)content-length: (\d+)", head)
        while length is not None and len(body) < int(length[1]):
            body += connection.recv(65536)
        return data

    def refuse_more(self) -> None:
        """Takes no connection from now on."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        for number in itertools.count():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._run, args=(connection, number))
            self._threads.append(thread)
            thread.start()

    def _run(self, connection: socket.socket, number: int) -> None:
        connection.settimeout(PATIENCE_S)
        with connection, contextlib.suppress(ConnectionError):
            self._serve(self, connection, number)

    def __enter__(self) -> Connections:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.refuse_more()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_and_close(server: Connections, connection: socket.socket, _: int) -> None:
    server.read(connection)


def read_and_reset(server: Connections, connection: socket.socket, _: int) -> None:
    server.read(connection)
    reset(connection)


@pytest.mark.slow
@pytest.mark.parametrize("end", [read_and_close, read_and_reset])
@pytest.mark.parametrize("name", ["put", "create", "delete_if_match", "begin"])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_cloud_write_with_a_broken_connection_may_have_happened(
    cloud: str, name: str, end: Callable[[Connections, socket.socket, int], None]
) -> None:
    with Connections(end) as server, closing(CLOUDS[cloud](f"http://127.0.0.1:{server.port}")) as store:
        assert isinstance(raised_by(lambda: WRITES[name](store)), OutcomeUnknownError)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_cloud_read_with_a_broken_connection_is_retryable(cloud: str) -> None:
    with Connections(read_and_reset) as server, closing(CLOUDS[cloud](f"http://127.0.0.1:{server.port}")) as store:
        assert isinstance(raised_by(lambda: store.get("k")), StoreUnavailableError)


_READS: dict[str, Callable[[ObjectStore], object]] = {
    "head": lambda store: store.head("k"),
    "get": lambda store: store.get("k"),
    "list": lambda store: store.list(""),
    "uploads": lambda store: store.list_uploads("k"),
}


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", b"<html>welcome to the hotel</html>"], ids=["empty", "page"])
@pytest.mark.parametrize("name", ["put", "create", "begin", *_READS])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_success_status_from_another_server_than_the_cloud_is_an_error(cloud: str, name: str, body: bytes) -> None:
    with ScriptedServer([Answer(200, body)]) as server, closing(CLOUDS[cloud](server.url)) as store:
        kind: object = "a success"
        try:
            {**WRITES, **_READS}[name](store)
        except Exception as error:  # whatever escapes
            kind = type(error)
        assert kind is (StoreUnavailableError if name in _READS else OutcomeUnknownError)


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [4, 300_000], ids=["whole", "streamed"])
def test_azure_put_whose_answer_lacks_its_headers_may_have_happened(size_bytes: int) -> None:
    with ScriptedServer([Answer(201)] * 2) as server, closing(azure(server.url)) as store:
        kind: object = "a success"
        try:
            store.put("k", bytes(size_bytes))
        except Exception as error:  # whatever escapes
            kind = type(error)
        assert kind is OutcomeUnknownError


@pytest.mark.parametrize("cloud", CLOUDS)
def test_cloud_range_from_another_place_is_refused(cloud: str) -> None:
    headers = {
        "Content-Range": "bytes 0-3/10",
        "ETag": '"1"',
        "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT",
        "x-goog-generation": "1",
    }
    with ScriptedServer([Answer(206, b"0123", headers)]) as server, closing(CLOUDS[cloud](server.url)) as store:
        error = raised_by(lambda: store.get("k", ByteRange(2, 6)))
        assert isinstance(error, StoreUnavailableError)
        assert "the response has bytes 0-3/10, expected bytes from 2" in error.message


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid:9000"], ids=["refused", "unknown name"])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_cloud_write_that_never_connected_changed_nothing(cloud: str, host: str) -> None:
    with closing(CLOUDS[cloud](f"http://{host}")) as store:
        assert isinstance(raised_by(lambda: store.put("k", b"body", mode=CREATE)), StoreUnavailableError)


def test_azure_write_with_a_failed_tls_handshake_changed_nothing() -> None:
    with (
        Connections(lambda _server, connection, _number: reset(connection)) as server,
        closing(azure(f"https://127.0.0.1:{server.port}")) as store,
    ):
        assert isinstance(raised_by(lambda: store.put("k", b"body", mode=CREATE)), StoreUnavailableError)


_CREATED = (
    b'HTTP/1.1 201 Created\r\nETag: "0x1"\r\nLast-Modified: Sun, 22 Nov 2026 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n'
)
_EXISTS = b"HTTP/1.1 409 Conflict\r\nx-ms-error-code: BlobAlreadyExists\r\nContent-Length: 0\r\n\r\n"
_DELETED = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
_ABSENT = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("cloud", "call", "first", "again"),
    [
        ("azure", lambda store: store.put("k", b"body", mode=CREATE), _CREATED, _EXISTS),
        ("gcs", lambda store: store.delete_if_match("k", '"1"'), _DELETED, _ABSENT),
    ],
    ids=["azure create", "gcs delete"],
)
def test_cloud_write_on_a_reused_connection_that_ends_is_sent_once(
    cloud: str, call: Callable[[ObjectStore], object], first: bytes, again: bytes
) -> None:
    """The HTTP client would send it again by itself, and meet the effect of the first request."""

    def serve(server: Connections, connection: socket.socket, number: int) -> None:
        server.read(connection)
        connection.sendall(again if number else first)
        if number == 0:
            server.read(connection)  # it takes effect, and nobody hears of it

    with Connections(serve) as server, closing(CLOUDS[cloud](f"http://127.0.0.1:{server.port}")) as store:
        call(store)
        outcome: object = "a success"
        try:
            call(store)
        except OffloaderError as error:
            outcome = error
        assert len(server.requests) == 2
        assert isinstance(outcome, OutcomeUnknownError)


def test_gcs_delete_names_the_keys_it_never_sent() -> None:
    """The server takes as many connections as keys are deleted at once, and no more."""
    keys = [f"k{number:02d}" for number in range(DELETES_AT_ONCE_MAX + 1)]
    everybody = threading.Barrier(DELETES_AT_ONCE_MAX)

    def serve(server: Connections, connection: socket.socket, _: int) -> None:
        server.read(connection)
        if everybody.wait(PATIENCE_S) == 0:
            server.refuse_more()
        everybody.wait(PATIENCE_S)
        connection.sendall(_DELETED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    with Connections(serve) as server, closing(gcs(f"http://127.0.0.1:{server.port}")) as store:
        try:
            left = [failure.key for failure in store.delete(keys)]
        except OffloaderError as error:
            left = [type(error).__name__]
        assert left == keys[-1:]
