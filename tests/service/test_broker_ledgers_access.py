"""Who may do what of a broker's requests, how much of it at once, and processes that only read."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offloader.errors import InvalidCallError
from offloader.runtime.clock import SystemClock
from offloader.service.auth import OPERATION_OF_ROUTE, OPERATIONS, NotAllowed, Role, open_credentials
from offloader.service.bootstrap import require_sound
from offloader.service.broker_ledgers import BROKERS_NAMED_MAX, BrokerCaller, BrokerLedgers
from offloader.settings import AccessSettings, Pairs, Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.telemetry.recorder import NO_TELEMETRY
from tests.support.broker_requests import STREAM, Broker
from tests.support.http_process import ask, http_process, quoted
from tests.support.serving_processes import Serving
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S, eventually

_names = itertools.count()
ROLES = ("READ", "WRITE", "ADMIN", "BROKER", "BOTH")
ENVIRON = {role: f"{role.lower()}-token-0123456789" for role in ROLES}
ACCESS = {
    "read_tokens": ["env:READ", "env:BOTH"],
    "write_tokens": ["env:WRITE"],
    "admin_tokens": ["env:ADMIN"],
    "broker_tokens": ["env:BROKER", "env:BOTH"],
}
LEDGER = "/v1/streams/{stream}/ledgers/{ledger}"


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://access-{next(_names)}")


@pytest.fixture
def writer(store: ObjectStore) -> StreamWriter:
    return StreamWriter(store, STREAM)


def answers(broker: Broker) -> Iterator[int]:
    """The status of each request that a broker makes."""
    yield broker.plan(7).status
    yield broker.entries(7, 0, 9).status
    yield broker.offload(7, last=9, length=200, entries=10).status
    yield broker.fill(7, 0, 9, []).status
    yield broker.delete(7).status


@pytest.mark.slow
def test_only_a_broker_or_an_admin_may_do_what_brokers_do(
    store: ObjectStore, writer: StreamWriter, tmp_path: Path
) -> None:
    writer.add([batch_of(7, 0, 10)], closes=(7,))
    with http_process(tmp_path, {"access": ACCESS}, streams=(), store=store, environ=ENVIRON) as (http, _):
        found = {role: list(answers(Broker(http.url, token=ENVIRON[role]))) for role in ROLES}
        nobody = list(answers(Broker(http.url)))
        allowed = [200, 200, 200, 200, 202]
        assert found == {
            **dict.fromkeys(("READ", "WRITE"), [403] * 5),
            **dict.fromkeys(("ADMIN", "BROKER", "BOTH"), allowed),
        }
        assert nobody == [401] * 5
        refused = Broker(http.url, token=ENVIRON["WRITE"]).plan(7).json()
        assert refused["kind"] == "denied"
        assert "access.broker_tokens" in refused["detail"]


@pytest.mark.slow
def test_broker_may_do_nothing_else(store: ObjectStore, tmp_path: Path) -> None:
    others = [route for route, operation in OPERATION_OF_ROUTE.items() if operation.role and not operation.is_of_broker]
    with http_process(tmp_path, {"access": ACCESS}, streams=(), store=store, environ=ENVIRON) as (http, _):
        for route in others:
            method, _, path = route.partition(" ")
            url = f"{http.url}{path.format(stream=quoted(STREAM), subscriber='x', group='x')}"
            body: dict[str, str] | None = {} if method in ("POST", "PUT") else None
            assert ask(url, method=method, body=body, token=ENVIRON["BROKER"]).status == 403, route
        read = ask(f"{http.url}/v1/overview", token=ENVIRON["BOTH"])
        assert read.status == 200


def test_brokers_operations_are_in_the_table() -> None:
    of_brokers = {route for operation in OPERATIONS.values() if operation.is_of_broker for route in operation.http}
    assert of_brokers == {
        f"GET {LEDGER}",
        f"GET {LEDGER}/entries",
        f"POST {LEDGER}/offload",
        f"PUT {LEDGER}/missing",
        f"DELETE {LEDGER}",
    }
    assert {operation.who for operation in OPERATIONS.values() if operation.is_of_broker} == {"admin, broker"}


def test_certificate_may_be_a_brokers() -> None:
    names = {"broker-1": "broker", "both": "read broker", "all": "write broker subscriber:billing", "*": "read"}
    known = open_credentials(AccessSettings(certificates=Pairs(names)), {})
    assert (known.of_certificate(["broker-1"]).role, known.of_certificate(["broker-1"]).is_broker) == (Role.READ, True)
    found = known.of_certificate(["all"])
    assert (found.role, found.is_broker, found.subscribers) == (Role.WRITE, True, frozenset({"billing"}))
    operation = OPERATIONS["read-ledger"]
    for name in ("broker-1", "both", "all"):
        known.of_certificate([name]).may(operation)
    with pytest.raises(NotAllowed):
        known.of_certificate(["another"]).may(operation)
    alone = open_credentials(AccessSettings(certificates=Pairs({"broker-1": "broker"})), {})
    assert alone.of_certificate(["broker-1"]).role is None
    alone.of_certificate(["broker-1"]).may(operation)
    with pytest.raises(InvalidCallError, match="is not a role"):
        open_credentials(AccessSettings(certificates=Pairs({"*": "broker"})), {})


def test_plain_broker_token_in_settings_is_refused() -> None:
    with pytest.raises(InvalidCallError) as caught:
        Settings.of({"access": {"broker_tokens": ["a-token-0123456789"]}})
    assert "a-token" not in str(caught.value)


def test_many_brokers_share_one_label(store: ObjectStore) -> None:
    settings = Settings()
    ledgers = BrokerLedgers(
        store, settings=settings, clock=SystemClock(), recorder=NO_TELEMETRY, control=None, environ={}
    )
    labels = [
        ledgers._broker(BrokerCaller(name="x", address=f"10.0.0.{each}")) for each in range(BROKERS_NAMED_MAX + 9)
    ]
    assert len(set(labels)) == BROKERS_NAMED_MAX + 1
    assert ledgers._broker(BrokerCaller(name="x", address="10.0.0.3")) == "10.0.0.3"


def unread(http: Any, path: str) -> socket.socket:
    """A client that asks and doesn't read the answer."""
    connection = socket.create_connection((http.address.host, http.address.port), timeout=PATIENCE_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


@pytest.mark.slow
def test_answer_that_nobody_takes_is_cut_after_its_time(
    store: ObjectStore, writer: StreamWriter, tmp_path: Path
) -> None:
    writer.block_bytes = 1024 * 1024
    writer.add([batch_of(7, 0, 600, size=100_000)], closes=(7,))
    path = f"/v1/streams/{quoted(STREAM)}/ledgers/7/entries?from=0&to=599"
    sections = {"broker": {"streams_max": 1}, "http": {"answer_timeout": 1}}
    with http_process(tmp_path, sections, streams=(), store=store) as (http, _), closing(unread(http, path)):
        broker = Broker(http.url)
        eventually(lambda: broker.entries(7, 0, 0).status == 200)


@pytest.mark.slow
def test_damage_in_the_middle_breaks_the_answer_off(
    store: ObjectStore, writer: StreamWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer.block_bytes = 1024 * 1024
    uuid = writer.add([batch_of(7, 0, 400, size=100_000)], closes=(7,))
    key, _ = writer.keys(uuid)
    body, info = store.get(key)
    damaged = bytearray(body)
    damaged[len(body) - 50_000] ^= 1
    store.put(key, bytes(damaged), metadata=info.metadata)
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        connection = socket.create_connection((http.address.host, http.address.port), timeout=PATIENCE_S)
        path = f"/v1/streams/{quoted(STREAM)}/ledgers/7/entries?from=0&to=399"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        found = b""
        with closing(connection):
            while piece := connection.recv(1 << 20):
                found += piece
        assert found.startswith(b"HTTP/1.1 200 ")
        assert 10_000_000 < len(found) < 40_000_000
        assert not found.endswith(b"0\r\n\r\n")
        # The whole range at once: an error before anything is sent.
        single = Broker(http.url).entries(7, 399, 399)
        assert (single.status, single.json()["kind"]) == (500, "data_corruption")
    assert "the response was aborted" in caplog.text


def config(folder: Path, port: int, *, listen: bool = True) -> Path:
    path = folder / "offloader.toml"
    http = f'[http]\nlisten = "127.0.0.1:{port}"\n' if listen else ""
    path.write_text(f'[serve]\nstore = "file://{folder}/store"\n{http}')
    return path


@pytest.mark.process
def test_read_only_process_that_listens_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCallError, match=r"http\.listen is not set"):
        require_sound(Settings.of({"serve": {"store": "memory://x"}}), read_only=True)
    with Serving(config(tmp_path, 0, listen=False), {}, "--read-only", wait=False) as process:
        assert process.ended() == 2
        assert "http.listen is not set" in json.dumps(process.lines)
