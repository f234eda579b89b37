"""Topic lookup over brokers that redirect, fail, return, and are behind a proxy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.pulsar.commands import Command, CommandType
from offloader.errors import (
    AccessDeniedError,
    ClosedError,
    ErrorKind,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
)
from offloader.ledgers.pulsar import protocol as client_module
from offloader.ledgers.pulsar.protocol import ClientLimits, Connection, PulsarClient
from offloader.ledgers.pulsar.transport import BrokerAddress, open_security, parse_service_url
from tests.support.certificates import Authority
from tests.support.pulsar_broker import BrokerClient, FakeBroker
from tests.support.waiting import PATIENCE_S, eventually

TOPIC = "persistent://public/default/orders"
#: Raises at the first failure.
ONCE = ClientLimits(retry_s=0.0)
EAGER = ClientLimits(delay_first_s=0.001, delay_s_max=0.01)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({TOPIC: 3}) as running:
        yield running


@pytest.fixture
def other() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        yield running


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("pulsar://b", [BrokerAddress("b", 6650)]),
        ("pulsar://b:1/", [BrokerAddress("b", 1)]),
        ("PULSAR+SSL://b", [BrokerAddress("b", 6651, tls=True)]),
        ("pulsar://a:1,b,[::1]:7", [BrokerAddress("a", 1), BrokerAddress("b", 6650), BrokerAddress("::1", 7)]),
    ],
)
def test_service_urls(url: str, addresses: list[BrokerAddress]) -> None:
    assert list(parse_service_url(url)) == addresses
    assert [parse_service_url(str(address)) for address in addresses] == [(address,) for address in addresses]


@pytest.mark.parametrize(
    "url",
    ["", "b:6650", "http://b", "pulsar://", "pulsar://b:x", "pulsar://b:0", "pulsar://b:70000", "pulsar://a,,b",
     "pulsar://u@b", "pulsar://b/path", "pulsar://b?q", "pulsar://[::1", "pulsar://" + "a," * 200, "pulsar://a..b", "pulsar://\ud800"],
)  # fmt: skip
def test_invalid_service_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidCallError, match="is no Pulsar service URL"):
        PulsarClient(url)


def test_topics_of_a_broker_share_a_connection(broker: FakeBroker) -> None:
    with PulsarClient(broker.url, limits=ONCE) as client:
        assert client.partitions(TOPIC) == 3
        assert client.partitions("persistent://public/default/plain") == 0
        assert client.connection(TOPIC) is client.connection(TOPIC + "2")
    assert len(broker.of(CommandType.CONNECT)) == 1
    with pytest.raises(ClosedError):
        client.connection(TOPIC)


def test_callers_at_once_open_one_connection(broker: FakeBroker) -> None:
    found: list[Connection] = []
    with PulsarClient(broker.url, limits=ONCE) as client:
        threads = [threading.Thread(target=lambda: found.append(client.connection(TOPIC))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert len(found) == 8
    assert len(set(map(id, found))) == len(broker.of(CommandType.CONNECT)) == 1


def test_lookup_follows_a_redirect(broker: FakeBroker, other: FakeBroker) -> None:
    broker.lookups.append({"response": 0, "broker_url": other.url, "authoritative": True})
    with PulsarClient(broker.url, limits=ONCE) as client:
        assert client.connection(TOPIC).name == other.url
    assert [body.authoritative for body in (*broker.of(CommandType.LOOKUP), *other.of(CommandType.LOOKUP))] == [
        False,
        True,
    ]


def test_endless_lookup_redirects_are_given_up(broker: FakeBroker, other: FakeBroker) -> None:
    broker.lookups.extend([{"response": 0, "broker_url": other.url}] * 50)
    other.lookups.extend([{"response": 0, "broker_url": broker.url}] * 50)
    with (
        PulsarClient(broker.url, limits=ONCE) as client,
        pytest.raises(StoreUnavailableError, match="20 brokers in a row"),
    ):
        client.connection(TOPIC)
    assert len(broker.of(CommandType.LOOKUP)) + len(other.of(CommandType.LOOKUP)) == 21


def test_behind_a_proxy_only_the_proxy_is_asked(broker: FakeBroker) -> None:
    hidden = {"broker_url": "pulsar://hidden.example:1234", "proxy_through_service_url": True}
    broker.lookups.extend([{"response": 0, **hidden}, {"response": 1, **hidden}])
    with PulsarClient(broker.url, limits=ONCE) as client:
        connection = client.connection(TOPIC)
        assert connection.is_open
        assert connection is not client.connection("persistent://public/default/another")
    asked = [body.proxy_to_broker_url for body in broker.of(CommandType.CONNECT)]
    assert asked == ["", "hidden.example:1234"]


def test_broker_naming_itself_as_proxy_needs_no_second_connection(broker: FakeBroker) -> None:
    broker.lookups.append({"response": 1, "broker_url": broker.url, "proxy_through_service_url": True})
    with PulsarClient(broker.url, limits=ONCE) as client:
        assert client.connection(TOPIC).name == broker.url
    assert len(broker.of(CommandType.CONNECT)) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"response": 2, "error": 11, "message": "gone"}, NotFoundError),
        ({"response": 2, "error": 4, "message": "not you"}, AccessDeniedError),
        ({"response": 2}, StoreUnavailableError),
        ({"response": 9, "broker_url": "pulsar://b"}, StoreUnavailableError),
        ({"response": 1}, StoreUnavailableError),
        ({"response": 1, "broker_url_tls": "pulsar+ssl://b"}, StoreUnavailableError),
        ({"response": 1, "broker_url": "http://b"}, InvalidCallError),
    ],
)
def test_lookups_that_fail_are_named(
    broker: FakeBroker, answer: dict[str, object], error: type[OffloaderError]
) -> None:
    broker.lookups.append(answer)
    with PulsarClient(broker.url, limits=ONCE) as client, pytest.raises(error):
        client.connection(TOPIC)


def test_lookup_over_tls_refuses_redirect_to_plain_text(broker: FakeBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    security = open_security(ca_file=str(authority.ca_file))
    with FakeBroker(tls=authority.server()) as safe:
        safe.lookups.append({"response": 1, "broker_url_tls": broker.url})
        with (
            PulsarClient(safe.url, security=security, limits=ONCE) as client,
            pytest.raises(AccessDeniedError, match="could be read on the way"),
        ):
            client.connection(TOPIC)
    assert not broker.of(CommandType.CONNECT)


def test_more_partitions_than_there_can_be_are_refused(broker: FakeBroker) -> None:
    broker.topics[TOPIC] = 2**32 - 1
    with (
        PulsarClient(broker.url, limits=ONCE) as client,
        pytest.raises(LimitReachedError, match="4294967295 partitions"),
    ):
        client.partitions(TOPIC)


def test_restarted_broker_is_reconnected(broker: FakeBroker) -> None:
    with PulsarClient(broker.url, limits=EAGER) as client:
        first = client.connection(TOPIC)
        broker.stop()
        eventually(lambda: not first.is_open)
        found: list[Connection] = []
        thread = threading.Thread(target=lambda: found.append(client.connection(TOPIC)))
        thread.start()
        broker.start()
        thread.join(PATIENCE_S)
        assert len(found) == 1
        assert found[0].is_open
        assert found[0] is not first


def test_a_broker_that_failed_is_left_alone_for_a_while(broker: FakeBroker) -> None:
    with PulsarClient(broker.url, limits=ClientLimits(retry_s=0.0, delay_first_s=1e6, delay_s_max=1e6)) as client:
        first = client.connection(TOPIC)
        broker.stop()
        eventually(lambda: not first.is_open)
        with pytest.raises(StoreUnavailableError, match="can't be reached"):
            client.connection(TOPIC)
        broker.start()
        with pytest.raises(StoreUnavailableError, match="can't be reached"):
            client.connection(TOPIC)
    assert len(broker.of(CommandType.CONNECT)) == 1


def test_temporary_refusal_is_retried(broker: FakeBroker) -> None:
    broker.lookups.extend([{"response": 2, "error": 6, "message": "not ready"}] * 3)
    with PulsarClient(broker.url, limits=EAGER) as client:
        assert client.connection(TOPIC).is_open
    assert len(broker.of(CommandType.LOOKUP)) == 4


def test_permanent_refusal_is_not_retried(broker: FakeBroker) -> None:
    broker.token = "another"
    with PulsarClient(broker.url, limits=EAGER) as client, pytest.raises(AccessDeniedError) as raised:
        client.connection(TOPIC)
    assert raised.value.kind is ErrorKind.DENIED
    assert len(broker.of(CommandType.CONNECT)) == 1


def test_first_reachable_broker_of_several_is_used(broker: FakeBroker, other: FakeBroker) -> None:
    other.stop()
    with PulsarClient(f"pulsar://{other.address},{broker.address}", limits=ONCE) as client:
        assert client.partitions(TOPIC) == 3


def test_closing_ends_waiting_callers(broker: FakeBroker) -> None:
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            client.connection(TOPIC)
        except OffloaderError as error:
            raised.append(error)

    broker.stop()
    client = PulsarClient(broker.url, limits=ClientLimits(delay_first_s=1000, delay_s_max=1000, retry_s=2000))
    thread = threading.Thread(target=ask)
    thread.start()
    client.close()
    thread.join(PATIENCE_S)
    assert isinstance(raised[0], ClosedError)


def test_connections_have_a_limit_that_lost_ones_don_t_count_for(
    broker: FakeBroker, other: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CONNECTIONS_MAX", 1)
    with PulsarClient(broker.url, limits=ONCE) as client:
        first = client.connection(TOPIC)
        broker.lookups.append({"response": 1, "broker_url": other.url})
        with pytest.raises(LimitReachedError, match="more than 1 brokers"):
            client.connection(TOPIC)
        broker.cut()
        eventually(lambda: not first.is_open)
        assert client.connection(TOPIC).is_open


def test_a_connection_that_breaks_in_a_lookup_is_made_again(broker: FakeBroker) -> None:
    cut: list[BrokerClient] = []

    def cut_once(client: BrokerClient, command: Command) -> bool:
        if command.type is not CommandType.LOOKUP or cut:
            return False
        cut.append(client)
        broker.cut()
        return True

    broker.answer = cut_once
    with PulsarClient(broker.url, limits=EAGER) as client:
        assert client.connection(TOPIC).is_open
    assert len(broker.of(CommandType.CONNECT)) == 2


def test_tokens_are_read_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFLOADER_PULSAR_TOKEN", raising=False)
    assert open_security().token is None
    monkeypatch.setenv("OFFLOADER_PULSAR_TOKEN", " from-environment\n")
    found = open_security().token
    assert found is not None
    assert found() == "from-environment"
    file = tmp_path / "token"
    file.write_text("from-file\n")
    found = open_security(token_file=file).token
    assert found is not None
    assert found() == "from-file"
    for content in (b"", b"\xff\xfetoken", b"x" * 70_000):
        file.write_bytes(content)
        with pytest.raises(AccessDeniedError, match="no token in") as raised:
            found()
        assert raised.value.__cause__ is None
        assert "token'" not in str(raised.value)
    with pytest.raises(AccessDeniedError, match="No such file"):
        open_security(token_file=tmp_path / "none")
    with pytest.raises(InvalidCallError, match="holds no certificate authorities"):
        open_security(ca_file=str(file))
