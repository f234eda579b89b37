"""The admin client asks about scalable topics as a real broker answers, and about segments nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.entries import Position
from formats.topic_layout import TopicSchema
from offloader.errors import AccessDeniedError, CorruptError, InvalidCallError, NotFoundError, UnsupportedError
from offloader.ledgers.pulsar.admin import AdminClient
from tests.support.pulsar_admin import FakeAdmin

RECORDED = Path(__file__).parent / "scalable_layouts"
TOPIC, PATH = "topic://public/recorded/orders", "/admin/v2/scalable/public/recorded/orders"


@pytest.fixture
def server() -> Iterator[FakeAdmin]:
    with FakeAdmin() as running:
        yield running


@pytest.fixture
def client(server: FakeAdmin) -> Iterator[AdminClient]:
    with AdminClient(server.url, retries_max=0) as client:
        yield client


def test_answers_of_a_real_broker(server: FakeAdmin, client: AdminClient) -> None:
    server.answers = {
        "/admin/v2/scalable/public/recorded": (200, (RECORDED / "topics.json").read_bytes()),
        PATH: (200, (RECORDED / "layout-merge.json").read_bytes()),
        f"{PATH}/stats": (200, (RECORDED / "stats.json").read_bytes()),
        f"{PATH}/subscriptions/my%20own?type=QUEUE": (204, b""),
    }
    assert client.scalable_topics("public/recorded")[0] == TOPIC
    assert len(client.layout(TOPIC).segments) == 5
    expected = json.loads((RECORDED / "stats.json").read_text())["subscriptions"]
    assert client.scalable_subscriptions(TOPIC).keys() == set(expected)
    assert set(client.scalable_subscriptions(TOPIC).values()) <= {0, 1}
    client.register(TOPIC, "my own")
    assert server.asked[-1] == ("PUT", f"{PATH}/subscriptions/my%20own?type=QUEUE")


def test_all_versions_of_a_schema(server: FakeAdmin, client: AdminClient) -> None:
    path = "/admin/v2/schemas/public/recorded/orders/schemas"
    answered = [
        {"version": 1, "type": "KEY_VALUE", "timestamp": 2, "data": "{}", "properties": {"key.schema.type": "STRING"}},
        {"version": 0, "type": "STRING", "timestamp": 1, "data": "", "properties": None},
    ]
    server.answers = {path: (200, json.dumps({"getSchemaResponses": answered}).encode())}
    expected = (
        TopicSchema(version=0, type="STRING", data=""),
        TopicSchema(version=1, type="KEY_VALUE", data="{}", properties={"key.schema.type": "STRING"}),
    )
    assert client.schemas(TOPIC) == expected
    assert client.schemas("segment://public/recorded/orders/0000-ffff-0") == expected
    server.answers = {path: (404, b"")}
    assert client.schemas(TOPIC) == ()


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        '{"getSchemaResponses": [3]}',
        '{"getSchemaResponses": [{"version": -1, "type": "STRING"}]}',
        '{"getSchemaResponses": [{"version": 0, "type": "STRING", "data": "\\ud800"}]}',
        '{"getSchemaResponses": [{"version": 0, "type": "STRING", "data": [1]}]}',
    ],
)
def test_an_answer_without_schemas_is_damage(server: FakeAdmin, client: AdminClient, answer: str) -> None:
    server.answers = {"/admin/v2/schemas/public/recorded/orders/schemas": (200, answer.encode())}
    with pytest.raises(CorruptError, match="has no schemas"):
        client.schemas(TOPIC)


def test_absent_topic_and_refused_registration(server: FakeAdmin, client: AdminClient) -> None:
    errors = json.loads((RECORDED / "errors.json").read_text())
    status, body = errors["missing-topic"]
    server.answers = {
        PATH: (status, json.dumps(body).encode()),
        f"{PATH}/subscriptions/offloader?type=QUEUE": (403, b""),
    }
    with pytest.raises(NotFoundError):
        client.layout(TOPIC)
    with pytest.raises(AccessDeniedError):
        client.register(TOPIC, "offloader")


@pytest.mark.parametrize("body", [b"[]", b'{"subscriptions": []}', b"nonsense"])
def test_other_answers_are_refused(server: FakeAdmin, client: AdminClient, body: bytes) -> None:
    server.answers = {PATH: (200, body), f"{PATH}/stats": (200, body)}
    with pytest.raises(CorruptError):
        client.layout(TOPIC)
    with pytest.raises(CorruptError):
        client.scalable_subscriptions(TOPIC)


def test_names_in_paths_are_encoded(server: FakeAdmin, client: AdminClient) -> None:
    with pytest.raises(NotFoundError):
        client.layout("topic://t/n/a b?c")
    assert server.asked[-1][1] == "/admin/v2/scalable/t/n/a%20b%3Fc"
    with pytest.raises(InvalidCallError, match="is no scalable topic"):
        client.layout("topic://t/n/a/b")


def test_backlog_of_a_segment(server: FakeAdmin, client: AdminClient) -> None:
    path = "/admin/v2/segments/public/recorded/orders/0000-7fff-0/subscription/my%20own/backlog"
    segment = "segment://public/recorded/orders/0000-7fff-0"
    server.answers = {path: (200, b"30")}
    assert client.backlog(segment, "my own") == 30
    server.answers = {path: (404, b'{"reason": "Subscription not found on segment"}')}
    with pytest.raises(NotFoundError):
        client.backlog(segment, "my own")
    for body in (b"-1", b"true", b'"30"', b"{}"):
        server.answers = {path: (200, body)}
        with pytest.raises(CorruptError, match="has no backlog of subscription my own"):
            client.backlog(segment, "my own")


def test_segment_has_the_schema_of_its_topic(server: FakeAdmin, client: AdminClient) -> None:
    schema = b'{"type": "STRING", "data": "", "properties": {}}'
    server.answers = {"/admin/v2/schemas/public/recorded/orders/schema": (200, schema)}
    assert client.schema("segment://public/recorded/orders/0000-7fff-0", None) == ("STRING", "", {})


def test_segments_are_not_asked_about(server: FakeAdmin, client: AdminClient) -> None:
    segment = "segment://public/recorded/orders/0000-7fff-0"
    for ask in (client.internals, client.stats, client.trim):
        with pytest.raises(UnsupportedError, match="has no segments of scalable topics"):
            ask(segment)
    with pytest.raises(UnsupportedError, match="has no segments of scalable topics"):
        client.offload(segment, Position(1, 0))
    assert server.asked == []
