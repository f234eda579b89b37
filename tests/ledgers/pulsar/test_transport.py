"""Connections to a misbehaving broker: every failure is an error of that connection only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from formats.pulsar.commands import Command, CommandType, encode_command
from offloader.errors import (
    AccessDeniedError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
    ThrottledError,
)
from offloader.ledgers.pulsar import protocol as requests
from offloader.ledgers.pulsar.protocol import ClientLimits, Connection, open_connection
from offloader.ledgers.pulsar.transport import Security, open_security, parse_service_url
from offloader.runtime.clock import SystemClock
from tests.support.certificates import Authority
from tests.support.pulsar_broker import BrokerClient, FakeBroker
from tests.support.waiting import PATIENCE_S, eventually

TOKEN = "very-secret"
ID = {"ledger_id": 1, "entry_id": 2}
PATIENT = ClientLimits()


@dataclass
class Listener:
    """Keeps what it hears; fails when told to."""

    heard: list[Command] = field(default_factory=list)
    errors: list[OffloaderError] = field(default_factory=list)
    failure: Exception | None = None

    def received(self, command: Command) -> None:
        if self.failure is not None:
            raise self.failure
        self.heard.append(command)

    def lost(self, error: OffloaderError) -> None:
        self.errors.append(error)


def connect(broker: FakeBroker, security: Security | None = None, limits: ClientLimits = PATIENT) -> Connection:
    [address] = parse_service_url(broker.url)
    return open_connection(address, security=security or Security(), limits=limits, clock=SystemClock())


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({"t": 3}) as running:
        yield running


@pytest.fixture
def opened(broker: FakeBroker) -> Iterator[Connection]:
    connection = connect(broker)
    yield connection
    connection.close()


def partitions(connection: Connection, topic: str = "t") -> int:
    return int(connection.request(CommandType.PARTITIONED_METADATA, topic=topic).partitions)


def test_connection_announces_its_features_and_answers_requests(broker: FakeBroker, opened: Connection) -> None:
    assert partitions(opened) == 3
    [connect_body] = broker.of(CommandType.CONNECT)
    assert connect_body.feature_flags.broker_entry_metadata
    assert connect_body.protocol_version >= 18
    assert not connect_body.HasField("auth_data")
    assert "open, 0 consumers, 0 requests" in repr(opened)


def test_concurrent_requests_get_their_own_responses(broker: FakeBroker, opened: Connection) -> None:
    broker.topics = {f"t{number}": number for number in range(40)}
    held: list[tuple[BrokerClient, Command]] = []

    def answer_backwards(client: BrokerClient, command: Command) -> bool:
        if command.type is not CommandType.PARTITIONED_METADATA:
            return False
        held.append((client, command))
        if len(held) == 40:
            for to, each in reversed(held):
                body = each.body
                fields = {"request_id": body.request_id, "partitions": broker.topics[body.topic]}
                to.send(CommandType.PARTITIONED_METADATA_RESPONSE, response=0, **fields)
        return True

    broker.answer = answer_backwards
    found: dict[str, int] = {}
    threads = [
        threading.Thread(target=lambda topic=topic: found.update({topic: partitions(opened, topic)}))
        for topic in broker.topics
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == broker.topics


def test_ping_is_answered_with_pong(broker: FakeBroker, opened: Connection) -> None:
    broker.send(CommandType.PING)
    eventually(lambda: broker.of(CommandType.PONG))


@pytest.mark.slow
def test_idle_broker_is_pinged_and_stays_connected(broker: FakeBroker) -> None:
    def stays() -> bool:
        """Through three questions; a broker that has no processor for so long is given up, and rightly."""
        before = len(broker.of(CommandType.PING))
        opened = connect(broker, limits=ClientLimits(keep_alive_s=0.2))
        eventually(lambda: len(broker.of(CommandType.PING)) >= before + 3 or not opened.is_open)
        try:
            return partitions(opened) == 3
        except StoreUnavailableError:
            return False
        finally:
            opened.close()

    eventually(stays)


@pytest.mark.slow
def test_silent_broker_is_disconnected(broker: FakeBroker) -> None:
    opened = connect(broker, limits=ClientLimits(keep_alive_s=0.5))
    listener = Listener()
    opened.attach(listener)
    broker.is_silent = True
    eventually(lambda: listener.errors)
    assert not opened.is_open
    [error] = listener.errors
    assert isinstance(error, StoreUnavailableError)
    assert "sent nothing for 1 s" in str(error)


def test_connect_without_a_response_times_out(broker: FakeBroker) -> None:
    broker.is_silent = True
    with pytest.raises(StoreUnavailableError, match="didn't answer CONNECT within"):
        connect(broker, limits=ClientLimits(connect_s=0.1))


def test_request_has_a_deadline_and_its_late_response_is_dropped(broker: FakeBroker, opened: Connection) -> None:
    late: list[tuple[BrokerClient, int]] = []

    def hold(client: BrokerClient, command: Command) -> bool:
        late.append((client, command.body.request_id))
        return True

    broker.answer = hold
    opened._limits = ClientLimits(request_s=0.05)
    with pytest.raises(StoreUnavailableError, match=r"didn't answer LOOKUP within 0\.05 s"):
        opened.request(CommandType.LOOKUP, topic="t")
    opened._limits = PATIENT
    broker.answer = lambda client, command: False
    [(client, request_id)] = late
    client.send(CommandType.LOOKUP_RESPONSE, request_id=request_id, response=1, broker_url="pulsar://wrong")
    assert partitions(opened) == 3


def test_pending_requests_are_bounded(broker: FakeBroker, opened: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUESTS_MAX", 0)
    with pytest.raises(ThrottledError, match="0 requests wait"):
        partitions(opened)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        encode_command(CommandType.PING)[:-1] + b"\xff",
        encode_command(CommandType.CONNECTED, server_version="s", max_message_size=2**31 - 1),
    ],
)
def test_bytes_outside_the_protocol_close_that_connection(broker: FakeBroker, opened: Connection, sent: bytes) -> None:
    listener = Listener()
    opened.attach(listener)
    broker.send_bytes(sent)
    eventually(lambda: listener.errors)
    [error] = listener.errors
    assert isinstance(error, StoreUnavailableError | LimitReachedError)
    assert opened.name in str(error)
    with pytest.raises(type(error)):
        partitions(opened)
    again = connect(broker)
    assert partitions(again) == 3
    again.close()


def test_response_of_another_type_ends_the_connection(broker: FakeBroker, opened: Connection) -> None:
    def lie(client: BrokerClient, command: Command) -> bool:
        client.send(CommandType.SUCCESS, request_id=command.body.request_id)
        return True

    broker.answer = lie
    with pytest.raises(StoreUnavailableError, match="answer to PARTITIONED_METADATA"):
        partitions(opened)


def test_larger_frames_are_read_when_the_broker_announced_them() -> None:
    entry = bytes(6 * 1024 * 1024)
    for announced, arrives in ((5 * 1024 * 1024, False), (7 * 1024 * 1024, True)):
        with FakeBroker(max_message_bytes=announced) as broker:
            opened, listener = connect(broker), Listener()
            consumer_id = opened.attach(listener)
            broker.send(CommandType.MESSAGE, entry, consumer_id=consumer_id, message_id=ID)
            eventually(lambda: listener.heard or listener.errors)  # noqa: B023
            assert [command.entry == entry for command in listener.heard] == ([True] if arrives else [])
            opened.close()


def test_commands_are_passed_to_their_consumer(broker: FakeBroker, opened: Connection) -> None:
    first, second, gone = Listener(), Listener(), Listener()
    ids = [opened.attach(listener) for listener in (first, second, gone)]
    opened.detach(ids[2])
    for number, consumer_id in enumerate((*ids, 99)):
        broker.send(CommandType.MESSAGE, b"entry %d" % number, consumer_id=consumer_id, message_id=ID)
    broker.send(CommandType.ACTIVE_CONSUMER_CHANGE, consumer_id=ids[1], is_active=True)
    broker.send(CommandType.CLOSE_CONSUMER, consumer_id=ids[1], request_id=0)
    broker.send(CommandType.REACHED_END_OF_TOPIC, consumer_id=ids[1])
    eventually(lambda: len(second.heard) == 4)
    assert [command.entry for command in first.heard] == [b"entry 0"]
    assert [command.type for command in second.heard] == [
        CommandType.MESSAGE,
        CommandType.ACTIVE_CONSUMER_CHANGE,
        CommandType.CLOSE_CONSUMER,
        CommandType.REACHED_END_OF_TOPIC,
    ]
    assert gone.heard == []


def test_a_consumer_that_fails_is_alone(broker: FakeBroker, opened: Connection) -> None:
    bad, good = Listener(failure=ValueError("bad luck")), Listener()
    for listener in (bad, good):
        consumer_id = opened.attach(listener)
        for _ in range(2):
            broker.send(CommandType.MESSAGE, b"e", consumer_id=consumer_id, message_id=ID)
    eventually(lambda: len(good.heard) == 2)
    assert ["bad luck" in str(error) for error in bad.errors] == [True]
    assert good.errors == []
    assert partitions(opened) == 3


def test_a_listener_may_not_wait_for_its_own_thread(broker: FakeBroker, opened: Connection) -> None:
    raised: list[BaseException] = []

    class Asking(Listener):
        def received(self, command: Command) -> None:
            try:
                partitions(opened)
            except InvalidCallError as error:
                raised.append(error)

    consumer_id = opened.attach(Asking())
    broker.send(CommandType.REACHED_END_OF_TOPIC, consumer_id=consumer_id)
    eventually(lambda: raised)
    assert "may not wait for PARTITIONED_METADATA" in str(raised[0])


def test_cut_connection_notifies_every_listener_once(broker: FakeBroker, opened: Connection) -> None:
    listeners = [Listener(), Listener()]
    for listener in listeners:
        opened.attach(listener)
    errors: list[OffloaderError] = []

    def ask() -> None:
        try:
            partitions(opened)
        except StoreUnavailableError as error:
            errors.append(error)

    broker.answer = lambda client, command: True
    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: broker.of(CommandType.PARTITIONED_METADATA))
    broker.cut()
    thread.join(PATIENCE_S)
    eventually(lambda: all(listener.errors for listener in listeners))
    opened.close()
    assert [len(listener.errors) for listener in listeners] == [1, 1]
    assert len(errors) == 1
    for call in (lambda: opened.send(CommandType.PING), lambda: opened.attach(Listener())):
        with pytest.raises(StoreUnavailableError):
            call()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (11, NotFoundError),
        (4, AccessDeniedError),
        (6, StoreUnavailableError),
        (14, ThrottledError),
        (17, InvalidCallError),
        (77, StoreUnavailableError),
    ],
)
def test_refusals_contain_the_brokers_message(
    broker: FakeBroker, opened: Connection, code: int, kind: type[OffloaderError]
) -> None:
    def refuse(client: BrokerClient, command: Command) -> bool:
        fields: dict[str, Any] = {"request_id": command.body.request_id, "error": code}
        if command.type is CommandType.SUBSCRIBE:
            client.send(CommandType.ERROR, message="no way\nat java.lang.Thread", **fields)
        else:
            client.send(CommandType.PARTITIONED_METADATA_RESPONSE, response=1, message="no way", **fields)
        return True

    broker.answer = refuse
    with pytest.raises(kind, match=r"refused PARTITIONED_METADATA: .*no way"):
        partitions(opened)
    with pytest.raises(kind, match=r"refused SUBSCRIBE: .*no way( \(|$)"):
        opened.request(CommandType.SUBSCRIBE, topic="t", subscription="s", type=0, consumer_id=1)
    assert opened.is_open


def test_a_command_that_cannot_be_written_is_the_callers(opened: Connection) -> None:
    with pytest.raises(InvalidCallError, match="LOOKUP"):
        opened.request(CommandType.LOOKUP, topic=b"\xff")
    assert partitions(opened) == 3


def test_a_token_opens_and_is_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    security = open_security(token_file=file)
    with FakeBroker({"t": 3}, token=TOKEN) as broker:
        opened = connect(broker, security)
        assert partitions(opened) == 3
        file.write_text("a-newer-one")
        broker.send(CommandType.AUTH_CHALLENGE, challenge={"auth_method_name": "token", "auth_data": b"PULSAR"})
        eventually(lambda: broker.of(CommandType.AUTH_RESPONSE))
        [answer] = broker.of(CommandType.AUTH_RESPONSE)
        assert (answer.response.auth_method_name, answer.response.auth_data) == ("token", b"a-newer-one")
        opened.close()
        with pytest.raises(AccessDeniedError) as raised:
            connect(broker, security)
    assert "Failed to authenticate ..." in str(raised.value)
    for shown in (str(raised.value), repr(raised.value), repr(security), repr(opened), caplog.text):
        assert TOKEN not in shown
        assert "a-newer-one" not in shown


def test_refusal_without_text_does_not_need_the_token_file(tmp_path: Path) -> None:
    """A file that is being replaced at this moment would end the connection of all topics."""

    def refuse(client: BrokerClient, command: Command) -> bool:
        if command.type is not CommandType.PARTITIONED_METADATA:
            return False
        client.send(CommandType.ERROR, request_id=command.body.request_id, error=6, message="")
        return True

    file = tmp_path / "token"
    file.write_text(TOKEN)
    with FakeBroker(token=TOKEN) as broker:
        opened = connect(broker, open_security(token_file=file))
        broker.answer = refuse
        file.unlink()
        with pytest.raises(OffloaderError) as raised:
            partitions(opened)
        is_open = opened.is_open
        opened.close()
    assert str(raised.value).endswith("refused PARTITIONED_METADATA: not ready")
    assert is_open


def test_a_broker_that_wants_a_token_refuses_none() -> None:
    with FakeBroker(token=TOKEN) as broker, pytest.raises(AccessDeniedError, match="authentication failed"):
        connect(broker)


@pytest.mark.slow
def test_tls_checks_certificate_and_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusting = open_security(ca_file=str(authority.ca_file))
    with FakeBroker({"t": 3}, tls=authority.server()) as broker:
        opened = connect(broker, trusting)
        assert partitions(opened) == 3
        large = "x" * 1_000_000  # more than one record of TLS, both ways
        assert partitions(opened, large) == 0
        opened.close()
        with pytest.raises(AccessDeniedError, match="certificate"):
            connect(broker)
    for server, why in (
        (authority.server(expired=True), "expired"),
        (authority.server("elsewhere.example"), "127.0.0.1"),
    ):
        with FakeBroker(tls=server) as broker, pytest.raises(AccessDeniedError, match=why):
            connect(broker, trusting)


def test_tls_to_a_plain_broker_and_the_other_way_round_are_errors(broker: FakeBroker, tmp_path: Path) -> None:
    [plain] = parse_service_url(broker.url)
    [secure] = parse_service_url(f"pulsar+ssl://{plain.host_and_port}")
    with pytest.raises(StoreUnavailableError, match="can't be reached with TLS"):
        open_connection(secure, security=Security(), limits=PATIENT, clock=SystemClock())
    with FakeBroker(tls=Authority(tmp_path).server()) as other:
        [secure] = parse_service_url(other.url)
        [plain] = parse_service_url(f"pulsar://{secure.host_and_port}")
        with pytest.raises(StoreUnavailableError):
            open_connection(plain, security=Security(), limits=PATIENT, clock=SystemClock())


def test_no_thread_is_left(broker: FakeBroker) -> None:
    before = {thread.name for thread in threading.enumerate() if thread.name.startswith("offloader-pulsar")}
    opened = connect(broker)
    opened.close()
    opened.close()
    assert {thread.name for thread in threading.enumerate() if thread.name.startswith("offloader-pulsar")} <= before
