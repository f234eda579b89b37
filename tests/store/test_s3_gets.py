"""Ranges of an object that was asked for before: fewer signatures, the same answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from offloader.errors import AccessDenied, NotFound, OffloaderError, StoreUnavailable, Throttled
from offloader.settings import StoreSettings
from offloader.store import s3_gets
from offloader.store.base import ByteRange, ObjectStore
from offloader.store.open import open_store
from offloader.store.s3_gets import SIGNATURE_SECONDS, _Signed
from offloader.testing.manual_clock import ManualClock
from offloader.testing.servers import Answer, ScriptedServer
from tests.support.holding_proxy import HoldingProxy

KEYS: dict[str, Any] = {"access_key": "offloader", "secret_key": "wJalrXUtnFEMI-very-secret"}
ONCE = StoreSettings(retries_max=0)
BODY = os.urandom(100_000)


class Heads(HoldingProxy):
    """Notes the heads of the GETs that pass."""

    def __init__(self, endpoint_url: str) -> None:
        super().__init__(endpoint_url)
        self.gets: list[dict[str, str]] = []

    def _answer(self, client: socket.socket, request: bytes) -> None:
        if request.startswith(b"GET "):
            lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
            self.gets.append(
                {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
            )
        super()._answer(client, request)

    def signatures(self) -> list[str]:
        return [get["authorization"].rpartition("Signature=")[2] for get in self.gets]


@pytest.fixture
def proxy(s3_place: Any) -> Iterator[Heads]:
    with Heads(s3_place.endpoint.url) as running:
        yield running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(s3_place: Any, proxy: Heads, clock: ManualClock) -> Iterator[ObjectStore]:
    opened = s3_place.open(endpoint_url=proxy.url, settings=ONCE, clock=clock)
    opened.put("k", BODY, metadata={"owner": "me"})
    yield opened
    opened.close()


RANGES = [(0, 1), (5, 99_000), (99_999, 100_000), (99_990, 100_010), (100_000, 100_005), (7, 7), (0, 100_000)]


def test_every_range_is_the_same_with_a_new_signature_and_with_a_used_one(
    s3_place: Any, store: ObjectStore, proxy: Heads
) -> None:
    for start, stop in RANGES * 2:
        fresh = s3_place.open(settings=ONCE)
        assert store.get("k", ByteRange(start, stop)) == fresh.get("k", ByteRange(start, stop))
        assert store.get("k", ByteRange(start, stop))[0] == BODY[start:stop]
        fresh.close()
    assert store.get("k", ByteRange(1, 2))[1].metadata == {"owner": "me"}
    assert len(set(proxy.signatures())) == 1 < len(proxy.gets)


def test_a_signature_serves_one_object_for_a_minute(store: ObjectStore, proxy: Heads, clock: ManualClock) -> None:
    store.put("other", BODY[::-1])
    for key, body in (("k", BODY), ("other", BODY[::-1]), ("k", BODY), ("other", BODY[::-1])):
        assert store.get(key, ByteRange(10, 20))[0] == body[10:20]
    first, second = proxy.signatures()[:2]
    assert proxy.signatures() == [first, second, first, second]
    assert first != second
    asked = len(proxy.gets)
    clock.advance(SIGNATURE_SECONDS - 1)
    store.get("k", ByteRange(30, 40))
    clock.advance(1)
    store.get("k", ByteRange(30, 40))
    # The SDK's own clock may still be in the same second; what it sent anew names the invocation anew.
    invocations = [get["amz-sdk-invocation-id"] for get in proxy.gets]
    assert invocations[asked] == invocations[0] != invocations[asked + 1]


def test_whole_objects_are_asked_for_by_the_sdk_with_their_checksum(store: ObjectStore, proxy: Heads) -> None:
    store.get("k", ByteRange(0, 5))
    assert store.get("k")[0] == BODY
    assert "range" not in proxy.gets[-1]
    assert "x-amz-checksum-mode" in proxy.gets[-1]


def test_a_replaced_object_is_seen_as_it_is_now_and_a_deleted_one_is_gone(store: ObjectStore) -> None:
    store.get("k", ByteRange(0, 5))
    store.put("k", b"shorter", metadata={"owner": "you"})
    body, info = store.get("k", ByteRange(2, 100))
    assert (body, info.size_bytes, info.metadata) == (b"orter", 7, {"owner": "you"})
    store.delete(["k"])
    for _ in range(2):
        with pytest.raises(NotFound):
            store.get("k", ByteRange(0, 5))


def test_threads_get_each_its_own_range(store: ObjectStore) -> None:
    starts = [(number * 37) % 90_000 for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda start: store.get("k", ByteRange(start, start + 1000))[0], starts))
    assert found == [BODY[start : start + 1000] for start in starts]


def test_as_many_signatures_are_kept_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_gets, "SIGNATURES_KEPT_MAX", 8)
    with ScriptedServer([PART] * 12) as server:
        store = opened(server)
        for number in (*range(10), 9, 2):
            store.get(f"k{number}", ByteRange(0, 5))
        assert [key.rpartition("/")[2] for key in gets_of(store)._signed] == [f"k{n}" for n in (3, 4, 5, 6, 7, 8, 9, 2)]
        store.close()


MODIFIED = "Sat, 21 Nov 2026 00:00:00 GMT"
PART = Answer(206, b"01234", {"ETag": '"e"', "Last-Modified": MODIFIED, "Content-Range": "bytes 0-4/9"})


def opened(server: ScriptedServer) -> ObjectStore:
    return open_store("s3://bucket/root", endpoint_url=server.url, settings=ONCE, **KEYS)


def gets_of(store: Any) -> Any:
    while not hasattr(store, "_gets"):
        store = store.inner
    return store._gets


def error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>says the server</Message></Error>".encode())


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (error(503, "SlowDown"), Throttled, "SlowDown: says the server"),
        (error(500, "InternalError"), StoreUnavailable, "InternalError: says the server"),
        (Answer(502, b"<html>"), StoreUnavailable, "get of k failed: 502"),
        (error(404, "NoSuchKey"), NotFound, "NoSuchKey"),
        (Answer(206, b"01234", {"ETag": '"e"', "Content-Range": "bytes 0-4/9"}), StoreUnavailable, "last-modified"),
        (Answer(206, b"012", PART.headers, announced_bytes=5), StoreUnavailable, "get of k"),
    ],
)
def test_a_failure_is_what_it_would_be_from_the_sdk_and_isnt_asked_for_twice(
    answer: Answer, kind: type[OffloaderError], text: str
) -> None:
    with ScriptedServer([PART, answer]) as server:
        store = opened(server)
        assert store.get("k", ByteRange(0, 5))[0] == b"01234"
        with pytest.raises(kind, match=text) as caught:
            store.get("k", ByteRange(0, 5))
        assert KEYS["secret_key"] not in str(caught.value)
        assert len(server.requests) == 2
        store.close()


@pytest.mark.parametrize("refusal", [error(403, "SignatureDoesNotMatch"), error(400, "ExpiredToken")])
def test_the_sdk_asks_again_where_the_signature_may_be_to_blame(refusal: Answer) -> None:
    with ScriptedServer([PART, refusal, PART, PART]) as server:
        store = opened(server)
        for _ in range(3):
            assert store.get("k", ByteRange(0, 5))[0] == b"01234"
        assert len(server.requests) == 4
        store.close()


def test_who_may_not_read_hears_so() -> None:
    with ScriptedServer([PART, error(403, "AccessDenied"), error(403, "AccessDenied")]) as server:
        store = opened(server)
        store.get("k", ByteRange(0, 5))
        with pytest.raises(AccessDenied):
            store.get("k", ByteRange(0, 5))
        store.close()


def test_a_server_that_is_gone_is_unavailable_and_named_without_a_signature() -> None:
    # The proxy ends every connection after its answer.
    with ScriptedServer([PART]) as server, HoldingProxy(server.url) as proxy:
        store = open_store("s3://bucket/root", endpoint_url=proxy.url, settings=ONCE, **KEYS)
        store.get("k", ByteRange(0, 5))
    with pytest.raises(StoreUnavailable) as caught:
        store.get("k", ByteRange(0, 5))
    assert "Signature" not in str(caught.value)
    store.close()


def test_the_sdks_connections_are_where_they_are_looked_for() -> None:
    """They have no public name: without them nothing breaks, but every request takes the SDK's time."""
    store = open_store("s3://bucket/root", endpoint_url="http://127.0.0.1:9", **KEYS)
    send: Callable[..., object] = gets_of(store)._connections.send
    assert callable(send)
    store.close()


def test_what_is_kept_to_sign_with_is_never_shown() -> None:
    signed = _Signed("http://127.0.0.1/b/k", {"Authorization": "sig-0f3a", "X-Amz-Security-Token": "tok-77"}, 1.0)
    assert "sig-0f3a" not in repr(signed)
    assert "tok-77" not in repr(signed)
