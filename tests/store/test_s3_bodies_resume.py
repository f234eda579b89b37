"""An interrupted body continues where it stopped, is of one version of the object, and ends eventually."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from botocore.response import StreamingBody
from urllib3.connectionpool import HTTPConnectionPool

from offloader.errors import NotFoundError, ObjectChangedError, OffloaderError, StoreUnavailableError
from offloader.settings import Duration, StoreSettings
from offloader.store import s3_bodies
from offloader.store.base import ByteRange, ObjectStore
from offloader.store.open import open_store
from offloader.store.s3_bodies import CONTINUATIONS_MAX, PIECE_BYTES, WHOLE_BYTES_MAX
from offloader.store.s3_responses import encoded_crc32c
from offloader.store.wrappers import requests_of
from offloader.testing.manual_clock import ManualClock
from offloader.testing.store_suite import KeptBody
from tests.support.cutting_proxy import CuttingProxy
from tests.support.misbehaving_servers import Answer, ScriptedServer

pytestmark = pytest.mark.process

KEYS: dict[str, Any] = {"access_key": "offloader", "secret_key": "wJalrXUtnFEMI-very-secret"}
ONCE = StoreSettings(retries_max=0)
MIB = 1024 * 1024
BODY = os.urandom(3 * MIB + 77)
#: Not a multiple of what is read at once.
CUT = MIB + 12_345
MODIFIED = {"Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
HEADERS = {"ETag": '"e"', **MODIFIED}


@pytest.fixture
def proxy(s3_place: Any) -> Iterator[CuttingProxy]:
    with CuttingProxy(s3_place.endpoint.url) as running:
        yield running


@pytest.fixture
def store(s3_place: Any, proxy: CuttingProxy) -> Iterator[ObjectStore]:
    """Without retries: whatever comes whole came in one call."""
    opened = s3_place.open(endpoint_url=proxy.url, settings=ONCE)
    opened.put("k", BODY)
    yield opened
    opened.close()


@pytest.mark.parametrize("byte_range", [None, ByteRange(1000, len(BODY) - 5)])
def test_interrupted_body_continues_at_the_next_byte(
    store: ObjectStore, proxy: CuttingProxy, byte_range: ByteRange | None
) -> None:
    wanted = byte_range or ByteRange(0, len(BODY))
    info = store.head("k")
    proxy.cut(CUT, times=2)
    body, found = store.get("k", byte_range)
    assert body == BODY[wanted.start : wanted.stop]
    assert (found.etag, found.size_bytes, found.metadata) == (info.etag, len(BODY), info.metadata)
    first = "" if byte_range is None else f"bytes={wanted.start}-{wanted.stop - 1}"
    rest = [f"bytes={wanted.start + number * CUT}-{wanted.stop - 1}" for number in (1, 2)]
    assert [get.byte_range for get in proxy.gets] == [first, *rest]
    assert [get.if_match for get in proxy.gets] == ["", info.etag, info.etag]
    assert sum(get.body_bytes for get in proxy.gets) == len(body), "no byte was fetched twice"
    assert requests_of(store)["get"].requests == 1


def test_reset_refetches_at_most_the_piece_being_read(store: ObjectStore, proxy: CuttingProxy) -> None:
    proxy.cut(CUT, times=2, reset=True)
    assert store.get("k")[0] == BODY
    assert len(proxy.gets) == 3
    assert len(BODY) <= sum(get.body_bytes for get in proxy.gets) < len(BODY) + 2 * PIECE_BYTES


def test_short_interrupted_body_is_fetched_again_by_the_retry_layer(s3_place: Any, proxy: CuttingProxy) -> None:
    store = s3_place.open(
        endpoint_url=proxy.url, settings=StoreSettings(retries_max=1, retry_delay_first=Duration(0.001))
    )
    store.put("k", BODY[:WHOLE_BYTES_MAX])
    proxy.cut(CUT)
    assert store.get("k")[0] == BODY[:WHOLE_BYTES_MAX]
    assert [get.body_bytes for get in proxy.gets] == [CUT, WHOLE_BYTES_MAX]
    assert requests_of(store)["get"].requests == 2
    store.close()


def test_object_replaced_during_a_read_is_an_error(s3_place: Any, store: ObjectStore, proxy: CuttingProxy) -> None:
    other = s3_place.open()
    proxy.cut(CUT, then=lambda: other.put("k", BODY[::-1]))
    with pytest.raises(
        ObjectChangedError, match=f"get of k: the object was replaced after {CUT} bytes of it had been read"
    ):
        store.get("k")
    assert store.get("k")[0] == BODY[::-1]
    other.close()


def test_an_object_that_became_shorter_in_between_is_named(
    s3_place: Any, store: ObjectStore, proxy: CuttingProxy
) -> None:
    other = s3_place.open()
    proxy.cut(CUT, then=lambda: other.put("k", b"short"))
    with pytest.raises(ObjectChangedError, match="the object was replaced after"):
        store.get("k", ByteRange(0, len(BODY)))
    other.close()


def test_object_deleted_during_a_read_is_missing(s3_place: Any, store: ObjectStore, proxy: CuttingProxy) -> None:
    other = s3_place.open()
    proxy.cut(CUT, then=lambda: other.delete(["k"]))
    with pytest.raises(NotFoundError):
        store.get("k")
    other.close()


def test_after_the_last_continuation_the_call_is_retried_as_a_whole(s3_place: Any, proxy: CuttingProxy) -> None:
    settings = StoreSettings(retries_max=1, retry_delay_first=Duration(0.001))
    store = s3_place.open(endpoint_url=proxy.url, settings=settings)
    store.put("k", BODY)
    proxy.cut(PIECE_BYTES, times=1 + CONTINUATIONS_MAX)
    assert store.get("k")[0] == BODY
    assert [get.body_bytes for get in proxy.gets] == [PIECE_BYTES] * (1 + CONTINUATIONS_MAX) + [len(BODY)]
    assert requests_of(store)["get"].requests == 2
    store.close()


def test_nothing_is_continued_after_the_time_for_retries(s3_place: Any, proxy: CuttingProxy) -> None:
    clock = ManualClock()
    store = s3_place.open(endpoint_url=proxy.url, clock=clock)
    store.put("k", BODY)
    proxy.cut(CUT, then=lambda: clock.advance(StoreSettings().retry_total + 1))
    with pytest.raises(StoreUnavailableError) as caught:
        store.get("k")
    assert f"gave up after 0 further requests and {CUT} bytes" in caught.value.__notes__
    assert len(proxy.gets) == 1
    store.close()


def torn(body: bytes, whole_bytes: int, **headers: str) -> Answer:
    return Answer(200, body, {**HEADERS, **headers}, announced_bytes=whole_bytes)


def rest(start: int, body: bytes, etag: str = '"e"') -> Answer:
    content_range = f"bytes {start}-{start + len(body) - 1}/{start + len(body)}"
    return Answer(206, body, {**MODIFIED, "ETag": etag, "Content-Range": content_range})


HALF = BODY[:CUT]


@pytest.mark.parametrize(
    ("second", "kind", "text", "requests"),
    [
        (rest(CUT, BODY[CUT:], '"f"'), ObjectChangedError, 'its ETag changed from "e" to "f"', 2),
        (Answer(200, BODY, HEADERS), StoreUnavailableError, "received the whole object", 2),
        (rest(CUT + 1, BODY[CUT + 1 :]), StoreUnavailableError, f"bytes from {CUT}", 2),
        (
            replace(rest(CUT, BODY[CUT:]), body=b"", announced_bytes=len(BODY) - CUT),
            StoreUnavailableError,
            "get of k",
            2,
        ),
        (Answer(503), StoreUnavailableError, "get of k failed", 2),
    ],
)
def test_wrong_response_to_a_continuation_is_refused(
    second: Answer, kind: type[OffloaderError], text: str, requests: int
) -> None:
    with ScriptedServer([torn(HALF, len(BODY)), second]) as server:
        store = open_store("s3://bucket/root", endpoint_url=server.url, settings=ONCE, **KEYS)
        with pytest.raises(kind, match=text):
            store.get("k")
        assert len(server.requests) == requests
        store.close()


def test_parts_that_do_not_make_the_object_together_are_not_answered() -> None:
    """For servers that return the whole object's checksum."""
    with ScriptedServer(
        [torn(HALF, len(BODY), **{"x-amz-checksum-crc32c": encoded_crc32c(1)}), rest(CUT, BODY[CUT:])]
    ) as server:
        store = open_store("s3://bucket/root", endpoint_url=server.url, settings=ONCE, **KEYS)
        with pytest.raises(StoreUnavailableError, match="don't match the object's CRC-32C"):
            store.get("k")
        store.close()


def test_large_bodies_bypass_the_sdk_and_their_connection_is_reused(
    s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bypass has no public name: without it every body is copied once more."""
    opened: list[object] = []
    connect = HTTPConnectionPool._new_conn

    def counted(pool: HTTPConnectionPool) -> object:
        opened.append(pool)
        return connect(pool)

    def never(*_: object) -> bytes:
        raise AssertionError("read by the SDK")

    store = s3_place.open(settings=ONCE)
    store.put("k", BODY)
    monkeypatch.setattr(HTTPConnectionPool, "_new_conn", counted)
    monkeypatch.setattr(StreamingBody, "read", never)
    for byte_range in (None, ByteRange(5, len(BODY) - 1), ByteRange(7, len(BODY))):
        wanted = byte_range or ByteRange(0, len(BODY))
        assert store.get("k", byte_range)[0] == BODY[wanted.start : wanted.stop]
    assert opened == []
    store.close()


def test_body_without_a_known_connection_is_read_by_the_sdk(
    store: ObjectStore, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bodies, "HTTPResponse", CuttingProxy)
    assert store.get("k")[0] == BODY
    proxy.cut(CUT)
    assert store.get("k")[0] == BODY
    assert len(proxy.gets) == 3


def test_interrupted_receive_continues_at_the_next_byte(store: ObjectStore, proxy: CuttingProxy) -> None:
    wanted = ByteRange(1000, len(BODY) - 5)
    into = KeptBody(MIB // 3 + 1)
    proxy.cut(CUT, times=2)
    found, info = store.get("k", wanted, into=into)
    assert (found, into.body, into.begun) == (b"", BODY[wanted.start : wanted.stop], 1)
    assert (info.size_bytes, info.etag) == (len(BODY), store.head("k").etag)
    assert sum(get.body_bytes for get in proxy.gets) == wanted.length, "no byte was fetched twice"
    assert requests_of(store)["get"].bytes_received == wanted.length


def test_repeated_receive_begins_again(s3_place: Any, proxy: CuttingProxy) -> None:
    store = s3_place.open(
        endpoint_url=proxy.url, settings=StoreSettings(retries_max=1, retry_delay_first=Duration(0.001))
    )
    store.put("k", BODY)
    into = KeptBody(100_003)
    proxy.cut(PIECE_BYTES, times=1 + CONTINUATIONS_MAX)
    assert store.get("k", ByteRange(1, len(BODY)), into=into)[0] == b""
    assert (into.body, into.begun) == (BODY[1:], 2)
    assert requests_of(store)["get"].bytes_received == len(BODY) - 1
    store.close()


def test_object_replaced_while_received_is_an_error(s3_place: Any, store: ObjectStore, proxy: CuttingProxy) -> None:
    other = s3_place.open()
    proxy.cut(CUT, then=lambda: other.put("k", BODY[::-1]))
    into = KeptBody(MIB)
    with pytest.raises(ObjectChangedError, match=f"was replaced after {CUT} bytes of it had been read"):
        store.get("k", ByteRange(0, len(BODY)), into=into)
    assert store.get("k", ByteRange(5, 100), into=into)[0] == b""
    assert into.body == BODY[::-1][5:100]
    other.close()


@pytest.mark.parametrize(
    "answer",
    [Answer(200, BODY, HEADERS), rest(0, BODY[:50]), replace(rest(9, BODY[9:]), headers={**HEADERS})],
    ids=["all of the object", "an object that ends earlier", "a range without its place"],
)
def test_response_other_than_the_range_is_never_received(answer: Answer) -> None:
    into = KeptBody()
    with ScriptedServer([answer]) as server:
        store = open_store("s3://bucket/root", endpoint_url=server.url, settings=ONCE, **KEYS)
        found, _ = store.get("k", ByteRange(0, 100), into=into)
        assert into.body == b""
        assert found == answer.body[:100]
        store.close()
