"""``offloader doctor`` asks as a broker's plugin does: each wrong address, token, certificate and ledger is named."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.manifest import LedgersDeleted, Truncate
from offloader.cli.main import main
from offloader.doctor import CheckResult, Outcome
from offloader.errors import ErrorKind, InvalidCallError
from offloader.owner_client import CA_VARIABLE
from offloader.runtime.clock import SystemClock
from offloader.service.broker_doctor import check_broker_routes, may_have_token
from offloader.settings import Duration, Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from services.servers import free_port
from tests.ledgers.pulsar_bench import PulsarBench
from tests.support.broker_requests import STREAM
from tests.support.certificates import Authority
from tests.support.http_process import http_process
from tests.support.streams import StreamWriter, batch_of
from tests.test_doctor_broker_settings import GOOD

_names = itertools.count()
BROKERS: dict[str, Any] = {"access": {"broker_tokens": ["env:BROKER"]}}
ENVIRON = {"BROKER": "broker-token-0123456789", "OTHER": "another-token-0123456789"}


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    bench = PulsarBench()
    bench.settings = replace(
        bench.settings, topics=("public/default",), connect_timeout=Duration(2.0), broker_plugin=True
    )
    yield bench
    bench.close()


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://doctor-{next(_names)}")


def asked(
    bench: PulsarBench, endpoint: str, environ: dict[str, str] | None = None, **sections: Any
) -> list[CheckResult]:
    """What doctor says where the broker's plugin asks ``endpoint``."""
    bench.admin.settings = {**GOOD, "managedLedgerOffloadServiceEndpoint": endpoint}
    settings = replace(Settings.of(sections), pulsar=bench.settings)
    return list(check_broker_routes(settings, SystemClock(), environ or {}))


def with_offloaded(bench: PulsarBench, store: ObjectStore, entries: int = 10) -> StreamWriter:
    """Three closed ledgers that the broker offloaded, and what the cold tier has under their numbers."""
    for _ in range(3):
        bench.fill(10)
        bench.topic.roll()
    bench.topic.offload(Position(4, 0))
    writer = StreamWriter(store, STREAM)
    for ledger_id in (1, 2, 3):
        writer.add([batch_of(ledger_id, 0, entries)], closes=[ledger_id])
    return writer


@pytest.mark.slow
def test_endpoint_that_serves_brokers_and_their_ledgers_is_fine(
    bench: PulsarBench, store: ObjectStore, tmp_path: Path
) -> None:
    with_offloaded(bench, store)
    with http_process(tmp_path, BROKERS, streams=(), store=store, environ=ENVIRON) as (http, _):
        found = asked(bench, http.url, ENVIRON, **BROKERS)
    assert {each.outcome for each in found} == {Outcome.OK}
    assert found[0].what == f"{http.url} serves brokers with the token of access.broker_tokens"
    assert found[1].what == "3 ledgers that the broker lists as offloaded can be read"


def problems(found: list[CheckResult]) -> list[tuple[str, str, ErrorKind | None]]:
    return [(each.what, each.hint, each.kind) for each in found if each.outcome is not Outcome.OK]


@pytest.mark.slow
def test_wrong_addresses_are_named(bench: PulsarBench) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    [(what, hint, kind)] = problems(asked(bench, nobody))
    assert (f"no response from {nobody}" in what, "endpoints" in hint, kind) == (True, True, ErrorKind.RETRY_LATER)
    [(what, _, kind)] = problems(asked(bench, "sidecar:8750"))
    assert ("'sidecar:8750' is not an HTTP URL" in what, kind) == (True, ErrorKind.INVALID_REQUEST)
    [(what, hint, _)] = problems(asked(bench, ""))
    assert ("was not checked" in what, "serve.url" in hint) == (True, True)


@pytest.mark.slow
def test_listening_address_is_asked_where_nothing_else_is_named(bench: PulsarBench, store: ObjectStore) -> None:
    """As with the settings of docs/how-to/consumers.md."""
    address = f"127.0.0.1:{free_port()}"
    [(what, _, kind)] = problems(asked(bench, "", http={"listen": address}))
    assert (f"no response from http://{address}" in what, kind) == (True, ErrorKind.RETRY_LATER)


def test_service_without_routes_for_brokers_is_named_as_older(bench: PulsarBench) -> None:
    url = bench.admin.url  # any server that doesn't know them
    [(what, hint, _)] = problems(asked(bench, url))
    assert f"{url} has no routes for brokers: response 404" in what
    assert "an older version" in hint


@pytest.mark.slow
@pytest.mark.parametrize("sections", [{}, {"access": {"broker_tokens": ["env:OTHER"]}}])
def test_missing_and_wrong_tokens_are_named(bench: PulsarBench, tmp_path: Path, sections: dict[str, Any]) -> None:
    with http_process(tmp_path, BROKERS, streams=(), environ=ENVIRON) as (http, _):
        [(what, hint, kind)] = problems(asked(bench, http.url, ENVIRON, **sections))
    assert kind is ErrorKind.DENIED
    assert ("refuses the token" if sections else "none was sent") in what
    assert "token_file of the plugin" in hint
    assert "another-token" not in what + hint


def test_token_goes_to_no_host_that_nobody_named() -> None:
    own, named = {"serve": {"url": "https://sidecar:8750"}}, {"access": {"owner_hosts": ["Sidecar"]}}
    for sections, may in (({}, False), (own, True), (named, True)):
        assert may_have_token("http://sidecar:9000", Settings.of(sections)) is may
        assert not may_have_token("http://elsewhere:8750", Settings.of(sections))
        assert may_have_token("http://127.0.0.1:9000", Settings.of(sections))
        assert not may_have_token("", Settings.of(sections))


@pytest.mark.slow
def test_expired_certificate_is_named(bench: PulsarBench, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    environ = {CA_VARIABLE: str(authority.ca_file)}
    for expired in (False, True):
        access = {"access": {"certificate_file": str(authority.issue("127.0.0.1", expired=expired))}}
        with http_process(tmp_path, access, streams=()) as (http, _):
            found = problems(asked(bench, http.url, environ))
            unknown = problems(asked(bench, http.url))
        assert "certificate verification failed" in unknown[0][0]
        if not expired:
            assert found == []
            continue
        [(what, hint, kind)] = found
        assert "certificate has expired" in what
        assert ("renew the certificate" in hint, kind) == (True, ErrorKind.DENIED)


@pytest.mark.slow
def test_other_cluster_is_named(bench: PulsarBench, store: ObjectStore, tmp_path: Path) -> None:
    with http_process(tmp_path, {"broker": {"source": "east"}}, streams=(), store=store) as (http, _):
        [(what, hint, _)] = problems(asked(bench, http.url, broker={"source": "west"}))
    assert "west" in what
    assert "broker.source" in hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda writer: writer.log.commit([LedgersDeleted((1,)), Truncate(Position(2, 0))]), "deleted from the cold"),
        (lambda writer: writer.log.commit([LedgersDeleted((2,))]), "ledger 2 as offloaded, and it was deleted"),
    ],
)
def test_ledgers_that_are_gone_are_named(
    bench: PulsarBench, store: ObjectStore, tmp_path: Path, change: Any, said: str
) -> None:
    change(with_offloaded(bench, store))
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        [(what, hint, kind)] = problems(asked(bench, http.url))
    assert (said in what, "trim the topic" in hint, kind) == (True, True, ErrorKind.NOT_FOUND)


@pytest.mark.slow
def test_unknown_ledgers_and_another_clusters_are_named(bench: PulsarBench, store: ObjectStore, tmp_path: Path) -> None:
    with_offloaded(bench, store, entries=9)
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        [(what, hint, _)] = problems(asked(bench, http.url))
    assert "with 10 entries, and the cold tier has 9" in what
    assert "another cluster" in hint
    with http_process(tmp_path, streams=()) as (http, _):
        [(what, hint, _)] = problems(asked(bench, http.url))
    assert "it isn't in the cold tier" in what
    assert "offloader import" in hint


@pytest.mark.slow
def test_broker_that_does_not_say_it_is_asked_where_this_service_is(bench: PulsarBench, tmp_path: Path) -> None:
    with http_process(tmp_path, streams=()) as (http, _):
        assert problems(asked(bench, "", serve={"url": http.url})) == []


@pytest.mark.slow
def test_doctor_command_asks_the_plugins_way(
    bench: PulsarBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.admin.settings = {**GOOD, "managedLedgerOffloadServiceEndpoint": f"http://127.0.0.1:{free_port()}"}
    config = tmp_path / "offloader.toml"
    config.write_text(
        f'[serve]\nstore = "file://{tmp_path}/store"\n[pulsar]\nservice_url = "{bench.broker.url}"\n'
        f'admin_url = "{bench.admin.url}"\ntopics = ["public/default"]\nbroker_plugin = true\n'
    )
    assert main(["doctor", "--config", str(config)]) == ErrorKind.RETRY_LATER.value
    assert "no response from" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_admin_interface_that_is_down_keeps_nobody_from_asking_this_service(bench: PulsarBench, tmp_path: Path) -> None:
    bench.admin.is_up = False
    with http_process(tmp_path, streams=()) as (http, _):
        assert problems(asked(bench, "", serve={"url": http.url})) == []


def test_token_that_cannot_be_read_is_an_error(bench: PulsarBench) -> None:
    with pytest.raises(InvalidCallError, match="env:BROKER holds no token"):
        asked(bench, "http://127.0.0.1:1", {}, **BROKERS)
