"""Ranges of an S3 object: what is requested, by several threads, and after the object was replaced."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from offloader.errors import NotFoundError
from offloader.settings import StoreSettings
from offloader.store.base import ByteRange, ObjectStore
from tests.support.holding_proxy import HoldingProxy

pytestmark = pytest.mark.process

ONCE = StoreSettings(retries_max=0)
BODY = os.urandom(100_000)


class Heads(HoldingProxy):
    """Keeps the headers of each GET, in lower case."""

    def __init__(self, endpoint_url: str) -> None:
        super().__init__(endpoint_url)
        self.gets: list[dict[str, str]] = []

    def _answer(self, client: socket.socket, request: bytes) -> None:
        if request.startswith(b"GET "):
            lines = request.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")[1:]
            self.gets.append({name: value.strip() for name, _, value in (line.partition(":") for line in lines)})
        super()._answer(client, request)


@pytest.fixture
def proxy(s3_place: Any) -> Iterator[Heads]:
    with Heads(s3_place.endpoint.url) as running:
        yield running


@pytest.fixture
def store(s3_place: Any, proxy: Heads) -> Iterator[ObjectStore]:
    opened = s3_place.open(endpoint_url=proxy.url, settings=ONCE)
    opened.put("k", BODY, metadata={"owner": "me"})
    yield opened
    opened.close()


def test_a_whole_object_is_requested_with_its_checksum_and_a_range_without(store: ObjectStore, proxy: Heads) -> None:
    body, info = store.get("k", ByteRange(5, 99_000))
    assert (body, info.metadata) == (BODY[5:99_000], {"owner": "me"})
    assert proxy.gets[-1]["range"] == "bytes=5-98999"
    assert "x-amz-checksum-mode" not in proxy.gets[-1]
    assert store.get("k")[0] == BODY
    assert "range" not in proxy.gets[-1]
    assert proxy.gets[-1]["x-amz-checksum-mode"] == "enabled"


def test_a_range_of_a_replaced_object_is_the_new_one_and_of_a_deleted_one_is_missing(store: ObjectStore) -> None:
    store.get("k", ByteRange(0, 5))
    store.put("k", b"shorter", metadata={"owner": "you"})
    body, info = store.get("k", ByteRange(2, 100))
    assert (body, info.size_bytes, info.metadata) == (b"orter", 7, {"owner": "you"})
    store.delete(["k"])
    for _ in range(2):
        with pytest.raises(NotFoundError):
            store.get("k", ByteRange(0, 5))


def test_each_of_several_threads_gets_its_own_range(store: ObjectStore) -> None:
    starts = [(number * 37) % 90_000 for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda start: store.get("k", ByteRange(start, start + 1000))[0], starts))
    assert found == [BODY[start : start + 1000] for start in starts]
