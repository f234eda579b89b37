"""The slow network before a server: nothing is changed, each request waits once, and all share the bandwidth."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offloader.store.open import open_store
from services.servers import make_bucket, server
from services.slow_proxy import SlowProxy, slowed
from tests.support.misbehaving_servers import Answer, ScriptedServer
from tests.support.waiting import PATIENCE_S

BODY = bytes(range(256)) * 8192  # 2 MiB: many times what a pipe or a socket holds


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    with ScriptedServer([Answer(body=b"first"), Answer(body=BODY), Answer(body=b"third")]) as running:
        yield running


def proxy(target: ScriptedServer, waits: list[float], *, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> SlowProxy:
    made = SlowProxy(("127.0.0.1", int(target.url.rpartition(":")[2])), delay_s, bytes_per_s, sleep=waits.append)
    threading.Thread(target=made.serve, daemon=True).start()
    return made


def test_each_request_is_delayed_once_whatever_its_size(scripted: ScriptedServer) -> None:
    waits: list[float] = []
    with closing(proxy(scripted, waits, delay_s=0.03)) as between:
        client = http.client.HTTPConnection("127.0.0.1", between.port, timeout=PATIENCE_S)
        answers = []
        for body in (b"", BODY, b"x"):
            client.request("PUT", "/k", body=body)
            answers.append(client.getresponse().read())
        client.close()
    assert answers == [b"first", BODY, b"third"]
    assert waits == [0.03] * 3
    assert between.requests == 3


def test_requests_wait_as_long_as_their_bytes_take(scripted: ScriptedServer) -> None:
    waits: list[float] = []
    with closing(proxy(scripted, waits, bytes_per_s=1.0)) as between:
        client = http.client.HTTPConnection("127.0.0.1", between.port, timeout=PATIENCE_S)
        client.request("PUT", "/k", body=BODY)
        assert client.getresponse().read() == b"first"
        client.close()
    # One after the other: each piece waits until those before it and itself have had their time.
    assert waits[0] > 0
    assert waits == sorted(waits)
    assert waits[-1] > len(BODY) - 60, "a byte a second, but for the moments that the test takes"


@pytest.mark.process
def test_a_store_behind_a_proxy_of_its_own_process_keeps_every_byte(tmp_path: Path) -> None:
    with server("moto") as endpoint, slowed(endpoint.url, delay_ms=1) as url:
        make_bucket(endpoint, "far")
        keys: dict[str, Any] = {"access_key": endpoint.access_key, "secret_key": endpoint.secret_key}
        store = open_store("s3://far", endpoint_url=url, **keys)
        store.put("k", BODY)
        assert store.get("k")[0] == BODY
        store.close()
