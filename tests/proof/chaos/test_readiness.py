"""Readiness of serving processes whose store is lost: frozen, behind a black hole, refused, slow, with a bad name."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from offloader.runtime.clock import SystemClock
from offloader.service.answers import STORE_WAIT_S_MAX
from offloader.service.bootstrap import Assembled, assemble
from offloader.service.health import PROBE_ANSWER_S, PROBE_PERIOD_S
from offloader.service.process import RecentErrors
from offloader.settings.layered import SettingsFile
from services.servers import Endpoint, free_port, make_bucket, start
from services.toxiproxy import FaultyProxy, Toxiproxy
from tests.support.certificates import Authority
from tests.support.http_process import ask
from tests.support.waiting import eventually, settled

pytestmark = pytest.mark.process

BUCKET = "readiness"
#: Within so long of losing what it needs a process isn't ready any more.
KNOWN_WITHIN_S = 15.0


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of this module alone: it is frozen."""
    server = start("minio", tmp_path_factory.mktemp("minio"))
    try:
        make_bucket(server.endpoint, BUCKET)
        yield server
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
        server.stop()


@contextmanager
def reading(url: str, **more: Any) -> Iterator[tuple[Assembled, str]]:
    """A process that reads a store at an address, and its own address."""
    port = free_port()
    values = {
        "serve.store": f"s3://{BUCKET}/root",
        "serve.endpoint_url": url,
        "http.listen": f"127.0.0.1:{port}",
        "access.anonymous": "read",
        **more,
    }
    file = SettingsFile("test.toml", {"": values})
    assembled = assemble(file, clock=SystemClock(), recent=RecentErrors(), read_only=True)
    try:
        assembled.process.start()
        yield assembled, f"http://127.0.0.1:{port}"
    finally:
        assembled.process.stop(drain=False)


def keys_of(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, secret: str = "") -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret or endpoint.secret_key)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def problems_of(url: str) -> list[str]:
    return [each["what"] for each in ask(f"{url}/readyz").json()["problems"] if each["blocks_ready"]]


def await_loss(url: str, why: str) -> None:
    assert settled(
        lambda: ask(f"{url}/readyz").status, lambda status: status == 503, still_s=KNOWN_WITHIN_S, look_s=0.2
    )
    eventually(lambda: problems_of(url) == [f"the store doesn't answer: {why}"])


def await_return(url: str) -> None:
    eventually(lambda: ask(f"{url}/readyz").status == 200)
    assert problems_of(url) == []


def is_known_up(assembled: Assembled) -> bool:
    return bool(assembled.process.health()["store"]["up"])


def test_a_loss_is_known_within_fifteen_seconds() -> None:
    assert PROBE_PERIOD_S + PROBE_ANSWER_S < KNOWN_WITHIN_S


def test_each_loss_of_the_store_is_told_in_plain_words_and_ends(
    minio: Any, toxiproxy: Toxiproxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of(minio.endpoint, monkeypatch)
    between: FaultyProxy = toxiproxy.proxy("readiness", minio.endpoint.url)
    no_answer = f"no answer within {PROBE_ANSWER_S:g} s"
    with reading(between.url) as (assembled, url):
        eventually(lambda: is_known_up(assembled))
        assert b"offloader_store_up 1.0" in ask(f"{url}/metrics").body
        with between.toxic("timeout", timeout=0):
            await_loss(url, no_answer)
            assert b"offloader_store_up 0.0" in ask(f"{url}/metrics").body
        await_return(url)
        # A byte of the answer each second: no wait for the next byte is long.
        with between.toxic("slicer", average_size=1, size_variation=0, delay=1_000_000):
            await_loss(url, no_answer)
        await_return(url)
        between.cut_off()
        await_loss(url, "connection refused")
        between.let_through()
        await_return(url)
        os.kill(minio.process.pid, signal.SIGSTOP)
        try:
            await_loss(url, no_answer)
        finally:
            os.kill(minio.process.pid, signal.SIGCONT)
        await_return(url)


def test_readiness_is_answered_while_every_worker_waits_for_a_frozen_store(
    minio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of(minio.endpoint, monkeypatch)
    more = {"http.requests_max": 4, "http.answer_timeout": 60.0, "store.connections_max": 1}
    with reading(minio.endpoint.url, **more) as (assembled, url), ThreadPoolExecutor(5) as pool:
        eventually(lambda: is_known_up(assembled))
        os.kill(minio.process.pid, signal.SIGSTOP)
        try:
            # One more than there may be: that one is refused, whichever it is.
            waiting = [pool.submit(ask, f"{url}/v1/streams/a%2Fb/segments") for _ in range(5)]
            eventually(lambda: any(each.done() and each.result().status == 503 for each in waiting))
            await_loss(url, f"no answer within {PROBE_ANSWER_S:g} s")
            assert ask(f"{url}/healthz").status == 200
            assert b"offloader_store_up 0.0" in ask(f"{url}/metrics").body
        finally:
            os.kill(minio.process.pid, signal.SIGCONT)
        assert {each.result().status for each in waiting} <= {200, 404, 503, 504}
        await_return(url)


def test_overview_and_status_come_from_the_process_while_the_store_hangs(
    minio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of(minio.endpoint, monkeypatch)
    with reading(minio.endpoint.url) as (assembled, url):
        eventually(lambda: is_known_up(assembled))
        os.kill(minio.process.pid, signal.SIGSTOP)
        try:
            # Before the loss is known a list waits a little; it doesn't wait for the store's own limits.
            assert ask(f"{url}/v1/streams").status == 503
            assert assembled.settings.store.read_timeout > STORE_WAIT_S_MAX
            await_loss(url, f"no answer within {PROBE_ANSWER_S:g} s")
            assert ask(f"{url}/v1/streams?served=true").json()["items"] == []
            assert ask(f"{url}/v1/status").status == 200
            overview = ask(f"{url}/v1/overview").json()
            assert (overview["ready"], overview["health"]["store"]["up"]) == (False, False)
            assert "the store doesn't answer" in ask(f"{url}/v1/streams").json()["detail"]
        finally:
            os.kill(minio.process.pid, signal.SIGCONT)


def test_reading_process_stays_ready_without_a_broker(minio: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys_of(minio.endpoint, monkeypatch)
    nobody = f"127.0.0.1:{free_port()}"
    pulsar = {"service_url": f"pulsar://{nobody}", "admin_url": f"http://{nobody}", "topics": ("public/default",)}
    with reading(minio.endpoint.url, **{f"pulsar.{name}": value for name, value in pulsar.items()}) as (made, url):
        eventually(lambda: is_known_up(made))
        assert ask(f"{url}/readyz").json() == {"ready": True, "problems": []}
        assert made.process.health()["sources"] == {}


def test_a_store_that_refuses_the_keys_is_lost(minio: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys_of(minio.endpoint, monkeypatch, secret="not-the-secret")
    with reading(minio.endpoint.url) as (_, url):
        eventually(lambda: ask(f"{url}/readyz").status == 503)
        (what,) = problems_of(url)
        assert "SignatureDoesNotMatch" in what


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://no-such-host.invalid:9000", "host name not found"),
        ("https://127.0.0.1:{port}", "certificate verification failed: certificate has expired"),
    ],
)
def test_a_wrong_name_and_an_expired_certificate_are_told(
    address: str, why: str, minio: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of(minio.endpoint, monkeypatch)
    authority = Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca_file))
    with shaking_hands(authority.server(expired=True)) as port, reading(address.format(port=port)) as (_, url):
        await_loss(url, why)


@contextmanager
def shaking_hands(context: ssl.SSLContext) -> Iterator[int]:
    """A server that shows its certificate to whoever connects, and says nothing more; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=_shake_hands, args=(listener, context), daemon=True)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


def _shake_hands(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        with accepted, suppress(OSError):
            context.wrap_socket(accepted, server_side=True).close()
