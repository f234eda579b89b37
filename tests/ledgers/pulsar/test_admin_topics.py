"""Topics in the admin client, against the fake broker's admin interface; descriptions of policies."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from offloader.errors import AccessDeniedError, CorruptError, NotFoundError, StoreUnavailableError
from offloader.ledgers.pulsar import admin as admin_module
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.topics import internals_of, policy_warnings, stats_of
from offloader.ledgers.pulsar.transport import Security
from tests.support.certificates import Authority
from tests.support.pulsar_admin import FakeAdmin
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_topics import FakeTopic

TOPIC = "persistent://t/n/a b"
PATH = "/admin/v2/persistent/t/n/a%20b"


@pytest.fixture
def topic() -> Iterator[FakeTopic]:
    with FakeBroker() as broker:
        topic = FakeTopic(broker, TOPIC)
        for _ in range(2):
            for number in range(3):
                topic.append(b"entry %d" % number)
            topic.roll()
        topic.append(b"open")
        yield topic


@pytest.fixture
def fake(topic: FakeTopic) -> Iterator[FakeAdmin]:
    with FakeAdmin(topic, partitioned={"persistent://t/n/parts": 3}, token="secret") as fake:
        yield fake


@pytest.fixture
def client(fake: FakeAdmin) -> Iterator[AdminClient]:
    with AdminClient(fake.url, security=Security(lambda: fake.token)) as client:
        yield client


def test_ledgers_cursors_and_subscriptions_of_a_topic(topic: FakeTopic, client: AdminClient) -> None:
    topic.subscribe("sub/1 +")
    topic.acknowledge("sub/1 +", Position(2, 1))

    internals, stats = client.internals(TOPIC), client.stats(TOPIC)

    assert [(each.ledger_id, each.entries) for each in internals.ledgers.ledgers] == [(1, 3), (2, 3), (3, 0)]
    assert (internals.open_entries, internals.open_size_bytes) == (1, 4)
    assert internals.last_confirmed == Position(3, 0)
    assert not internals.is_terminated
    assert internals.cursors == {"sub/1 +": Position(2, 1)}
    assert {each.name: (each.is_durable, each.consumers) for each in stats.subscriptions.values()} == {
        "sub/1 +": (True, 0)
    }
    assert not stats.deduplicates


def test_topics_namespaces_and_policies(fake: FakeAdmin, client: AdminClient) -> None:
    fake.policies = {"t/empty": {}, "t/n": {"message_ttl_in_seconds": 60}}
    assert client.namespaces() == ["t/empty", "t/n"]
    assert client.topics("t/n") == [TOPIC]
    assert client.topics("t/empty") == []
    assert client.policies("t/n") == {"message_ttl_in_seconds": 60}
    for missing in (lambda: client.topics("t/none"), lambda: client.stats("persistent://t/n/none")):
        with pytest.raises(NotFoundError):
            missing()


def test_trim_reaches_the_topic(topic: FakeTopic, fake: FakeAdmin, client: AdminClient) -> None:
    topic.subscribe("offloader")
    client.trim(TOPIC)
    assert len(topic.entries) == 7
    topic.acknowledge("offloader", Position(2, 1))
    client.trim(TOPIC)
    assert [each.ledger_id for each in client.ledgers(TOPIC).ledgers] == [2, 3]


def test_token_is_read_for_each_request(fake: FakeAdmin, client: AdminClient) -> None:
    client.namespaces()
    fake.token = "another"
    client.namespaces()


@pytest.mark.slow
def test_admin_client_recovers_after_an_outage(fake: FakeAdmin, client: AdminClient) -> None:
    fake.is_up = False
    with pytest.raises(StoreUnavailableError, match="doesn't answer"):
        client.namespaces()
    fake.is_up = True
    assert client.namespaces() == ["t/n"]


@pytest.mark.slow
def test_only_a_trusted_certificate_is_accepted(topic: FakeTopic, tmp_path: Path) -> None:
    for name in ("ours", "others"):
        (tmp_path / name).mkdir()
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    with FakeAdmin(topic, token="secret", tls=ours.server()) as fake:
        assert fake.url.startswith("https://")
        good = Security(lambda: "secret", ssl.create_default_context(cafile=str(ours.ca_file)))
        with AdminClient(fake.url, security=good) as client:
            assert client.topics("t/n") == [TOPIC]
        bad = Security(lambda: "secret", ssl.create_default_context(cafile=str(others.ca_file)))
        with AdminClient(fake.url, security=bad) as client, pytest.raises(AccessDeniedError, match="certificate"):
            client.topics("t/n")
        assert fake.asked == [("GET", "/admin/v2/persistent/t/n")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{PATH}/stats", b'{"subscriptions": {"s": {}}}'),
        (f"{PATH}/stats", b"[]"),
        (f"{PATH}/internalStats", b'{"ledgers": [], "cursors": {"s": {"markDeletePosition": "near 7"}}}'),
        (f"{PATH}/internalStats", b'{"ledgers": [], "cursors": []}'),
        ("/admin/v2/namespaces/t/n", b"7"),
    ],
)
def test_malformed_response_is_corrupt(fake: FakeAdmin, client: AdminClient, path: str, body: bytes) -> None:
    fake.answers[path] = (200, body)

    def ask() -> None:
        for each in (client.stats, client.internals):
            each(TOPIC)
        client.policies("t/n")

    with pytest.raises(CorruptError):
        ask()


def test_an_answer_that_drips_has_an_end(fake: FakeAdmin, client: AdminClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "ANSWER_S_MAX", -1.0)
    with pytest.raises(StoreUnavailableError, match="the response took more than"):
        client.namespaces()


#: As a broker 4.0.7 answers, shortened.
INTERNALS = """{"currentLedgerEntries":10,"currentLedgerSize":370,"lastConfirmedEntry":"4:9","state":"Terminated",
"ledgers":[{"ledgerId":4,"entries":0,"size":0,"offloaded":false,"underReplicated":false}],
"cursors":{"sub+a%2Fb":{"markDeletePosition":"4:0","individuallyDeletedMessages":"[(4:3..4:4],(4:6..5:0]]"},
"pulsar.dedup":{"markDeletePosition":"4:-1","individuallyDeletedMessages":"[]"}}}"""


def test_recorded_broker_responses_are_parsed() -> None:
    found = internals_of(json.loads(INTERNALS), TOPIC)
    assert found.is_terminated
    assert found.open_entries == 10
    assert found.cursors == {"sub a/b": Position(4, 0), "pulsar.dedup": Position(4, -1)}
    assert stats_of({"subscriptions": {}, "deduplicationStatus": "Enabled"}, TOPIC).deduplicates


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ({}, []),
        ({"message_ttl_in_seconds": 0, "offload_threshold": -1, "backlog_quota_map": {}}, []),
        ({"message_ttl_in_seconds": 60}, ["message TTL is 60 s"]),
        ({"backlog_quota_map": {"destination_storage": {"policy": "producer_request_hold"}}}, []),
        (
            {"backlog_quota_map": {"message_age": {"policy": "consumer_backlog_eviction"}}},
            ["backlog quota message_age"],
        ),
        ({"subscription_expiration_time_minutes": 5}, ["deleted after 5 minutes"]),
        ({"offload_threshold": 0}, ["offloads by itself"]),
        ({"offload_policies": {"managedLedgerOffloadThresholdInBytes": 10}}, ["offloads by itself"]),
        ([], []),
        ({"backlog_quota_map": 7, "offload_policies": [], "message_ttl_in_seconds": "x"}, []),
        ({"message_ttl_in_seconds": float("inf")}, []),
    ],
)
def test_conflicting_policies_are_reported(policies: Any, words: list[str]) -> None:
    found = policy_warnings(policies)
    assert len(found) == len(words)
    assert all(word in warning for word, warning in zip(words, found, strict=True))
